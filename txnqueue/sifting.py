"""Sift duplicates out of what a claim or a move is about to take (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from txnqueue import ranges
from txnqueue.ledger import Segment
from txnqueue.model import Range

DUPLICATES_MAX = 10_000
"""So many pieces of positions leave a lane as duplicates in one append."""
LeftOut = Callable[[Segment], tuple[Range, ...]]
"""Says which of some messages are duplicates."""


def firsts(
    candidates: Iterable[Segment],
    left_out: LeftOut | None,
    twice: list[Segment],
    full: Callable[[], bool],
) -> Iterator[Segment]:
    """Pass on what is no duplicate.

    Args:
        candidates: Messages in the order in which they are taken.
        left_out: Says which are duplicates; None: none is.
        twice: Gets the duplicates.
        full: Says that no more is wanted: then nothing more is looked at.
    """
    for segment in candidates:
        if left_out is None:
            yield segment
            continue
        if full() or len(twice) >= DUPLICATES_MAX:
            return
        whole, found = ((segment.first, segment.last),), left_out(segment)
        twice += _pieces(segment, ranges.intersection(whole, found))
        yield from _pieces(segment, ranges.difference(whole, found))


def _pieces(segment: Segment, parts: Iterable[Range]) -> list[Segment]:
    return [segment.cut(first, last) for first, last in parts]
