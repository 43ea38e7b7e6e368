"""Stores that have grown: what they hold is written as the library writes it, only faster."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.bench.floors import orders
from tests.bench.world import SCHEMA, World
from tests.inside import client_of
from txnqueue import Queue, QueueManager
from txnqueue.core.planning import Plan
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import catalog

PART = 100
"""Queues that are created by one append."""
UNITS = 1_000
"""Claims that land in one version, as if one append had carried them all."""
DECISIONS_A_DAY = 100_000
MAINTAINED_EVERY = 500
"""Delta commits between two maintenances."""
MAINTAINED = 3
"""Maintenances after which a store keeps its removed files for as long as it will."""
FILES_OF_APPEND = 3
"""Files of the journal that an append adds, rounded up."""
DAY_MS = 86_400_000
LEASE_SECONDS = 6 * 24 * 3600.0
AT_ONCE: Any = {"transaction_seconds_max": 0, "payload_retention_days": 7, "vacuum": False}
_ONE_MESSAGE = "array(named_struct('first', n, 'last', n))"


def of_queues(world: World, size: int) -> tuple[QueueManager, Sequence[Queue]]:
    """Make a store with so many queues: one is created, and the others are like it.

    Their payload tables are copies of its table, and a hundred are named by one append.
    """
    manager = _manager(world)
    info = manager.create_queue("orders0", SCHEMA, dead_letter=False).info
    names = [f"orders{number}" for number in range(1, size)]
    for first in range(0, len(names), PART):
        _create(manager, [_like(info, name) for name in names[first : first + PART]], info)
    return manager, [manager.queue(name) for name in (info.name, *names)]


def _like(info: QueueInfo, name: str) -> QueueInfo:
    queue_id = f"{name}-{info.queue_id[-8:]}"
    return replace(info, name=name, queue_id=queue_id, payload_id=queue_id)


def _create(manager: QueueManager, infos: Iterable[QueueInfo], origin: QueueInfo) -> None:
    payload, client = Path(manager.root) / "payload", client_of(manager)
    stamp = client.stamp()
    for info in infos:
        shutil.copytree(payload / origin.payload_id, payload / info.payload_id)
    plan = sum((catalog.create(info, 1, stamp) for info in infos), Plan())
    client.land(lambda _: plan, "create queues")
    client.open()


def of_claims(world: World, size: int) -> Queue:
    """Make a store with so many unsettled claims, of one message each, of another client."""
    other = _manager(world)
    queue = other.create_queue("orders", SCHEMA, dead_letter=False)
    queue.send(orders(world.spark, size + UNITS).coalesce(1))  # offsets without a gap
    queue.receive(1, lease_seconds=LEASE_SECONDS)
    journal = f"{other.root}/journal"
    claimed = world.spark.read.format("delta").load(journal).where("kind = 'claimed'")
    rows = _copied(claimed)
    for first in range(1, size, UNITS):
        numbers = world.spark.range(first, min(first + UNITS, size), 1, 1)
        _append(rows.crossJoin(numbers.selectExpr("id AS n")).selectExpr(
            *_columns(claimed, sequence="n + 1", append_id="md5(concat(append_id, n))",
                      ordinal=f"CAST(n - {first} AS int)", ranges=_ONE_MESSAGE),
        ), journal)  # fmt: skip
    return QueueManager(world.spark, other.root, actor="bench").queue("orders")


def of_decisions(world: World, size: int) -> tuple[QueueManager, Queue]:
    """Make a store in whose archive so many transactions are decided, under ids without order."""
    manager = _manager(world)
    queue = manager.create_queue("orders", SCHEMA, dead_letter=False)
    with manager.transaction("load") as tx:
        queue.send(orders(world.spark, UNITS), transaction=tx)
    queue.receive(UNITS).accept()
    manager.maintain(**AT_ONCE)
    archive = f"{manager.root}/archive"
    there = world.spark.read.format("delta").load(archive)
    decided = there.where("kind = 'committed' AND stream = 'load'")
    key, day = "concat('load-', md5(CAST(n AS string)))", f"CAST(n DIV {DECISIONS_A_DAY} AS int)"
    shard = f"concat('transaction/', crc32({key}) % 16)"
    rows = _copied(decided).crossJoin(world.spark.range(size).selectExpr("id AS n"))
    made = rows.selectExpr(
        *_columns(decided, shard=shard, stream=key, transaction_key=key, commit_seq="n",
                  append_id=f"md5({key})", attempt="md5(concat('a', n))",
                  day=f"date_sub(day, 1 + {day})"),
    )  # fmt: skip
    _append(made.repartition(max(1, size // DECISIONS_A_DAY), "day"), archive)
    return manager, queue


def of_commits(world: World, commits: int, seconds_max: float) -> tuple[QueueManager, Queue, int]:
    """Make a store whose journal has so many Delta commits, with maintenance now and then.

    Args:
        world: Where it is.
        commits: How many at least.
        seconds_max: So long this may take; then there are fewer.

    Returns:
        The store, its queue, and how many commits there are of the library. Others follow them
        until there are as many as were asked for, as if all had been made in one day, with its
        maintenance: each only removes as many files as an append adds, and maintenance removes.
    """
    manager, until = _manager(world), time.monotonic() + seconds_max
    queue = manager.create_queue("orders", SCHEMA, dead_letter=False)
    queue.send(orders(world.spark, commits + UNITS))
    journal, maintained = client_of(manager).store.journal, 0
    while (found := journal.version()) < commits and time.monotonic() < until:
        if found >= maintained + MAINTAINED_EVERY:
            manager.maintain(**AT_ONCE)
            maintained = found
        queue.receive(1).accept()
    manager.close()
    log = Path(manager.root) / "journal" / "_delta_log"
    _remove_files(log, found, commits)
    again = QueueManager(world.spark, manager.root, actor="bench")
    queue = again.queue("orders")
    _work_upto_checkpoint(queue, log, commits)
    for _ in range(MAINTAINED):
        again.maintain()
        _work_upto_checkpoint(queue, log, client_of(again).store.journal.version())
    return again, queue, found


def _work_upto_checkpoint(queue: Queue, log: Path, since: int) -> None:
    """Append until there is a checkpoint of a version or of a later one."""
    while not any(_is_checkpoint(file, since) for file in log.iterdir()):
        queue.receive(1).accept()


def _is_checkpoint(file: Path, since: int) -> bool:
    version, _, kind = file.name.partition(".")
    return kind.startswith("checkpoint.") and int(version) >= since


def _remove_files(log: Path, newest: int, upto: int) -> None:
    """Write commits of one day that remove files into the log of a Delta table."""
    first, *_ = (log / f"{newest:020}.json").read_text(encoding="utf-8").splitlines()
    about = json.loads(first)["commitInfo"]
    now_ms = about["inCommitTimestamp"]
    for version in range(newest + 1, upto + 1):
        about["inCommitTimestamp"] += 1
        said = {**about, "operation": "Manual Update", "operationParameters": {}}
        at_ms = now_ms - DAY_MS * (upto - version) // (upto - newest)
        removed = (_removed(f"{version}-{number}", at_ms) for number in range(FILES_OF_APPEND))
        lines = [json.dumps(line) for line in ({"commitInfo": said}, *removed)]
        (log / f"{version:020}.json").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _removed(name: str, at_ms: int) -> dict[str, Any]:
    return {
        "remove": {
            "path": f"shard=gone/part-{name}.c000.snappy.parquet",
            "deletionTimestamp": at_ms,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": {"shard": "gone"},
            "size": 7_000,
        }
    }


def _manager(world: World) -> QueueManager:
    return QueueManager(world.spark, str(world.path("store")), actor="bench")


def _copied(frame: Any) -> Any:
    """Hold the one row of a frame in the driver, apart from the table that it was read from."""
    (row,) = frame.collect()
    return frame.sparkSession.createDataFrame([row], frame.schema)


def _columns(frame: Any, **values: str) -> list[str]:
    """Take all columns of a frame as they are, except for some that get another value."""
    return [f"{values.get(name, f'`{name}`')} AS `{name}`" for name in frame.columns]


def _append(frame: Any, path: str) -> None:
    frame.write.format("delta").mode("append").save(path)
