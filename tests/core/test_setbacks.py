"""Which commits of a journal are missing, by the table's own history."""

from __future__ import annotations

from typing import Any

import pytest

from txnqueue.storage.setbacks import LoggedCommit, found, looked_up, met


def history(*operations: str | int, first: int = 0) -> list[LoggedCommit]:
    """Name commits: an operation, or the version that a RESTORE went back to."""
    return [
        LoggedCommit(version, one)
        if isinstance(one, str)
        else LoggedCommit(version, "RESTORE", one)
        for version, one in enumerate(operations, first)
    ]


START = ("CREATE TABLE", "MERGE", "MERGE", "MERGE")


@pytest.mark.parametrize(
    "operations",
    [
        START,
        (*START, "OPTIMIZE", "SET TBLPROPERTIES", "VACUUM START", "VACUUM END", "MERGE"),
        (*START, "OPTIMIZE", 3),
        (*START, 1, 3),
        (*START, 1, "OPTIMIZE", 3, "MERGE"),
        (*START, "DELETE", 3),
        (*START, "DELETE", 1, 3),
        (*START, 2, 1, 3, "MERGE"),
    ],
)
def test_nothing_is_missing_or_a_restore_brought_it_back(operations: tuple[Any, ...]) -> None:
    assert found(history(*operations)) is None


@pytest.mark.parametrize(
    ("operations", "missing", "whole"),
    [
        ((*START, 1), (2, 3), 3),
        ((*START, "OPTIMIZE", 2), (3,), 4),
        ((*START, 1, 2), (3,), 3),
        ((*START, 1, "MERGE"), (2, 3), None),
        ((*START, 1, "MERGE", 3), (5,), None),
        ((*START, 1, "OPTIMIZE"), (2, 3), 3),
        ((*START, "DELETE"), (), 3),
        ((*START, "UPDATE", "MERGE"), (), None),
        ((*START, "OVERWRITE"), (), 3),
        ((*START, "TRUNCATE", 4), (), 3),
        ((*START, "CREATE OR REPLACE TABLE AS SELECT"), (), 3),
        ((*START, "RESTORE"), (), 3),
        (("CLONE",), (), -1),
    ],
)
def test_what_is_missing_is_named_with_the_version_that_has_it(
    operations: tuple[Any, ...], missing: tuple[int, ...], whole: int | None
) -> None:
    back = found(history(*operations))
    assert back is not None
    assert (back.missing, back.whole) == (missing, whole)


def test_what_came_before_the_commits_that_were_looked_at_is_looked_up() -> None:
    every = history(*START, 1, 3, "MERGE")
    for first in range(len(every)):
        newest = every[first:]
        assert looked_up(newest, lambda version: every[version:]) is None
        undone = looked_up([*every[first:4], *history(1, first=4)], lambda v: every[v:5])
        assert undone is not None and undone.missing == (2, 3)
    cleaned_up = looked_up(every[5:], lambda _: every[5:])
    assert cleaned_up is not None and cleaned_up.missing == (4,)


def test_who_knows_what_was_before_is_told_of_an_undone_restore_as_well() -> None:
    assert met(history("MERGE", "OPTIMIZE", first=4)) is None
    undone = met(history(1, 3, first=4))
    assert undone is not None and "does not fit" in str(undone)
    back = met(history("MERGE", 3, first=4))
    assert back is not None and "committed since: version 4;" in str(back)


def test_operations_are_read_as_delta_says_them() -> None:
    said: dict[str, Any] | None
    for said in ({"version": 7, "timestamp": None}, {"version": "7"}):
        assert LoggedCommit.of(9, "RESTORE", said) == LoggedCommit(9, "RESTORE", 7)
    for said in ({"version": None, "timestamp": "2026-11-23"}, {"version": "null"}, None):
        assert LoggedCommit.of(9, "RESTORE", said) == LoggedCommit(9, "RESTORE")
    assert LoggedCommit.of(9, "WRITE", {"mode": "Overwrite"}).sets_back
    assert not LoggedCommit.of(9, "WRITE", {"mode": "Append"}).sets_back
    assert LoggedCommit.of(9, "CREATE OR REPLACE TABLE", None).sets_back
