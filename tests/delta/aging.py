"""Makes real tables old: what Delta removes after days and weeks is removed now."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

DAY = 86_400
OLD = 40 * DAY
"""Older than the 30 days for which Delta keeps its log."""


def age(spark: Any, root: str, *, vacuum: bool = True) -> None:
    """Let everything that a store's tables hold be 40 days old, and clean them up as Delta does.

    The files that no version of today needs go (VACUUM, unless left out), the commits before the
    newest checkpoint go (log clean-up), and no version but the newest may be asked for any more.
    """
    for log in sorted(Path(root).glob("**/_delta_log")):
        table = f"delta.`{log.parent}`"
        _expire(spark, table)  # at this interval a checkpoint follows each commit, this one too
        backdate(log.parent)
        if vacuum:
            spark.sql(f"VACUUM {table}").collect()
        _checkpoint(spark, table)  # cleans the log up to the newest checkpoint that is old enough
        assert not (log / f"{0:020}.json").exists(), "the log was not cleaned up"


def _expire(spark: Any, table: str) -> None:
    spark.sql(
        f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.checkpointInterval' = '1', "
        "'delta.logRetentionDuration' = 'interval 1 milliseconds', "
        "'delta.deletedFileRetentionDuration' = 'interval 1 milliseconds')"
    ).collect()


def _checkpoint(spark: Any, table: str) -> None:
    """Commit something that says nothing; at this interval a checkpoint follows."""
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('aged' = '{time.time()}')").collect()


def backdate(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            os.utime(file, (time.time() - OLD,) * 2)
