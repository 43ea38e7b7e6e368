"""A set of delivery ids that stays small, because ids mostly follow each other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from txnqueue.protocols.amqp.frames import NUMBERS


class DeliveryIds:
    """Delivery ids, kept as ranges."""

    def __init__(self, ranges_max: int | None = None) -> None:
        """Begin with no ids.

        Args:
            ranges_max: The number of ranges beyond which the lowest one is forgotten; None: any.
        """
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._ranges_max = ranges_max

    def add(self, number: int) -> None:
        """Add an id."""
        at = bisect_right(self._firsts, number)
        if at and number <= self._lasts[at - 1]:
            return
        follows = at > 0 and self._lasts[at - 1] + 1 == number
        precedes = at < len(self._firsts) and self._firsts[at] == number + 1
        if follows and precedes:
            self._lasts[at - 1] = self._lasts.pop(at)
            del self._firsts[at]
        elif follows:
            self._lasts[at - 1] = number
        elif precedes:
            self._firsts[at] = number
        else:
            self._firsts.insert(at, number)
            self._lasts.insert(at, number)
            self._forget_lowest()

    def __contains__(self, number: int) -> bool:
        """Return whether an id was added, and is not forgotten."""
        at = bisect_right(self._firsts, number)
        return at > 0 and number <= self._lasts[at - 1]

    def count(self, named: range) -> int:
        """Count the ids in a range of numbers; after the last id, 0 is ``NUMBERS``."""
        if named.stop <= NUMBERS:
            return self._count(named.start, named.stop - 1)
        return self._count(named.start, NUMBERS - 1) + self._count(0, named.stop - 1 - NUMBERS)

    def clear(self) -> None:
        """Forget all ids."""
        self._firsts.clear()
        self._lasts.clear()

    def _count(self, first: int, last: int) -> int:
        found, at = 0, bisect_left(self._lasts, first)
        while at < len(self._firsts) and self._firsts[at] <= last:
            found += min(last, self._lasts[at]) - max(first, self._firsts[at]) + 1
            at += 1
        return found

    def _forget_lowest(self) -> None:
        if self._ranges_max is not None and len(self._firsts) > self._ranges_max:
            del self._firsts[0], self._lasts[0]
