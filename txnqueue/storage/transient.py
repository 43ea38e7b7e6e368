"""The store of transient messages, which are only in the memory of this process.

It is the in-memory store of the tests, made fit for processes that run for weeks: an append is one
step without conflicts, and what is no longer needed is forgotten.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

import pyarrow as pa

from txnqueue.core import custody, model
from txnqueue.core.model import Entry, Unit
from txnqueue.core.settings import TRANSIENT_BYTES_MAX, TRANSIENT_KEYS_MAX
from txnqueue.core.state import AttemptOwner, QueueState
from txnqueue.errors import LimitExceeded, PayloadRemoved, SchemaMismatch
from txnqueue.storage.forks import check_process
from txnqueue.storage.journal import Appended, Reading
from txnqueue.storage.journal.memory import MemoryJournal, Step, no_step, numbered
from txnqueue.storage.payload import Send
from txnqueue.storage.payload.arrangement import Arranged
from txnqueue.storage.payload.frames import is_frame
from txnqueue.storage.payload.memory import Headers, MemoryPayload
from txnqueue.storage.tables.memory import MemoryTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SendName = tuple[str, str]
"""The owner of the payload, and the send id."""
TIDY_ENTRIES_MIN = 256
TIDY_BYTES_MIN = 1 << 20
SEND_BYTES = 3_000
"""What each send takes besides its rows: its entries, its position, and the objects around them."""
HEADERS_BYTES = 200
"""What the headers of a message take besides their texts."""


class Working(Protocol):
    """The transient work of a transaction that is still referenced."""

    def staged(self) -> Iterable[SendName]:
        """Return the names of its staged sends."""
        ...


class TransientJournal(MemoryJournal):
    """A journal that performs each append in one step, and can forget entries.

    Attributes:
        size: The number of entries.
        prepared: The prepared and undecided work, by attempt.
    """

    def __init__(self, step: Step = no_step) -> None:
        """Create an empty journal at version 0."""
        super().__init__(step)
        self._process = os.getpid()
        self._version = 0
        self.size = 0
        self.prepared: dict[str, Entry] = {}

    def known_version(self) -> int:
        """Return the newest version."""
        return self._version

    def read(self, shards: Collection[str], after: int = -1, upto: int | None = None) -> Reading:
        """Read the entries of some shards, one consistent cut.

        Raises:
            PlatformMissing: This process was forked, and has a mere copy of the messages.
        """
        check_process(self._process)
        return super().read(shards, after, upto)

    def append(self, units: Sequence[Unit], metadata: Mapping[str, object]) -> Appended:
        """Append units, each entirely or not at all, in one step.

        Raises:
            PlatformMissing: This process was forked, and has a mere copy of the messages.
        """
        check_process(self._process)
        self.step("append starts")
        with self._lock:
            admitted = tuple(self._admitted(unit, self._version) for unit in units)
            version = self._land(units, admitted, metadata) if any(admitted) else None
            return Appended(admitted, version)

    def forget(self, needed: Callable[[Entry], bool]) -> None:
        """Forget entries that are not needed."""
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
        """Prepare everything first, so that an interrupt cannot leave half of it."""
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
    """The rows of one send, readable as long as this object is referenced.

    Attributes:
        rows: The rows.
        headers: The headers of each.
        nbytes: The memory that the send takes, with what the library keeps of it elsewhere.
    """

    rows: pa.Table
    headers: Headers
    nbytes: int

    @classmethod
    def of(cls, rows: pa.Table, headers: Headers) -> TransientRows:
        """Keep rows, and estimate the memory that they take."""
        told = {id(one): one for one in headers if one}  # rows may share them
        texts = sum(len(text) for one in told.values() for pair in one.items() for text in pair)
        return cls(rows, headers, SEND_BYTES + rows.nbytes + HEADERS_BYTES * len(told) + texts)


class TransientPayload(MemoryPayload):
    """Sends that are kept until they are dropped, and then as long as they are referenced."""

    def __init__(self, step: Step = no_step) -> None:
        """Create an empty payload store."""
        super().__init__(None, step)
        self._kept: dict[SendName, TransientRows] = {}
        self._known: WeakValueDictionary[SendName, TransientRows] = WeakValueDictionary()
        self.bytes = 0

    def carried(self, payload_id: str, send_id: str) -> TransientRows:
        """Return the rows of a send.

        Raises:
            PayloadRemoved: They were no longer needed.
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
        self.bytes = sum(sent.nbytes for sent in self._kept.values())

    def _put(self, send: Send, arranged: Arranged) -> None:
        sent = TransientRows.of(arranged.rows, arranged.headers)
        self.bytes += sent.nbytes
        self._kept[send.payload_id, send.send_id] = sent
        self._known[send.payload_id, send.send_id] = sent

    def _staged(self, payload_id: str, send_id: str) -> tuple[pa.Table, Headers]:
        sent = self.carried(payload_id, send_id)
        return sent.rows, sent.headers


class TransientStore:
    """The transient messages of one store in this process, shared by its managers.

    Attributes:
        folds: The states of its queues.
        working: Transactions with transient work that are still referenced, by attempt.
        deciding: Attempts whose decision is under way.
        elsewhere: Attempts under ids given by clients that have no work here, and that the
            journal may still commit, by attempt.
        ended_elsewhere: The number of them that have been decided.
    """

    spark = None

    def __init__(self, root: str, step: Step = no_step, *, is_place: bool = True) -> None:
        """Create an empty store.

        Args:
            root: The root of the durable store.
            step: Called before each atomic step of a store call, with the step's name.
            is_place: Whether there is one store at this root at a time; otherwise it may mean
                several ones in this process, as a name does in the catalogs of two sessions.
        """
        self._is_place = is_place
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
        self._store_id: str | None = None
        self._checkpoints: dict[str, QueueState] = {}
        self._tidy_at = (TIDY_ENTRIES_MIN, TIDY_BYTES_MIN)

    @property
    def used(self) -> bool:
        """Whether this store was ever used."""
        return self.journal.known_version() > 0

    @property
    def transient(self) -> TransientStore:
        """Itself."""
        return self

    def exists(self) -> bool:
        """Return whether the journal exists: in memory always."""
        return True

    def create(self) -> None:
        """Create the journal: in memory it always exists."""

    def take_over(self, about: Mapping[str, object]) -> bool:
        """Do nothing: all writers are in this process."""
        return False

    def answers(self) -> bool:
        """Return that it does: it is in this process."""
        return True

    def close(self) -> None:
        """Do nothing, because all managers of the process share the store."""

    def belong_to(self, store_id: str) -> None:
        """Forget everything if another store was at this place before."""
        with self.lock:
            if self._is_place and self._store_id not in (None, store_id):
                self.journal.forget(lambda _: False)
                self.journal.prepared = {}
                self.payload.keep(())
                self.folds.clear()
                self._checkpoints = {}
                self.elsewhere.clear()
            self._store_id = store_id

    def waiting(self) -> list[AttemptOwner]:
        """List the attempts whose work is prepared here without a decision under way."""
        found = map(AttemptOwner.of, list(self.journal.prepared.values()))
        return [owner for owner in found if owner.attempt not in self.deciding]

    def waiting_elsewhere(self) -> list[AttemptOwner]:
        """List the attempts without work here that may be committed and are not being decided."""
        return [o for o in list(self.elsewhere.values()) if o.attempt not in self.deciding]

    def end_elsewhere(self, attempt: str) -> None:
        """Record that an attempt without work here is decided."""
        with self.lock:
            if attempt in self.elsewhere:
                self.ended_elsewhere += 1  # first, because after an interrupt it is done again
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
            self.folds[queue_id] = fold  # only if it was not interrupted half-way
            return fold

    def landed(self) -> None:
        """Clean up when enough has accumulated."""
        with self.lock:
            if self.journal.size >= self._tidy_at[0] or self.payload.bytes >= self._tidy_at[1]:
                self.tidy()

    def brought_here(self, rows: object, queue: str) -> object:
        """Bring the rows of a send into this process if there is room for them.

        Args:
            rows: The user's rows; a DataFrame becomes an Arrow table.
            queue: The queue's name.

        Raises:
            LimitExceeded: There is no room.
            SchemaMismatch: A column has a type that Arrow has not.
        """
        here = _in_arrow(rows) if is_frame(rows) else rows
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
        """Forget the entries and the payload that are no longer needed."""
        with self.lock:
            known = {**self._checkpoints, **self.folds}
            for queue_id, fold in known.items():
                self.fold(queue_id, len(fold.lanes))
            for lane in [lane for fold in self.folds.values() for lane in fold.lanes.values()]:
                lane.duplicates.clear()  # only a compaction names them, and here there is none
            self._checkpoints = deepcopy(self.folds)
            self.journal.forget(self._needed())
            self.payload.keep(self._sends())
            # Twice as much may accumulate before the next time, which spreads the cost evenly.
            self._tidy_at = (
                TIDY_ENTRIES_MIN + 2 * self.journal.size,
                TIDY_BYTES_MIN + 2 * self.payload.bytes,
            )

    def _needed(self) -> Callable[[Entry], bool]:
        """Return a function that tells whether an entry is needed.

        Entries that a fold contains are not needed, except the newest one of each lane. Decisions
        are needed as long as a program may act on the attempt, and so are the newest commits
        under ids given by clients.
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
        """Yield the needed payload: that of messages, and of work that may be committed."""
        for fold in self.folds.values():
            for position in fold.positions.values():
                yield position.payload_id, position.send_id
        for entry in self.journal.entries():  # of queues without a fold yet
            if entry.kind == model.POSTED:
                yield entry.body["payload"], entry.body["send"]
        for prepared in self.journal.prepared.values():
            for fact in prepared.body["manifest"]["entries"]:
                if fact["kind"] == model.POSTED:
                    yield fact["body"]["payload"], fact["body"]["send"]
        for work in list(self.working.values()):
            yield from work.staged()


def _in_arrow(rows: DataFrame) -> pa.Table:
    """Bring the rows of a DataFrame into this process.

    Raises:
        SchemaMismatch: A column has a type that Arrow has not.
    """
    from pyspark.errors import PySparkTypeError

    try:
        return rows.toArrow()
    except PySparkTypeError as error:
        raise SchemaMismatch(
            f"The rows have a column that cannot be brought into this process ({error}): leave it "
            "out, or change its type."
        ) from error


def _is_answer(entry: Entry) -> bool:
    """Return whether an entry shows a client that its transaction id was committed.

    A client may give an id that has the form of a generated one: that of an earlier attempt.
    """
    key = entry.transaction_key
    if entry.kind != model.COMMITTED or key is None:
        return False
    return bool(entry.body.get("named")) or not model.is_generated_key(key)


_stores: dict[str, TransientStore] = {}
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):  # a manager that is made in a forked process begins anew
    os.register_at_fork(after_in_child=_stores.clear)


def of_root(root: str, *, is_place: bool = True) -> TransientStore:
    """Return this process's transient store for a store on Delta; ``is_place`` as there."""
    with _lock:
        return _stores.setdefault(root, TransientStore(root, is_place=is_place))
