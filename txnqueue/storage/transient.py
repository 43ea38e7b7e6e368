"""What is kept in the memory of this process only: the store of transient messages.

It is the store in memory that tests work with, fit for a process that runs for weeks: an
append is one step that meets no conflicts, and what nothing needs any more is forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

import pyarrow as pa

from txnqueue.core import custody, model
from txnqueue.core.model import Entry, Unit
from txnqueue.core.settings import TRANSIENT_BYTES_MAX, TRANSIENT_KEYS_MAX
from txnqueue.core.state import AttemptOwner, QueueState
from txnqueue.errors import LimitExceeded, PayloadRemoved
from txnqueue.storage.journal import Appended
from txnqueue.storage.journal.memory import MemoryJournal, Step, _no_step, numbered
from txnqueue.storage.payload import Send
from txnqueue.storage.payload.arrangement import Arranged
from txnqueue.storage.payload.frames import is_frame
from txnqueue.storage.payload.memory import Headers, MemoryPayload
from txnqueue.storage.tables.memory import MemoryTables

SendName = tuple[str, str]
"""The owner of the payload, and the send."""
TIDY_ENTRIES_MIN = 256
TIDY_BYTES_MIN = 1 << 20


class Working(Protocol):
    """The transient work of a transaction that is still held."""

    def staged(self) -> Iterable[SendName]:
        """Name what it has staged."""
        ...


class TransientJournal(MemoryJournal):
    """A journal that takes each append in one step, and can forget.

    Attributes:
        size: How many entries there are.
        prepared: What is prepared and undecided, by attempt.
    """

    def __init__(self, step: Step = _no_step) -> None:
        """Make an empty journal at version 0."""
        super().__init__(step)
        self._version = 0
        self.size = 0
        self.prepared: dict[str, Entry] = {}

    def known_version(self) -> int:
        """Return the newest version."""
        return self._version

    def append(self, units: Sequence[Unit], metadata: Mapping[str, object]) -> Appended:
        """Append units, each wholly or not at all, with nothing in between."""
        self.step("append starts")
        with self._lock:
            admitted = tuple(self._admitted(unit, self._version) for unit in units)
            version = self._land(units, admitted, metadata) if any(admitted) else None
            return Appended(admitted, version)

    def entries(self) -> list[Entry]:
        """List all entries that are not forgotten."""
        with self._lock:
            return [entry for entries in self._shards.values() for entry in entries]

    def forget(self, needed: Callable[[Entry], bool]) -> None:
        """Forget what is not needed."""
        with self._lock:
            for shard in list(self._shards):
                left = [entry for entry in self._shards[shard] if needed(entry)]
                if left:
                    self._shards[shard] = left
                else:
                    del self._shards[shard]
            self.size = sum(map(len, self._shards.values()))

    def _land(
        self, units: Sequence[Unit], admitted: Sequence[bool], metadata: Mapping[str, object]
    ) -> int:
        """Make everything ready first: a key that is pressed now must not leave half of it."""
        version = self._version + 1
        landed = numbered(units, admitted, version)
        shards: dict[str, list[Entry]] = {}
        prepared = dict(self.prepared)
        for entry in landed:
            shards.setdefault(entry.shard, list(self._shards.get(entry.shard, ()))).append(entry)
            if entry.kind == model.PREPARED:
                prepared[entry.attempt or ""] = entry
            elif entry.kind in model.DECISIONS:
                prepared.pop(entry.attempt or "", None)
        size = self.size + len(landed)
        self._shards.update(shards)
        self.prepared, self.size, self._version = prepared, size, version
        return version


@dataclass(frozen=True, eq=False)
class TransientRows:
    """What one send carries; who holds it can read it."""

    rows: pa.Table
    headers: Headers


class TransientPayload(MemoryPayload):
    """Sends that stay until they are dropped, and then as long as they are held."""

    def __init__(self, step: Step = _no_step) -> None:
        """Make an empty payload store."""
        super().__init__(None, step)
        self._kept: dict[SendName, TransientRows] = {}
        self._known: WeakValueDictionary[SendName, TransientRows] = WeakValueDictionary()
        self.bytes = 0

    def carried(self, payload_id: str, send_id: str) -> TransientRows:
        """Find what a send carries.

        Raises:
            PayloadRemoved: It was not needed any more.
        """
        found = self._known.get((payload_id, send_id))
        if found is None:
            raise PayloadRemoved(
                f"The transient messages of send {send_id!r} were settled and are no longer in "
                "memory: read a batch before settling it."
            )
        return found

    def keep(self, needed: Iterable[SendName]) -> None:
        """Drop every send that is not needed."""
        wanted = set(needed)
        self._kept = {name: sent for name, sent in self._kept.items() if name in wanted}
        self.bytes = sum(sent.rows.nbytes for sent in self._kept.values())

    def _put(self, send: Send, arranged: Arranged) -> None:
        self.bytes += arranged.rows.nbytes
        sent = TransientRows(arranged.rows, arranged.headers)
        self._kept[send.payload_id, send.send_id] = sent
        self._known[send.payload_id, send.send_id] = sent

    def _staged(self, payload_id: str, send_id: str) -> tuple[pa.Table, Headers]:
        sent = self.carried(payload_id, send_id)
        return sent.rows, sent.headers


class TransientStore:
    """The transient messages of one store in this process; its managers share it.

    Attributes:
        folds: The state of its queues, which all managers share.
        working: Transactions with transient work that are still held, by attempt.
        deciding: Attempts whose decision is on its way just now.
        elsewhere: Attempts of ids that clients gave which have nothing here, and which the
            journal may still commit, by attempt.
        ended_elsewhere: How many of them have been decided.
    """

    spark = None

    def __init__(self, root: str, step: Step = _no_step) -> None:
        """Make an empty store.

        Args:
            root: Where the durable store is.
            step: Called before each atomic step of a store call, with the step's name.
        """
        self.root = f"memory of {root}"
        self.journal = TransientJournal(step)
        self.payload = TransientPayload(step)
        self.tables = MemoryTables(self.payload, step)
        self.lock = custody.new_lock()
        self.folds: dict[str, QueueState] = {}
        self.working: WeakValueDictionary[str, Working] = WeakValueDictionary()
        self.deciding: set[str] = set()
        self.elsewhere: dict[str, AttemptOwner] = {}
        self.ended_elsewhere = 0
        self._checkpoints: dict[str, QueueState] = {}
        self._tidy_at = (TIDY_ENTRIES_MIN, TIDY_BYTES_MIN)

    @property
    def used(self) -> bool:
        """Whether anything ever happened here."""
        return self.journal.known_version() > 0

    @property
    def transient(self) -> TransientStore:
        """Itself."""
        return self

    def exists(self) -> bool:
        """Return whether the journal is there: in memory always."""
        return True

    def create(self) -> None:
        """Create the journal: in memory it is there."""

    def take_over(self, about: Mapping[str, object]) -> None:
        """Take nothing over: all writers are in this process."""

    def close(self) -> None:
        """Let go of what it holds: nothing, because all managers of the process share it."""

    def waiting(self) -> list[AttemptOwner]:
        """List whose work is prepared here and has no decision under way."""
        found = map(AttemptOwner.of, list(self.journal.prepared.values()))
        return [owner for owner in found if owner.attempt not in self.deciding]

    def waiting_elsewhere(self) -> list[AttemptOwner]:
        """List the attempts without work here that may be committed and are not just decided."""
        return [o for o in list(self.elsewhere.values()) if o.attempt not in self.deciding]

    def end_elsewhere(self, attempt: str) -> None:
        """Record that an attempt is decided, if it is one without work here."""
        with self.lock:
            if attempt in self.elsewhere:
                self.ended_elsewhere += 1  # first: who is interrupted here does it again
                del self.elsewhere[attempt]

    def fold(self, queue_id: str, lanes: int, window_ms: int | None = None) -> QueueState:
        """Bring the fold of a queue up to the newest version."""
        with self.lock:
            fold = self.folds.get(queue_id)
            if fold is None:
                saved = self._checkpoints.get(queue_id)
                fold = (
                    deepcopy(saved)
                    if saved
                    else QueueState(queue_id, lanes, window_ms, custody.Custody(self.lock))
                )
            reading = self.journal.read(fold.shards, after=fold.version)
            self.folds.pop(queue_id, None)
            fold.advance(reading.entries, reading.version)
            self.folds[queue_id] = fold  # and not if a key was pressed half-way
            return fold

    def landed(self) -> None:
        """Tidy up when much has come together."""
        with self.lock:
            if self.journal.size >= self._tidy_at[0] or self.payload.bytes >= self._tidy_at[1]:
                self.tidy()

    def brought_here(self, rows: object, queue: str) -> object:
        """Bring the rows of a send into this process, if there is room for them.

        Args:
            rows: What a user sends; a DataFrame becomes an Arrow table.
            queue: The queue's name.

        Raises:
            LimitExceeded: There is no room.
        """
        here = rows.toArrow() if is_frame(rows) else rows
        more = here.nbytes if isinstance(here, pa.Table) else 1
        with self.lock:
            if self.payload.bytes + more > TRANSIENT_BYTES_MAX:
                self.tidy()
            if self.payload.bytes + more > TRANSIENT_BYTES_MAX:
                raise LimitExceeded(
                    f"The transient messages of this process take {self.payload.bytes} bytes; at "
                    f"most {TRANSIENT_BYTES_MAX} are allowed: receive some, or send to {queue!r} "
                    "with durable=True.",
                    name=queue,
                )
        return here

    def tidy(self) -> None:
        """Forget the entries and the payload that nothing needs any more."""
        with self.lock:
            known = {**self._checkpoints, **self.folds}
            for queue_id, fold in known.items():
                self.fold(queue_id, len(fold.lanes))
            self._checkpoints = deepcopy(self.folds)
            self.journal.forget(self._needed())
            self.payload.keep(self._sends())
            # Twice as much may come together before the next time: the cost is spread evenly.
            self._tidy_at = (
                TIDY_ENTRIES_MIN + 2 * self.journal.size,
                TIDY_BYTES_MIN + 2 * self.payload.bytes,
            )

    def _needed(self) -> Callable[[Entry], bool]:
        """Return which entries are needed.

        What a fold has taken in is not, but for the newest number of each lane. A decision
        is, as long as a program may act on the attempt, and a commit under an id that a
        client gave is for a while.
        """
        newest = {
            model.lane_shard(queue_id, lane.lane): lane.next_sequence - 1
            for queue_id, fold in self.folds.items()
            for lane in fold.lanes.values()
        }
        folded = {model.backlog_shard(queue_id) for queue_id in self.folds}
        claims = [claim for fold in self.folds.values() for claim in fold.claims()]
        acting = {c.attempt_id for c in claims} | set(self.working) | set(self.journal.prepared)
        given = [e for e in self.journal.entries() if _is_answer(e)]
        given = sorted(given, key=lambda e: e.place)[-TRANSIENT_KEYS_MAX:]
        answers = {entry.entry_id for entry in given}

        def needed(entry: Entry) -> bool:
            if entry.shard in newest:
                return entry.sequence == newest[entry.shard]
            if entry.shard in folded:
                return False
            if entry.stream == entry.transaction_key:
                return entry.attempt in acting or entry.entry_id in answers
            return True

        return needed

    def _sends(self) -> Iterator[SendName]:
        """Name the payload that is needed: of messages, and of work that may be committed."""
        for fold in self.folds.values():
            for position in fold.positions.values():
                yield position.payload_id, position.send_id
        for entry in self.journal.entries():  # of queues that were not looked at yet
            if entry.kind == model.POSTED:
                yield entry.body["payload"], entry.body["send"]
        for prepared in self.journal.prepared.values():
            for fact in prepared.body["manifest"]["entries"]:
                if fact["kind"] == model.POSTED:
                    yield fact["body"]["payload"], fact["body"]["send"]
        for work in list(self.working.values()):
            yield from work.staged()


def _is_answer(entry: Entry) -> bool:
    """Return whether an entry tells a client that its transaction id was committed."""
    key = entry.transaction_key
    return entry.kind == model.COMMITTED and key is not None and not model.is_generated_key(key)


_stores: dict[str, TransientStore] = {}
_lock = threading.Lock()


def of_root(root: str) -> TransientStore:
    """Give the transient store that belongs to a store on Delta: one in this process."""
    with _lock:
        return _stores.setdefault(root, TransientStore(root))
