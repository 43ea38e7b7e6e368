"""Headers: by value and by column, on both stores."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Any

import pytest

from tests.conformance.conftest import SCHEMA, World, in_memory, on_delta_when_long
from txnqueue.errors import InvalidInput, SchemaMismatch


def headers_of(messages: Iterable[Any]) -> dict[int, dict[str, str] | None]:
    """Read the headers of messages by their numbers; Arrow has maps as pairs."""
    return {
        row["n"]: row["_message"]["headers"] and dict(row["_message"]["headers"])
        for row in messages
    }


@on_delta_when_long
def test_headers_come_with_the_messages(world: World) -> None:
    queue = world.queue(lanes=2)
    queue.send([{"n": 1, "key": "a"}])
    queue.send([{"n": 2, "key": "b"}], headers={"trace": "x'y", "reply_to": "answers"})
    queue.send(
        [{"n": 3, "key": "c", "request": "r-3"}, {"n": 4, "key": None, "request": None}],
        headers={"kind": "late"},
        header_columns={"correlation_id": "request", "customer": "key", "number": "n"},
    )
    messages = queue.receive().messages()
    assert headers_of(messages) == {
        1: None,
        2: {"trace": "x'y", "reply_to": "answers"},
        3: {"kind": "late", "correlation_id": "r-3", "customer": "c", "number": "3"},
        4: {"kind": "late", "number": "4"},
    }
    said = {
        row["n"]: (row["_message"]["correlation_id"], row["_message"]["reply_to"])
        for row in messages
    }
    assert said == {1: (None, None), 2: (None, "answers"), 3: ("r-3", None), 4: (None, None)}


@on_delta_when_long
def test_headers_stay_with_a_message_that_moves(world: World) -> None:
    queue = world.queue(dead_letter=True)
    queue.send([{"n": 1}], headers={"a": "b"})
    queue.receive().reject(reason="bad")
    dead = world.manager().queue(f"{queue.name}.dead")
    assert headers_of(dead.peek_messages()) == {1: {"a": "b"}}


@on_delta_when_long
def test_headers_are_sent_and_read_in_transactions(world: World) -> None:
    queue, answers = world.queue(), world.queue("answers")
    manager = world.manager("b")
    with manager.transaction() as tx:
        tx.queue(queue.name).send(
            [{"n": 1, "request": "r-1"}, {"n": 2, "request": None}],
            headers={"reply_to": answers.name},
            header_columns={"correlation_id": "request"},
        )
    with manager.transaction() as tx:
        for row in tx.queue(queue.name).receive().messages():
            about = row["_message"]
            said = {"correlation_id": about["correlation_id"]} if about["correlation_id"] else {}
            assert about["reply_to"] is not None
            tx.queue(about["reply_to"]).send([{"n": 10 * row["n"]}], headers=said)
    assert headers_of(answers.peek_messages()) == {10: {"correlation_id": "r-1"}, 20: None}


def test_frames_give_the_same_headers_as_lists(world: World) -> None:
    if not world.has_frames:
        pytest.skip("a store without a session has no frames")
    schema = "n long, at date, yes boolean"
    day = datetime.date(2024, 2, 29)
    columns = {"number": "n", "day": "at", "sure": "yes", "word": "word"}
    rows = [
        {"n": 1, "at": day, "yes": True, "word": "w"},
        {"n": 2, "at": None, "yes": None, "word": None},
    ]
    found = []
    forms: list[tuple[str, Any]] = [
        ("listed", rows),
        ("framed", world.spark.createDataFrame(rows, f"{schema}, word string")),
    ]
    for name, sent in forms:
        queue = world.manager().create_queue(world.name(name), schema, dead_letter=False)
        queue.send(sent, header_columns=columns)
        frame = queue.peek()
        assert frame.where("_message.headers['word'] = 'w'").count() == 1
        found.append(headers_of(queue.peek_messages()))
    assert found[0] == found[1]
    assert found[0][1] == {"number": "1", "day": "2024-02-29", "sure": "true", "word": "w"}
    assert found[0][2] == {"number": "2"}


@in_memory
@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"headers": {"a": 5}}, InvalidInput),
        ({"headers": {"": "x"}}, InvalidInput),
        ({"headers": "a"}, InvalidInput),
        ({"header_columns": {"a": "nobody"}}, SchemaMismatch),
        ({"header_columns": {"a": "amount"}}, SchemaMismatch),
        ({"headers": {"a": "x"}, "header_columns": {"a": "n"}}, InvalidInput),
    ],
)
def test_headers_that_cannot_be_are_refused(world: World, said: Any, error: Any) -> None:
    queue = world.manager().create_queue(world.name("q"), f"{SCHEMA}, amount double")
    with pytest.raises(error):
        queue.send([{"n": 1, "amount": 1.0}], **said)
    assert queue.depth() == 0


@in_memory
def test_a_header_column_that_a_session_would_substitute_is_refused(world: World) -> None:
    queue, name = world.queue(), "${spark.app.name}"
    with pytest.raises(SchemaMismatch, match="rename it") as refused:
        queue.send([{"n": 1, "key": "a", name: "x"}], header_columns={"h": name})
    assert refused.value.column == name
    assert queue.depth() == 0


@in_memory
def test_a_header_column_beside_the_queues_has_text(world: World) -> None:
    queue = world.queue()
    with pytest.raises(SchemaMismatch, match="Column 'request' takes string"):
        queue.send([{"n": 1, "request": 7}], header_columns={"a": "request"})
    queue.send(
        [{"n": 1, "request": "7"}, {"n": 2, "request": None}], header_columns={"a": "request"}
    )
    assert headers_of(queue.peek_messages()) == {1: {"a": "7"}, 2: None}
