"""The meetings of two operations, as kinds of long runs."""

from __future__ import annotations

from collections import Counter
from functools import cache

from tests.faults import pairs
from tests.faults.pair_board import APART, SAME, Meeting, PairWorld, new_world
from tests.reliability.session import Session

IN_ONE_STORE = 20
"""So many meetings take place in one store, before its journal has grown too long."""
_ABOUT = {SAME: "about the same", APART: "about different ones"}
DOES = (
    "Each of the 78 pairs of twelve operations, about one message or transaction and about "
    "different ones: either is held at each of its store calls while the other one runs to its "
    "end. What both are told, where each message is, and what was sent and changed is compared "
    "with a table written from the documentation; then the history is verified, on Delta after "
    "each ten of them."
)


@cache
def _meetings() -> list[Meeting]:
    return pairs.everywhere()


@cache
def _all_in_memory() -> list[Meeting]:
    return [*_meetings(), *pairs.in_appends()]


def total() -> int:
    """Count the meetings that can be forced on Delta."""
    return len(_meetings())


def total_in_memory() -> int:
    """Count the meetings."""
    return len(_all_in_memory())


def names() -> list[str]:
    """Name the meetings that can be forced on Delta."""
    return list(map(str, _meetings()))


def names_in_memory() -> list[str]:
    """Name all meetings."""
    return list(map(str, _all_in_memory()))


def parts() -> list[str]:
    """Name the part of the list that each meeting on Delta is of."""
    first = {*pairs.deciding(SAME), *pairs.deciding(APART)}
    return [
        f"held {'just before its first append' if one in first else 'at another call'}, "
        f"{_ABOUT[one.relation]}"
        for one in _meetings()
    ]


def _counted(told: str) -> Counter[str]:
    refused = [one for one in told.split(", ") if one != "ok"]
    return Counter(refused or ["both done"])


def in_memory(_: Session, number: int) -> tuple[int, Counter[str]]:
    """Let two operations meet in memory."""
    told = pairs.run(new_world(), _all_in_memory()[number % total_in_memory()])
    return 1, _counted(told)


def on_delta(session: Session, number: int) -> tuple[int, Counter[str]]:
    """Let two operations meet on Delta, in the store of the last ones unless they failed."""
    world: PairWorld = session.kept.pop("pairs", None) or new_world(
        session.spark, str(session.folder())
    )
    meeting = _meetings()[number % total()]
    told = pairs.run(world, meeting)
    if "drop" in meeting.pair:  # who has opened the queue before goes on with that one
        world.helpers.clear()
    if world.scenario <= IN_ONE_STORE:
        session.kept["pairs"] = world
    return 1, _counted(told)
