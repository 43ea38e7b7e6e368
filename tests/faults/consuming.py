"""What the simulator's clients receive, settle and drain."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from zlib import crc32

from tests.faults.reference import (
    QUEUES,
    Holding,
    Intent,
)
from tests.inside import attempt_id, claims_of
from txnqueue.core import model
from txnqueue.errors import (
    HandlerFailed,
    LeaseLost,
    SettlementPending,
    TransactionAborted,
    TransactionUnknown,
)

SHARED_RUN = "nightly"
"""The run that the drains of several clients may belong to."""
KINDS = {
    "accept": model.ACCEPTED,
    "release": model.RELEASED,
    "reject": model.REJECTED,
    "move": model.MOVED,
    "refuse": model.RELEASED,
}


class Consuming:
    """What a client does to get messages, and to be done with them."""

    simulation: Any
    reference: Any
    call: str
    ask: Any
    leased: list[Any]
    active: Any
    began: int
    runtime: Any
    queue: Any
    open: dict[Any, Any]
    doubtful: bool
    quiet: Any
    name: str
    manager: Any
    do_begin: Callable[[], None]
    _rows: Any

    def _holding(self, batch: Any, inside: bool) -> Holding:
        found = list(self.reference.ids(batch))
        assert len(batch) == len(found), "P2 a batch names a message twice"
        taken = self.reference.claimed_by[self.call]
        assert set(found) == taken or (self.doubtful and taken.issuperset(found)), "not as claimed"
        if self.simulation.random.random() < 0.1 and not self.simulation.fault_rate:
            carried = [row["n"] for row in batch.messages()]
            assert carried == self.reference.numbers(found)
        return Holding(batch, set(found), inside, set(found))

    def do_receive(self) -> None:
        queue = self.queue()
        limit = self.simulation.random.choice((1, 2, 5, 20))
        began_ms = self.runtime.now_ms()
        self.reference.not_given.add(self.call)
        batch, _ = self.ask(lambda: queue.receive(limit), LeaseLost)
        if batch is None:
            return
        self.reference.not_given.discard(self.call)
        holding = self._holding(batch, inside=False)
        if holding.messages:
            self.leased.append(holding)
        elif self.quiet and not self.doubtful and began_ms == self.runtime.now_ms():
            left = self.reference.ready(queue.info.queue_id, began_ms, actor=self.name)
            assert not left, f"P2 nothing was received, and {left} are available"

    def do_receive_inside(self) -> None:
        tx, intent = self.active()
        if tx is None:
            return self.do_begin()
        queue, limit = self.queue(), self.simulation.random.choice((1, 2, 5, 20))
        self.reference.keys[self.call] = tx.id
        receive = partial(queue.receive, limit, transaction=tx)
        batch, error = self.ask(receive, LeaseLost, TransactionAborted)
        if isinstance(error, TransactionAborted):  # another attempt of its id goes on here
            self.reference.denied.add(attempt_id(tx))
        if batch is not None:
            holding = self._holding(batch, inside=True)
            if any(holding.messages & other.messages for other in intent.said):
                del self.open[tx]  # it took over a lease of its own that it was to settle
            intent.said[holding] = {}
        return None

    # -------------------------------------------------------------------------- settling

    def _choose(self, holding: Holding) -> tuple[str, set[int], Any]:
        """Choose what becomes of which messages of a batch that are not settled yet."""
        rest = sorted(holding.free)
        kinds = list(KINDS)
        if claims_of(holding.batch)[0].info.name not in QUEUES:  # it may have other columns by now
            kinds.remove("move")
        kind = self.simulation.random.choice(kinds)
        if len(rest) > 1 and self.simulation.random.random() < 0.5:
            rest = rest[: self.simulation.random.randint(1, len(rest) - 1)]
        if holding.messages.difference(rest):
            ids = self.reference.ids(holding.batch)
            named = {ids[message] for message in rest}
            # What was published to two queues and moved into one of them stands there twice.
            return kind, {m for m in holding.free if ids[m] in named}, sorted(named)
        return kind, set(rest), None

    def _settling(self, batch: Any, kind: str, matching: Any, **transaction: Any) -> Any:
        """Write down the call that settles messages so."""
        if kind == "move":
            here = claims_of(batch)[0].info.name
            target = next(name for name in QUEUES if name != here)
            return lambda: batch.move(target, matching=matching, **transaction)
        if kind == "refuse":
            return lambda: batch.modify(
                matching=matching, delivery_failed=False, undeliverable_here=True, **transaction
            )
        return lambda: getattr(batch, kind)(matching=matching, **transaction)

    def do_settle(self) -> None:
        held = [h for h in self.leased if h.free]
        if not held:
            return self.do_receive()
        holding = self.simulation.random.choice(held)
        kind, chosen, matching = self._choose(holding)
        self.reference.settles[self.call] = dict.fromkeys(chosen, KINDS[kind])
        settle = self._settling(holding.batch, kind, matching)
        count, error = self.ask(settle, LeaseLost, SettlementPending)
        if error is None:
            assert count == len(chosen)
            assert self.reference.landed[self.call] == ["settle"], "P2 it was said to be settled"
            holding.free -= chosen
        else:
            if not isinstance(error, TransactionUnknown):
                self.reference.denied.add(self.call)
            self.leased.remove(holding)
        return None

    def do_settle_inside(self) -> None:
        tx, intent = self.active()
        held = [h for h in intent.said if h.inside and h.free] if intent else []
        if not held:
            return self.do_receive_inside()
        self._settle_in(tx, intent, self.simulation.random.choice(held))
        return None

    def do_keep(self) -> None:
        """Let the commit leave what is not spoken of with this client."""
        _, intent = self.active()
        held = [h for h in intent.said if h.inside and h.free] if intent else []
        if not held:
            return self.do_receive_inside()
        holding = self.simulation.random.choice(held)
        holding.keeping = True
        holding.batch.keep()
        return None

    def do_adopt(self) -> None:
        """Settle in a transaction what is held under a lease."""
        tx, intent = self.active()
        inside = {m for h in intent.said if h.inside for m in h.messages} if intent else set()
        held = [h for h in self.leased if h.free and h.messages.isdisjoint(inside)]
        if tx is None or not held:
            return self.do_receive()
        self._settle_in(tx, intent, self.simulation.random.choice(held))
        return None

    def _settle_in(self, tx: Any, intent: Intent, holding: Holding) -> None:
        kind, chosen, matching = self._choose(holding)
        settle = self._settling(holding.batch, kind, matching, transaction=tx)
        count, error = self.ask(settle, LeaseLost)
        if error is None:
            assert count == len(chosen)
            holding.free -= chosen
            said = intent.said.setdefault(holding, {})
            said.update(dict.fromkeys(chosen, KINDS[kind]))

    def do_extend(self) -> None:
        held = [h for i in self.open.values() for h in i.said if h.inside and h.messages]
        held += [h for h in self.leased if h.free == h.messages]
        if held:
            holding = self.simulation.random.choice(held)
            self.ask(lambda: holding.batch.extend_lease(60), LeaseLost, SettlementPending)

    def do_drain(self) -> None:
        source, target = self.manager.queue("in"), self.manager.queue("out")
        run_id = self.simulation.random.choice((None, SHARED_RUN))
        if run_id:
            self.reference.keys[self.call] = f"{run_id}/"
        fails = self.simulation.random.random() < 0.3
        ahead = 0 if self.simulation.ordered else crc32(self.call.encode()) % 2
        if ahead:
            self.reference.ahead.add(self.call)

        def handler(batch: Any, tx: Any) -> None:
            self.reference.keys[self.call] = f"{tx.id.rpartition('/')[0]}/"
            self.reference.follow()
            intent = self.reference.intents[attempt_id(tx)] = Intent(self.name, tx.id)
            messages = set(self.reference.ids(batch))
            handed = Holding(batch, messages, True, set(messages))
            intent.said[handed] = {}
            try:
                if fails:
                    raise ValueError("bad row")
                rows = self._rows(target, intent)
                target.send(rows, transaction=tx)
                self._work_beside(tx, intent, handed)
            except Exception:
                if len(messages) == 1:  # a run in which nothing has succeeded tries others then
                    self.reference.passed_over[self.call] |= messages
                raise

        until = self.simulation.random.choice(("snapshot", "empty"))
        if until == "snapshot":
            self.reference.snapshots[self.call, source.info.queue_id] = self.began
        result, _ = self.ask(
            lambda: source.drain(
                handler,
                batch_size=self.simulation.random.choice((1, 1, 2) if ahead else (1, 3, 10)),
                run_id=run_id,
                until=until,
                max_messages=self.simulation.random.choice((None, 5)),
                errors_max=2,
                ahead=ahead,
            ),
            HandlerFailed,
            LeaseLost,
            *((TransactionAborted,) if run_id == SHARED_RUN else ()),  # a rival took it over
        )
        if result:
            self.reference.counts["drained"] += result.messages

    def _work_beside(self, tx: Any, intent: Intent, handed: Holding) -> None:
        """Do more in a handler, perhaps in the lane that the drain claims from next."""
        dice = self.simulation.random
        if dice.random() < 0.2:
            batch = self.queue().receive(dice.choice((1, 2)), transaction=tx)
            messages = set(self.reference.ids(batch))
            intent.said[Holding(batch, messages, True, set(messages))] = {}
            self.reference.counts["received in a handler"] += len(messages)
        inside = {m for h in intent.said for m in h.messages}
        held = [h for h in self.leased if h.free and h.messages.isdisjoint(inside)]
        chosen = dice.choice((*(h for h in (handed,) if dice.random() < 0.2), *held, None))
        if chosen is not None:
            self._settle_beside(tx, intent, chosen)

    def _settle_beside(self, tx: Any, intent: Intent, holding: Holding) -> None:
        kind, messages, matching = self._choose(holding)
        self._settling(holding.batch, kind, matching, transaction=tx)()
        holding.free -= messages
        intent.said.setdefault(holding, {}).update(dict.fromkeys(messages, KINDS[kind]))
        where = "handed" if holding.inside else "settled"
        self.reference.counts[f"{where} in a handler"] += len(messages)
