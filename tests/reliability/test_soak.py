"""The soak finds what is lost or doubled, and its judge tells a leak from noise."""

from __future__ import annotations

import os
import platform
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.reliability import points, soak, soak_page
from tests.reliability.gauge import ROUNDS, Cost, Gauge, spent
from tests.reliability.points import Point
from tests.reliability.soak import Place, Slice, Soak
from tests.reliability.trends import Trend, Verdict, trend, trend_of_ratios
from txnqueue.testing import Clock, MemoryStore, memory_manager

EACH = Slice(commits=6, messages=4, idle_seconds=0.001, maintained_seconds=0.01, stuck_seconds=60)
POINT = Point(
    "s", "p", 0, 100, 10_000, 60.0, 300.0, 500.0, 900.0, 1500.0,
    200.0, 900.0, 300.0, 80, 300, 700, 9.5,
)  # fmt: skip


@pytest.fixture
def working() -> Iterator[Soak]:
    store, clock = MemoryStore(), Clock()
    found = Soak(lambda name: memory_manager(store, clock, name), EACH)
    yield found
    found.close()


def test_slice_after_slice_each_message_comes_through_once(working: Soak) -> None:
    for part in range(10):
        work = working.work(part)
        assert len(work.sends) == EACH.commits and work.receives
        assert work.counts["messages"] == EACH.commits * EACH.messages
        assert work.counts["maintenance runs"] >= 1
    assert work.counts["whole verifications"] == 1


@pytest.mark.parametrize("sent", [0, 3, 6])
def test_a_slice_that_was_killed_is_begun_again_and_sends_nothing_twice(
    working: Soak, sent: int
) -> None:
    queue = working.auditor.queue("in")
    for number in range(sent):
        rows = [{"i": number * EACH.messages + n, "what": ""} for n in range(EACH.messages)]
        with working.auditor.transaction(f"send/{number}") as tx:
            queue.send(rows, transaction=tx)
    assert working.work(0).counts["messages"] == EACH.commits * EACH.messages
    assert working.work(0).counts["messages"] == 0  # it was killed before it was written down


def lost(working: Soak) -> None:
    working.auditor.run_transaction(lambda tx: None, transaction_id="send/2")


def doubled(working: Soak) -> None:
    working.auditor.queue("in").send([{"i": 7, "what": "again"}])


def strange(working: Soak) -> None:
    working.auditor.queue("out").send([{"i": 4_000, "what": "of another slice"}])


def left(working: Soak) -> None:
    working.auditor.queue("in.dead").send([{"i": 7, "what": "dead"}])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lost, r"4 are missing, such as \[8, 9, 10\]; 0 are there twice"),
        (doubled, r"0 are missing.*; 1 are there twice, such as \[7\]"),
        (strange, r"1 are not of it, such as \[4000\]"),
        (left, r"'in.dead': 1.* messages wait"),
    ],
)
def test_what_is_lost_doubled_or_left_is_found(
    working: Soak, spoil: Callable[[Soak], None], said: str
) -> None:
    spoil(working)
    with pytest.raises(AssertionError, match=said):
        working.work(0)


def test_messages_that_never_come_are_told(working: Soak) -> None:
    held = working.auditor.queue("in")
    held.send([{"i": 0, "what": "held for ever"}])
    batch = held.receive(1)
    working._each = replace(EACH, stuck_seconds=0.5)
    with pytest.raises(AssertionError, match="stuck"):
        working.work(0)
    batch.release()


def test_the_store_goes_on_where_it_was_and_a_wrong_one_is_left_as_it_is(tmp_path: Path) -> None:
    place = Place.open(tmp_path / "soak")
    place.parts = 7
    place.keep()
    assert Place.open(tmp_path / "soak") == place
    place.leave()
    other = Place.open(tmp_path / "soak")
    assert other.parts == 0 and other.root != place.root


# ---------------------------------------------------------------------- is it flat?


def noise(seed: int, slices: int, like: float = 0.4) -> list[float]:
    """Draw values as a process has them: each is like the one before it."""
    dice, last, found = random.Random(seed), 0.0, []
    for _ in range(slices):
        last = like * last + dice.gauss(0, 1)
        found.append(last)
    return found


def judged(seed: int, slices: int, per_slice: float, spread: float = 10.0) -> Trend:
    """Judge two processes with levels of their own, in MB, whose memory grows by so much."""
    each = {
        str(run): [
            ((run * slices + n) * 100, 800 + 300 * run + spread * value + per_slice * n)
            for n, value in enumerate(noise(seed * 2 + run, slices))
        ]
        for run in range(2)
    }
    found = trend(each)
    assert found is not None
    return found


def test_a_leak_is_never_called_flat_and_its_size_is_told() -> None:
    found = [judged(seed, 50, per_slice=1.0) for seed in range(200)]
    assert {one.verdict for one in found} == {Verdict.GROWS}
    assert sum(one.low <= 10 <= one.high for one in found) >= 180  # of 190 that are expected


def test_noise_is_flat_and_seldom_called_a_growth() -> None:
    found = [judged(seed, 50, per_slice=0.0).verdict for seed in range(200)]
    assert found.count(Verdict.GROWS) <= 12  # of 5 that are expected: one side of 95 %
    assert found.count(Verdict.FLAT) >= 185


def test_a_level_that_differs_by_process_is_no_growth() -> None:
    assert judged(1, 50, per_slice=0.0).slope == pytest.approx(0, abs=3)


def test_a_small_leak_in_few_slices_is_not_called_flat() -> None:
    found = [judged(seed, 12, per_slice=1.0).verdict for seed in range(200)]
    assert found.count(Verdict.FLAT) <= 6


def test_too_few_values_have_no_trend() -> None:
    assert trend({"a": [(n, 1.0) for n in range(7)]}) is None


def against_new(seed: int, per_thousand: float) -> Trend:
    """Judge a ratio that was measured in 60 slices of 50 commits, half of them in each process."""
    values = [
        (commits, 1.1 + per_thousand * commits / 1_000 + 0.02 * value)
        for commits, value in zip(range(3_000, 6_000, 50), noise(seed, 60, like=0.1), strict=True)
    ]
    found = trend_of_ratios({"a": values[:30], "b": values[30:]}, warm=0)
    assert found is not None
    return found


def test_an_old_store_that_slows_down_is_told_from_one_that_does_not() -> None:
    slower = [against_new(seed, 0.05) for seed in range(200)]
    assert {one.verdict for one in slower} == {Verdict.GROWS}
    assert sum(one.low <= 0.05 <= one.high for one in slower) >= 180
    same = [against_new(seed, 0.0).verdict for seed in range(200)]
    assert same.count(Verdict.GROWS) <= 12 and same.count(Verdict.FLAT) >= 180


def test_two_stores_take_turns_and_keep_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = (memory_manager(MemoryStore(), Clock(), name) for name in ("old", "new"))
    for manager in (old, new):
        soak.open_queues(manager)
    turns = []
    plain = Gauge._round

    def cost(gauge: Gauge, manager: Any) -> Cost:
        turns.append("old" if manager is old else "new")
        plain(gauge, manager)
        late = 7.0 if len(turns) == 3 else 0.0  # as for a checkpoint
        return Cost((3.0 if manager is old else 2.0) + late, 1.0, 5.0 if manager is old else 4.0)

    monkeypatch.setattr(Gauge, "_round", cost)
    seconds = round((3 * ROUNDS + 7) / (2 * ROUNDS), 4)
    assert Gauge(old, new, []).ratio() == Cost(seconds, processor=1.0, read=1.25, written=0.0)
    assert turns == ["new", "old", "old", "new"] * (ROUNDS // 2) + ["new", "old"]
    assert not any(m.queue(name).depth() for m in (old, new) for name in ("in", "out"))


def test_what_a_process_reads_writes_and_computes_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 3_000_000)
    before = spent(points.processes(None))
    path.read_bytes()
    path.write_bytes(b"y" * 1_000_000)
    sum(range(10_000_000))
    found = spent(points.processes(None)) - before
    assert found.read >= 3_000_000 and 1_000_000 <= found.written < 3_000_000
    assert found.seconds >= 0.05 and 0.02 <= found.processor <= 10 * found.seconds


# ------------------------------------------------------------------------- the page


def test_points_are_those_of_the_longest_store(tmp_path: Path) -> None:
    for n in range(3):
        points.add(replace(POINT, commits=100 * n), tmp_path)
    points.add(replace(POINT, store="a new one"), tmp_path)
    assert [point.commits for point in points.read(tmp_path)] == [0, 100, 200]


def test_of_stores_that_lived_long_the_newest_is_shown(tmp_path: Path) -> None:
    for store, commits in (("1", 1_350), ("2", 1_000), ("3", 950)):
        points.add(replace(POINT, store=store, commits=commits), tmp_path)
    assert [point.store for point in points.read(tmp_path)] == ["2"]


def test_times_are_told_by_their_median_and_what_nearly_all_stay_below() -> None:
    assert points.of_times([n / 1000 for n in range(1, 100)]) == (50.0, 95.0)
    assert points.of_times([0.2]) == (200.0, 200.0)


def test_a_process_and_a_folder_are_measured(tmp_path: Path) -> None:
    found = points.of_processes(None)
    kept = [object() for _ in range(100_000)]
    before, after = found["python_blocks"], points.of_processes(None)["python_blocks"]
    assert before is not None and after is not None and after >= before + 0.9 * len(kept)
    assert found["python_mb"] > 10 and found["java_mb"] == 0 and found["threads"] >= 1
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "0.json").write_bytes(b"x" * points.MB)
    assert points.of_folder(tmp_path) == {"journal_files": 1, "journal_mb": 1.0}


USED = """
from tests.reliability import points
before = points.of_processes(None)
kept = b"x" * (20 * points.MB)
held = points.of_processes(None)
del kept
after = points.of_processes(None)
assert [one["python_blocks"] for one in (before, held, after)] == [None] * 3
print(held["used_mb"] - before["used_mb"], abs(after["used_mb"] - before["used_mb"]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the GNU library tells it")
def test_with_the_system_s_allocator_what_is_in_use_is_measured() -> None:
    said = subprocess.run(
        [sys.executable, "-c", USED],
        env=os.environ | {"PYTHONMALLOC": "malloc"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    held, left = (float(one) for one in said.stdout.split())
    assert 19.9 < held < 21 and left < 0.5


WAITS = (
    "class Waits { public static void main(String[] said) throws Exception { System.in.read(); } }"
)


@pytest.mark.spark
@pytest.mark.parametrize("account", ["summary", "off"])
def test_the_memory_of_a_java_that_keeps_an_account_is_told_by_its_parts(
    account: str, tmp_path: Path
) -> None:
    program = tmp_path / "Waits.java"
    program.write_text(WAITS, encoding="utf-8")
    begun = ["java", "-XX:+UseSerialGC", "-Xms256m", "-Xmx256m", "-XX:+AlwaysPreTouch"]
    begun += [f"-XX:NativeMemoryTracking={account}", "-XshowSettings:properties", str(program)]
    java = subprocess.Popen(begun, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert java.stderr is not None
        home = next(line.split("=")[1].strip() for line in java.stderr if "java.home" in line)
        while "Waits" not in points.asked(home, java.pid, "VM.command_line"):
            assert java.poll() is None
        parts = points.parts_of_java(home, java.pid)
        resident = psutil.Process(java.pid).memory_info().rss / points.MB
    finally:
        java.communicate("\n")
    if account == "off":
        assert parts == {}
        return
    told: dict[str, Any] = {**parts}
    assert set(told) == set(points.OfJava.__annotations__)
    assert all(0.1 < each < 150 for each in told.values()), told
    assert 200 < resident - sum(told.values()) < 300  # the heap


def test_the_page_shows_the_points_and_calls_a_leak_a_growth(tmp_path: Path) -> None:
    assert not list(soak_page.lines(tmp_path))
    for n in range(40):
        leaking = replace(POINT, part=n, commits=100 * (n + 1), heap_mb=300 + n + n % 3)
        points.add(leaking, tmp_path)
    text = "\n".join(soak_page.lines(tmp_path))
    assert "| memory of the process, MB | 200.0 | +0.00 | +0.00 to +0.00 | 25 | flat |" in text
    assert "| 25 | grows |" in text and text.count("grows |") == 1
    pictures = []
    for to in ("a", "b"):
        soak_page.draw(tmp_path, tmp_path / to)
        pictures.append((tmp_path / to / soak_page.PICTURE).read_bytes())
    assert pictures[0] == pictures[1] and b"Java" in pictures[0]


def test_a_java_that_only_compiles_more_is_told_from_one_that_holds_more(tmp_path: Path) -> None:
    for store, leaked_mb in (("a", 0.0), ("b", 1.0)):
        for n in range(40):
            parts: Any = dict.fromkeys(soak_page.JAVA, 1.0) | {"java_code_mb": 100.0 + n}
            java_mb = 500 + n + n * leaked_mb
            grown = replace(POINT, store=store, commits=100 * n, java_mb=java_mb, **parts)
            points.add(grown, tmp_path / store)
    compiles, leaks = ("\n".join(soak_page.lines(tmp_path / store)) for store in "ab")
    assert "without compiled code, MB | 400.0 | +0.00 | +0.00 to +0.00 | 25 | flat |" in compiles
    assert "without compiled code, MB | 427.0 | +10.00 | +10.00 to +10.00 | 25 | grows |" in leaks
    for said in (compiles, leaks):
        assert "of it compiled code, MB | 127.0 | +10.00 | +10.00 to +10.00 | 25 | grows |" in said


def test_each_process_that_lived_long_is_judged_by_itself(tmp_path: Path) -> None:
    began = ("20261124T0105", "20261125T0000", "20261126T0000")
    for process, slices, grown, how in zip(
        began, (40, 40, 9), (1.0, 0.0, 5.0), (None, "A=1", None), strict=True
    ):
        for n in range(slices):
            mine = replace(
                POINT, process=process, commits=50 * n, python_mb=200 + n * grown, allocator=how
            )
            points.add(mine, tmp_path)
    text = "\n".join(soak_page.lines(tmp_path))
    newest, oldest = text.split("From 2026-11-24 01:05, ")
    assert "From 2026-11-25 00:00, after 0 sends of the store, with `A=1`:" in newest
    assert "| memory of the process, MB | 200.0 | +0.00 | +0.00 to +0.00 | 25 | flat |" in newest
    assert "MB | 227.0 | +20.00 | +20.00 to +20.00 | 25 | grows |" in oldest
    assert "| mean of slices | 1 to 10 | 11 to 20 | 21 to 30 | 31 to 40 |" in newest
    assert "| memory of the process, MB | 200.0 | 200.0 | 200.0 | 200.0 |" in newest
    assert "2026-11-26" not in text


def test_the_page_tells_what_the_java_that_lived_longest_has_beside_its_heap(
    tmp_path: Path,
) -> None:
    for process, slices in (("20261124T0105", 12), ("20261125T0000", 12), ("20261126T0000", 3)):
        for n in range(slices):
            parts: Any = {name: 10.0 * n + nth for nth, name in enumerate(soak_page.JAVA)}
            points.add(replace(POINT, process=process, commits=50 * n, **parts), tmp_path)
    text = "\n".join(soak_page.lines(tmp_path))
    _, table = text.split("From 2026-11-25 00:00, what its Java had beside the heap, MB:")
    assert "| after slice | 1 | 3 | 5 | 7 | 8 | 10 | 12 |" in table
    assert "| compiled code | 1.0 | 21.0 | 41.0 | 61.0 | 71.0 | 91.0 | 111.0 |" in table
    assert text.count("beside the heap, MB:") == 1


def test_the_page_tells_of_all_stores_that_lived_long(tmp_path: Path) -> None:
    for store, slices in (("20261124T1", 30), ("20261125T1", 3), ("20261126T1", 20)):
        for n in range(slices):
            points.add(replace(POINT, store=store, commits=50 * (n + 1), messages=5_000), tmp_path)
    text = "\n".join(soak_page.lines(tmp_path))
    assert text.startswith("\n![") and "This store had 1,000 sends" in text
    assert "| 2026-11-24 | 1,500 | 5,000 | 1 | 700 | 10 |" in text
    assert "2026-11-25" not in text and "2026-11-26" not in text


def test_a_number_of_the_kind_is_fifty_commits_of_a_hundred_messages() -> None:
    assert (Slice().commits, Slice().messages, Slice().consumers) == (50, 100, 4)
    assert soak.FOLDER.parts[-3:] == ("build", "reliability", "soak")
