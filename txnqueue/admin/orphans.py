"""Payload tables that no queue ever got, because its creation was interrupted.

A payload table is made before the entry that names it. Whoever removes one writes that down
first: the entry lands only if no queue or exchange of that name was created since, and a
creation lands only if there is no such entry. So a creation that is slow, or lands late, is
refused, and never names what is gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan
from txnqueue.core.state import catalog, topology
from txnqueue.errors import Busy

_STAGING = re.compile(r"change-[0-9a-f]{12}")
_OWNER = re.compile(r"(.+)-[^-]*")
_EXCHANGE = "exchange-"


@dataclass(frozen=True, slots=True)
class Strays:
    """What a maintenance found of payload tables that nothing names.

    Attributes:
        removed: Those that were removed, or with a dry run would be.
        left: Those that were not, each with the reason.
        staging: Owners of rows that were staged for changes of tables, and maybe never decided.
    """

    removed: tuple[str, ...]
    left: tuple[str, ...]
    staging: frozenset[str]


def tidy(client: Client, before_ms: int, dry_run: bool) -> Strays:
    """Find the payload tables that nothing names, and remove those that are old and empty.

    Args:
        client: Who does it.
        before_ms: Whoever began to create a queue before this instant is not waited for.
        dry_run: Only find them.
    """
    payload, journal = client.store.payload, client.store.journal
    # What is made after this reading is named by nobody yet; a plan below looks once more.
    known = owners(journal.read([model.CATALOG]).entries)
    removed, left, staging = [], [], set()
    for owner, found in sorted(payload.strays(known).items()):
        if _STAGING.fullmatch(owner):
            staging.add(owner)
        elif found.made_ms > before_ms:
            continue
        elif found.written:
            left.append(f"payload of {owner}: nothing names it, but it was written to: look at it")
        elif dry_run:
            removed.append(owner)
        else:
            try:
                if not _given_up(client, owner):
                    continue
                why = payload.remove(owner)
            except Busy as error:
                why = str(error)
            removed += [owner] if why is None else []
            left += [] if why is None else [f"payload of {owner}: {why}"]
    return Strays(tuple(removed), tuple(left), frozenset(staging))


def owners(entries: Iterable[Entry]) -> set[str]:
    """Find the owners of payload that the catalog names: queues and exchanges, dropped ones too."""
    entries = list(entries)
    queues = {info.payload_id for info in catalog.every_queue(entries).values()}
    exchanges = {e.body["payload"] for e in entries if e.kind == model.EXCHANGE_CREATED}
    return queues | (exchanges - {None})


def _given_up(client: Client, owner: str) -> bool:
    """Write down that a table is removed; false if it has got its queue meanwhile."""
    given_up = True

    def plan(lost: int) -> Plan | None:
        nonlocal given_up
        entries = client.store.journal.read([model.CATALOG]).entries
        stream = model.payload_stream(owner)
        given_up = owner not in owners(entries)
        if not given_up or any(entry.stream == stream for entry in entries):
            return None
        entry = Entry(
            model.CATALOG,
            stream,
            model.PAYLOAD_REMOVED,
            sequence=1,
            reason="no queue ever got it",
            body={"v": 1, "payload": owner},
            **client.stamp().columns(),
        )
        streams = [stream, *_streams_of(owner)]
        nexts = (
            model.next_sequence(model.CATALOG, one, catalog.next_of_stream(entries, one))
            for one in streams
        )
        return Plan((entry,), (*nexts, model.layout_unchanged()))

    client.land(plan, "remove payload")
    return given_up


def _streams_of(owner: str) -> list[str]:
    """List the streams in which whoever this could be would be created."""
    found = _OWNER.fullmatch(owner)
    name = found.group(1) if found else owner
    streams = [catalog.name_stream(name)]
    if name.startswith(_EXCHANGE):
        streams.append(topology.exchange_stream(name.removeprefix(_EXCHANGE)))
    return streams
