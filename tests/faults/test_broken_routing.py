"""Exchanges that are wrong on purpose: the checks must catch every one of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

import pytest

from tests.faults.simulation import simulate
from tests.faults.test_broken_variants import Break, Catch, crashing, without
from txnqueue.core import model
from txnqueue.errors import StoreCorrupt
from txnqueue.messages import publish
from txnqueue.storage.payload import Run, routes
from txnqueue.storage.payload.arrangement import Arranged
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import memory_manager
from txnqueue.transactions import commit
from txnqueue.transactions.attempt import Attempt


def simulating() -> None:
    """Look for a violation in some histories of the whole queue."""
    for seed in range(10):
        simulate(seed, steps=100)


def binding_elsewhere() -> None:
    """Publish after somebody else has bound and unbound."""
    store = MemoryStore()
    mine, other = (memory_manager(store, name=name) for name in "ab")
    for name in ("left", "right"):
        mine.create_queue(name, "n long", dead_letter=False)
    events = mine.create_exchange("events", "direct", "n long")
    events.bind("left", "k")
    assert events.publish([{"n": 1}], routing_key="k").queues == {"left": 1}
    other.exchange("events").bind("right", "k")
    other.exchange("events").unbind("left", "k")
    found = events.publish([{"n": 2}], routing_key="k").queues
    assert found == {"right": 1}, f"published by bindings of former times: {found}"


def creating_twice() -> None:
    """Create one exchange by two managers, the second while the first one's append is made."""
    store, made = MemoryStore(), list[Any]()
    first, second = (memory_manager(store, name=name) for name in "ab")
    first.create_queue("q", "n long", dead_letter=False)
    append = store.journal.append

    def race(units: Any, metadata: Any) -> Any:
        if not made:
            made.append(None)
            second.create_exchange("events", "fanout", "n long", exist_ok=True).bind("q")
        return append(units, metadata)

    store.journal.append = race
    first.create_exchange("events", "fanout", "n long", exist_ok=True)
    entries = store.journal.read([model.CATALOG]).entries
    created = [e for e in entries if e.kind == model.EXCHANGE_CREATED]
    assert len(created) == 1, "an exchange was created twice, and lost its bindings"


def queue_by_queue(patch: pytest.MonkeyPatch) -> None:
    """Commit what is published for each queue on its own."""
    real = Attempt.add_sends

    def hasty(self: Attempt, sends: Any) -> None:
        for send in sends:
            if send.published is None or not self.work.sends:
                real(self, [send])
                continue
            alone = Attempt(self.client)
            alone.check_active()
            real(alone, [send])
            commit.commit(alone)

    patch.setattr(Attempt, "add_sends", hasty)


def former_bindings(patch: pytest.MonkeyPatch) -> None:
    """Publish by the bindings that were read first."""
    real, known = publish.routes_of, dict[Any, Any]()

    def remembered(topology: Any, info: Any, *args: Any, **named: Any) -> Any:
        return real(known.setdefault(info.name, topology), info, *args, **named)

    patch.setattr(publish, "routes_of", remembered)


def once_per_binding(patch: pytest.MonkeyPatch) -> None:
    """Post a message to a queue as often as the queue is bound."""
    real = routes.places_of
    patch.setattr(publish, "places_of", lambda route: real(route) * 2)


def routes_mixed_up(patch: pytest.MonkeyPatch) -> None:
    """Take rows that stand together for rows that go to the same queues."""

    def runs(self: Arranged) -> list[Run]:
        found, first = [], 0
        for place, rows in groupby(self.places):
            count = len(list(rows))
            lane, *rest = place
            run: Any = (lane, first, count, *rest, self.routes[first])
            found.append(Run(*run))
            first += count
        return found

    patch.setattr(Arranged, "runs", property(runs))


VARIANTS: dict[str, tuple[Break, Catch]] = {
    "published queue by queue": (queue_by_queue, crashing("publish")),
    "bindings of former times": (former_bindings, binding_elsewhere),
    "a position for each binding": (once_per_binding, simulating),
    "rows for others are taken along": (routes_mixed_up, simulating),
    "an exchange created twice": (
        without(lambda c: c.shard == model.CATALOG and c.sequence_from is not None),
        creating_twice,
    ),
}


@pytest.mark.parametrize("catch", [binding_elsewhere, creating_twice])
def test_the_checks_pass_when_nothing_is_broken(catch: Callable[[], None]) -> None:
    catch()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_exchange_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, catch = VARIANTS[name]
    broken(monkeypatch)
    with pytest.raises((AssertionError, StoreCorrupt)):
        catch()
