"""A frame of messages on their data files, which needs neither a count nor a listing.

The contents of a file never change, so a frame that names its files shows the same messages
whenever it is evaluated, or fails because a file is missing: whatever the session's settings,
Spark skips no files, and compares each page that it reads with its checksum.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from txnqueue.storage.journal.tables import identifier, literal
from txnqueue.storage.payload import Part
from txnqueue.storage.payload.data_files import Held
from txnqueue.storage.payload.queries import (
    PLACE,
    are_few_places,
    in_piece,
    literal_offsets,
    message_struct,
    null_column,
    piece_bits,
    place_case,
    places,
)
from txnqueue.storage.payload.types import some_value, sql_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("txnqueue")
FILES_MAX = 256
"""Above this number of files the table is read, because Spark checks each file before reading."""
_LISTED_MAX = 32
"""Above this number of files, Spark checks them in a job."""
_NAMED_MAX = 20
"""Up to this number of sends, offsets are named to skip parts of files; more are joined."""
_OPTIONS = {
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "parquet.page.verify-checksum.enabled": "true",
}
_OWN = StructType(
    [
        StructField("send_id", StringType()),
        StructField("send_offset", LongType()),
        StructField("headers", MapType(StringType(), StringType())),
    ]
)


def may_show(columns: Mapping[str, StructField], schema: StructType) -> bool:
    """Return whether a frame on files can show the same columns as one on the table.

    Spark considers every column of a file nullable.

    Args:
        columns: The table's columns, by name.
        schema: The columns to show.
    """
    shown = (columns[one.name] for one in schema.fields if one.name in columns)
    return all(one.nullable or some_value(one.dataType) is not None for one in shown)


def file_frame(
    session: SparkSession,
    held: Held,
    schema: StructType,
    columns: Mapping[str, StructField],
    parts: Sequence[Part],
) -> DataFrame | None:
    """Make a frame of messages.

    Args:
        session: The user's session.
        held: The files that contain them.
        schema: The columns to show.
        columns: The table's columns, by name.
        parts: The messages, of one table.

    Returns:
        The payload's columns and ``_message``; None if a file has disappeared meanwhile.
    """
    named = parts[0].message_id
    names = dict.fromkeys([*schema.names, *([] if named is None else [named])])
    there = [columns[name] for name in names if name in columns]
    stored = StructType([StructField(one.name, one.dataType) for one in there] + _OWN.fields)
    reader = session.read.schema(stored).options(**_OPTIONS)
    try:
        pieces = [
            _read(session, reader, held.paths[at : at + _LISTED_MAX])
            for at in range(0, len(held.paths), _LISTED_MAX)
        ]
    except Exception as error:  # a file is missing; reading with Delta will report what is wrong
        logger.info("files not listed payload=%s error=%s", parts[0].payload_id, error)
        return None
    files = reduce(lambda one, other: one.unionAll(other), pieces)
    if len(files._jdf.inputFiles()) != len(held.paths):  # a file disappeared between Spark's checks
        return None
    rows = files.alias("p")
    if not held.only and len(held.lie) <= _NAMED_MAX:
        rows = rows.where(literal_offsets(held.lie))
    shown = [_shown(one, columns.get(one.name)) for one in schema.fields]
    if are_few_places(parts, held.lie):
        placed = rows.withColumn(PLACE, F.expr(place_case(parts)))
        return placed.selectExpr(*shown, message_struct(named, PLACE))
    bits = piece_bits(parts)
    beside = session.sql(f"SELECT * FROM {places(list(enumerate(parts)), bits)}").alias("r")
    joined = rows.join(F.broadcast(beside), F.expr(in_piece(bits)))
    return joined.selectExpr(*shown, message_struct(named))


def _read(session: SparkSession, reader: Any, paths: Sequence[str]) -> DataFrame:
    """Read some files; their names go to Java as one text, and not by one call for each."""
    java: Any = session._jvm
    named = java.java.util.regex.Pattern.compile("\0").split(
        "\0".join(f"file:{path}" for path in paths)
    )
    return DataFrame(reader._jreader.parquet(named), session)


def _shown(column: StructField, there: StructField | None) -> str:
    """Return a column as a frame on the table shows it, including whether it is nullable.

    Args:
        column: The column.
        there: The table's column of that name; None if it has none.
    """
    if there is None:
        return null_column(column)
    plain = f"p.{identifier(column.name)}"
    if there.nullable:
        return plain
    wrong = literal(f"column {column.name} was declared NOT NULL, and a row has null")
    fails = f"CAST(raise_error({wrong}) AS {sql_type(there.dataType)})"
    # The last value never occurs: it makes the column not nullable for Spark.
    return f"coalesce({plain}, {fails}, {some_value(there.dataType)}) AS {identifier(column.name)}"
