"""The long runs go on where they stopped, lose no figure, and the page says what they found."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from tests.delta.failing_storage import OPERATIONS, Cell, Found
from tests.faults import crash_pairs, interrupts
from tests.reliability import cases, lists, longrun, older, page, points, results
from tests.reliability.kinds import KINDS, Kind
from tests.reliability.results import Again, Failure, Run
from tests.reliability.session import Session
from tests.stores import versions

ROOT = results.FOLDER.parents[1]
Act = Callable[[Session, int], tuple[int, Counter[str]]]


def kind(run: Act, total: Callable[[], int] | None = None) -> Kind:
    return Kind("simulator", "seeds", "seeds", "in memory", "Does.", "All else.", run, total)


def once(_: Session, number: int) -> tuple[int, Counter[str]]:
    return 2, Counter(commits=number)


def some(numbers: int, act: Act = once) -> Act:
    """Do so many numbers, then be stopped as by Ctrl-C."""
    left = iter(range(numbers))

    def run(session: Session, number: int) -> tuple[int, Counter[str]]:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return act(session, number)

    return run


@pytest.fixture
def session() -> Any:
    session = Session()
    yield session
    session.close()


def stopped(one: Kind, session: Session, folder: Path) -> list[Run]:
    with pytest.raises(KeyboardInterrupt):
        longrun.run(one, session, 60, folder)
    return results.read(one.name, folder)


def test_a_run_that_is_stopped_keeps_what_is_done_and_the_next_one_goes_on(
    session: Session, tmp_path: Path
) -> None:
    (first,) = stopped(kind(some(3)), session, tmp_path)
    assert (first.first, first.next, first.n, first.counts) == (0, 3, 6, {"commits": 3})
    _, second = stopped(kind(some(2)), session, tmp_path)
    assert (second.first, second.next, second.n, second.counts) == (3, 5, 4, {"commits": 7})
    assert results.total([first, second]) == 10
    assert [path.name for path in tmp_path.iterdir()] == ["simulator.jsonl"]


def test_the_seconds_of_many_short_cases_add_up() -> None:
    run = Run("simulator", "today", "abc", 0, 0)
    for _ in range(1_000):
        run.add(1, Counter(), 0.013, None)
    assert run.seconds == pytest.approx(13)


def test_a_failure_is_written_down_and_the_count_begins_anew(
    session: Session, tmp_path: Path
) -> None:
    def fails(_: Session, number: int) -> tuple[int, Counter[str]]:
        assert number != 1, "lost\nin detail"
        return 1, Counter()

    (run,) = stopped(kind(some(4, fails)), session, tmp_path)
    assert [(f.number, f.what) for f in run.failures] == [(1, "AssertionError: lost")]
    assert (results.total([run]), results.clean([run])) == (4, 0)
    again = stopped(kind(some(5)), session, tmp_path)
    assert results.clean(again) == 10


def test_what_has_failed_is_done_again_and_the_page_says_what_came_of_it(
    session: Session, tmp_path: Path
) -> None:
    mended = {7}

    def fails(_: Session, number: int) -> tuple[int, Counter[str]]:
        assert number in mended, f"case {number}: lost"
        return 1, Counter()

    what = [f"AssertionError: case {number}: lost" for number in (7, 8)]
    failed = Run("simulator", "2026-11-23", "abc", 7, 9, failures=list(map(Failure, (7, 8), what)))
    results.write("simulator", [failed], tmp_path)
    done = longrun.run_again(kind(fails), session, tmp_path)
    assert [(one.number, one.n, one.failed) for one in done] == [(7, 1, []), (8, 1, what[1:])]
    text = page.with_figures(f"{page.BEGIN}\n{page.END}\n", tmp_path)
    assert f"`{what[0]}` | passes: {done[0].commit}" in text
    assert f"`{what[1]}` | failed again: {done[1].commit}" in text
    mended.add(8)
    longrun.run_again(kind(fails), session, tmp_path)
    text = page.with_figures(f"{page.BEGIN}\n{page.END}\n", tmp_path)
    assert "failed again" not in text and text.count("| passes: ") == 2


def test_a_case_is_found_again_by_its_name_where_the_list_is_another_one() -> None:
    def names() -> list[str]:
        return ["send / place ", "drain / place ", "send / place "]

    one = dataclasses.replace(kind(once, lambda: 3), names=names, sought=str)
    assert one.numbers_of(Failure(1, "AssertionError: send / place 4 x.py: lost")) == [0, 2]
    assert one.numbers_of(Failure(1, "AssertionError: purge / place 4: lost")) == []
    assert kind(once).numbers_of(Failure(1, "AssertionError: send")) == [1]
    whole = dataclasses.replace(one, names=lambda: ["call 1", "call 11"], sought=kind(once).sought)
    assert whole.numbers_of(Failure(7, "AssertionError: call 11: lost")) == [1]


def named(names: list[str], run: Act = once) -> Kind:
    return dataclasses.replace(kind(run, lambda: len(names)), names=lambda: names)


def test_a_run_keeps_which_list_its_numbers_are_of(session: Session, tmp_path: Path) -> None:
    longrun.run(named(["a", "b"]), session, 60, tmp_path)
    (read,) = results.read("simulator", tmp_path)
    assert read.listed == named(["a", "b"]).listed() != named(["b", "a"]).listed()
    results.write("simulator", [dataclasses.replace(read, fingerprint=None)], tmp_path)
    assert "fingerprint" not in (tmp_path / "simulator.jsonl").read_text()


def test_a_list_that_has_changed_begins_with_its_first_case(
    session: Session, tmp_path: Path
) -> None:
    stopped(named(["a", "b", "c", "d"], some(2)), session, tmp_path)
    same = stopped(named(["a", "b", "c", "d"], some(1)), session, tmp_path)[-1]
    other = longrun.run(named(["a", "c"]), session, 60, tmp_path)
    assert (same.first, same.next, other.first, other.next) == (2, 3, 4, 6)
    shuffled = longrun.run(named(["c", "a"]), session, 0, tmp_path)
    grown = longrun.run(named(["c", "a", "b"]), session, 0, tmp_path)
    assert (shuffled.first, shuffled.next, grown.first) == (6, 7, 9)


def test_a_list_that_older_lines_do_not_tell_begins_with_its_first_case(
    session: Session, tmp_path: Path
) -> None:
    results.write("simulator", [Run("simulator", "today", "abc", 0, 2, of=3)], tmp_path)
    assert longrun.run(named(["a", "b", "c"]), session, 0, tmp_path).first == 3


def kept(names: list[str], run: Act = once) -> Kind:
    return dataclasses.replace(named(names, run), lists_kept=True)


def asked(numbers: list[int], fails: tuple[int, ...] = ()) -> Act:
    def run(_: Session, number: int) -> tuple[int, Counter[str]]:
        numbers.append(number)
        assert number not in fails, "lost"
        return 1, Counter()

    return run


def test_what_passed_in_an_earlier_list_that_is_kept_is_not_done_anew(
    session: Session, tmp_path: Path
) -> None:
    longrun.run(kept(["a", "b", "c", "d"], asked([], fails=(1,))), session, 60, tmp_path)
    numbers = list[int]()
    other = ["new", "d", "b", "a", "newer", "c"]
    run = longrun.run(kept(other, asked(numbers)), session, 60, tmp_path)
    assert numbers == [6, 8, 10]  # the new ones, and what failed
    assert (run.first, run.next, run.n, run.left_out) == (6, 12, 3, [[7, 8], [9, 10], [11, 12]])
    assert results.read("simulator", tmp_path)[-1] == run and list(run.numbers) == numbers
    before = results.read("simulator", tmp_path)
    passed = results.passed(before, kept(other).listed(), set(), tmp_path)
    assert {place: one.first for place, one in passed.items()} == {
        0: 6, 1: 0, 2: 6, 3: 0, 4: 6, 5: 0,
    }  # fmt: skip
    longrun.run(kept(other, asked(numbers)), session, 60, tmp_path)
    assert numbers[3:] == list(range(12, 18))  # all passed: all are due again


def test_a_run_over_what_is_left_can_be_stopped(session: Session, tmp_path: Path) -> None:
    longrun.run(kept(["a", "b"]), session, 60, tmp_path)
    other, numbers = ["x", "a", "y", "b", "z"], list[int]()
    for _ in range(3):
        longrun.run(kept(other, asked(numbers)), session, 0, tmp_path)
    assert numbers == [5, 7, 9]
    assert [run.left_out for run in results.read("simulator", tmp_path)] == [
        *([], [], [[6, 7]], [[8, 9]])
    ]


def test_what_has_not_passed_comes_first_though_a_run_was_beyond_it(
    session: Session, tmp_path: Path
) -> None:
    """As where a run of the present list began with what an earlier list had done."""
    results.keep_list(["a", "b", "c"], tmp_path)
    earlier = Run("simulator", "today", "abc", 1, 2, of=3, fingerprint=results.fingerprint("abc"))
    results.write("simulator", [earlier], tmp_path)
    numbers = list[int]()
    longrun.run(kept(["a", "b", "c"], asked(numbers)), session, 60, tmp_path)
    assert numbers == [3, 5]


def test_what_passed_and_fails_in_a_later_list_is_missing(session: Session, tmp_path: Path) -> None:
    longrun.run(kept(["a", "b"]), session, 60, tmp_path)
    longrun.run(kept(["a", "b"], asked([], fails=(3,))), session, 60, tmp_path)
    longrun.run(kept(["c"]), session, 60, tmp_path)
    runs = results.read("simulator", tmp_path)
    listed = kept(["b", "a", "c"]).listed()
    results.keep_list(["b", "a", "c"], tmp_path)
    assert set(results.passed(runs, listed, set(), tmp_path)) == {1, 2}
    assert set(results.passed(runs, listed, {3}, tmp_path)) == {0, 1, 2}


def test_the_page_says_how_much_passed_in_earlier_lists(session: Session, tmp_path: Path) -> None:
    one = dataclasses.replace(
        KINDS["crash-matrix-delta"], run=once, names=lambda: ["a", "b"], total=lambda: 2
    )
    old = longrun.run(one, session, 60, tmp_path)
    other = dataclasses.replace(one, names=lambda: ["b", "c", "a"], total=lambda: 3)
    longrun.run(other, session, 60, tmp_path)
    text = shown(tmp_path)
    assert "| 6 cells; 3 of 3 | 0 | all of a list |" in text
    assert f"Each passed at {old.commit}, {old.date[:10]}, or later. 2 passed as cases" in text


def test_every_list_is_kept_that_a_result_is_counted_by() -> None:
    for one in KINDS.values():
        for run in results.read(one.name) if one.lists_kept else ():
            assert run.fingerprint is None or len(results.kept_list(run.listed)) == run.of


def test_what_is_drawn_from_a_list_is_not_drawn_again_because_that_has_changed(
    session: Session, tmp_path: Path
) -> None:
    results.write("simulator", [Run("simulator", "today", "abc", 0, 2, of=3)], tmp_path)
    sampled = dataclasses.replace(named(["a", "b", "c", "d"]), found=("killed",))
    assert longrun.run(sampled, session, 0, tmp_path).first == 2


def test_a_list_ends_with_its_last_case(session: Session, tmp_path: Path) -> None:
    for _ in range(2):
        run = longrun.run(kind(once, lambda: 3), session, 60, tmp_path)
    assert (run.first, run.next, run.of) == (3, 6, 3)


def test_a_run_ends_when_its_time_is_over(session: Session, tmp_path: Path) -> None:
    assert longrun.run(kind(once), session, 0, tmp_path).next == 1


def test_a_signal_ends_a_run_after_its_number(session: Session, tmp_path: Path) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    stop = longrun.Stop()

    def pressed(session: Session, number: int) -> tuple[int, Counter[str]]:
        if number == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return once(session, number)

    try:
        run = longrun.run(kind(pressed), session, 60, tmp_path, stop)
    finally:
        for one, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(one, handler)
    assert (run.next, run.n, stop.wanted) == (3, 6, True)


def test_numbers_that_are_done_side_by_side_are_written_in_order(
    session: Session, tmp_path: Path
) -> None:
    together = threading.Barrier(3)

    def meets(mine: Session, number: int) -> tuple[int, Counter[str]]:
        mine.kept.setdefault("first", number)
        together.wait(60)
        assert number != 4, "lost"
        return 1, Counter({f"with what {mine.kept['first']} left": 1})

    one = dataclasses.replace(kind(meets, lambda: 9), side_by_side=3)
    run = longrun.run(one, session, 60, tmp_path)
    assert (run.first, run.next, run.n) == (0, 9, 9)
    assert [failure.number for failure in run.failures] == [4]
    assert sum(run.counts.values()) == 8 and len(run.counts) <= 3
    assert results.read("simulator", tmp_path) == [run]


def test_no_failure_in_n_bounds_their_share_by_three_in_n() -> None:
    for n in (10, 300, 20_000):
        share = results.bound(n)
        assert 0.02 < (1 - share) ** n < 0.05  # so unlikely would none be, if it were larger
    assert results.bound(0) == results.bound(1) == 1.0


def test_the_page_has_each_figure(tmp_path: Path) -> None:
    done = Run("simulator", "2026-11-23T10:00+00:00", "abc", 0, 600, None, 600, 7_200.0)
    failed = dataclasses.replace(done, failures=[Failure(7, "Lost | it in file:/a/b/journal/c")])
    results.write("simulator", [done], tmp_path)
    results.write("crash-matrix", [dataclasses.replace(done, of=900)], tmp_path)
    results.write("histories-memory", [failed], tmp_path)
    findings = [{"kind": "simulator", "what": "a loss", "mended": "def"}]
    (tmp_path / "findings.json").write_text(json.dumps(findings))
    text = page.with_figures(f"# R\n{page.BEGIN}\n{page.END}\n", tmp_path)
    title = KINDS["simulator"].title
    assert f"| {title} | in memory | 600 seeds | 0 | < 0.005 | 2.00 | 2026-11-23, abc |" in text
    assert "| 600 cells; 600 of 900 | 0 | a part of a list |" in text
    assert (
        "| 1 | failed in the last run |" in text
        and "| 7 | abc | `Lost \\| it in …/journal/c` |" in text
    )
    assert f"| {title} | a loss | def |" in text
    assert KINDS["hostile-input"].title in text.partition("Not run yet")[2]


@pytest.mark.parametrize(("failed", "says"), [([], "all of a list"), (["no"], "failed in the")])
def test_a_list_is_complete_once_what_failed_passes(
    failed: list[str], says: str, tmp_path: Path
) -> None:
    last = Run("crash-matrix", "2026-11-23T10:00+00:00", "abc", 0, 9, 9, 9, 1.0)
    last = dataclasses.replace(last, failures=[Failure(7, "lost")])
    results.write("crash-matrix", [last], tmp_path)
    (tmp_path / "findings.json").write_text("[]")
    text = f"{page.BEGIN}\n{page.END}\n"
    assert "| 9 cells; 8 of 9 | 1 | failed in the last run |" in page.with_figures(text, tmp_path)
    results.add_again(Again("crash-matrix", 7, last.date, "def", 1, failed), tmp_path)
    n = 8 if failed else 9
    assert f"| 9 cells; {n} of 9 | 1 | {says}" in page.with_figures(text, tmp_path)


DAY = "2026-11-23T10:00+00:00"


def shown(folder: Path) -> str:
    """Write the page of what is in a folder."""
    return page.with_figures(f"{page.BEGIN}\n{page.END}\n", folder)


def test_numbers_of_another_list_do_not_complete_one(tmp_path: Path) -> None:
    runs = [
        Run("interrupts", DAY, "a", 0, 6708, of=56195, n=6708),
        Run("interrupts", DAY, "b", 6708, 6709, of=6709, n=1),
    ]
    results.write("interrupts", runs, tmp_path)
    text = shown(tmp_path)
    assert "| 6,709 places; 1 of 6,709 | 0 | a part of a list |" in text
    assert "6,708 numbers of earlier lists do not count here." in text
    assert "known by its length alone" in text


@pytest.mark.parametrize(
    ("prints", "says"),
    [
        (("x", "x"), "4 of 4 | 0 | all of a list"),
        (("x", "y"), "2 of 4 | 0 | a part of a list"),
        ((None, "x"), "2 of 4 | 0 | a part of a list"),
        ((None, None), "4 of 4 | 0 | all of a list"),
    ],
)
def test_a_list_is_complete_under_one_fingerprint(
    prints: tuple[str | None, str | None], says: str, tmp_path: Path
) -> None:
    runs = [
        Run("crash-matrix", DAY, "a", 2 * n, 2 * n + 2, of=4, n=2, fingerprint=one)
        for n, one in enumerate(prints)
    ]
    results.write("crash-matrix", runs, tmp_path)
    text = shown(tmp_path)
    assert f"| 4 cells; {says} |" in text
    assert ("known by its length alone" in text) == (prints[1] is None)


def test_the_same_numbers_twice_are_not_a_list(tmp_path: Path) -> None:
    runs = [Run("crash-matrix", DAY, "a", 4 * n, 4 * n + 3, of=4, n=3) for n in range(2)]
    results.write("crash-matrix", runs, tmp_path)
    assert "| 6 cells; 3 of 4 | 0 | a part of a list |" in shown(tmp_path)


def test_a_failure_of_an_earlier_run_is_missing_until_it_passes(tmp_path: Path) -> None:
    failed = Run("crash-matrix", DAY, "a", 0, 2, of=4, n=2, failures=[Failure(1, "lost")])
    results.write(
        "crash-matrix", [failed, Run("crash-matrix", DAY, "b", 2, 4, of=4, n=2)], tmp_path
    )
    assert "| 4 cells; 3 of 4 | 1 | a part of a list |" in shown(tmp_path)
    results.add_again(Again("crash-matrix", 1, DAY, "a", 1, [], found=1), tmp_path)
    assert "3 of 4 | 1 | a part" in shown(tmp_path)
    assert "| passes at the commit that failed: a," in shown(tmp_path)
    results.add_again(Again("crash-matrix", 1, DAY, "b", 1, [], found=1), tmp_path)
    assert "4 of 4 | 1 | all of a list" in shown(tmp_path) and "| passes: b," in shown(tmp_path)


def test_of_mutants_the_page_tells_the_share_of_those_drawn_and_no_list(tmp_path: Path) -> None:
    run = Run("mutants", DAY, "a", 0, 10, of=10, n=10, counts={"killed": 9, "equivalent": 1})
    results.write("mutants", [run], tmp_path)
    assert "| 10 mutants drawn | 0 | 90.0% killed" in shown(tmp_path)


def test_of_what_is_whole_each_time_the_last_time_counts(tmp_path: Path) -> None:
    runs = [Run("broken-variants", DAY, "a", n, n + 1, n=120 + n) for n in range(2)]
    results.write("broken-variants", runs, tmp_path)
    assert "| 121 variants caught | 0 | a list |" in shown(tmp_path)


def test_the_page_says_which_lists_have_changed_since(tmp_path: Path) -> None:
    one = dataclasses.replace(KINDS["crash-matrix"], names=lambda: ["a", "b"], total=lambda: 2)
    run = Run("crash-matrix", DAY, "a", 0, 2, of=2, n=2, fingerprint=one.listed().fingerprint)
    results.write("crash-matrix", [run], tmp_path)
    lists.look([one], DAY, "b", tmp_path)
    assert not lists.read(tmp_path) and "has changed since" not in shown(tmp_path)
    other = dataclasses.replace(one, names=lambda: ["b", "c", "d"])
    for commit in ("b", "c"):  # the one that it was seen with first
        lists.look([other], "2026-11-24T10:00+00:00", commit, tmp_path)
        assert "The list has changed since, and has 3 now: b, 2026-11-24." in shown(tmp_path)
        assert "| all of a list that has changed since |" in shown(tmp_path)
    anew = dataclasses.replace(run, date="2026-11-25T10:00+00:00", first=2, next=4)
    results.write("crash-matrix", [run, anew], tmp_path)
    assert "has changed since" not in shown(tmp_path)


def test_an_older_list_has_changed_if_it_has_another_length(tmp_path: Path) -> None:
    one = dataclasses.replace(KINDS["crash-matrix"], names=lambda: ["a", "b"], total=lambda: 2)
    for of, has_changed in ((2, False), (3, True)):
        results.write("crash-matrix", [Run("crash-matrix", DAY, "a", 0, 2, of=of, n=2)], tmp_path)
        lists.look([one], DAY, "b", tmp_path)
        assert ("has changed since" in shown(tmp_path)) is has_changed


def in_stores(ran: list[str], fails: Callable[[Session, int], bool]) -> Kind:
    """Make a kind that does three cases in one store, and fails as is said."""

    def run(session: Session, number: int) -> tuple[int, Counter[str]]:
        session.kept["cells"] = session.kept.get("cells", 0) + 1
        ran.append(f"{number} is the {session.kept['cells']}. of its store")
        assert not fails(session, number), f"case {number}: lost"
        return 1, Counter()

    names = [f"case {number}" for number in range(9)]
    return dataclasses.replace(named(names, run), in_one_store=3)


def test_what_failed_in_a_used_store_is_repeated_in_one(session: Session, tmp_path: Path) -> None:
    def in_the_third_place(session: Session, number: int) -> bool:
        return number == 5 and session.kept["cells"] == 3

    said = [Failure(n, f"AssertionError: case {n}: lost") for n in (5, 1)]
    results.write("simulator", [Run("simulator", DAY, "a", 0, 9, failures=said)], tmp_path)
    ran = list[str]()
    done = longrun.run_again(in_stores(ran, in_the_third_place), session, tmp_path)
    assert ran == [
        f"{n} is the {at}. of its store"
        for n, at in zip((3, 4, 5, 0, 1), (1, 2, 3, 1, 2), strict=True)
    ]
    assert [(one.n, one.before, bool(one.failed)) for one in done] == [(1, 2, True), (1, 1, False)]


def test_what_fails_before_a_case_is_no_pass_of_it(session: Session, tmp_path: Path) -> None:
    said = [Failure(5, "AssertionError: case 5: lost")]
    results.write("simulator", [Run("simulator", DAY, "a", 0, 9, failures=said)], tmp_path)
    (done,) = longrun.run_again(in_stores([], lambda _, n: n == 4), session, tmp_path)
    assert done.failed == ["one before it: AssertionError: case 4: lost"]


def test_a_repetition_alone_in_a_new_store_does_not_settle(tmp_path: Path) -> None:
    run = Run("crash-matrix-delta", DAY, "a", 0, 9, of=9, n=9, failures=[Failure(7, "lost")])
    results.write("crash-matrix-delta", [run], tmp_path)
    results.add_again(Again("crash-matrix-delta", 7, DAY, "b", 1, []), tmp_path)
    assert "| failed in the last run |" in shown(tmp_path)
    assert "| passes, alone in a new store: b," in shown(tmp_path)
    results.add_again(Again("crash-matrix-delta", 7, DAY, "b", 1, [], 1, 7), tmp_path)
    assert "| all of a list |" in shown(tmp_path)
    assert "| passes after 7 others in its store: b," in shown(tmp_path)


def test_nothing_that_could_be_done_is_no_repetition(session: Session, tmp_path: Path) -> None:
    missing = dataclasses.replace(
        KINDS["failing-storage"],
        run=lambda *_: (0, Counter({"there was no such call": 1})),
        names=lambda: ["a", "b"],
        total=lambda: 2,
    )
    said = [Failure(1, "AssertionError: b: lost"), Failure(0, "AssertionError: c: lost")]
    results.write(missing.name, [Run(missing.name, DAY, "a", 0, 2, of=2, failures=said)], tmp_path)
    done = longrun.run_again(missing, session, tmp_path)
    assert [(one.n, one.found, one.failed) for one in done] == [(0, 1, []), (0, 0, [])]
    text = shown(tmp_path)
    assert "| not repeated, nothing could be done: " in text and "passes" not in text
    assert "| there is no such case any more: " in text
    assert "0 of 2 | 2 | failed in the last run |" in text


def test_the_page_says_how_far_the_parts_of_a_list_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = dataclasses.replace(KINDS["simulator"], parts=lambda: ["first"] * 3 + ["second"] * 4)
    monkeypatch.setitem(KINDS, "simulator", two)
    text = f"{page.BEGIN}\n{page.END}\n"
    results.write("simulator", [Run("simulator", "2026-11-23", "abc", 0, 5, of=7, n=5)], tmp_path)
    found = page.with_figures(text, tmp_path)
    assert "| first | 3 | 3 |\n| second | 2 | 4 |" in found
    results.write("simulator", [Run("simulator", "2026-11-23", "abc", 0, 7, of=7, n=7)], tmp_path)
    assert "| first |" not in page.with_figures(text, tmp_path)


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not one part"):
        page.with_figures("# Reliability\n", tmp_path)


def test_the_stored_page_has_the_stored_figures() -> None:
    text = (page.DOCS / "reliability.md").read_text(encoding="utf-8")
    assert page.with_figures(text, results.FOLDER) == text, "run: tests/reliability.sh --page"


def test_the_stored_files_leave_no_number_out() -> None:
    assert {path.stem for path in results.FOLDER.glob("*.jsonl")} <= {
        *KINDS,
        points.NAME,
        results.AGAIN,
    }
    for name in KINDS:
        runs = results.read(name)
        for before, run in itertools.pairwise(runs):
            anew = results.first_number([before], run.listed)  # another list, from its first case
            if KINDS[name].lists_kept and run.of:  # or what has not passed of this one
                assert run.first in (before.next, anew, -(-before.next // run.of) * run.of)
            else:
                assert run.first in (before.next, anew)
        assert all(run.first < run.next for run in runs)


@pytest.mark.parametrize("name", ["crash-matrix", "pairs-delta", "damage", "connect", "versions"])
def test_the_names_of_a_list_are_those_of_its_cases(name: str) -> None:
    kind = KINDS[name]
    assert kind.names is not None and kind.total is not None
    assert len(kind.names()) == kind.total() and len(set(kind.names())) > 0.9 * kind.total()


def test_each_list_has_names() -> None:
    assert not [name for name, kind in KINDS.items() if kind.total and not kind.names]


@pytest.mark.parametrize("name", ["histories-memory", "crash-matrix", "simulator"])
def test_a_kind_does_a_number(name: str, session: Session, tmp_path: Path) -> None:
    run = longrun.run(KINDS[name], session, 0, tmp_path)
    assert not run.failures and run.n == 1 and run.counts


TESTS = """
from hypothesis import given, settings, strategies
@settings(max_examples=7)
@given(strategies.integers())
def test_one(number): assert number is not None
def test_two(): pass
"""


def test_what_tests_draw_is_counted_and_their_failure_is_one(tmp_path: Path) -> None:
    path = tmp_path / "test_drawn.py"
    path.write_text(TESTS)
    assert cases.passed(1, str(path)) == 2
    assert cases.examples(1, str(path)) == 7
    path.write_text(TESTS.replace("pass", "assert False"))
    with pytest.raises(AssertionError, match=r"FAILED .*test_two"):
        cases.passed(1, str(path))


def test_a_test_that_shows_that_something_passes_is_no_variant_that_is_caught() -> None:
    files = ["tests/faults/test_broken_pairs.py", "tests/faults/test_broken_routing.py"]
    told = cases._pytest(1, "--collect-only", "-k", cases.CATCHES, *files)
    names = [line.partition("::")[2].partition("[")[0] for line in told.splitlines()]
    assert {name for name in names if name} == {
        "test_a_protocol_that_breaks_at_the_second_fault_is_caught",
        "test_a_broken_exchange_is_caught",
    }


def test_a_pair_whose_second_fault_does_not_happen_is_none(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crash_pairs, "run", lambda *_: False)
    assert cases.crash_pairs(session, 0) == (0, {"the second fault did not happen": 1})
    monkeypatch.setattr(crash_pairs, "run", lambda *_: True)
    assert cases.crash_pairs(session, 0)[0] == 1


def test_a_place_whose_exception_does_not_arrive_is_none(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts, "run", lambda *_: interrupts.UNHEARD)
    assert cases.interrupts_in_memory(session, 0) == (0, {"the exception did not arrive": 1})


def test_kills_are_counted_of_drivers_that_were_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(_older: Path, root: str, what: str, _spark: object) -> str:
        return "LayoutUnsupported" if root.endswith("new") else f"{what} 2"

    manager = Mock()
    manager.return_value.queue.return_value.depth.return_value = 1
    fakes = {"code_of": Mock(), "said": said, "QueueManager": manager, "newest_version": Mock()}
    for name, fake in {**fakes, "kill": lambda *_, **__: 3}.items():
        monkeypatch.setattr(versions, name, fake)
    (tmp_path / "code").mkdir()
    fake_session = SimpleNamespace(spark=None, folder=lambda: tmp_path)
    n, counts = older.two_versions(cast(Session, fake_session), 0)
    assert n == counts["kills"] == 3 < versions.KILLS


def test_after_a_call_that_is_not_made_later_ones_are_not_looked_for(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[Cell]()

    class Disk:
        cells = cases.CELLS_OF_AN_OLD_STORE

        def run(self, cell: Cell) -> Found:
            asked.append(cell)
            return Found("/a" if cell.nth <= 3 else None, "failed", "", committed=False)

    monkeypatch.setattr(cases, "_new_process", lambda _session: Disk())
    every = cases.failing_calls()
    assert len(set(every)) == len(every) and {one.operation for one in every} == set(OPERATIONS)
    done = [cases.storage_that_fails(session, number) for number in range(len(every))]
    assert sum(n for n, _ in done) == 8 * 4 * 2 * 3
    assert max(cell.nth for cell in asked) == 4
    assert len(asked) == len(set(asked)) == 8 * 4 * 2 * 4


def test_a_call_that_a_young_store_does_not_make_is_tried_again_when_it_is_older(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Disk:
        cells = 0

        def run(self, cell: Cell) -> Found:
            self.cells += 1
            return Found("/a" if self.cells >= 7 else None, "failed", "", committed=False)

    disk = Disk()
    monkeypatch.setattr(cases, "_new_process", lambda _session: disk)
    assert cases.storage_that_fails(session, 0) == (1, {"told failed": 1})
    assert disk.cells == 7
