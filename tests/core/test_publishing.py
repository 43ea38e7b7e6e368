"""What one staging of published rows gives each queue, for any bindings, lanes and keys."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.core.matching import matched
from txnqueue.core.exchanges import Binding, ExchangeInfo
from txnqueue.core.settings import QueueInfo, QueueSettings
from txnqueue.messages.publish import staged_sends
from txnqueue.storage.payload import Destination, Routes, Run, Send
from txnqueue.storage.payload.memory import MemoryPayload
from txnqueue.storage.payload.rows import lane_of

SCHEMA = StructType([StructField("n", LongType()), StructField("group", StringType())])
INFO = ExchangeInfo("e", "e-1", "topic", "exchange-e-1", SCHEMA.jsonValue())
WORDS = st.lists(st.sampled_from("ab"), max_size=3).map(".".join)
PATTERNS = st.lists(st.sampled_from("ab*#"), max_size=3).map(".".join)
QUEUES = st.tuples(
    st.lists(PATTERNS, min_size=1, max_size=2), st.integers(1, 4), st.sampled_from([None, "group"])
)
ROWS = st.lists(st.tuples(st.none() | WORDS, st.sampled_from("xuw")))
KEY = {"routing_key": "key"}


@given(st.lists(QUEUES, max_size=3), ROWS, st.booleans(), st.none() | st.just(("group", 3)))
def test_every_queue_gets_what_it_wants_in_its_lanes(
    queues: Any, rows: Any, keep_order: bool, rest: Any
) -> None:
    bindings = [
        tuple(Binding(f"q{number}", pattern) for pattern in patterns)
        for number, (patterns, _, _) in enumerate(queues)
    ]
    destinations = tuple(
        Destination(mine, lanes, group_by)
        for mine, (_, lanes, group_by) in zip(bindings, queues, strict=True)
    )
    otherwise = Destination((), rest[1], rest[0]) if rest else None
    routes = Routes("topic", destinations, otherwise, False, "", "key", keep_order)
    listed = [{"n": n, "group": group, "key": key} for n, (key, group) in enumerate(rows)]
    payload = MemoryPayload()
    send = Send("exchange-e-1", 0, "s", SCHEMA, 1, None, header_columns=KEY, routes=routes)
    runs = payload.stage(send, listed)
    infos = [
        QueueInfo(f"q{n}", f"q{n}", f"q{n}", {}, 1, QueueSettings(one.lanes, one.group_by))
        for n, one in enumerate(routes.all)
    ]
    carried = payload.staged("exchange-e-1", "s").column("n").to_pylist()
    assert sorted(carried) == list(range(len(rows)))
    found = {
        staged.info.name: [
            (carried[offset], run.lane)
            for run in staged.runs
            for offset in range(run.first, run.first + run.count)
        ]
        for staged in staged_sends(INFO, routes, infos, send, runs)
    }
    flat = [binding for mine in bindings for binding in mine]
    wanted = [matched("topic", flat, key or "", {}) for key, _ in rows]
    for number, one in enumerate(routes.all):
        name = infos[number].name
        if one is otherwise:
            expected = [n for n, queues_of in enumerate(wanted) if not queues_of]
        else:
            expected = [n for n, queues_of in enumerate(wanted) if name in queues_of]
        mine = found.get(name, [])
        assert sorted(n for n, _ in mine) == expected
        for n, lane in mine:
            assert 0 <= lane < one.lanes
            assert one.group_by is None or lane == lane_of(rows[n][1], one.lanes)
        if keep_order:
            assert [n for n, _ in mine] == expected
    nobody = [run for run in runs if not run.route]
    lost = sorted(carried[o] for run in nobody for o in range(run.first, run.first + run.count))
    assert lost == ([] if rest else [n for n, queues_of in enumerate(wanted) if not queues_of])


def test_what_goes_to_the_same_queues_lies_together_when_the_order_may_go() -> None:
    destinations = (
        Destination((Binding("q0", "a"),)),
        Destination((Binding("q1", "#"),), 2, "group"),
    )
    listed = [{"n": n, "group": "xu"[n // 2 % 2], "key": "ab"[n % 2]} for n in range(80)]
    for keep_order, most in ((True, 80), (False, 4)):
        routes = Routes("topic", destinations, None, False, "", "key", keep_order)
        send = Send("p", 0, "s", SCHEMA, 1, None, header_columns=KEY, routes=routes)
        runs: list[Run] = MemoryPayload().stage(send, listed)
        assert len({run.route for run in runs}) == 4
        assert len(runs) == most
