"""Group commit that is wrong on purpose: the simulator must catch every variant."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any

import pytest

from tests.faults.simulation import simulate
from txnqueue.storage.journal import groups
from txnqueue.storage.journal.groups import Groups, numbered
from txnqueue.storage.journal.tail import Tail

SEEDS = range(1, 160, 2)
"""With odd seeds the clients share a process, and their appends a statement."""


def ignores_what_goes_in_before(patch: pytest.MonkeyPatch) -> None:
    """Let units share a statement though one breaks what the other expects."""
    patch.setattr(groups, "breaks", lambda earlier, later: False)


def forgets_the_place(patch: pytest.MonkeyPatch) -> None:
    """Tell each request that its units were the first ones of their version."""
    patch.setattr(groups, "accumulate", lambda *_, **__: repeat(0))


def tells_all_that_they_won(patch: pytest.MonkeyPatch) -> None:
    """Do not look which units of a group went in."""
    patch.setattr(Groups, "resolved", staticmethod(lambda answer, units, landed: answer.appended))


def knows_what_did_not_land(patch: pytest.MonkeyPatch) -> None:
    """Keep all entries of a statement of which only a part went in."""
    real: Any = Groups._answer

    def wrong(self: Any, group: Any, units: Any, inserted: Any, version: Any) -> None:
        if version is not None:
            self.tail.add(version, numbered(units))
        real(self, group, units, inserted, version)

    patch.setattr(Groups, "_answer", wrong)


def reads_over_gaps(patch: pytest.MonkeyPatch) -> None:
    """Take the versions that are known for all that there are."""

    def after(self: Any, version: int) -> Any:
        known = [v for v in sorted(self._versions) if v > version]
        found = [entry for v in known for entry in self._versions[v]]
        return found, max(known, default=version)

    patch.setattr(Tail, "after", after)


@pytest.mark.parametrize(
    "broken",
    [
        ignores_what_goes_in_before,
        forgets_the_place,
        tells_all_that_they_won,
        knows_what_did_not_land,
        reads_over_gaps,
    ],
)
def test_a_wrong_group_commit_is_caught(
    broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    for seed in SEEDS:
        try:
            simulate(seed)
        except Exception:
            return
    pytest.fail(f"{broken.__doc__} No seed noticed it.")
