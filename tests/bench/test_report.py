"""What is written of measurements: the JSON, the page, the pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench import page, pictures, results
from tests.bench.case import Case, Comparison, Group, Side
from tests.bench.groups import chosen
from tests.bench.runner import Measured

DOCS = Path(__file__).resolve().parents[2] / "docs"


def measured(
    name: str = "send 1", *, calibrations: tuple[float, ...] = (1.0, 1.1, 1.0), slow: float = 1.0
) -> Measured:
    sides = {key: Side(key, lambda: {"all": 1.0}) for key in ("txnqueue", "floor")}
    found = Measured(Case(name, name, sides, [Comparison(target=1.2)]))
    for value in (1.0, 1.2, 1.1):
        found.samples["txnqueue"].append({"send": value * slow})
        found.samples["floor"].append({"raw append": value / 2, "MERGE": value / 2})
    found.calibrations = list(calibrations)
    return found


def document(*cases: Measured) -> dict[str, Any]:
    counts = {"sent": 160, "lost": 0, "doubled": 7}
    return {
        "date": "2026-11-23",
        "machine": {"cores": 2, "memory_gb": 8, "cpu": "a CPU", "file_system": "ext4"},
        "versions": {"txnqueue": "1", "delta-spark": "4.4.0"},
        "cases": [results.case_of("send", one) for one in cases],
        "peers": [{"name": "DELETE", "threads": 4, "steady": counts, "killed": counts}],
    }


def test_a_case_says_how_it_compares_and_whether_that_is_enough() -> None:
    good, bad = (results.case_of("send", measured(slow=slow)) for slow in (1.1, 1.5))
    assert good["comparisons"][0]["ratio"] == pytest.approx(1.1)
    assert (good["comparisons"][0]["met"], bad["comparisons"][0]["met"]) == (True, False)
    assert good["sides"]["floor"]["parts"] == {"raw append": 0.55, "MERGE": 0.55}
    assert good["sides"]["txnqueue"]["values"] == [1.1, 1.32, 1.21]
    assert json.loads(json.dumps(good)) == good


def test_a_case_is_void_if_the_machine_was_unsteady() -> None:
    assert not results.case_of("send", measured())["void"]
    assert results.case_of("send", measured(calibrations=(1.0, 1.0, 1.4)))["void"]


def test_a_partial_run_replaces_what_it_measured_and_only_beside_its_like() -> None:
    before = document(measured("send 1"), measured("drain"))
    after = document(measured("send 1", slow=3.0), measured("threads"))
    after["peers"] = []
    merged = results.merged(before, after)
    assert [case["name"] for case in merged["cases"]] == ["send 1", "drain", "threads"]
    assert merged["cases"][0]["comparisons"][0]["ratio"] == pytest.approx(3)
    assert merged["peers"] == before["peers"]
    older = {**before, "versions": {"txnqueue": "0.0.1"}}
    assert results.merged(older, after) == after == results.merged(None, after)


def test_what_was_measured_on_another_machine_is_marked() -> None:
    before, after = document(measured(), measured("drain")), document(measured("threads"))
    there = {"cores": 64, "cpu": "other", "memory_gb": 9, "system": "s", "file_system": "xfs"}
    merged = results.merged({**before, "machine": there}, after)
    again = results.merged(merged, document(measured("drain")))
    text = "\n".join(page.lines(again))
    day = again["cases"][0]["measured_at"][:10]
    assert f"¹ On another machine: 64 cores (other), 9 GB, xfs, {day}." in text
    assert ["machine" in case for case in again["cases"]] == [True, False, False]
    assert "| send 1 ¹ |" in text and "| drain |" in text and "| threads |" in text
    back = results.merged(again, {**document(measured("claim")), "machine": there})
    marked = {case["name"] for case in back["cases"] if "machine" in case}
    assert marked == {"drain", "threads"}  # and not what this machine had measured before


def test_the_best_peer_is_the_fastest_of_those_that_are_correct(tmp_path: Path) -> None:
    found = document(measured("peers at 10"))
    (case,) = found["cases"]
    names = ["wrong", "slow", "fast"]
    case["group"] = "peers"
    case["comparisons"] = [
        {**case["comparisons"][0], "above": name, "ratio": ratio, "at_least": True}
        for name, ratio in zip(names, (1.0, 4.0, 3.0), strict=True)
    ]
    case["sides"] |= dict.fromkeys(names, case["sides"]["floor"])
    good, bad = {"sent": 9, "lost": 0, "doubled": 0}, {"sent": 9, "lost": 0, "doubled": 2}
    found["peers"] = [
        {"name": name, "threads": 4, "steady": bad if name == "wrong" else good, "killed": bad}
        for name in names
    ]
    text = "\n".join(page.lines(found))
    assert "killed, fast is best: it takes 3.00 times as long for peers at 10." in text


def test_publishing_writes_the_page_and_the_same_pictures_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "performance.md").write_text(f"# P\n\n{page.BEGIN}\n{page.END}\n\nmore\n")
    for _ in range(2):
        page.publish(document(measured(), measured("drain", calibrations=(1, 2, 3))), tmp_path)
    text = (tmp_path / "performance.md").read_text()
    assert (
        "| send 1 | txnqueue / floor | 1.10 s / 1.10 s | 1.00 | 1.00–1.00 | ≤ 1.2 | 3 | met |"
        in text
    )
    assert "| ≤ 1.2 | 3 | void |" in text
    assert "| DELETE | 4 | 0 | 7 | 0 | 7 |" in text and text.endswith("more\n")
    drawn = {path.name: path.read_text() for path in (tmp_path / "pictures/measured").iterdir()}
    assert set(drawn) == {"floors.svg"} and "target" in drawn["floors.svg"]
    assert all(f"measured/{name}" in text for name in drawn)
    page.write(tmp_path)
    again = {path.name: path.read_text() for path in (tmp_path / "pictures/measured").iterdir()}
    assert again == drawn and (tmp_path / "performance.md").read_text() == text


def test_where_the_time_of_a_step_goes_is_drawn_by_part(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = document(measured("parts of steps"))
    (case,) = found["cases"]
    case |= {"group": "parts", "comparisons": []}
    for side in case["sides"].values():
        side["parts"] = {"write of the rows": 0.1, "MERGE": 0.3}
    pictures.draw(found, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["parts.svg"]
    drawn = (tmp_path / "parts.svg").read_text()
    assert all(text in drawn for text in ("write of the rows", "MERGE", "txnqueue", "floor"))


def test_the_stored_page_has_the_stored_figures() -> None:
    text = (DOCS / "performance.md").read_text(encoding="utf-8")
    figures = results.read(DOCS / "performance.json")
    assert page.with_figures(text, figures) == text, "run: python -m tests.bench.page"


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="not one part"):
        page.with_figures("# Performance\n", None)


def test_cases_are_found_by_their_group_their_name_or_its_beginning() -> None:
    groups = [
        Group("send", dict.fromkeys(["send 1", "send 1000"], lambda: measured().case), 1),
        Group("growth", {"history": lambda: measured().case}, 1, full=True),
    ]

    def names(*only: str, skip: tuple[str, ...] = (), full: bool = False) -> list[str]:
        return [name for _, found in chosen(groups, only, skip, full=full) for name in found]

    assert names() == names("send") == names("send 1", "send 1000") == ["send 1", "send 1000"]
    assert names("send 1") == ["send 1"] and names("send 10") == ["send 1000"]
    assert names(full=True) == ["send 1", "send 1000", "history"]
    assert names(skip=("growth", "send 10"), full=True) == ["send 1"]
    assert names("send", skip=("send",)) == []
    assert names("history") == ["history"]
    with pytest.raises(SystemExit, match="no such case"):
        names("sned")
