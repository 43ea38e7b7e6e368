"""The statement that appends decides on Delta as the conditions of its units say."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.core.model import Condition, Entry, Unit
from txnqueue.storage.journal.insertion import inserted

pytestmark = pytest.mark.spark
ROUNDS = 16
NUMBERS = (None, 1, 2, 3)
NAMES = ("x", "it's", "y%_\\")


def journal_of(spark: Any, folder: Path) -> Any:
    """Make a store, and give its journal."""
    manager = QueueManager(spark, str(folder / "store"))
    manager.create_queue("orders", "n long", dead_letter=False)
    return client_of(manager).store.journal


def _entry(drawn: random.Random) -> Entry:
    return Entry(
        f"shard/{drawn.choice(NAMES)}",
        drawn.choice(NAMES),
        drawn.choice(NAMES),
        sequence=drawn.choice(NUMBERS),
        attempt=drawn.choice((None, *NAMES)),
        begun=drawn.choice(NUMBERS),
        recorded_at_ms=1_000,
    )


def _condition(drawn: random.Random) -> Condition:
    return Condition(
        f"shard/{drawn.choice(NAMES)}",
        drawn.choice(NAMES),
        kinds=drawn.choice((None, NAMES[:1], NAMES[:2])),
        attempts=drawn.choice((None, None, NAMES[:1])),
        attempts_except=drawn.choice((None, None, NAMES[:1], NAMES[:2])),
        sequence_from=drawn.choice((None, 1, 2, 3, 4)),
        begun_above=drawn.choice((None, None, 0, 2)),
        present=drawn.random() < 0.3,
    )


def _units(drawn: random.Random, number: int) -> list[Unit]:
    return [
        Unit.of(
            f"append {number} {place}",
            [_entry(drawn) for _ in range(drawn.randint(1, 3))],
            [_condition(drawn) for _ in range(drawn.randint(1, 3))],
        )
        for place in range(drawn.randint(1, 4))
    ]


def _place(entry: Entry) -> tuple[int, int]:
    return entry.ordinal, entry.index


def test_a_unit_goes_in_wholly_if_its_conditions_hold_and_else_not_at_all(
    spark: Any, tmp_path: Path
) -> None:
    journal = journal_of(spark, tmp_path)
    drawn, torn, refused = random.Random(7), 0, 0
    for number in range(ROUNDS):
        units, known = _units(drawn, number), journal.read_all().entries
        wanted = [all(c.holds(known) for c in unit.conditions) for unit in units]
        assert list(journal.append(units, {}).won) == wanted, units
        newest = max(entry.version for entry in known)
        landed = [entry for entry in journal.read_all().entries if entry.version > newest]
        assert sorted((replace(entry, version=-1) for entry in landed), key=_place) == [
            replace(entry, ordinal=place)
            for place, (unit, won) in enumerate(zip(units, wanted, strict=True))
            for entry in unit.entries
            if won
        ]
        torn += len(set(wanted)) > 1
        refused += not any(wanted)
    assert torn > 2, "some units of a statement went in, and others did not"
    assert refused > 2, "statements that appended nothing"


def test_a_unit_that_is_there_does_not_go_in_again_whatever_it_expects(
    spark: Any, tmp_path: Path
) -> None:
    journal = journal_of(spark, tmp_path)
    entries = [Entry("s", "a", "k", recorded_at_ms=1), Entry("t", "b", "k", recorded_at_ms=1)]
    unit = Unit.of("twice", entries, [Condition("s", "none")])
    assert journal.append([unit], {}).won == (True,)
    assert journal._session.sql(inserted(journal._table, [unit])).collect() == []
    assert journal.append([unit], {}).won == (False,)
