"""Faults at the store's interface: every call may fail, land unheard, land late, or be the last.

The same wrapper serves the store in memory and the one on Delta.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable
from typing import Any

from txnqueue.errors import StatementRefused
from txnqueue.storage.journal import AppendConflict, Reading
from txnqueue.storage.transient import TransientStore


class Crash(BaseException):
    """The process ends here."""


class Fault(str, enum.Enum):
    """What happens at one store call."""

    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    FAIL_BEFORE = "fail before"
    REPLY_LOST = "reply lost"
    CONFLICT_THOUGH_LANDED = "conflict though landed"
    LANDS_LATE = "lands late"
    INTERRUPTED = "interrupted, and lands late"
    REFUSED = "refused, as what cannot be read"


WRITES: tuple[str, ...] = ("append", "stage", "create", "create_store", "add_columns", "apply")
WRITES += ("add", "remove", "forget", "rewrite", "drop")
DESTROYS: tuple[str, ...] = ("erase", "vacuum", "limit_removed_files")
"""What maintenance and an erasure do to files. The list of pairs does not draw from these."""
READS: tuple[str, ...] = (
    "version",
    "read",
    "read_all",
    "find",
    "newest",
    "table",
    "frame",
    "texts",
)
READS += (
    "lanes",
    "matching",
    "describe",
    "check",
    "history",
    "slices",
    "orphans",
    "payload_files",
    "read_archive",
    "files",
    "exists",
)


def faults_of(call: str) -> list[Fault]:
    """The faults that make a difference at a call."""
    if call in READS:
        return [Fault.CRASH_BEFORE, Fault.FAIL_BEFORE]
    if call == "append":
        return list(Fault)
    only_appends = (Fault.CONFLICT_THOUGH_LANDED, Fault.INTERRUPTED, Fault.REFUSED)
    return [fault for fault in Fault if fault not in only_appends]


class Injector:
    """Counts the store calls of one client, and spoils one of them."""

    def __init__(self, at: int | None = None, fault: Fault | None = None) -> None:
        self.at = at
        self.fault = fault
        self.calls: list[str] = []
        self.late: list[Callable[[], Any]] = []
        self.armed = False
        self.dead = False
        self.spoiled = False
        self.stop_at: str | None = None

    def arm(self) -> None:
        """Begin to count."""
        self.armed = True

    def disarm(self) -> None:
        """Let every call through from now on."""
        self.armed = False

    def flush(self) -> None:
        """Let what was on its way land now."""
        while self.late:
            with contextlib.suppress(AppendConflict):  # it lost, as a late statement may
                self.late.pop(0)()

    def call(self, name: str, perform: Callable[[], Any]) -> Any:
        """Make one call, spoiled or not."""
        if self.dead:
            raise Crash(name)
        if not self.armed:
            return perform()
        if name == self.stop_at:
            self.dead = True
            raise Crash(name)
        turn = self._is_turn_of(name)
        self.calls.append(name)
        if not turn:
            return perform()
        self.spoiled = True
        fault = self.fault
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            if fault is Fault.CRASH_AFTER:
                perform()
            self.dead = True
            raise Crash(name)
        if fault is Fault.REFUSED:
            raise StatementRefused
        if fault in (Fault.LANDS_LATE, Fault.INTERRUPTED):
            self.late.append(perform)
            if fault is Fault.INTERRUPTED:
                raise KeyboardInterrupt(name)
            raise ConnectionError(f"{name}: no reply")
        if fault in (Fault.REPLY_LOST, Fault.CONFLICT_THOUGH_LANDED):
            perform()
            if fault is Fault.CONFLICT_THOUGH_LANDED:
                raise AppendConflict(f"{name}: Delta met its own commit")
            raise ConnectionError(f"{name}: reply lost")
        raise ConnectionError(f"{name}: failed")

    def _is_turn_of(self, name: str) -> bool:
        return len(self.calls) == self.at


class InjectorOfCall(Injector):
    """Spoils the nth call of a name: what else is called may differ from what was recorded."""

    def __init__(self, name: str, nth: int, fault: Fault) -> None:
        super().__init__(nth, fault)
        self._name = name

    def _is_turn_of(self, name: str) -> bool:
        return name == self._name and self.calls.count(name) == self.at


class Meanwhile(Injector):
    """Spoils nothing: lets others act right before the nth call of a name."""

    def __init__(self, name: str, nth: int, act: Callable[[], Any]) -> None:
        super().__init__()
        self.acted = False
        self._name, self._nth, self._act = name, nth, act

    def call(self, name: str, perform: Callable[[], Any]) -> Any:
        """Make one call, after the others if it is their turn."""
        if self.armed and not self.acted and name == self._name:
            self.acted = self.calls.count(name) == self._nth - 1
            if self.acted:
                self._act()
        return super().call(name, perform)


class _Faulty:
    def __init__(self, inner: Any, injector: Injector) -> None:
        self._inner = inner
        self._injector = injector

    def _through(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._injector.call(name, lambda: getattr(self._inner, name)(*args, **kwargs))


class FaultyArchive(_Faulty):
    """An archive whose calls go through an injector."""

    def create(self) -> None:
        self._through("create")

    def add(self, entries: Any, day: str, metadata: Any) -> None:
        self._through("add", entries, day, metadata)

    def read(self, **wanted: Any) -> Any:
        return self._injector.call("read_archive", lambda: self._inner.read(**wanted))

    def find(self, *wanted: Any) -> Any:
        return self._injector.call("read_archive", lambda: self._inner.find(*wanted))

    def stream(self, order: Any, wanted: Any) -> Any:
        yield from self._injector.call(
            "read_archive", lambda: tuple(self._inner.stream(order, wanted))
        )

    def newest(self, wanted: Any) -> Any:
        return self._injector.call("read_archive", lambda: self._inner.newest(wanted))

    def exists(self) -> bool:
        return bool(self._through("exists"))

    def forget(self, day: str, standing: Any, metadata: Any) -> Any:
        return self._through("forget", day, standing, metadata)

    def files(self) -> Any:
        return self._through("files")

    def rewrite(self, days: Any, metadata: Any) -> None:
        self._through("rewrite", days, metadata)

    def vacuum(self, seconds_min: float, *, full: bool = False) -> Any:
        return self._through("vacuum", seconds_min, full=full)


class FaultyJournal(_Faulty):
    """A journal whose calls go through an injector.

    As on Delta a client asks now and then which version is the newest. In between it knows of no
    newer one than it appended, or found an entry of: a reading may be more complete than it says.
    """

    def __init__(self, inner: Any, injector: Injector) -> None:
        super().__init__(inner, injector)
        self.archive = FaultyArchive(inner.archive, injector)
        self._known: int | None = None

    def remove(self, entries: Any, day: str, metadata: Any) -> None:
        self._through("remove", entries, day, metadata)

    def files(self) -> Any:
        return self._through("files")

    def rewrite(self, shards: Any, metadata: Any) -> None:
        self._through("rewrite", shards, metadata)

    def find(self, *wanted: Any) -> Any:
        return self._through("find", *wanted)

    def stream(self, order: Any, wanted: Any) -> Any:
        yield from self._injector.call("find", lambda: tuple(self._inner.stream(order, wanted)))

    def newest(self, wanted: Any) -> Any:
        return self._through("newest", wanted)

    def audit(self, upto: int, beginning: int = -1) -> Any:
        return self._inner.audit(upto, beginning)

    def limit_removed_files(self, metadata: Any) -> None:
        self._through("limit_removed_files", metadata)

    def vacuum(self, seconds_min: float, *, full: bool = False) -> Any:
        return self._through("vacuum", seconds_min, full=full)

    def version(self) -> int:
        return self._learn(self._through("version"))

    def known_version(self) -> int:
        return self._learn(self._inner.known_version())

    def read(self, shards: Any, after: int = -1, upto: int | None = None) -> Any:
        if self._known is None:
            self.known_version()
        return self._understated(self._through("read", shards, after, upto), after, upto)

    def read_all(self, after: int = -1, upto: int | None = None) -> Any:
        if self._known is None:
            self.known_version()
        return self._understated(self._through("read_all", after, upto), after, upto)

    def append(self, units: Any, metadata: Any) -> Any:
        appended = self._through("append", units, metadata)
        self._learn(-1 if appended.version is None else appended.version)
        return appended

    def _learn(self, version: int) -> int:
        self._known = max(version, -1 if self._known is None else self._known)
        return self._known

    def _understated(self, reading: Reading, after: int, upto: int | None) -> Reading:
        newest = max((entry.version for entry in reading.entries), default=-1)
        known = max(after, self._learn(newest))
        return reading if upto is not None else Reading(reading.entries, known)


class FaultyPayload(_Faulty):
    """A payload store whose calls go through an injector."""

    @property
    def folder(self) -> str:
        folder: str = self._inner.folder
        return folder

    def create(self, payload_id: str, schema: Any, *, routed: bool = False) -> None:
        self._through("create", payload_id, schema, routed=routed)

    def add_columns(self, payload_id: str, columns: Any) -> None:
        self._through("add_columns", payload_id, columns)

    def stage(self, send: Any, rows: Any) -> Any:
        return self._through("stage", send, rows)

    def rows(self, payload_id: str, places: Any) -> Any:
        return self._inner.rows(payload_id, places)

    def slices(self, payload_id: str) -> Any:
        return self._through("slices", payload_id)

    def drop(self, payload_id: str, slices: Any) -> None:
        self._through("drop", payload_id, slices)

    def erase(self, payload_id: str, places: Any) -> None:
        self._through("erase", payload_id, places)

    def matching(self, schema: Any, payload_id: str, where: str) -> Any:
        return self._through("matching", schema, payload_id, where)

    def orphans(self, known: Any) -> Any:
        return self._through("orphans", known)

    def removed_files(self, payload_id: str) -> Any:
        removed = self._inner.removed_files
        return self._injector.call("payload_files", lambda: removed(payload_id))

    def files_kept_seconds(self, payload_id: str) -> Any:
        return self._inner.files_kept_seconds(payload_id)

    def vacuum(self, payload_id: str, seconds_min: float, *, full: bool = False) -> Any:
        return self._through("vacuum", payload_id, seconds_min, full=full)

    def schema(self, *described: Any) -> Any:
        return self._inner.schema(*described)

    def table(self, schema: Any, parts: Any) -> Any:
        return self._through("table", schema, parts)

    def texts(self, column: str, parts: Any) -> Any:
        return self._through("texts", column, parts)

    def lanes(self, column: str, lanes: int, parts: Any) -> Any:
        return self._through("lanes", column, lanes, parts)

    def frame(self, schema: Any, parts: Any) -> Any:
        return self._through("frame", schema, parts)


class FaultyTables(_Faulty):
    """The user's tables, whose calls go through an injector."""

    def describe(self, name: str) -> Any:
        return self._through("describe", name)

    def check(self, info: Any, change: Any, transaction_id: str) -> None:
        self._through("check", info, change, transaction_id)

    def apply(self, change: Any, stamp: Any, *, empty: bool = False) -> Any:
        return self._through("apply", change, stamp, empty=empty)

    def history(self, name: str, after: int) -> Any:
        return self._through("history", name, after)


class FaultyStore:
    """A client's own way to a store that it shares with others."""

    def __init__(self, store: Any, injector: Injector) -> None:
        self.inner = store
        self._injector = injector
        self.spark = store.spark
        self.root = store.root
        self.journal = FaultyJournal(store.journal, injector)
        self.payload = FaultyPayload(store.payload, injector)
        self.tables = FaultyTables(store.tables, injector)
        self.transient = TransientStore(store.root)  # each client is a process of its own

    def exists(self) -> bool:
        return bool(self._injector.call("exists", self.inner.exists))

    def create(self) -> None:
        self._injector.call("create_store", self.inner.create)

    def answers(self) -> bool:
        return bool(self.inner.answers())

    def close(self) -> None:
        self.inner.close()
