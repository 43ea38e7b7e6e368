"""Arithmetic on ranges of send offsets: sorted, disjoint, both ends included."""

from __future__ import annotations

from bisect import bisect_left
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


def added(known: Sequence[Range], more: Iterable[Range]) -> tuple[Range, ...]:
    """Add ranges to normalised ones; of these only those near the new ones are looked at."""
    new = normalised(more)
    if not known or not new:
        return tuple(known) or new
    low = _reaching(known, new[0][0] - 1)
    high = _after(known, new[-1][1] + 1, low)
    return (*known[:low], *normalised((*known[low:high], *new)), *known[high:])


def intersection(left: Sequence[Range], right: Sequence[Range]) -> tuple[Range, ...]:
    """Find what two normalised lists of ranges have in common.

    The longer one is searched by bisection, because often one of them has very many ranges and the
    other few.
    """
    few, many = (left, right) if len(left) <= len(right) else (right, left)
    common: list[Range] = []
    at = 0
    for first, last in few:
        at = _reaching(many, first, at)
        while at < len(many) and many[at][0] <= last:
            common.append((max(first, many[at][0]), min(last, many[at][1])))
            if many[at][1] > last:
                break
            at += 1
    return tuple(common)


def within(ranges: Sequence[Range], first: int, last: int) -> Iterator[Range]:
    """Pass on what of some normalised ranges lies between two offsets; it begins by bisection."""
    at = _reaching(ranges, first)
    while at < len(ranges) and ranges[at][0] <= last:
        yield max(first, ranges[at][0]), min(last, ranges[at][1])
        at += 1


def difference(left: Sequence[Range], right: Sequence[Range]) -> tuple[Range, ...]:
    """Find what of ``left`` is not in ``right``; both normalised.

    Only what of one of them lies near the other is looked at.
    """
    if not left or not right:
        return tuple(left)
    low = _reaching(left, right[0][0])
    high = len(left) if left[-1][0] <= right[-1][1] else _after(left, right[-1][1], low)
    rest = list(left[:low])
    at = 0
    for first, last in left[low:high]:
        at = _reaching(right, first, at)
        while at < len(right) and right[at][0] <= last:
            if right[at][0] > first:
                rest.append((first, right[at][0] - 1))
            first = right[at][1] + 1
            if first > last:
                break
            at += 1
        if first <= last:
            rest.append((first, last))
    rest += left[high:]
    return tuple(rest)


def _reaching(ranges: Sequence[Range], offset: int, low: int = 0) -> int:
    """Find the first of some normalised ranges, from a place on, that reaches an offset."""
    if low < len(ranges) and ranges[low][1] >= offset:  # mostly it is the next one
        return low
    at = _after(ranges, offset, low)
    return at - 1 if at > low and ranges[at - 1][1] >= offset else at


def _after(ranges: Sequence[Range], offset: int, low: int = 0) -> int:
    """Find the first of some normalised ranges, from a place on, that begins after an offset."""
    return bisect_left(ranges, (offset + 1,), low)


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
