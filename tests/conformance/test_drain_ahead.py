"""A drain with ``ahead=1``: a batch is committed while the next one is handled."""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, rows
from tests.faults.behind import ORDERS, AtTheEnd
from tests.inside import client_of
from txnqueue import Status
from txnqueue.core import model
from txnqueue.errors import HandlerFailed, InvalidInput

pytestmark = in_memory


@pytest.fixture(params=[*ORDERS, "by a thread"])
def order(request: pytest.FixtureRequest) -> str:
    """When the append behind a handler lands: before it, after it, or whenever it does."""
    return str(request.param)


def opened(world: World, queue: Any, order: str, client: str = "b") -> Any:
    """Open a queue by another manager whose appends behind a handler land in an order."""
    found = world.open(queue, client)
    if order in ORDERS:
        client_of(found).runtime.new_background = ORDERS[order]
    return found


def deliveries(world: World, queue: Any) -> dict[int, int]:
    """Tell which messages a new consumer is given, and how often they were delivered before."""
    consumer, found = world.open(queue, "the next one"), dict[int, int]()
    while len(batch := consumer.receive()):  # what failed comes alone
        found |= {m["n"]: m["_message"]["delivery_count"] for m in batch.messages()}
    return found


def test_a_handler_runs_before_the_batch_before_is_committed(world: World) -> None:
    orders, before = world.queue(lanes=1), []
    orders.send(rows(*range(5)))
    reader, run_id = world.manager("reader"), world.name("run")

    def handler(batch: Any, tx: Any) -> None:
        number = int(tx.id.rpartition("/")[2])
        before.append([reader.outcome(f"{run_id}/{n}").status for n in range(number)])

    consumer = opened(world, orders, "at the end")
    assert consumer.drain(handler, batch_size=1, run_id=run_id, ahead=1).messages == 5
    done, open_ = Status.COMMITTED, Status.UNDECIDED
    assert before == [[], [done], [done, open_], [done, done, open_], [done, done, done, open_]]


def test_a_drain_ahead_costs_one_append_a_batch(world: World, order: str) -> None:
    orders, appends = world.queue(lanes=1), []
    orders.send(rows(*range(8)))
    consumer = opened(world, orders, order)
    world.store.journal.step = lambda name: appends.append(name) if "starts" in name else None
    assert consumer.drain(lambda batch, tx: None, batch_size=1, ahead=1).batches == 8
    world.store.journal.step = lambda name: None
    assert len(appends) == 8 + 2, "the first claim, and the one behind the second handler"


def test_every_message_is_handled_once_and_committed_in_turn(world: World, order: str) -> None:
    orders, invoices, seen = world.queue(lanes=2), world.queue("invoices"), list[int]()
    orders.send(rows(*range(20)))
    run_id, reported = world.name("run"), list[int]()

    def handler(batch: Any, tx: Any) -> None:
        seen.extend(numbers(batch))
        tx.queue(invoices.name).send(batch.messages())

    consumer = opened(world, orders, order)
    result = consumer.drain(handler, batch_size=3, run_id=run_id, on_batch=reported.append, ahead=1)
    assert (result.messages, result.errors, result.finished) == (20, 0, True)
    assert sorted(seen) == list(range(20)) == sorted(numbers(invoices.receive()))
    assert sum(reported) == 20 and len(reported) == result.batches
    assert (orders.depth(), orders.in_flight()) == (0, 0)
    committed = [
        entry.stream
        for entry in world.store.journal.read_all().entries
        if entry.kind == model.COMMITTED and entry.stream.startswith(f"{run_id}/")
    ]
    assert committed == [f"{run_id}/{n}" for n in [*range(result.batches), "end"]]
    assert consumer.drain(handler, run_id=run_id, ahead=1).already_finished


def test_what_is_sent_meanwhile_is_consumed_until_the_queue_is_empty(
    world: World, order: str
) -> None:
    orders = world.queue(lanes=1)
    orders.send(rows(1, 2, 3))

    def handler(batch: Any, tx: Any) -> None:
        for n in numbers(batch):
            if n < 10:
                tx.queue(orders.name).send(rows(n + 10))

    consumer = opened(world, orders, order)
    result = consumer.drain(handler, batch_size=1, until="empty", ahead=1)
    assert (result.messages, orders.depth(), orders.in_flight()) == (6, 0, 0)


def test_a_batch_that_fails_takes_neither_neighbour_with_it(world: World, order: str) -> None:
    orders, handled = world.queue(lanes=1), list[int]()
    orders.send(rows(*range(6)))

    def handler(batch: Any, tx: Any) -> None:
        handled.extend(numbers(batch))
        if numbers(batch) == [2] and handled.count(2) == 1:
            raise ValueError("once")

    counts: dict[int, int] = {}

    def looking(batch: Any, tx: Any) -> None:
        counts.update({m["n"]: m["_message"]["delivery_count"] for m in batch.messages()})
        handler(batch, tx)

    result = opened(world, orders, order).drain(looking, batch_size=1, ahead=1)
    assert (result.messages, result.errors, result.finished) == (6, 1, True)
    assert sorted(handled) == [0, 1, 2, 2, 3, 4, 5], "what was claimed ahead was not begun"
    assert counts == {0: 0, 1: 0, 2: 1, 3: 0, 4: 0, 5: 0}
    assert (orders.depth(), orders.in_flight()) == (0, 0)


def test_after_a_mistake_of_the_job_nothing_is_held(world: World, order: str) -> None:
    orders = world.queue(lanes=1)
    orders.send(rows(*range(6)))

    def handler(batch: Any, tx: Any) -> None:
        if numbers(batch) == [2]:
            raise NameError("mistaken")

    with pytest.raises(HandlerFailed) as caught:
        opened(world, orders, order).drain(handler, batch_size=1, ahead=1)
    assert (caught.value.result.messages, orders.in_flight()) == (2, 0)
    assert deliveries(world, orders) == {2: 0, 3: 0, 4: 0, 5: 0}


def test_what_was_handled_after_a_batch_that_is_not_committed_is_given_back(world: World) -> None:
    """A number that is left out would be taken for one that is free."""
    orders, run_id = world.queue(lanes=1), world.name("run")
    orders.send(rows(*range(6)))
    refused: list[Any] = []
    handled: list[int] = []

    def handler(batch: Any, tx: Any) -> None:
        handled.extend(numbers(batch))
        if tx.id == f"{run_id}/2" and not refused:
            refused.append(tx.id)
            world.lease_over()  # then anybody may abort the one before, and does
            world.manager("operator").rollback(f"{run_id}/1", "gone")

    consumer = opened(world, orders, "at the end")
    result = consumer.drain(handler, batch_size=1, run_id=run_id, ahead=1)
    assert (result.messages, result.errors, result.finished, refused) == (
        6,
        0,
        True,
        [f"{run_id}/2"],
    )
    assert sorted(handled) == [0, 1, 1, 2, 2, 3, 4, 5]
    outcomes = [world.manager().outcome(f"{run_id}/{n}").status for n in range(7)]
    assert outcomes == [Status.COMMITTED] * 6 + [Status.UNDECIDED]
    proof = world.manager().history.verify()
    assert proof.ok, proof


def test_two_drivers_of_one_run_consume_everything_once(world: World, order: str) -> None:
    orders, invoices, run_id = world.queue(lanes=1), world.queue("invoices"), world.name("run")
    orders.send(rows(*range(9)))
    came: list[Any] = []
    asleep: list[str] = []

    def handler(batch: Any, tx: Any) -> None:
        tx.queue(invoices.name).send(batch.messages())
        if tx.id == f"{run_id}/2" and not asleep:
            asleep.append(tx.id)
            world.lease_over()
            other = opened(world, orders, order, "c")
            came.append(other.drain(handler, batch_size=1, run_id=run_id, max_messages=3, ahead=1))

    consumer = opened(world, orders, order)
    result = consumer.drain(handler, batch_size=1, run_id=run_id, until="empty", ahead=1)
    assert came and result.messages + came[0].messages == 9
    assert sorted(numbers(invoices.receive())) == list(range(9))
    outcomes = [world.manager().outcome(f"{run_id}/{n}").status for n in range(10)]
    assert outcomes == [Status.COMMITTED] * 9 + [Status.UNDECIDED]


def test_bounds_count_what_is_in_hand(world: World, order: str) -> None:
    orders = world.queue(lanes=1)
    orders.send(rows(*range(12)))
    consumer = opened(world, orders, order)
    result = consumer.drain(lambda batch, tx: None, batch_size=2, max_messages=7, ahead=1)
    assert (result.messages, result.batches, result.finished) == (7, 4, False)
    result = consumer.drain(lambda batch, tx: None, batch_size=1, max_batches=3, ahead=1)
    assert (result.messages, result.batches) == (3, 3)
    assert (orders.depth(), orders.in_flight()) == (2, 0)


@pytest.mark.parametrize("by", ["stopped", "max_seconds"])
def test_what_was_claimed_ahead_is_not_begun_after_the_end(
    world: World, order: str, by: str
) -> None:
    orders, handled = world.queue(lanes=1), list[int]()
    orders.send(rows(*range(6)))

    def handler(batch: Any, tx: Any) -> None:
        handled.extend(numbers(batch))
        if len(handled) == 3:
            world.clock.advance(40)

    ending: dict[str, Any] = {"max_seconds": 30}
    if by == "stopped":
        ending = {"stopped": lambda: len(handled) >= 3}
    result = opened(world, orders, order).drain(handler, batch_size=1, ahead=1, **ending)
    assert (handled, result.messages, result.finished) == ([0, 1, 2], 3, False)
    assert orders.in_flight() == 0
    assert deliveries(world, orders) == {3: 0, 4: 0, 5: 0}


def test_an_interrupted_handler_leaves_the_batch_before_committed(world: World, order: str) -> None:
    orders = world.queue(lanes=1)
    orders.send(rows(*range(6)))

    def handler(batch: Any, tx: Any) -> None:
        if numbers(batch) == [2]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened(world, orders, order).drain(handler, batch_size=1, ahead=1)
    assert orders.in_flight() == 0
    assert deliveries(world, orders) == {2: 1, 3: 0, 4: 0, 5: 0}


class Impatient(AtTheEnd):
    """Whoever waits for it is interrupted once."""

    def submit(self, act: Any) -> Any:
        begun = super().submit(act)
        result = begun.result

        def interrupted() -> Any:
            begun.result = result
            raise KeyboardInterrupt

        begun.result = interrupted
        return begun


def test_who_is_interrupted_while_it_waits_leaves_nothing_behind(world: World) -> None:
    orders = world.queue(lanes=1)
    orders.send(rows(*range(6)))
    consumer = world.open(orders, "b")
    client_of(consumer).runtime.new_background = Impatient
    with pytest.raises(KeyboardInterrupt):
        consumer.drain(lambda batch, tx: None, batch_size=1, ahead=1)
    assert orders.in_flight() == 0
    assert deliveries(world, orders) == {1: 1, 2: 0, 3: 0, 4: 0, 5: 0}


def test_a_report_that_raises_gives_back_what_is_in_hand(world: World, order: str) -> None:
    orders, reported = world.queue(lanes=1), list[int]()
    orders.send(rows(*range(6)))

    def report(count: int) -> None:
        reported.append(count)
        if len(reported) == 2:
            raise StopIteration

    with pytest.raises(StopIteration):
        opened(world, orders, order).drain(
            lambda batch, tx: None, batch_size=1, on_batch=report, ahead=1
        )
    assert orders.in_flight() == 0
    assert deliveries(world, orders) == {2: 0, 3: 0, 4: 0, 5: 0}


def test_a_failing_row_ends_alone_in_the_dead_letter_queue(world: World, order: str) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=3, lanes=2)
    orders.send(rows(*range(30)))

    def handler(batch: Any, tx: Any) -> None:
        if 17 in numbers(batch):
            raise ValueError("row 17")

    result = opened(world, orders, order).drain(handler, batch_size=4, ahead=1)
    assert (result.messages, result.finished, str(result.last_error)) == (29, True, "row 17")
    dead = world.manager().queue(f"{orders.name}.dead")
    assert numbers(dead.peek_messages()) == [17]


def test_what_was_claimed_ahead_is_held_for_a_whole_lease(world: World) -> None:
    orders, taken = world.queue(lanes=1), list[int]()
    orders.send(rows(*range(4)))

    def handler(batch: Any, tx: Any) -> None:
        world.clock.advance(200)  # of 300; and the one after this was claimed at the beginning
        if numbers(batch) > [1]:
            taken.extend(numbers(world.open(orders, "greedy").receive(1)))

    result = opened(world, orders, "at once").drain(handler, batch_size=1, ahead=1)
    assert (result.messages, result.errors, result.last_error, taken) == (4, 0, None, [])


def test_what_others_took_meanwhile_is_not_handled(world: World) -> None:
    orders, handled, taken = world.queue(lanes=1), list[int](), list[Any]()
    orders.send(rows(*range(6)))

    def handler(batch: Any, tx: Any) -> None:
        handled.extend(numbers(batch))
        if numbers(batch) == [2]:
            with batch.heartbeat(lease_seconds=3_000, every_seconds=0.01) as beat:
                while not beat.beats:
                    threading.Event().wait(0.01)
                world.lease_over()
                taken.append(world.open(orders, "c").receive(1))

    result = opened(world, orders, "at once").drain(handler, batch_size=1, ahead=1)
    assert numbers(taken[0]) == [3]
    assert taken[0].accept() == 1
    assert (handled, result.messages, result.errors) == ([0, 1, 2, 4, 5], 5, 0)
    assert (orders.depth(), orders.in_flight()) == (0, 0)


def test_a_run_that_goes_on_does_not_hold_the_horizon_back(world: World, order: str) -> None:
    orders = world.queue(lanes=1)
    orders.send(rows(*range(12)))
    keeper, horizons = world.manager("keeper"), []

    def on_batch(count: int) -> None:
        world.clock.advance(50)
        horizons.append(keeper.maintain(transaction_seconds_max=200, vacuum=False).horizon)

    done = opened(world, orders, order).drain(
        lambda batch, tx: None,
        batch_size=1,
        run_id=world.name("run"),
        on_batch=on_batch,
        ahead=1,
    )
    assert (done.messages, done.batches, done.last_error) == (12, 12, None)
    assert len(set(horizons)) > 5, horizons


@pytest.mark.parametrize(
    "act",
    [
        lambda tx: tx.table("lake/gold"),
        lambda tx: tx.enlist("billing", sqlite3.connect(":memory:"), last=True),
        lambda tx: tx.auxiliary("billing", sqlite3.connect(":memory:")),
        lambda tx: tx.commit(),
        lambda tx: tx.prepare(),
    ],
    ids=["table", "enlist", "auxiliary", "commit", "prepare"],
)
def test_what_the_next_handler_could_not_see_is_refused(world: World, act: Any) -> None:
    orders = world.queue()
    orders.send(rows(1, 2))
    with pytest.raises(HandlerFailed, match="ahead=0") as caught:
        orders.drain(lambda batch, tx: act(tx), batch_size=1, ahead=1)
    assert isinstance(caught.value.__cause__, InvalidInput)
    assert orders.in_flight() == 0
    assert deliveries(world, orders) == {1: 0, 2: 0}


def test_a_batch_takes_no_more_work_once_its_handler_has_returned(world: World) -> None:
    orders, kept, errors = world.queue(lanes=1), list[Any](), list[str]()
    orders.send(rows(*range(4)))

    def handler(batch: Any, tx: Any) -> None:
        for earlier in kept:
            with pytest.raises(Exception, match=r"no more work|committed") as caught:
                tx_of_before = earlier[1]
                tx_of_before.queue(orders.name).send(rows(9))
            errors.append(type(caught.value).__name__)
        kept[:] = [(batch, tx)]

    consumer = opened(world, orders, "at the end")
    assert consumer.drain(handler, batch_size=1, ahead=1).messages == 4
    assert errors == ["TransactionFinished"] * 3 and orders.depth() == 0


@pytest.mark.parametrize("ahead", [2, -1, True, 0.5, "1", None])
def test_a_drain_is_at_most_one_batch_ahead(world: World, ahead: Any) -> None:
    with pytest.raises(InvalidInput, match="ahead="):
        world.queue().drain(lambda batch, tx: None, ahead=ahead)


def test_a_drain_of_an_ordered_queue_is_not_ahead(world: World) -> None:
    orders = world.queue(ordered=True)
    with pytest.raises(InvalidInput, match="ordered"):
        orders.drain(lambda batch, tx: None, ahead=1)
    assert orders.drain(lambda batch, tx: None, ahead=0).finished


def test_only_some_messages_and_those_in_memory_are_consumed_ahead(
    world: World, order: str
) -> None:
    orders, seen = world.queue(lanes=1), list[int]()
    orders.send(rows(*range(6)))
    consumer = opened(world, orders, order)
    consumer.send(rows(*range(6, 10)), durable=False)
    result = consumer.drain(
        lambda batch, tx: seen.extend(numbers(batch)), batch_size=1, until="empty", ahead=1
    )
    assert (result.messages, sorted(seen), consumer.depth()) == (10, list(range(10)), 0)


def test_a_lease_that_is_over_gives_a_drain_nothing_of_its_own(world: World) -> None:
    orders, handled = world.queue(lanes=1), list[int]()
    orders.send(rows(*range(6)))

    def handler(batch: Any, tx: Any) -> None:
        handled.extend(numbers(batch))
        world.lease_over()

    for name in ORDERS:
        consumer = opened(world, orders, name)
        result = consumer.drain(handler, batch_size=1, until="empty", ahead=1)
        assert (result.messages, result.last_error, handled) == (6, None, list(range(6)))
        handled.clear()
        orders.send(rows(*range(6)))


@pytest.mark.parametrize("ahead", [0, 1])
def test_dead_letters_that_a_handler_finds_are_counted(world: World, ahead: int) -> None:
    orders = world.queue(lanes=1)
    bad = world.manager().create_queue(world.name("bad"), "n long", deliveries_max=1)
    orders.send(rows(1, 2, 3))
    bad.send([{"n": 1}])
    bad.receive(1)
    world.lease_over()  # it has been delivered as often as it may
    consumer = opened(world, orders, "at the end")

    def handler(batch: Any, tx: Any) -> None:
        if numbers(batch) == [2]:  # the batch after it has been described by now
            tx.queue(bad.name).receive(1)

    assert consumer.drain(handler, batch_size=1, ahead=ahead).dead_lettered == 1
    assert bad.depth() == 0
