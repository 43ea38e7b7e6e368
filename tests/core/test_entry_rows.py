"""Rows of the journal and the archive that the library would not write."""

from __future__ import annotations

from typing import Any

import pytest

from txnqueue.errors import StoreCorrupt
from txnqueue.storage.journal.filters import EntryFilter
from txnqueue.storage.journal.rows import entry_of

ROW: dict[str, Any] = {
    "shard": "s", "stream": "s", "kind": "k", "append_id": "a", "ordinal": 0, "index": 1,
    "version": 3, "ranges": [{"first": 0, "last": 2}], "body": '{"send":"mine"}',
}  # fmt: skip


def test_a_row_is_an_entry() -> None:
    entry = entry_of(ROW)
    assert (entry.place, entry.ranges, entry.body) == ((3, 0, 1), ((0, 2),), {"send": "mine"})
    assert entry_of({**ROW, "body": None}).body == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"body": '{"send":"other","send":"mine"}'},  # Python takes the last one, SQL the first
        {"body": '{"a":[{"send":"other","send":"mine"}]}'},
        {"body": '[["send","mine"]]'},  # the same pairs
        {"body": "null"},
        {"body": '{"send":'},
        {"version": None},
        {"ordinal": None},
        {"index": None},
    ],
)
def test_a_row_that_has_two_meanings_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(StoreCorrupt, match="'a'"):
        entry_of({**ROW, **wrong})


def test_a_row_without_a_number_is_left_out_by_no_bound() -> None:
    assert EntryFilter(after=4, upto=9).sql("n") == (
        "(n > 4L OR n IS NULL) AND (n <= 9L OR n IS NULL)"
    )
