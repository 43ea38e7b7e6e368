"""Names of columns that SQL would read otherwise, in every argument that takes one."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T

from tests.conformance.conftest import World, in_memory, on_delta_when_long
from txnqueue.errors import InvalidInput, LimitExceeded, SchemaMismatch
from txnqueue.storage.payload import staging

ID, KEY, PRIORITY, WAIT, LIVE = "a.b", "a`b", "--", "x'y", "weiß"
SCHEMA = T.StructType(
    [
        T.StructField(ID, T.StringType()),
        T.StructField(KEY, T.StringType()),
        T.StructField(PRIORITY, T.LongType()),
        T.StructField(WAIT, T.DoubleType()),
        T.StructField(LIVE, T.IntegerType()),
    ]
)


def row(number: int, priority: int = 4) -> dict[str, Any]:
    """Make a message that can be received now."""
    return {ID: f"m{number}", KEY: "k", PRIORITY: priority, WAIT: 0.0, LIVE: 60}


def ids(rows: Iterable[Any]) -> list[Any]:
    """List the ids of messages."""
    return [one[ID] for one in rows]


def ways(world: World, rows: list[dict[str, Any]], schema: T.StructType = SCHEMA) -> list[Any]:
    """Bring rows into every form that there is here."""
    from txnqueue.storage.payload.rows import arrow_table

    table = arrow_table(schema, rows)
    return [rows, table, *([world.spark.createDataFrame(table)] if world.has_frames else [])]


def test_a_name_means_itself_in_every_argument(world: World) -> None:
    manager = world.manager()
    queue = manager.create_queue(
        world.name("odd"), SCHEMA, group_by=KEY, message_id=ID, dead_letter=False
    )
    for number in range(len(ways(world, [row(0)]))):
        rows = [{**one, ID: f"{number}{one[ID]}"} for one in (row(0), row(1, 9))]
        queue.send(
            ways(world, rows)[number],
            order_by=[ID, KEY],
            priority=PRIORITY,
            delay_seconds=WAIT,
            ttl_seconds=LIVE,
            header_columns={"told": KEY},
        )
        batch = queue.receive(10)
        found = batch.messages()
        assert sorted(ids(found)) == [f"{number}m0", f"{number}m1"]
        assert ids(found)[0] == f"{number}m1"
        assert {dict(one["_message"]["headers"] or {})["told"] for one in found} == {"k"}
        assert [one["_message"]["message_id"] for one in found] == ids(found)
        batch.accept()


@on_delta_when_long
def test_a_routing_key_is_read_from_a_column_of_any_name(world: World) -> None:
    manager = world.manager()
    exchange = manager.create_exchange(world.name("x"), schema=SCHEMA, kind="direct")
    queue = manager.create_queue(world.name("odd"), SCHEMA, dead_letter=False)
    exchange.bind(queue, routing_key="k")
    for form in ways(world, [row(0)]):
        exchange.publish(form, routing_key_column=KEY)
    found = [dict(one["_message"]["headers"] or {}) for one in queue.peek_messages(10)]
    assert [headers["routing_key"] for headers in found] == ["k"] * len(ways(world, [row(0)]))


@in_memory
def test_a_column_that_is_not_there_is_named_with_its_argument(world: World) -> None:
    queue = world.queue()
    exchange = world.manager().create_exchange(world.name("x"), schema="n long", kind="direct")
    for argument, send in (
        ("priority='gone'", partial(queue.send, priority="gone")),
        ("header_columns['told']='gone'", partial(queue.send, header_columns={"told": "gone"})),
        ("routing_key_column='gone'", partial(exchange.publish, routing_key_column="gone")),
    ):
        with pytest.raises(SchemaMismatch, match=re.escape(argument)):
            send([{"n": 1}])


@on_delta_when_long
def test_a_selector_and_a_reason_are_read_from_columns_of_any_name(world: World) -> None:
    queue = world.manager().create_queue(world.name("odd"), SCHEMA, dead_letter=True)
    queue.send([row(0), row(1)])
    if world.has_frames:
        wanted = world.spark.createDataFrame([("m1", "k")], f"`{ID}` string, `a``b` string")
        batch = queue.receive(10, matching=wanted, on=[ID, KEY])
        assert ids(batch.messages()) == ["m1"]
        batch.release()
    batch = queue.receive(10)
    why = [{**one, "why.so": one[ID]} for one in batch.messages()]
    with pytest.raises(InvalidInput, match="not a column of matching"):
        batch.reject(matching=why, reason_column="why")
    with pytest.raises(InvalidInput, match="ids have no columns"):
        batch.reject(matching=[one["_message"]["id"] for one in why], reason_column="why")
    batch.reject(matching=why[:1], reason_column="why.so")
    if world.has_frames:
        from pyspark.sql import functions as F

        frame = batch.df.where(F.col(f"`{ID}`") == why[1][ID]).withColumn("why.so", F.lit("bad"))
        with pytest.raises(InvalidInput, match="matching"):
            batch.reject(matching=frame, reason_column="why")
        batch.reject(matching=frame, reason_column="why.so")
    else:
        batch.reject(matching=why[1:], reason_column="why.so")
    letters = world.manager().queue(f"{queue.name}.dead").peek_messages()
    reasons = {one[ID]: one["_message"]["origin"]["reason"] for one in letters}
    assert reasons == {
        why[0][ID]: why[0][ID],
        why[1][ID]: "bad" if world.has_frames else why[1][ID],
    }


def test_columns_that_cannot_be_matched_are_refused(world: World) -> None:
    if not world.has_frames:
        pytest.skip("without DataFrames there is no matching=")
    queue = world.queue()
    queue.send([{"n": 1}])
    with pytest.raises(InvalidInput, match="matching"):
        queue.receive(matching=world.spark.sql("SELECT array(1) AS n"), on="n")
    with pytest.raises(InvalidInput, match="not a column of both sides"):
        queue.receive(matching=world.spark.sql("SELECT 1 AS n, 2 AS n"), on="n")
    with pytest.raises(InvalidInput, match="on="):
        queue.receive(matching=world.spark.sql("SELECT 1 AS n"), on=[])


def test_seconds_that_are_no_time_are_refused_in_every_form(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "FEW_ROWS", 1)  # so that Spark arranges a table of two
    queue = world.queue()
    schema = T.StructType(
        [T.StructField("n", T.LongType()), T.StructField("said.so", T.DoubleType())]
    )
    for use, seconds in itertools.product(("delay_seconds", "ttl_seconds"), (math.nan, -1e300)):
        rows = [{"n": 1, "said.so": 1.0}, {"n": 2, "said.so": seconds}]
        for form in [rows[1:], *ways(world, rows, schema)]:
            with pytest.raises(LimitExceeded, match=r"'said\.so' holds"):
                queue.send(form, **{use: "said.so"})
    assert queue.depth() == 0


@on_delta_when_long
def test_a_column_beside_the_payload_has_a_name_of_its_own(world: World) -> None:
    """One that differs by capitals only cannot be told apart by Spark."""
    queue = world.queue()
    for name in ("N", "_place", "_Headers", "_message"):
        for rows in ([{"n": 1, name: 1}], pa.table({"n": [1], name: [1]})):
            with pytest.raises(SchemaMismatch, match="rename the column"):
                queue.send(rows, priority=name)
            with pytest.raises(SchemaMismatch, match="rename the column"):
                queue.send(rows, header_columns={"h": name})


def test_a_column_beside_the_payload_may_be_called_as_those_that_place_rows(world: World) -> None:
    queue = world.queue()
    schema = T.StructType(
        [T.StructField("n", T.LongType()), T.StructField("_priority", T.IntegerType())]
    )
    rows = [{"n": 1, "_priority": 1}, {"n": 2, "_priority": 9}]
    forms = ways(world, rows, schema)
    for form in forms:
        queue.send(form, priority="_priority", order_by="n", header_columns={"h": "_priority"})
    found = queue.peek_messages(10)
    assert [one["n"] for one in found] == [2] * len(forms) + [1] * len(forms)
    assert dict(found[0]["_message"]["headers"]) == {"h": "9"}


@on_delta_when_long
def test_nothing_is_ordered_by_what_has_no_order(world: World) -> None:
    kinds = [
        T.ArrayType(T.IntegerType()),
        T.MapType(T.StringType(), T.IntegerType()),
        T.StructType([T.StructField("a", T.IntegerType())]),
    ]
    fields = [T.StructField(f"c{n}", kind) for n, kind in enumerate(kinds)]
    queue = world.manager().create_queue(
        world.name("nested"), T.StructType(fields), dead_letter=False
    )
    for number in range(len(kinds)):
        with pytest.raises(InvalidInput, match="cannot be ordered"):
            queue.send([{}], order_by=f"c{number}")
