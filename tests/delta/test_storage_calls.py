"""What operations cost on an object store: the calls to it that wait for each other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.delta.storage_calls import Call, compiled, waiting

pytestmark = [pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300

WAITING_MAX = {
    "depth": 2,
    "send rows": 70,
    "send a frame": 70,
    "peek": 6,
    "roll back a claim": 100,
    "receive and accept": 100,
    "consume and produce": 130,
}
"""How many calls may wait for each other. About twice what was found: Delta reads each commit since
the last checkpoint, and one of the appends may write the next one: a send that does takes 60 or 61.
"""


@pytest.mark.spark
def test_operations_wait_for_few_calls_to_the_storage(spark: Any, tmp_path: Path) -> None:
    classes = tmp_path / "classes"
    classes.mkdir()
    compiled(spark._jvm, classes)
    done = subprocess.run(
        [sys.executable, "-m", "tests.delta.storage_calls", str(tmp_path), str(classes)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.keys() == WAITING_MAX.keys()
    dear = {name: one for name, one in found.items() if one["waiting"] > WAITING_MAX[name]}
    assert not dear, json.dumps(dear, indent=1)
    # Each is a real figure: even the cheapest operation asks whether there is a newer commit.
    assert all(one["waiting"] >= 1 for one in found.values()), found


def test_calls_that_overlap_do_not_wait_for_each_other() -> None:
    spans = [(0, 10), (2, 8), (9, 12), (12, 20), (13, 19), (30, 31)]
    calls = [Call("open", "p", began, ended) for began, ended in spans]
    assert waiting(calls) == 4  # 2-8, 9-12, 13-19, 30-31
    assert waiting([]) == 0
