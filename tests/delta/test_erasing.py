"""What was erased is in no file any more, once Delta has let go of the old ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.conftest import LONG
from txnqueue import QueueManager
from txnqueue.storage.journal.tables import identifier

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not LONG, reason="what it needs of Delta is slow: TXNQUEUE_LONG=1"),
]
SECRET = "Annegret-Kramp-4711"


def tells(root: Path, text: str) -> dict[str, int]:
    """Count the files that tell a text: in their octets, or in what Parquet decodes of them."""
    found: dict[str, int] = {}
    for file in sorted(root.rglob("*")):
        if not file.is_file():
            continue
        inside = text.encode() in file.read_bytes()
        if file.suffix == ".parquet" and not inside:
            inside = text in str(pq.ParquetFile(file).read().to_pydict())
        if inside:
            kind = "log" if "_delta_log" in file.parts else "files"
            table = file.relative_to(root).parts[0]
            found[f"{table}: {kind}"] = found.get(f"{table}: {kind}", 0) + 1
    return found


def test_nothing_is_left_in_the_files_after_the_vacuum(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with QueueManager(spark, str(root), actor="clerk") as manager:
        queue = manager.create_queue("people", "name string, n long", message_id="name")
        others = manager.create_queue("others", "name string, n long", dead_letter=False)
        queue.send([{"name": SECRET, "n": 1}, {"name": "bert", "n": 2}])
        others.send([{"name": SECRET, "n": 1}, {"name": "carl", "n": 2}])
        kept = others.send([{"name": "dora", "n": 3}])
        others.receive(3).accept()
        (table,) = (root / "payload").glob("others*")
        before = {file.name for file in table.rglob("slice=*/*.parquet")}
        assert tells(root, SECRET) == {"payload: files": 2}
        done = manager.erase("others", f"name = '{SECRET}'", reason="request 7")
        assert (done.erased, done.purged, done.undecided) == (1, 0, 0)
        assert done.readable_until is not None
        after = {file.name for file in table.rglob("slice=*/*.parquet")}
        assert before < after  # the old file stays for now
        assert len(after - before) == 1
        assert tells(root, SECRET) == {"payload: files": 2}
        spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        try:
            spark.sql(f"VACUUM delta.{identifier(str(table))} RETAIN 0 HOURS").collect()
        finally:
            spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
        assert tells(table, SECRET) == {}
        assert tells(root, SECRET) == {"payload: files": 1}  # the other queue's
        assert manager.history.verify().ok
        steps = manager.history.trace(f"{kept.send_id}:0").rows()
        assert [step["step"] for step in steps] == ["sent", "claimed", "accepted"]
