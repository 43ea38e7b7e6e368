"""Orphans: payload tables that nothing names, mostly because their creation was interrupted.

A payload table is created before the entry that names it. Whether the entry is still to come cannot
be determined from outside, so such tables are only listed for an operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.state import catalog

_STAGING = re.compile(r"change-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Orphans:
    """The payload tables that nothing names, as a maintenance found them.

    Attributes:
        owners: The owners that they would have, had their creation not been interrupted.
        staging: Owners of rows staged for table changes that may never have been decided.
    """

    owners: tuple[str, ...] = ()
    staging: frozenset[str] = frozenset()


def find(client: Client, before_ms: int) -> Orphans:
    """Find the payload tables that nothing names.

    Args:
        client: The client of the store.
        before_ms: Tables made after this instant may be named soon, and are left out.
    """
    journal = client.store.journal
    known = owners(journal.read([model.CATALOG]).entries)
    found = client.store.payload.orphans(known)
    staging = frozenset(filter(_STAGING.fullmatch, found))
    old = {one for one in found.keys() - staging if found[one] <= before_ms}
    if old:  # some may have got their queue meanwhile
        old -= owners(journal.read([model.CATALOG]).entries)
    return Orphans(tuple(sorted(old)), staging)


def owners(entries: Iterable[Entry]) -> set[str]:
    """Find the owners of payload in the catalog: queues and exchanges, including dropped ones."""
    entries = list(entries)
    queues = {info.payload_id for info in catalog.every_queue(entries).values()}
    exchanges = {e.body["payload"] for e in entries if e.kind == model.EXCHANGE_CREATED}
    return queues | (exchanges - {None})
