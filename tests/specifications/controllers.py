"""Controllers and resources for the tests of AMQP 1.0 transactions."""

from __future__ import annotations

from typing import Any

from tests.conformance.conftest import World
from txnqueue.protocols.amqp import (
    AmqpError,
    AmqpValue,
    Error,
    TransactionalResource,
    TransactionController,
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


def bodies(deliveries: Any) -> list[int]:
    return [delivery.body["n"] for delivery in deliveries]


def message(n: int) -> tuple[AmqpValue, ...]:
    return (AmqpValue({"n": n, "key": None}),)


def row(n: int) -> dict[str, Any]:
    return {"n": n, "key": None}


def condition(error: Error | AmqpError | None) -> str | None:
    return None if error is None else error.condition.value
