"""Read files for ``txnqueue send``: CSV, JSON lines and Parquet, by the queue's schema.

A column that the queue does not have is an error and never dropped silently, and so is a
value of another type. Without a session, for a store in memory, Arrow reads the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from txnqueue.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMATS = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
}
_ABOUT_FILES = re.compile(
    r"MALFORMED|FAILED_READ_FILE|PATH_NOT_FOUND|UNABLE_TO_INFER_SCHEMA|CSV header|CANNOT_PARSE"
    r"|UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE"
)
_MALFORMED = re.compile(r".*(\[(?:MALFORMED|CANNOT_PARSE|CANNOT_READ_FILE_FOOTER))")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


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
    if not _URL.match(path) and not Path(path).exists():
        raise InvalidInput(f"There is no file {path!r}: check the path.")
    with spelled_out(path):
        if spark is None:
            return _ARROW[kind](schema, path)
        if kind == "parquet":
            return spark.read.parquet(path)
        return _read_text(spark, schema, kind, path)


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

    options = {"mode": "FAILFAST"}
    if kind == "csv":
        options |= {"header": "true", "escape": '"', "multiLine": "true", "enforceSchema": "false"}
    else:
        options |= {"primitivesAsString": "true"}
    names: Sequence[str] = spark.read.options(**options).format(kind).load(path).columns
    known = {column.name: column for column in schema.fields}
    columns = [known.get(name) or StructField(name, StringType()) for name in names]
    typed = StructType([StructField(column.name, column.dataType) for column in columns])
    return spark.read.options(**options).schema(typed).format(kind).load(path)


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
    lines = str(error).strip().splitlines() or [type(error).__name__]
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
