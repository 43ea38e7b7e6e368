"""Recorded runs of several clients: nothing is wrong with them, and broken protocols are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.faults import test_broken_variants as broken
from tests.histories import checker
from tests.histories.broken import BROKEN as TOLD_OTHERWISE
from tests.histories.history import loaded
from tests.histories.runs import in_memory, on_delta_by_processes, on_delta_by_threads
from txnqueue.errors import StoreCorrupt, TxnQueueError

SEEDS = range(300 if LONG else 15)
DELTA_SEEDS = range(10)
SEEN = (
    *("commit ok", "commit fail", "rollback ok", "prepare ok", "decide ok", "outcome ok"),
    *(
        "accept ok",
        "accept fail",
        "release ok",
        "recover ok",
        "receive info",
        "look ok",
        "take-overs",
        "rolled_back",
    ),
)
"""A run in which nothing goes wrong, and nobody meets anybody, proves nothing."""
UNKNOWN_MAX = 0.1
BROKEN: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "acknowledges unseen": broken.acknowledges_unseen,
    "commits without settling": broken.commits_without_settling,
    "absent is aborted": broken.absent_is_aborted,
    "prepared may be swept": broken.prepared_may_be_swept,
    "gives up with aborted": broken.gives_up_with_aborted,
}
SEEDS_MAX = 60


def test_nothing_is_wrong_with_runs_in_memory() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        history = in_memory(seed)
        found = checker.check(history)
        assert not found, "\n".join(map(str, found))
        counts += checker.figures(history)
    assert all(counts[what] for what in SEEN), counts
    assert counts["info"] < UNKNOWN_MAX * counts["operations"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_protocol_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BROKEN[name](monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            history = in_memory(seed)
        except TxnQueueError:  # the library itself notices
            return
        found = checker.check(history)
        if found:
            again = loaded(history.dumped())
            assert list(map(str, checker.check(again))) == list(map(str, found))
            return
    raise AssertionError(f"nothing was found in {SEEDS_MAX} runs")


@pytest.mark.parametrize("broken", TOLD_OTHERWISE, ids=lambda one: one.__name__)
def test_what_was_told_and_is_not_so_is_called_by_its_name(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    found = set[str]()
    for seed in range(SEEDS_MAX):
        with suppress(StoreCorrupt):  # it may break the store before a history of it is whole
            found |= {one.name for one in checker.check(in_memory(seed))}
        if TOLD_OTHERWISE[broken] in found:
            return
    raise AssertionError(f"only {found} was found in {SEEDS_MAX} runs")


@pytest.mark.spark
@pytest.mark.skipif(not LONG, reason="minutes: tests/reliability.sh runs them by the hundred")
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("run", [on_delta_by_threads, on_delta_by_processes])
def test_nothing_is_wrong_with_runs_on_delta(
    run: Callable[..., Any], spark: Any, tmp_path: Path
) -> None:
    for seed in DELTA_SEEDS:
        found = checker.check(run(spark, tmp_path / str(seed), seed))
        assert not found, "\n".join(map(str, found))
