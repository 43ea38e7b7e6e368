"""Drains that are wrong on purpose, most with ``ahead=1``: the tests must catch every one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance import test_drain as in_turn
from tests.conformance import test_drain_ahead as ahead
from tests.conformance import test_ordered as ordered
from tests.conformance.conftest import World
from tests.faults.simulation import simulate
from txnqueue.core.bounds import Bounds
from txnqueue.core.planning import Plan
from txnqueue.core.receipt import Status
from txnqueue.drain import Drain
from txnqueue.errors import TxnQueueError
from txnqueue.storage.store import MemoryStore
from txnqueue.transactions import commit
from txnqueue.transactions.attempt import Attempt
from txnqueue.transactions.drain_run import DrainRun

Break = Callable[[pytest.MonkeyPatch], None]
Catch = Callable[[], None]


def seen_by(test: Callable[..., None], *given: Any) -> Catch:
    """Look for a violation by a test of the conformance suite."""
    return lambda: test(World(MemoryStore()), *given)


def simulating() -> None:
    """Look for a violation among seeds of the simulator; in one of twenty it has one."""
    for seed in range(200):
        simulate(seed)


def forgets_what_was_claimed_ahead(patch: pytest.MonkeyPatch) -> None:
    """Leave what was claimed ahead in flight when the batch before it fails."""
    real = commit.rollback

    def rollback(attempt: Attempt, reason: str | None = None, **how: bool) -> None:
        if reason != "a batch before it failed":
            real(attempt, reason, **how)

    patch.setattr(commit, "rollback", rollback)


def lets_nothing_go(patch: pytest.MonkeyPatch) -> None:
    """Leave what is in hand in flight when an error ends the drain."""
    patch.setattr(Drain, "_let_go", lambda self, error: None)


def commits_after_what_failed(patch: pytest.MonkeyPatch) -> None:
    """Commit a batch though the one before it was not: its number is left out."""
    real = Drain._nothing_before

    def nothing_before(self: Any, done: Any, current: Any, error: Any, failure: Any) -> Any:
        if failure is None and isinstance(error, Exception):
            commit.commit(current.attempt)
        return real(self, done, current, error, failure)

    patch.setattr(Drain, "_nothing_before", nothing_before)


def commits_out_of_turn(patch: pytest.MonkeyPatch) -> None:
    """Commit a batch as soon as its handler has returned, whatever became of the one before."""
    real = Drain._call

    def call(self: Any, current: Any) -> Any:
        failure = real(self, current)
        if self._background is not None and failure is None:
            commit.commit(current.attempt)
            current.attempt.status = Status.ACTIVE
        return failure

    patch.setattr(Drain, "_call", call)


def uses_a_number_twice(patch: pytest.MonkeyPatch) -> None:
    """Give the batch that is claimed ahead the number of the one that is at hand."""
    real = DrainRun.begin

    def begin(self: Any, number: int | None = None) -> Any:
        ahead_of_it = number is not None and number > self.number + 1
        return real(self, number - 1 if ahead_of_it and number else number)

    patch.setattr(DrainRun, "begin", begin)


def takes_its_own_batches_over(patch: pytest.MonkeyPatch) -> None:
    """Leave only the claims alone that the same append commits."""
    real = Drain._wanted

    def wanted(self: Any, *pending: Any) -> Any:
        found = real(self, *pending)
        return replace(found, beside=found.beside[:1] if len(pending) > 1 else ())

    patch.setattr(Drain, "_wanted", wanted)
    claims_where_it_settles(patch)


def holds_nothing_on(patch: pytest.MonkeyPatch) -> None:
    """Handle what was claimed ahead under the lease that it had."""
    patch.setattr(Drain, "_held_on", lambda self, current: True)


def begins_what_it_has(patch: pytest.MonkeyPatch) -> None:
    """Handle what was claimed ahead though the drain was asked to stop."""
    patch.setattr(Bounds, "over", lambda self, seconds: False)


def counts_committed_messages_only(patch: pytest.MonkeyPatch) -> None:
    """Forget what is in hand when the next claim's size is chosen."""
    real = Drain._room
    patch.setattr(Drain, "_room", lambda self, *pending: real(self))


def takes_more_work(patch: pytest.MonkeyPatch) -> None:
    """Let a handler add work to the batch before, which is being committed."""
    patch.setattr(Attempt, "close", lambda self: None)


def claims_where_it_settles(patch: pytest.MonkeyPatch) -> None:
    """Join a commit that writes to a lane with a claim that does."""
    patch.setattr(Plan, "excludes", lambda self, other: False)


def takes_what_is_behind(patch: pytest.MonkeyPatch) -> None:
    """Claim, in the append that gives messages back, those that are behind them."""
    patch.setattr(Plan, "gives_back_to", lambda self, other: False)


WHERE: tuple[str, ...] = ("at once", "at the end", "by a thread")
VARIANTS: dict[str, tuple[Break, list[Catch]]] = {
    "what was claimed ahead is forgotten": (
        forgets_what_was_claimed_ahead,
        [seen_by(ahead.test_a_batch_that_fails_takes_neither_neighbour_with_it, w) for w in WHERE],
    ),
    "what is in hand is not let go": (
        lets_nothing_go,
        [
            seen_by(ahead.test_after_a_mistake_of_the_job_nothing_is_held, "at once"),
            seen_by(ahead.test_a_report_that_raises_gives_back_what_is_in_hand, "by a thread"),
        ],
    ),
    "a number is left out": (
        commits_after_what_failed,
        [seen_by(ahead.test_what_was_handled_after_a_batch_that_is_not_committed_is_given_back)],
    ),
    "committed out of turn": (
        commits_out_of_turn,
        [
            seen_by(ahead.test_a_handler_runs_before_the_batch_before_is_committed),
            seen_by(ahead.test_every_message_is_handled_once_and_committed_in_turn, "at the end"),
            simulating,
        ],
    ),
    "a number is used twice": (
        uses_a_number_twice,
        [seen_by(ahead.test_every_message_is_handled_once_and_committed_in_turn, w) for w in WHERE],
    ),
    "its own batches are taken over": (
        takes_its_own_batches_over,
        [seen_by(ahead.test_a_lease_that_is_over_gives_a_drain_nothing_of_its_own), simulating],
    ),
    "a lease that is half over": (
        holds_nothing_on,
        [
            seen_by(ahead.test_what_was_claimed_ahead_is_held_for_a_whole_lease),
            seen_by(ahead.test_what_others_took_meanwhile_is_not_handled),
        ],
    ),
    "a batch is begun after the end": (
        begins_what_it_has,
        [
            seen_by(ahead.test_what_was_claimed_ahead_is_not_begun_after_the_end, w, "stopped")
            for w in WHERE
        ],
    ),
    "messages in hand are not counted": (
        counts_committed_messages_only,
        [seen_by(ahead.test_bounds_count_what_is_in_hand, where) for where in WHERE],
    ),
    "a batch that is being committed takes more": (
        takes_more_work,
        [seen_by(ahead.test_a_batch_takes_no_more_work_once_its_handler_has_returned)],
    ),
    "a commit and a claim in the same lane": (
        claims_where_it_settles,
        [
            seen_by(in_turn.test_a_handler_settles_a_lease_of_the_lane_of_the_next_claim, *case)
            for case in (("runs", None), ("over", 1))
        ]
        + [simulating],
    ),
    "an ordered queue out of order": (
        takes_what_is_behind,
        [
            seen_by(ordered.test_a_drain_hands_nothing_out_before_what_its_handler_gave_back, act)
            for act in ("releases", "fails", "accepts a part")
        ],
    ),
}


def caught(make_wrong: Break, catches: list[Catch], patch: pytest.MonkeyPatch) -> None:
    """Make something wrong, and check that each test notices it."""
    make_wrong(patch)
    for number, catch in enumerate(catches):
        try:
            catch()
        except (AssertionError, TxnQueueError, pytest.fail.Exception):
            continue
        pytest.fail(f"{make_wrong.__doc__} Test {number} did not notice it.")


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_drain_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    caught(*VARIANTS[name], monkeypatch)
