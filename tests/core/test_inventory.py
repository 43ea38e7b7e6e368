"""What an inventory of payload says, and what is made of two."""

from __future__ import annotations

import pytest

from txnqueue.admin import inventory
from txnqueue.admin.inventory import Inventory
from txnqueue.core import model
from txnqueue.core.model import Entry

TAKEN = Inventory(7, "2026-01-02", "2026-01-01", {"a": {2, 1}}, {"a": (5, 9)}, frozenset({"b"}))


def entry(taken: Inventory, sequence: int) -> Entry:
    return Entry(
        model.CATALOG, inventory.STREAM, model.PAYLOAD_LISTED, sequence=sequence,
        begun=taken.version, body=taken.body(),
    )  # fmt: skip


def test_it_is_read_back_as_it_was_written_and_the_newest_counts() -> None:
    found = inventory.read(inventory.newest([entry(TAKEN, 2), entry(Inventory(), 1)]))
    assert found is not None and found.says(TAKEN)
    assert (found.version, found.day, found.missed) == (7, "2026-01-02", frozenset("b"))
    assert inventory.read(inventory.newest([])) is None
    assert not found.says(Inventory())


@pytest.mark.parametrize(
    ("today", "complete"),
    [("2026-01-01", True), ("2026-01-07", True), ("2026-01-08", False), ("2025-12-31", False)],
)
def test_all_tables_were_looked_at_within_seven_days_and_never_tomorrow(
    today: str, complete: bool
) -> None:
    assert TAKEN.is_complete(today) == complete
    assert not Inventory().is_complete(today)


def test_what_two_have_deleted_is_pending_from_the_first_to_the_last() -> None:
    both = TAKEN.with_deleted({"a": (3, 8), "c": (1, 1)})
    assert both.deleted == {"a": (3, 9), "c": (1, 1)}
    assert TAKEN.with_deleted({}).says(TAKEN)
