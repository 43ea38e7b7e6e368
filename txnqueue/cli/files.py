"""Read files for ``txnqueue send``: CSV, JSON lines and Parquet, by the queue's schema.

A column that the queue does not have is an error and never dropped silently, and so is a
value of another type. Without a session, for a store in memory, Arrow reads the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from txnqueue.cli.presentation import lines_of
from txnqueue.core.settings import shown
from txnqueue.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructField, StructType

FORMATS = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
_ABOUT_FILES = re.compile(
    r"MALFORMED|FAILED_READ_FILE|PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA|CSV header|CANNOT_PARSE"
    r"|UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE|COLUMN_ALREADY_EXISTS|INVALID_JSON_RECORD_TYPE"
    r"|URISyntaxException|PARQUET_TYPE|UNSUPPORTED_TIME_TYPE|CANNOT_MERGE"
)
_MALFORMED = re.compile(
    r".*(\[(?:MALFORMED|CANNOT_PARSE|CANNOT_READ_FILE_FOOTER|INVALID_JSON)|CSV header does not)"
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_DIGITS_MAX = 38
"""The most digits of a decimal."""


def format_of(path: str) -> str:
    """Find the format of a file by its extension.

    Returns:
        csv, json or parquet.

    Raises:
        InvalidInput: The extension is not known.
    """
    suffix = PurePosixPath(path).suffix.lower()
    if suffix not in FORMATS:
        raise InvalidInput(
            f"{path!r}: the extension must tell the format, and {suffix or 'none'!r} is not one "
            f"of {', '.join(FORMATS)}."
        )
    return FORMATS[suffix]


def read_file(spark: SparkSession | None, schema: StructType, path: str) -> DataFrame | pa.Table:
    """Read a file's rows, typed as the queue's columns of the same names.

    Raises:
        InvalidInput: A local file is missing, or it cannot be read so. With Spark values are
            looked at when the rows are sent: see ``spelled_out``.
    """
    kind = format_of(path)
    with spelled_out(path):
        if not _URL.match(path):
            _check_there(path)
        if spark is None:
            return _ARROW[kind](schema, path)
        if kind != "parquet":
            return _read_text(spark, schema, kind, path)
        # All files of a folder: else the columns are those of one, and the others' are left out.
        return spark.read.option("mergeSchema", "true").parquet(_spark_path(path))


def _check_there(path: str) -> None:
    """Check that there is a local file, or a folder that Spark reads all of.

    Raises:
        InvalidInput: There is none, it has a folder that is no value of a partition, or this user
            must not read it.
    """
    if not Path(path).exists():
        raise InvalidInput(f"There is no file {path!r}: check the path.")
    if not os.access(path, os.R_OK):  # Spark would say that there is none
        raise InvalidInput(f"{path!r} cannot be read: let this user read it.")
    for folder, names, _ in os.walk(path):
        inside = [name for name in names if not name.startswith(("_", ".")) and "=" not in name]
        if inside:
            raise InvalidInput(
                f"{path!r} has a folder {str(Path(folder, inside[0]))!r}, whose files would not be "
                "read: send the folders one by one."
            )


def _spark_path(path: str) -> str:
    """Write a path so that Spark reads that very file; of a URI, what its wildcards mean.

    Of a local name, brackets would mean other files, and a colon a file system.
    """
    if _URL.match(path):
        return path
    from txnqueue.storage.journal.tables import verbatim

    return verbatim(os.path.abspath(path))


@contextmanager
def spelled_out(path: str) -> Iterator[None]:
    """Turn what Spark and Arrow say about a file into the library's own error."""
    import pyarrow as pa

    try:
        yield
    except (
        pa.ArrowException,
        OSError,
        UnicodeDecodeError,
    ) as error:  # the last: of a column's name
        raise InvalidInput(f"{path!r} cannot be read: {_said(error)}") from error
    except Exception as error:
        home = type(error).__module__.partition(".")[0]
        if home not in ("pyspark", "py4j") or not _ABOUT_FILES.search(str(error)):
            raise
        raise InvalidInput(f"{path!r} cannot be read: {_said(error)}") from error


def _read_text(spark: SparkSession, schema: StructType, kind: str, path: str) -> DataFrame:
    """Read CSV or JSON: first the names of the columns, then the rows by the queue's types."""
    from pyspark.sql.types import StringType, StructField, StructType

    where = _spark_path(path)
    _check_lines(spark, kind, where, path)
    options = {"mode": "FAILFAST", "dateFormat": "yyyy-MM-dd"}  # else a year is a date as well
    if kind == "csv":
        options |= {"header": "true", "escape": '"', "enforceSchema": "false"}
    else:
        options |= {"primitivesAsString": "true"}
    found = spark.read.options(**options).format(kind).load(where).schema
    if kind == "csv" and not found.fields:
        raise InvalidInput(f"{path!r} is empty: give at least the line with the columns' names.")
    known = {column.name: column for column in schema.fields}
    for column in found.fields if kind == "json" else ():
        if column.name in known:
            _check_fields(column.dataType, known[column.name].dataType, column.name)
    columns = [known.get(name) or StructField(name, StringType()) for name in found.names]
    typed = StructType([StructField(column.name, _wide(column.dataType)) for column in columns])
    if kind == "csv":  # not before: Spark would look for the names in files of another path
        options |= {"multiLine": "true"}
    rows = spark.read.options(**options).schema(typed).format(kind).load(where)
    exact = {
        column.name: _exact(column, read.dataType)
        for column, read in zip(columns, typed.fields, strict=True)
        if read.dataType != column.dataType
    }
    return rows.withColumns(exact) if exact else rows


def _check_lines(spark: SparkSession, kind: str, where: str, path: str) -> None:
    """Look for what Spark passes over: in JSON what follows an object, and octets of no letter.

    Raises:
        InvalidInput: A line has some.
    """
    from pyspark.sql import functions as F

    line = F.col("value")
    whole = F.is_valid_utf8(line)
    if kind == "json":
        objects = F.from_json(F.concat(F.lit("["), line, F.lit("]")), "array<string>")
        whole &= F.coalesce(F.size(objects) <= 1, F.lit(False))
    wrong = spark.read.text(where).where(~whole).select(line).first()
    if wrong is not None:
        lacks = "one JSON object in UTF-8" if kind == "json" else "in UTF-8"
        raise InvalidInput(f"{path!r} cannot be read: the line {shown(wrong[0])} is not {lacks}.")


def _check_fields(found: DataType, wanted: DataType, name: str) -> None:
    """Check that a column's type has a place for all that JSON has: Spark leaves out the rest.

    Args:
        found: The type that Spark finds in the file, where maps look like structs.
        wanted: The type of the column.
        name: The column, with the fields that lead to this one.

    Raises:
        InvalidInput: The file has a field that the type does not have.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        _check_fields(found.elementType, wanted.elementType, name)
    elif isinstance(found, StructType):
        known = wanted.fields if isinstance(wanted, StructType) else ()
        types = {field.name: field.dataType for field in known}
        for field in found.fields:
            there = wanted.valueType if isinstance(wanted, MapType) else types.get(field.name)
            if there is None:
                raise InvalidInput(
                    f"Column {name!r} has no field {field.name!r}, which is in the file."
                )
            _check_fields(field.dataType, there, f"{name}.{field.name}")


def _wide(column: DataType) -> DataType:
    """Give decimals all the digits that there can be: Spark rounds what it reads.

    Where all 38 digits are a column's own, none is left that would tell.
    """
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StructField, StructType

    if isinstance(column, DecimalType):
        return DecimalType(_DIGITS_MAX, _DIGITS_MAX - column.precision + column.scale)
    if isinstance(column, ArrayType):
        return ArrayType(_wide(column.elementType), column.containsNull)
    if isinstance(column, MapType):
        return MapType(column.keyType, _wide(column.valueType), column.valueContainsNull)
    if isinstance(column, StructType):
        return StructType(
            [StructField(one.name, _wide(one.dataType), one.nullable) for one in column.fields]
        )
    return column


def _exact(column: StructField, read: DataType) -> Column:
    """Convert a column with wide decimals to its own type, and fail where that loses a digit."""
    from pyspark.sql import functions as F

    there = F.col(f"`{column.name.replace('`', '``')}`")
    kept = there.try_cast(column.dataType)
    again, before = (F.struct(one.alias("read")) for one in (kept.cast(read), there))
    same = F.to_json(again) == F.to_json(before)  # maps cannot be compared
    why = f"[CANNOT_PARSE_DECIMAL] Column {column.name!r} would lose digits of its values."
    return F.when(same, kept).otherwise(F.raise_error(F.lit(why)))


def _arrow_csv(schema: StructType, path: str) -> pa.Table:
    from pyarrow import csv

    from txnqueue.storage.payload.types import arrow_schema

    convert = csv.ConvertOptions(
        column_types={column.name: column.type for column in arrow_schema(schema)},
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    parse = csv.ParseOptions(newlines_in_values=True)
    return csv.read_csv(path, parse_options=parse, convert_options=convert)


def _arrow_json(schema: StructType, path: str) -> pa.Table:
    from pyarrow import json

    from txnqueue.storage.payload.types import arrow_schema

    return json.read_json(path, parse_options=json.ParseOptions(arrow_schema(schema)))


def _arrow_parquet(_schema: StructType, path: str) -> pa.Table:
    from pyarrow import parquet

    return parquet.read_table(path)


_ARROW: dict[str, Callable[[StructType, str], Any]] = {
    "csv": _arrow_csv,
    "json": _arrow_json,
    "parquet": _arrow_parquet,
}


def _said(error: BaseException) -> str:
    """Take the line of an error that is about the file: Spark buries it under its own."""
    lines = lines_of(error) or [type(error).__name__]
    telling = [line for line in lines if _MALFORMED.search(line)] or lines
    return _MALFORMED.sub(r"\1", telling[0])


def read_yaml(file: str) -> dict[str, Any]:
    """Read a YAML file of names with their values.

    Raises:
        InvalidInput: It cannot be read, gives a name twice, or is something else.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        """Refuses a name that is given twice, of which PyYAML would keep only the last value."""

        def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            seen = set()
            for name in (name for name, _ in node.value if isinstance(name, yaml.ScalarNode)):
                if (name.tag, name.value) in seen:
                    why = f"{name.value!r} is given twice"
                    raise yaml.MarkedYAMLError(problem=why, problem_mark=name.start_mark)
                seen.add((name.tag, name.value))
            return node

    try:
        with open(file, encoding="utf-8") as opened:
            found = yaml.load(opened, Loader)  # noqa: S506 - it is a safe one
    except Exception as error:  # PyYAML fails with whatever a tag's value makes of its own code
        raise InvalidInput(f"{file}: {error or type(error).__name__}") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"{file}: give a mapping of names to values, such as 'queues:'.")
    return found
