"""Questions to a long history on Delta: what they bring to Python, and how much it holds."""

from __future__ import annotations

import itertools
import resource
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import LONG
from tests.delta.counting import Cost
from tests.faults import bulk
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.storage.journal import archive, delta, selection
from txnqueue.storage.journal.rows import entry_of
from txnqueue.storage.journal.tables import JOURNAL_COLUMNS

pytestmark = pytest.mark.spark
QUEUES, ROUNDS = 40, 6_250
BATCHES, ARCHIVED = 3, 2
TYPES: dict[str, Any] = {
    "string": pa.string(), "bigint": pa.int64(), "int": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
}  # fmt: skip
SCHEMA = pa.schema(
    [
        (name, TYPES.get(kind, pa.list_(pa.struct([("first", pa.int64()), ("last", pa.int64())]))))
        for name, kind in JOURNAL_COLUMNS
    ]
)
COLUMNS = ", ".join(f"`{name}`" for name, _ in JOURNAL_COLUMNS)


class Store:
    """A store with many rounds behind it, more than half of them in the archive."""

    def __init__(self, spark: Any, root: Path) -> None:
        self.spark, self.root = spark, root
        manager = QueueManager(spark, str(root / "store"))
        made = [manager.create_queue(f"q{n}", "n long", dead_letter=False) for n in range(QUEUES)]
        sends = []
        for queue in made:
            tx = manager.transaction()
            rows = [{"n": n} for n in range(ROUNDS)]
            sends.append((queue.info.queue_id, queue.send(rows, transaction=tx).send_id))
            tx.rollback()
        made[3].send([{"n": 1}])
        made[4].send([{"n": 1}])
        manager.maintain(transaction_seconds_max=0, payload_retention_days=7, vacuum=False)
        client_of(manager).store.journal.archive.create()
        for batch in range(BATCHES):
            self._grow(sends, range(batch * ROUNDS // BATCHES, (batch + 1) * ROUNDS // BATCHES))
        self._move(ARCHIVED * ROUNDS // BATCHES)
        self.queue_id = made[3].info.queue_id

    def _grow(self, sends: list[tuple[str, str]], rounds: range) -> None:
        entries = (
            replace(entry, ordinal=ordinal)  # as if one append had a unit for each queue
            for ordinal, (queue_id, send_id) in enumerate(sends)
            for append_id in [f"{queue_id}/{rounds.start}"]
            for number in rounds
            for entry in bulk.a_round(queue_id, send_id, number, bulk.ENTRIES * number, append_id)
        )
        file, rows = str(self.root / "rows.parquet"), bulk.rows_of(entries)
        with pq.ParquetWriter(file, SCHEMA) as writer:
            while piece := list(itertools.islice(rows, 20_000)):
                writer.write_table(pa.Table.from_pylist(piece, SCHEMA))
        frame = self.spark.read.parquet(file).repartition("shard")
        frame.write.format("delta").mode("append").save(str(self.root / "store/journal"))

    def _move(self, rounds: int) -> None:
        """Let what is finished leave for the archive, as maintenance does."""
        old = f"append_id LIKE '%/%' AND `index` < {bulk.ENTRIES * rounds}"
        journal, kept = (f"delta.`{self.root}/store/{name}`" for name in ("journal", "archive"))
        self.spark.sql(
            f"INSERT INTO {kept} SELECT {COLUMNS}, _metadata.row_commit_version * 1024 + ordinal, "
            f"DATE'2024-01-01' FROM {journal} WHERE {old}"
        )
        self.spark.sql(
            f"MERGE INTO {journal} USING (SELECT 1 AS one) ON {old} WHEN MATCHED THEN DELETE"
        )

    def manager(self) -> QueueManager:
        manager = QueueManager(self.spark, str(self.root / "store"))
        manager.list_queues()
        return manager


@pytest.fixture(scope="module")
def store(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(spark, tmp_path_factory.mktemp("scale"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the entries that are made of rows."""
    count, plain = [0], entry_of

    def counted(row: Any) -> Any:
        count[0] += 1
        return plain(row)

    for module in (selection, delta, archive):
        monkeypatch.setattr(module, "entry_of", counted)
    return count


@pytest.mark.skipif(not LONG, reason="a long run; in memory it is counted always")
@pytest.mark.timeout(3_600)
def test_a_question_brings_what_it_is_about_and_verify_holds_a_part_at_a_time(
    store: Store, made: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    total, own = bulk.ENTRIES * ROUNDS * QUEUES, (bulk.ENTRIES - 1) * ROUNDS
    manager = store.manager()
    told, few = [f"entries={total}"], 3 * QUEUES + 40
    message_id = manager.queue("q3").peek_messages()[0]["_message"]["id"]
    history, version = manager.history, client_of(manager).store.journal.version()

    def ask(what: str, question: Any, entries_max: int) -> Any:
        made[0] = 0
        with Cost(store.spark, str(store.root)) as cost:
            answer = question()
        told.append(f"{what}: entries={made[0]} jobs={cost.jobs} bytes={cost.bytes}")
        assert made[0] <= entries_max, told[-1]
        return answer

    steps = ask("trace", lambda: history.trace(message_id).rows(), 2 * few)
    assert [step["step"] for step in steps] == ["sent"]
    then = history.as_of()
    rows = ask("as_of(queue)", lambda: then.messages("q3").rows(), own + few)
    assert len(rows) == 1
    listed = ask("changes(queue)", lambda: history.changes(queue="q3").rows(), own + few)
    assert len(listed) >= own and {row["queue"] for row in listed} == {"q3"}
    lately = ((version - 1) << 10) - 1  # since the last rows came, and old ones left
    assert ask("changes", lambda: history.changes(lately).rows(), total // BATCHES + few)
    made[0] = 0
    tracemalloc.start()
    proof = history.verify()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    told.append(f"verify: entries={made[0]} peak={peak / 1e6:.1f} MB of Python")
    told.append(f"resident={resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")
    with capsys.disabled():
        print("\n" + "\n".join(told))
    assert proof.ok, str(proof)
    assert total <= made[0] and peak < 60e6, told
