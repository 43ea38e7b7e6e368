"""Two real driver processes on one store, killed at random; nothing is lost, nothing twice.

With a Java of their own, which is killed with them in the middle of whatever it writes, or ends
once it notices; and attached to one that lives on, and carries out what the dead had asked of it.
"""

from __future__ import annotations

import contextlib
import random
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import LONG
from tests.drivers import FOLDER, start
from tests.faults.audit import check
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.core import model

pytestmark = [pytest.mark.spark, pytest.mark.slow]
KILLS = {"own": 100, "attached": 100} if LONG else {"attached": 4}
"""By whose Java it is: one of its own takes half a minute to start, and dies by default in the
demo, on the cluster and in a branch."""
SENDS = 200 if LONG else 8
READY_SECONDS = 90


class Driver:
    """One driver process, started again whenever it was killed."""

    def __init__(self, *arguments: object, attach_to: Any, folder: Path = FOLDER) -> None:
        self._attach_to = attach_to
        self._folder = folder
        self._arguments = arguments
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it goes with the driver
        self.done = False
        self.start()

    def start(self) -> None:
        self.process = start(
            "tests.delta.driver",
            *self._arguments,
            attach_to=self._attach_to,
            stderr=self._errors.fileno(),
            folder=self._folder,
        )
        self.wait_for("ready")

    def wait_for(self, word: str) -> None:
        """Read what it says until it says this."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("done"):
                self.done = True
            if line.startswith((word, "done")):
                return
        assert self.process.wait() in (0, -9), self._failure()

    def _failure(self) -> str:
        """Say what it failed with: the last line that it wrote, and what was above it."""
        self._errors.seek(0)
        lines = [line for line in self._errors.read().splitlines() if line.strip()] or ["?"]
        above = "\n".join(lines[-20:])
        return f"the driver failed: {lines[-1]}; {self._arguments}\n{above}"

    def kill(self, *, java: bool = False) -> bool:
        """Kill it, with or without the Java that it has started; whether it was still alive."""
        alive = self.process.poll() is None
        others = psutil.Process(self.process.pid).children(recursive=True) if alive and java else []
        self.process.kill()
        for other in others:
            with contextlib.suppress(psutil.NoSuchProcess):
                other.kill()
        return self.process.wait() == -signal.SIGKILL

    def finish(self) -> None:
        while not self.done and self.process.poll() is None:
            self.wait_for("done")
        assert self.process.wait(READY_SECONDS) == 0, self._failure()


def kill(
    spark: Any,
    root: str,
    seed: int,
    kills: int,
    sends: int,
    *,
    attached: bool,
    folders: tuple[Path, Path] = (FOLDER, FOLDER),
) -> int:
    """Kill a producer and a consumer at random moments so often, and find everything once.

    Their code may be in other folders than this.

    Returns:
        How many of them were still alive when they were killed.
    """
    dice = random.Random(seed)
    manager = QueueManager(spark, root, actor="auditor")
    for name in ("in", "out"):
        manager.create_queue(name, "i long", lease_seconds=5, deliveries_max=1000)
    attach_to = spark if attached else None
    drivers = [
        Driver(root, "produce", "producer", sends, attach_to=attach_to, folder=folders[0]),
        Driver(root, "consume", "consumer", sends, attach_to=attach_to, folder=folders[1]),
    ]
    try:
        alive = sum(_killed(dice, drivers) for _ in range(kills))
        for driver in drivers:
            driver.finish()
        drivers[1].start()  # whatever came in after the last drain
        drivers[1].finish()
    finally:
        for driver in drivers:
            driver.kill()
    ledger = check(client_of(manager).store.journal.read_all().entries)
    sent = sorted(range(sends * 10))
    out = manager.queue("out")
    got = sorted(row["i"] for row in out.receive(100_000).messages())
    assert got == sent, f"seed {seed}: lost {set(sent) - set(got)}, {len(got)} of {len(sent)}"
    ends = {entry.kind for entry in ledger.retired.values()}
    assert ends == {model.ACCEPTED}, f"seed {seed}: {ends}"
    proof = manager.history.verify()
    assert proof.ok, f"seed {seed}: {proof}"
    return alive


def _killed(dice: random.Random, drivers: Sequence[Driver]) -> bool:
    """Kill one of two drivers at a random moment, and start it again; whether it was alive."""
    time.sleep(dice.uniform(0.0, 4.0))  # not a wait for something
    victim = dice.choice(drivers)
    alive = victim.kill(java=dice.random() < 0.5)
    victim.done = False
    victim.start()
    return alive


@pytest.mark.timeout(7200 if LONG else 1500)
@pytest.mark.parametrize("java", KILLS)
def test_killed_drivers_lose_nothing_and_do_nothing_twice(
    spark: Any, tmp_path: Path, java: str
) -> None:
    seed = time.time_ns()
    print(f"seed {seed}")
    kill(spark, str(tmp_path), seed, KILLS[java], SENDS, attached=java == "attached")
