"""Clocks that differ, are set, or stand while a driver sleeps: no message and no moment is lost."""

from __future__ import annotations

import contextlib
import datetime
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import LONG
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.admin import creation
from txnqueue.batch import half_over
from txnqueue.core import model
from txnqueue.core.instants import from_then_ms, instant
from txnqueue.errors import InvalidInput, LeaseLost, QueueNotFound, TxnQueueError
from txnqueue.protocols.amqp.coordinator import CoordinatorLink
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, plain_schema, runtime

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
YEARS = 3 * 365 * DAY
UTC = datetime.timezone.utc
MICROSECOND = datetime.timedelta(microseconds=1)
SEEDS = 200 if LONG else 25


class Drivers:
    """One store in memory, a true time, and drivers whose clocks show something else."""

    def __init__(self) -> None:
        self.store, self.true = MemoryStore(), Clock()
        self.ahead: dict[str, float] = {}
        self.opened = 0

    def manager(self, name: str, ahead: float = 0.0) -> QueueManager:
        """Start a driver whose clock is ahead by some seconds, until ``ahead`` says otherwise."""
        self.ahead[name], self.opened = ahead, self.opened + 1
        given = runtime(self.true, f"{name}#{self.opened}")
        given.consumer = name
        given.now_ms = lambda: self.true.now_ms + round(self.ahead[name] * 1000)
        return QueueManager(None, "memory", store=self.store, runtime=given)

    @property
    def now(self) -> datetime.datetime:
        return instant(self.true.now_ms)


@pytest.fixture
def drivers() -> Drivers:
    return Drivers()


def numbers(found: Any) -> list[int]:
    """Read the numbers of a batch's messages, or of a report's."""
    rows = found.messages() if hasattr(found, "messages") else found.rows()
    return [message["n"] for message in rows]


def counts(snapshot: Any) -> dict[str, int]:
    (row,) = snapshot.counts().rows()
    return {name: row[name] for name in ("available", "delayed", "in_flight", "expired")}


# ------------------------------------------------------------------- at random, by a reference


class Disorder:
    """Drivers that work while their clocks are set at random, and what a user expects of them."""

    def __init__(self, seed: int) -> None:
        self.dice, self.drivers = random.Random(seed), Drivers()
        self.names = ["right", "near", "odd", "late"]
        self.managers = {name: self.drivers.manager(name, self.skew(name)) for name in self.names}
        ordered, delay = self.dice.random() < 0.3, self.dice.choice((0, 0, 30))
        settings: dict[str, Any] = {
            "lanes": self.dice.randint(1, 2),
            "lease_seconds": MINUTE,
            "ordered": ordered,
        }
        self.managers["right"].create_queue(
            "orders", "n long", dead_letter=False, redelivery_delay_seconds=delay, **settings
        )
        self.sent: set[int] = set()
        self.consumed: Counter[int] = Counter()
        self.held: list[tuple[Any, Any]] = []

    def skew(self, name: str) -> float:
        """Draw by how much a clock is wrong."""
        far = [0.0, 2 * HOUR, -2 * HOUR, DAY, -DAY, YEARS, -YEARS, -54 * 365 * DAY]
        if name == "right":
            return 0.0
        return self.dice.uniform(-60, 60) if name == "near" else self.dice.choice(far)

    def step(self) -> None:
        name = self.dice.choice(self.names)
        manager = self.managers[name]
        act = self.dice.choice(
            (self.send, self.receive, self.receive, self.in_transaction, self.end, self.end)
        )
        with contextlib.suppress(TxnQueueError):  # a lost lease or race: nothing was changed
            act(manager)
        other = self.dice.random()
        if other < 0.15:
            wrong = self.dice.choice(self.names[1:])
            self.drivers.ahead[wrong] = self.skew(wrong)
        elif other < 0.2:
            manager.maintain(transaction_seconds_max=HOUR)
        elif other < 0.25:
            manager.recover()
        elif other < 0.3:
            self.managers[name] = self.drivers.manager(name, self.drivers.ahead[name])
        self.drivers.true.advance(self.dice.choice((0, 0.001, 1, 20, 70, HOUR, DAY)))

    def send(self, manager: QueueManager) -> None:
        found = [len(self.sent) + n for n in range(self.dice.randint(1, 3))]
        manager.queue("orders").send([{"n": n} for n in found])
        self.sent.update(found)

    def receive(self, manager: QueueManager) -> None:
        self.held.append((manager.queue("orders").receive(self.dice.randint(1, 3)), None))

    def in_transaction(self, manager: QueueManager) -> None:
        tx = manager.transaction()
        self.held.append((tx.queue("orders").receive(self.dice.randint(1, 3)), tx))

    def end(self, _manager: QueueManager) -> None:
        if not self.held:
            return
        batch, tx = self.held.pop(self.dice.randrange(len(self.held)))
        mine, way = numbers(batch), self.dice.random()
        if way < 0.2:
            return  # the driver is gone
        if way < 0.3 and mine:
            batch.extend_lease(MINUTE)
            self.held.append((batch, tx))
        elif tx is not None and way < 0.8:
            tx.commit()
            self.consumed.update(mine)
        elif tx is not None:
            tx.rollback()
        elif way < 0.8:
            batch.accept()
            self.consumed.update(mine)
        else:
            batch.release()

    def check(self) -> None:
        """Check that nothing was consumed twice, is lost or stuck, and what the history says."""
        twice = [n for n, times in self.consumed.items() if times > 1]
        assert not twice
        self.drivers.true.advance(2 * MINUTE + 2 * HOUR)
        last = self.drivers.manager("last")
        queue = last.queue("orders")
        left: set[int] = set()
        for _ in range(20 * len(self.sent) + 20):
            batch = queue.receive(10, wait_seconds=3 * HOUR)
            left.update(numbers(batch))
            if not batch.accept() and not len(batch):
                break
        assert left | set(self.consumed) == self.sent and not left & set(self.consumed)
        assert last.history.verify().ok
        self.check_moments(last)

    def check_moments(self, manager: QueueManager) -> None:
        """Check that a later instant is never answered by an earlier commit, and each is one."""
        rows = manager.history.changes().rows()
        times = sorted({row["recorded_at"] for row in rows})
        asked = self.dice.sample(times, min(8, len(times)))
        asked += [at + by for at in asked for by in (-MICROSECOND, datetime.timedelta(hours=1))]
        found = [manager.history.as_of(at).commit_seq for at in sorted(asked)]
        assert found == sorted(found)
        for row in self.dice.sample(rows, 3):
            same = [r["recorded_at"] for r in rows if r["commit_seq"] == row["commit_seq"]]
            then = manager.history.as_of(row["commit_seq"])
            assert then.at_ms == max(0, from_then_ms(max(same)))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_clocks_show_nothing_is_lost_or_doubled_or_stuck(seed: int) -> None:
    disorder = Disorder(seed)
    for _ in range(40):
        disorder.step()
    disorder.check()


# ----------------------------------------------------------------------- the history by instants


def test_an_instant_is_not_rounded_to_the_next_millisecond(drivers: Drivers) -> None:
    """The end of a day is often given as 23:59:59.999999."""
    manager = drivers.manager("a")
    drivers.true.now_ms = 1_700_006_400_000
    queue = manager.create_queue("orders", "n long")
    drivers.true.advance(0.001)
    queue.send([{"n": 1}])
    history, sent_at = manager.history, drivers.now
    assert history.as_of(sent_at).messages("orders").rows()
    assert not history.as_of(sent_at - MICROSECOND).messages("orders").rows()
    assert history.as_of(sent_at + 999 * MICROSECOND).commit_seq == history.as_of().commit_seq


@pytest.mark.parametrize("at_ms", [-1, 1_700_000_000_123, 64_060_588_800_001, 253_402_300_799_999])
def test_the_instant_that_a_user_sees_is_the_one_recorded(drivers: Drivers, at_ms: int) -> None:
    manager = drivers.manager("a")
    queue = manager.create_queue("orders", "n long")
    drivers.true.now_ms = at_ms
    receipts = []
    with manager.transaction() as tx:
        queue.send([{"n": 1}], transaction=tx)
    receipts.append(tx.receipt)
    assert receipts[0] is not None and from_then_ms(receipts[0].committed_at) == at_ms
    if at_ms > 1_700_000_000_000:
        assert manager.history.as_of(receipts[0].committed_at).commit_seq == receipts[0].commit_seq


@pytest.mark.parametrize("behind", [-54 * 365 * DAY, -3 * DAY])
def test_a_clock_that_is_behind_does_not_make_today_part_of_earlier_days(
    drivers: Drivers, behind: float
) -> None:
    manager = drivers.manager("a")
    queue = manager.create_queue("orders", "n long")
    moments = []
    for n in range(10):
        queue.send([{"n": n}])
        moments.append(drivers.now)
        drivers.true.advance(DAY)
    before = [manager.history.as_of(at).commit_seq for at in moments]
    drivers.manager("behind", behind).queue("orders").send([{"n": 99}])
    drivers.manager("ahead", YEARS).queue("orders").send([{"n": 99}])
    queue.send([{"n": 100}])
    # A clock that is three days behind says of the last two days what theirs say.
    assert [manager.history.as_of(at).commit_seq for at in moments][:8] == before[:8]
    report = manager.history.report(moments[2], moments[4], verify=False)
    (found,) = [one for one in report.figures.differences if one.queue == "orders"]
    assert (found.messages_before, found.posted) == (3, 2)
    assert len(manager.history.as_of(drivers.now).messages("orders").rows()) == 13


def test_a_driver_that_slept_before_its_append_does_not_move_the_end_of_yesterday(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = drivers.manager("a")
    queue = manager.create_queue("orders", "n long")
    sleeper = drivers.manager("sleeper").queue("orders")
    append = drivers.store.journal.append
    asleep: list[bool] = []

    def slowly(*given: Any) -> Any:
        if not asleep:
            asleep.append(True)
            drivers.true.advance(12 * HOUR)
            for n in range(5):
                queue.send([{"n": n}])
        return append(*given)

    monkeypatch.setattr(drivers.store.journal, "append", slowly)
    began = drivers.now
    sleeper.send([{"n": 9}])
    evening = began + datetime.timedelta(seconds=6 * HOUR)
    assert not manager.history.as_of(evening).messages("orders").rows()


def test_a_confirmation_that_waited_does_not_move_its_commit_back(drivers: Drivers) -> None:
    manager = drivers.manager("a")
    queue = manager.create_queue("orders", "n long")
    drivers.store.tables.create("gold", plain_schema("n long"))
    with manager.transaction() as tx:
        tx.table("gold").append([{"n": 1}])
    noon = drivers.now
    drivers.true.advance(HOUR)
    queue.send([{"n": 1}])  # the confirmation of an hour ago rides along
    assert not manager.history.as_of(noon).messages("orders").rows()
    assert manager.history.as_of(drivers.now).messages("orders").rows()


def test_a_clock_that_was_ahead_once_decides_nothing_of_later_commits(drivers: Drivers) -> None:
    manager = drivers.manager("a")
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    drivers.manager("a").create_queue("others", "n long")
    queue.send([{"n": 1}], ttl_seconds=HOUR)
    queue.send([{"n": 2}], delay_seconds=HOUR)
    drivers.manager("ahead", YEARS).queue("others").send([{"n": 3}])
    queue.send([{"n": 4}])
    history = manager.history
    newest = history.as_of().commit_seq
    (row,) = [row for row in history.as_of(newest).counts().rows() if row["queue"] == "orders"]
    assert (row["available"], row["delayed"], row["expired"]) == (2, 1, 0)
    seen: list[int] = []
    manager.rehearse(lambda batch, _tx: seen.extend(numbers(batch)), "orders", as_of=newest)
    assert seen == [1, 4]
    report = history.report(verify=False)
    point = [one for one in report.figures.depths if one.queue == "orders"][-1]
    assert (point.available, point.delayed, point.expired) == (2, 1, 0)
    assert (point.at, report.figures.last.at) == (drivers.now, drivers.now)
    middle = history.report(after=newest, verify=False)
    assert middle.figures.first.at == drivers.now


def test_what_names_no_instant_is_refused_with_the_next_step(drivers: Drivers) -> None:
    manager = drivers.manager("a")
    queue = manager.create_queue("orders", "n long")

    class Unknown(datetime.tzinfo):
        def utcoffset(self, _at: datetime.datetime | None) -> None:
            return None

        def dst(self, _at: datetime.datetime | None) -> None:
            return None

        def tzname(self, _at: datetime.datetime | None) -> str:
            return "unknown"

    odd = datetime.datetime(2026, 3, 29, 2, 30, tzinfo=Unknown())
    for given in (odd, odd.replace(tzinfo=None), datetime.date(2026, 3, 29)):
        for call in (
            lambda at=given: manager.history.as_of(at),
            lambda at=given: manager.history.report(after=at),
            lambda at=given: queue.send([{"n": 1}], available_at=at),
        ):
            with pytest.raises(InvalidInput, match="a datetime with a time zone"):
                call()


def test_the_hour_that_comes_twice_is_two_instants(drivers: Drivers) -> None:
    zoneinfo = pytest.importorskip("zoneinfo")
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    first = datetime.datetime(2026, 10, 25, 2, 30, tzinfo=berlin)
    manager = drivers.manager("a")
    drivers.true.now_ms = from_then_ms(first) - 1_000
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}], available_at=first)
    queue.send([{"n": 2}], available_at=first.replace(fold=1))
    for waited, ready in ((999, 0), (1, 1), (3_599_999, 1), (1, 2)):
        drivers.true.now_ms += waited
        assert queue.depth() == ready
    assert counts(manager.history.as_of(first))["available"] == 1
    assert counts(manager.history.as_of(first.replace(fold=1)))["available"] == 2


# ------------------------------------------------------------------------------ the very instant


def test_what_ends_at_an_instant_has_ended_everywhere(drivers: Drivers) -> None:
    manager = drivers.manager("a")
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}], delay_seconds=1)
    queue.send([{"n": 2}], ttl_seconds=1)
    queue.send([{"n": 3}], delay_seconds=0)
    queue.send([{"n": 4}], ttl_seconds=0)

    def seen() -> tuple[int, int, int, dict[str, int], dict[str, int]]:
        (row,) = manager.metrics().rows()
        metrics = {name: row[name] for name in ("available", "delayed", "in_flight", "expired")}
        peeked = len(queue.peek_messages())
        return queue.depth(), peeked, row["available"], metrics, counts(manager.history.as_of())

    for shown, expected in ((0, [2, 3]), (999, [2, 3]), (1, [1, 3])):
        drivers.true.now_ms += shown
        depth, peeked, available, metrics, told = seen()
        assert depth == peeked == available == len(expected)
        assert metrics == told == counts(manager.history.as_of(drivers.now))
    assert sorted(numbers(queue.receive(9))) == [1, 3]


def test_a_delay_never_ends_before_the_instant_that_was_given(drivers: Drivers) -> None:
    manager = drivers.manager("a")
    queue = manager.create_queue("orders", "n long", delay_step_seconds=0.001)
    at = instant(drivers.true.now_ms + 1) + 100 * MICROSECOND
    queue.send([{"n": 1}], available_at=at)
    queue.send([{"n": 2, "at": at}], available_at="at")
    whole = instant(drivers.true.now_ms + 1)
    queue.send([{"n": 3, "at": whole}], available_at="at")
    drivers.true.now_ms += 1
    assert queue.depth() == 1
    drivers.true.now_ms += 1
    assert queue.depth() == 3


# ------------------------------------------------------------------------------------ duplicates


def test_an_id_of_a_clock_that_was_years_ahead_is_not_suppressed_for_years(
    drivers: Drivers,
) -> None:
    queue = drivers.manager("a").create_queue(
        "orders", "n long", dead_letter=False, message_id="n", duplicate_window_seconds=MINUTE
    )
    drivers.manager("ahead", YEARS).queue("orders").send([{"n": 1}])
    for expected in ([1], [1], [], [1]):
        batch = queue.receive(5)
        assert numbers(batch) == expected
        batch.accept()
        drivers.true.advance(DAY if len(expected) == 0 else 30 if batch else DAY)
        queue.send([{"n": 1}])


def test_clocks_within_an_hour_suppress_what_has_an_earlier_time(drivers: Drivers) -> None:
    queue = drivers.manager("a").create_queue(
        "orders", "n long", dead_letter=False, message_id="n", duplicate_window_seconds=MINUTE
    )
    drivers.manager("ahead", HOUR).queue("orders").send([{"n": 1}])
    queue.send([{"n": 1}])
    assert numbers(queue.receive(5)) == [1]


def test_a_compaction_by_a_clock_that_is_ahead_does_not_end_the_detection(
    drivers: Drivers,
) -> None:
    manager, ahead = drivers.manager("a"), drivers.manager("ahead", YEARS)
    manager.create_queue(
        "orders", "n long", dead_letter=False, message_id="n", duplicate_window_seconds=HOUR
    )
    for one, ids in ((ahead, (1, 2)), (manager, (3, 4))):
        client_of(one).log_max = 1
        for n in ids:
            one.queue("orders").send([{"n": n}])
            one.queue("orders").receive(1).accept()
        drivers.true.advance(DAY / 2)
    drivers.true.advance(-DAY / 2 + 2)
    manager.maintain(transaction_seconds_max=0)
    drivers.true.advance(2)
    manager.maintain(transaction_seconds_max=0)
    entries = drivers.store.journal.read_all().entries
    assert sum(e.kind == model.COMPACTED for e in entries) and manager.history.verify().ok
    fresh = drivers.manager("fresh").queue("orders")
    fresh.send([{"n": 3}])
    assert len(fresh.receive(3)) == 0


# ---------------------------------------------------------------------------------------- leases


@pytest.mark.parametrize("ahead", [-YEARS, -20 * MINUTE, 20 * MINUTE, YEARS])
def test_who_saw_a_lease_begin_leaves_it_alone_for_its_whole_length(
    drivers: Drivers, ahead: float
) -> None:
    """However far apart the clocks are of who holds the messages and of who would take them."""
    queue = drivers.manager("holds").create_queue("orders", "n long", dead_letter=False)
    other = drivers.manager("other", ahead).queue("orders")
    queue.send([{"n": 1}])
    other.depth()
    batch = queue.receive(1, lease_seconds=MINUTE)
    for _ in range(3):
        assert len(other.receive(1)) == 0
        drivers.true.advance(50)
        assert len(other.receive(1)) == 0
        batch.extend_lease(MINUTE)
    assert len(other.receive(1)) == 0
    drivers.true.advance(61)
    assert len(other.receive(1)) == 1


def test_a_clock_that_is_set_back_makes_no_lease_endless(drivers: Drivers) -> None:
    queue = drivers.manager("holds").create_queue("orders", "n long", dead_letter=False)
    other = drivers.manager("other", YEARS).queue("orders")
    queue.send([{"n": 1}])
    other.depth()
    queue.receive(1, lease_seconds=MINUTE)
    assert len(other.receive(1)) == 0
    drivers.ahead["other"] = 0
    drivers.true.advance(30)
    assert len(other.receive(1)) == 0
    drivers.true.advance(61)
    assert len(other.receive(1)) == 1


@pytest.mark.parametrize(
    ("left", "over"), [(60, False), (31, False), (30, True), (0, True), (-5, True), (3_660, True)]
)
def test_a_lease_that_seems_longer_than_it_is_needs_an_extension(left: float, over: bool) -> None:
    """The clock was set back: to others the lease may be about to end."""
    until = instant(1_700_000_000_000)
    assert half_over(until, 60.0, 1_700_000_000_000 - round(left * 1000)) is over


def test_a_transaction_of_amqp_times_out_whatever_the_clock_is_set_to() -> None:
    ended: list[object] = []
    late = SimpleNamespace(deadline=100.0, roll_back=ended.append)
    link: Any = SimpleNamespace(transactions={1: late}, in_doubt=[])
    CoordinatorLink.tick(link, 99.9)
    assert not ended
    CoordinatorLink.tick(link, 100.0)
    assert len(ended) == 1


def test_who_waits_while_the_clock_is_set_back_gets_what_a_lease_held(drivers: Drivers) -> None:
    manager = drivers.manager("a")
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    drivers.manager("gone").queue("orders").receive(1, lease_seconds=MINUTE)
    began, pauses = drivers.now, []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        drivers.true.advance(seconds)
        drivers.ahead["a"] = -YEARS

    client_of(manager).runtime.sleep = sleep
    assert numbers(queue.receive(1, wait_seconds=HOUR)) == [1]
    assert pauses and drivers.now - began < datetime.timedelta(seconds=3 * MINUTE)


def test_what_there_was_before_the_first_commit_is_said_so(drivers: Drivers) -> None:
    manager = drivers.manager("a")
    manager.create_queue("orders", "n long")
    with pytest.raises(QueueNotFound, match="first commit is later"):
        manager.rehearse(lambda _batch, _tx: None, "orders", as_of=instant(5))


# ----------------------------------------------------------------------------------- maintenance


def test_a_clock_at_the_end_of_all_days_maintains_and_is_corrected(drivers: Drivers) -> None:
    keeper = drivers.manager("keeper")
    queue = keeper.create_queue("orders", "n long", dead_letter=False)
    last = datetime.datetime(9999, 12, 31, 12, tzinfo=UTC).timestamp()
    late = drivers.manager("late", last - drivers.true.now_ms / 1000)
    for n in range(2):
        queue.send([{"n": n}])
        queue.receive(1).accept()
        drivers.true.advance(HOUR)
        done = late.maintain(
            transaction_seconds_max=0, vacuum=False, history_retention_days=n * 7 or None
        )
        assert done.horizon > 0
    queue.send([{"n": 2}])
    assert keeper.maintain(transaction_seconds_max=0, vacuum=False).horizon > 0
    assert keeper.history.verify().ok


@pytest.mark.parametrize(
    "kept",
    [
        {"payload_retention_days": 2, "history_retention_days": 2},
        {"payload_retention_days": 2},
    ],
)
def test_what_proves_that_a_slow_clock_named_a_wrong_day_may_have_left_the_journal(
    drivers: Drivers, kept: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of today are archived under a day of years ago: they are kept as others are."""
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)
    keeper, slow = drivers.manager("keeper"), drivers.manager("slow", -YEARS)
    queue = keeper.create_queue("orders", "n long", dead_letter=False)

    def work(by: Any, number: int) -> None:
        by.queue("orders").send([{"n": number}])
        by.queue("orders").receive(1).accept()

    drivers.true.advance(DAY)  # the catalog's entries stay, and would prove it
    queue.send([{"n": 0}])
    first = keeper.history.as_of().commit_seq
    queue.receive(1).accept()
    work(slow, 1)
    drivers.true.advance(2 * HOUR)
    work(slow, 2)
    slow.maintain(transaction_seconds_max=HOUR, payload_retention_days=30_000)
    removed = 0
    for half_day in range(16):
        work(keeper, 10 + half_day)
        done = keeper.maintain(transaction_seconds_max=HOUR, **kept)
        removed += done.forgotten if "history_retention_days" in kept else done.slices
        if half_day < 4:
            assert numbers(keeper.history.as_of(first).messages("orders")) == [0]
        drivers.true.advance(DAY / 2)
    assert removed, "vacuous: nothing is ever removed"
    assert keeper.history.verify().ok


def test_an_opening_whose_clock_is_behind_takes_over_from_an_earlier_one(drivers: Drivers) -> None:
    """Its predecessor seems to have opened the id later, at an instant that has not come yet."""
    queue = drivers.manager("keeper").create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}, {"n": 2}])
    early = drivers.manager("pay", HOUR).queue("orders")
    taken = early.receive(1)
    drivers.true.advance(10)
    late = drivers.manager("pay").queue("orders")
    assert numbers(late.receive(1)) == [1]
    with pytest.raises(LeaseLost):
        taken.accept()


def test_an_opening_whose_clock_is_behind_waits_at_most_for_a_lease(drivers: Drivers) -> None:
    queue = drivers.manager("keeper").create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    drivers.manager("pay", HOUR).queue("orders").receive(1, lease_seconds=2 * HOUR)
    drivers.ahead["pay"] = 0.0  # as on the successor's machine
    late = drivers.manager("pay").queue("orders")
    drivers.true.advance(HOUR + 1)
    with pytest.raises(LeaseLost):
        late.receive(1)
    drivers.true.advance(2 * HOUR)
    assert numbers(late.receive(1)) == [1]


def test_what_a_commit_keeps_is_kept_though_its_lease_began_by_a_clock_that_was_ahead(
    drivers: Drivers,
) -> None:
    """The deadline by that clock seemed later than that of the commit, and was over before."""
    fast, right = drivers.manager("fast", HOUR), drivers.manager("right")
    queue = right.create_queue("q", "n long", lease_seconds=300, dead_letter=False)
    queue.send([{"n": 1}])
    tx = fast.transaction("t")
    fast.queue("q").receive(1, transaction=tx).keep()
    tx.prepare()
    queue.send([{"n": 2}])  # its clock is recorded
    drivers.true.advance(200)
    right.commit("t")
    drivers.true.advance(200)
    assert numbers(right.queue("q").receive(9)) == [2]
    drivers.true.advance(101)
    assert numbers(drivers.manager("third").queue("q").receive(9)) == [1]


def test_what_a_commit_keeps_is_kept_by_the_clock_that_was_set_back_since(drivers: Drivers) -> None:
    ahead, other = drivers.manager("ahead", YEARS), drivers.manager("other")
    queue = other.create_queue("q", "n long", lease_seconds=300, dead_letter=False)
    queue.send([{"n": 1}])
    tx = ahead.transaction("t")
    batch = ahead.queue("q").receive(1, transaction=tx)
    batch.keep()
    drivers.ahead["ahead"] = 0.0
    tx.commit()
    assert batch.held_until == drivers.now + datetime.timedelta(seconds=300)
    drivers.true.advance(200)
    assert len(queue.receive(9)) == 0
    drivers.true.advance(200)
    assert numbers(queue.receive(9)) == [1]
