"""Changes of the user's own tables, staged in a transaction and decided with it.

Rows are staged beside the messages' payload; the decision's entries are the redo log, which
``table_applier`` applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.planning import Stamp
from txnqueue.core.state import AttemptOwner
from txnqueue.errors import (
    InvalidInput,
    TableNotFound,
    TransactionAborted,
)
from txnqueue.storage.tables import (
    Change,
    TableInfo,
    together,
)

if TYPE_CHECKING:
    pass


_TOGETHER_SINCE = 2
"""A store of layout 1 may be in use by a version that does not know several sends in a change."""


def look(client: Client, name: str) -> TableInfo:
    """Return the description of a table.

    Raises:
        TableNotFound: There is no table of that name.
    """
    info = client.store.tables.describe(name)
    if info is None:
        raise TableNotFound(
            f"There is no table {name!r}: create it before a transaction changes it.", name=name
        )
    return info


def sealed(client: Client, changes: Sequence[Change], transaction_id: str) -> list[Change]:
    """Check the tables again before the decision, and return the changes as it records them.

    Returns:
        The changes, with appends joined into one change where possible.

    Raises:
        TransactionAborted: A table is gone or was replaced, or would now refuse its change.
    """
    infos = {name: client.store.tables.describe(name) for name in {c.table for c in changes}}
    found = []
    for change in changes:
        info = infos[change.table]
        if info is None or info.table_id != change.table_id:
            raise TransactionAborted(
                f"The table {change.table!r} was dropped or replaced meanwhile, so nothing was "
                "committed: run the transaction again.",
                transaction_id=transaction_id,
            )
        if info.version != change.table_version:
            try:
                client.store.tables.check(info, change, transaction_id)
            except InvalidInput as error:
                raise TransactionAborted(
                    f"The table {change.table!r} was changed meanwhile and would refuse this now: "
                    f"{error}",
                    transaction_id=transaction_id,
                ) from error
        found.append(replace(change, table_version=info.version))
    return together(found) if client.cache.layout >= _TOGETHER_SINCE else found


def decided(change: Change, owner: AttemptOwner, stamp: Stamp) -> Entry:
    """Make the entry of a change that the transaction decides: the redo log."""
    return Entry(
        model.table_shard(change.table_id),
        change.table_id,
        model.CHANGE_DECIDED,
        count=change.source.count if change.source else None,
        body={"v": 1, "change": change.to_json()},
        **owner.columns(),
        **stamp.columns(),
    )
