"""The first minute of a process: session, first queue, first send, first receive and commit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.bench.case import Case, Comparison, Parts, Side
from tests.bench.world import World

PROJECT = Path(__file__).resolve().parents[3]
TARGET = 1.3
TARGET_ARCHIVED = 0.85


def makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the case, and what prepares it."""
    return {"cold": lambda: _cold(world)}


def _cold(world: World) -> Case:
    return Case(
        "cold",
        "in a fresh process: session, first queue, first send, first receive and commit",
        {
            "archived": Side(
                "txnqueue with a class archive", lambda: _started(world, "queue", "archived")
            ),
            "short": Side(
                "txnqueue with a class archive, short_lived=True",
                lambda: _started(world, "queue", "short"),
            ),
            "txnqueue": Side("txnqueue", lambda: _started(world, "queue", "plain")),
            "statements": Side(
                "as many statements of plain Delta with a class archive: "
                "3 CREATE, INSERT, 4 MERGE, read",
                lambda: _started(world, "statements", "archived"),
            ),
            "floor": Side(
                "session, CREATE, INSERT, MERGE, read", lambda: _started(world, "raw", "plain")
            ),
        },
        [
            Comparison(target=TARGET),
            Comparison("archived", target=TARGET_ARCHIVED),
            Comparison("short", target=TARGET_ARCHIVED),
            Comparison("archived", "statements"),
            Comparison("statements", target=TARGET_ARCHIVED),
        ],
        rounds_max=5,
        warms=False,
    )


def _started(world: World, what: str, start: str) -> Parts:
    command = [sys.executable, "-m", "tests.bench.fresh", what, start, str(world.path("cold"))]
    done = subprocess.run(
        command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
