"""Interleavings of what publishes to an exchange, binds to it, drops it and lets it grow.

Each rule of the drop is broken once as well: the search has to find every one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import LONG
from tests.faults.explore import Found, Program, Violation, explore
from tests.faults.test_broken_variants import drops_what_is_prepared, without
from tests.faults.world import World
from tests.inside import client_of
from txnqueue.admin import drop, exchange_alteration
from txnqueue.core import model
from txnqueue.core.planning import Plan, decisions

STATES_MAX = 200_000
NAME = "events"
COLUMN = "note string"


def build(world: World) -> None:
    """A queue with two messages, and an exchange that posts to another one."""
    world.create("in", dead_letter=False)
    world.create("out", dead_letter=False)
    world.create_table()
    creator = world.helper("creator")
    creator.queue("in").send([{"i": 0}, {"i": 1}])
    creator.create_exchange(NAME, "fanout", "i long not null").bind("out")


def build_grown(world: World) -> None:
    """The same, where the queue has a column more than the exchange; another one has not."""
    build(world)
    world.create("late", dead_letter=False)
    world.helper("creator").queue("out").alter(COLUMN)


def publisher(name: str, key: str | None = None, *, prepares: bool = False) -> Program:
    """Receive, publish and commit, maybe in two phases."""

    def program(world: World) -> None:
        manager = world.manager(name)
        tx = manager.transaction(key)
        batch = manager.queue("in").receive(1, transaction=tx)
        numbers = batch.to_arrow().column("i").to_pylist()
        tx.exchange(NAME).publish([{"i": i} for i in numbers])
        if prepares:
            tx.prepare()
        tx.commit()

    return program


def dropper(name: str) -> Program:
    """Drop the exchange that the others publish to."""

    def program(world: World) -> None:
        result = world.manager(name).drop_exchange(NAME, missing_ok=True)
        assert result.dropped or result.held_by, "P5 it is held back by nothing"

    return program


def binder(name: str, queue: str = "in") -> Program:
    """Bind another queue to it."""
    return lambda world: world.manager(name).exchange(NAME).bind(queue)


def alterer(name: str) -> Program:
    """Let it grow."""
    return lambda world: world.manager(name).exchange(NAME).alter(COLUMN)


def judge(world: World) -> None:
    """When all is over the exchange is gone or open, and who committed did both or nothing."""
    world.ledger()
    world.lease_over()
    last = world.manager("last")
    for key in last.recover().prepared:
        last.commit(key)
    assert all(drop.dropped for drop in last.recover().exchange_drops), "P5 held back by nothing"
    ledger = world.ledger()
    closed = set(ledger.closed_exchanges.values())
    assert model.EXCHANGE_CLOSING not in closed, "the drop is not finished"
    assert bool(closed) == (NAME not in last.list_exchanges())
    if closed:
        assert last.history.as_of().bindings().rows() == [], "a binding to what is gone"
    source, target = world.queue_id("in"), world.queue_id("out")
    for attempt in ledger.committed.values():
        taken = [e for e in ledger.retired.values() if (e.attempt, e.queue_id) == (attempt, source)]
        made = [e for e in ledger.posted.values() if (e.attempt, e.queue_id) == (attempt, target)]
        assert len(taken) == len(made), f"P1 {attempt} took {len(taken)}, made {len(made)}"
    accepted = [e for e in ledger.retired.values() if e.queue_id == source]
    assert last.queue("in").depth() == 2 - len(accepted), "P2 what was aborted is there again"


def judge_columns(world: World) -> None:
    """Whoever is bound has every column of the exchange."""
    world.ledger()
    found = client_of(world.manager("last")).cache.topology()
    info = found.exchanges[NAME]
    names = {column["name"] for column in info.schema["fields"]}
    for queue in found.targets(info):
        have = {column["name"] for column in queue.schema["fields"]}
        assert names <= have, f"{queue.name} is bound, and lacks {names - have}"


def search(name: str) -> Found:
    """Explore one of the programs."""
    start, clients, judged, faults = PROGRAMS[name]
    found = explore(start, clients, judged, states_max=STATES_MAX, **faults)
    print(f"{name}: {found.states} states, {found.paths} paths, {found.ends}")
    return found


PROGRAMS: dict[str, tuple[Any, dict[str, Program], Callable[[World], None], dict[str, int]]] = {
    "a drop and a publish": (
        build,
        {"A": publisher("A"), "B": dropper("B")},
        judge,
        {"lose": 1},
    ),
    "a drop, a publish that is prepared, and its commit": (
        build,
        {"A": publisher("A", "K", prepares=True), "B": dropper("B")},
        judge,
        {"crash": 1},
    ),
    "a drop and a bind": (
        build,
        {"A": dropper("A"), "B": binder("B")},
        judge,
        {"late": 1},
    ),
    "two drops": (build, {"A": dropper("A"), "B": dropper("B")}, judge, {"crash": 1, "lose": 1}),
    "an alter and a bind": (
        build_grown,
        {"A": alterer("A"), "B": binder("B", "late")},
        judge_columns,
        {"lose": 1, "late": 1},
    ),
}


FOR_LONG = ("two drops", "a drop and a bind")
"""The default run searches the latter only with a rule broken."""


@pytest.mark.parametrize("name", [one for one in PROGRAMS if LONG or one not in FOR_LONG])
def test_no_interleaving_with_an_exchange_that_changes_breaks_a_promise(name: str) -> None:
    found = search(name)
    assert not found.truncated, "the search was cut short"
    assert found.ends.get("A ok"), "vacuous: the first client never succeeded"
    assert len(found.ends) > 2, "vacuous: they never met"


def prepared_needs_an_open_exchange(patch: pytest.MonkeyPatch) -> None:
    """Refuse the commit of what was prepared before the exchange closed."""
    real = decisions.decide_prepared

    def strict(prepared: model.Entry, **kwargs: Any) -> Plan:
        said = prepared.body["manifest"]["entries"]
        asked = (model.published_to(one["kind"], one["body"]) for one in said)
        named = {exchange_id for exchange_id in asked if exchange_id is not None}
        return real(prepared, **kwargs) + Plan((), tuple(map(model.exchange_open, sorted(named))))

    patch.setattr(decisions, "decide_prepared", strict)


def looks_before_it_closes(patch: pytest.MonkeyPatch) -> None:
    """Find out what is prepared first, and close the exchange after that."""
    close, holding = drop._close_exchange, drop.holding
    seen: list[Any] = []

    def hasty(client: Any, info: Any, reason: Any) -> None:
        stream = model.exchange_stream(info.exchange_id)
        seen[:] = [holding(client.cache.transaction_entries(), stream)]
        close(client, info, reason)

    patch.setattr(drop, "_close_exchange", hasty)
    patch.setattr(
        drop,
        "holding",
        lambda entries, stream: seen.pop() if seen else holding(entries, stream),
    )


def checks_columns_once(patch: pytest.MonkeyPatch) -> None:
    """Let the exchange grow by what was found of its queues before."""
    real, known = exchange_alteration._altered, list[Any]()

    def remembered(*args: Any) -> Any:
        known[:] = known or [real(*args)]
        return known[0]

    patch.setattr(exchange_alteration, "_altered", remembered)
    without(lambda c: c.shard == model.CATALOG and c.sequence_from is not None)(patch)


def _of_exchanges(condition: model.Condition) -> bool:
    return condition.shard == model.FENCE and condition.stream.startswith("exchange/")


DROP = "a drop, a publish that is prepared, and its commit"
BROKEN = {
    "nobody expects the exchange to be open": (without(_of_exchanges), "a drop and a publish"),
    "what is prepared holds nothing back": (drops_what_is_prepared, DROP),
    "what is prepared expects that it is open": (prepared_needs_an_open_exchange, DROP),
    "it is looked at before it closes": (looks_before_it_closes, DROP),
    "a bind expects nothing of the exchange": (
        without(lambda c: c.shard == model.CATALOG and c.sequence_from is not None),
        "a drop and a bind",
    ),
    "an alter expects nothing of the exchange": (checks_columns_once, "an alter and a bind"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks, program = BROKEN[name]
    breaks(monkeypatch)
    with pytest.raises((AssertionError, Violation)):
        search(program)
