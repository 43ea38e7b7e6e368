"""Which messages of a queue are duplicates: a rule over the posted messages (pure).

A message is a duplicate if an earlier one in commit order had the same id, was not a duplicate
itself, and was posted less than the queue's window before. The earlier message's fate does not
matter, nor do the lanes: so every client gets the same answer at any time.

If its commit has an earlier time than the first one's by more than clocks are believed to be apart,
one of the two is wrong. Then it is delivered, and later ones are compared with it: otherwise a
clock that was once years ahead would suppress an id for years.

The lane's log tells duplicates among the messages that have left a lane: each is examined before
it leaves, and leaves as a duplicate or otherwise. So only waiting messages are read, and those
posted less than a window before them.
"""

from __future__ import annotations

import base64
import hashlib
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txnqueue.core import ranges
from txnqueue.core.model import PositionId, Range
from txnqueue.core.redelivery import CLOCKS_APART_MS

if TYPE_CHECKING:
    from txnqueue.core.state import Position

DIGEST_BYTES = 16
NO_ID = bytes(DIGEST_BYTES)
"""The digest of a message without an id; only a moved message can have none."""
IDS_IN_ENTRY_MAX = 500
"""The most ids of one send written in its entries; the ids of larger sends are in the payload."""
LOOK_AHEAD = 100_000
"""The approximate number of messages read from the payload at once."""
ARRIVALS_MIN = 1_000
"""The least number of positions kept before old ones are forgotten."""


def digest(text: str | None) -> bytes:
    """Hash an id so that millions fit into memory, without a likely collision.

    Octets that are not UTF-8 are lone surrogates in it, as PEP 383 defines.
    """
    if text is None:
        return NO_ID
    octets = text.encode(errors="surrogateescape")
    return hashlib.blake2b(octets, digest_size=DIGEST_BYTES).digest()


def write_ids(digests: Iterable[bytes]) -> str:
    """Write ids for the body of an entry."""
    return base64.b64encode(b"".join(digests)).decode()


def read_ids(said: str | None) -> bytes | None:
    """Read ids from the body of an entry; None if it has none."""
    return None if said is None else base64.b64decode(said)


@dataclass(slots=True)
class Arrival:
    """A posted position that has not been searched for duplicates yet.

    Attributes:
        position: The position.
        ids: The concatenated digests of its messages' ids, in the order of their offsets; None
            if they are not known.
        left_out: The messages that the lane's log removed as duplicates.
        stands: Whether some of its messages wait or are in flight.
    """

    position: Position
    ids: bytes | None
    left_out: tuple[Range, ...] = ()
    stands: bool = True

    @property
    def size(self) -> int:
        """How many messages were posted."""
        return ranges.count(self.position.ranges)


class Duplicates:
    """The known ids and duplicates of one queue; the fold feeds it in commit order."""

    def __init__(self, window_ms: int) -> None:
        """Start from nothing.

        Args:
            window_ms: How long after the first message of an id others are duplicates.
        """
        self._window_ms = window_ms
        self._arrivals: dict[PositionId, Arrival] = {}
        self._known: dict[bytes, int] = {}
        self._tidied = self._left = 0
        self._found: dict[PositionId, tuple[Range, ...]] = {}
        self._sorted: tuple[Arrival, dict[bytes, int], tuple[Range, ...]] | None = None

    # --------------------------------------------------------------------- from the fold

    def posted(self, position: Position, ids: str | None) -> None:
        """Record a position, with the ids in its entry; None if the entry has none."""
        self._arrivals[position.position_id] = Arrival(position, read_ids(ids))
        if len(self._arrivals) > 2 * self._left + ARRIVALS_MIN:
            self._forget(position.posted_at_ms)
            self._left = len(self._arrivals)

    def restore(self, arrivals: Iterable[Arrival]) -> None:
        """Begin with earlier positions, in commit order; entries to come may repeat them."""
        self._arrivals = {one.position.position_id: one for one in arrivals}

    def forget(self, lane: int, upto_ms: int) -> None:
        """Forget a lane's positions that have left it and that the duplicate window has passed."""
        for position_id, arrival in list(self._arrivals.items()):
            position = arrival.position
            if not arrival.stands and position.lane == lane and position.posted_at_ms <= upto_ms:
                del self._arrivals[position_id]

    def left_out(self, position_id: PositionId, part: tuple[Range, ...]) -> None:
        """Record messages that an entry of a lane's log removed as duplicates."""
        arrival = self._arrivals.get(position_id)
        if arrival is not None:
            arrival.left_out = ranges.added(arrival.left_out, part)

    def retired(self, position_id: PositionId) -> None:
        """Record that no message of a position is left."""
        self._record()
        self._found.pop(position_id, None)
        arrival = self._arrivals.get(position_id)
        if arrival is not None:
            arrival.stands = False

    # ------------------------------------------------------------------------ for claims

    def looked_at(self, position_id: PositionId) -> bool:
        """Return whether the duplicates of a position in the queue are known."""
        self._record()
        return position_id not in self._arrivals

    def of(self, position_id: PositionId) -> tuple[Range, ...]:
        """Return the duplicates of a position that has messages left and was searched."""
        return self._found.get(position_id, ())

    def to_look_at(self, position: Position, now_ms: int) -> list[Arrival]:
        """List the positions to search for the duplicates of a position, in commit order.

        Args:
            position: The position.
            now_ms: The present instant; positions that the window has passed are forgotten.
        """
        self._record()
        self._forget(now_ms)
        found: list[Arrival] = []
        size, reading = 0, False
        for arrival in self._arrivals.values():
            ahead = arrival.position.place > position.place
            costs = arrival.ids is None and not reading
            if ahead and (size >= LOOK_AHEAD or costs):
                break
            found.append(arrival)
            size += arrival.size
            reading = reading or arrival.ids is None
        return found

    def learn(self, arrivals: Iterable[Arrival]) -> None:
        """Find the duplicates of positions.

        Args:
            arrivals: The result of ``to_look_at`` in its order, with all ids filled in.
        """
        for arrival in arrivals:
            first, twice = self._sort(arrival)
            self._sorted = arrival, first, ranges.of_offsets(twice)
            self._record()

    # -------------------------------------------------------------------------- helpers

    def _record(self) -> None:
        """Record the result of the arrival sorted last.

        Each step may be repeated: after an interrupt the next call records the result again. To
        sort the arrival again, with some of its ids known, would make duplicates of its messages.
        """
        if self._sorted is None:
            return
        arrival, first, twice = self._sorted
        self._known.update(first)
        if twice and arrival.stands:
            self._found[arrival.position.position_id] = twice
        self._arrivals.pop(arrival.position.position_id, None)
        self._sorted = None

    def _sort(self, arrival: Arrival) -> tuple[dict[bytes, int], list[int]]:
        """Separate the first messages of each id, with when they were posted, from duplicates."""
        position, window_ms = arrival.position, self._window_ms
        first: dict[bytes, int] = {}
        posted_at_ms = position.posted_at_ms
        moved = position.origin is not None
        offsets = (n for begin, last in position.ranges for n in range(begin, last + 1))
        ids = arrival.ids or b""
        gone = {n for begin, last in arrival.left_out for n in range(begin, last + 1)}
        twice: list[int] = []
        for nth, offset in enumerate(offsets):
            one = ids[nth * DIGEST_BYTES : (nth + 1) * DIGEST_BYTES]
            if one == NO_ID:
                continue
            first_at_ms = first.get(one, self._known.get(one))
            if first_at_ms is None or posted_at_ms < first_at_ms - CLOCKS_APART_MS:
                first_at_ms = posted_at_ms - window_ms
            # A moved message is here on purpose: it stays, and later sends are compared with it.
            if offset in gone or (not moved and posted_at_ms < first_at_ms + window_ms):
                twice.append(offset)
            else:
                first[one] = max(first_at_ms, posted_at_ms)
        return first, twice

    def _forget(self, now_ms: int) -> None:
        """Forget positions and ids that no message still to be searched can duplicate."""
        over_ms = now_ms - CLOCKS_APART_MS - self._window_ms
        old = [
            (position_id, one.position.posted_at_ms)
            for position_id, one in self._arrivals.items()
            if not one.stands and one.position.posted_at_ms <= over_ms
        ]
        many = len(self._known) > 2 * self._tidied + LOOK_AHEAD
        if not old and not many:
            return
        searched = sorted(a.position.posted_at_ms for a in self._arrivals.values() if a.stands)

        def matters(posted_at_ms: int) -> bool:
            """Return whether what is still to come, or to be searched, is within its window."""
            if posted_at_ms > over_ms:
                return True
            nth = bisect_left(searched, posted_at_ms - CLOCKS_APART_MS)
            return nth < len(searched) and searched[nth] < posted_at_ms + self._window_ms

        for position_id, posted_at_ms in old:
            if not matters(posted_at_ms):
                del self._arrivals[position_id]
        if many:
            self._known = {one: at for one, at in self._known.items() if matters(at)}
            self._tidied = len(self._known)
