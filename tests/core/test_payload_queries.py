"""The SQL that counts the messages of a frame: as it reads them, where that is exact."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from txnqueue.core.model import Range
from txnqueue.storage.payload import Part
from txnqueue.storage.payload.queries import (
    guarded_places,
    literal_places,
    piece_bits,
    places_to_join,
)


def part(send_id: str, *spans: Range) -> Part:
    return Part("q-1", 3, send_id, spans, "q", 0, 0, 0, None, None)


def guard(table: str, parts: list[Part]) -> str:
    return guarded_places(table, list(enumerate(parts)), piece_bits(parts))


def counted(sql: str) -> int:
    found = re.search(r" = (\d+), true, raise_error\(", sql)
    assert found is not None, sql
    return int(found.group(1))


def test_few_ranges_are_counted_by_the_predicates_that_read_them() -> None:
    parts = [part("a", (0, 4), (10, 14)), part("b", (7, 7))]
    where = literal_places(parts)
    for span in ("BETWEEN 0L AND 4L", "BETWEEN 10L AND 14L", "BETWEEN 7L AND 7L"):
        assert where.count(span) == 1
    said = guard("t", parts)
    assert f"FROM t p WHERE {where})" in said
    assert "JOIN" not in said
    assert counted(said) == 11


def test_a_message_of_two_parts_is_counted_once_as_a_predicate_finds_it_once() -> None:
    said = guard("t", [part("a", (0, 4)), part("a", (3, 9)), part("a", (10, 10))])
    assert said.count("BETWEEN 0L AND 10L") == 1
    assert counted(said) == 11


@pytest.mark.parametrize(("messages", "one_task"), [(100_000, True), (100_001, False)])
def test_only_what_one_task_counts_quickly_is_counted_in_one(messages: int, one_task: bool) -> None:
    assert ("COALESCE(1)" in guard("t", [part("a", (0, messages - 1))])) == one_task


@pytest.mark.parametrize(("ranges", "joined"), [(20, False), (21, True)])
def test_many_ranges_are_joined_and_not_named_one_by_one(ranges: int, joined: bool) -> None:
    parts = [part("a", *((10 * n, 10 * n) for n in range(ranges)))]
    said = guard("t", parts)
    assert ("JOIN" in said) == joined
    ends = f"BETWEEN 0L AND {10 * ranges - 10}L"
    assert (ends in literal_places(parts)) == joined
    assert counted(said) == ranges


@pytest.mark.parametrize(
    ("sends", "slices", "named"),
    [(200, 1, True), (201, 1, False), (201, 20, False), (201, 21, True)],
)
def test_many_sends_of_slices_that_hold_little_else_are_not_named(
    sends: int, slices: int, named: bool
) -> None:
    """Delta would compare each of them with the statistics of each file."""
    parts = [replace(part(f"s{n}", (0, 4)), slice=n % slices) for n in range(sends)]
    said = places_to_join(parts)
    assert ("'s7'" in said) == named
    assert said.startswith("p.slice IN (0") and ("send_id" in said) == named


def test_places_of_moved_and_of_sent_messages_have_the_same_types() -> None:
    origin = {"queue": "other", "reason": "moved", "delivery_count": 2, "error": None}
    moved = Part("q-1", 3, "a", ((0, 4),), "q", 0, 0, 0, "t1", origin)
    said = guard("t", [moved, part("b", (7, 7))])
    assert "'t1', 'other', 'moved', 2L, CAST(NULL AS string))" in said
    nothing = ["string", "string", "string", "bigint", "string"]
    assert f"{', '.join(f'CAST(NULL AS {kind})' for kind in nothing)})" in said
