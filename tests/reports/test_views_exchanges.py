"""Exchanges in SQL: bindings, and what was published in the views of the queues."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import LONG
from tests.inside import client_of
from tests.reports.views_folding import quick_session, replay, shown
from txnqueue import QueueManager
from txnqueue.testing import Clock, runtime


def told(rows: Any) -> list[str]:
    """Write rows so that they can be compared in any order."""
    return sorted(str(sorted(row.items())) for row in rows)


def frames(session: Any, view: str, report: Any) -> tuple[list[str], list[str]]:
    """Write the rows of a view and of a report, as Spark gives them."""
    rows = [[row.asDict() for row in one.collect()] for one in (session.table(view), report.df())]
    return told(rows[0]), told(rows[1])


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="a minute: the other views show what is common to all")
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
    entries = client_of(anna).store.journal.read_all().entries
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

    shown_now, reported = frames(session, "now_bindings", anna.history.as_of().bindings())
    assert shown_now == reported and len(shown_now) == 3
    anna.create_views("then_", as_of=then)
    shown_then, reported = frames(session, "then_bindings", anna.history.as_of(then).bindings())
    assert shown_then == reported and len(shown_then) == 4

    steps = anna.history.trace(queue="left", where="n = 1").rows()
    assert [(step["step"], step["queue"]) for step in steps] == [
        ("published", "left"),
        ("claimed", "left"),
        ("rejected", "left"),
        ("moved", "left.dead"),
    ]
    assert anna.history.verify().ok


@pytest.mark.spark
@pytest.mark.skipif(not LONG, reason="in the long run: the other one has most of its statements")
def test_views_show_what_a_dropped_exchange_published(spark: Any, tmp_path: Any) -> None:
    session = quick_session(spark)
    clock = Clock()
    anna = QueueManager(session, str(tmp_path / "store"), runtime=runtime(clock, "anna"))
    left = anna.create_queue("left", "n long", dead_letter=False)
    events = anna.create_exchange("events", "fanout", "n long")
    events.bind(left)
    events.publish([{"n": 1}])
    then = anna.history.as_of().commit_seq
    left.alter("note string")
    assert events.alter("note string") == {"column note": (None, "string")}
    sent = session.createDataFrame([(2, "new")], "n long, note string")
    events.publish(sent)
    assert [(row["n"], row["note"]) for row in left.peek_messages()] == [(1, None), (2, "new")]
    assert anna.drop_exchange("events", reason="old").dropped
    again = anna.create_exchange("events", "direct", "n long, note string")
    assert again.publish([{"n": 3, "note": None}]).unroutable == 1

    anna.create_views("now_")
    rows = session.table("now_left").select("n", "note", "state").collect()
    assert {tuple(row) for row in rows} == {(1, None, "available"), (2, "new", "available")}
    entries = client_of(anna).store.journal.read_all().entries
    expected, _ = replay(anna.queue("left").info, entries, clock.now_ms)
    assert shown(session, "now_left") == expected
    assert session.table("now_bindings").collect() == []
    anna.create_views("then_", as_of=then)
    assert [row["queue"] for row in session.table("then_bindings").collect()] == ["left"]
    assert [row["n"] for row in session.table("then_left").select("n").collect()] == [1]

    steps = anna.history.trace(queue="left", where="n = 2").rows()
    assert [(step["step"], step["exchange"]) for step in steps] == [("published", "events")]
    batch = QueueManager(session, str(tmp_path / "store"), consumer="b").queue("left").receive()
    assert [(row["n"], row["note"]) for row in batch.messages()] == [(1, None), (2, "new")]
    batch.accept()
    assert anna.history.verify().ok
