"""The whole queue in memory: several clients, interleaved within their calls, against a model.

A seeded simulator draws everything: who acts next and what it does, where inside a call it
is interrupted for another client, what the clock and each client's own idea of it say, which
call fails, lands unheard or lands late, who dies. A model that knows single messages only
follows every commit and checks the promises P1 to P6 and P9 at each one, and everything that
a client is told.

A failure names its seed: ``simulate(seed)`` runs it again.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.conftest import LONG
from tests.faults import fleeting
from tests.faults.clients import ACTIONS, Client
from tests.faults.reference import LEASE_SECONDS
from tests.faults.simulation import Simulation, simulate

SEEDS, CHUNKS = (20_000 if LONG else 120), 20

TOTALS: Counter[str] = Counter()
SEEN = (
    *("committed", "rolled_back", "prepared", "decided", "drained", "recovered", "dead letters"),
    *("take-overs", "tombstones", "zombies", "fenced", "kept", "killed", "crashes", "in doubt"),
    *("conflicts", "append lost", "append late", "landed late", "append conflict"),
    *("append fails", "append crash", "stage fails", "stage crash", "read fails", "read crash"),
    *("Busy", "LeaseLost", "TransactionAborted", "TransactionFinished"),
    "TransactionNotFound",
    *("ahead", "HandlerFailed", "already committed", "expired", "purged", "moved", "moved inside"),
    *("published", "bound"),
    *("purged in flight", "refused"),
    *("received in a handler", "handed in a handler", "settled in a handler"),
    "duplicates",
    *("dropped", "held back", "altered", "QueueClosed", "QueueNotFound"),
    *fleeting.SEEN,
    *("compacted", "horizons", "archived", "slices", "add crash", "remove crash", "remove fails"),
)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_promise_is_broken_by_any_seed(chunk: Any) -> None:
    size = SEEDS // CHUNKS
    for seed in range(chunk * size, (chunk + 1) * size):
        TOTALS.update(simulate(seed))


@pytest.mark.parametrize("what", SEEN)
def test_everything_that_can_go_wrong_did(what: Any) -> None:
    """A simulator that never meets a conflict or a crash proves nothing."""
    for seed in range(SEEDS, 10 * SEEDS):  # what is rare may be in none of the seeds above
        if TOTALS[what]:
            return
        TOTALS.update(simulate(seed))
    raise AssertionError(f"no seed met it: {what}")


class QueueMachine(RuleBasedStateMachine):
    """The same clients, driven by Hypothesis, which shrinks what it finds."""

    @initialize(chance=st.randoms(use_true_random=False))
    def begin(self, chance: Any) -> None:
        self.simulation = Simulation(chance)

    @rule(action=st.sampled_from(list(ACTIONS)), who=st.integers(0, 5))
    def act(self, action: Any, who: Any) -> None:
        clients = self.simulation.clients
        client = clients[who % len(clients)]
        if client.running is not None:
            client.resume()
        elif not client.dead:
            client.start(action)

    @rule(seconds=st.sampled_from([1, LEASE_SECONDS + 1]))
    def wait(self, seconds: float) -> None:
        self.simulation.clock.advance(seconds)

    @rule(who=st.integers(0, 5))
    def die_and_come_back(self, who: Any) -> None:
        clients = self.simulation.clients
        client = clients[who % len(clients)]
        if not client.dead:
            client.kill()
        clients[clients.index(client)] = Client(self.simulation, client.runtime.consumer)

    @rule()
    def hear_late(self) -> None:
        if self.simulation.late:
            self.simulation.land_late()

    @invariant()
    def promises_hold(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.reference.follow()

    def teardown(self) -> None:
        if hasattr(self, "simulation"):
            self.simulation.settle_down()


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(
    max_examples=400 if LONG else 40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
