"""Payload leaves the disk, and what it costs is what there is to give back."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tests.faults.injection import Crash, Fault, FaultyStore, Injector, Meanwhile
from tests.inside import client_of
from txnqueue import Queue, QueueManager
from txnqueue.admin import creation, inventory
from txnqueue.core import model
from txnqueue.core.planning import Plan
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import catalog
from txnqueue.errors import PayloadRemoved, QueueError
from txnqueue.reports.snapshot import schema_of
from txnqueue.storage.payload import Send
from txnqueue.storage.payload.memory import MemoryPayload
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, runtime

DAY = 24 * 3_600
SCHEMA = "n long"
KEPT: Any = {"transaction_seconds_max": 0, "payload_retention_days": 2}


CALLS = ("slices", "drop", "vacuum", "removed_files", "files_kept_seconds", "orphans", "rows")


class CountingPayload(MemoryPayload):
    """Counts what a maintenance asks of the tables, which keep files for a week as Delta's do.

    How old files are is told by the clock of the storage, which is right.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.vacuumed: list[str] = []
        self.clock, self.delete_seconds, self.hidden = clock, 0.0, False
        self.old_files: list[tuple[str, int]] = []

    def drop(self, payload_id: str, slices: Any) -> None:
        super().drop(payload_id, slices)
        self._deleted(payload_id)

    def erase(self, payload_id: str, places: Any) -> None:
        super().erase(payload_id, places)
        self._deleted(payload_id)

    def _deleted(self, payload_id: str) -> None:
        self.clock.advance(self.delete_seconds)
        self.old_files.append((payload_id, self.clock.now_ms))

    def vacuum(self, payload_id: str, seconds_min: float, *, full: bool = False) -> str | None:
        self.vacuumed.append(payload_id)
        since_ms = self.clock.now_ms - self.files_kept_seconds(payload_id) * 1000
        self.old_files = [
            (owner, at) for owner, at in self.old_files if owner != payload_id or at > since_ms
        ]
        return None

    def removed_files(self, payload_id: str) -> int | None:
        if self.hidden:
            return None
        return sum(owner == payload_id for owner, _ in self.old_files)

    def files_kept_seconds(self, payload_id: str) -> float:
        return 7.0 * DAY

    def __getattribute__(self, name: str) -> Any:
        if name in CALLS:
            self.calls[name] += 1
        return super().__getattribute__(name)


class Place:
    """A store in memory whose keepers come every day."""

    def __init__(self) -> None:
        self.store, self.clock, self.made = MemoryStore(), Clock(), 0
        self.payload = self.store.payload = CountingPayload(self.clock)
        self.busy = self.manager("busy").create_queue("busy", SCHEMA, dead_letter=False)

    def manager(self, name: str = "m", injector: Injector | None = None) -> QueueManager:
        self.made += 1
        given = runtime(self.clock, f"{name}#{self.made}")
        store: Any = self.store if injector is None else FaultyStore(self.store, injector)
        return QueueManager(None, "memory", store=store, runtime=given)

    def queue(self, name: str, messages: int = 1) -> Any:
        """Create a queue, and send to it."""
        queue = self.manager("creator").create_queue(name, SCHEMA, dead_letter=False)
        if messages:
            queue.send([{"n": n} for n in range(messages)])
        return queue

    def work(self) -> None:
        """Let a message come and go, so that the horizon can advance."""
        self.busy.send([{"n": 0}])
        self.busy.receive(1).accept()

    def keep(self, days: float = 1, keeper: QueueManager | None = None, **more: Any) -> Any:
        """Let days pass, and maintain."""
        self.clock.advance(days * DAY)
        return (keeper or self.manager("keeper")).maintain(**{**KEPT, **more})

    def cost(self, **more: Any) -> Counter[str]:
        """Count what one maintenance asks of the payload tables."""
        self.payload.calls.clear()
        self.keep(0, **more)
        return Counter(self.payload.calls)

    def facts(self, kind: str) -> list[Any]:
        entries = self.store.journal.read([model.CATALOG]).entries
        return [entry for entry in entries if entry.kind == kind]

    def removed(self) -> set[str]:
        return {entry.body["payload"] for entry in self.facts(model.PAYLOAD_REMOVED)}


@pytest.fixture(autouse=True)
def one_lock_at_a_time() -> None:
    """Here one thread plays several clients."""


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)
    return Place()


def _always(plan: Plan, lost: int) -> Plan:
    return plan


def settle(place: Place, days: int = 16) -> None:
    """Let everything go that can."""
    for _ in range(days):
        place.work()
        place.keep()


def made_and_dropped(place: Place, like: QueueInfo, count: int) -> None:
    """Let there have been queues, by entries as ``create_queue`` and ``drop_queue`` write them."""
    client = client_of(place.manager("creator"))
    for first in range(0, count, 250):
        plans = []
        for n in range(first, first + 250):
            info = replace(like, name=f"gone{n}", queue_id=f"gone{n}-1", payload_id=f"gone{n}-1")
            place.payload.create(info.payload_id, schema_of(info))
            plans.append(catalog.create(info, 1, client.stamp()))
            for number, kind in enumerate((model.QUEUE_CLOSING, model.QUEUE_DROPPED), 1):
                newest = replace(info, sequence=number + 1)
                plans.append(catalog.write(kind, newest, client.stamp()))
                plans.append(catalog.fence(kind, info, number, client.stamp()))
        entries = tuple(entry for plan in plans for entry in plan.entries)
        client.land(partial(_always, Plan(entries)), "create and drop")


def test_a_thousand_dropped_queues_add_no_calls(place: Place) -> None:
    live = [place.queue(f"live{n}") for n in range(3)]
    settle(place)
    place.work()
    few = place.cost()
    assert few["slices"] == 1, "the one queue that was worked on is asked"
    made_and_dropped(place, live[0].info, 1_000)
    settle(place, 10)
    assert len(place.removed()) == 1_000
    place.work()
    assert place.cost() == few
    assert [queue.depth() for queue in live] == [1, 1, 1]


def test_a_store_in_which_nothing_happened_is_asked_nothing(place: Place) -> None:
    for n in range(20):
        place.queue(f"live{n}")
    place.work()
    place.keep()
    place.keep()
    assert place.cost() == Counter()
    assert place.cost(vacuum="full")["slices"] == 21, "unless it is told to look everywhere"


def test_a_maintenance_reads_the_journal_once_and_the_marks_of_the_archive_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle(place, 4)
    place.work()
    journal, archive = place.store.journal, place.store.journal.archive
    read_all, read = journal.read_all, archive.read
    since: list[int] = []
    kinds: list[Any] = []

    def reading(after: int = -1, upto: int | None = None) -> Any:
        since.append(after)
        return read_all(after, upto)

    def reading_archive(**asked: Any) -> Any:
        kinds.append(asked.get("kinds"))
        return read(**asked)

    monkeypatch.setattr(journal, "read_all", reading)
    monkeypatch.setattr(archive, "read", reading_archive)
    done = place.keep(0.5, history_retention_days=2)
    assert done.slices and done.forgotten, "vacuous"
    assert since[0] == -1 and len(since) == 3 and min(since[1:]) > 0, "what is new, and no more"
    assert kinds.count([model.HORIZON_ADVANCED]) == 1


def test_the_payload_of_a_dropped_queue_leaves_the_disk_and_that_is_on_record(
    place: Place,
) -> None:
    queue, auditor = place.queue("gone", 3), place.manager("auditor")
    owner = queue.info.payload_id
    taken = queue.receive(1)
    assert place.manager("x").drop_queue("gone", reason="no longer wanted").dropped
    place.work()
    assert place.keep(0.5).slices == 0 and place.payload.slices(owner), "within its retention"
    assert len(taken.messages()) == 1
    place.work()
    place.keep(3)
    assert not place.payload.slices(owner) and not place.removed(), "files stay for a while"
    with pytest.raises(PayloadRemoved):
        taken.messages()
    assert place.keep(3).removed == ()
    assert place.keep(8, dry_run=True).removed == () == place.keep(0, vacuum=False).removed
    assert place.keep(0).removed == (owner,)
    assert place.removed() == {owner}
    assert place.keep(0).removed == ()
    (said,) = [r for r in auditor.history.changes().rows() if r["kind"] == model.PAYLOAD_REMOVED]
    assert said["queue"] == "gone"
    assert auditor.history.verify().ok
    again = place.queue("gone", 2)
    assert again.info.payload_id != owner and again.depth() == 2


@pytest.mark.parametrize("days", [1, 2])
def test_payload_is_kept_for_whole_days_whatever_hour_its_entries_left(
    place: Place, days: int
) -> None:
    day_ms = DAY * 1000
    place.clock.now_ms = place.clock.now_ms // day_ms * day_ms + day_ms - 60_000
    queue = place.queue("orders")
    queue.receive(1).accept()
    place.work()
    assert place.keep(0, payload_retention_days=days).archived, "vacuous"
    place.work()
    place.keep(days - 1 / 24, payload_retention_days=days)
    assert place.payload.slices(queue.info.payload_id)
    place.work()
    place.keep(1 / 12, payload_retention_days=days)
    assert not place.payload.slices(queue.info.payload_id)


def test_a_dry_run_drops_nothing_of_what_a_run_would_keep(place: Place) -> None:
    queue = place.queue("orders", 2)
    queue.receive(1).accept()
    place.clock.advance(DAY)
    queue.receive(1).accept()
    queue.send([{"n": 2}])
    queue.receive(1).accept()
    within: dict[str, Any] = {"transaction_seconds_max": DAY / 2}
    place.keep(0, **within)  # its compaction says what may leave later
    place.work()
    place.clock.advance(DAY * 3 / 4)
    found = place.keep(0, **within, dry_run=True)
    done = place.keep(0, **within)
    assert found.archived and done.archived, "vacuous"
    assert found.slices == done.slices == 0
    place.work()
    assert place.keep(dry_run=True, payload_retention_days=0).slices


def test_files_go_of_what_was_deleted_a_week_ago_though_more_was_since(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingPayload, "files_kept_seconds", lambda *given: 9.0 * DAY)
    vacuumed = []
    for _ in range(20):
        place.work()
        place.payload.calls.clear()
        assert place.keep().skipped == ()
        vacuumed.append(place.payload.calls["vacuum"])
    assert vacuumed[:7] == [0] * 7 and vacuumed[11:] == [1] * 9
    for _ in range(20):
        place.keep()
        vacuumed.append(place.payload.calls["vacuum"])
        place.payload.calls.clear()
    assert vacuumed[-8:] == [0] * 8, "until all is gone that was deleted"


def test_an_exchange_that_was_dropped_gives_its_payload_back(place: Place) -> None:
    queue, manager = place.queue("bound", 0), place.manager("creator")
    events = manager.create_exchange("events", "fanout", SCHEMA)
    owner = events.info.payload_id
    events.bind("bound")
    events.publish([{"n": 7}])
    assert events.drop().dropped
    settle(place)
    assert owner not in place.removed(), "a message stands in a queue"
    assert [m["n"] for m in queue.receive(1).messages()] == [7]
    queue.receive(1)
    place.manager("x").queue("bound").purge()
    place.manager("x").release("bound", consumer=client_of(queue).consumer.id, reason="done")
    place.manager("x").queue("bound").purge()
    settle(place)
    assert owner in place.removed() and not place.payload.slices(owner)


@pytest.mark.parametrize("how", ["moved", "prepared"])
def test_what_is_named_elsewhere_is_kept_however_long(place: Place, how: str) -> None:
    queue, other = place.queue("gone", 2), place.queue("other", 0)
    owner = queue.info.payload_id
    if how == "moved":
        queue.move("other", limit=1)
        assert place.manager("x").drop_queue("gone").dropped
    else:
        tx = place.manager("p").transaction("xid")
        assert tx.queue("gone").move("other", limit=1) == 1
        tx.prepare()
        assert not place.manager("x").drop_queue("gone").dropped
    settle(place)
    assert not place.removed() and place.payload.slices(owner)
    if how == "prepared":
        place.manager("x").commit("xid")
        assert place.manager("x").drop_queue("gone").dropped
        settle(place)
    fresh = place.manager("fresh").queue("other")
    assert [m["n"] for m in fresh.receive(5).messages()] == [0]
    assert not place.removed()
    place.clock.advance(DAY)
    place.manager("x").queue("other").receive(5).accept()
    settle(place)
    assert place.removed() == {owner}
    assert other.depth() == 0 and place.manager("y").history.verify().ok


def test_who_knows_nothing_of_a_drop_and_sends_late_leaves_nothing_behind(place: Place) -> None:
    queue = place.queue("gone")
    owner = queue.info.payload_id
    late, later = (place.manager(name).queue("gone") for name in ("late", "later"))
    assert place.manager("x").drop_queue("gone").dropped
    settle(place, 9)
    assert not place.removed()
    with pytest.raises(QueueError):
        late.send([{"n": 1}])
    assert place.payload.slices(owner), "vacuous: it staged nothing"
    settle(place, 3)
    assert not place.removed()
    settle(place, 20)
    assert place.removed() == {owner} and not place.payload.slices(owner)
    with pytest.raises(QueueError):
        later.send([{"n": 2}])
    settle(place, 9)
    assert place.payload.slices(owner), "what is empty for ever is not asked"
    place.keep(0, vacuum="full")
    assert not place.payload.slices(owner), "unless it is told to look everywhere"


def test_rows_that_were_never_decided_are_found_within_days(place: Place) -> None:
    queue = place.queue("quiet", 0)
    settle(place, 3)
    place.manager("crashed").transaction().queue("quiet").send([{"n": 1}])
    owner = queue.info.payload_id
    assert place.payload.slices(owner)
    settle(place, inventory.COMPLETE_DAYS + 1)
    assert not place.payload.slices(owner)


def test_tables_that_cannot_be_listed_keep_nothing_else_from_being_done(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = place.queue("orders")
    queue.receive(1).accept()
    place.manager("crashed").transaction().queue("orders").send([{"n": 1}])
    place.work()

    def failing(*_: object) -> dict[str, int]:
        raise OSError("a table of somebody else")

    with monkeypatch.context() as patched:
        patched.setattr(CountingPayload, "orphans", failing)
        for _ in range(4):
            place.work()
            (skipped,) = place.keep().skipped
            assert "somebody else" in skipped
    assert not place.payload.slices(queue.info.payload_id)
    assert place.keep(0).skipped == () and place.payload.calls["orphans"]
    place.payload.calls.clear()
    assert place.keep().skipped == () and not place.payload.calls["orphans"]


def test_rows_staged_for_a_change_of_a_table_that_was_never_decided_go_with_their_files(
    place: Place,
) -> None:
    """Nothing but the table itself tells of them."""
    owner, vacuumed = "change-0123456789ab", place.payload.vacuumed
    schema = schema_of(place.busy.info)
    settle(place, 2)
    place.payload.create(owner, schema)
    place.payload.stage(Send(owner, 3, "staged", schema, 1, None), [{"n": 1}])
    settle(place, inventory.COMPLETE_DAYS + 1)
    assert not place.payload.slices(owner) and not vacuumed.count(owner)
    settle(place, inventory.FILES_DAYS + 1)
    assert vacuumed.count(owner) == 1
    settle(place, 3)
    assert vacuumed.count(owner) == 1


@pytest.mark.parametrize("off_days", [-30, 30])
def test_a_keeper_whose_clock_is_wrong_hides_nothing_from_the_others(
    place: Place, off_days: int
) -> None:
    wrong, queue = place.manager("wrong"), place.queue("gone", 2)
    owner = queue.info.payload_id
    client_of(wrong).runtime.now_ms = lambda: place.clock.now_ms + off_days * DAY * 1000
    assert place.manager("x").drop_queue("gone").dropped
    quiet = place.queue("quiet", 0)
    for _ in range(4):
        place.work()
        place.keep(keeper=wrong)
        place.manager("crashed").transaction().queue("quiet").send([{"n": 1}])
        place.work()
        place.keep()
    settle(place, 16 + max(0, off_days))  # what left under a day to come is kept from then on
    assert place.removed() == {owner}
    assert not place.payload.slices(quiet.info.payload_id)
    assert place.manager("y").history.verify().ok


def busy_and_dropped(place: Place, days: int) -> Any:
    """Leave a queue of which some was consumed, and two that were dropped, some days ago.

    After three days their rows are deleted, and nine days after that their files.

    Returns:
        One of the two, as somebody sees it who knows nothing of its drop.
    """
    place.queue("live", 3).receive(2).accept()
    for name in ("gone", "gone-too"):
        place.queue(name, 2)
    late = place.manager("late").queue("gone")
    late.depth()
    for name in ("gone", "gone-too"):
        assert place.manager("x").drop_queue(name).dropped
    place.work()
    place.keep()
    place.work()
    if days > 3:
        place.keep(3)
        days -= 3
    place.clock.advance(days * DAY)
    return late


def ends_well(place: Place, what: str) -> None:
    """All that can go goes in the end, and what stands is there."""
    settle(place, 12)
    facts = Counter(entry.body["name"] for entry in place.facts(model.PAYLOAD_REMOVED))
    assert facts == Counter(["gone", "gone-too"]), what
    assert not any(place.payload.slices(owner) for owner in place.removed()), what
    fresh = place.manager("fresh")
    assert 2 in [m["n"] for m in fresh.queue("live").peek_messages()], what
    assert fresh.history.verify().ok, what
    place.work()
    assert place.cost()["slices"] == 1, what


@pytest.mark.parametrize("days", [3, 12])
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.REPLY_LOST])
def test_a_maintenance_may_end_at_any_call(
    days: int, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)
    calls: list[str] = []
    for at in itertools.count():
        place, injector = Place(), Injector(at, fault)
        busy_and_dropped(place, days)
        keeper = place.manager("A", injector)
        keeper.list_queues()
        injector.arm()
        with contextlib.suppress(Crash, ConnectionError):
            keeper.maintain(**KEPT)
        if len(injector.calls) <= at:
            break
        calls.append(injector.calls[at])
        ends_well(place, f"{fault.value} at call {at}, {calls[-1]}")
    assert {"slices", "drop", "payload_files"} & set(calls) and calls.count("append") >= 2


@pytest.mark.parametrize("days", [3, 12])
@pytest.mark.parametrize("act", ["maintain", "send late"])
def test_others_act_before_any_call_of_a_maintenance(
    days: int, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)

    def meanwhile(place: Place, late: Any) -> None:
        if act == "maintain":
            place.keep(0)
            return
        place.manager("open").transaction().queue("live").send([{"n": 9}])
        with pytest.raises(QueueError):
            late.send([{"n": 1}])

    for call in ("read", "read_all", "append", "slices", "drop", "payload_files", "orphans"):
        for nth in itertools.count(1):
            place = Place()
            late = busy_and_dropped(place, days)
            injector = Meanwhile(call, nth, partial(meanwhile, place, late))
            keeper = place.manager("A", injector)
            keeper.list_queues()
            injector.arm()
            keeper.maintain(**KEPT)
            if not injector.acted:
                break
            settle(place, 10)
            if act == "send late":  # behind the fact that nothing is left, maybe
                place.work()
                place.keep(vacuum="full")
            ends_well(place, f"{act} before the {nth}th {call}")


def erased_from(
    place: Place,
    queue: Queue,
    offset: int,
    monkeypatch: pytest.MonkeyPatch,
    clerk: QueueManager | None = None,
) -> list[str]:
    """Erase a message of the only send to a queue; the list gets the owners that are vacuumed."""
    owned = queue.info.payload_id
    (send_id,) = (send for owner, send in vars(place.payload)["_sends"] if owner == owned)
    number = vars(place.payload)["_slices"][owned, send_id]
    found = [(number, send_id, ((offset, offset),))]
    monkeypatch.setattr(CountingPayload, "matching", lambda *_: found)
    clerk = clerk or place.manager("clerk")
    assert clerk.erase(queue.name, "any", reason="r").erased == 1
    return place.payload.vacuumed


def test_the_files_of_what_was_erased_are_vacuumed_once_a_week_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = place.queue("people", 3)
    queue.receive(3).accept()
    place.work()
    place.keep()
    vacuumed = erased_from(place, queue, 1, monkeypatch)
    after: list[int] = []
    for _ in range(20):
        place.work()
        place.keep(1, payload_retention_days=30)
        after.append(vacuumed.count(queue.info.payload_id))
    assert after[5] == 0
    assert after[8] == after[-1] == 1
    assert place.manager("auditor").history.verify().ok


def test_the_files_of_what_was_erased_are_vacuumed_though_nothing_can_be_archived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A transaction that has held messages since the first commits keeps the horizon below all."""
    place = Place()
    place.queue("held")
    worker = place.manager("worker")
    batch = worker.queue("held").receive(1, transaction=worker.transaction("for weeks"))
    queue = place.queue("people")
    queue.receive(1).accept()
    vacuumed = erased_from(place, queue, 0, monkeypatch)
    for day in range(1, 9):
        batch.extend_lease(7 * DAY)
        assert place.keep().horizon == -1
        assert vacuumed.count(queue.info.payload_id) == max(0, day - 6), day


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("behind", ["who erases", "who maintains once", "nobody"])
def test_files_of_what_was_erased_go_though_a_clock_is_behind(
    place: Place, monkeypatch: pytest.MonkeyPatch, behind: str, *, hidden: bool
) -> None:
    """Less than a day where the files cannot be listed; however much where they can be."""
    days = 0.9 if hidden else 8
    place.payload.hidden = hidden
    queue = place.queue("people")
    queue.receive(1).accept()
    for _ in range(3):
        place.work()
        place.keep()
    late = Clock()
    late.now_ms = place.clock.now_ms - round(days * DAY * 1000)
    clerk = QueueManager(None, "memory", store=place.store, runtime=runtime(late, "late#1"))
    erased_from(place, queue, 0, monkeypatch, clerk if behind == "who erases" else None)
    place.keep(0)
    place.keep(0.5)
    if behind == "who maintains once":
        late.now_ms = place.clock.now_ms - round(days * DAY * 1000)
        place.work()
        clerk.maintain(transaction_seconds_max=0)
    owner = queue.info.payload_id
    assert owner in [one for one, _ in place.payload.old_files], "vacuous"
    for _ in range(18):
        place.work()
        place.keep()
    assert owner not in [one for one, _ in place.payload.old_files]
    place.payload.vacuumed.clear()
    for _ in range(10):
        place.work()
        place.keep()
    assert owner not in place.payload.vacuumed, "it is not searched for ever"


@pytest.mark.parametrize("hidden", [False, True])
def test_files_of_rows_whose_deletion_takes_long_go_a_week_after_its_end(
    place: Place, *, hidden: bool
) -> None:
    place.payload.delete_seconds, place.payload.hidden = 30.0, hidden
    queue = place.queue("once", 2)
    queue.receive(2).accept()
    for _ in range(30):
        place.work()
        place.keep(payload_retention_days=0)
        place.payload.delete_seconds = 1.0
        assert place.payload.calls["vacuum"] or not place.payload.vacuumed
    assert queue.info.payload_id in place.payload.vacuumed, "vacuous"
    assert queue.info.payload_id not in [one for one, _ in place.payload.old_files]


def test_a_store_with_thirty_commits_a_day_gives_payload_back_within_days() -> None:
    """As many days as a slice is filled in, after those that payload is kept for."""
    place = Place()
    oldest = []
    for day in range(14):
        for _ in range(10):
            place.work()  # three commits
        place.keep()
        slices = place.payload.slices(place.busy.info.payload_id)
        width = client_of(place.manager("asking")).cache.slice_width
        oldest.append((day, min(slices) * width, place.store.journal.version()))
    for _, first, newest in oldest[8:]:
        assert newest - first <= 9 * 31  # two days of retention, and two slices that go together
    assert oldest[-1][1] > 0
