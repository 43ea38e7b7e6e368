"""Maintenance on real Delta: files, payload, views, and what the log says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.delta.counting import Cost
from txnqueue import QueueManager
from txnqueue.admin import creation, maintenance

pytestmark = [pytest.mark.spark]
AT_ONCE: Any = {"transaction_seconds_max": 0, "payload_retention_days": 0}


def test_files_get_few_payload_goes_and_every_question_is_still_answered(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(creation, "SLICE_WIDTH", 1)
    monkeypatch.setattr(maintenance, "FILES_MAX", 0)
    manager = QueueManager(spark, str(tmp_path))
    queue = manager.create_queue("q", "i long", dead_letter=False)
    batches = []
    for n in range(3):
        queue.send([{"i": n}])
        batches.append(queue.receive(1))
        batches[-1].accept()
    for n in (7, 8):
        queue.send([{"i": n}])
    looked_at, later = batches[0].df, batches[0].df
    assert [row.i for row in looked_at.collect()] == [0]
    done = manager.maintain(**AT_ONCE)
    assert done.archived >= 9
    assert done.slices >= 2
    assert done.rewritten >= 1
    assert done.skipped == ()
    journal = manager._client.store.journal
    assert max(journal.files().values()) == 1
    with pytest.raises(Exception, match="PayloadRemoved"):
        later.collect()
    number = next(iter(batches[0].claims[0].positions.values())).slice
    spark.sql(  # a statement of a client that is long dead lands late
        f"INSERT INTO delta.`{tmp_path}/payload/{queue.info.payload_id}` "
        f"(send_id, send_offset, slice, i) VALUES ('late', 0, {number}, 99)"
    )
    with pytest.raises(Exception, match="PayloadRemoved"):
        batches[0].df.collect()
    assert [m["i"] for m in QueueManager(spark, str(tmp_path)).queue("q").peek_messages()] == [7, 8]
    proof = manager.history.verify()
    assert proof.ok, str(proof)
    manager.create_views("kept_")
    states = spark.sql("SELECT state, count(*) FROM kept_q GROUP BY state").collect()
    assert {row[0]: row[1] for row in states} == {"accepted": 3, "available": 2}
    assert spark.sql("SELECT * FROM kept_transactions WHERE status = 'committed'").count() == 5


@pytest.mark.parametrize("place", ["a path", "a schema"])
def test_payload_tables_that_no_queue_got_are_removed(
    spark: Any, tmp_path: Path, place: str
) -> None:
    """Catalogs write names in small letters, whatever the queues are called."""
    root = str(tmp_path) if place == "a path" else "strays"
    if place == "a schema":
        spark.sql("CREATE SCHEMA strays")
    manager = QueueManager(spark, root)
    queue = manager.create_queue("Q.one", "i long", dead_letter=False)
    queue.send([{"i": 1}])
    payload = manager._client.store.payload
    for owner in ("Lost-00000001", "Written-00000002"):
        payload.create(owner, queue.schema)
    spark.sql(
        f"INSERT INTO {payload._statements.names.payload('Written-00000002')} "
        "(send_id, send_offset, slice, i) VALUES ('s', 0, 0, 1)"
    )
    assert manager.maintain(vacuum=False).strays == ()
    done = manager.maintain(transaction_seconds_max=0, vacuum=False)
    assert done.strays == ("Lost-00000001",)
    assert len(done.skipped) == 1 and "Written-00000002" in done.skipped[0]
    again = QueueManager(spark, root).maintain(transaction_seconds_max=0, vacuum=False)
    assert again.strays == () and queue.depth() == 1
    assert [m["i"] for m in queue.receive(1).messages()] == [1]


@pytest.mark.skipif(not LONG, reason="a long run")
@pytest.mark.timeout(3_600)
def test_work_costs_the_same_jobs_and_commits_however_much_has_happened(
    spark: Any, tmp_path: Path
) -> None:
    manager = QueueManager(spark, str(tmp_path))
    manager.create_queue("q", "i long", dead_letter=False)

    def work(rounds: int) -> None:
        queue = manager.queue("q")
        for n in range(rounds):
            queue.send([{"i": n}])
            queue.receive(1).accept()
        manager.maintain(**AT_ONCE)

    def costs() -> list[tuple[int, int]]:
        fresh = QueueManager(spark, str(tmp_path))
        queue = fresh.queue("q")
        queue.send([{"i": -1}])
        found = []
        tx = fresh.transaction()
        with Cost(spark, str(tmp_path)) as claim:
            tx.queue("q").receive(1)
        with Cost(spark, str(tmp_path)) as commit:
            tx.commit()
        found += [(claim.commits, claim.jobs), (commit.commits, commit.jobs)]
        return found

    work(5)
    before = costs()
    work(100)
    assert costs() == before
