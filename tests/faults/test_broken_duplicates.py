"""Duplicate detection that is wrong on purpose: the simulator must catch every variant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.faults.simulation import simulate
from txnqueue.core.state import duplicates
from txnqueue.core.state.duplicates import Duplicates
from txnqueue.messages import duplicates as finding
from txnqueue.messages import removal

SEEDS = 150


def _ids(arrival: Any) -> list[bytes]:
    size = duplicates.DIGEST_BYTES
    return [arrival.ids[n : n + size] for n in range(0, len(arrival.ids), size)]


def duplicates_by_lane(patch: pytest.MonkeyPatch) -> None:
    """Know only the ids of the lane that is claimed."""
    real = Duplicates._sort

    def narrow(self: Any, arrival: Any) -> Any:
        lane = bytes([arrival.position.lane])
        mixed = b"".join(one[1:] + lane for one in _ids(arrival))
        return real(self, replace(arrival, ids=mixed))

    patch.setattr(Duplicates, "_sort", narrow)


def forgets_what_left(patch: pytest.MonkeyPatch) -> None:
    """Know only the ids of what still stands in the queue."""
    real = Duplicates.retired

    def forgetful(self: Any, position_id: Any) -> None:
        real(self, position_id)
        self._arrivals.pop(position_id, None)

    patch.setattr(Duplicates, "retired", forgetful)


def duplicates_make_the_window_longer(patch: pytest.MonkeyPatch) -> None:
    """Let each duplicate begin the window anew."""
    real = Duplicates._sort

    def longer(self: Any, arrival: Any) -> Any:
        found = real(self, arrival)
        self._known.update(dict.fromkeys(_ids(arrival), arrival.position.posted_at_ms))
        return found

    patch.setattr(Duplicates, "_sort", longer)


def window_until_the_claim(patch: pytest.MonkeyPatch) -> None:
    """Measure the window up to the claim, and not up to the later message's commit."""
    real = finding._look

    def late(client: Any, info: Any, known: Any, position: Any) -> None:
        now_ms = client.runtime.now_ms()
        for arrival in known._arrivals.values():
            arrival.position = replace(arrival.position, posted_at_ms=now_ms)
        real(client, info, known, position)

    patch.setattr(finding, "_look", late)


def duplicate_of_itself(patch: pytest.MonkeyPatch) -> None:
    """Take a dead letter that is sent back for a duplicate of what it was."""
    real = Duplicates.posted

    def strict(self: Any, position: Any, ids: Any) -> None:
        real(self, replace(position, origin=None), ids)

    patch.setattr(Duplicates, "posted", strict)


def purges_without_looking(patch: pytest.MonkeyPatch) -> None:
    """Purge and move duplicates like anything else: the lane's log does not tell them then."""
    patch.setattr(removal, "firsts", lambda waiting, left_out, twice, full: waiting)


def first_by_clock(patch: pytest.MonkeyPatch) -> None:
    """Let the recorded times say who was first, and not the order of the commits."""
    real = Duplicates.to_look_at

    def by_clock(self: Any, position: Any, now_ms: int) -> Any:
        return sorted(real(self, position, now_ms), key=lambda a: a.position.posted_at_ms)

    patch.setattr(Duplicates, "to_look_at", by_clock)


VARIANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "known by lane": duplicates_by_lane,
    "the ids of what left are forgotten": forgets_what_left,
    "they make the window longer": duplicates_make_the_window_longer,
    "the window ends at the claim": window_until_the_claim,
    "a redriven message is a duplicate of itself": duplicate_of_itself,
    "a purge that does not look": purges_without_looking,
    "the clocks say who was first": first_by_clock,
}


@pytest.mark.parametrize("name", VARIANTS)
def test_broken_duplicate_detection_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    VARIANTS[name](monkeypatch)
    with pytest.raises(AssertionError) as caught:
        for seed in range(SEEDS):
            simulate(seed)
    print(f"{name}: {str(caught.value)[:150]}")
