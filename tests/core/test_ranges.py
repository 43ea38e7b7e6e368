"""Range arithmetic, compared with sets of single offsets."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from txnqueue.core import ranges
from txnqueue.storage.payload.queries import piece_bits

OFFSETS = st.sets(st.integers(0, 40))


def offsets(found: Any) -> list[Any]:
    return [offset for first, last in found for offset in range(first, last + 1)]


@given(OFFSETS)
def test_offsets_written_as_ranges_are_the_same_offsets(wanted: Any) -> None:
    assert offsets(ranges.of_offsets(wanted)) == sorted(wanted)


@given(OFFSETS)
def test_ranges_of_offsets_neither_touch_nor_overlap(wanted: Any) -> None:
    found = ranges.of_offsets(wanted)
    assert all(left[1] + 1 < right[0] for left, right in pairwise(found))


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5))))
def test_normalising_keeps_every_offset_once(parts: Any) -> None:
    given_ranges = [(first, first + more) for first, more in parts]
    assert offsets(ranges.normalised(given_ranges)) == sorted(set(offsets(given_ranges)))


@given(OFFSETS)
def test_normalising_twice_changes_nothing(wanted: Any) -> None:
    once = ranges.of_offsets(wanted)
    assert ranges.normalised(once) == once


@given(OFFSETS)
def test_count_is_the_number_of_offsets(wanted: Any) -> None:
    assert ranges.count(ranges.of_offsets(wanted)) == len(wanted)


@given(OFFSETS, OFFSETS)
def test_intersection_is_that_of_sets(left: Any, right: Any) -> None:
    common = ranges.intersection(ranges.of_offsets(left), ranges.of_offsets(right))
    assert offsets(common) == sorted(left & right)


@given(OFFSETS, OFFSETS)
def test_difference_is_that_of_sets(left: Any, right: Any) -> None:
    rest = ranges.difference(ranges.of_offsets(left), ranges.of_offsets(right))
    assert offsets(rest) == sorted(left - right)


@given(OFFSETS, OFFSETS)
def test_difference_and_intersection_make_up_the_whole(left: Any, right: Any) -> None:
    have, other = ranges.of_offsets(left), ranges.of_offsets(right)
    parts = [*ranges.difference(have, other), *ranges.intersection(have, other)]
    assert ranges.normalised(parts) == have


@given(OFFSETS, st.integers(0, 50))
def test_take_gives_the_first_messages(wanted: Any, limit: int) -> None:
    taken = ranges.take(ranges.of_offsets(wanted), limit)
    assert offsets(taken) == sorted(wanted)[:limit]


def test_take_keeps_the_order_in_which_ranges_come() -> None:
    """Delivery order need not be offset order: a lane may hold a later send first."""
    assert ranges.take([(10, 12), (0, 5)], 5) == ((10, 12), (0, 1))


def test_take_of_nothing_is_nothing() -> None:
    assert ranges.take([(0, 5)], 0) == ()


def test_ranges_that_touch_are_joined() -> None:
    assert ranges.normalised([(3, 4), (0, 2)]) == ((0, 4),)


def test_a_million_messages_are_one_range() -> None:
    whole = ((0, 999_999),)
    assert ranges.difference(whole, ((500_000, 500_000),)) == ((0, 499_999), (500_001, 999_999))


@given(OFFSETS, st.integers(0, 40), st.integers(0, 40))
def test_what_lies_between_two_offsets_is_found(wanted: Any, first: Any, last: Any) -> None:
    found = ranges.within(ranges.of_offsets(wanted), first, last)
    assert offsets(found) == sorted(one for one in wanted if first <= one <= last)


@given(OFFSETS, st.integers(0, 6))
def test_pieces_are_the_same_offsets_and_differ_in_their_lowest_bits_only(
    wanted: Any, bits: Any
) -> None:
    found = list(ranges.cut(ranges.of_offsets(wanted), bits))
    assert offsets((first, last) for _, first, last in found) == sorted(wanted)
    assert all(first >> bits == piece == last >> bits for piece, first, last in found)


@given(st.lists(OFFSETS.filter(bool), min_size=1))
def test_there_are_at_most_three_times_as_many_pieces_as_ranges(wanted: Any) -> None:
    parts: list[Any] = [SimpleNamespace(ranges=ranges.of_offsets(one)) for one in wanted]
    bits = piece_bits(parts)
    pieces = sum(len(list(ranges.cut(part.ranges, bits))) for part in parts)
    assert pieces <= 3 * sum(len(part.ranges) for part in parts)


def test_what_is_added_joins_what_lies_directly_after_it_and_before_it() -> None:
    assert ranges.added(((5, 9),), ((3, 4),)) == ((3, 9),)
    assert ranges.added(((5, 9),), ((10, 12),)) == ((5, 12),)
    assert ranges.added(((0, 3), (20, 21)), ((2, 9), (22, 30))) == ((0, 9), (20, 30))
