"""Long runs about versions and copies of stores."""

from __future__ import annotations

from collections import Counter
from functools import cache

from tests.reliability.session import Session
from tests.stores import copying, upgrading, versions
from tests.stores.older_code import HistoryMissing


@cache
def spoiled_upgrades() -> list[upgrading.Spoiled]:
    """List each store call of an upgrade with each fault."""
    return list(upgrading.cases())


def upgrade(_: Session, number: int) -> tuple[int, Counter[str]]:
    """Spoil one store call of an upgrade."""
    case = spoiled_upgrades()[number % len(spoiled_upgrades())]
    try:
        upgrading.run(case)
    except Exception as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    return 1, Counter({case.fault.value: 1})


def two_versions(session: Session, number: int) -> tuple[int, Counter[str]]:
    """Let 0.1.0 and this version work on one store; nothing is counted without its code."""
    try:
        counts = versions.beside(session.spark, session.folder(), number)
    except HistoryMissing as error:
        print(f"skipped: {error}")
        return 0, Counter({"skipped, because git has no history here": 1})
    return counts["kills"], counts


def copies(session: Session, number: int) -> tuple[int, Counter[str]]:
    """Copy a store while two drivers work on it."""
    counts = copying.beside_drivers(session.spark, session.folder(), number)
    return counts["copies"], counts
