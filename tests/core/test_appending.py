"""Landing one append, against a journal that answers as a script says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from txnqueue.client.append import Append
from txnqueue.client.runtime import Retries, Runtime
from txnqueue.core import model
from txnqueue.core.custody import NotRead
from txnqueue.core.model import Entry, Unit
from txnqueue.core.planning import Plan
from txnqueue.core.settings import RetryPolicy
from txnqueue.errors import (
    Busy,
    LayoutUnsupported,
    QueueClosed,
    StoreBusy,
    TransactionAborted,
    TransactionUnknown,
)
from txnqueue.storage.journal import AppendConflict, Appended
from txnqueue.storage.journal.memory import MemoryJournal
from txnqueue.testing import Clock, runtime

SHARD, STREAM = "lane/q/0", "lane/0"


def numbered(sequence: int, word: str = "mine") -> Plan:
    """Plan an entry that takes a sequence number."""
    entry = Entry(SHARD, STREAM, model.CLAIMED, sequence=sequence, body={"word": word})
    return Plan((entry,), (model.next_sequence(SHARD, STREAM, sequence),))


class Script:
    """A journal that does what the script says, append by append; then all goes well.

    fails: nothing lands · reply lost: it lands · late: it lands while the client waits ·
    later: it lands after the next append ·
    conflict: Delta says so, and nothing landed · conflict though landed · rival: another
    client takes the next sequence number first · rival in the group: in the same statement ·
    locked: the store's own error.
    """

    def __init__(self, *script: Any) -> None:
        self.inner = MemoryJournal()
        self.script = list(script)
        self.offered: list[Any] = []
        self.late: list[Any] = []
        self.later: list[Any] = []
        self.waits: list[Any] = []
        self.reads_fail = self.forgets = False
        self.after_read: Callable[[], None] = lambda: None
        self.known_version = self.inner.known_version
        self.archive = self.inner.archive

    def append(self, units: Any, metadata: Any) -> Any:
        self.offered.append(units[0])
        what = self.script.pop(0) if self.script else "lands"
        if what == "locked":
            raise StoreBusy(owner=None)
        if what == "late":
            self.late.append((units, metadata))
        if what == "later":
            self.later.append((units, metadata))
            raise ConnectionError(what)
        if self.forgets:
            self.forget_history()
        if what == "rival in the group":
            rival = numbered(self.next(), "rival")
            landed = self.inner.append([Unit.of("rival", rival.entries, ())], {})
            return Appended((False,), landed.version, 1)
        if what == "rival":
            rival = numbered(self.next(), "rival")
            self.inner.append([Unit.of(f"rival{self.next()}", rival.entries, ())], {})
        if what in ("lands", "rival", "reply lost", "conflict though landed"):
            answer = self.inner.append(units, metadata)
        while self.later:
            self.inner.append(*self.later.pop())
        if what in ("conflict", "conflict though landed"):
            raise AppendConflict
        if what in ("fails", "late", "reply lost"):
            raise ConnectionError(what)
        return answer

    def read(self, shards: Any, after: Any = -1, upto: int | None = None) -> Any:
        if self.reads_fail:
            raise ConnectionError("cannot read either")
        found = self.inner.read(shards, after, upto)
        self.after_read()
        return found

    def forget_history(self) -> None:
        """Let the horizon pass what is there, and the history begin behind it."""
        begun = self.known_version() + 1
        said = [
            Entry(model.FENCE, "horizon", model.HORIZON_ADVANCED, begun=begun),
            Entry(model.FENCE, "history", model.HISTORY_REMOVED, begun=begun),
        ]
        self.inner.archive.create()
        self.inner.append([Unit.of(f"maintenance{begun}", said, ())], {})

    def next(self) -> Any:
        return max((e.sequence for e in self.entries()), default=0) + 1

    def entries(self) -> Any:
        return self.inner.read([SHARD]).entries

    def words(self) -> list[Any]:
        return [e.body["word"] for e in self.entries()]

    def land(self, plan: Any, attempts_max: int = 5, **named: Any) -> Any:
        """Land a plan; while it waits, what is late lands and the clock is turned."""
        clock = Clock()

        def sleep(seconds: float) -> None:
            self.waits.append(seconds)
            clock.advance(seconds)
            while self.late:
                self.inner.append(*self.late.pop())

        policy = RetryPolicy(attempts_max, seconds_max=60, wait_seconds_first=1)
        journal: Any = self
        return Append(journal, runtime(clock, "me", policy, sleep), "test", **named).land(plan)

    def land_next(self, **named: Any) -> Any:
        """Land an entry with whatever sequence number is next when it is planned."""
        return self.land(lambda lost: numbered(self.next(), f"mine {lost}"), **named)


@pytest.mark.parametrize("answer", ["reply lost", "conflict though landed"])
def test_what_landed_is_done_whatever_the_store_said(answer: Any) -> None:
    script = Script(answer)
    landed = script.land(lambda lost: numbered(1))
    assert (landed.version, landed.entries) == (1, script.entries())
    assert len(script.offered) == 1


def test_what_lands_late_lands_once() -> None:
    script = Script("late")
    landed = script.land(lambda lost: numbered(1))
    assert landed.version == 1
    assert script.words() == ["mine"]


@pytest.mark.parametrize("answer", ["fails", "conflict"])
def test_the_same_content_is_said_again_under_the_same_append_id(answer: Any) -> None:
    """A late first try and its repetition are then one append, not two."""
    script = Script(answer, answer)
    script.land(lambda lost: numbered(1))
    assert len(script.offered) == 3
    assert len({unit.append_id for unit in script.offered}) == 1


def test_of_two_contents_the_one_that_is_said_again_is_offered_again() -> None:
    script = Script("conflict", "conflict", "conflict")
    landed = script.land(lambda lost: numbered(1, "first" if lost == 0 else "second"))
    assert landed.entries == script.entries()
    assert script.words() == ["second"]
    ids = [unit.append_id for unit in script.offered]
    assert ids[1] == ids[2] == ids[3] != ids[0]


def test_content_is_the_same_though_time_has_passed() -> None:
    script, times = Script("fails"), iter((1, 2))

    def plan(lost: int) -> Plan:
        entry = Entry(SHARD, STREAM, model.CLAIMED, body={"word": "x"}, recorded_at_ms=next(times))
        return Plan((entry,), (model.layout_unchanged(),))

    script.land(plan)
    assert script.offered[0] is script.offered[1]


def test_a_lost_race_is_planned_again_under_a_new_append_id() -> None:
    script = Script("rival", "rival")
    landed = script.land_next()
    assert script.words() == ["rival", "rival", "mine 2"]
    assert len({unit.append_id for unit in script.offered}) == 3
    assert [e.sequence for e in landed.entries] == [3]


def test_a_race_that_is_lost_to_who_shares_the_statement_is_lost_too() -> None:
    script = Script("rival in the group")
    landed = script.land_next()
    assert (landed.version, [e.sequence for e in landed.entries]) == (2, [2])
    assert script.words() == ["rival", "mine 1"]


def test_what_landed_is_read_from_the_journal_not_from_the_last_plan() -> None:
    """The first try landed late, and the second plan was lost to it: the first one counts."""
    script = Script("late")
    landed = script.land(lambda lost: numbered(1, f"plan {lost}"))
    assert [e.body["word"] for e in landed.entries] == ["plan 0"]
    assert script.words() == ["plan 0"]


def test_losing_every_race_is_busy_and_nothing_landed() -> None:
    script = Script(*["rival"] * 9)
    with pytest.raises(Busy) as caught:
        script.land_next(attempts_max=4)
    assert caught.value.tries == len(script.offered) == 4
    assert "all 4 tries of" in str(caught.value)
    assert "nothing was changed: try again later" in str(caught.value)
    assert script.words() == ["rival"] * 4


def test_conflicts_alone_are_busy() -> None:
    """A reported conflict that did not land is surely lost: there is nothing in doubt."""
    with pytest.raises(Busy):
        Script("conflict", "conflict").land(lambda lost: numbered(1), attempts_max=2)


@pytest.mark.parametrize("answers", [["fails", "fails"], ["fails", "conflict"]])
def test_giving_up_after_a_lost_reply_is_unknown_not_busy(answers: Any) -> None:
    """The try whose reply was lost may still land."""
    with pytest.raises(TransactionUnknown) as caught:
        Script(*answers).land(lambda lost: numbered(1), attempts_max=2, transaction_id="k")
    assert caught.value.transaction_id == "k"
    assert "manager.outcome('k')" in str(caught.value)


def test_when_even_reading_fails_the_outcome_is_unknown() -> None:
    script = Script("reply lost")
    script.reads_fail = True
    with pytest.raises(TransactionUnknown) as caught:
        script.land(lambda lost: numbered(1))
    assert isinstance(caught.value.last_error, ConnectionError)


def test_an_unknown_append_without_a_transaction_is_known_by_its_append_id() -> None:
    script = Script("fails")
    with pytest.raises(TransactionUnknown) as caught:
        script.land(lambda lost: numbered(1), attempts_max=1)
    assert caught.value.transaction_id == f"append:{script.offered[0].append_id}@{SHARD}"


def test_an_unknown_append_is_known_by_all_its_tries_and_where_each_would_be() -> None:
    """Whichever lands late is found by that name."""
    script = Script("fails", "fails", "fails", "fails")

    def plan(lost: int) -> Plan:
        lane = f"lane/q/{lost // 2}"
        entry = Entry(lane, "lane", model.CLAIMED, sequence=1, body={"nth": max(lost, 1)})
        return Plan((entry,), (model.next_sequence(lane, "lane", 1),))

    with pytest.raises(TransactionUnknown) as caught:
        script.land(plan, attempts_max=4)
    one, again, two, three = (unit.append_id for unit in script.offered)
    assert one == again
    assert caught.value.transaction_id == f"append:{one},{two},{three}@lane/q/0,lane/q/1"


@pytest.mark.parametrize("key", ["k", "other", None])
def test_an_outcome_in_doubt_is_asked_for_by_the_attempt_that_is_decided(key: str | None) -> None:
    fact, decision = (
        Entry(SHARD, STREAM, model.CLAIMED, attempt="fact", begun=1),
        Entry("transaction/0", "k", model.COMMITTED, transaction_key="k", attempt="a", begun=5),
    )
    with pytest.raises(TransactionUnknown) as caught:
        Script("fails").land(
            lambda lost: Plan((fact, decision)), attempts_max=1, transaction_id=key
        )
    assert caught.value.attempt == ("a@5" if key == "k" else None)


def test_patience_ends_by_time_too() -> None:
    script = Script(*["conflict"] * 99)
    with pytest.raises(Busy):
        script.land(lambda lost: numbered(1), attempts_max=99)
    assert 60 <= sum(script.waits) <= 65


def test_waits_grow_and_are_drawn_with_jitter() -> None:
    script = Script(*["conflict"] * 4)
    script.land(lambda lost: numbered(1))
    assert script.waits == [0.5, 1.0, 2.0, 2.5]


def test_a_planners_error_goes_on_when_nothing_landed() -> None:
    script = Script("rival")

    def plan(lost: int) -> Any:
        if lost:
            raise TransactionAborted("somebody was faster", transaction_id="t")
        return numbered(1)

    with pytest.raises(TransactionAborted, match="faster"):
        script.land(plan)


def test_a_planners_error_gives_way_to_an_earlier_try_that_landed() -> None:
    """What stands in the way is our own late try: not an error, but the result."""
    script = Script("late")

    def plan(lost: int) -> Any:
        if script.entries():
            raise TransactionAborted("it is gone", transaction_id="t")
        return numbered(1)

    assert script.land(plan).entries == script.entries()


def test_nothing_to_do_is_no_append() -> None:
    script = Script()
    assert script.land(lambda lost: None) is None
    assert script.offered == []


def test_nothing_left_to_do_gives_the_earlier_try_that_landed() -> None:
    script = Script("late")
    landed = script.land(lambda lost: None if script.entries() else numbered(1))
    assert landed.entries == script.entries()


def test_with_nothing_left_to_do_a_try_that_may_still_land_is_unknown() -> None:
    with pytest.raises(TransactionUnknown):
        Script("fails").land(lambda lost: None if lost else numbered(1))


def test_with_nothing_left_to_do_a_try_that_has_lost_its_place_is_no_append() -> None:
    script = Script("fails")

    def plan(lost: int) -> Any:
        if not lost:
            return numbered(1)
        script.inner.append([Unit.of("rival", numbered(1, "rival").entries, ())], {})
        return None

    assert script.land(plan) is None
    assert script.words() == ["rival"]


def test_with_nothing_left_to_do_a_try_that_lands_while_it_is_looked_for_is_found() -> None:
    script = Script("fails")

    def land_late() -> None:
        script.after_read = lambda: None
        script.inner.append([script.offered[0]], {})

    def plan(lost: int) -> Any:
        if not lost:
            return numbered(1)
        script.after_read = land_late
        return None

    assert script.land(plan).entries == script.entries()


def test_the_stores_own_error_goes_on() -> None:
    with pytest.raises(StoreBusy):
        Script("locked").land(lambda lost: numbered(1))


def test_the_stores_own_error_after_a_lost_reply_is_unknown() -> None:
    with pytest.raises(TransactionUnknown) as caught:
        Script("fails", "locked").land(lambda lost: numbered(1))
    assert isinstance(caught.value.__cause__, StoreBusy)


def test_an_interrupt_is_not_swallowed() -> None:
    def plan(lost: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Script().land(plan)


def test_the_commit_says_who_did_what() -> None:
    script = Script()
    script.land(lambda lost: numbered(1), transaction_id="k", queue="orders")
    _, metadata = script.inner.commits[-1]
    said = {name: metadata[name] for name in ("operation", "transaction_id", "queue", "actor")}
    assert said == {"operation": "test", "transaction_id": "k", "queue": "orders", "actor": "me"}


def test_a_landed_append_knows_its_commit_seq() -> None:
    landed = Script().land(lambda lost: numbered(1))
    assert landed.commit_seq == landed.version * 1024 == 1024


def in_lanes(*sequences: Any) -> Any:
    """Plan an entry that takes the next number of one lane, and at the next try of another."""

    def plan(lost: int) -> Plan:
        shard, sequence = f"lane/q/{lost}", sequences[lost]
        entry = Entry(shard, STREAM, model.CLAIMED, sequence=sequence)
        return Plan((entry,), (model.next_sequence(shard, STREAM, sequence),))

    return plan


@pytest.mark.parametrize("answer", ["reply lost", "lands"])
def test_two_tries_that_both_land_are_both_ours(answer: Any) -> None:
    """Else the messages of the one are held until its lease ends, and count as delivered."""
    script = Script("later", answer)
    landed = script.land(in_lanes(1, 1))
    assert sorted(e.shard for e in landed.entries) == ["lane/q/0", "lane/q/1"]
    assert landed.version == min(e.version for e in landed.entries) == landed.commit_seq // 1024


def test_a_try_that_landed_before_the_next_one_was_planned_is_all_that_lands() -> None:
    """What the next one goes on from is what the first one did."""
    script = Script("late")
    landed = script.land_next()
    assert [e.sequence for e in landed.entries] == [1]
    assert script.words() == ["mine 0"]
    assert len(script.offered) == 1


@pytest.mark.parametrize(("answer", "unsure"), [("fails", 1), ("conflict", 1), ("rival", 0)])
def test_what_may_have_landed_and_left_with_the_history_is_unknown(
    answer: str, unsure: bool
) -> None:
    """Who was refused by the store's own count knows that nothing landed."""
    script = Script(answer)
    script.forgets = True
    if unsure:
        with pytest.raises(TransactionUnknown):
            script.land_next()
    else:
        assert [e.sequence for e in script.land_next().entries] == [2]


def test_a_try_that_has_left_for_the_archive_meanwhile_is_found_there() -> None:
    script = Script("fails")

    def read() -> None:
        script.after_read = lambda: None
        script.inner.append([script.offered[0]], {})
        mine = script.entries()
        horizon = Entry(model.FENCE, "horizon", model.HORIZON_ADVANCED, begun=9)
        script.inner.append([Unit.of("maintenance", [horizon], ())], {})
        script.inner.archive.create()
        script.inner.archive.add(mine, "2026-01-01", {})
        script.inner.remove(mine, "2026-01-01", {})

    script.after_read = read
    landed = script.land_next()
    assert (landed.version, len(script.offered), script.entries()) == (1, 1, ())


def test_what_is_said_to_have_landed_is_not_looked_for() -> None:
    """To read may fail, and what has surely landed would be in doubt."""
    script = Script("rival")

    def plan(lost: int) -> Plan:
        planned = numbered(script.next())
        script.reads_fail = lost == 1
        return planned

    assert [e.sequence for e in script.land(plan).entries] == [2]


def test_what_a_plan_lacks_goes_to_a_caller_that_cannot_read() -> None:
    lacks = NotRead(lambda: None)

    asked: list[int] = []

    def plan(lost: int) -> Plan:
        asked.append(lost)
        if len(asked) == 1:
            raise lacks
        return numbered(1)

    with pytest.raises(NotRead, match="without a lock") as caught:
        Script().land(plan)
    assert caught.value is lacks


def unreadable(missing: NotRead) -> None:
    raise StoreBusy(owner=None)


def test_what_cannot_be_read_gives_way_to_an_earlier_try_that_landed() -> None:
    script, other = Script("late"), Script("conflict")

    def plan(lost: int) -> Plan:
        asked.append(lost)
        if asked.count(1) > 1:
            pytest.fail("it was asked again, and would be for ever")
        if lost:
            raise NotRead(lambda: None)
        return numbered(1)

    asked: list[int] = []
    assert script.land(plan, read=unreadable).entries == script.entries()
    asked.clear()
    with pytest.raises(StoreBusy):
        other.land(plan, read=unreadable)


def test_a_plan_that_can_do_without_what_cannot_be_read_is_told_why_and_asked_again() -> None:
    told: list[Exception] = []

    def plan(lost: int) -> Plan:
        if not told:
            missing = NotRead(lambda: None)
            missing.without = told.append
            raise missing
        return numbered(1)

    script = Script()
    script.land(plan, read=unreadable)
    assert [type(error) for error in told] == [StoreBusy]
    assert script.words() == ["mine"]


def test_where_it_cannot_be_read_whether_a_try_may_still_land_the_outcome_is_unknown() -> None:
    script = Script("fails")

    def plan(lost: int) -> Plan:
        if not lost:
            return numbered(1)
        script.after_read = lambda: setattr(script, "reads_fail", True)
        raise TransactionAborted("it is gone", transaction_id="t")

    with pytest.raises(TransactionUnknown) as caught:
        script.land(plan)
    assert isinstance(caught.value.last_error, TransactionAborted)


def test_a_try_that_lands_after_it_was_looked_for_is_found_however_much_lands_after_it() -> None:
    script = Script("fails")
    looks = 0

    def read() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:  # before it is said again
            script.inner.append([script.offered[0]], {})
            for n in range(3):
                other = Entry("lane/q/9", "lane/9", model.CLAIMED, sequence=n)
                script.inner.append([Unit.of(f"other{n}", [other], ())], {})

    script.after_read = read
    landed = script.land(lambda lost: numbered(1))
    assert (landed.version, looks) == (1, 3)
    assert script.words() == ["mine"]


@pytest.mark.parametrize("elapsed", [0, 59.9, 60, 60.1])
def test_a_try_that_begins_in_time_may_be_followed_by_one_more_and_later_none_is(
    elapsed: float,
) -> None:
    clock = Clock()
    retries = Retries(runtime(clock, "me", RetryPolicy(9, seconds_max=60)))
    clock.advance(elapsed)
    assert retries.last is (elapsed >= 60)
    assert retries.fail() is (elapsed <= 60)


def working_on(queue_id: str | None, sequence: int = 1) -> Plan:
    """Plan an entry that expects that a queue is open, or none."""
    planned = numbered(sequence)
    expected = () if queue_id is None else (model.queue_open(queue_id),)
    return planned + Plan((), expected)


@pytest.mark.parametrize(
    ("first", "doubt", "error"),
    [
        ("q", "fails", QueueClosed),  # neither try can land any more
        (None, "fails", TransactionUnknown),  # the first one still may
        (None, "rival", QueueClosed),  # it has surely lost
    ],
)
def test_what_is_refused_because_a_queue_closes_says_so_unless_an_earlier_try_may_land(
    first: str | None, doubt: str, error: Any
) -> None:
    script = Script(doubt)

    def plan(lost: int) -> Plan:
        if not lost:
            return working_on(first)
        fence = Entry(
            model.FENCE, model.queue_stream("q"), model.QUEUE_CLOSING, queue_id="q",
            body={"name": "q"},
        )  # fmt: skip
        script.inner.append([Unit.of(f"drop{lost}", [fence], ())], {})
        return working_on("q", 2)

    with pytest.raises(error):
        script.land(plan)
    assert len(script.offered) == 2


@pytest.mark.parametrize(
    ("script", "read_before", "error"),
    [(Script(), 1, ConnectionError), (Script("fails"), 3, TransactionUnknown)],
)
def test_where_it_cannot_be_read_what_is_closed_an_earlier_try_makes_a_doubt_of_it(
    script: Script, read_before: int, error: Any
) -> None:
    fence = Entry(model.FENCE, model.queue_stream("q"), model.QUEUE_CLOSING, queue_id="q")
    script.inner.append([Unit.of("drop", [fence], ())], {})
    reads = 0

    def read() -> None:
        nonlocal reads
        reads += 1
        script.reads_fail = reads == read_before

    script.after_read = read
    with pytest.raises(error):
        script.land(lambda lost: working_on("q"))
    assert script.reads_fail


@pytest.mark.parametrize("layout", [None, model.LAYOUT, model.LAYOUT + 1])
@pytest.mark.parametrize("expects", [True, False])
def test_who_never_lands_because_the_layout_is_newer_is_told_to_use_a_newer_version(
    layout: int | None, expects: bool
) -> None:
    script = Script(*["conflict"] * 3)
    if layout is not None:
        said = Entry(model.FENCE, "layout", model.LAYOUT_CHANGED, sequence=layout)
        script.inner.append([Unit.of("upgrade", [said], ())], {})
    expected = Plan((), (model.layout_unchanged(),)) if expects else Plan()
    newer = expects and layout == model.LAYOUT + 1
    with pytest.raises(LayoutUnsupported if newer else Busy) as caught:
        script.land(lambda lost: numbered(1) + expected, attempts_max=3)
    if newer:
        assert caught.value.details["layout"] == layout
        assert f"has layout {layout}, this library writes {model.LAYOUT}" in str(caught.value)


@pytest.mark.parametrize("error", [OSError, KeyError])
def test_who_has_no_name_in_the_container_acts_as_unknown(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nameless() -> str:
        raise error("no such user")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert Runtime().actor == "unknown"
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    assert Runtime().actor == "me"
