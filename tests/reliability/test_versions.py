"""Combinations of versions are told one by one, and only what has passed is called so."""

from __future__ import annotations

import zipfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reliability import longrun, page, results, versions
from tests.reliability.kinds import KINDS
from tests.reliability.results import Failure, Run
from tests.reliability.session import Session
from tests.reliability.versions import ALL, OLDEST, PINNED, Combination

METADATA = """Metadata-Version: 2.4
Name: txnqueue
Requires-Dist: pyarrow>=18
Provides-Extra: spark
Requires-Dist: pyspark<=4.2.0,>=4.0.1; extra == "spark"
Requires-Dist: filelock; extra == "spark"
Requires-Dist: pandas<3,>=2.2; extra == "spark"
Provides-Extra: amqp
Requires-Dist: python-qpid-proton>=0.40; extra == "amqp"
"""


def done(number: int, counts: dict[str, int], *failures: str, n: int = 0) -> Run:
    failed = [Failure(number, what) for what in failures]
    return Run(
        *("versions", "2026-11-23T20:00+00:00", f"c{number}", number, number + 1, len(ALL)),
        n, 60.0, counts, failed,
    )  # fmt: skip


PASSED = {f"{ALL[0]}: passed with Python 3.13.0, pyspark 4.2.0; 3 skipped": 900}
MISSING = {f"{ALL[1]}: could not be installed: there is no Java 17 on this machine": 1}
FAILED = f"AssertionError: {ALL[2]}: FAILED tests/core/test_rows.py::test_a - assert 1 | 2"


def test_only_what_has_passed_is_called_so(tmp_path: Path) -> None:
    runs = [done(0, PASSED, n=900), done(1, MISSING), done(2, {}, FAILED, n=1)]
    told = versions.told(runs, {})
    assert (told.done, told.bound) == (f"1 of {len(ALL)} combinations", "failed in the last run")
    rows = told.lines[2:]
    assert len(rows) == len(ALL) and rows[3].endswith("|  | not run yet |  |")
    assert rows[0].endswith("| 900 | passed with Python 3.13.0, pyspark 4.2.0; 3 skipped | c0 |")
    assert rows[1].endswith(
        "|  | `could not be installed: there is no Java 17 on this machine` | c1 |"
    )
    assert "| `failed: FAILED tests/core/test_rows.py::test_a - assert 1 \\| 2` | c2 |" in rows[2]
    results.write("versions", runs, tmp_path)
    text = page.with_figures(f"{page.BEGIN}\n{page.END}\n", tmp_path)
    assert f"| 1 of {len(ALL)} combinations, 901 tests | 1 | failed in the last run |" in text
    assert rows[0] in text and "In them" not in text


def test_what_could_not_be_installed_is_neither_failed_nor_done() -> None:
    runs = [done(n, {f"{one}: passed with it": 5}, n=5) for n, one in enumerate(ALL)]
    assert versions.told(runs, {}).bound == "all of a list"
    told = versions.told([*runs, done(len(ALL) + 1, MISSING)], {})
    assert (told.done, told.bound) == (
        f"{len(ALL) - 1} of {len(ALL)} combinations",
        "a part of a list",
    )


def test_a_combination_that_failed_passes_when_it_is_run_again() -> None:
    again = done(len(ALL) + 2, {f"{ALL[2]}: passed with it": 7}, n=7)
    assert versions.told([done(2, {}, FAILED, n=1), again], {}).bound == "a part of a list"


def test_a_combination_that_was_done_again_is_told_by_what_came_of_that() -> None:
    runs = [done(2, {}, FAILED, n=1)]
    again = results.Again("versions", 2, "2026-11-24T20:00+00:00", "c9", 1, [])
    told = versions.told(runs, {2: again})
    assert (told.done, told.bound) == (f"1 of {len(ALL)} combinations", "a part of a list")
    assert told.lines[4].endswith("|  | passed when it was done again | c9 |")
    for worse in (replace(again, n=0), replace(again, failed=["no"]), replace(again, number=3)):
        assert versions.told(runs, {worse.number: worse}).bound == "failed in the last run"


def test_each_combination_is_listed_once() -> None:
    assert len({str(one) for one in ALL}) == len(ALL)
    assert not any(": " in str(one) for one in ALL)


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (Combination("2.6", "4.2.0", "4.4.0", "–"), "there is no Python 2.6 on this machine"),
        (Combination("3.13", "4.2.0", "4.4.0", "9"), "there is no Java 9 on this machine"),
    ],
)
def test_what_this_machine_does_not_have_is_no_failure(
    one: Combination, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session()
    session.kept["wheel"] = (tmp_path, tmp_path / "txnqueue.whl")  # it does not come to that
    monkeypatch.setattr(versions, "ALL", (one,))
    try:
        run = longrun.run(KINDS["versions"], session, 0, tmp_path)
    finally:
        session.close()
    assert (run.n, run.failures) == (0, [])
    assert Counter(run.counts) == {f"{one}: could not be installed: {why}": 1}


def test_the_oldest_packages_are_those_that_the_wheel_asks_for(tmp_path: Path) -> None:
    wheel = tmp_path / "txnqueue-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.writestr("txnqueue-1.dist-info/METADATA", METADATA)
    oldest = versions._constraints(Combination("3.10", "", "", "17", OLDEST), wheel)
    assert oldest == ["pandas==2.2", "pyarrow==18", "pyspark==4.0.1"]
    pinned = versions._constraints(Combination("3.10", "4.0.1", "4.0.1", "17", PINNED), wheel)
    assert not any(line.startswith(("pyspark", "delta-spark")) for line in pinned)
    assert any(line.startswith("pandas==") for line in pinned)
