"""A long history without the work: rounds of a message that is sent, claimed and accepted."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from txnqueue.core import model
from txnqueue.core.model import Entry, Unit
from txnqueue.storage.journal.tables import JOURNAL_COLUMNS

ENTRIES = 4
"""How many entries a round has."""


def a_round(
    queue_id: str, send_id: str, number: int, index: int = 0, append_id: str | None = None
) -> list[Entry]:
    """Write what one message of a send leaves behind, from its commit to its end.

    Args:
        queue_id: The queue, of one lane.
        send_id: The send, whose rows are offsets from 0 on.
        number: Which of its messages; the rounds of a queue are numbered through.
        index: The first entry's place, if many rounds land in one version.
        append_id: The append that all of it lands by; three of its own when left out.
    """
    key = model.generated_key(number % model.TRANSACTION_SHARDS, f"{_hex(queue_id, number)}")
    posted_by, claimed_by, accepted_by = (append_id or f"{queue_id}/{number}/{n}" for n in range(3))
    part = ((number, number),)
    common: dict[str, Any] = {"queue_id": queue_id, "lane": 0, "count": 1}
    manifest = {"v": 1, "manifest": {"posted": {queue_id: 1}, "settled": {}}}
    sent = {"v": 1, "slice": 0, "send": send_id, "priority": 4, "payload": queue_id, "schema": 1}
    items = [[posted_by, index + 1, 1]]
    held = {"v": 1, "items": items, "consumer": "c", "epoch": 1, "deadline": 1, "supersedes": []}
    held |= {"delivery_count": 0, "former": 0}
    lane, stream = model.lane_shard(queue_id, 0), model.lane_stream(0)
    sequence = 2 * number + 1
    mine: dict[str, Any] = {"transaction_key": key, "attempt": key, "begun": 0}
    entries = [
        Entry(model.transaction_shard(key), key, model.COMMITTED, body=manifest, **mine),
        Entry(
            model.backlog_shard(queue_id), stream, model.POSTED, ranges=part, body=sent,
            **mine, **common,
        ),
        Entry(lane, stream, model.CLAIMED, sequence, ranges=part, body=held, **common),
        Entry(
            lane, stream, model.ACCEPTED, sequence + 1, ranges=part, claim_lane=0,
            claim_sequence=sequence, body={"v": 1, "items": items, "counted": False}, **common,
        ),
    ]  # fmt: skip
    appends = (posted_by, posted_by, claimed_by, accepted_by)
    return [
        replace(entry, append_id=append_id, index=index + n, recorded_at_ms=1_700_000_000_000)
        for n, (entry, append_id) in enumerate(zip(entries, appends, strict=True))
    ]


def append_rounds(journal: Any, queue_id: str, send_id: str, numbers: Iterable[int]) -> None:
    """Append rounds to a journal in memory: three versions each."""
    for number in numbers:
        committed, posted, claimed, accepted = a_round(queue_id, send_id, number)
        for entries in ((committed, posted), (claimed,), (accepted,)):
            journal.append([Unit.of(entries[0].append_id, entries, ())], {})


def rows_of(entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """Write entries as rows of the journal's table."""
    for entry in entries:
        row = {name: getattr(entry, name, None) for name, _ in JOURNAL_COLUMNS}
        row["ranges"] = [{"first": first, "last": last} for first, last in entry.ranges]
        row["body"] = json.dumps(dict(entry.body))
        row["recorded_at"] = entry.recorded_at_ms * 1000
        yield row


def _hex(queue_id: str, number: int) -> str:
    return f"{zlib.crc32(queue_id.encode()):016x}{number:016x}"
