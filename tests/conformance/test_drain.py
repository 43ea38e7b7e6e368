"""The scheduled job: drain a queue, batch by batch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, rows
from tests.inside import client_of
from txnqueue import Status
from txnqueue.core import model
from txnqueue.errors import HandlerFailed, InvalidInput, TransactionIdReused
from txnqueue.storage.journal import AppendConflict
from txnqueue.transactions.attempt import Attempt


@on_delta_when_long
def test_a_drain_consumes_what_was_there_at_its_start(world: World) -> None:
    orders, invoices = world.queue(), world.queue("invoices")
    orders.send(rows(1, 2, 3))
    seen = []

    def handler(batch: Any, tx: Any) -> None:
        seen.append(numbers(batch))
        tx.queue(invoices.name).send(batch.messages())
        orders.send(rows(9))

    result = world.open(orders, "b").drain(handler, batch_size=2)
    assert seen == [[1, 2], [3]]
    assert (result.batches, result.messages, result.errors, result.finished) == (2, 3, 0, True)
    assert numbers(invoices.peek_messages()) == [1, 2, 3]
    assert numbers(orders.peek_messages()) == [9, 9]


@in_memory
def test_a_drain_until_empty_takes_what_comes_meanwhile(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))

    def handler(batch: Any, tx: Any) -> None:
        if numbers(batch) == [1]:
            tx.queue(orders.name).send(rows(2))

    assert world.open(orders, "b").drain(handler, until="empty").messages == 2
    assert orders.depth() == 0


@on_delta_when_long
def test_a_finished_run_claims_nothing(world: World) -> None:
    orders, run_id = world.queue(), world.name("run")
    orders.send(rows(1))
    assert orders.drain(lambda batch, tx: None, run_id=run_id).messages == 1
    orders.send(rows(2))
    again = world.open(orders, "b").drain(lambda batch, tx: None, run_id=run_id)
    assert (again.messages, again.finished, again.already_finished) == (0, True, True)
    assert orders.depth() == 1


@on_delta_when_long
@pytest.mark.parametrize("found", [1, 0])
def test_a_run_of_another_queue_is_no_finished_run_of_this_one(world: World, found: int) -> None:
    """Schedulers give one id to all tasks of a run."""
    orders, payments, run_id = world.queue(), world.queue("payments"), world.name("run")
    orders.send(rows(*range(found)))
    payments.send(rows(7))
    assert orders.drain(lambda batch, tx: None, run_id=run_id).finished
    with pytest.raises(InvalidInput, match="another queue") as raised:
        world.open(payments, "b").drain(lambda batch, tx: None, run_id=run_id)
    assert f"{payments.name}/{run_id}" in str(raised.value)
    assert payments.depth() == 1
    assert orders.drain(lambda batch, tx: None, run_id=run_id).already_finished


@in_memory
def test_a_run_whose_id_begins_with_that_of_another_queues_is_another_run(world: World) -> None:
    orders, payments = world.queue(), world.queue("payments")
    for queue in (orders, payments):
        queue.send(rows(1))
    named = (f"run{n}" for n in range(1_000))
    shard = model.transaction_shard  # in one of sixteen both are read together
    day = next(day for day in named if shard(f"{day}/0") == shard(f"{day}/payments/0"))
    for queue, run_id in ((payments, f"{day}/payments"), (orders, day)):
        assert queue.drain(lambda batch, tx: None, run_id=run_id).messages == 1


@in_memory
def test_a_run_whose_own_messages_are_in_memory_is_of_its_queue(world: World) -> None:
    hints, orders, run_id = world.queue(durable=False), world.queue("orders2"), world.name("run")
    hints.send(rows(1, 2))
    orders.send(rows(3, 4))

    def handler(batch: Any, tx: Any) -> None:
        tx.queue(orders.name).receive(1)

    for _ in range(2):
        assert hints.drain(handler, batch_size=1, run_id=run_id, max_batches=1).messages == 1


@in_memory
def test_runs_of_two_queues_at_once_do_not_take_each_others_numbers(world: World) -> None:
    orders, payments, run_id = world.queue(), world.queue("payments"), world.name("run")
    orders.send(rows(1, 2))
    payments.send(rows(7))

    def handler(batch: Any, tx: Any) -> None:
        if payments.depth() == 0 and numbers(batch) == [1]:
            return
        assert world.open(payments, "b").drain(lambda *_: None, run_id=run_id).messages == 1

    with pytest.raises(InvalidInput, match="another queue"):
        orders.drain(handler, batch_size=1, run_id=run_id)
    assert (orders.depth(), orders.in_flight(), payments.depth()) == (2, 0, 0)


@in_memory
def test_a_run_whose_end_is_not_recorded_is_not_finished(world: World) -> None:
    orders, run_id = world.queue(), world.name("run")
    orders.send(rows(1))
    client = world.open(orders, "b")
    journal = client_of(client).store.journal
    append = journal.append

    def crowded(units: Any, metadata: Any) -> Any:
        ends = [e.kind for unit in units for e in unit.entries if e.stream == f"{run_id}/end"]
        if model.COMMITTED in ends:
            raise AppendConflict("somebody was faster")
        return append(units, metadata)

    journal.append = crowded
    result = client.drain(lambda batch, tx: None, run_id=run_id)
    journal.append = append
    assert (result.messages, result.finished, orders.depth()) == (1, False, 0)
    again = client.drain(lambda batch, tx: None, run_id=run_id)
    assert (again.messages, again.finished, again.already_finished) == (0, True, False)


@in_memory
@pytest.mark.parametrize("asleep", ["in its handler", "between two batches"])
def test_a_driver_that_slept_uses_no_number_that_was_archived_meanwhile(
    world: World, asleep: Any
) -> None:
    orders, run_id = world.queue(), world.name("run")
    orders.send(rows(1, 2))
    first, keeper = world.open(orders, "first"), world.manager("keeper")
    slept = []

    def sleep() -> None:
        """Another driver goes on with the run, and everything that it did is archived."""
        slept.append(True)
        world.lease_over()
        orders.send(rows(3, 4, 5))
        world.open(orders, "second").drain(
            lambda batch, tx: None, batch_size=1, run_id=run_id, until="empty", max_messages=4
        )
        for n in range(2):
            world.queue(f"busy{n}").send(rows(n))
            keeper.maintain(transaction_seconds_max=0, payload_retention_days=0, vacuum=False)
        orders.send(rows(6, 7, 8))

    def handler(batch: Any, tx: Any) -> None:
        if not slept and asleep == "in its handler":
            sleep()

    def on_batch(count: int) -> None:
        if not slept and asleep == "between two batches":
            sleep()

    first.drain(handler, batch_size=1, run_id=run_id, until="empty", on_batch=on_batch)
    assert slept and orders.depth() == 0
    proof = keeper.history.verify()
    assert proof.ok, proof


@in_memory
def test_a_run_that_goes_on_does_not_hold_the_horizon_back(world: World) -> None:
    orders = world.queue()
    orders.send(rows(*range(10)))
    keeper, horizons = world.manager("keeper"), []

    def on_batch(count: int) -> None:
        world.clock.advance(50)
        horizons.append(keeper.maintain(transaction_seconds_max=60, vacuum=False).horizon)

    done = orders.drain(
        lambda batch, tx: None, batch_size=1, run_id=world.name("run"), on_batch=on_batch
    )
    assert (done.messages, done.batches, done.last_error) == (10, 10, None)
    assert len(set(horizons)) > 5, horizons


@in_memory
@pytest.mark.parametrize("run_id", ["", 5, b"night"])
def test_a_run_id_is_a_string_with_something_in_it(world: World, run_id: str) -> None:
    with pytest.raises(InvalidInput):
        world.queue().drain(lambda batch, tx: None, run_id=run_id)


@in_memory
def test_a_run_that_another_driver_finished_is_finished(world: World) -> None:
    orders, run_id = world.queue(), world.name("run")
    orders.send(rows(1))

    def handler(batch: Any, tx: Any) -> None:
        other = world.open(orders, "c").drain(lambda batch, tx: None, run_id=run_id)
        assert (other.messages, other.finished) == (1, True)

    result = world.open(orders, "b").drain(handler, run_id=run_id)
    assert (result.messages, result.finished, orders.in_flight()) == (0, True, 0)


@in_memory
def test_a_run_that_another_driver_finishes_at_the_same_moment_is_finished(world: World) -> None:
    orders, run_id, appends = world.queue(), world.name("run"), []
    orders.send(rows(1))

    def step(name: str) -> None:
        appends.append(name) if name == "append starts" else None
        if name == "append starts" and len(appends) == 3:  # a claim, a commit, now the end
            other = world.open(orders, "c").drain(lambda batch, tx: None, run_id=run_id)
            assert (other.messages, other.finished) == (0, True)

    world.store.journal.step = step
    result = world.open(orders, "b").drain(lambda batch, tx: None, run_id=run_id)
    assert (result.messages, result.finished) == (1, True)


@on_delta_when_long
def test_a_run_that_was_interrupted_goes_on_after_its_last_commit(world: World) -> None:
    orders, run_id = world.queue(), world.name("run")
    orders.send(rows(*range(6)))
    ids = []

    def handler(batch: Any, tx: Any) -> None:
        ids.append(tx.id)
        if len(ids) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        orders.drain(handler, batch_size=2, run_id=run_id)
    result = world.open(orders, "b").drain(handler, run_id=run_id)
    assert ids[:3] == [f"{run_id}/{n}" for n in (0, 1, 1)]
    assert (result.messages, result.finished, orders.depth()) == (4, True, 0)


@on_delta_when_long
def test_a_drain_stops_after_so_many_messages(world: World) -> None:
    orders = world.queue()
    orders.send(rows(*range(6)))
    result = orders.drain(lambda batch, tx: None, batch_size=2, max_messages=3)
    assert (result.messages, result.batches, result.finished) == (3, 2, False)
    assert (orders.depth(), orders.in_flight()) == (3, 0)


@in_memory
def test_a_drain_stops_after_so_many_seconds(world: World) -> None:
    orders = world.queue()
    orders.send(rows(*range(6)))
    handler = lambda batch, tx: world.clock.advance(20)  # noqa: E731
    result = orders.drain(handler, batch_size=2, max_seconds=30)
    assert (result.messages, result.finished, orders.in_flight()) == (4, False, 0)


@in_memory
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_drain_that_was_asked_to_stop_once_has_stopped(world: World, ahead: int) -> None:
    """What is asked may forget that it said so: as if it took the request from a queue."""
    orders, run_id = world.queue(), world.name("run")
    orders.send(rows(*range(9)))
    requests: list[bool] = []

    def handler(batch: Any, tx: Any) -> None:
        if 2 in numbers(batch):
            requests.append(True)

    def stopped() -> bool:
        return bool(requests) and requests.pop()

    def drain() -> Any:
        return orders.drain(handler, batch_size=1, run_id=run_id, stopped=stopped, ahead=ahead)

    result = drain()
    assert (result.messages, result.stopped, result.finished) == (3, True, False)
    assert (orders.depth(), orders.in_flight()) == (6, 0)
    assert drain().messages == 6


@in_memory
def test_a_run_whose_end_comes_too_late_for_maintenance_is_ended_by_the_next_one(
    world: World,
) -> None:
    """Maintenance closes the time in which the run's last transaction began."""
    orders, run_id = world.queue(), world.name("run")
    orders.send(rows(1))
    consumer = world.open(orders, "b")
    plan, late = Attempt.plan_seal, list[Any]()

    def too_late(self: Any, kind: str, lost: int) -> Any:
        if self.id == f"{run_id}/end" and not late:
            late.append(1)
            for n in range(3):
                orders.send(rows(n))
                orders.receive().accept()
                world.clock.advance(10_000)
                world.manager("keeper").maintain(transaction_seconds_max=0, vacuum=False)
        return plan(self, kind, lost + len(late))  # as after a lost race: it looks who won

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attempt, "plan_seal", too_late)
        result = consumer.drain(lambda batch, tx: None, run_id=run_id)
    assert (result.messages, result.finished, late) == (1, False, [1])
    assert consumer.drain(lambda batch, tx: None, run_id=run_id).finished


@in_memory
def test_a_failing_row_ends_alone_in_the_dead_letter_queue(world: World) -> None:
    orders = world.queue(dead_letter=True, deliveries_max=3)
    orders.send(rows(*range(20)))

    def handler(batch: Any, tx: Any) -> None:
        if 7 in numbers(batch):
            raise ValueError("row 7")

    result = world.open(orders, "b").drain(handler)
    assert (result.messages, result.finished, str(result.last_error)) == (19, True, "row 7")
    dead = world.manager().queue(f"{orders.name}.dead")
    assert numbers(dead.peek_messages()) == [7]


@in_memory
def test_a_failing_row_takes_nobody_of_another_lane_with_it(world: World) -> None:
    """A batch that holds messages that failed holds no others, of whatever lane."""
    orders = world.queue(dead_letter=True, deliveries_max=3, lanes=2)
    orders.send(rows(*range(20)))

    def handler(batch: Any, tx: Any) -> None:
        if 7 in numbers(batch):
            raise ValueError("row 7")

    assert world.open(orders, "b").drain(handler).messages == 19
    assert world.manager().queue(f"{orders.name}.dead").depth() == 1


@in_memory
def test_a_handler_that_always_fails_ends_the_drain(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))

    def handler(batch: Any, tx: Any) -> None:
        raise ValueError("never")

    with pytest.raises(HandlerFailed, match="never") as caught:
        orders.drain(handler, errors_max=2)
    assert caught.value.result.errors == 2
    assert (orders.depth(), orders.in_flight()) == (1, 0)


@in_memory
def test_a_handler_slower_than_its_lease_keeps_its_messages_while_nobody_wants_them(
    world: World,
) -> None:
    orders = world.queue()
    orders.send(rows(*range(4)))
    result = orders.drain(lambda batch, tx: world.lease_over(), batch_size=2)
    assert (result.messages, result.finished) == (4, True)
    assert (orders.depth(), orders.in_flight()) == (0, 0)


@in_memory
def test_a_handler_slower_than_its_lease_loses_its_messages_to_whoever_wants_them(
    world: World,
) -> None:
    orders, taken = world.queue(), list[Any]()
    orders.send(rows(*range(4)))

    def handler(batch: Any, tx: Any) -> None:
        if not taken:
            world.lease_over()
            taken.append(world.open(orders, "c").receive(1))

    result = world.open(orders, "b").drain(handler, batch_size=2)
    assert taken[0].accept() == 1
    assert (result.messages, result.batches) == (3, 2)
    assert (orders.depth(), orders.in_flight()) == (0, 0)


@in_memory
def test_each_commit_is_reported_and_what_was_claimed_ahead_goes_back(world: World) -> None:
    orders, reported = world.queue(), []
    orders.send(rows(*range(4)))

    def report(count: int) -> None:
        reported.append(count)
        raise StopIteration

    with pytest.raises(StopIteration):
        orders.drain(lambda batch, tx: None, batch_size=2, on_batch=report)
    assert (reported, orders.depth(), orders.in_flight()) == ([2], 2, 0)
    again = orders.receive().messages()
    assert [m["_message"]["delivery_count"] for m in again] == [0, 0]


@in_memory
def test_a_run_leaves_no_number_out(world: World) -> None:
    """Else a driver that commits the left out one believes that the next is free."""
    orders, run_id = world.queue(lanes=1), world.name("run")
    orders.send(rows(*range(6)))
    refused: list[Any] = []

    def handler(batch: Any, tx: Any) -> None:
        if tx.id == f"{run_id}/1" and not refused:
            refused.append(tx.id)
            world.lease_over()  # then anybody may abort it, and does
            world.manager("operator").rollback(tx.id, "gone")

    result = orders.drain(handler, batch_size=2, run_id=run_id)
    assert (result.messages, result.finished, refused) == (6, True, [f"{run_id}/1"])
    outcomes = [world.manager().outcome(f"{run_id}/{n}").status for n in range(4)]
    assert outcomes == [Status.COMMITTED] * 3 + [Status.UNDECIDED]


@in_memory
@pytest.mark.parametrize("log_max", [1, None])
@pytest.mark.parametrize("lease", ["runs", "over"])
def test_a_handler_settles_a_lease_of_the_lane_of_the_next_claim(
    world: World, lease: str, log_max: int | None
) -> None:
    """That claim is planned as if nothing was settled: it could take the same messages."""
    orders, consumer = world.queue(lanes=1), world.manager("b")
    mine = consumer.queue(orders.name)
    client_of(consumer).log_max = log_max or client_of(consumer).log_max
    orders.send(rows(*range(8)))
    held, seen = mine.receive(2), []

    def handler(batch: Any, tx: Any) -> None:
        seen.append(numbers(batch))
        if len(seen) == 2:
            if lease == "over":
                world.lease_over()
            held.accept(transaction=tx)

    result = mine.drain(handler, batch_size=2)
    assert (seen, result.finished) == ([[2, 3], [4, 5], [6, 7]], True)
    reader = world.open(orders, "c")
    world.lease_over()
    assert (reader.depth(), reader.in_flight(), len(reader.receive())) == (0, 0, 0)
    assert world.manager("auditor").history.verify().ok


@in_memory
def test_a_run_id_leaves_room_for_the_numbers_of_its_batches(world: World) -> None:
    orders = world.queue()
    orders.send(rows(1))
    for run_id in ("r" * 190, "", "xid:1"):
        with pytest.raises(InvalidInput, match="run_id=") as raised:
            orders.drain(lambda batch, tx: None, run_id=run_id)
        assert raised.value.name == "run_id"
    assert orders.drain(lambda batch, tx: None, run_id="r" * 189).messages == 1


@in_memory
def test_a_transaction_and_a_batch_of_a_run_are_not_taken_for_one_another(world: World) -> None:
    """The second one was not done, and nobody was told."""
    orders, day = world.queue(), world.name("2026-07-31")
    orders.send(rows(1, 2))
    assert orders.drain(lambda batch, tx: None, batch_size=1, run_id=day).finished
    manager = world.manager("b")
    for number in ("0", "1", "end"):
        with pytest.raises(TransactionIdReused, match="by a drain with run_id="):
            manager.run_transaction(
                lambda tx: tx.queue(orders.name).send(rows(3)), transaction_id=f"{day}/{number}"
            )
    assert orders.depth() == 0
    assert manager.outcome(f"{day}/0").receipt is not None


@in_memory
def test_a_transaction_that_is_named_as_the_end_of_a_run_does_not_end_it(world: World) -> None:
    orders, night = world.queue(), world.name("nightly")
    orders.send(rows(1))
    with world.manager("b").transaction(f"{night}/end"):
        pass
    with pytest.raises(InvalidInput, match="give another run_id"):
        orders.drain(lambda batch, tx: None, run_id=night)
    assert orders.depth() == 1
    assert orders.drain(lambda batch, tx: None, run_id=f"{night}/2").messages == 1


@in_memory
@pytest.mark.parametrize(
    "metadata", [{"drained": 120}, {"drained": "yes"}, {"drained": "orders-0123abcd", "rows": 7}]
)
def test_metadata_of_a_user_is_not_the_mark_of_a_run(world: World, metadata: Any) -> None:
    orders = world.queue()
    manager = world.manager("b")
    for _ in range(2):
        with manager.transaction(world.name("job-1"), metadata=metadata) as tx:
            pass
        with manager.transaction(world.name("job/1"), metadata=metadata) as tx:
            pass
    with manager.transaction(world.name("job/1")) as tx:
        assert tx.receipt is not None and tx.already_committed
    orders.send(rows(1))
    assert orders.drain(lambda batch, tx: None, run_id=world.name("job")).messages == 1


@in_memory
def test_a_run_that_0_1_0_ended_has_finished(world: World) -> None:
    """It did not mark what it committed; its stores keep their layout."""
    orders, night = world.queue(), world.name("nightly")
    orders.send(rows(1))
    with world.manager("b").transaction(f"{night}/end"):
        pass
    old = world.open(orders, "c")
    client_of(old).cache.open()
    client_of(old).cache.layout = 1
    assert old.drain(lambda batch, tx: None, run_id=night).already_finished


@in_memory
def test_a_transaction_named_as_a_batch_does_not_make_failures_count(world: World) -> None:
    """A job that has never succeeded makes no dead letters."""
    orders, night = world.queue(dead_letter=True, deliveries_max=1), world.name("nightly")
    orders.send(rows(*range(10)))
    with world.manager("b").transaction(f"{night}/0"):
        pass

    def broken(batch: Any, tx: Any) -> None:
        raise TypeError("a bug")

    with pytest.raises(HandlerFailed):
        world.open(orders, "c").drain(broken, batch_size=1, run_id=night, errors_max=5)
    with pytest.raises(HandlerFailed):
        world.open(orders, "d").drain(broken, batch_size=1, run_id=night, errors_max=5)
    dead = world.manager("e").queue(f"{orders.name}.dead")
    assert dead.depth() <= 1
