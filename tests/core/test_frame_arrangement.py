"""What is read back of a send: its runs, as long as there are not too many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnqueue.core import ranges
from txnqueue.core.model import Range
from txnqueue.errors import LimitExceeded
from txnqueue.storage.payload import Placing, Routes, Run, Send, frame_arrangement

BOTH = pa.schema({"first": pa.int64(), "count": pa.int64()})


@pytest.mark.parametrize(
    ("routes", "name", "remedy"),
    [(None, "orders", "coalesce"), (Routes("topic", ()), "events", "keep_order=False")],
)
def test_very_many_runs_are_refused_before_they_become_objects(
    monkeypatch: pytest.MonkeyPatch, routes: Routes | None, name: str, remedy: str
) -> None:
    monkeypatch.setattr(frame_arrangement, "RUNS_PER_SEND_MAX", 2)
    note = {"queue": "orders"} if routes is None else {"exchange": "events"}
    schema: Any = None
    send = Send("p", 0, "s", schema, 2, "n", note=note, routes=routes)
    assert "LIMIT 3" in frame_arrangement.runs_query(send, "t")
    rows = pa.table({"lane": [1, 0, 0], "first": [0, 9, 3], "count": [3, 1, 2]})
    assert frame_arrangement.runs_of(send, rows.slice(1)) == [Run(0, 3, 2), Run(0, 9, 1)]
    with pytest.raises(LimitExceeded, match=remedy) as told:
        frame_arrangement.runs_of(send, rows)
    assert told.value.name == name


SPANS = st.lists(st.integers(1, 50), max_size=8).map(
    lambda sizes: [(task << 40, (task << 40) + n - 1) for task, n in enumerate(sizes)]
)


@given(SPANS, st.integers(1, 7), st.text("ab", min_size=1, max_size=3))
def test_lanes_share_the_rows_of_tasks_evenly_and_each_once(
    spans: list[Range], lanes: int, send_id: str
) -> None:
    schema: Any = None
    send = Send("p", 0, send_id, schema, lanes, None, placing=Placing(priority=7))
    assert frame_arrangement.stands_anywhere(send)
    runs = frame_arrangement.spread_runs(send, spans)
    assert runs == sorted(runs, key=lambda run: (run.lane, run.first))
    assert all(run.count > 0 and run.priority == 7 for run in runs)
    assert ranges.normalised(run.range for run in runs) == ranges.normalised(spans)
    assert sum(run.count for run in runs) == ranges.count(spans)
    by_lane = [sum(r.count for r in runs if r.lane == lane) for lane in range(lanes)]
    assert max(by_lane) - min(by_lane) <= 1
    rows = pa.table({"first": [f for f, _ in spans], "count": [z - f + 1 for f, z in spans]})
    assert frame_arrangement.runs_of(send, rows.cast(BOTH)) == runs
    assert "arrangement" not in frame_arrangement.runs_query(send, "t")


@pytest.mark.parametrize(
    ("what", "anywhere"),
    [
        ({}, True),
        ({"lanes": 1, "group_by": "n"}, True),
        ({"lanes": 1, "order_by": ("n",)}, True),
        ({"group_by": "n"}, False),
        ({"order_by": ("n",)}, False),
        ({"routes": Routes("topic", ())}, False),
        ({"placing": Placing(delay_seconds="n")}, False),
        ({"placing": Placing(available_at=7, expires_at=9)}, True),
    ],
)
def test_only_rows_that_say_nothing_of_their_place_may_stand_anywhere(
    what: dict[str, Any], anywhere: bool
) -> None:
    schema: Any = None
    send = replace(Send("p", 0, "s", schema, 2, None), **what)
    assert frame_arrangement.stands_anywhere(send) == anywhere
