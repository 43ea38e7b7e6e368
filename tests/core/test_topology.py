"""Which exchanges there are, and whose messages may be in a queue, after some entries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.test_ledger import STAMP
from txnqueue.core import model
from txnqueue.core.exchanges import Binding, ExchangeInfo
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan
from txnqueue.core.settings import QueueInfo, QueueSettings
from txnqueue.core.state import catalog, topology
from txnqueue.core.state.topology import Topology
from txnqueue.errors import StoreCorrupt

FIRST, SECOND = (
    ExchangeInfo(name, f"{name}-1", "topic", f"exchange-{name}-1", {}, dead_letter_id="dead")
    for name in ("first", "second")
)


def queue(queue_id: str) -> QueueInfo:
    return QueueInfo(queue_id, queue_id, f"payload-{queue_id}", {}, 1, QueueSettings())


def landed(*plans: Plan) -> list[Entry]:
    """Give the entries of appends the places that a journal would."""
    return [
        replace(entry, append_id=f"a{version}", version=version, index=index)
        for version, plan in enumerate(plans)
        for index, entry in enumerate(plan.entries)
    ]


def test_an_exchange_may_have_posted_to_each_queue_that_ever_was_bound() -> None:
    binding = Binding("q", "key")
    found = Topology.of(
        landed(
            topology.create(FIRST, 1, STAMP),
            topology.create(SECOND, 1, STAMP),
            topology.bind(FIRST, queue("q"), binding, 2, STAMP),
            topology.bind(SECOND, queue("q"), Binding("q", "other"), 2, STAMP),
            topology.bind(SECOND, queue("r"), Binding("r", "other"), 3, STAMP),
            topology.bind(FIRST, queue("q"), Binding("q", "more"), 3, STAMP),
            topology.alter(SECOND, 4, STAMP),
        )
    )
    names = {queue_id: [one.name for one in found.owners(queue_id)] for queue_id in "qr"}
    assert names == {"q": ["first", "second"], "r": ["second"]}
    assert [one.name for one in found.owners("dead")] == ["first", "second"]
    assert found.owners("unknown") == []
    assert found.sequences == {"first": 4, "second": 5}


@pytest.mark.parametrize("change", [topology.bind, topology.unbind])
def test_a_binding_of_an_exchange_whose_entry_is_lost_is_named(change: Any) -> None:
    plan = change(FIRST, queue("q"), Binding("q", "key"), 2, STAMP)
    with pytest.raises(StoreCorrupt, match=f"'first' \\({FIRST.exchange_id}\\)"):
        Topology.of(landed(plan))


def test_the_last_entry_of_an_exchange_may_be_the_only_one() -> None:
    assert FIRST.name not in Topology.of(landed(topology.drop(FIRST, 3, STAMP, None))).exchanges


def test_an_exchange_is_created_while_its_dead_letter_queue_is_open() -> None:
    there = model.queue_open("dead")
    assert there in topology.create(FIRST, 1, STAMP).conditions
    alone = topology.create(replace(FIRST, dead_letter_id=None), 1, STAMP)
    assert all(one.kinds != there.kinds for one in alone.conditions)


def test_a_queue_was_created_when_its_id_was_first_said_and_not_its_name() -> None:
    first, second = queue("q"), replace(queue("q"), queue_id="q2")
    kinds = [
        (model.QUEUE_CREATED, first), (model.QUEUE_ALTERED, first), (model.QUEUE_DROPPED, first),
        (model.QUEUE_CREATED, second), (model.QUEUE_ALTERED, second),
    ]  # fmt: skip
    plans = [
        catalog.write(kind, replace(info, sequence=n), replace(STAMP, now_ms=1_000 + n))
        for n, (kind, info) in enumerate(kinds, 1)
    ]
    for upto, created_at_ms in ((1, 1_001), (2, 1_001), (4, 1_004), (5, 1_004)):
        assert catalog.queues(landed(*plans[:upto]))["q"].created_at_ms == created_at_ms


def test_the_columns_that_a_queue_had_are_none_of_another_queue() -> None:
    plans = [
        catalog.write(kind, replace(queue(name), schema={"fields": fields}), STAMP)
        for kind, name, fields in [
            (model.QUEUE_CREATED, "q", [1]), (model.QUEUE_CREATED, "r", [2]),
            (model.QUEUE_ALTERED, "q", [1, 3]),
        ]
    ]  # fmt: skip
    assert catalog.schemas(landed(*plans), "q") == [{"fields": [1]}, {"fields": [1, 3]}]


def test_another_queue_of_the_name_was_created_when_it_was_said() -> None:
    (entry,) = catalog.write(model.QUEUE_ALTERED, queue("q"), replace(STAMP, now_ms=7)).entries
    entry = replace(entry, body={**entry.body, "sequence": 3})
    before = replace(queue("q"), created_at_ms=5)
    assert catalog.told(entry, before).created_at_ms == 5
    assert catalog.told(entry, replace(before, queue_id="q0")).created_at_ms == 7
