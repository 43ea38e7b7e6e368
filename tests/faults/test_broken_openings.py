"""Openings of a consumer id that are wrong on purpose: the tests must catch every one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import test_leases as leases
from tests.conformance import test_ordered as ordered
from tests.faults.test_broken_drains import Break, Catch, caught, seen_by
from txnqueue.client.consumer import Consumer
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import AttemptOwner, Claim, LeaseOwner, QueueState


def opens_by_claims_alone(patch: pytest.MonkeyPatch) -> None:
    """Give two openings between which nothing was in flight the same epoch."""
    real = Consumer.__init__
    patch.setattr(Consumer, "__init__", lambda self, name, opened_ms: real(self, name, 0))


def fences_nobody(patch: pytest.MonkeyPatch) -> None:
    """Let the earlier opening of an id go on beside the later one."""

    def owner(self: Consumer, info: QueueInfo, fold: QueueState, now_ms: int) -> LeaseOwner:
        part = info.queue_id, info.transient
        return LeaseOwner(self.id, self._epochs.setdefault(part, self._opened_ms))

    patch.setattr(Consumer, "owner", owner)


def comes_late_and_is_the_later_one(patch: pytest.MonkeyPatch) -> None:
    """Let an opening rise above the claims of its successor at its first look at a queue."""
    patch.setattr(Consumer, "_is_fenced_by", lambda self, claim, now_ms: False)


def waits_for_its_predecessor_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Let an opening whose clock is behind wait until its predecessor's claims are gone."""
    patch.setattr(
        Consumer,
        "_is_fenced_by",
        lambda self, claim, now_ms: self._opened_ms < claim.owner.opened_ms,
    )


def takes_its_past_for_itself(patch: pytest.MonkeyPatch) -> None:
    """Receive what is behind messages that an earlier opening of the id has prepared."""

    def others(self: Consumer, _info: QueueInfo, fold: QueueState, _own: Any = ()) -> list[Claim]:
        return [claim for claim in fold.claims() if claim.owner.consumer != self.id]

    patch.setattr(Consumer, "others", others)


def takes_its_other_transactions_for_one(patch: pytest.MonkeyPatch) -> None:
    """Receive what is behind messages that another transaction of the consumer holds."""
    others = Consumer.others

    def all_but_its_own(
        self: Consumer, info: QueueInfo, fold: QueueState, _own: Any = ()
    ) -> list[Claim]:
        its_own = {c.owner.attempt for c in fold.claims() if isinstance(c.owner, AttemptOwner)}
        return others(self, info, fold, its_own)

    patch.setattr(Consumer, "others", all_but_its_own)


VARIANTS: dict[str, tuple[Break, list[Catch]]] = {
    "two openings have one epoch": (
        opens_by_claims_alone,
        [
            seen_by(leases.test_of_two_that_open_an_id_while_it_holds_nothing_one_is_fenced),
            seen_by(leases.test_the_later_opening_of_an_id_is_the_later_one_on_every_queue),
        ],
    ),
    "the earlier opening is not fenced": (
        fences_nobody,
        [seen_by(leases.test_of_two_that_open_an_id_while_it_holds_nothing_one_is_fenced)],
    ),
    "an opening that comes late takes over": (
        comes_late_and_is_the_later_one,
        [
            seen_by(
                leases.test_an_opening_that_comes_late_to_a_queue_takes_nothing_from_a_later_one,
                False,
            )
        ],
    ),
    "an opening whose clock is behind waits for ever": (
        waits_for_its_predecessor_for_ever,
        [seen_by(leases.test_an_earlier_opening_takes_over_what_a_later_one_has_left)],
    ),
    "what is prepared is overtaken": (
        takes_its_past_for_itself,
        [seen_by(ordered.test_what_an_earlier_process_prepared_is_not_overtaken_by_its_successor)],
    ),
    "all transactions of a consumer are one": (
        takes_its_other_transactions_for_one,
        [seen_by(ordered.test_a_lane_is_that_of_one_transaction_of_a_consumer)],
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_wrong_opening_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    caught(*VARIANTS[name], monkeypatch)
