"""What a store's journal says of a run, entry by entry, and what each version of it shows."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from tests.histories.history import ACCEPTED, CLAIMED, POSTED, RELEASED, Fact
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.storage.payload import Part

UNEXPECTED = model.REMOVALS | {model.REJECTED, model.KEPT, model.PURGE_PENDING}
"""What no client of a run does: facts would have to follow it."""
Place = tuple[str, int]
"""Send id and offset of a message."""


def name_of(entry: Entry) -> str:
    """Name an entry for ever."""
    return f"{entry.append_id}:{entry.index}"


def name_and_digest(entry: Entry) -> str:
    """Name an entry for as long as nothing of it changes."""
    return f"{name_of(entry)} {hashlib.sha256(repr(entry).encode()).hexdigest()[:12]}"


def facts_of(
    entries: Iterable[Entry],
    names: dict[str, str],
    ids: dict[Place, str],
    named: Callable[[Entry], str] = name_of,
) -> list[Fact]:
    """Tell what entries say, message by message.

    Args:
        entries: All that the journal has and had.
        names: The queues' names by their ids.
        ids: What each message carries.
        named: Names entries as the versions name them with which the facts are compared.
    """
    telling = _Telling(names, ids, named)
    return [telling.fact(entry) for entry in sorted(entries, key=lambda entry: entry.place)]


def carried(store: Any, entries: Iterable[Entry], schema: Any) -> dict[Place, str]:
    """Read what each message that was posted carries."""
    parts = [
        Part(e.body["payload"], e.body["slice"], e.body["send"], e.ranges, "", 0, 0, 0, None, None)
        for e in entries
        if e.kind == model.POSTED
    ]
    rows = store.payload.table(schema, parts).to_pylist() if parts else []
    return {(r["_message"]["send_id"], r["_message"]["send_offset"]): r["id"] for r in rows}


class _Telling:
    """Follows positions and claims, which later entries name."""

    def __init__(
        self, names: dict[str, str], ids: dict[Place, str], named: Callable[[Entry], str]
    ) -> None:
        self._names, self._ids, self._named = names, ids, named
        self._sends: dict[model.PositionId, str] = {}
        self._left: defaultdict[tuple[str | None, int, int], list[str]] = defaultdict(list)

    def fact(self, entry: Entry) -> Fact:
        """Tell what an entry says."""
        ids: tuple[str, ...] = ()
        lane, claim = entry.lane or 0, 0
        assert entry.kind not in UNEXPECTED, f"no client of a run does this: {entry}"
        if entry.kind == model.POSTED:
            self._sends[entry.entry_id] = entry.body["send"]
            ids = tuple(self._messages([(entry.entry_id, entry.ranges)]))
        elif entry.kind == model.CLAIMED:
            claim = entry.sequence or 0
            ids = tuple(self._messages(model.unpack_items(entry)))
            self._left[entry.queue_id, lane, claim] = list(ids)
        elif entry.is_settlement:
            lane, claim = entry.claim_lane or 0, entry.claim_sequence or 0
            ids = tuple(self._settled(entry, (entry.queue_id, lane, claim)))
        return Fact(
            name=self._named(entry),
            seq=entry.commit_seq,
            version=entry.version,
            kind=_KINDS.get(entry.kind, entry.kind),
            txn=entry.transaction_key,
            attempt=entry.attempt,
            queue=self._names.get(entry.queue_id or "", ""),
            lane=lane,
            claim=claim,
            consumer=str(entry.body.get("consumer", "")),
            ids=ids,
            supersedes=tuple(entry.body.get("supersedes", ())),
        )

    def _settled(self, entry: Entry, claim: tuple[str | None, int, int]) -> list[str]:
        """Find what a settlement is about: what it names, or all that is left of its claim."""
        if not entry.body.get("items"):
            return self._left.pop(claim, [])
        found = list(self._messages(model.unpack_items(entry)))
        self._left[claim] = [one for one in self._left[claim] if one not in found]
        return found

    def _messages(self, items: Iterable[model.Item]) -> Iterator[str]:
        for position, part in items:
            send = self._sends[position]
            for first, last in part:
                for offset in range(first, last + 1):
                    yield self._ids[send, offset]


_KINDS = {
    model.POSTED: POSTED,
    model.CLAIMED: CLAIMED,
    model.ACCEPTED: ACCEPTED,
    model.RELEASED: RELEASED,
}


# ------------------------------------------------------------------------------ versions


class Seen:
    """What a journal in memory showed of each version while the run went on.

    At the end it can only be asked for what it has then, which says nothing of what it had.
    """

    def __init__(self, store: Any) -> None:
        """Watch a store; nothing was read yet."""
        self._journal, self._lock = store.journal, threading.Lock()
        self._shown: frozenset[str] = frozenset()
        self.versions: dict[int, frozenset[str]] = {}

    def look(self) -> None:
        """Read what has come since the last look."""
        with self._lock:
            after = len(self.versions) - 1
            reading = self._journal.read_all(after, self._journal.known_version())
            new: defaultdict[int, set[str]] = defaultdict(set)
            for entry in reading.entries:
                new[entry.version].add(name_and_digest(entry))
            for version in range(after + 1, reading.version + 1):
                self._shown |= new[version]
                self.versions[version] = self._shown


def versions_on_disk(root: Path) -> dict[int, frozenset[str]]:
    """Read every version of a journal again, from Delta's log and its files alone.

    Neither Spark nor the library takes part. A run is short: all commits are still there, one
    file each.
    """
    found: dict[int, frozenset[str]] = {}
    active: dict[str, frozenset[str]] = {}
    for path in sorted((root / "journal" / "_delta_log").glob("*[0-9].json")):
        for line in path.read_text(encoding="utf-8").splitlines():
            action = json.loads(line)
            if "add" in action:
                assert not action["add"].get("deletionVector"), "entries are never changed"
                active[action["add"]["path"]] = _entries_of(root / "journal", action["add"])
            elif "remove" in action:
                active.pop(action["remove"]["path"], None)
        found[int(path.stem)] = frozenset().union(*active.values())
    return found


def _entries_of(table: Path, add: dict[str, Any]) -> frozenset[str]:
    file = pq.ParquetFile(table / unquote(add["path"]))
    rows = file.read(columns=["append_id", "index"]).to_pylist()
    return _named((row["append_id"], row["index"]) for row in rows)


def _named(ids: Iterable[tuple[str, int]]) -> frozenset[str]:
    return frozenset(f"{append_id}:{index}" for append_id, index in ids)
