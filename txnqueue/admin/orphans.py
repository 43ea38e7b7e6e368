"""Payload tables that nothing names: the creation of their queue was interrupted, mostly.

A payload table is made before the entry that names it. It cannot be told from outside whether an
entry is still to come: so such tables are listed, for an operator to look at, and stay.
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
    """What a maintenance found of payload tables that nothing names.

    Attributes:
        owners: Whose they would be, if their creation had not been interrupted.
        staging: Owners of rows that were staged for changes of tables, and maybe never decided.
    """

    owners: tuple[str, ...] = ()
    staging: frozenset[str] = frozenset()


def find(client: Client, before_ms: int) -> Orphans:
    """Find the payload tables that nothing names.

    Args:
        client: Who does it.
        before_ms: What was made after this instant may be named soon, and is left out.
    """
    journal = client.store.journal
    known = owners(journal.read([model.CATALOG]).entries)
    found = client.store.payload.orphans(known)
    staging = frozenset(filter(_STAGING.fullmatch, found))
    old = {one for one in found.keys() - staging if found[one] <= before_ms}
    if old:  # some may have got their queue while we looked
        old -= owners(journal.read([model.CATALOG]).entries)
    return Orphans(tuple(sorted(old)), staging)


def owners(entries: Iterable[Entry]) -> set[str]:
    """Find the owners of payload that the catalog names: queues and exchanges, dropped ones too."""
    entries = list(entries)
    queues = {info.payload_id for info in catalog.every_queue(entries).values()}
    exchanges = {e.body["payload"] for e in entries if e.kind == model.EXCHANGE_CREATED}
    return queues | (exchanges - {None})
