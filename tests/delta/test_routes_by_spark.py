"""What Spark says of routing keys, patterns, headers and lanes is what Python says."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.reports.views_folding import quick_session
from txnqueue.core.exchanges import Binding, read_arguments
from txnqueue.storage.payload import Destination, Routes, Send
from txnqueue.storage.payload.arrangement import widened
from txnqueue.storage.payload.frame_arrangement import headers_of
from txnqueue.storage.payload.routes import route_columns, routes_of, sets_of
from txnqueue.storage.payload.rows import arrow_table

SCHEMA = StructType([StructField("n", LongType()), StructField("key", StringType())])
WORDS = ["", "a", "b", "a.b", "b.a.b", "a.b.a.b", "a+b", "ä.b", "a..b", ".", "\n.a", "a.", "ab"]
PATTERNS = ["#", "*", "a.#", "#.b", "*.b", "a.*.b", "#.a.#.b", "a+b", "", "ä.#", "*.a", "*.", "a"]
ASKED = [
    {},
    {"x-match": "any"},
    {"k": "a"},
    {"k": None},
    {"k": "b", "s": "it's"},
    {"x-match": "any", "k": "b", "s": "other"},
    {"x-match": "any", "k": "nobody's", "s": None},
]


def ways() -> dict[str, tuple[Routes, dict[str, Any]]]:
    """List ways to route: each destination has a binding of its own, some are grouped."""
    lanes: dict[str, Any] = {"lanes": 4, "group_by": "key"}
    topics = [Destination((Binding("q", p),), **lanes) for p in PATTERNS]
    keys = [Destination((Binding("q", w), Binding("q", "b"))) for w in WORDS]
    heads = [Destination((Binding("q", "", *read_arguments(asked)),), **lanes) for asked in ASKED]
    column = {"header_columns": {"k": "key"}}
    said = {"headers": {"s": "it's"}, **column}
    rest = Destination((), 3, "key")
    return {
        "topic": (Routes("topic", tuple(topics), rest, key_column="key"), column),
        "direct": (Routes("direct", tuple(keys), key_column="key"), column),
        "direct by value": (Routes("direct", tuple(keys), rest, key="a.b"), {}),
        "fanout": (Routes("fanout", tuple(keys)), {}),
        "fanout to nobody": (Routes("fanout", ()), {}),
        "headers": (Routes("headers", tuple(heads)), said),
        "headers, some without any": (Routes("headers", tuple(heads[2:]), rest), column),
    }


@pytest.mark.spark
def test_routes_are_the_same_by_spark_and_in_this_process(spark: Any) -> None:
    session = quick_session(spark)
    rows = [{"n": n, "key": key} for n, key in enumerate([*WORDS, None])]
    frame = session.createDataFrame(rows, "n long, key string").coalesce(1)
    frame = frame.withColumn("_place", F.monotonically_increasing_id())
    for name, (routes, said) in ways().items():
        send = Send("p", 0, "s", SCHEMA, 1, None, routes=routes, **said)
        table = arrow_table(widened(send, rows), rows)
        fixed = dict(said.get("headers", {}))
        headers = [
            {**fixed, **({"k": row["key"]} if said and row["key"] is not None else {})}
            for row in rows
        ]
        expected = routes_of(send, table, [found or None for found in headers])
        assert len(set(expected)) > 1 or name.startswith(("fanout", "direct by"))
        with_headers = frame.selectExpr("*", f"{headers_of(send)} AS _headers")
        route, alike = route_columns(send, F.col("_place"), F.col("_headers"))
        shown = with_headers.select("n", route.alias("route"), alike.alias("alike")).collect()
        by_spark = {row["n"]: row["route"] for row in shown}
        assert [by_spark[n] for n in range(len(rows))] == expected, name
        together = {row["n"]: row["alike"] for row in shown}
        mine = dict(enumerate(sets_of(send, expected)))
        rest = f"{len(routes.destinations)}:"
        for n, found in mine.items():
            assert together[n] == ("" if found.startswith(rest) else found), name
