"""Two drivers under one id at the same time, and what a program does around its attempts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.world import World
from tests.inside import client_of
from tests.silence import unanswered
from txnqueue import Status
from txnqueue.errors import Busy, TransactionAborted, TransactionUnknown
from txnqueue.messages.takeover import LEASE_OVER, RIVAL

BOTH = ("A", "B")


@pytest.fixture
def world() -> World:
    made = World()
    for name in ("in", "out"):
        made.create(name)
    return made


def numbers(batch: Any) -> list[int]:
    return [row["i"] for row in batch.messages()]


class Turns:
    """Lets two threads act in turn: each one's handler runs while the other one is at its own."""

    def __init__(self) -> None:
        self._turn = {name: threading.Semaphore(int(name == "A")) for name in BOTH}
        self.told: dict[str, Any] = {}
        self.handled: list[tuple[str, list[int]]] = []

    def pass_on(self, name: str, batch: Any) -> None:
        """Handle a batch, which takes as long as the other one needs to claim."""
        self.handled.append((name, numbers(batch)))
        self._other(name).release()
        self._turn[name].acquire(timeout=5)

    def run(self, act: Callable[[str], Any]) -> None:
        """Let both act."""
        threads = [threading.Thread(target=self._run, args=(name, act)) for name in BOTH]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _run(self, name: str, act: Callable[[str], Any]) -> None:
        self._turn[name].acquire(timeout=5)
        try:
            self.told[name] = act(name)
        except Exception as error:
            self.told[name] = error
        for _ in range(100):
            self._other(name).release()

    def _other(self, name: str) -> threading.Semaphore:
        return self._turn["B" if name == "A" else "A"]


@pytest.mark.parametrize("count", [1, 30])
def test_of_two_drivers_of_one_run_one_goes_on(world: World, count: int) -> None:
    """They aborted each other until messages that no handler had failed with were dead letters."""
    managers = {name: world.manager(name) for name in BOTH}
    managers["A"].queue("in").send([{"i": n} for n in range(count)])
    turns = Turns()

    def drain(name: str) -> Any:
        queue = managers[name].queue("in")
        return queue.drain(lambda batch, tx: turns.pass_on(name, batch), run_id="nightly")

    turns.run(drain)
    (failed,) = [one for one in turns.told.values() if isinstance(one, Exception)]
    (done,) = [one for one in turns.told.values() if not isinstance(one, Exception)]
    assert isinstance(failed, TransactionAborted) and failed.reason == RIVAL
    assert "another driver" in str(failed).lower()
    assert done.messages == count and done.finished and not done.errors
    assert not managers["A"].queue("in.dead").depth() and not managers["A"].queue("in").depth()


def test_of_two_attempts_of_one_id_one_goes_on(world: World) -> None:
    managers = {name: world.manager(name) for name in BOTH}
    managers["A"].queue("in").send([{"i": 1}])
    turns = Turns()

    def work(name: str) -> Any:
        def handler(tx: Any) -> None:
            turns.pass_on(name, tx.queue("in").receive(10))

        return managers[name].run_transaction(handler, transaction_id="load")

    turns.run(work)
    failed = [one for one in turns.told.values() if isinstance(one, TransactionAborted)]
    assert [one.reason for one in failed] == [RIVAL]
    assert [found for _, found in turns.handled] == [[1], [1]]
    assert not managers["A"].queue("in.dead").depth() and not managers["A"].queue("in").depth()


def test_an_attempt_that_is_aborted_aborts_no_rival(world: World) -> None:
    """Each took the other's messages over from another queue, and neither was committed."""
    managers = {name: world.manager(name) for name in BOTH}
    for queue in ("in", "out"):
        managers["A"].queue(queue).send([{"i": 1}])
    turns = Turns()

    def work(name: str) -> Any:
        def handler(tx: Any) -> None:
            one = tx.queue("in").receive(10)
            if name == "A":
                turns.pass_on(name, one)  # B takes it over, and receives from the other queue
            other = tx.queue("out").receive(10)
            turns.handled.append((name, numbers(other)))
            if name == "B":
                turns.pass_on(name, one)

        return managers[name].run_transaction(handler, transaction_id="nightly")

    turns.run(work)
    assert isinstance(turns.told["A"], TransactionAborted) and turns.told["A"].reason == RIVAL
    assert turns.told["A"].transaction_id == "nightly"
    assert managers["A"].outcome("nightly").receipt == turns.told["B"]
    assert turns.handled == [("A", [1]), ("B", [1]), ("B", [1])]
    for queue in ("in", "out"):
        assert not managers["A"].queue(queue).depth() and not managers["A"].queue(queue).in_flight()
    assert managers["A"].history.verify().ok


def test_of_two_attempts_that_abort_each_other_at_once_one_goes_on(world: World) -> None:
    """The one read that it was undecided, and was aborted before its own append."""
    managers = {name: world.manager(name) for name in BOTH}
    for queue in ("in", "out"):
        managers["A"].queue(queue).send([{"i": 1}])
    one, other = (managers[name].transaction("nightly") for name in BOTH)
    managers["A"].queue("in").receive(10, transaction=one)
    managers["B"].queue("out").receive(10, transaction=other)
    states, seen = client_of(managers["A"]).states, list[int]()
    read = states.key_states

    def read_before_the_rival(keys: Any) -> Any:
        found = read(keys)
        if not seen:
            seen.extend(numbers(managers["B"].queue("in").receive(10, transaction=other)))
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(states, "key_states", read_before_the_rival)
        with pytest.raises(TransactionAborted, match="aborted by") as caught:
            managers["A"].queue("out").receive(10, transaction=one)
    assert caught.value.reason == RIVAL and seen == [1]
    one.rollback()
    other.commit()
    assert managers["A"].outcome("nightly").status is Status.COMMITTED


def test_an_attempt_that_began_below_the_horizon_aborts_no_rival(world: World) -> None:
    managers = {name: world.manager(name) for name in BOTH}
    managers["A"].queue("out").send([{"i": 1}])
    one = managers["A"].transaction("nightly")
    assert not numbers(managers["A"].queue("in").receive(10, transaction=one))
    world.clock.advance(3600)
    managers["B"].queue("in").send([{"i": 2}])
    managers["B"].maintain(transaction_seconds_max=0)
    other = managers["B"].transaction("nightly")
    assert numbers(managers["B"].queue("out").receive(10, transaction=other)) == [1]
    with pytest.raises(TransactionAborted, match="stayed open longer"):
        managers["A"].queue("out").receive(10, transaction=one)
    other.commit()
    assert managers["A"].outcome("nightly").status is Status.COMMITTED


def test_a_lease_that_is_over_is_told_as_that_and_the_work_is_done_again(world: World) -> None:
    one, other = world.manager("A"), world.manager("B")
    one.queue("in").send([{"i": 1}])
    runs = list[int]()

    def handler(batch: Any, tx: Any) -> None:
        runs.append(len(batch))
        if len(runs) == 1:
            world.lease_over()
            with other.transaction("another") as there:
                other.queue("in").receive(1, transaction=there).release()
            world.clock.advance(3600)

    found = one.queue("in").drain(handler, run_id="nightly")
    assert found.messages == 1 and runs == [1, 1]
    assert LEASE_OVER in str(found.last_error)


def test_a_run_that_another_driver_has_finished_consumes_no_more(world: World) -> None:
    one, other = world.manager("A"), world.manager("B")
    one.queue("in").send([{"i": n} for n in (1, 2, 3)])
    handled = list[list[int]]()

    def handler(batch: Any, tx: Any) -> None:
        handled.append(numbers(batch))
        if len(handled) == 1:
            world.lease_over()
            found = other.queue("in").drain(lambda *_: None, run_id="r", batch_size=10)
            assert found.finished and found.messages == 3
            one.queue("in").send([{"i": 7}, {"i": 8}], transaction=None)

    found = one.queue("in").drain(handler, run_id="r", batch_size=1, until="empty")
    assert handled == [[1]] and found.finished and not found.messages
    assert one.queue("in").depth() == 2


def test_a_run_that_is_finished_meanwhile_has_not_failed(world: World) -> None:
    """One failure was allowed, and a scheduler saw a failed run of which nothing was left."""
    one, other = world.manager("A"), world.manager("B")
    one.queue("in").send([{"i": 1}])

    def handler(batch: Any, tx: Any) -> None:
        world.lease_over()
        assert other.queue("in").drain(lambda *_: None, run_id="r").finished

    found = one.queue("in").drain(handler, run_id="r", errors_max=1)
    assert found.finished and not found.messages and not found.errors


@pytest.mark.parametrize("named", [False, True])
def test_a_rival_of_another_transaction_is_none_of_this_one(world: World, named: bool) -> None:
    """A handler's own work under an id of its own lost to a rival: only that is tried again."""
    one, other = world.manager("A"), world.manager("B")
    one.queue("out").send([{"i": 9}])
    one.queue("in").send([{"i": 1}, {"i": 2}])
    handled = list[int]()

    def inner(tx: Any) -> None:
        tx.queue("out").receive(10)
        if len(handled) == 1:
            rival = other.transaction("load")
            other.queue("out").receive(10, transaction=rival)
            rival.rollback()

    def handler(batch: Any, tx: Any) -> None:
        handled.append(len(batch))
        one.run_transaction(inner, transaction_id="load")

    found = one.queue("in").drain(handler, run_id="nightly" if named else None)
    assert found.messages == 2 and found.finished


@pytest.mark.parametrize("way", ["return", "break"])
def test_a_block_that_is_left_before_its_commit_failed_is_warned_of(world: World, way: str) -> None:
    one, other = world.manager("A"), world.manager("B")
    one.queue("in").send([{"i": 1}])

    def work() -> str:
        for attempt in one.attempts():
            with attempt as tx:
                one.queue("in").receive(10, transaction=tx)
                world.lease_over()
                other.queue("in").receive(10).release()
                if way == "return":
                    return "done"
                break
        return "left"

    with pytest.warns(RuntimeWarning, match=r"was not committed \(.*return after the loop"):
        work()
    assert one.queue("in").depth() == 1


@pytest.mark.filterwarnings("error")
def test_a_block_that_is_left_and_committed_is_not_warned_of(world: World) -> None:
    manager = world.manager("A")

    def work() -> str:
        for attempt in manager.attempts():
            with attempt as tx:
                tx.queue("in").send([{"i": 1}])
                return "done"
        raise AssertionError

    assert work() == "done" and manager.queue("in").depth() == 1


@pytest.mark.parametrize("decide", ["commit", "prepare"])
def test_an_error_after_the_handler_has_decided_is_told(world: World, decide: str) -> None:
    """It is another transaction's: to try this one again would not help that one."""
    manager, runs = world.manager("A"), list[str]()

    def handler(tx: Any) -> None:
        runs.append(tx.id)
        tx.queue("in").send([{"i": 1}])
        getattr(tx, decide)()
        raise Busy("Others won.", operation="send", queue="out", tries=12)

    with pytest.raises(Busy, match="Others won"):
        manager.run_transaction(handler, transaction_id="load")
    assert len(runs) == 1
    status = Status.COMMITTED if decide == "commit" else Status.PREPARED
    assert manager.outcome("load").status is status


@pytest.mark.parametrize("lands", [True, False])
def test_a_call_outside_the_transaction_whose_outcome_is_in_doubt_is_not_repeated(
    world: World, lands: bool
) -> None:
    """It may have happened; only its caller can find out."""
    manager, runs = world.manager("A"), list[str]()
    journal = client_of(manager).store.journal

    def handler(tx: Any) -> None:
        runs.append(tx.id)
        tx.queue("in").send([{"i": 1}])
        with unanswered(journal, lands=lands):
            manager.queue("out").send([{"i": 2}], transaction=None)

    with pytest.raises(TransactionUnknown) as caught:
        manager.run_transaction(handler, transaction_id="load")
    assert len(runs) == 1
    assert manager.outcome(caught.value.transaction_id).status is not Status.UNKNOWN
    assert (manager.queue("in").depth(), manager.queue("out").depth()) == (0, int(lands))


def test_behind_more_dead_letters_than_a_claim_removes_there_is_the_next_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty batch would say that nothing waits."""
    from txnqueue.core.planning import claims

    monkeypatch.setattr(claims, "REMOVALS_MAX", 2)
    manager = world.manager("A")
    manager.create_queue("once", "i long", deliveries_max=1)
    queue = manager.queue("once")
    for n in range(5):
        queue.send([{"i": n}])
    for _ in range(5):
        queue.receive(1)
    world.clock.advance(100_000)
    queue.send([{"i": 5_000}])
    assert numbers(queue.receive(10)) == [5_000]
    assert manager.queue("once.dead").depth() == 5
