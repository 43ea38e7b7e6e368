"""Entries as rows of Delta tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txnqueue.core.model import Entry
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
    """Make an entry from a row."""
    plain = {k: v for k, v in row.items() if k not in ("ranges", "body", "_change_type")}
    parts = tuple((part["first"], part["last"]) for part in row["ranges"] or ())
    return Entry(**plain, ranges=parts, body=json.loads(row["body"] or "{}"))
