"""The floors: what plain Delta takes for the same rows, and what one decision takes at least.

- *raw*: the same rows appended to, or read from, a plain table, on the user's session.
- *MERGE*: an insert-only MERGE of one row into a table that has the columns, the properties,
  the partitions and the history of a journal, on a session set as that of the library.
- *MERGE with a guard*: the same, whose source asks the table whether the row may go in. A decision
  that depends on what others have decided, on the MERGE's own snapshot, takes at least that.

They are written down here, and not taken from the library: it cannot move its own goal posts.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

COLUMNS = "order_id BIGINT, customer STRING, amount DOUBLE"
VERSIONS = 100
SETTINGS = {
    "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled": "true",
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.files.openCostInBytes": "65536",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.shuffle.partitions": "1",
}
"""What makes small statements fast, for the MERGE and for the peers that are beside the library."""
_JOURNAL = """
CREATE TABLE delta.`{path}` (
  shard STRING, stream STRING, sequence BIGINT, kind STRING, append_id STRING, ordinal INT,
  `index` INT, transaction_key STRING, attempt STRING, begun BIGINT, queue_id STRING, lane INT,
  claim_lane INT, claim_sequence BIGINT, ranges ARRAY<STRUCT<first: BIGINT, last: BIGINT>>,
  count BIGINT, reason STRING, actor STRING, run_id STRING, recorded_at TIMESTAMP, body STRING
) USING delta PARTITIONED BY (shard) TBLPROPERTIES (
  'delta.enableDeletionVectors' = 'false', 'delta.checkpointInterval' = '10',
  'delta.autoOptimize.autoCompact' = 'false', 'delta.autoOptimize.optimizeWrite' = 'false',
  'delta.isolationLevel' = 'Serializable', 'delta.enableInCommitTimestamps' = 'true',
  'delta.enableRowTracking' = 'true', 'delta.enableChangeDataFeed' = 'true',
  'delta.dataSkippingStatsColumns' = 'stream,kind,append_id,sequence',
  'delta.constraints.entry_is_named' = 'append_id IS NOT NULL AND kind IS NOT NULL',
  'delta.constraints.counts_are_not_negative' = 'count IS NULL OR count >= 0')
"""
_ROW = """
SELECT 'transaction/{shard}' AS shard, 'b{n}' AS stream, CAST(NULL AS BIGINT) AS sequence,
  'committed' AS kind, 'a{n}' AS append_id, 0 AS ordinal, 0 AS `index`,
  'b{n}' AS transaction_key, 'c{n}' AS attempt, {n}L AS begun, CAST(NULL AS STRING) AS queue_id,
  CAST(NULL AS INT) AS lane, CAST(NULL AS INT) AS claim_lane,
  CAST(NULL AS BIGINT) AS claim_sequence,
  CAST(NULL AS ARRAY<STRUCT<first: BIGINT, last: BIGINT>>) AS ranges, 1000L AS count,
  CAST(NULL AS STRING) AS reason, 'bench' AS actor, CAST(NULL AS STRING) AS run_id,
  current_timestamp() AS recorded_at, '{{"v": 1, "manifest": {{"posted": {{"q": 1000}}}}}}' AS body
"""


def orders(spark: Any, count: int, first: int = 0) -> Any:
    """Make a frame of orders, which Spark computes faster than it can write it."""
    return spark.range(first, first + count).selectExpr(
        "id AS order_id",
        "concat('c', id % 1000) AS customer",
        "CAST(id % 977 AS double) / 8 AS amount",
    )


class RawTable:
    """A plain Delta table, as the user would have it instead of a queue."""

    def __init__(self, spark: Any, path: Path, columns: str = COLUMNS) -> None:
        self.spark, self.path = spark, path
        spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta").collect()

    def append(self, frame: Any) -> None:
        frame.write.format("delta").mode("append").save(str(self.path))

    def insert(self, order_id: int) -> None:
        """Append one row, which is faster so than by a frame."""
        self.spark.sql(f"INSERT INTO delta.`{self.path}` VALUES ({order_id}, 'ada', 9.5)").collect()

    def aggregate(self, first: int, count: int) -> None:
        """Read some of the rows, and add something up."""
        frame = self.spark.read.format("delta").load(str(self.path))
        aggregate(frame.where(f"order_id BETWEEN {first} AND {first + count - 1}"), count)


def aggregate(frame: Any, count: int) -> None:
    """Read all columns of a frame, whose rows must be so many."""
    (row,) = frame.selectExpr("count(*)", "sum(amount)", "max(customer)", "max(order_id)").collect()
    if row[0] != count:
        raise AssertionError(f"{row[0]} rows were read, and {count} are there")


class Journal:
    """A table as a journal is, with a history."""

    def __init__(self, spark: Any, path: Path) -> None:
        self._session = spark.newSession()
        for key, value in SETTINGS.items():
            self._session.conf.set(key, value)
        self._path = path
        self._numbers = itertools.count()

    @classmethod
    def make(cls, spark: Any, path: Path, versions: int = VERSIONS) -> Journal:
        """Create one that has so many versions."""
        made = cls(spark, path)
        made._session.sql(_JOURNAL.format(path=path)).collect()
        for _ in range(versions):
            row = made._row()
            made._session.sql(f"INSERT INTO delta.`{path}` {row}").collect()
        return made

    def copy(self, path: Path) -> Journal:
        """Copy it as it is: each group of cases begins with the same history."""
        shutil.copytree(self._path, path)
        copied = Journal(self._session, path)
        copied._numbers = itertools.count(1_000_000)
        return copied

    def merge(self) -> None:
        """Insert one row unless it is there."""
        self._merge(self._row())

    def merge_if_new(self) -> None:
        """Insert one row unless it, or another one of its stream, is there."""
        row = self._row()
        found = (
            f"SELECT count_if(g.stream = 'b{self._number}') FROM delta.`{self._path}` g "
            f"WHERE g.shard = 'transaction/{self._shard}' AND g.stream = 'b{self._number}'"
        )
        self._merge(f"SELECT * FROM ({row}) WHERE ({found}) = 0")

    def _merge(self, row: str) -> None:
        (answer,) = self._session.sql(
            f"MERGE INTO delta.`{self._path}` t USING ({row}) s "
            f"ON t.shard = 'transaction/{self._shard}' AND t.append_id = s.append_id "
            "WHEN NOT MATCHED THEN INSERT *"
        ).collect()
        if answer["num_inserted_rows"] != 1:
            raise AssertionError("the MERGE inserted nothing")

    def _row(self) -> str:
        self._number = next(self._numbers)
        self._shard = self._number % 16
        return _ROW.format(shard=self._shard, n=self._number)
