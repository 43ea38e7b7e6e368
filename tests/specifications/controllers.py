"""Controllers and resources for the tests of AMQP 1.0 transactions."""

from __future__ import annotations

import itertools
from typing import Any

from tests.conformance.conftest import World
from tests.specifications.amqp_controller import TransactionController
from txnqueue.protocols.amqp import (
    AmqpError,
    AmqpValue,
    Attach,
    Coordinator,
    Declare,
    Discharge,
    Disposition,
    Error,
    Flow,
    Role,
    Source,
    Target,
    TransactionalResource,
    TransactionalState,
    Transfer,
)


class Scene:
    """A resource with one queue, and a controller that is connected to it."""

    def __init__(self, world: World, **options: Any) -> None:
        settings = options.pop("settings", {})
        controller = options.pop("controller", {})
        self.world = world
        self.orders = world.queue(**settings)
        self.manager = world.manager("broker")
        self.resource = TransactionalResource(self.manager, **options)
        self.controller = self.connect(**controller)

    def connect(self, **options: Any) -> TransactionController:
        return TransactionController(self.resource, **options)

    @property
    def name(self) -> str:
        return str(self.orders.name)

    def sender(self, **options: Any) -> Any:
        return self.controller.sender(self.name, **options)

    def receiver(self, **options: Any) -> Any:
        return self.controller.receiver(self.name, **options)

    def waiting(self) -> list[int]:
        """The numbers that can be received, in order."""
        return [row["n"] for row in self.orders.peek_messages(1_000)]

    @property
    def counts(self) -> tuple[int, int]:
        """How many messages are available, and how many are in flight."""
        return self.orders.depth(), self.orders.in_flight()


class Pipeline:
    """A session of bare performatives, whose controller waits for nothing but a txn-id."""

    def __init__(self, connection: Any) -> None:
        self.session = connection.begin()
        self.frames: list[Any] = []
        self._handles, self._deliveries = itertools.count(), itertools.count()
        self.control = self.attach(Role.SENDER, target=Coordinator())

    def do(self, performative: Any) -> list[Any]:
        """Hand something over, and keep what comes back."""
        frames = self.session.handle(performative)
        self.frames += frames
        return list(frames)

    def attach(self, role: Role, **what: Any) -> int:
        handle = next(self._handles)
        name = what.pop("name", f"{id(self):x}-{handle}")
        self.do(Attach(name=name, handle=handle, role=role, **what))
        return handle

    def sender(self, address: str | None, **what: Any) -> int:
        return self.attach(Role.SENDER, target=Target(address), **what)

    def receiver(self, address: str, credit: int = 0, **what: Any) -> int:
        handle = self.attach(Role.RECEIVER, source=Source(address), **what)
        self.do(Flow(handle=handle, link_credit=credit))
        return handle

    def transfer(self, handle: int, payload: Any, txn_id: bytes | None = None, **how: Any) -> int:
        """Transfer something, and give its delivery id."""
        number = how.pop("delivery_id", None)
        number = next(self._deliveries) if number is None else number
        state = None if txn_id is None else TransactionalState(txn_id)
        self.do(
            Transfer(handle=handle, delivery_id=number, state=state, payload=payload, **how),
        )
        return int(number)

    def dispose(self, state: Any, first: int, last: int | None = None, **how: Any) -> None:
        self.do(Disposition(role=Role.RECEIVER, first=first, last=last, state=state, **how))

    def declare(self) -> bytes:
        return bytes(self._ask(Declare()).txn_id)

    def discharge(self, txn_id: bytes, fail: bool = False) -> str:
        """Discharge; tell the outcome, or the condition of the refusal."""
        state = self._ask(Discharge(txn_id, fail))
        return condition(getattr(state, "error", None)) or "accepted"

    def outcomes(self, role: Role = Role.RECEIVER) -> dict[int, Any]:
        """The states that were told last, by delivery id."""
        told = [one for one in self.frames if isinstance(one, Disposition) and one.role is role]
        return {one.first: one.state for one in told}

    def _ask(self, body: Any) -> Any:
        number = self.transfer(self.control, (AmqpValue(body),))
        return self.outcomes()[number]


def bodies(deliveries: Any) -> list[int]:
    return [delivery.body["n"] for delivery in deliveries]


def message(n: int) -> tuple[AmqpValue, ...]:
    return (AmqpValue({"n": n, "key": None}),)


def row(n: int) -> dict[str, Any]:
    return {"n": n, "key": None}


def condition(error: Error | AmqpError | None) -> str | None:
    return None if error is None else Error(error.condition).symbol
