"""Entries as rows of Delta tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txnqueue.core.model import Entry
from txnqueue.errors import StoreCorrupt
from txnqueue.storage.journal.tables import JOURNAL_COLUMNS, identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAMES = [name for name, _ in JOURNAL_COLUMNS]


def rows_of(frame: DataFrame, version: str, *also: str) -> list[dict[str, Any]]:
    """Collect the columns of entries.

    Args:
        frame: Rows of the journal or the archive.
        version: The expression for an entry's version.
        also: Further columns.
    """
    rows: list[dict[str, Any]] = projected(frame, version, *also).toArrow().to_pylist()
    return rows


def projected(frame: DataFrame, version: str, *also: str) -> DataFrame:
    """Select the columns of an entry, with an expression for its version."""
    columns = [identifier(name) for name in NAMES if name != "recorded_at"]
    return frame.selectExpr(
        *columns, "unix_millis(recorded_at) AS recorded_at_ms", f"{version} AS version", *also
    )


def entry_of(row: Mapping[str, Any]) -> Entry:
    """Make an entry from a row.

    Raises:
        StoreCorrupt: The library does not write such rows. They would be read as another entry by
            SQL or other tools, or left out by some queries and not by others.
    """
    plain = {k: v for k, v in row.items() if k not in ("ranges", "body", "_change_type")}
    parts = tuple((part["first"], part["last"]) for part in row["ranges"] or ())
    if any(plain[name] is None for name in ("version", "ordinal", "index")):
        raise _corrupt(row, "its place in the commit order is missing or contradicts itself")
    try:
        body = _parsed(row["body"] or "{}")
    except ValueError as error:
        raise _corrupt(row, f"its body: {error}") from error
    return Entry(**plain, ranges=parts, body=body)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON; of equal names Python takes the last, and Spark the first."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a name occurs twice among {[name for name, _ in pairs]}")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_once)


def _parsed(body: str) -> dict[str, Any]:
    found = _DECODER.decode(body)
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    return found


def _corrupt(row: Mapping[str, Any], what: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"The entry {(row['append_id'], row['index'])} is damaged: {what}. Stop writing to the "
        "store, and keep it as it is."
    )
