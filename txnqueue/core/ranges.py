"""Arithmetic on ranges of send offsets: sorted, disjoint, both ends included."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from txnqueue.core.model import Range


def count(ranges: Iterable[Range]) -> int:
    """Count the messages in some ranges."""
    return sum(last - first + 1 for first, last in ranges)


def normalised(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Sort ranges and join those that touch or overlap."""
    joined: list[Range] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def of_offsets(offsets: Iterable[int]) -> tuple[Range, ...]:
    """Write single offsets as ranges."""
    return normalised((offset, offset) for offset in offsets)


def intersection(left: Sequence[Range], right: Sequence[Range]) -> tuple[Range, ...]:
    """Find what two normalised lists of ranges have in common."""
    common: list[Range] = []
    i = j = 0
    while i < len(left) and j < len(right):
        first, last = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if first <= last:
            common.append((first, last))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


def within(ranges: Sequence[Range], first: int, last: int) -> Iterator[Range]:
    """Pass on what of some normalised ranges lies between two offsets; it begins by bisection."""
    at = bisect_right(ranges, first, key=lambda one: one[0])
    if at and ranges[at - 1][1] >= first:
        at -= 1
    while at < len(ranges) and ranges[at][0] <= last:
        yield max(first, ranges[at][0]), min(last, ranges[at][1])
        at += 1


def difference(left: Sequence[Range], right: Sequence[Range]) -> tuple[Range, ...]:
    """Find what of ``left`` is not in ``right``; both normalised."""
    rest: list[Range] = []
    j = 0
    for first, last in left:
        at = first
        while j < len(right) and right[j][1] < at:
            j += 1
        k = j
        while k < len(right) and right[k][0] <= last:
            if right[k][0] > at:
                rest.append((at, right[k][0] - 1))
            at = right[k][1] + 1
            k += 1
        if at <= last:
            rest.append((at, last))
    return tuple(rest)


def take(ranges: Sequence[Range], limit: int) -> tuple[Range, ...]:
    """Take the first ``limit`` messages of some ranges, in their order."""
    taken: list[Range] = []
    for first, last in ranges:
        if limit <= 0:
            break
        last = min(last, first + limit - 1)
        taken.append((first, last))
        limit -= last - first + 1
    return tuple(taken)


def cut(ranges: Iterable[Range], bits: int) -> Iterator[tuple[int, int, int]]:
    """Cut ranges where their offsets differ in more than the lowest bits.

    Returns:
        The offsets' higher bits, the first and the last offset of each piece.
    """
    for first, last in ranges:
        while first <= last:
            piece = first >> bits
            end = min(last, ((piece + 1) << bits) - 1)
            yield piece, first, end
            first = end + 1


def bin_bits(parts: Sequence[Sequence[Range]]) -> int:
    """Return how many of an offset's lowest bits vary in a bin, to ``cut`` some ranges by.

    Bins are about as long as ranges are, so that there are not many more pieces than ranges.
    """
    average = sum(map(count, parts)) // max(1, sum(map(len, parts)))
    return average.bit_length()
