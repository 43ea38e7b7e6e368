"""Protocols that are wrong on purpose, and only where two things go wrong: both must be caught.

What takes several dead transactions over at once has to abort each of them; and who asks whether
a lost append has landed, and gets no answer, knows nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults import crash_twice
from tests.faults.crash_pairs import pairs, run
from tests.faults.matrix import cases, fresh
from tests.faults.matrix import run as run_alone
from tests.faults.test_broken_variants import absent_is_aborted, exception_is_an_outcome
from tests.faults.test_crash_twice import operation
from txnqueue.client.append import Append
from txnqueue.core import planning
from txnqueue.core.planning import Plan
from txnqueue.errors import Busy, TransactionUnknown
from txnqueue.messages.takeover import Takeover

Break = Callable[[pytest.MonkeyPatch], None]
Catch = Callable[[], None]


def aborts_the_first_one_only(patch: pytest.MonkeyPatch) -> None:
    """End the claims of all dead transactions, and abort one of them."""
    real = Takeover.tombstones_of

    def tombstones_of(self: Any, queue_id: str, chosen: Any, stamp: Any) -> Plan:
        lanes, every = {selection.lane for selection in chosen}, self.tombstones
        dead = {
            name: (owner, claims)
            for name, (owner, claims) in every.items()
            if not lanes.isdisjoint(claim.lane for claim in claims)
        }
        self.tombstones = dict(list(dead.items())[:1])
        plan = real(self, queue_id, chosen, stamp)
        self.tombstones = every
        for _, claims in list(dead.values())[1:]:
            plan += Plan(tuple(planning.end_claims(queue_id, claims, stamp, "lease over")))
        return plan

    patch.setattr(Takeover, "tombstones_of", tombstones_of)


def takes_no_answer_for_a_failure(patch: pytest.MonkeyPatch) -> None:
    """Report that nothing has landed when nobody says so."""
    real = Append._find

    def find(self: Any, cause: Any) -> Any:
        try:
            return real(self, cause)
        except TransactionUnknown as error:
            raise Busy() from error

    patch.setattr(Append, "_find", find)


def of_pairs(first: int) -> Catch:
    """Look for a violation in so many pairs of spoiled operations; nearly always it is met soon."""

    def catch() -> None:
        for pair in pairs()[:first]:
            run(fresh(), pair)

    return catch


def twice(name: str) -> Catch:
    """Look for a violation in an operation that is spoiled twice."""

    def catch() -> None:
        for cell in crash_twice.twice(operation(name)):
            crash_twice.run(cell)

    return catch


VARIANTS: dict[str, tuple[Break, Catch]] = {
    "one of several dead transactions is aborted": (aborts_the_first_one_only, of_pairs(1_000)),
    "absent is aborted, in pairs": (absent_is_aborted, of_pairs(1_000)),
    "an exception is an outcome, in pairs": (exception_is_an_outcome, of_pairs(1_000)),
    "no answer is a failure": (takes_no_answer_for_a_failure, twice("prepare")),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_protocol_that_breaks_at_the_second_fault_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, catch = VARIANTS[name]
    pairs()  # listed by the real code
    broken(monkeypatch)
    with pytest.raises(AssertionError) as caught:
        catch()
    print(f"{name}: {str(caught.value)[:150]}")


@pytest.mark.parametrize("name", ["prepare", "receive"])
def test_one_fault_does_not_show_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    aborts_the_first_one_only(monkeypatch)
    takes_no_answer_for_a_failure(monkeypatch)
    for case in cases(operation(name)):
        run_alone(fresh(), case)
