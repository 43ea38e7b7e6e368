"""The benchmarks run: one round of a few cases, on Spark, from the command line's options on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.bench import __main__ as command
from tests.conftest import LONG

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not LONG, reason="a long run: the floor is a table of a hundred commits"),
]


def test_one_round_of_a_case_gives_json(spark: Any, tmp_path: Path) -> None:
    output = tmp_path / "performance.json"
    given = command.options(["--quick", "--only", "send 1", "--output", str(output)])
    command.Session(spark, tmp_path / "tables", given, Console(quiet=True)).measure()
    text = output.read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    read = json.loads(text)
    assert (read["mode"], read["failed"], read["peers"]) == ("quick", [], [])
    (case,) = read["cases"]
    assert (case["name"], case["rounds"], len(case["calibrations"])) == ("send 1", 1, 2)
    (one,) = case["comparisons"]
    values = [case["sides"][side]["values"][0] for side in ("txnqueue", "floor")]
    assert min(values) > 0 and one["ratio"] == pytest.approx(values[0] / values[1], rel=0.01)
    assert set(case["sides"]["floor"]["parts"]) == {"raw append", "MERGE"}
    assert read["machine"]["cores"] >= 1 and read["versions"]["delta-spark"]
