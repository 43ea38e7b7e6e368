"""What a process does for much of one thing grows with it, not with its square.

Work is counted in lines that the library executes, so that the machine does not matter. The
journal in memory, which looks at all entries of a shard where Delta looks at few, does not count.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from tests.inside import client_of
from txnqueue.client.archive import Past, of_messages
from txnqueue.core import model, ranges
from txnqueue.core.model import Condition, Entry
from txnqueue.core.planning import Plan
from txnqueue.manager import QueueManager
from txnqueue.messages.charges import Charges
from txnqueue.protocols.dtx import Connection, Xid
from txnqueue.reports import trace
from txnqueue.reports.ledger import ledgers
from txnqueue.storage.store import MemoryStore
from txnqueue.storage.tables import Change
from txnqueue.testing import Clock, memory_manager, plain_schema

Act = Callable[[], object]
MORE = 4
GROWTH_MAX = 1.2
"""So much more than in proportion the work may grow."""
_NOT_COUNTED = ("storage/journal/memory.py", "storage/payload")


def steps(act: Act) -> int:
    """Count the lines of the library that a call executes, and those of generated methods."""
    count = 0

    def step(_frame: FrameType, _event: str, _arg: object) -> Any:
        nonlocal count
        count += 1
        return step

    def begin(frame: FrameType, _event: str, _arg: object) -> Any:
        file = frame.f_code.co_filename
        mine = "/txnqueue/" in file and not any(one in file for one in _NOT_COUNTED)
        return step if mine or file == "<string>" else None

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


class Plant:
    """A store in memory with a queue."""

    def __init__(self, **settings: Any) -> None:
        self.clock, self.store = Clock(), MemoryStore()
        self.manager = self.another()
        self.queue = self.manager.create_queue("q", "n long", **settings)

    def another(self, name: str = "m") -> QueueManager:
        return memory_manager(self.store, self.clock, name)

    def sent(self, count: int) -> list[str]:
        """Send messages at once, and name them."""
        sent = self.queue.send([{"n": n} for n in range(count)])
        return [f"{sent.send_id}:{n}" for n in range(count)]

    def sent_apart(self, count: int) -> list[str]:
        """Send messages one by one, and name them."""
        with self.manager.transaction() as tx:
            sends = [tx.queue("q").send([{"n": n}]) for n in range(count)]
        return [f"{send.send_id}:0" for send in sends]

    def scattered(self, count: int) -> list[str]:
        """Leave every other of some messages waiting and the others in flight."""
        named = self.sent(2 * count)
        batch = self.queue.receive(2 * count, transaction=None)
        batch.release(matching=named[::2], transaction=None)
        return named[::2]


def scattered_messages_taken_and_settled(n: int) -> Act:
    plant = Plant()
    named = plant.scattered(n)

    def act() -> None:
        batch = plant.queue.receive(n, transaction=None)
        batch.accept(matching=named[::2], transaction=None)
        batch.release(transaction=None)
        plant.queue.purge()

    return act


def a_client_that_reads_scattered_messages(n: int) -> Act:
    plant = Plant()
    scattered_messages_taken_and_settled_in(plant, n)
    return lambda: plant.another().metrics()


def a_verification_of_scattered_messages(n: int) -> Act:
    plant = Plant()
    scattered_messages_taken_and_settled_in(plant, n)
    return plant.manager.history.verify


def scattered_messages_taken_and_settled_in(plant: Plant, n: int) -> None:
    named = plant.scattered(n)
    batch = plant.queue.receive(n, transaction=None)
    batch.accept(matching=named[::3], transaction=None)
    batch.release(matching=named[1::3], transaction=None)


def a_verification_of_what_was_purged_in_flight(n: int) -> Act:
    plant = Plant()
    plant.sent(n)
    for _ in range(n):
        plant.queue.receive(1, transaction=None)
    plant.queue.purge()
    return plant.manager.history.verify


def messages_rejected_one_by_one(n: int) -> Act:
    plant = Plant()
    named = plant.sent(2 * n)

    def act() -> None:
        with plant.manager.transaction() as tx:
            batch = tx.queue("q").receive(2 * n)
            for one in named[::2]:
                batch.reject(matching=[one], reason=f"{one} is bad", transaction=tx)

    return act


def messages_of_many_sends_rejected_one_by_one(n: int) -> Act:
    plant = Plant()
    named = plant.sent_apart(n)

    def act() -> None:
        with plant.manager.transaction() as tx:
            batch = tx.queue("q").receive(n)
            for one in named:
                batch.reject(matching=[one], reason=f"{one} is bad", transaction=tx)

    return act


def one_call_with_many_reasons(n: int) -> Act:
    plant = Plant()
    named = [{"_message": {"id": one}, "why": f"{one} is bad"} for one in plant.sent_apart(n)]

    def act() -> None:
        with plant.manager.transaction() as tx:
            batch = tx.queue("q").receive(n)
            batch.reject(matching=named, reason_column="why", transaction=tx)

    return act


def the_same_outside_a_transaction(n: int) -> Act:
    plant = Plant()
    named = [{"_message": {"id": one}, "why": f"{one} is bad"} for one in plant.sent_apart(n)]
    batch = plant.queue.receive(n, transaction=None)
    return lambda: batch.reject(matching=named, reason_column="why", transaction=None)


def many_leases_settled_together(n: int) -> Act:
    plant = Plant()
    plant.sent(n)
    batches = [plant.queue.receive(1, transaction=None) for _ in range(n)]

    def act() -> None:
        with plant.manager.transaction() as tx:
            for batch in batches:
                batch.accept(transaction=tx)

    return act


def many_leases_taken_over_in_order(n: int) -> Act:
    plant = Plant(ordered=True)
    plant.sent(2 * n)
    for _ in range(n):
        plant.queue.receive(1, transaction=None)
    plant.clock.advance(1_000)
    return lambda: plant.another().queue("q").receive(2 * n, transaction=None)


def a_receive_beside_many_branches(n: int) -> Act:
    plant = Plant(lanes=4)
    plant.sent(8 * n)
    for number in range(n):
        channel = Connection(plant.manager).channel()
        channel.select()
        channel.start(Xid.of(1, b"g", number.to_bytes(4, "big")))
        channel.queue("q").receive(1)
    queue = plant.another("other").queue("q")
    queue.depth()
    return lambda: queue.receive(1, transaction=None)


def a_receive_beside_abandoned_transactions(n: int) -> Act:
    plant = Plant()
    plant.sent(2 * n)
    for number in range(n):
        plant.manager.transaction(f"job-{number}").queue("q").receive(1)
        with plant.manager.transaction(f"other-{number}") as tx:
            tx.queue("q").send([{"n": 1}])
    queue = plant.another("other").queue("q")
    queue.depth()
    plant.clock.advance(1_000)
    return lambda: queue.receive(1, transaction=None)


def scattered_messages_moved_inside(n: int) -> Act:
    plant = Plant()
    for name in ("there", "elsewhere"):
        plant.manager.create_queue(name, "n long", lanes=2)
    named = plant.sent(2 * n)
    batch = plant.queue.receive(2 * n, transaction=None)
    batch.move("there", matching=named[::2], transaction=None)

    def act() -> None:
        with plant.manager.transaction() as tx:
            tx.queue("there").move("elsewhere", transaction=tx)

    return act


def scattered_duplicates(n: int) -> Act:
    plant = Plant(message_id="n", duplicate_window_seconds=3600)
    plant.queue.send([{"n": number if number % 2 else 0} for number in range(2 * n)])

    def act() -> None:
        while batch := plant.queue.receive(n // 10, transaction=None):
            batch.accept(transaction=None)

    return act


def confirmations_that_ride(n: int) -> Act:
    plant = Plant()
    owner: dict[str, Any] = {"transaction_key": "k", "attempt": "a", "begun": 1}
    facts = [
        Entry(model.table_shard("t"), "t", model.CHANGE_APPLIED, body={"change": ["a", k]}, **owner)
        for k in range(n)
    ]
    client_of(plant.manager).add_confirmations(facts)
    return lambda: plant.queue.send([{"n": 1}])


def two_plans_of_much(n: int) -> Act:
    entries = tuple(Entry("backlog", f"lane/{k}", model.POSTED) for k in range(n))
    expected = tuple(Condition(f"lane/{k}", "lane/0", sequence_from=1) for k in range(n))
    return lambda: Plan(entries).excludes(Plan((), expected))


def a_run_that_passes_over_much(n: int) -> Act:
    plant = Plant()
    plant.scattered(n)
    client = client_of(plant.manager)
    (fold,) = client.states.folds([plant.queue.info])
    with client.lock:
        lane = fold.lanes[0]
        charges = Charges(ordered=False)
        charges._passed = {
            lane.available[0].position.position_id: tuple((k, k) for k in range(0, 4 * n, 4))
        }

    def act() -> None:
        with client.lock:
            list(charges.wanted(lane, lane.available))

    return act


def the_ledger_of_what_was_settled_one_by_one(n: int) -> Act:
    plant = Plant()
    named = plant.sent_apart(n)
    batch = plant.queue.receive(n, transaction=None)
    for one in named:
        batch.accept(matching=[one], transaction=None)
    return lambda: ledgers(Past(client_of(plant.manager).store), [plant.queue.info])


@pytest.mark.parametrize(
    ("make", "n"),
    [
        (scattered_messages_taken_and_settled, 100),
        (a_client_that_reads_scattered_messages, 100),
        (a_verification_of_scattered_messages, 100),
        (a_verification_of_what_was_purged_in_flight, 60),
        (messages_rejected_one_by_one, 40),
        (messages_of_many_sends_rejected_one_by_one, 40),
        (one_call_with_many_reasons, 40),
        (the_same_outside_a_transaction, 40),
        (many_leases_settled_together, 100),
        (many_leases_taken_over_in_order, 60),
        (a_receive_beside_many_branches, 30),
        (a_receive_beside_abandoned_transactions, 60),
        (scattered_messages_moved_inside, 40),
        (scattered_duplicates, 100),
        (confirmations_that_ride, 60),
        (two_plans_of_much, 60),
        (a_run_that_passes_over_much, 60),
        (the_ledger_of_what_was_settled_one_by_one, 60),
    ],
)
def test_work_grows_in_proportion(make: Callable[[int], Act], n: int) -> None:
    few, many = steps(make(n)), steps(make(MORE * n))
    print(f"{make.__name__}: {few} steps for {n}, {many} for {MORE * n}")
    assert many <= GROWTH_MAX * MORE * few


@pytest.mark.parametrize("calculate", [ranges.intersection, ranges.difference, ranges.added])
def test_one_range_costs_the_same_beside_many(calculate: Callable[..., object]) -> None:
    def act(count: int) -> Act:
        many = tuple((2 * k, 2 * k) for k in range(count))
        one = ((count, count + 3),)
        return lambda: (calculate(many, one), ranges.difference(one, many))

    assert steps(act(10_000)) <= steps(act(100)) + 5


def test_the_catalog_is_read_once_for_all_messages_of_a_trace() -> None:
    plant = Plant()
    for number in range(100):
        plant.manager.create_queue(f"q{number}", "n long", dead_letter=False)
    named = plant.sent(20)
    messages = [(one.rpartition(":")[0], number) for number, one in enumerate(named)]
    entries = of_messages(Past(plant.store), messages)
    alone = steps(lambda: trace.TraceIndex(entries).steps_of(messages[0]))
    together = steps(lambda: [*map(trace.TraceIndex(entries).steps_of, messages)])
    assert together <= 1.5 * alone


def test_each_waiting_change_is_read_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others wait for the same table."""
    plant, count = Plant(), 30
    plant.store.tables.create("t", plain_schema("n long"))
    monkeypatch.setattr("txnqueue.transactions.commit.follow", lambda *_: False)
    for number in range(count):
        with plant.manager.transaction() as tx:
            tx.table("t").append([{"n": number}])
    read = 0
    real = Change.from_json

    def counted(data: Any) -> Change:
        nonlocal read
        read += 1
        return real(data)

    monkeypatch.setattr(Change, "from_json", counted)
    assert plant.another().recover().waiting == ()
    assert plant.store.tables.rows("t").num_rows == count
    assert read <= 3 * count


def test_a_service_that_only_moves_in_order_remembers_no_claim_that_is_over() -> None:
    plant = Plant(ordered=True)
    plant.manager.create_queue("next", plain_schema("n long"), dead_letter=False)
    for _ in range(20):
        plant.sent(1)
        with plant.manager.transaction() as tx:
            assert tx.queue("q").move("next") == 1
    consumer = client_of(plant.manager).consumer
    assert max(len(consumer._asked), len(consumer._given)) <= 2


def test_a_batch_remembers_nothing_of_transactions_that_were_rolled_back() -> None:
    plant = Plant()
    plant.sent(3)
    batch = plant.queue.receive(3, transaction=None)
    for _ in range(20):
        with plant.manager.transaction() as tx:
            batch.accept(matching=batch.messages()[:1], transaction=tx)
            tx.rollback()
    assert not batch._account._said
    assert batch.accept() == 3
