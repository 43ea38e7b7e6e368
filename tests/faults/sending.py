"""What the simulator's clients send, publish, move and take away; and what queues they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.faults.reference import (
    COMES_AND_GOES,
    QUEUES,
    WANTED,
    Intent,
)
from tests.inside import attempt_of
from txnqueue.batch import Batch
from txnqueue.core import model
from txnqueue.errors import LeaseLost, QueueNotFound, TransactionAborted, TransactionUnknown


class Sending:
    """What a client does to put messages somewhere."""

    simulation: Any
    reference: Any
    manager: Any
    ask: Any
    call: str
    name: str
    queue: Any
    do_begin: Callable[[], None]
    active: Any
    _check_receipt: Any
    quiet: Any
    _holding: Any

    def _rows(self, queue: Any, intent: Intent) -> list[dict[str, int]]:
        draw = self.simulation.random
        fresh = [self.simulation.number() for _ in range(draw.randint(1, 4))]
        for message in fresh:
            self.reference.place[message] = ("staged",)
            intent.sends[message] = queue.info.queue_id
        return [{"n": message, "id": self._id(message)} for message in fresh]

    def _id(self, number: int) -> int:
        """Draw an id: sometimes one that others draw, too, for a while."""
        draw = self.simulation.random
        often = max(1, number // 40 - draw.randrange(3))
        return often if draw.random() < 0.3 else number

    def placing(self) -> dict[str, Any]:
        """Draw what a send says of priority, delay and time to live: mostly nothing."""
        draw = self.simulation.random
        said: dict[str, Any] = {}
        if draw.random() < 0.15:
            said["priority"] = draw.choice((0, 5, 9))
        if draw.random() < 0.1:
            said["delay_seconds"] = draw.choice((1, 15, 60))
        if draw.random() < 0.1:
            said["ttl_seconds"] = draw.choice((5, 40, 600))
        return said

    def do_purge(self) -> None:
        queue = self.queue()
        self.ask(queue.purge)

    def do_drop(self) -> None:
        result, _ = self.ask(lambda: self.manager.drop_queue(COMES_AND_GOES))
        if result and not result.dropped:
            self.reference.counts["held back"] += 1
            assert result.held_by, "P5 it is held back by nothing"
            queue_id = self.manager.queue(COMES_AND_GOES).info.queue_id
            if self.quiet:
                assert set(result.held_by) == self.reference.naming(queue_id)

    def do_alter(self) -> None:
        try:
            queue = self.manager.queue(COMES_AND_GOES)
        except QueueNotFound:
            return
        number = self.simulation.random.randrange(3)
        self.ask(lambda: queue.alter(f"c{number} string", delay_step_seconds=1 + number))

    def do_create(self) -> None:
        simulation = self.simulation
        self.ask(lambda: simulation.create(self, COMES_AND_GOES, simulation.lanes, False))

    def do_redrive(self) -> None:
        dead = self.manager.queue("in.dead")
        self.ask(dead.redrive)

    def do_move(self) -> None:
        source, target = self.simulation.random.sample(QUEUES, 2)
        self.ask(lambda: self.manager.queue(source).move(target))

    def do_move_inside(self) -> None:
        """Move, or send dead letters back, in a transaction."""
        tx, intent = self.active()
        if tx is None:
            return self.do_begin()
        source, target = self.simulation.random.sample((*QUEUES, "in.dead"), 2)
        limit = self.simulation.random.choice((None, 1, 3))
        self.reference.keys[self.call] = tx.id
        queue, before = self.manager.queue(source), len(attempt_of(tx).work.accounts)

        def move() -> int:
            if source == "in.dead":
                return int(queue.redrive(limit=limit, transaction=tx))
            return int(queue.move(target, limit=limit, transaction=tx))

        count, _ = self.ask(move, LeaseLost)
        if count is None:
            return None
        attempt = attempt_of(tx)
        accounts = attempt.work.accounts[before:]
        batches = [Batch(attempt.client, queue.schema, one.held, attempt) for one in accounts]
        moved = [self._holding(batch, inside=True) for batch in batches]
        assert sum(len(holding.messages) for holding in moved) == count
        for holding in moved:
            intent.said[holding] = dict.fromkeys(holding.messages, model.MOVED)
            holding.free.clear()
        return None

    def do_send(self) -> None:
        queue, intent = self.queue(), Intent(self.name)
        self.reference.calls[self.call] = intent
        rows = self._rows(queue, intent)
        said = self.placing()
        sent, error = self.ask(lambda: queue.send(rows, **said), TransactionAborted)
        if sent:
            assert sent.count == len(rows)
            self._check_receipt(sent.receipt)
        elif error is not None and not isinstance(error, TransactionUnknown):
            self.reference.denied.add(self.call)

    def do_send_inside(self) -> None:
        tx, intent = self.active()
        if tx is None:
            return self.do_begin()
        self._send_to(self.queue().name, tx, intent)
        return None

    def _send_to(self, name: str, tx: Any, intent: Intent) -> None:
        try:
            queue = self.manager.queue(name)
        except QueueNotFound:
            return
        aside = Intent(self.name)
        rows = self._rows(queue, aside)
        said = self.placing()
        sent, _ = self.ask(lambda: queue.send(rows, transaction=tx, **said))
        if sent:
            intent.sends.update(aside.sends)

    def _published_rows(self, intent: Intent) -> tuple[list[dict[str, Any]], dict[str, int]]:
        """Draw what is published, and how many of it each queue must get."""
        expected: Counter[str] = Counter()
        drawn = []
        for _ in range(self.simulation.random.randint(1, 4)):
            key = self.simulation.random.choice(list(WANTED))
            number = self.simulation.number()
            drawn.append({"n": number, "id": self._id(number), "k": key})
            for name in WANTED[key]:
                queue_id = self.manager.queue(name).info.queue_id
                copy = self.reference.copies[number, queue_id] = self.simulation.number()
                self.reference.place[copy] = ("staged",)
                intent.sends[copy] = queue_id
                expected[name] += 1
        return drawn, dict(expected)

    def do_publish(self) -> None:
        events, intent = self.manager.exchange("events"), Intent(self.name)
        self.reference.calls[self.call] = intent
        drawn, expected = self._published_rows(intent)
        said = self.placing()
        published, error = self.ask(
            lambda: events.publish(drawn, routing_key_column="k", **said), TransactionAborted
        )
        if published:
            assert (published.count, published.queues) == (len(drawn), expected)
            if expected:
                self._check_receipt(published.receipt)
        elif error is not None and not isinstance(error, TransactionUnknown):
            self.reference.denied.add(self.call)

    def do_publish_inside(self) -> None:
        tx, intent = self.active()
        if tx is None:
            return self.do_begin()
        events, aside = self.manager.exchange("events"), Intent(self.name)
        drawn, _ = self._published_rows(aside)
        said = {**self.placing(), "keep_order": self.simulation.random.random() < 0.5}
        published, _ = self.ask(
            lambda: events.publish(drawn, routing_key_column="k", transaction=tx, **said)
        )
        if published:
            intent.sends.update(aside.sends)
        return None

    def do_bind(self) -> None:
        """Bind a queue by a key that nobody publishes with, or unbind it."""
        events = self.manager.exchange("events")
        change = self.simulation.random.choice((events.bind, events.unbind))
        self.ask(lambda: change("out", self.simulation.random.choice(("x", "y"))))
