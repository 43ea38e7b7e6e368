"""What is read from a store's files is what Spark reads of it, whatever has become of the files."""

from __future__ import annotations

import datetime
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import txnqueue
from tests.inside import client_of
from tests.stores.looking import told
from txnqueue import QueueManager

pytestmark = pytest.mark.spark
UTC = datetime.timezone.utc
TYPES = (
    "n long, i int, s short, b byte, d double, f float, yes boolean, name string, raw binary, "
    "amount decimal(20,3), day date, at timestamp, local timestamp_ntz, times array<timestamp>, "
    "map map<string,struct<at:timestamp,x:int>>, inside struct<names:array<string>,day:date>"
)


def row(n: int, at: datetime.datetime) -> dict[str, Any]:
    return {
        **{"n": n, "i": -n, "s": n, "b": n, "d": n / 3, "f": 0.5, "yes": n % 2 == 0},
        **{"name": f"é{n}'\n", "raw": b"\x00\xff", "amount": Decimal("-12345678901234567.891")},
        **{"day": at.date(), "at": at, "local": at.replace(tzinfo=None), "times": [at, None]},
        "map": {"k": {"at": at, "x": None}, "l": None},
        "inside": {"names": [None, ""], "day": None},
    }


ROWS = [
    row(0, datetime.datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC)),
    row(1, datetime.datetime(1, 1, 3, tzinfo=UTC)),
    row(2, datetime.datetime(9999, 12, 30, tzinfo=UTC)),
    dict.fromkeys(row(0, datetime.datetime.now(UTC))),
]


@pytest.fixture
def root(tmp_path: Path) -> str:
    with tarfile.open(Path(__file__).parent / "0.1.0.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    return str(tmp_path / "store")


def compare(spark: Any, root: str, store: txnqueue.StoreReader) -> int:
    """Ask both, and return how many entries there are."""
    manager = QueueManager(spark, root)
    journal, mine = client_of(manager).store.journal, store._client.store.journal
    store.refresh()

    entries = told(journal.read_all().entries)
    assert told(mine.read_all().entries) == entries
    archived = told(journal.archive.read())
    assert told(mine.archive.read()) == archived
    assert mine.files() == journal.files()
    assert mine.version() == journal.version()
    assert store.entries().num_rows == len({*entries, *archived})
    for ours, theirs in ((store, manager), (manager, store)):
        assert ours.list_queues() == theirs.list_queues()
        assert ours.list_exchanges() == theirs.list_exchanges()
    one, other = store.history, manager.history
    assert one.horizon() == other.horizon()
    assert one.changes().rows() == other.changes().rows()
    now, then = one.as_of(), other.as_of()
    for ask in ("queues", "exchanges", "counts", "transactions", "dispatches", "bindings"):
        assert getattr(now, ask)().rows() == getattr(then, ask)().rows()
    for name in manager.list_exchanges():
        assert store.exchange(name).describe() == manager.exchange(name).describe()
    for name in manager.list_queues():
        here, there = store.queue(name), manager.queue(name)
        assert (here.depth(), here.in_flight()) == (there.depth(), there.in_flight())
        assert here.dead_letters().rows() == there.dead_letters().rows()
        assert here.peek_messages(100) == there.peek_messages(100)
    return len(entries) + len(archived)


def checkpoints(root: str) -> list[str]:
    log = Path(root, "journal", "_delta_log")
    return sorted(one.name for one in log.glob("[0-9]*.checkpoint.*"))


def set_property(spark: Any, root: str, name: str, value: str) -> None:
    spark.sql(f"ALTER TABLE delta.`{root}/journal` SET TBLPROPERTIES ('{name}' = '{value}')")


def test_files_tell_what_spark_tells(spark: Any, root: str) -> None:
    store = txnqueue.look(root)
    before = store.entries().num_rows

    manager = QueueManager(spark, root, actor="later")
    set_property(spark, root, "delta.checkpointInterval", "3")
    kinds = manager.create_queue("kinds", TYPES)
    kinds.send(ROWS, headers={"correlation_id": "c", "empty": ""})
    kinds.alter(add="later string")
    kinds.send([{"n": 7, "later": "x"}], priority=9)
    manager.exchange("news").publish([{"customer": "a", "total": 1.0}], routing_key="bill.b")
    manager.drop_queue("unique")
    manager.maintain(transaction_seconds_max=0, payload_retention_days=0, vacuum=False)
    spark.sql(f"OPTIMIZE delta.`{root}/journal`").collect()
    assert any(name.endswith(".checkpoint.parquet") for name in checkpoints(root))
    assert compare(spark, root, store) > before
    found, wanted = store.queue("kinds").peek(10), kinds.peek(10).toArrow()
    assert found.schema.names == wanted.schema.names
    assert found.schema.types[:-1] == wanted.schema.types[:-1]
