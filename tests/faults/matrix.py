"""Run one operation with one fault, recover, and check every promise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

from tests.faults import failures
from tests.faults.audit import Ledger
from tests.faults.injection import Crash, Fault, Injector, InjectorOfCall, faults_of
from tests.faults.scenarios import Operation
from tests.faults.world import World, check_exactly_once, drain
from txnqueue import QueueManager
from txnqueue.admin import creation
from txnqueue.core.receipt import Status
from txnqueue.errors import TransactionFinished, TransactionUnknown, TxnQueueError
from txnqueue.protocols.dtx.sessions import BranchSession
from txnqueue.transaction import Transaction

RECOVERIES = ("same", "other", "two")


class NoSuchCall(AssertionError):
    """The operation made fewer calls of that name: what was there before it was something else."""


@dataclass(frozen=True)
class Case:
    """One cell of the crash matrix."""

    operation: Operation
    at: int
    call: str
    fault: Fault
    recovery: str

    @property
    def spoiled(self) -> str:
        """Say what happens at which call."""
        return f"{self.operation.name} / call {self.at} {self.call} / {self.fault.value}"

    def __str__(self) -> str:
        return f"{self.spoiled} / {self.recovery}"


def calls_of(operation: Operation, messages: int = 6) -> list[str]:
    """Find which store calls an operation makes, in a world of its own."""
    world = fresh_for(operation, messages)
    injector = Injector()
    client = world.manager("A", injector)
    subject = begin(world, operation, client)
    injector.arm()
    operation.act(client, subject)
    return injector.calls


def cases(operation: Operation, messages: int = 6) -> Iterator[Case]:
    """List all cells of one operation, in worlds where so many messages wait."""
    for at, call in enumerate(calls_of(operation, messages)):
        for fault in faults_of(call):
            for recovery in RECOVERIES:
                yield Case(operation, at, call, fault, recovery)


@cache
def nth_of(case: Case, messages: int) -> int:
    """Count the calls of the same name before a cell's, in a world where so many messages wait.

    In a world that was used before, an operation reads more often.
    """
    return calls_of(case.operation, messages)[: case.at].count(case.call)


def fresh(messages: int = 6, *, unique: bool = False, slice_width: int | None = None) -> World:
    """Make a world in memory with its queues."""
    return _furnished(World(messages=messages), unique=unique, slice_width=slice_width)


def furnished(world: World, operation: Operation) -> World:
    """Make the queues and the table of a world for an operation."""
    return _furnished(world, unique=operation.unique, slice_width=operation.slice_width)


def _furnished(world: World, *, unique: bool, slice_width: int | None) -> World:
    with mock.patch.object(creation, "SLICE_WIDTH", slice_width or vars(creation)["SLICE_WIDTH"]):
        world.create("in", lanes=2, unique=unique)
    world.create("out")
    world.create_table()
    return world


def fresh_for(operation: Operation, messages: int = 6) -> World:
    """Make a world in memory for an operation."""
    return fresh(messages, unique=operation.unique, slice_width=operation.slice_width)


def begin(world: World, operation: Operation, client: QueueManager) -> object:
    """Send the messages and prepare the operation."""
    setup = world.helper("creator")
    setup.queue("in").send([{"i": world.base + i} for i in range(world.messages)])
    world.sent += world.messages
    client.list_queues()  # open the store, as any client has before it works
    subject = operation.prepare(world, client)
    world.numbers(world.ledger())  # what is removed must be known before
    world.clock.advance(1)
    world.began_at = world.store.journal.version()
    return world if subject is None else subject


def run(world: World, case: Case) -> None:
    """Run one cell in a world, which is drained and whole again afterwards.

    Raises:
        NoSuchCall: The world was used before, and in it the operation makes no such call.
    """
    operation = case.operation
    injector = InjectorOfCall(case.call, nth_of(case, world.messages), case.fault)
    client = world.manager("A", injector)
    subject = begin(world, operation, client)
    injector.arm()
    reported = act(operation, client, subject)
    injector.disarm()
    if not injector.spoiled:
        raise NoSuchCall(f"{case}: it made {injector.calls}")
    aftermath(world, injector, case.recovery)
    check(world, operation, reported, str(case))


def aftermath(world: World, injector: Injector, recovery: str) -> None:
    """Let clients recover from what was spoiled, and what was on its way land."""
    if recovery != "two":
        injector.flush()  # what was on its way lands before the recovery
    world.ledger()
    recover(world, recovery)
    injector.flush()  # or only after it


def check(world: World, operation: Operation, reported: str, case: str) -> None:
    """Drain a world after its recovery, and check all promises and what was reported."""
    ledger = drained(world)
    judge(world, ledger, operation, reported, case)
    check_exactly_once(world, ledger, world.sent)
    world.next()


def drained(world: World) -> Ledger:
    """Consume whatever is left after the last lease, and replay everything."""
    world.lease_over()
    drain(world.helper("Z"))
    return world.ledger()


def judge(world: World, ledger: Ledger, operation: Operation, reported: str, case: str) -> None:
    """Check what a client was told of an operation, and count what it has sent."""
    landed = operation.landed(world, ledger)
    if reported == "ok":
        assert landed, f"{case}: reported done, and is not in the journal"
    if reported == "failed" and operation.whole:
        assert not landed, f"P9 {case}: reported failed, and landed"
    if operation.key is not None:
        key = f"{operation.key}{world.suffix}"
        status = world.helper("reader").outcome(key).status
        assert (status is Status.COMMITTED) == (key in ledger.committed), f"{case}: {status}"
    if operation.sends and landed:
        world.sent += operation.sends


def act(operation: Operation, client: QueueManager, subject: object) -> str:
    """Do it, and say what the client was told.

    Raises:
        AssertionError: It was told by an error that only a defect or a damaged store raises.
    """
    try:
        operation.act(client, subject)
    except Crash:
        return "crashed"
    except TransactionUnknown:
        return "unknown"
    except KeyboardInterrupt:
        return "crashed" if operation.name.startswith("rollback") else interrupted(subject)
    except (TxnQueueError, ConnectionError) as error:
        assert not failures.unfit(error), f"P9 {operation.name}: {failures.unfit(error)}"
        return "failed"
    return "ok"


def interrupted(subject: Any) -> str:
    """Do what a block does when its user presses a key: roll back, whatever is on its way."""
    if not isinstance(subject, Transaction) or subject.status is not Status.ACTIVE:
        return "crashed"
    if isinstance(subject, BranchSession):  # which only its branch's time-out ends
        return "crashed"
    try:
        subject.rollback()
    except TransactionFinished:
        return "ok"
    told: Any = subject
    return "failed" if told.status is Status.ROLLED_BACK else "unknown"


def recover(world: World, recovery: str) -> None:
    """Let clients recover: the same one again at once, another one, or two at a time."""
    if recovery == "same":
        names = ["A"]
    else:
        world.lease_over()
        names = ["B"] if recovery == "other" else ["B", "C"]
    finish(world, [world.manager(name, actor=f"{name} again") for name in names])


def finish(world: World, clients: list[QueueManager]) -> None:
    """Let clients finish what is left, commit what is prepared, and consume what there is."""
    for client in clients:
        client.recover()
    waiting = {key for client in clients for key in client.recover().prepared}
    undecided = {key for key in world.prepared if _open(world, key)}
    assert undecided <= waiting, f"P5 {undecided - waiting} is prepared and not listed"
    for key in sorted(waiting):
        for client in clients:
            client.commit(key)
    for client in clients:
        if waiting:
            client.recover()  # confirms what it has changed, which else waits for its next append
        drain(client)


def _open(world: World, key: str) -> bool:
    return world.helper("reader").outcome(key).status is Status.PREPARED
