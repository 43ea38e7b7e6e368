"""Exchanges in SQL: bindings, and what was published in the views of the queues."""

from __future__ import annotations

from typing import Any

import pytest

from tests.views_folding import quick_session, replay, shown
from txnqueue import QueueManager
from txnqueue.testing import Clock, runtime

COLUMNS = ("exchange", "queue", "routing_key", "arguments", "bound_by", "commit_seq")


def told(rows: Any) -> list[tuple[Any, ...]]:
    """Read rows of the view as rows of a snapshot say the same."""
    found = []
    for row in rows:
        asked = {k: v for k, v in (row["arguments"] or {}).items() if k != "x-match"}
        by = row["bound_by"] if "bound_by" in row else row["actor"]
        place = (row["exchange"], row["queue"], row["routing_key"])
        found.append((*place, asked, by, row["commit_seq"]))
    return sorted(found, key=str)


@pytest.mark.spark
@pytest.mark.slow
def test_views_show_bindings_and_what_was_published(spark: Any, tmp_path: Any) -> None:
    session = quick_session(spark)
    clock = Clock()
    anna = QueueManager(session, str(tmp_path / "store"), runtime=runtime(clock, "anna"))
    left = anna.create_queue("left", "n long")
    rest = anna.create_queue("rest", "n long", lanes=2, dead_letter=False)
    events = anna.create_exchange(
        "events", "headers", "n long", unroutable="dead_letter", dead_letter_queue="rest"
    )
    for said in ({"k": "x"}, {"k": "y", "x-match": "any"}, {"k": None}):
        events.bind(left, "key", said)
    events.bind(rest, arguments={"k": "x", "it's": "$said"})
    then = anna.history.as_of().commit_seq
    events.unbind(left, "key", {"k": "y", "x-match": "any"})
    events.unbind(left, "key", {"k": None})
    events.bind(left, "key", {"k": None})

    published = events.publish(
        [{"n": 1, "k": "x"}, {"n": 2, "k": "z"}, {"n": 3, "k": None}], header_columns={"k": "k"}
    )
    assert published.queues == {"left": 2, "rest": 1}
    batch = left.receive(1)
    batch.reject(reason="no")
    anna.create_views("now_")
    entries = anna._client.store.journal.read_all().entries
    for queue, view, numbers in (
        (left, "left", {(1, "rejected"), (2, "available")}),
        (anna.queue("left.dead"), "left_dead", {(1, "available")}),
        (rest, "rest", {(3, "available")}),
    ):
        expected, _ = replay(queue.info, entries, clock.now_ms)
        assert shown(session, f"now_{view}") == expected
        rows = session.table(f"now_{view}").select("n", "state").collect()
        assert {tuple(row) for row in rows} == numbers
    reasons = session.table("now_rest").select("reason").collect()
    assert [row["reason"] for row in reasons] == ["unroutable"]

    rows = [row.asDict() for row in session.table("now_bindings").collect()]
    assert told(rows) == told(anna.history.as_of().binding_rows())
    assert [row["x_match"] for row in rows] == ["all"] * 3
    anna.create_views("then_", as_of=then)
    rows = [row.asDict() for row in session.table("then_bindings").collect()]
    assert told(rows) == told(anna.history.as_of(then).binding_rows())
    assert len(rows) == 4

    steps = anna.history.trace(queue="left", where="n = 1")
    assert [(step["step"], step["queue"]) for step in steps] == [
        ("published", "left"),
        ("claimed", "left"),
        ("rejected", "left"),
        ("moved", "left.dead"),
    ]
    assert anna.history.verify().ok
