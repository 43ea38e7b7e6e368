"""Group commit: one statement for the appends of several threads and managers of a process.

While one group is being committed, the next one forms. No append waits for a group to fill.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

from txnqueue.core.model import Condition, Entry, Unit
from txnqueue.errors import StoreBusy, TxnQueueError
from txnqueue.storage.journal import Appended
from txnqueue.storage.journal.sessions import is_connect
from txnqueue.storage.journal.tail import Tail

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txnqueue.storage.journal.tables import TableNames

UNITS_MAX = 64
"""The maximum number of units in a statement; a version has places for 1,024."""
ENTRIES_MAX = 1_000
"""The maximum number of entries in a statement, whose text is parsed as a whole."""
ALONE_MAX = 1_000
"""How many units that failed with others are remembered; many are never retried unchanged."""

_making = threading.Lock()
_known: WeakValueDictionary[tuple[int, str, str], Groups] = WeakValueDictionary()

Insert = Callable[[Sequence[Unit], Mapping[str, object]], tuple[int, int | None]]
"""Inserts the units whose conditions hold; returns the number of rows and the version."""


class Worker(Protocol):
    """Runs functions in the order in which they are submitted."""

    def submit(self, fn: Callable[[], None], /) -> object:
        """Run a function, now or later."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one append that shared a statement with others.

    Attributes:
        appended: The known result of its units.
        unread: Whether only some units of the statement landed; the journal shows which.
    """

    appended: Appended
    unread: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """An append that waits for its turn.

    Attributes:
        units: The units to append; mostly one.
        metadata: Its description in the store's history.
        insert: Runs the statement of a group that begins with this request.
        answer: Its result; it can be cancelled while it waits.
    """

    units: tuple[Unit, ...]
    metadata: Mapping[str, object]
    insert: Insert
    answer: Future[Answer] = field(default_factory=Future)

    @property
    def reads_lanes(self) -> bool:
        """Whether it depends on claims; appends that only send must not wait for such a request."""
        return any(shard.startswith("lane/") for unit in self.units for shard in unit.reads)


class Groups:
    """The appends of this process to one journal, and the thread that carries them out."""

    def __init__(
        self,
        worker: Worker | None = None,
        concerns_one: Callable[[Exception], bool] = lambda _error: False,
    ) -> None:
        """Create the groups, empty.

        Args:
            worker: Carries out the groups one after another; if omitted, a thread.
            concerns_one: Returns whether a single request can be the cause of an error.
        """
        self.tail = Tail()
        self._concerns_one = concerns_one
        self._worker: Worker = worker or ThreadPoolExecutor(1, "txnqueue groups")
        self._lock = threading.Lock()
        self._waiting: deque[Request] = deque()
        self._alone: dict[str, None] = {}  # oldest first

    def submit(self, request: Request) -> Future[Answer]:
        """Add an append to the next group that has room for it."""
        with self._lock:  # the call first: who is interrupted here leaves no request without one
            self._worker.submit(self._carry_out_next)
            self._waiting.append(request)
        return request.answer

    @staticmethod
    def resolved(
        answer: Answer, units: Sequence[Unit], landed: Callable[[int], Collection[str]]
    ) -> Appended:
        """Complete an answer: if only some units of a group landed, find out which.

        Args:
            answer: The answer to a request.
            units: The units of the request.
            landed: Returns the ids of the appends in a version.
        """
        appended = answer.appended
        if not answer.unread or appended.version is None:
            return appended
        there = landed(appended.version)
        return replace(appended, won=tuple(unit.append_id in there for unit in units))

    # ------------------------------------------------------------------------- one group

    def _carry_out_next(self) -> None:
        with self._lock:
            for request in [one for one in self._waiting if self._is_stale(one)]:
                self._waiting.remove(request)
                _refuse(request)
            taken, stale = take(self._waiting, self._alone.keys())
            group = [one for one in taken if one.answer.set_running_or_notify_cancel()]
        if group:
            self._carry_out(group)
        for request in stale:  # only now it is decided whether what they depend on has landed
            _refuse(request)

    def _is_stale(self, request: Request) -> bool:
        return all(self.tail.breaks(unit.conditions) for unit in request.units)

    def _carry_out(self, group: Sequence[Request]) -> None:
        """Insert the units of a group, and answer each request."""
        units = [unit for request in group for unit in request.units]
        try:
            inserted, version = group[0].insert(units, metadata(group))
        except BaseException as error:  # each waiting caller gets it
            self._fail(group, error)
            return
        try:
            self._answer(group, units, inserted, version)
        except BaseException as error:  # of memory: who gets it looks for what has landed
            for request in group:
                if not request.answer.done():
                    request.answer.set_exception(error)

    def _answer(
        self, group: Sequence[Request], units: Sequence[Unit], inserted: int, version: int | None
    ) -> None:
        entries = numbered(units)
        if version is not None and inserted == len(entries):
            self.tail.add(version, entries)
        with self._lock:
            for unit in units:
                self._alone.pop(unit.append_id, None)
        firsts = accumulate((len(request.units) for request in group), initial=0)
        for request, first in zip(group, firsts, strict=False):
            won = (version is not None,) * len(request.units)
            # It may even be above theirs: Spark counts rows again if it repeats their task.
            answer = Answer(Appended(won, version, first), unread=inserted not in (0, len(entries)))
            request.answer.set_result(answer)

    def _fail(self, group: Sequence[Request], error: BaseException) -> None:
        """Answer all requests of a group with its error, or retry each by itself.

        If one of them is the cause, the others must not fail with it again.
        """
        if len(group) > 1 and isinstance(error, Exception) and self._concerns_one(error):
            for request in group:
                self._carry_out([request])
            return
        if len(group) > 1:
            with self._lock:
                self._alone |= {unit.append_id: None for r in group for unit in r.units}
                for forgotten in list(self._alone)[:-ALONE_MAX]:
                    del self._alone[forgotten]
        for request in group:
            request.answer.set_exception(error)


def groups_of(spark: SparkSession, names: TableNames, table_id: str) -> Groups:
    """Return the groups shared by all managers of this process that append to one journal.

    A path means the same in all sessions of a Spark application; a name in a catalog, and any
    table under Spark Connect, depends on the session.

    Args:
        spark: The user's session.
        names: The names of the store's tables.
        table_id: The id of the journal, as another store may have been created in its place.
    """
    shares = names.by_path and not is_connect(spark)
    key = (id(spark.sparkContext if shares else spark), names.journal, table_id)
    with _making:
        found = _known.get(key)
        if found is None:
            found = _known[key] = Groups(concerns_one=_concerns_one)
        return found


def _concerns_one(error: Exception) -> bool:
    """Return whether an error may be about one request of a group.

    A lock that others hold is not: each request by itself would wait for it as long once more.
    """
    from pyspark.errors import AnalysisException

    busy = type(error) is StoreBusy
    return isinstance(error, AnalysisException | TxnQueueError) and not busy


def _refuse(request: Request) -> None:
    if request.answer.set_running_or_notify_cancel():
        request.answer.set_result(Answer(Appended((False,) * len(request.units), None)))


def take(
    waiting: deque[Request], alone: Collection[str] = frozenset()
) -> tuple[list[Request], list[Request]]:
    """Remove the next group from the waiting requests.

    It begins with the request that has waited longest. A later request whose conditions it would
    break is stale, and is planned again.

    Args:
        waiting: The requests, by waiting time, longest first; the taken ones are removed.
        alone: The append ids of units that need a statement of their own.

    Returns:
        The requests that share a statement, and those that are stale if it succeeds.
    """
    group: list[Request] = []
    stale: list[Request] = []
    left: list[Request] = []
    for request in waiting:
        if not _fits(request, group, alone):
            left.append(request)
        elif breaks([unit for one in group for unit in one.units], request.units):
            stale.append(request)
        else:
            group.append(request)
    waiting.clear()
    waiting.extend(left)
    return group, stale


def _fits(request: Request, group: Sequence[Request], alone: Collection[str]) -> bool:
    if not group:
        return True
    if request.reads_lanes != group[0].reads_lanes:
        return False
    if any(unit.append_id in alone for one in (request, *group[:1]) for unit in one.units):
        return False
    units = [unit for one in (*group, request) for unit in one.units]
    return len(units) <= UNITS_MAX and sum(len(unit.entries) for unit in units) <= ENTRIES_MAX


def breaks(earlier: Iterable[Unit], later: Iterable[Unit]) -> bool:
    """Return whether earlier units break conditions of later ones."""
    expected: dict[str, list[Condition]] = {}
    for unit in later:
        for condition in unit.conditions:
            if not condition.present:
                expected.setdefault(condition.shard, []).append(condition)
    return any(
        condition.matches(entry)
        for unit in earlier
        for entry in unit.entries
        for condition in expected.get(entry.shard, ())
    )


def numbered(units: Sequence[Unit]) -> list[Entry]:
    """Give the entries of units their places in a statement."""
    return [
        replace(entry, ordinal=number)
        for number, unit in enumerate(units)
        for entry in unit.entries
    ]


def metadata(group: Sequence[Request]) -> Mapping[str, object]:
    """Describe a group in the store's history: what its requests have in common, and each unit.

    The list ``group`` is in the order of the units, whose ordinals are its indexes.
    """
    first, *others = [request.metadata for request in group]
    if not others:
        return first
    shared = {k: v for k, v in first.items() if all(o.get(k) == v for o in others)}
    own = [
        {key: value for key, value in request.metadata.items() if key not in shared}
        for request in group
        for _ in request.units
    ]
    return {**shared, "operation": shared.get("operation", "group"), "group": own}
