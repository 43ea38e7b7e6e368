"""What messages carried is erased for good, on record, and everything else stays true."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.conformance.conftest import (
    SCHEMA,
    World,
    in_memory,
    numbers,
    on_delta_when_long,
    rows,
)
from tests.conformance.working import Branch
from tests.faults.injection import (
    Crash,
    Fault,
    FaultyStore,
    Injector,
    InjectorOfCall,
    Meanwhile,
    faults_of,
)
from tests.inside import client_of
from txnqueue import EraseResult, QueueManager
from txnqueue.admin import creation
from txnqueue.client.client import Client
from txnqueue.core import model, ranges
from txnqueue.errors import (
    Busy,
    InvalidInput,
    LimitExceeded,
    NotErasable,
    PayloadRemoved,
    QueueClosed,
    QueueNotFound,
    TransactionNotGiven,
    TxnQueueError,
)
from txnqueue.messages import removal
from txnqueue.messages.removal import remove
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.payload import StagedPlace, arrangement
from txnqueue.storage.payload.memory import MemoryPayload
from txnqueue.storage.store import MemoryStore

DAY = 24 * 3_600
ANNA = "key = 'anna'"
GONE = "erased messages whose payload is gone"
_KEY = re.compile(r"key = '(\w+)'")


@pytest.fixture(autouse=True)
def keys_without_spark(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Let a store without Spark understand predicates of the form ``key = 'anna'``."""

    def matching(self: MemoryPayload, _: object, payload_id: str, where: str) -> list[StagedPlace]:
        asked = _KEY.fullmatch(where)
        assert asked is not None, where
        inside: dict[str, Any] = vars(self)
        return [
            (inside["_slices"][owner, send_id], send_id, part)
            for (owner, send_id), there in inside["_sends"].items()
            if owner == payload_id
            if (part := _offsets(there.column("key").to_pylist(), asked[1]))
        ]

    monkeypatch.setattr(MemoryPayload, "matching", matching)


def _offsets(keys: Sequence[str | None], meant: str) -> tuple[tuple[int, int], ...]:
    return ranges.of_offsets(n for n, key in enumerate(keys) if key == meant)


def facts(manager: QueueManager, kind: str) -> list[Any]:
    """Find the facts of a kind."""
    entries = client_of(manager).store.journal.read([model.CATALOG]).entries
    return [entry for entry in entries if entry.kind == kind]


def proved(manager: QueueManager) -> dict[str, tuple[int, int]]:
    """Verify a store, and say what was found and expected."""
    found = manager.history.verify()
    assert found.ok, found
    return {claim.claim: (claim.found, claim.expected) for claim in found.claims}


@in_memory
def test_what_was_erased_is_not_missing_beside_what_is(world: World) -> None:
    queue, manager = world.queue(), world.manager("clerk")
    queue.send([*rows(1, 2, key="anna"), *rows(3, 4, 5, key="bert")])
    manager.erase(queue.name, ANNA, reason="request 7")
    (gone, *_), payload = queue.peek_messages(), client_of(manager).store.payload
    send_id, _, offset = gone["_message"]["id"].rpartition(":")
    assert (gone["n"], offset) == (3, "2")
    payload.erase(queue.info.payload_id, [(0, send_id, ((2, 2),))])
    (problem,) = manager.history.verify().problems
    said = f"queue {queue.name}: 2 rows of payload are there in slice 0, of 3"
    assert problem == f"{said}; the first that is not there once is {gone['_message']['id']}"


@on_delta_when_long
def test_what_was_consumed_is_erased_and_its_record_stays(world: World) -> None:
    queue = world.queue()
    sent = queue.send([*rows(1, 2, key="anna"), *rows(3, key="bert")])
    queue.receive(10).accept()
    manager = world.manager("clerk")
    done = manager.erase(queue.name, ANNA, reason="request 7")
    assert (done.erased, done.purged, done.undecided) == (2, 0, 0)
    assert done.readable_until is not None
    # Delta's time for deleted files may be shorter; maintenance leaves them for a week.
    now_ms = client_of(manager).runtime.now_ms()
    assert done.readable_until.timestamp() * 1000 > now_ms + 6.9 * 86_400_000
    (said,) = [
        row
        for row in manager.history.changes(queue=queue.name).rows()
        if row["kind"] == model.PAYLOAD_ERASING
    ]
    assert (said["count"], said["reason"]) == (2, "request 7")
    assert proved(manager)[GONE][0] >= 2
    steps = [step["step"] for step in manager.history.trace(f"{sent.send_id}:0").rows()]
    assert steps == ["sent", "claimed", "accepted", "erased"]
    other = [step["step"] for step in manager.history.trace(f"{sent.send_id}:2").rows()]
    assert other == ["sent", "claimed", "accepted"]
    again = manager.erase(queue.name, ANNA, reason="request 7")
    assert again == EraseResult(queue.name)


@on_delta_when_long
def test_what_waits_is_purged_wherever_it_stands(world: World) -> None:
    queue = world.queue("orders", dead_letter=True)
    other = world.queue("other")
    queue.send([*rows(1, 2, 3, key="anna"), *rows(4, 5, key="bert")])
    first = queue.receive(1)
    first.reject(reason="no")
    second = queue.receive(1)
    second.move(other)
    manager = world.manager("clerk")
    done = manager.erase(queue.name, ANNA, reason="r")
    assert (done.erased, done.purged) == (3, 3)
    assert numbers(world.open(queue, "c").receive(10)) == [4, 5]
    for name in (other.name, f"{queue.name}.dead"):
        assert manager.queue(name).depth() == 0
    proved(manager)


@on_delta_when_long
def test_a_dead_letter_is_erased_by_the_queue_that_it_is_in(world: World) -> None:
    queue = world.queue("orders", dead_letter=True)
    queue.send([*rows(1, key="anna"), *rows(2, key="anna")])
    queue.receive(1).reject(reason="no")
    manager = world.manager("clerk")
    done = manager.erase(f"{queue.name}.dead", ANNA, reason="r")
    assert (done.erased, done.purged) == (1, 1)
    assert numbers(queue.receive(10)) == [2]
    proved(manager)


@on_delta_when_long
def test_what_is_in_flight_refuses_and_nothing_is_changed(world: World) -> None:
    queue = world.queue()
    queue.send([*rows(1, 2, key="anna"), *rows(3, key="bert")])
    held = queue.receive(1)
    manager = world.manager("clerk")
    with pytest.raises(NotErasable) as refused:
        manager.erase(queue.name, ANNA, reason="r")
    assert (refused.value.queue, refused.value.in_flight) == (queue.name, 1)
    assert queue.depth() == 2
    held.accept()
    assert manager.erase(queue.name, ANNA, reason="r").purged == 1
    proved(manager)


@in_memory
def test_what_is_claimed_while_others_are_purged_refuses_and_says_what_was_done(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, manager = world.queue(), world.manager("clerk")
    queue.send(rows(1, 2, key="anna"))
    held: list[Any] = []

    def late(*args: Any, **named: Any) -> None:
        if not held:
            held.append(queue.receive(1))
        remove(*args, **named)

    monkeypatch.setattr("txnqueue.admin.erasure.remove", late)
    with pytest.raises(NotErasable, match="1 waiting messages were already purged") as refused:
        manager.erase(queue.name, ANNA, reason="r")
    assert (refused.value.in_flight, refused.value.purged, queue.depth()) == (1, 1, 0)
    held[0].accept()
    assert manager.erase(queue.name, ANNA, reason="r").erased == 2
    proved(manager)


def test_what_was_received_is_not_read_with_fewer_rows(world: World) -> None:
    """A DataFrame that was made before shows the files of then, until they are vacuumed."""
    queue = world.queue()
    queue.send([*rows(1, key="anna"), *rows(2, key="bert")])
    batch = queue.receive(2)
    frame = batch.df if world.has_frames else None
    batch.accept()
    world.manager("clerk").erase(queue.name, ANNA, reason="r")
    assert not world.open(queue, "late").receive(2)
    with pytest.raises(PayloadRemoved):
        batch.messages()
    if frame is not None:
        assert frame.count() == 2
        with pytest.raises(Exception, match=r"PayloadRemoved.*erased"):
            batch.df.collect()


@on_delta_when_long
def test_a_search_of_the_history_says_that_something_was_erased(world: World) -> None:
    queue = world.queue()
    queue.send([*rows(1, key="anna"), *rows(2, key="bert")])
    queue.receive(2).accept()
    manager = world.manager("clerk")
    manager.erase(queue.name, ANNA, reason="r")
    if not world.has_frames:
        return  # a search needs Spark
    with pytest.raises(PayloadRemoved, match="was erased"):
        manager.history.trace(queue=queue.name, where="n > 0")
    left = manager.history.trace(queue=queue.name, where="n > 0", partial=True).rows()
    assert len({step["message_id"] for step in left}) == 1


@in_memory
def test_what_is_not_decided_stays_until_it_cannot_be_any_more(world: World) -> None:
    queue, manager = world.queue(), world.manager("clerk")
    sender = world.manager("sender")
    with sender.transaction() as tx:
        sender.queue(queue.name).send(rows(1, key="anna"), transaction=tx)
        done = manager.erase(queue.name, ANNA, reason="r")
        assert (done.erased, done.undecided) == (0, 1)
    assert manager.erase(queue.name, ANNA, reason="r").purged == 1
    proved(manager)


def published(world: World) -> tuple[Any, Any, QueueManager]:
    """Create a queue that gets what is published to an exchange, and a clerk."""
    queue, manager = world.queue(), world.manager("clerk")
    events = manager.create_exchange(world.name("events"), "fanout", SCHEMA)
    events.bind(queue.name)
    return queue, events, manager


@in_memory
def test_what_is_being_published_to_a_queue_is_not_decided_either(world: World) -> None:
    queue, events, manager = published(world)
    publisher = world.manager("publisher")
    with publisher.transaction() as tx:
        tx.exchange(events.name).publish([*rows(1, key="anna"), *rows(2, key="bert")])
        assert manager.erase(queue.name, ANNA, reason="r").undecided == 1
    assert manager.erase(queue.name, ANNA, reason="r").purged == 1
    assert numbers(queue.receive(2)) == [2]
    proved(manager)


@in_memory
@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("call", ["find", "read", "matching"])
def test_what_is_published_during_the_search_is_erased_or_not_decided(
    world: World, call: str, nth: int
) -> None:
    queue, events, manager = published(world)
    tx = world.manager("publisher").transaction()
    tx.exchange(events.name).publish([*rows(1, key="anna"), *rows(2, key="bert")])
    injector = Meanwhile(call, nth, tx.commit)
    store: Any = FaultyStore(world.store, injector)
    clerk = QueueManager(None, "memory", store=store, runtime=world.runtime("clerk"))
    injector.arm()
    done = clerk.erase(queue.name, ANNA, reason="r")
    assert (done.erased, done.undecided) in ((1, 0), (0, 1))
    tx.commit()
    assert manager.erase(queue.name, ANNA, reason="r").erased == 1 - done.erased
    assert numbers(queue.receive(2)) == [2]
    proved(manager)


@in_memory
def test_what_was_published_and_its_history_removed_is_not_passed_over(world: World) -> None:
    queue, events, manager = published(world)
    busy = world.queue("busy")
    events.publish([*rows(1, key="anna"), *rows(2, key="bert")])
    queue.receive(2).accept()
    kept: Any = {"transaction_seconds_max": 0, "payload_retention_days": 0, "vacuum": False}
    for _ in range(4):
        busy.send(rows(3))
        busy.receive(1).accept()
        world.clock.advance(2 * DAY)
        manager.maintain(**kept, history_retention_days=0)
    payload, owner = client_of(manager).store.payload, events.info.payload_id
    assert payload.slices(owner), "vacuous: the payload is gone"
    done = manager.erase(queue.name, ANNA, reason="r")
    assert (done.erased, done.undecided) == (0, 1)
    for n in range(client_of(manager).cache.slice_width):
        busy.send(rows(n))
    world.clock.advance(2 * DAY)
    assert manager.maintain(**kept).slices
    assert not payload.slices(owner)
    assert manager.erase(queue.name, ANNA, reason="r").undecided == 0


def test_what_was_prepared_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)
    world = World(MemoryStore())  # one whose horizon passes the transaction
    queue, manager = world.queue(), world.manager("clerk")
    sender = world.manager("sender")
    tx = sender.transaction("order-1")
    sender.queue(queue.name).send(rows(1, key="anna"), transaction=tx)
    tx.prepare()
    world.clock.advance(3 * DAY)
    manager.maintain(transaction_seconds_max=0)
    store = client_of(manager).store
    (slice_,) = vars(store.payload)["_slices"].values()
    assert slice_ < model.horizon(store.journal.read([model.FENCE]).entries), "vacuous"
    assert manager.erase(queue.name, ANNA, reason="r").undecided == 1
    manager.commit("order-1")
    assert numbers(queue.receive(1)) == [1]


@in_memory
def test_what_a_branch_sent_and_rolled_back_is_erased_beside_messages_that_wait(
    world: World,
) -> None:
    queue, busy, manager = world.queue(), world.queue("busy"), world.manager("clerk")
    queue.send(rows(2, key="bert"))
    branch = Branch(world, "worker")
    branch.queue(queue).send(rows(1, key="anna"))
    branch.decide(commit=False)
    assert manager.erase(queue.name, ANNA, reason="r").undecided == 1
    for n in range(client_of(manager).cache.slice_width):
        busy.send(rows(n))
    world.clock.advance(2 * DAY)
    manager.maintain(transaction_seconds_max=0, payload_retention_days=0)
    done = manager.erase(queue.name, ANNA, reason="r")
    assert (done.erased, done.undecided) == (1, 0)
    assert numbers(queue.receive(9)) == [2] and manager.history.verify().ok


@in_memory
def test_what_duplicates_are_told_by_stays_for_the_window(world: World) -> None:
    queue = world.manager().create_queue(
        world.name("once"), SCHEMA, dead_letter=False, message_id="key", duplicate_window_seconds=60
    )
    queue.send(rows(1, key="anna"))
    queue.receive(1).accept()
    manager = world.manager("clerk")
    with pytest.raises(NotErasable, match="duplicates"):
        manager.erase(queue.name, ANNA, reason="r")
    world.clock.advance(DAY)
    assert manager.erase(queue.name, ANNA, reason="r").erased == 1
    queue.send(rows(2, key="anna"))
    assert numbers(world.open(queue, "late").receive(1)) == [2]
    proved(manager)


@in_memory
def test_what_later_messages_are_compared_with_stays_until_the_queue_has_none(world: World) -> None:
    queue = world.manager().create_queue(
        world.name("once"), SCHEMA, dead_letter=False, message_id="key", duplicate_window_seconds=60
    )
    for number, key, pause in ((1, "anna", 0), (2, "bert", 60), (3, "carl", DAY)):
        queue.send(rows(number, key=key))
        world.clock.advance(pause)
    manager = world.manager("clerk")
    until = r"3660 s after they were sent, .* before them or up to 60 s after them"
    for _ in ("anna", "bert"):
        with pytest.raises(NotErasable, match=until):
            manager.erase(queue.name, ANNA, reason="r")
        queue.receive(1).accept()
    assert queue.depth() == 1  # what was sent later is not compared with it
    assert manager.erase(queue.name, ANNA, reason="r").erased == 1
    proved(manager)


@in_memory
def test_a_clock_that_was_ahead_when_it_sent_holds_no_erasure_up(world: World) -> None:
    queue = world.manager().create_queue(
        world.name("once"), SCHEMA, dead_letter=False, message_id="key", duplicate_window_seconds=60
    )
    world.clock.advance(1_000 * DAY)
    queue.send(rows(1, key="anna"))
    world.clock.advance(-1_000 * DAY)
    queue.receive(1).accept()
    world.clock.advance(DAY)
    manager = world.manager("clerk")
    assert manager.erase(queue.name, ANNA, reason="r").erased == 1
    queue.send(rows(2, key="anna"))
    assert numbers(world.open(queue, "late").receive(1)) == [2]
    proved(manager)


@pytest.fixture
def ids_in_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids of a send are only in its payload, as those of large ones are."""
    monkeypatch.setattr(arrangement, "IDS_IN_ENTRY_MAX", 0)


def landed_late(world: World, *sent: tuple[int, str]) -> Any:
    """Send messages to a queue, consume them, and erase Anna's while others are on their way.

    The second send has the ids from 1 to 4, and was stamped within the window of the first one.
    """
    queue = world.manager().create_queue(
        world.name("once"), SCHEMA, dead_letter=False, message_id="n", duplicate_window_seconds=60
    )
    queue.send([{"n": n, "key": key} for n, key in sent])
    world.open(queue, "looked").depth()
    queue.receive(9).accept()

    def erase() -> None:
        world.clock.advance(3 * 3_600)  # the sender sleeps
        erased = world.manager("clerk").erase(queue.name, ANNA, reason="r").erased
        assert erased == [key for _, key in sent].count("anna")

    injector = Meanwhile("append", 1, erase)
    store: Any = FaultyStore(world.store, injector)
    sender = QueueManager(None, "memory", store=store, runtime=world.runtime("sender"))
    injector.arm()
    sender.queue(queue.name).send(rows(1, 2, 3, 4))
    assert injector.acted
    return queue


@in_memory
@pytest.mark.usefixtures("ids_in_payload")
@pytest.mark.parametrize(
    ("sent", "came"),
    [
        ([(1, "anna"), (2, "bert"), (2, "bert"), (3, "bert")], [1, 4]),
        ([(1, "bert"), (2, "anna"), (3, "bert")], [2, 4]),
        ([(1, "anna"), (2, "anna")], [1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("reader", ["looked", "fresh"])
def test_a_send_that_lands_late_is_compared_with_what_was_not_erased(
    world: World,
    sent: list[tuple[int, str]],
    came: list[int],
    reader: str,
) -> None:
    queue = landed_late(world, *sent)
    batch = world.open(queue, reader).receive(9)
    assert numbers(batch) == came
    assert not queue.receive(9)  # although this one knows the erased ids
    batch.release()
    assert numbers(world.open(queue, "other").receive(9)) == came
    proved(world.manager("auditor"))


@in_memory
@pytest.mark.usefixtures("ids_in_payload")
@pytest.mark.parametrize("reader", ["looked", "fresh"])
def test_a_send_that_lands_late_after_an_erasure_can_be_purged(world: World, reader: str) -> None:
    queue = landed_late(world, (1, "anna"), (2, "bert"))
    assert world.open(queue, reader).purge() == 3
    assert queue.depth() == 0
    proved(world.manager("auditor"))


@in_memory
@pytest.mark.usefixtures("ids_in_payload")
def test_who_knows_erased_ids_decides_for_those_who_do_not(world: World) -> None:
    queue = landed_late(world, (1, "anna"), (2, "bert"))
    batch = queue.receive(9)  # it has read the ids before they were erased
    assert numbers(batch) == [3, 4]
    assert not world.open(queue, "looked").receive(9)
    batch.release()
    assert numbers(world.open(queue, "fresh").receive(9)) == [3, 4]
    proved(world.manager("auditor"))


@in_memory
@pytest.mark.usefixtures("ids_in_payload")
def test_an_erasure_does_not_excuse_payload_that_nobody_erased(world: World) -> None:
    queue = landed_late(world, (1, "anna"), (2, "bert"), (3, "bert"))
    first, _ = vars(world.store.payload)["_sends"]
    world.store.payload.erase(queue.info.payload_id, [(0, first[1], ((2, 2),))])
    for call in ("receive", "purge"):
        with pytest.raises(PayloadRemoved, match=r"Only 1 of 3 .* window"):
            getattr(world.open(queue, "fresh"), call)()


@in_memory
def test_wrong_input(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, manager = world.queue(), world.manager("clerk")
    queue.send(rows(1, key="anna"))
    with pytest.raises(QueueNotFound):
        manager.erase(world.name("none"), ANNA, reason="r")
    for reason in ("", None):
        with pytest.raises(InvalidInput):
            manager.erase(queue.name, ANNA, reason=reason)  # type: ignore[arg-type]
    with (
        pytest.raises(TransactionNotGiven, match="before or after the block"),
        manager.transaction(),
    ):
        manager.erase(queue.name, ANNA, reason="r")
    monkeypatch.setattr("txnqueue.admin.erasure.RANGES_MAX", 0)
    with pytest.raises(LimitExceeded):
        manager.erase(queue.name, ANNA, reason="r")
    assert queue.depth() == 1


# ------------------------------------------------------------------------ crashes and rivals


class Scene:
    """A store in which a message waits and one was consumed, both to be erased."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.queue = world.queue()
        self.sent = self.queue.send([*rows(1, 2, key="anna"), *rows(3, key="bert")])
        self.queue.receive(1).accept()

    def clerk(self, injector: Injector) -> QueueManager:
        store: Any = FaultyStore(self.world.store, injector)
        return QueueManager(None, "memory", store=store, runtime=self.world.runtime("clerk"))

    def left(self) -> list[Any]:
        payload = self.world.store.payload
        inside: dict[str, Any] = vars(payload)
        return sorted(
            k for t in inside["_sends"].values() for k in t.column("key").to_pylist() if k
        )

    def check(self, *, done: bool) -> None:
        """Check that the store is right, whether or not the erasure has begun."""
        manager = self.world.manager("auditor")
        claims = proved(manager)
        recorded = facts(manager, model.PAYLOAD_ERASING)
        assert len(recorded) <= 1
        if done:
            assert [entry.count for entry in recorded] == [2]
            assert self.left() == ["bert"]
            assert claims[GONE] == (2, 2)
        elif not recorded:
            assert self.left() == ["anna", "anna", "bert"]


def calls_of(world: World) -> list[str]:
    scene, injector = Scene(world), Injector()
    manager = scene.clerk(injector)
    injector.arm()
    manager.erase(scene.queue.name, ANNA, reason="r")
    scene.check(done=True)
    return injector.calls


@in_memory
@pytest.mark.parametrize("finisher", ["erase", "maintain", "recover"])
def test_a_fault_at_any_call_is_made_good(world: World, finisher: str) -> None:
    calls = calls_of(World(MemoryStore()))
    assert calls.count("append") == 3  # what waits is purged, the record, the end of it
    assert "erase" in calls
    for at, call in enumerate(calls):
        for fault in faults_of(call):
            here = World(MemoryStore())
            scene, injector = Scene(here), Injector(at, fault)
            manager = scene.clerk(injector)
            injector.arm()
            with contextlib.suppress(Crash, ConnectionError, KeyboardInterrupt, TxnQueueError):
                manager.erase(scene.queue.name, ANNA, reason="r")
            scene.check(done=False)
            begun = bool(facts(here.manager("x"), model.PAYLOAD_ERASING))
            helper = here.manager("helper")
            if finisher == "erase":
                helper.erase(scene.queue.name, ANNA, reason="r")
            elif finisher == "maintain":
                helper.maintain()
            else:
                helper.recover()
            injector.flush()
            scene.check(done=begun or finisher == "erase")


@in_memory
def test_who_finishes_an_interrupted_erasure_learns_until_when_the_files_are_kept(
    world: World,
) -> None:
    scene, injector = Scene(world), InjectorOfCall("erase", 0, Fault.CRASH_BEFORE)
    manager = scene.clerk(injector)
    injector.arm()
    with pytest.raises(Crash):
        manager.erase(scene.queue.name, ANNA, reason="r")
    again = world.manager("helper").erase(scene.queue.name, ANNA, reason="r")
    assert (again.erased, again.readable_until is not None) == (0, True)
    scene.check(done=True)


@in_memory
def test_others_that_always_write_leave_the_deletion_to_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(world)

    def lost(*_: object) -> None:
        raise AppendConflict("others")

    with monkeypatch.context() as patched:
        patched.setattr(MemoryPayload, "erase", lost)
        with pytest.raises(Busy, match="recorded as erased"):
            world.manager("clerk").erase(scene.queue.name, ANNA, reason="r")
        proved(world.manager("auditor"))
        assert "erasure" in str(world.manager("keeper").maintain().skipped)
        owner = scene.queue.info.payload_id
        left = world.manager("keeper").recover().erasing
        assert list(left) == [owner] and "won every retry" in left[owner]
    assert world.manager("keeper").recover().erasing == {}
    scene.check(done=True)


@in_memory
@pytest.mark.parametrize(
    ("nth", "said"), [(1, "Before that, 1 messages were purged"), (2, "are erased, but")]
)
def test_who_is_too_busy_to_record_an_erasure_is_told_what_was_done(
    world: World, monkeypatch: pytest.MonkeyPatch, nth: int, said: str
) -> None:
    scene, land, calls = Scene(world), Client.land, list[str]()

    def busy(self: Client, plan: Any, operation: str, **rest: Any) -> Any:
        calls.append(operation)
        if operation == "erase" and calls.count(operation) == nth:
            raise Busy
        return land(self, plan, operation, **rest)

    with monkeypatch.context() as patched:
        patched.setattr(Client, "land", busy)
        with pytest.raises(Busy, match=said):
            world.manager("clerk").erase(scene.queue.name, ANNA, reason="r")
    scene.check(done=False)
    world.manager("helper").erase(scene.queue.name, ANNA, reason="r")
    scene.check(done=True)


@in_memory
def test_an_erasure_that_fails_while_it_purges_says_how_many_are_purged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, clerk, land, calls = world.queue(lanes=1), world.manager("clerk"), Client.land, [0]
    for n in range(3):
        queue.send(rows(n, key="anna"))

    def busy(self: Client, plan: Any, operation: str, **rest: Any) -> Any:
        calls[0] += operation == "purged"
        if calls[0] > 1:
            raise Busy
        return land(self, plan, operation, **rest)

    with monkeypatch.context() as patched:
        patched.setattr(removal, "REMOVALS_MAX", 2)
        patched.setattr(Client, "land", busy)
        with pytest.raises(Busy, match="2 messages were purged, and their payload still") as error:
            clerk.erase(queue.name, ANNA, reason="r")
    assert error.value.done == 2
    assert clerk.erase(queue.name, ANNA, reason="r").erased == 3


@in_memory
def test_what_was_consumed_is_erased_though_its_queue_is_being_dropped(world: World) -> None:
    queue, manager = world.queue(), world.manager("clerk")
    queue.send(rows(1, key="anna"))
    queue.receive(1).accept()
    queue.send(rows(2, key="bert"))
    tx = world.manager("holder").transaction(world.name("xid"))
    tx.queue(queue.name).receive(1)
    tx.prepare()
    assert not manager.drop_queue(queue.name).dropped
    assert manager.erase(queue.name, ANNA, reason="r").erased == 1
    manager.rollback(tx.id)
    assert manager.drop_queue(queue.name).dropped
    proved(manager)


@in_memory
def test_what_waits_in_a_queue_that_is_being_dropped_is_not_erased(world: World) -> None:
    queue, manager = world.queue(), world.manager("clerk")
    queue.send([*rows(1, key="bert"), *rows(2, key="anna")])
    tx = world.manager("holder").transaction(world.name("xid"))
    tx.queue(queue.name).receive(1)
    tx.prepare()
    assert not manager.drop_queue(queue.name).dropped
    with pytest.raises(QueueClosed, match="being dropped"):
        manager.erase(queue.name, ANNA, reason="r")
    manager.rollback(tx.id)
    assert manager.drop_queue(queue.name).dropped
    assert manager.erase(queue.name, ANNA, reason="r").erased == 1
    proved(manager)


@in_memory
def test_nothing_is_purged_elsewhere_if_a_message_waits_in_a_queue_that_is_being_dropped(
    world: World,
) -> None:
    queue, events, manager = published(world)
    closing = world.queue("closing")
    events.bind(closing.name)
    closing.send(rows(1, key="bert"))
    events.publish(rows(2, key="anna"))
    tx = world.manager("holder").transaction(world.name("xid"))
    tx.queue(closing.name).receive(1)
    tx.prepare()
    assert manager.drop_queue(closing.name).held_by
    with pytest.raises(QueueClosed, match="Nothing was changed"):
        manager.erase(queue.name, ANNA, reason="r")
    assert queue.depth() == 1
    manager.rollback(tx.id)
    assert manager.drop_queue(closing.name).dropped
    assert manager.erase(queue.name, ANNA, reason="r").purged == 1
    proved(manager)


@in_memory
@pytest.mark.parametrize("held", [True, False])
def test_a_queue_that_is_dropped_while_messages_are_purged_is_looked_at_once_more(
    world: World, *, held: bool
) -> None:
    queue, events, manager = published(world)
    other = world.queue("other")
    events.bind(other.name)
    other.send(rows(1, key="bert"))
    events.publish(rows(2, key="anna"))
    tx = world.manager("holder").transaction(world.name("xid"))
    if held:
        tx.queue(other.name).receive(1)
        tx.prepare()
    injector = Meanwhile("append", 2, lambda: manager.drop_queue(other.name))  # one was purged
    store: Any = FaultyStore(world.store, injector)
    clerk = QueueManager(None, "memory", store=store, runtime=world.runtime("clerk"))
    injector.arm()
    if held:
        with pytest.raises(
            NotErasable, match=r"being dropped.* 1 waiting messages were"
        ) as refused:
            clerk.erase(queue.name, ANNA, reason="r")
        assert (refused.value.queue, refused.value.purged) == (other.name, 1)
        assert "Nothing was changed" not in str(refused.value)
        manager.rollback(tx.id)
        assert manager.drop_queue(other.name).dropped
        assert clerk.erase(queue.name, ANNA, reason="r").erased == 1
    else:
        done = clerk.erase(queue.name, ANNA, reason="r")
        assert (done.erased, done.purged) == (1, 1)
    assert injector.acted
    proved(manager)


@in_memory
def test_a_lease_of_a_dead_consumer_is_ended_as_the_error_says(world: World) -> None:
    queue, manager = world.queue(), world.manager("clerk")
    queue.send(rows(1, key="anna"))
    held = world.open(queue, "dead").receive(1)
    world.lease_over()
    manager.recover()
    with pytest.raises(
        NotErasable, match=rf"manager.release\('{queue.name}', consumer=, reason=\)"
    ):
        manager.erase(queue.name, ANNA, reason="r")
    assert manager.release(queue.name, consumer=world.name("dead"), reason="gone") == len(held)
    assert manager.erase(queue.name, ANNA, reason="r").erased == 1
    proved(manager)


@in_memory
def test_a_table_that_cannot_be_written_keeps_no_other_from_being_erased(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [world.queue(word) for word in ("bad", "good")]
    for queue in queues:
        queue.send([*rows(1, key="anna"), *rows(2, key="bert")])
    bad, good = (queue.info.payload_id for queue in queues)
    manager, erase = world.manager("clerk"), MemoryPayload.erase
    payload = vars(client_of(manager).store.payload)

    def failing(self: MemoryPayload, owner: str, places: Sequence[StagedPlace]) -> None:
        if owner == bad:
            raise OSError("not readable")
        erase(self, owner, places)

    with monkeypatch.context() as patched:
        patched.setattr(MemoryPayload, "erase", failing)
        with pytest.raises(OSError, match="not readable"):
            manager.erase(queues[0].name, ANNA, reason="r")
        assert manager.erase(queues[1].name, ANNA, reason="r").erased == 1
        assert {owner for owner, _ in payload["_erased"]} == {good}
        queues[1].send(rows(3))
        world.manager("left").transaction("left").queue(queues[1].name).receive()
        world.lease_over()
        assert world.manager("helper").recover().aborted == ("left",)
        (skipped,) = world.manager("keeper").maintain().skipped
        assert bad in skipped
    world.manager("helper").recover()
    assert {owner for owner, _ in payload["_erased"]} == {good, bad}
    proved(manager)


@in_memory
@pytest.mark.parametrize("nth", range(1, 8))
@pytest.mark.parametrize("call", ["append", "find", "read"])
def test_a_message_that_moves_meanwhile_is_followed(world: World, call: str, nth: int) -> None:
    scene = Scene(world)
    other = world.queue("other")

    def move() -> None:
        world.open(scene.queue, "mover").move(other.name)

    injector = Meanwhile(call, nth, move)
    manager = scene.clerk(injector)
    injector.arm()
    manager.erase(scene.queue.name, ANNA, reason="r")
    scene.check(done=True)
    keys = [
        m["key"]
        for name in (scene.queue.name, other.name)
        for m in world.manager("c").queue(name).receive(9).messages()
    ]
    assert keys == ["bert"]


@in_memory
@pytest.mark.parametrize("nth", range(1, 7))
def test_a_message_that_moves_while_history_is_removed_is_followed(world: World, nth: int) -> None:
    queue, other, busy = world.queue(), world.queue("other"), world.queue("busy")
    keeper = world.manager("keeper")
    kept: Any = {"transaction_seconds_max": 0, "payload_retention_days": 0, "vacuum": False}

    def days_pass(**history: Any) -> int:
        busy.send(rows(9))
        busy.receive(1).accept()
        world.clock.advance(3 * DAY)
        return keeper.maintain(**kept, **history).forgotten

    queue.send(rows(1, key="anna"))
    queue.receive(1).accept()
    queue.send(rows(2, key="anna"))
    for _ in range(3):
        days_pass()

    def move() -> None:
        world.open(queue, "mover").move(other.name)
        assert days_pass(history_retention_days=0), "vacuous: no position was removed"

    injector = Meanwhile("version", nth, move)
    store: Any = FaultyStore(world.store, injector)
    clerk = QueueManager(None, "memory", store=store, runtime=world.runtime("clerk"))
    injector.arm()
    assert clerk.erase(queue.name, ANNA, reason="r").purged == 1
    assert not world.open(other, "late").receive(9).messages()
    proved(world.manager("auditor"))


@in_memory
def test_a_replay_says_at_once_that_something_was_erased(world: World) -> None:
    queue, manager = world.queue(), world.manager("b")
    queue.send([*rows(1, key="anna"), *rows(2, key="bert")])
    queue.receive(2).accept()
    queue.send(rows(3, key="carl"))
    queue.receive().accept()
    begun = queue.replay()
    manager.erase(queue.name, ANNA, "asked for it")
    changed = [e for e in manager.history.changes().rows() if e["kind"] == "accepted"]
    gone = changed[0]["commit_seq"]
    with pytest.raises(PayloadRemoved, match=f"after={gone}"):
        queue.replay()
    with pytest.raises(PayloadRemoved):
        begun.messages()
    assert numbers(queue.replay(after=gone)) == [3]


@on_delta_when_long
def test_a_replay_of_the_rest_goes_without_what_was_erased(world: World) -> None:
    queue, manager = world.queue(), world.manager("b")
    queue.send([*rows(1, key="anna"), *rows(2, key="bert"), *rows(3, key="anna")])
    queue.receive(3).accept()
    queue.send(rows(4, key="carl"))
    queue.receive().accept()
    manager.erase(queue.name, ANNA, "asked for it")
    with pytest.raises(PayloadRemoved, match="partial=True"):
        queue.replay()
    rest = queue.replay(partial=True)
    assert (len(rest), numbers(rest)) == (2, [2, 4])
    assert numbers(queue.replay(limit=1, partial=True)) == [2]
    with manager.transaction() as tx:
        again = tx.queue(queue.name).replay(partial=True)
        assert tx.queue(queue.name).resend(again, transaction=tx).count == 2
    with pytest.raises(InvalidInput, match="partial"):
        queue.replay(partial="yes")
