"""Commits whose times in Delta's log are years wrong: nothing waits for them, nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.inside import lease_over
from txnqueue import QueueManager

pytestmark = [pytest.mark.spark]
YEARS_MS = 3 * 365 * 86_400_000
AT_ONCE: Any = {"transaction_seconds_max": 0, "payload_retention_days": 7}


def shift(spark: Any, root: Path, apart_ms: int) -> int:
    """Let the commits of the journal so far be of a driver whose clock was wrong.

    Delta takes the committer's clock, or a moment after the last commit's if that is ahead.
    """
    log = root / "journal" / "_delta_log"
    changed = 0
    for file in sorted(log.glob("*.json")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for line in lines:
            if "inCommitTimestamp" in line.get("commitInfo", {}):
                line["commitInfo"]["inCommitTimestamp"] += apart_ms
                changed += 1
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for other in (f".{file.name}.crc", f"{file.stem}.crc", f".{file.stem}.crc.crc"):
            (log / other).unlink(missing_ok=True)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    return changed


def times(spark: Any, root: Path) -> list[int]:
    history = spark.sql(f"DESCRIBE HISTORY delta.`{root}/journal`").orderBy("version")
    return [row[0] for row in history.selectExpr("unix_millis(timestamp)").collect()]


@pytest.mark.parametrize("apart_ms", [YEARS_MS, -YEARS_MS] if LONG else [YEARS_MS])
def test_times_of_commits_that_are_years_wrong_spoil_nothing(
    spark: Any, tmp_path: Path, apart_ms: int
) -> None:
    warm = QueueManager(spark, str(tmp_path))
    queue = warm.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": n} for n in range(3)])
    left = queue.receive(1, lease_seconds=0.001)
    kept = queue.receive(1)
    now_ms = times(spark, tmp_path)[-1]
    assert shift(spark, tmp_path, apart_ms) > 3
    queue.send([{"n": 3}])  # the warm driver goes on, at a time that follows the wrong ones
    if apart_ms > 0:
        assert times(spark, tmp_path)[-1] > now_ms + YEARS_MS / 2
    for manager in (warm, QueueManager(spark, str(tmp_path))):
        assert manager.queue("orders").depth() + manager.queue("orders").in_flight() == 4
        assert manager.history.verify().ok
    cold = QueueManager(spark, str(tmp_path))
    got = [m["n"] for _ in range(3) for m in cold.queue("orders").receive(4).messages()]
    assert sorted(got + [m["n"] for m in kept.messages()]) == [0, 1, 2, 3]
    kept.accept()
    assert lease_over(left)
    with cold.transaction("late") as tx:
        cold.queue("orders").send([{"n": 9}], transaction=tx)
    done = cold.maintain(**AT_ONCE)
    assert done.archived > 0 and done.skipped == ()
    assert warm.outcome("late").status.value == "committed"
    assert tx.receipt is not None
    assert len(warm.history.as_of(tx.receipt.commit_seq).messages("orders").rows()) == 4
    cold.create_views("times_")
    assert spark.sql("SELECT count(*) FROM times_orders").collect()[0][0] == 5
    for manager in (warm, cold):
        assert manager.history.verify().ok
