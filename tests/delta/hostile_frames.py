"""DataFrames from strangers: each is sent as it is, or refused before any of it is there.

A number draws a frame of the sort whose turn it is. What was sent is received and compared; after
a refusal nothing of it is in the store, and the queue takes something else.

    python -m tests.delta.hostile_frames sc://127.0.0.1:PORT ROOT FIRST

offers one of each sort over a Spark Connect server.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tests import generated
from txnqueue import QueueManager
from txnqueue.errors import SchemaMismatch
from txnqueue.storage.payload.rows import arrow_table
from txnqueue.storage.payload.types import stored_type

MEGABYTES = 10


@dataclass(frozen=True)
class Offer:
    """What is sent to a new queue.

    Attributes:
        schema: The queue's columns; ``n`` numbers the rows.
        frame: What is sent.
        rows: What is received then, by the number; None: it has to be refused.
        settings: Of the queue.
        options: Of the send.
        known: Whether ``rows`` says which ones are received: else each of them is there once.
        refused: What it is refused with; an error of Spark's if the frame has no values.
    """

    schema: Any
    frame: Any
    rows: list[dict[str, Any]] | None
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    known: bool = True
    refused: tuple[type[Exception], ...] = (SchemaMismatch,)


_OF_SPARK = (PySparkException, Py4JJavaError)

Sort = Callable[[Any, random.Random], Offer]


def _numbers(rows: int) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(rows)]


def _of_rows(spark: Any, schema: T.StructType, rows: Sequence[dict[str, Any]]) -> Any:
    return spark.createDataFrame(arrow_table(schema, rows), stored_type(schema))


# ------------------------------------------------------------------------- what has a place


def no_rows(spark: Any, dice: random.Random) -> Offer:
    """Many partitions and nothing in them, or no partition at all."""
    frame = spark.range(dice.choice((0, 100)), numPartitions=dice.choice((1, 50)))
    named = frame.withColumnRenamed("id", "n").where("n < 0")
    return Offer("n long", dice.choice((named, spark.createDataFrame([], "n long"))), [])


def many_partitions(spark: Any, dice: random.Random) -> Offer:
    """Thousands of partitions, most of them empty."""
    rows = dice.randrange(1, 500)
    frame = spark.range(0, rows, 1, dice.randrange(1_000, 3_000)).withColumnRenamed("id", "n")
    return Offer("n long", frame, _numbers(rows), {"lanes": dice.randrange(1, 5)})


def any_types(spark: Any, dice: random.Random) -> Offer:
    """Columns of whichever types and names, deep in each other."""
    schema, rows = generated.wide_table(dice.randrange(1, 60), dice.getrandbits(32))
    return Offer(schema, _of_rows(spark, schema, rows), rows)


def widest_decimals(spark: Any, dice: random.Random) -> Offer:
    """Decimals with all 38 digits, the point anywhere."""
    scale = dice.randrange(39)
    kind = T.DecimalType(38, scale)
    schema = T.StructType([T.StructField("n", T.LongType(), False), T.StructField("d", kind)])
    digits = [10**38 - 1, 1 - 10**38, dice.randrange(10**38), 0, None]
    values = [None if one is None else Decimal(f"{one}E-{scale}") for one in digits]
    rows = [{"n": n, "d": value} for n, value in enumerate(values)]
    sent = _of_rows(spark, schema, rows)
    zero = Decimal(f"0E-{scale}")
    return Offer(schema, sent, [{**row, "d": zero if row["d"] == 0 else row["d"]} for row in rows])


def keys_that_are_none(spark: Any, dice: random.Random) -> Offer:
    """Keys that are null or nothing to look at, which choose the lanes, beside odd numbers."""
    keys = [None, "", " ", "\x00", "é", "e\u0301", "NaN"]
    values = [None, math.nan, math.inf, -math.inf, 0.0, -0.0, dice.random()]
    dice.shuffle(keys)
    fields = [T.StructField("key", T.StringType()), T.StructField("value", T.DoubleType())]
    schema = T.StructType([T.StructField("n", T.LongType(), False), *fields])
    rows = [
        {"n": n, "key": key, "value": value}
        for n, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    settings = {"lanes": dice.randrange(2, 6), "group_by": "key"}
    return Offer(schema, _of_rows(spark, schema, rows), rows, settings)


def long_texts(spark: Any, dice: random.Random) -> Offer:
    """Strings of ten megabytes."""
    letter, rows = dice.choice("aé😀"), dice.randrange(1, 4)
    count = MEGABYTES * 2**20 // len(letter.encode())
    frame = spark.range(rows).select(
        F.col("id").alias("n"), F.expr(f"repeat('{letter}', {count})").alias("text")
    )
    return Offer(
        "n long, text string", frame, [{"n": n, "text": letter * count} for n in range(rows)]
    )


def odd_names(spark: Any, dice: random.Random) -> Offer:
    """Names that are SQL, or nearly."""
    names = dice.sample([f"{n}{name}" for n, name in enumerate(generated.ODD_NAMES)], 12)
    kinds = [T.StructField(name, T.StringType()) for name in names]
    schema = T.StructType([T.StructField("n", T.LongType(), False), *kinds])
    rows = [{"n": n, **{name: f"{name}{n}" for name in names}} for n in range(3)]
    shuffled = dice.sample(schema.names, len(schema.names))
    frame = _of_rows(spark, schema, rows).select(
        [f"`{name.replace('`', '``')}`" for name in shuffled]
    )
    return Offer(schema, frame, rows)


def deep(spark: Any, dice: random.Random) -> Offer:
    """Structs in arrays in structs."""
    kind, value, levels = "long", "n", range(dice.randrange(5, 25))
    for level in levels:
        kind = f"array<{kind}>" if level % 2 else f"struct<x: {kind}>"
        value = f"array({value})" if level % 2 else f"named_struct('x', {value})"
    frame = spark.range(4).withColumnRenamed("id", "n").selectExpr("n", f"{value} AS deep")
    rows: list[dict[str, Any]] = []
    for n in range(4):
        inner: Any = n
        for level in levels:
            inner = [inner] if level % 2 else {"x": inner}
        rows.append({"n": n, "deep": inner})
    return Offer(f"n long, deep {kind}", frame, rows)


def drawn_anew(spark: Any, dice: random.Random) -> Offer:
    """Which rows there are is drawn whenever somebody looks: what was written is what is there."""
    frame = spark.range(0, 400, 1, 4).withColumnRenamed("id", "n").where(F.rand() < 0.5)
    order = {"order_by": ["n"]} if dice.random() < 0.5 else {}
    return Offer("n long", frame, [], {"lanes": dice.randrange(1, 4)}, order, known=False)


def many_columns(spark: Any, dice: random.Random) -> Offer:
    """Hundreds of columns, of which the frame lacks some."""
    count = dice.randrange(200, 400)
    frame = spark.range(3).select(
        F.col("id").alias("n"), *(F.lit(c).cast("int").alias(f"c{c}") for c in range(0, count, 2))
    )
    columns = ", ".join(f"c{c} int" for c in range(count))
    values = {f"c{c}": None if c % 2 else c for c in range(count)}
    return Offer(f"n long, {columns}", frame, [{"n": n, **values} for n in range(3)])


# ------------------------------------------------------------------------- what has none


def names_twice(spark: Any, dice: random.Random) -> Offer:
    """Two columns of one name, or of one that differs in its case."""
    other = dice.choice(("n", "N"))
    frame = spark.range(3).select(F.col("id").alias("n"), F.lit(5).cast("long").alias(other))
    return Offer("n long", frame, None)


def joined_with_itself(spark: Any, dice: random.Random) -> Offer:
    """The columns of both sides of a join."""
    left = spark.range(dice.randrange(1, 5)).withColumnRenamed("id", "n")
    frame = left.alias("a").join(left.alias("b"), F.col("a.n") == F.col("b.n"))
    return Offer("n long", frame, None)


def unknown_columns(spark: Any, dice: random.Random) -> Offer:
    """A column that the queue does not have, or none of its own."""
    names = dice.choice((["n", "more"], ["m"], ["N"], ["n "], ["n", "n.x"], ["n", "_message.x"]))
    frame = spark.range(3).select(*(F.col("id").alias(name) for name in names))
    return Offer(_NEVER_NULL, frame, None)


_NEVER_NULL = T.StructType([T.StructField("n", T.LongType(), False)])


def other_types(spark: Any, dice: random.Random) -> Offer:
    """A type that the column does not have, even if each value would fit."""
    value = dice.choice(
        (
            *("'1'", "1.0D", "1.5BD", "true", "array(1L)", "named_struct('n', 1L)"),
            *("INTERVAL '1' DAY", "INTERVAL '1' MONTH", "X'01'", "DATE'2024-01-01'"),
            *("TIMESTAMP'2024-01-01 00:00:00'", "map('n', 1L)", "CAST(1 AS decimal(38,0))"),
        )
    )
    frame = spark.range(3).selectExpr(f"{value} AS n")
    return Offer("n long", frame, None)


def nulls_where_none_may_be(spark: Any, dice: random.Random) -> Offer:
    """One null among many rows."""
    rows = dice.randrange(2, 2_000)
    at = dice.randrange(rows)
    frame = spark.range(0, rows, 1, 5).selectExpr(f"nullif(id, {at}L) AS n")
    return Offer(_NEVER_NULL, frame, None)


def fails_half_way(spark: Any, dice: random.Random) -> Offer:
    """Values that cannot be computed, after others were written."""
    value = dice.choice(
        (
            *("1L div (id - 300)", "CAST(if(id = 300, 'x', '1') AS long)"),
            *("if(id = 300, CAST(raise_error('no') AS long), id)", "9223372036854775507 + id"),
        )
    )
    frame = spark.range(0, 400, 1, 4).selectExpr(f"{value} AS n")
    return Offer("n long", frame, None, refused=_OF_SPARK)


def not_there_any_more(spark: Any, dice: random.Random) -> Offer:
    """The rows of files that were deleted."""
    with tempfile.TemporaryDirectory() as folder:
        spark.range(0, dice.randrange(1, 50), 1, 2).write.parquet(f"{folder}/rows")
        frame = spark.read.parquet(f"{folder}/rows").withColumnRenamed("id", "n")
    return Offer("n long", frame, None, refused=_OF_SPARK)


SORTS: tuple[Sort, ...] = (
    *(no_rows, any_types, names_twice, keys_that_are_none, unknown_columns, widest_decimals),
    *(other_types, odd_names, nulls_where_none_may_be, deep, joined_with_itself, drawn_anew),
    *(fails_half_way, any_types, not_there_any_more, many_columns, many_partitions, long_texts),
)


def offer(manager: QueueManager, spark: Any, number: int) -> str:
    """Send the frame of a number to a new queue.

    Returns:
        Which sort it is, and what came of it.
    """
    sort, dice = SORTS[number % len(SORTS)], random.Random(number)
    made = sort(spark, dice)
    queue = manager.create_queue(f"q{number}", made.schema, dead_letter=False, **made.settings)
    if made.rows is None:
        told = _refused(queue, made)
    else:
        told = "sent"
        _sent(queue, made)
    manager.drop_queue(queue.name)
    return f"{sort.__name__.replace('_', ' ')}: {told}"


def _sent(queue: Any, made: Offer) -> None:
    count = queue.send(made.frame, **made.options).count
    batch = queue.receive(100_000)
    found = batch.to_arrow()
    assert (found.num_rows, queue.depth()) == (count, 0)
    if found.num_rows:
        found = found.drop_columns(["_message"]).sort_by("n")
    rows = found.to_pylist()
    if made.known:
        assert generated.equal(rows, made.rows), f"{str(rows)[:200]}, not {str(made.rows)[:200]}"
    else:
        assert len({row["n"] for row in rows}) == count > 0
    batch.accept()


def _refused(queue: Any, made: Offer) -> str:
    try:
        queue.send(made.frame, **made.options)
    except made.refused as error:
        told = type(error).__name__
    else:
        raise AssertionError(f"it was sent: {queue.receive().messages()[:3]}")
    assert (queue.depth(), queue.in_flight()) == (0, 0)
    assert queue.send([{"n": 7}]).count == 1
    batch = queue.receive()
    assert [message["n"] for message in batch.messages()] == [7]
    batch.accept()
    return told


def main(address: str, root: str, first: str) -> None:
    """Offer one frame of each sort over a server, and tell what came of them."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(address).getOrCreate()
    manager = QueueManager(spark, root)
    for number in range(int(first), int(first) + len(SORTS)):
        print(f"offered {offer(manager, spark, number)}", flush=True)
    assert manager.history.verify().ok
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
