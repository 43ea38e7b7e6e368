"""How long removed files are kept: never so long that they get many, and for good once chosen."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txnqueue.storage.journal.removed_files import INTERVALS, REMOVED_MAX, longest

SECONDS = {text: seconds for seconds, text in INTERVALS.items()}
HOUR, WEEK = 3_600, 7 * 86_400


def chosen(kept: float, removed: int) -> float | None:
    text = longest(kept, removed)
    return None if text is None else SECONDS[text]


@given(st.floats(0, 1e6), st.sampled_from(sorted(INTERVALS)))
def test_a_store_with_steady_work_settles_and_lists_few_or_keeps_them_for_an_hour(
    removed_each_hour: float, kept: float
) -> None:
    for _ in INTERVALS:
        kept = chosen(kept, int(removed_each_hour * kept / HOUR)) or kept
    listed = int(removed_each_hour * kept / HOUR)
    assert chosen(kept, listed) is None
    assert listed <= REMOVED_MAX or kept == HOUR


@given(st.integers(0, 10**6), st.sampled_from(sorted(INTERVALS)))
def test_many_files_are_never_kept_longer_and_few_never_shorter(removed: int, kept: float) -> None:
    after = chosen(kept, removed)
    if after is not None:
        assert (after < kept) == (removed > REMOVED_MAX)


def test_a_burst_leaves_the_list_and_quiet_work_is_kept_for_a_week_again() -> None:
    seen: list[float] = [WEEK]
    while (after := chosen(seen[-1], 3 * REMOVED_MAX)) is not None:  # all of the last hour
        seen.append(after)
    assert seen == sorted(seen, reverse=True) and seen[-1] == HOUR
    while (after := chosen(seen[-1], 2)) is not None:
        seen.append(after)
    assert seen[-1] == WEEK


@given(st.integers(0, 10**6))
def test_a_duration_that_the_owner_set_stays(removed: int) -> None:
    assert [longest(kept, removed) for kept in (0.001, 600, 8 * 86_400)] == [None] * 3
