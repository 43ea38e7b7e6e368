"""Driver processes killed at each step of one transaction: both sides end alike, always."""

from __future__ import annotations

import itertools
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.drivers import start
from tests.faults.injection import Fault
from tests.faults.world import LEASE_SECONDS, World
from tests.postgres import connect, values
from txnqueue.core.receipt import Status
from txnqueue.storage.store import DeltaStore

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.skipif(not LONG, reason="a driver for each kill: in the long run"),
]
KILLS_MIN = 20


class Lake:
    """A store, two tables of the user's, and a database, that shall always tell the same."""

    def __init__(self, spark: Any, root: str, database: str) -> None:
        self.root, self.database = root, database
        self._spark = spark
        self.world = World(store=DeltaStore(spark, root))
        self.sent = 0
        for queue in ("in", "out"):
            creator = self.world.helper("creator")
            creator.create_queue(queue, "i long", lease_seconds=LEASE_SECONDS, deliveries_max=1000)
        for table in ("gold", "silver"):
            spark.sql(f"CREATE TABLE delta.`{root}/{table}` (i long) USING delta")

    def send(self) -> None:
        """Send the next message, unless one waits."""
        queue = self.world.helper("sender").queue("in")
        if queue.depth() == 0:
            queue.send([{"i": self.sent}])
            self.sent += 1

    def move(self, generation: int, at: int, fault: Fault) -> tuple[int, str, str]:
        """Let a driver move it, killed at a call; tell how it ended, and what it said."""
        driver = start(
            "tests.databases.driver",
            self.root,
            self.database,
            generation,
            self.world.clock.now_ms,
            at,
            fault.value,
            attach_to=self._spark,
            stderr=subprocess.PIPE,
        )
        said, failed = driver.communicate()
        return driver.returncode, said, failed

    def recover(self, generation: int) -> None:
        """Recover what a killed driver left, and check that all sides tell the same."""
        self.world.lease_over()
        helper = self.world.helper("recovering")
        with connect(self.database) as connection:
            found = helper.recover({"ledger": connection}, branch_seconds_min=0)
            assert (found.prepared, found.databases, found.waiting) == ((), (), ())
            connection.rollback()
            moved = values(connection)
            assert connection.tpc_recover() == []
        for table in ("gold", "silver"):
            rows = self._spark.read.format("delta").load(f"{self.root}/{table}").collect()
            assert sorted(row["i"] for row in rows) == moved, table
        out = helper.queue("out").peek(1000).collect()
        assert sorted(row["i"] for row in out) == moved
        assert helper.queue("in").depth() == self.sent - len(moved)
        committed = helper.outcome(f"move-{generation}").status is Status.COMMITTED
        assert moved == list(range(self.sent if committed else self.sent - 1))


def kills() -> Iterator[tuple[int, Fault]]:
    """Before and after each call; the tests end when there are no more calls."""
    for number in itertools.count():
        yield number // 2, (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)[number % 2]


@pytest.mark.timeout(1800)
def test_a_driver_killed_at_any_call_leaves_both_sides_alike(
    spark: Any, tmp_path: Path, database: str
) -> None:
    lake, killed = Lake(spark, str(tmp_path), database), 0
    for generation, (at, fault) in enumerate(kills(), 1):
        lake.send()
        code, said, failed = lake.move(1_000 * generation, at, fault)
        lake.recover(1_000 * generation)
        if code == 0:
            break
        assert code == -signal.SIGKILL, failed
        killed += 1
    assert "database prepare" in said and "database commit" in said
    print(f"{killed} kills")
    assert killed >= KILLS_MIN
    lake.world.ledger()
