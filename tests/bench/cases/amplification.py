"""How much is written for payload, beside a raw append of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.bench.case import Case, Comparison, Parts, Side
from tests.bench.floors import COLUMNS
from tests.bench.world import SCHEMA, World

ROWS = 100_000
HALF = 512
"""Letters that cannot be compressed, and as many that can: a row of a kilobyte."""
TARGET = 1.05


def makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the case, and what prepares it."""
    return {"payload bytes": lambda: _bytes(world)}


def _bytes(world: World) -> Case:
    queue = world.queue(schema=f"{SCHEMA}, text string")
    raw = world.raw_table(f"{COLUMNS}, text STRING")
    payload = Path(world.manager.root) / "payload" / queue.info.queue_id
    hashes = ", ".join(f"sha2(concat(id, '/{n}'), 256)" for n in range(HALF // 64))
    frame = world.spark.range(ROWS).selectExpr(
        "id AS order_id", "concat('c', id % 1000) AS customer", "CAST(id AS double) AS amount",
        f"concat({hashes}, repeat('abcdefgh', {HALF // 8})) AS text",
    )  # fmt: skip

    return Case(
        "payload bytes",
        f"bytes of the files of {ROWS:,} rows of 1 KB",
        {
            "txnqueue": Side("payload", _grown(payload, lambda: queue.send(frame))),
            "floor": Side("raw append", _grown(raw.path, lambda: raw.append(frame))),
        },
        [Comparison(target=TARGET)],
        unit="bytes",
        rounds_max=1,
        warms=False,
    )


def _grown(folder: Path, write: Callable[[], Any]) -> Callable[[], Parts]:
    """Make what writes, and tells by how many bytes of data the folder has grown."""

    def size() -> int:
        return sum(file.stat().st_size for file in folder.rglob("*.parquet")
                   if "_delta_log" not in file.parts)  # fmt: skip

    def run() -> Parts:
        before = size()
        write()
        return {"files": size() - before}

    return run
