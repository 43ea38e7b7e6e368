"""Whose branch a database tells of, and who has not confirmed what."""

from __future__ import annotations

from typing import Any

import pytest

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.state import AttemptOwner, confirmations

STORE, OTHER = "0123456789abcdef", "0123456789ab" + "0000"
OWNER = AttemptOwner("k", "a" * 32, 7)
BRANCH = confirmations.branch_of(OWNER, STORE, 2)
FORMAT = confirmations.FORMAT_ID


def test_a_branch_is_known_by_its_name() -> None:
    assert confirmations.owner_of((FORMAT, "k", BRANCH), STORE) == OWNER


@pytest.mark.parametrize(
    ("xid", "store"),
    [
        ((FORMAT + 1, "k", BRANCH), STORE),
        ((FORMAT, "k", BRANCH), "fedcba9876543210"),
        ((FORMAT, "k", BRANCH + "x"), STORE),
        ((FORMAT, "k", None), STORE),
        ((FORMAT, "k", ""), STORE),
    ],
)
def test_a_branch_of_others_is_left_alone(xid: Any, store: str) -> None:
    """Another manager decides it, or another store."""
    assert confirmations.owner_of(xid, store) is None


def test_what_is_not_confirmed_is_told_by_database_and_commit() -> None:
    first, second, back = (
        Entry("transaction/0", "k", kind, attempt=attempt, body={"participants": names})
        for kind, attempt, names in (
            (model.COMMITTED, "1", ["a", "b"]),
            (model.COMMITTED, "2", ["a"]),
            (model.ROLLED_BACK, "3", ["a"]),
        )
    )
    bare = Entry("transaction/0", "k", model.COMMITTED, attempt="4")
    said = Entry("table/0", "p", model.BRANCH_CONFIRMED, attempt="1", body={"participant": "a"})
    other = Entry("table/0", "p", model.CHANGE_APPLIED, attempt="2", body={"participant": "a"})
    found = confirmations.unconfirmed([first, second, back, bare], [said, other])
    assert found == [("b", first), ("a", second)]
