"""One store, some clients, one source of chance; a seed says everything."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from unittest import mock

import greenlet

from tests.faults import audit
from tests.faults.clients import ACTIONS, Client
from tests.faults.consuming import SHARED_RUN
from tests.faults.fleeting import FLEETING, PASSING
from tests.faults.grouping import GroupingJournal, LostAnswer
from tests.faults.pasts import everything
from tests.faults.reference import (
    COMES_AND_GOES,
    LEASE_SECONDS,
    QUEUES,
    Reference,
)
from tests.inside import client_of
from txnqueue.admin import creation
from txnqueue.core import model
from txnqueue.core.settings import RetryPolicy
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock

STEPS = 200
WINDOWS = (None, 15, 120)
"""In seconds, within which ``in`` leaves out duplicates; shorter than clocks are apart."""


_NAMES, _WEIGHTS = list(ACTIONS), list(ACTIONS.values())


class Simulation:
    """One store, some clients, one source of chance."""

    def __init__(self, chance: random.Random, *, grouped: bool = False) -> None:
        self.random = chance
        self.main = greenlet.getcurrent()
        self.clock = Clock()
        self.late: list[Any] = []
        self.fault_rate = self.switch_rate = 0.0
        self._number = 0
        self.retry = RetryPolicy(chance.choice((2, 4, 12)), 3600, 0.0)
        self.skew_ms = chance.choice((0, 2_000, 1_000_000))
        self.store = MemoryStore(step=self._step)
        self._groups = GroupingJournal(self._step, chance, self.pause) if grouped else None
        if self._groups:
            self.store.journal = self._groups
        limits = chance.choice((1, 2, 4)), chance.choice(WINDOWS), chance.choice((0, 0, 20))
        self.reference = Reference(self.store, self.clock, *limits)
        if chance.random() < 0.5:
            self._read_ids_in_the_payload()
        self.clients: list[Client] = []
        self.lanes = chance.choice((1, 1, 2, 3))
        self.ordered = chance.random() < 0.3
        self._create()
        self.clients = [Client(self, f"consumer {n}") for n in range(chance.randint(2, 4))]
        self.fault_rate = chance.choice((0.0, 0.01, 0.05))
        if self._groups:
            self._groups.fault_rate = self.fault_rate
        self.switch_rate = chance.choice((0.0, 0.1, 0.4))

    def _read_ids_in_the_payload(self) -> None:
        """Let sends not write their ids beside their positions, as large ones do not."""
        stage = self.store.payload.stage
        self.store.payload.stage = lambda send, rows: [
            replace(run, ids=None) for run in stage(send, rows)
        ]

    def _create(self) -> None:
        creator = Client(self, "creator")
        with mock.patch.object(creation, "SLICE_WIDTH", self.random.choice((4, 20, 1_000))):
            creation.create_store(client_of(creator.manager))
        for name in (*QUEUES, COMES_AND_GOES):
            queue = self.create(creator, name, self.lanes, name == "in")
            if name == "in":
                self.reference.unique.add(queue.info.queue_id)
                if self.ordered:
                    self.reference.ordered.add(queue.info.queue_id)
            self.reference.dead_of[queue.info.queue_id] = queue.info.dead_letter_id
        events = creator.manager.create_exchange("events", "topic", "n long, id long not null")
        for name, pattern in (("in", "*.in"), ("in", "#.both"), ("in", "to.both")):
            events.bind(name, pattern)
        for pattern in ("to.out", "to.both"):
            events.bind("out", pattern)
        creator.manager.create_queue(
            FLEETING,
            "n long",
            lanes=self.lanes,
            lease_seconds=LEASE_SECONDS,
            dead_letter=False,
            durable=False,
        )
        creator.manager.create_exchange(PASSING, "fanout", "n long").bind(FLEETING)
        self.reference.seen = len(self.store.journal.commits)

    def create(self, client: Client, name: str, lanes: int, dead_letter: bool) -> Any:
        return client.manager.create_queue(
            name,
            "n long, id long",
            lanes=lanes,
            group_by="n",
            lease_seconds=LEASE_SECONDS,
            deliveries_max=self.reference.deliveries_max,
            redelivery_delay_seconds=self.reference.delay_seconds,
            redelivery_delay_seconds_max=self.reference.delay_seconds_max,
            dead_letter=dead_letter,
            ordered=self.ordered and name == "in",
            message_id="id",
            duplicate_window_seconds=self.reference.window_seconds if name == "in" else None,
            exist_ok=True,
        )

    def number(self) -> int:
        """Draw a number that was not drawn before."""
        self._number += 1
        return self._number

    def key(self) -> str:
        """Draw a transaction id that others draw too, for a while."""
        return f"k{self._number // 100}-{self.random.randrange(3)}"

    def _step(self, name: str) -> None:
        """Between two steps of a store call another client may act."""
        if greenlet.getcurrent() is not self.main and self.random.random() < self.switch_rate:
            self.main.switch()

    def pause(self) -> None:
        """A client waits before it tries again."""
        if greenlet.getcurrent() is not self.main:
            self.main.switch()

    def step(self) -> None:
        """Do one action, and whatever else goes on until it begins."""
        while True:
            client = self.random.choice(self.clients)
            self.around(client)
            if client.dead:
                continue
            if client.running is None:
                client.start(self.random.choices(_NAMES, _WEIGHTS)[0])
                self.reference.follow()
                return
            client.resume()
            self.reference.follow()

    def around(self, client: Client) -> None:
        """Time passes, late replies land, processes die and come back."""
        chance = self.random.random()
        if chance < 0.05:
            self.clock.advance(self.random.choice((1, 10, LEASE_SECONDS + 1, 500)))
        if self.late and chance < 0.2:
            self.land_late()
        if client.dead or chance > 0.995:
            if not client.dead and self.random.random() < 0.5:
                client.kill()
                self.reference.counts["killed"] += 1
            consumer = self.random.choice((client.runtime.consumer, f"consumer {self.number()}"))
            replaced = client.dead or len(self.clients) > 5
            if not replaced:
                self.reference.counts["zombies"] += 1
                self.clients.append(Client(self, consumer))
            elif client.dead:
                self.clients[self.clients.index(client)] = Client(self, consumer)

    def land_late(self) -> None:
        try:
            self.late.pop(self.random.randrange(len(self.late)))()
            self.reference.counts["landed late"] += 1
        except (AppendConflict, LostAnswer):
            pass

    def settle_down(self) -> None:
        """Let everybody finish, then find every message in exactly one place."""
        self.fault_rate = self.switch_rate = 0.0
        if self._groups:
            self._groups.fault_rate = 0.0
        for client in self.clients:
            while client.running is not None:
                client.resume()
        while self.late:
            self.land_late()
        if self._groups:
            self._groups.finish()
        self.reference.follow()
        self.clock.advance(7 * 24 * 3600)
        last = Client(self, "the last one")
        for key in sorted(self.reference.waiting()):
            last.call = last.runtime.run_id = "decide at last"
            last.manager.commit(key)
        self.reference.follow()
        self.clock.advance(24 * 3600)  # what these keep is held for a lease from now on
        last.runtime.run_id = "recover at last"
        last.manager.recover()
        self.reference.follow()
        for client in self.clients:
            if not client.dead:
                client.find_fleeting()
        assert self.reference.closed == self.reference.dropped, "P5 nothing holds a drop back"
        queues = [
            n for n in (*QUEUES, "in.dead", COMES_AND_GOES) if n in last.manager.list_queues()
        ]
        left = {
            m
            for m, place in self.reference.place.items()
            if place[0] in ("ready", "held")
            and m not in self.reference.twice
            and not self.reference.expired(m, self.clock.now_ms)
            and m not in self.reference.purging
        }
        self.reference.disturbed.clear()
        received = [m for name in queues for m in self._empty(last, name)]
        self.reference.follow()  # a receive that finds only expired messages takes them out
        carried = sorted(self.reference.numbers(left))
        assert sorted(received) == carried, "P2 everything comes once"
        assert not [m for m, p in self.reference.place.items() if p[0] not in ("gone", "staged")]
        prepared, preparing = self.reference.prepared, self.reference.preparing
        explicit = self.reference.explicit | {prepared[a] for a in preparing & prepared.keys()}
        entries = everything(self.store)
        audit.check(entries, explicit)
        _check_numbers(entries)
        last.runtime.run_id = "verify at last"
        proof = last.manager.history.verify()
        assert proof.ok, str(proof)

    def _empty(self, client: Client, name: str) -> list[int]:
        """Receive and accept a queue's messages until there are none."""
        queue, received = client.manager.queue(name), list[Any]()
        while True:
            client.call = client.runtime.run_id = f"empty {name} {self.number()}"
            batch = queue.receive(1_000)
            if not len(batch) and queue.depth() == queue.in_flight() == 0:
                return received
            self.reference.follow()
            found = self.reference.ids(batch)
            self.reference.settles[client.call] = dict.fromkeys(found, model.ACCEPTED)
            if found:
                received += [row["n"] for row in batch.messages()]
                batch.accept()
            self.reference.follow()


def _check_numbers(entries: Iterable[model.Entry]) -> None:
    """Check that the batches of the run that all share were committed in turn, none left out."""
    prefix = f"{SHARED_RUN}/"
    committed = sorted(
        (entry for entry in entries if entry.kind == model.COMMITTED), key=lambda e: e.place
    )
    found = [e.stream[len(prefix) :] for e in committed if e.stream.startswith(prefix)]
    numbers = [int(number) for number in found if number != "end"]
    assert numbers == list(range(len(numbers))), f"P2 a run committed {numbers}"


def simulate(seed: int, steps: int = STEPS) -> Counter[str]:
    """Run one seed, and count what happened; with odd seeds the clients share a process."""
    simulation = Simulation(random.Random(seed), grouped=seed % 2 == 1)
    try:
        for _ in range(steps):
            simulation.step()
        simulation.settle_down()
    except BaseException:
        print(f"Again with: simulate(seed={seed}, steps={steps})")
        raise
    return simulation.reference.counts
