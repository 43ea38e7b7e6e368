"""A store in a schema of a real Hive metastore, made by one process and continued by another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.drivers import FOLDER

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not LONG, reason="two Javas of their own, and what Hive needs to start"),
]


def test_a_store_in_a_hive_metastore_is_continued_by_another_process(tmp_path: Path) -> None:
    for step in ("make", "go on"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.delta.hive_driver", str(tmp_path), step],
            cwd=FOLDER,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert "done" in done.stdout
