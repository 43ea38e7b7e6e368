"""Which appends share a statement, what each of them is told, and what need not be read."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from txnqueue.client.append import Append
from txnqueue.client.runtime import Runtime
from txnqueue.core.model import Condition, Entry, Unit, next_sequence
from txnqueue.core.planning import Plan
from txnqueue.errors import (
    PlatformMissing,
    StatementRefused,
    StoreBusy,
    StoreCorrupt,
    StoreNotFound,
    TransactionUnknown,
)
from txnqueue.storage.journal import Appended, EntryFilter, Order
from txnqueue.storage.journal import groups as groups_module
from txnqueue.storage.journal.delta import DeltaJournal
from txnqueue.storage.journal.feed import ChangeFeed
from txnqueue.storage.journal.groups import (
    ENTRIES_MAX,
    UNITS_MAX,
    Answer,
    Groups,
    Request,
    groups_of,
    metadata,
    take,
)
from txnqueue.storage.journal.memory import MemoryJournal
from txnqueue.storage.journal.selection import EntrySelection
from txnqueue.storage.journal.tables import TableNames
from txnqueue.storage.journal.tail import Tail

WAIT_SECONDS = 20


def unit(name: str, sequence: int = 1, lane: int = 0, entries: int = 1) -> Unit:
    """Take the next number of a lane's stream."""
    shard, stream = f"lane/q/{lane}", f"lane/{lane}"
    rows = [
        Entry(shard, stream, "claimed", sequence=sequence if n == 0 else None, body={"n": n})
        for n in range(entries)
    ]
    return Unit.of(name, rows, [next_sequence(shard, stream, sequence)])


def fact(name: str) -> Unit:
    """Say something that depends on no lane."""
    return Unit.of(name, [Entry("backlog/q", "lane/0", "posted", count=1)], [])


def request(one: Unit, insert: Any = None, **about: object) -> Request:
    return Request((one,), {"operation": "test", **about}, insert or refuse)


def refuse(units: Sequence[Unit], about: Mapping[str, object]) -> Any:
    raise AssertionError("it is not its turn")


def test_what_waits_shares_a_statement() -> None:
    waiting = deque(request(unit(f"u{n}", lane=n)) for n in range(3))
    expected = list(waiting)
    assert take(waiting) == (expected, [])
    assert not waiting


def test_what_an_earlier_one_breaks_is_planned_anew() -> None:
    first, second, other = (
        request(unit(n, lane=lane)) for n, lane in [("a", 0), ("b", 0), ("c", 1)]
    )
    assert take(deque([first, second, other])) == ([first, other], [second])


def test_sends_do_not_wait_for_claims() -> None:
    claim, send = request(unit("a")), request(fact("b"))
    waiting = deque([claim, send])
    assert take(waiting) == ([claim], [])
    assert take(waiting) == ([send], [])


def test_what_failed_with_others_is_tried_alone() -> None:
    first, second = request(fact("a")), request(fact("b"))
    for alone in ("a", "b"):
        waiting = deque([first, second])
        assert take(waiting, frozenset([alone])) == ([first], [])
        assert list(waiting) == [second]


def test_a_statement_is_not_larger_than_spark_reads_at_once() -> None:
    many = deque(request(unit(f"u{n}", lane=n)) for n in range(UNITS_MAX + 5))
    assert len(take(many)[0]) == UNITS_MAX
    large = deque(request(unit(f"u{n}", lane=n, entries=ENTRIES_MAX)) for n in range(2))
    assert len(take(large)[0]) == 1, "the first one is never refused"
    sizes = [ENTRIES_MAX - 1, 1, 1]
    full = deque(request(unit(f"u{n}", lane=n, entries=size)) for n, size in enumerate(sizes))
    assert len(take(full)[0]) == 2


def test_the_history_says_what_each_unit_of_a_group_is() -> None:
    one = request(fact("a"), actor="x", transaction_id="t1")
    two = request(fact("b"), actor="x", transaction_id="t2")
    assert metadata([one]) == one.metadata
    assert metadata([one, two]) == {
        "operation": "test",
        "actor": "x",
        "group": [{"transaction_id": "t1"}, {"transaction_id": "t2"}],
    }


class Gate:
    """A journal in memory whose first statement waits until it is let through."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.groups = Groups(concerns_one=lambda error: isinstance(error, ValueError))
        self.begun, self.open = threading.Event(), threading.Event()
        self.statements: list[list[str]] = []
        self.fails: Callable[[list[str]], Exception | None] = lambda names: None

    def insert(self, units: Sequence[Unit], about: Mapping[str, object]) -> tuple[int, int | None]:
        self.begun.set()
        assert self.open.wait(WAIT_SECONDS)
        names = [one.append_id for one in units]
        self.statements.append(names)
        error = self.fails(names)
        if error is not None:
            raise error
        appended = self.journal.append(units, about)
        won = [one for one, there in zip(units, appended.won, strict=True) if there]
        return sum(len(one.entries) for one in won), appended.version

    def together(self, units: Sequence[Unit]) -> list[Any]:
        """Append something; while that is on its way, units that then share a statement."""
        self.begun.clear()
        first = self.groups.submit(request(fact("first"), self.insert))
        assert self.begun.wait(WAIT_SECONDS)
        answers = [self.groups.submit(request(one, self.insert)) for one in units]
        self.open.set()
        first.result(WAIT_SECONDS)
        for answer in answers:
            answer.exception(WAIT_SECONDS)
        return answers


def test_each_request_is_told_its_own_place() -> None:
    gate = Gate()
    answers = gate.together([unit("a", lane=0), unit("b", lane=1), unit("c", lane=0)])
    assert [a.result().appended for a in answers] == [
        Appended((True,), 2, 0),
        Appended((True,), 2, 1),
        Appended((False,), None),
    ]
    assert not any(answer.result().unread for answer in answers)
    assert gate.statements == [["first"], ["a", "b"]]
    places = {e.append_id: (e.version, e.ordinal) for e in gate.journal.entries()}
    assert places == {"first": (1, 0), "a": (2, 0), "b": (2, 1)}
    assert gate.groups.tail.after(0) == (sorted(gate.journal.entries(), key=lambda e: e.place), 2)


def test_where_a_part_of_a_group_went_in_the_journal_says_which() -> None:
    gate = Gate()
    taken = unit("theirs", lane=0)
    gate.journal.append([taken], {})  # by another process
    units = [unit("a", lane=0), unit("b", lane=1)]
    first, second = (answer.result() for answer in gate.together(units))
    assert first.unread and second.unread
    reads: list[int] = []

    def landed(version: int) -> set[str]:
        reads.append(version)
        return {e.append_id for e in gate.journal.entries() if e.version == version}

    assert Groups.resolved(first, units[:1], landed) == Appended((False,), 3, 0)
    assert Groups.resolved(second, units[1:], landed) == Appended((True,), 3, 1)
    assert reads == [3, 3]


def test_a_number_that_spark_counted_twice_is_not_believed() -> None:
    """One of two units landed; its task ran again, and Spark counted its rows again."""

    def twice(units: Sequence[Unit], about: Mapping[str, object]) -> tuple[int, int | None]:
        inserted, version = gate.insert(units, about)
        return (inserted if len(units) == 1 else 2 * inserted), version

    gate = Gate()
    gate.journal.append([unit("theirs", lane=0)], {})  # by another process
    units = [unit("a", lane=0), unit("b", lane=1, entries=2)]
    first = gate.groups.submit(request(fact("first"), gate.insert))
    assert gate.begun.wait(WAIT_SECONDS)
    answers = [gate.groups.submit(request(one, twice)) for one in units]
    gate.open.set()
    first.result(WAIT_SECONDS)
    assert all(answer.result(WAIT_SECONDS).unread for answer in answers)
    assert gate.groups.tail.after(2)[1] < 3, "what did not land is taken for known"


def test_what_is_known_of_a_group_is_not_read() -> None:
    def landed(version: int) -> Any:
        raise ConnectionError("why was it read?")

    for appended in (Appended((True,), 3, 0), Appended((False,), None)):
        assert Groups.resolved(Answer(appended), [fact("a")], landed) == appended


def test_who_cannot_read_where_a_part_of_a_group_went_is_in_doubt() -> None:
    """The manager was closed after the statement: nothing was done, said the reading's error."""
    gate = Gate()
    gate.journal.append([unit("theirs", lane=0)], {})  # by another process
    gate.open.set()

    class Closed:
        """Statements of a manager that is closed while its append is on its way."""

        session = compiling = user = None
        names = TableNames.of("/lake")

        @staticmethod
        def wait() -> None:
            assert gate.begun.wait(WAIT_SECONDS)

        def result_of_append(self, answer: Any, begin: Callable[[], object]) -> Any:
            gate.groups._worker.submit(self.wait)
            begin()
            gate.groups.submit(request(unit("other", lane=0), gate.insert))
            gate.begun.set()
            return answer.result(WAIT_SECONDS)

        def run(self, statement: object) -> Any:
            raise PlatformMissing("This manager is closed, and nothing was done.")

    closed: Any = Closed()
    journal = DeltaJournal(closed, groups=gate.groups)
    vars(journal).update(_insert=gate.insert, known_version=lambda: 0)
    mine = unit("mine", lane=1)
    append = Append(journal, Runtime(), "commit", transaction_id="t")
    with pytest.raises(TransactionUnknown):
        append.land(lambda _lost: Plan(mine.entries, mine.conditions))
    assert len(gate.statements[0]) == 2, "they shared it"
    there = [entry.shard for entry in gate.journal.entries()]
    assert there == ["lane/q/0", "lane/q/1"], "it has landed"


def test_where_an_append_landed_is_read_if_the_session_does_not_tell() -> None:
    """It was told as a damaged store, although it had landed."""
    there = MemoryJournal()
    there.append([unit("before", lane=1)], {})
    mine = unit("mine")

    class Silent:
        """Statements on a platform whose sessions do not tell the version of a commit."""

        session = compiling = user = None
        names = TableNames.of("/lake")

        def result_of_append(self, answer: Any, begin: Callable[[], object]) -> Any:
            begin()
            return answer.result(WAIT_SECONDS)

        def append(self, statement: Callable[[Any], Any]) -> Any:
            conf = SimpleNamespace(set=lambda *_: None, unset=lambda _: None, get=lambda *_: None)

            def sql(merge: str) -> Any:
                (tried,) = vars(append)["_tried"]
                there.append([tried], {})
                return SimpleNamespace(collect=lambda: [{"num_inserted_rows": 1}])

            return statement(SimpleNamespace(conf=conf, sql=sql))

    silent: Any = Silent()
    journal = DeltaJournal(silent, groups=Groups())
    vars(journal).update(read=there.read, known_version=there.known_version)
    append = Append(journal, Runtime(), "commit", transaction_id="t")
    landed = append.land(lambda _lost: Plan(mine.entries, mine.conditions))
    assert landed is not None and landed.version == 2
    assert [entry.version for entry in there.entries()] == [1, 2]


@pytest.mark.parametrize("gone", [True, False])
def test_a_store_that_was_removed_is_told(gone: bool) -> None:
    """Reads raised Spark's error, and appends spoke of a statement that could not be parsed."""
    absent = AnalysisException("[DELTA_TABLE_ONLY_OPERATION] `/lake/journal` is not a Delta table.")

    class Away:
        """Statements on a table that Spark does not find."""

        session = compiling = user = None
        names = TableNames.of("/lake")

        def result_of_append(self, answer: object, begin: object) -> Any:
            raise absent

        def run(self, statement: object) -> Any:
            raise absent

    away: Any = Away()
    journal = DeltaJournal(away, groups=Groups())
    vars(journal).update(exists=lambda: not gone)
    acts: list[Callable[[], object]] = [
        journal.version,
        journal.known_version,
        lambda: journal.read(["fence"]),
        journal.read_all,
        lambda: journal.find(EntryFilter(shards=["fence"])),
        lambda: journal.newest(EntryFilter()),
        lambda: list(journal.stream(Order.COMMIT, EntryFilter())),
        lambda: journal.audit(upto=5),
    ]
    for act in acts:
        with pytest.raises(StoreNotFound if gone else AnalysisException):
            act()
    with pytest.raises(StoreNotFound if gone else StatementRefused) as refused:
        journal.append([unit("mine", lane=1)], {})
    assert refused.value.__cause__ is absent


@pytest.mark.parametrize("gone", [True, False])
@pytest.mark.parametrize("what", ["stream", "audit"])
def test_a_store_that_is_removed_while_it_is_read_is_told_from_a_damaged_one(
    monkeypatch: pytest.MonkeyPatch, gone: bool, what: str
) -> None:
    """The statement has found its files, which are missing when it opens them."""

    def stream(*_: object) -> Iterator[Entry]:
        yield from unit("first", lane=1).entries
        raise StoreCorrupt("A file of the store is damaged")

    def audit(*_: object, **__: object) -> None:
        raise StoreCorrupt("A file of the store is damaged")

    read: Any = SimpleNamespace(entries=())
    away: Any = SimpleNamespace(
        session=None, compiling=None, user=None, names=TableNames.of("/lake"), run=lambda act: act()
    )
    journal = DeltaJournal(away, groups=Groups())
    vars(journal).update(exists=lambda: not gone, read=lambda _: read)
    monkeypatch.setattr(EntrySelection, "stream", stream)
    monkeypatch.setattr(ChangeFeed, "audit", audit)
    seen: list[Entry] = []
    with pytest.raises(StoreNotFound if gone else StoreCorrupt, match=r"gone|damaged"):
        if what == "audit":
            journal.audit(upto=5)
        seen.extend(journal.stream(Order.COMMIT, EntryFilter()))


@pytest.mark.parametrize("names", [["a", "bad", "b"], ["a", "bad"]])
def test_one_that_cannot_be_read_does_not_take_the_others_with_it(names: list[str]) -> None:
    gate = Gate()
    gate.fails = lambda names: ValueError("bad") if "bad" in names else None
    answers = gate.together([fact(name) for name in names])
    assert [a.exception() is None for a in answers] == [name != "bad" for name in names]
    assert {e.append_id for e in gate.journal.entries()} == {"first", *names} - {"bad"}


@pytest.mark.parametrize(
    ("error", "alone"),
    [
        (AnalysisException("no such column"), True),
        (PlatformMissing("closed"), True),
        (StoreBusy(owner=None), False),
        (OSError(), False),
    ],
)
def test_what_spark_or_the_library_refuses_concerns_one_and_what_else_fails_concerns_all(
    error: Exception, alone: bool
) -> None:
    gate = Gate()
    gate.groups = groups_of(session(object()), TableNames.of("/lake"), type(error).__name__)
    gate.fails = lambda names: error if "bad" in names else None
    answers = gate.together([fact("a"), fact("bad"), fact("b")])
    assert [a.exception() is None for a in answers] == [alone, False, alone]


def test_after_a_failure_each_is_tried_by_itself() -> None:
    gate = Gate()
    gate.fails = lambda names: OSError("no reply") if len(names) > 1 else None
    answers = gate.together([fact("a"), fact("b")])
    assert [type(a.exception()) for a in answers] == [OSError, OSError]
    again = [gate.groups.submit(request(fact(name), gate.insert)) for name in "ab"]
    assert [one.result(WAIT_SECONDS).appended.won for one in again] == [(True,), (True,)]
    assert gate.statements == [["first"], ["a", "b"], ["a"], ["b"]]


def test_what_failed_and_is_never_tried_again_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups_module, "ALONE_MAX", 3)
    gate = Gate()
    gate.fails = lambda names: OSError("no reply") if len(names) > 1 else None
    gate.together([fact(name) for name in "abcde"])
    waiting = vars(gate.groups)["_alone"]
    assert list(waiting) == ["c", "d", "e"]
    again = [gate.groups.submit(request(fact(name), gate.insert)) for name in "cde"]
    assert [one.result(WAIT_SECONDS).appended.won for one in again] == [(True,)] * 3
    assert not waiting


def test_what_failed_by_itself_may_share_a_statement_the_next_time() -> None:
    """It was to blame for nobody else's failure."""
    gate = Gate()
    gate.open.set()
    gate.fails = lambda names: OSError("no reply")
    failed = gate.groups.submit(request(fact("a"), gate.insert))
    assert isinstance(failed.exception(WAIT_SECONDS), OSError)
    gate.open.clear()
    gate.fails = lambda names: None
    gate.together([fact("a"), fact("b")])
    assert gate.statements == [["a"], ["first"], ["a", "b"]]


def test_what_is_stale_is_refused_without_a_statement() -> None:
    gate = Gate()
    gate.together([unit("a")])
    late = gate.groups.submit(request(unit("late"), refuse))
    assert late.result(WAIT_SECONDS).appended == Appended((False,), None)


def test_who_is_interrupted_as_it_hands_over_keeps_no_other_waiting() -> None:
    def insert(units: Sequence[Unit], about: Mapping[str, object]) -> tuple[int, int | None]:
        return len(units), 1

    class Interrupted:
        """What carries out groups, and whose first caller presses Ctrl-C."""

        def __init__(self) -> None:
            self.thread = ThreadPoolExecutor(1)
            self.is_first = True

        def submit(self, task: Callable[[], None]) -> object:
            first, self.is_first = self.is_first, False
            if first:
                raise KeyboardInterrupt
            return self.thread.submit(task)

    groups = Groups(Interrupted())
    given_up = request(fact("a"), insert)
    with pytest.raises(KeyboardInterrupt):
        groups.submit(given_up)
    given_up.answer.cancel()
    answer = groups.submit(request(unit("b"), insert))
    assert answer.result(WAIT_SECONDS).appended.won == (True,)


def test_what_is_cancelled_before_its_turn_never_lands() -> None:
    gate = Gate()
    first = gate.groups.submit(request(unit("first"), gate.insert))
    assert gate.begun.wait(WAIT_SECONDS)
    given_up = [gate.groups.submit(request(one, gate.insert)) for one in (fact("a"), unit("b"))]
    stale = gate.groups.submit(request(unit("stale"), gate.insert))
    other = gate.groups.submit(request(fact("other"), gate.insert))
    assert not first.cancel() and all(one.cancel() for one in given_up)
    gate.open.set()
    assert stale.result(WAIT_SECONDS).appended == Appended((False,), None)
    assert other.result(WAIT_SECONDS).appended.won == (True,)
    assert gate.statements == [["first"], ["other"]]


def session(context: object, *, connect: bool = False) -> Any:
    """Make what groups ask of a Spark session: of what application it is."""
    made = SimpleNamespace(sparkContext=context)
    if not connect:
        made.newSession = None
    return made


def test_sessions_of_an_application_share_statements_where_a_name_means_the_same() -> None:
    context, path, schema = object(), TableNames.of("/lake"), TableNames.of("lake")
    one, two, foreign = session(context), session(context), session(object())
    mine = groups_of(one, path, "t")
    assert groups_of(two, path, "t") is mine
    assert groups_of(foreign, path, "t") is not mine
    assert groups_of(one, TableNames.of("/other"), "t") is not mine
    assert groups_of(one, path, "made anew") is not mine
    named = groups_of(one, schema, "t")
    assert groups_of(one, schema, "t") is named
    assert groups_of(two, schema, "t") is not named
    remote, other = (session(context, connect=True) for _ in range(2))
    held = groups_of(remote, path, "t")
    assert groups_of(remote, path, "t") is held
    assert groups_of(other, path, "t") is not held


# -------------------------------------------------------------------------------- tails


def entry(shard: str = "lane/q/0", **columns: Any) -> Entry:
    return Entry(shard, "lane/0", "claimed", **columns)


def test_a_tail_ends_before_the_first_version_that_is_not_known() -> None:
    tail = Tail()
    for version in (3, 4, 6):
        tail.add(version, [entry(sequence=version)])
    assert [e.version for e in tail.after(2)[0]] == [3, 4]
    assert tail.after(2)[1] == tail.after(4)[1] == 4
    assert tail.after(5)[1] == 6
    assert tail.after(1) == ([], 1)


def test_whoever_reads_a_tail_waits_for_nobody_who_adds_to_it() -> None:
    """A block that a collection leaves amid the reading waits for the thread that adds."""
    tail = Tail()
    tail.add(1, [entry(sequence=1)])
    with tail._lock:
        assert tail.after(0)[1] == 1


def test_a_tail_forgets_the_oldest_versions_and_knows_that_it_has() -> None:
    tail = Tail(entries_max=10)
    for version in range(1, 9):
        tail.add(version, [entry(sequence=version, ranges=((0, 1), (3, 4)))])
    assert tail.after(0) == ([], 0)
    assert [e.version for e in tail.after(5)[0]] == [6, 7, 8]
    assert not tail.breaks([next_sequence("lane/q/0", "lane/0", 9)])
    assert tail.breaks([next_sequence("lane/q/0", "lane/0", 8)])


def test_a_tail_has_entries_as_readers_get_them() -> None:
    tail = Tail()
    tail.add(1, [entry(body={"items": [("a", 1)], 2: None}, ranges=[[0, 1]])])
    ((found,), _) = tail.after(0)
    assert (found.body, found.ranges, found.version) == (
        {"items": [["a", 1]], "2": None},
        ((0, 1),),
        1,
    )


@pytest.mark.parametrize("present", [True, False])
def test_that_something_is_there_may_be_told_by_older_versions(present: bool) -> None:
    tail = Tail()
    tail.add(1, [entry(sequence=1)])
    condition = Condition("lane/q/0", "lane/0", kinds=("claimed",), present=present)
    assert tail.breaks([condition]) is not present


@pytest.mark.parametrize("requests", [1, 2])
def test_an_error_after_the_statement_answers_all_who_wait(
    requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it landed, they find out by the id of their append."""
    landed: list[int] = []

    def insert(units: Sequence[Unit], _metadata: object) -> tuple[int, int]:
        landed.append(len(units))
        return sum(len(one.entries) for one in units), len(landed)

    tasks: deque[Callable[[], object]] = deque()
    groups = Groups(SimpleNamespace(submit=tasks.append))
    add = groups.tail.add

    def no_room(*_: object) -> None:
        monkeypatch.setattr(groups.tail, "add", add)
        raise MemoryError

    monkeypatch.setattr(groups.tail, "add", no_room)
    answers = [groups.submit(Request((fact(f"{n}" * 32),), {}, insert)) for n in range(requests)]
    while tasks:
        tasks.popleft()()
    assert landed == [requests]
    for answer in answers:
        with pytest.raises(MemoryError):
            answer.result(timeout=0)
    more = groups.submit(Request((fact("a" * 32),), {}, insert))
    tasks.popleft()()
    assert more.result(timeout=0).appended.version == 2
