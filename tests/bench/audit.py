"""Does a queue lose or double messages: under four threads, and if its consumer is killed?

Consumers are processes of their own (``consumer.py``): for each message they write its id to an
output, and acknowledge it. Then the output is compared with what was sent. The killed consumer
of a queue is killed (SIGKILL) between its batches' ends, wherever its threads are then; another one
goes on after it. What it has asked of Java last is carried out nevertheless, except for streams,
which have a Java of their own that dies with them.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests import drivers
from tests.bench.consumer import BATCH, CONSUMERS, Consumer

THREADS = 4
BATCHES = 16
KILLED_AFTER = 4
"""Batches that the killed one has finished."""
SECONDS_MAX = 600.0


@dataclass(frozen=True)
class Found:
    """What became of the messages of one run.

    Attributes:
        sent: How many there were.
        lost: How many are not in the output.
        doubled: How many are there more than once.
    """

    sent: int
    lost: int
    doubled: int


def audit(
    spark: Any, folder: Path, name: str, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Check one."""
    made = CONSUMERS[name]
    found: dict[str, Any] = {"name": name, "threads": 1 if made.streams else THREADS}
    for what in ("steady", "killed"):
        say(f"audit: {name}, {what}")
        place = folder / f"{name.replace(' ', '-')}-{what}"
        consumer = made(spark, place)
        consumer.send(BATCHES)
        attached = None if made.streams else spark
        if what == "killed":
            _kill(_start(name, place, found["threads"], what, attached))
        _end(_start(name, place, found["threads"], what, attached))
        found[what] = asdict(_compare(consumer))
    return found


def _start(
    name: str, place: Path, threads: int, what: str, attach_to: Any
) -> subprocess.Popen[str]:
    arguments = (name, place, threads, what)
    return drivers.start("tests.bench.consumer", *arguments, attach_to=attach_to)


def _kill(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    done = 0
    for line in process.stdout:
        done += line.startswith("batch")
        if done == KILLED_AFTER:
            break
    time.sleep(random.random())  # anywhere in the batches that follow
    process.send_signal(signal.SIGKILL)
    if process.wait() != -signal.SIGKILL or done < KILLED_AFTER:
        raise AssertionError("the consumer ended before it was killed")


def _end(process: subprocess.Popen[str]) -> None:
    said, _ = process.communicate(timeout=SECONDS_MAX)
    if "done\n" not in said:
        raise AssertionError(f"the consumer ended with {process.returncode}: {said[-500:]}")


def _compare(consumer: Consumer) -> Found:
    """Compare what was written with what was sent: each id once."""
    ids = consumer.written()
    sent = BATCHES * BATCH
    return Found(sent, sent - len(set(ids)), len(ids) - len(set(ids)))
