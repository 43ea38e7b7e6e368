"""A controller that pipelines at random: what a discharge accepts has happened, all of it.

It waits for nothing but txn-ids, and goes on with links, deliveries and sessions that have long
ended. What a discharge accepts must be exactly what the controller asked for in the transaction;
of everything else nothing must be left.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import LONG
from tests.faults.audit import check
from tests.specifications.controllers import Pipeline
from txnqueue.protocols.amqp import (
    Accepted,
    AmqpError,
    AmqpValue,
    Detach,
    Disposition,
    Flow,
    Header,
    Modified,
    Properties,
    Received,
    Rejected,
    Released,
    Role,
    Source,
    TransactionalResource,
    TransactionalState,
    Transfer,
)
from txnqueue.protocols.amqp.types import DeliveryState
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, memory_manager

SESSIONS = 2
NUMBERS, FLAGS = range(8), [True, False]
CHOICES: dict[str, Any] = {
    "at": range(SESSIONS),
    "txn": [None, 0, 1, 2, 3],
    "which": NUMBERS,
    "first": NUMBERS,
    "link": NUMBERS,
    "credit": range(1, 4),
    "more": [0, 0, 0, 1, 2, -1],
    "outcome": [Accepted(), Accepted(), Released(), Modified(), None],
    "odd": [Accepted(), None, Received(0, 0), Modified(undeliverable_here=True)],
    "body": ["good", "wrong", "text", "octets", "elsewhere"],
    "kind": ["queue", "anonymous", "accepted only", "unknown"],
    "name": "abc",
    "fail": [False, False, False, True],
    "seconds": [1, 100, 400],
    "ticks": [True, True, False],
}
"""What an action's argument may be, by its name; flags where nothing is said."""
USUAL = ["post", "post", "retire", "retire", "retire", "acquire", "post_in_parts", "discharge"]
"""What a controller does as it should be done."""
ODD = [
    *["post_anyhow"] * 4,
    "post_the_rest_anyhow",
    "acquire_anyhow",
    "retire_anyhow",
    "settle_anyhow",
    "attach_sender",
    "attach_receiver",
    "detach",
    "end_session",
    "pass_time",
]
"""What one does that is in trouble, or behind."""


@dataclass
class Posting:
    """What the controller transfers: a message, or a part of one so far."""

    n: int
    session: Pipeline
    delivery_id: int
    settled: bool
    complete: bool


@dataclass
class Asked:
    """What the controller asks for in one transaction."""

    home: Pipeline
    postings: list[Posting] = field(default_factory=list)
    outcomes: dict[tuple[Pipeline, int], Any] = field(default_factory=dict)
    settled: set[tuple[Pipeline, int]] = field(default_factory=set)
    discharged: bool = False

    @property
    def worth_it(self) -> bool:
        """Whether it is live, as far as the controller knows, and has work."""
        return not self.discharged and bool(self.postings or self.outcomes)


class Controller:
    """One connection, two sessions, one queue, and a reader beside."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, shared = chance, chance.random() < 0.5
        self.clock, self.store = Clock(), MemoryStore()
        self.manager = memory_manager(self.store, self.clock, "broker")
        self.reader = memory_manager(self.store, self.clock, "reader")
        self.queue = self.reader.create_queue("q", "n long", dead_letter=False, deliveries_max=100)
        self.queue.send([{"n": n} for n in range(8)])
        self.there, self.next = set(range(8)), itertools.count(8)
        self.connection = TransactionalResource(
            self.manager,
            capabilities=["amqp:local-transactions", "amqp:multi-txns-per-ssn"]
            + ["amqp:multi-ssns-per-txn"] * shared,
        ).connect()
        self.pipes = [Pipeline(self.connection) for _ in range(SESSIONS)]
        self.credit = chance.choice([2, 20])
        self.handles: list[list[int]] = [[] for _ in range(SESSIONS)]
        self.asked: dict[bytes, Asked] = {}
        self.parts: list[tuple[int, int, Posting]] = []
        self.shared = shared
        for at in range(SESSIONS):
            self._declare(at)

    def work(self, steps: int) -> None:
        """Do something, mostly what is usual."""
        for _ in range(steps):
            action = self.chance.choice(ODD if self.chance.random() < 0.12 else USUAL)
            method = getattr(self, action)
            names = inspect.signature(method).parameters
            method(**{name: self.chance.choice(CHOICES.get(name, FLAGS)) for name in names})

    # -------------------------------------------------------------------- transactions

    def _declare(self, at: int) -> None:
        with self._refusable(), contextlib.suppress(KeyError):
            self.asked[self.pipes[at].declare()] = Asked(self.pipes[at])

    def discharge(self, which: int, fail: bool) -> None:
        worth_it = [txn_id for txn_id, one in self.asked.items() if one.worth_it]
        if not worth_it:
            return
        self._discharge(worth_it[which % len(worth_it)], fail)
        self._declare(self.chance.randrange(SESSIONS))

    def _discharge(self, txn_id: bytes, fail: bool) -> None:
        asked, told = self.asked[txn_id], ""
        with self._refusable(), contextlib.suppress(KeyError):
            told = asked.home.discharge(txn_id, fail)
        if told == "accepted":
            assert not asked.discharged, "accepted twice"
            asked.discharged = True
            if not fail:
                self._committed(asked)

    def _committed(self, asked: Asked) -> None:
        """What it asked for is there, and may be relied upon from now on."""
        for one in asked.postings:
            told = one.session.outcomes().get(one.delivery_id)
            outcome = told.outcome if isinstance(told, TransactionalState) else told
            if isinstance(outcome, Rejected):
                assert not one.settled, "a rejection that nobody was told of"
                continue
            assert one.complete, "half a delivery"
            self.there.add(one.n)
        for (session, number), outcome in asked.outcomes.items():
            came = _came(session).get(number)
            assert came is not None, "an outcome of what has never come"
            assert outcome is None or isinstance(outcome, Accepted | Released | Modified)
            if isinstance(outcome, Accepted):
                assert came in self.there, "consumed twice"
                self.there.remove(came)
        assert {row["n"] for row in self.queue.peek_messages(1_000)} <= self.there

    # ------------------------------------------------------------------ as it should be done

    def post(self, at: int, txn: int | None, settled: bool) -> None:
        self._transfer(at, self._link(at, Role.SENDER), self._own(at, txn), "good", settled)

    def acquire(self, at: int, txn: int | None, credit: int) -> None:
        self._flow(at, self._link(at, Role.RECEIVER), self._own(at, txn), credit)

    def retire(self, at: int, which: int, txn: int | None, outcome: Any, settled: bool) -> None:
        known = self.pipes[at].session.unsettled
        if known:
            delivery = list(known.values())[which % len(known)]
            live = delivery.transaction
            txn_id = self._own(at, txn) if live is None else live.txn_id
            self._dispose(at, delivery.delivery_id, 0, txn_id, outcome, settled=settled)

    def post_in_parts(
        self, at: int, txn: int | None, settled: bool, aborted: bool, more: bool
    ) -> None:
        """Two parts; with ``more`` the second one comes later, or never, or in a wrong way."""
        handle, txn_id = self._link(at, Role.SENDER), self._own(at, txn)
        posting = self._transfer(at, handle, txn_id, "part", settled, more=True)
        self.parts.append((at, handle, posting))
        if not more:
            self._rest(txn_id, settled=False, aborted=aborted)

    def pass_time(self, seconds: int, ticks: bool) -> None:
        self.clock.advance(seconds)
        if ticks:
            self.connection.tick()

    # --------------------------------------------------------- as a controller in trouble does

    def post_anyhow(self, at: int, link: int, txn: int | None, body: str, settled: bool) -> None:
        self._transfer(at, self._handle(at, link), self._any(txn), body, settled)

    def post_the_rest_anyhow(self, txn: int | None, settled: bool, aborted: bool) -> None:
        if self.parts:
            self._rest(self._any(txn), settled, aborted)

    def acquire_anyhow(self, at: int, link: int, txn: int, whole: bool) -> None:
        self._flow(at, None if whole else self._handle(at, link), self._any(txn), 1)

    def retire_anyhow(
        self, at: int, first: int, more: int, txn: int | None, odd: Any, *, settled: bool
    ) -> None:
        self._dispose(at, first, more, self._any(txn), odd, settled=settled)

    def settle_anyhow(self, at: int, which: int, txn: int, settled: bool) -> None:
        txn_id = self._any(txn)
        state = None if txn_id is None else TransactionalState(txn_id)
        frame = Disposition(role=Role.SENDER, first=which, settled=settled, state=state)
        with self._refusable():
            self.pipes[at].do(frame)

    def attach_sender(self, at: int, kind: str) -> None:
        address = {"anonymous": None, "unknown": "nothing"}.get(kind, "q")
        source = Source(outcomes=("amqp:accepted:list",)) if kind == "accepted only" else None
        with self._refusable():
            handle = self.pipes[at].sender(address, source=source)
            self.handles[at].append(handle)
            link = self.pipes[at].session.links.get(handle)
            if link is not None:
                link._credit = self.credit

    def attach_receiver(self, at: int, name: str, credit: int) -> None:
        with self._refusable():
            self.handles[at].append(self.pipes[at].receiver("q", credit, name=name))

    def detach(self, at: int, link: int, closed: bool) -> None:
        with self._refusable():
            self.pipes[at].do(Detach(handle=self._handle(at, link), closed=closed))

    def end_session(self, at: int) -> None:
        """Let a session end, or begin a new one if it has."""
        if self.pipes[at].session._open:
            self.pipes[at].session.end()
        else:
            self.pipes[at].frames += self.pipes[at].session.frames()
            self.pipes[at], self.handles[at] = Pipeline(self.connection), []
            self._declare(at)

    def end(self) -> None:
        """Discharge what is live, and compare what is left with what was accepted."""
        for txn_id, asked in self.asked.items():
            if not asked.discharged:
                self._discharge(txn_id, fail=False)
        self.connection.close()
        self.clock.advance(10_000)
        self.reader.recover()
        manager = memory_manager(self.store, self.clock, "fresh")
        fresh = manager.queue("q")
        left: list[int] = []
        while len(batch := fresh.receive(100)):
            left += [row["n"] for row in batch.messages()]
        assert sorted(left) == sorted(self.there), (sorted(left), sorted(self.there))
        check(self.store.journal.read_all().entries)
        assert manager.history.verify().ok

    # ------------------------------------------------------------------------- helpers

    @contextlib.contextmanager
    def _refusable(self) -> Any:
        """A server would end the session now; frames that are under way come all the same."""
        with contextlib.suppress(AmqpError):
            yield
        for pipe in self.pipes:
            pipe.frames += pipe.session.frames()

    def _link(self, at: int, role: Role) -> int:
        """A link that is attached to the queue; a new one if there is none."""
        links = self.pipes[at].session.links.values()
        for link in links:
            if link.role is role and getattr(link, "queue_id", None) is not None:
                return int(link.handle)
        if role is Role.SENDER:
            self.attach_sender(at, "queue")
        else:
            self.attach_receiver(at, f"r{at}", 0)
        return self.handles[at][-1] if self.handles[at] else 99

    def _handle(self, at: int, link: int) -> int:
        """One of the last links, attached or not; seldom the control link."""
        known = self.handles[at][-5:]
        return 0 if link == 7 or not known else known[link % len(known)]

    def _own(self, at: int, txn: int | None) -> bytes | None:
        """A transaction that the session may work in, as far as the controller knows."""
        known = [
            txn_id
            for txn_id, one in self.asked.items()
            if not one.discharged and (self.shared or one.home is self.pipes[at])
        ]
        return None if txn is None or not known else known[txn % len(known)]

    def _any(self, txn: int | None) -> bytes | None:
        """Any of the last transactions."""
        known = list(self.asked)[-4:]
        return None if txn is None else known[txn % len(known)] if known else b"unknown"

    def _transfer(
        self,
        at: int,
        handle: int,
        txn_id: bytes | None,
        body: str,
        settled: bool,
        *,
        more: bool = False,
    ) -> Posting:
        asked = self.asked.get(txn_id or b"")
        n, pipe = next(self.next), self.pipes[at]
        number = next(pipe._deliveries)
        settled = settled and asked is not None
        posting = Posting(n, pipe, number, settled, complete=body in ("good", "elsewhere"))
        if asked is not None and not asked.discharged:
            asked.postings.append(posting)
        value = AmqpValue({"n": n})
        payload: Any = {
            "good": (Properties(to="q"), value),
            "elsewhere": (Properties(to="nothing"), value),
            "wrong": (AmqpValue({"n": "text"}),),
            "text": (AmqpValue("text"),),
            "octets": b"octets",
            "part": (Properties(to="q"), Header()),
        }[body]
        with self._refusable():
            pipe.transfer(handle, payload, txn_id, delivery_id=number, settled=settled, more=more)
        if asked is None and not more:
            self._posted_at_once(posting)
        return posting

    def _rest(self, txn_id: bytes | None, settled: bool, aborted: bool) -> None:
        """Transfer the second part of what was begun last."""
        at, handle, posting = self.parts.pop()
        asked = self.asked.get(txn_id or b"")
        settled = settled and asked is not None
        mine = [one for one in self.asked.values() if posting in one.postings]
        if aborted and mine == ([] if asked is None else [asked]):
            for one in mine:
                one.postings.remove(posting)
        elif asked is not None and mine == [asked]:
            posting.complete, posting.settled = True, posting.settled or settled
        elif asked is not None and not asked.discharged:
            asked.postings.append(posting)
        with self._refusable():
            self.pipes[at].do(
                Transfer(
                    handle=handle,
                    delivery_id=posting.delivery_id,
                    settled=settled,
                    aborted=aborted,
                    state=None if txn_id is None else TransactionalState(txn_id),
                    payload=(AmqpValue({"n": posting.n}),),
                )
            )
        if asked is None and not mine:
            self._posted_at_once(posting)

    def _posted_at_once(self, posting: Posting) -> None:
        if posting.session.outcomes().get(posting.delivery_id) == Accepted():
            self.there.add(posting.n)

    def _flow(self, at: int, handle: int | None, txn_id: bytes | None, credit: int) -> None:
        pipe = self.pipes[at]
        known = sum(isinstance(f, Transfer) and f.handle == handle for f in pipe.frames)
        properties = {} if txn_id is None else {"txn-id": txn_id}
        with self._refusable():
            pipe.do(
                Flow(
                    handle=handle,
                    delivery_count=known,
                    link_credit=credit,
                    properties=properties,
                )
            )

    def _dispose(
        self, at: int, first: int, more: int, txn_id: bytes | None, outcome: Any, *, settled: bool
    ) -> None:
        """Say how deliveries end; outside of transactions they are all released."""
        state: DeliveryState = Released()
        if txn_id is not None:
            state = TransactionalState(txn_id, outcome)
        asked = self.asked.get(txn_id or b"")
        if asked is not None and not asked.discharged:
            for number in range(first, first + more + 1):
                if outcome is None and settled:
                    outcome = Released()  # the default one
                if (self.pipes[at], number) in asked.settled:
                    continue  # a range passes over what is settled already
                asked.outcomes[self.pipes[at], number] = outcome
                if settled:
                    asked.settled.add((self.pipes[at], number))
        with self._refusable():
            self.pipes[at].dispose(state, first, first + more, settled=settled)


def _came(session: Pipeline) -> dict[int, int]:
    """Which messages have come in a session, by their delivery ids."""
    return {
        frame.delivery_id: next(one.value["n"] for one in frame.payload if hasattr(one, "value"))
        for frame in session.frames
        if isinstance(frame, Transfer) and frame.delivery_id is not None and not frame.aborted
    }


@settings(max_examples=1_000 if LONG else 60)
@given(st.integers(0, 2**32))
def test_what_a_discharge_accepts_is_all_that_was_asked_for(seed: int) -> None:
    controller = Controller(random.Random(seed))
    controller.work(60)
    controller.end()
