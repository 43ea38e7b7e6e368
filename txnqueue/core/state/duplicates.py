"""Which messages of a queue are duplicates: a rule over what was posted (pure).

A message is a duplicate if an earlier one in commit order had the same id, was none itself,
and was posted less than the queue's window before. What became of the earlier one does not
matter, nor in which lane either is: so every client gets the same answer at any time.

What has left a lane is known from the lane's log: everything that leaves it is looked at
before, and leaves as a duplicate or as something else. So no more is read than what waits,
and what was posted less than a window before it.
"""

from __future__ import annotations

import base64
import hashlib
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
"""The value for a message without an id; only what was moved here can be one."""
IDS_IN_ENTRY_MAX = 500
"""The ids of one send that are written beside its positions; more are read from the payload."""
LOOK_AHEAD = 100_000
"""About how many messages are read from the payload at once."""
ARRIVALS_MIN = 1_000
"""The positions kept at least before old ones are looked for."""


def digest(text: str | None) -> bytes:
    """Shorten an id, so that millions fit into memory and no two are likely ever to meet."""
    if text is None:
        return NO_ID
    return hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def write_ids(digests: Iterable[bytes]) -> str:
    """Write ids for the body of an entry."""
    return base64.b64encode(b"".join(digests)).decode()


def read_ids(said: str | None) -> bytes | None:
    """Read ids from the body of an entry; None if it has none."""
    return None if said is None else base64.b64decode(said)


@dataclass(slots=True)
class Arrival:
    """A position that was posted, and not looked at yet.

    Attributes:
        position: The position.
        ids: The digests of its messages' ids behind each other, in the order of their
            offsets, if they are known.
        left_out: What the lane's log calls duplicates already.
        stands: Whether some of it waits or is in flight.
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
    """What is known of the ids of one queue; fed by the fold, in commit order."""

    def __init__(self, window_ms: int) -> None:
        """Start from nothing.

        Args:
            window_ms: So long after the first message of an id the others are duplicates.
        """
        self._window_ms = window_ms
        self._arrivals: dict[PositionId, Arrival] = {}
        self._known: dict[bytes, int] = {}
        self._tidied = self._left = 0
        self._found: dict[PositionId, tuple[Range, ...]] = {}
        self._sorted: tuple[Arrival, dict[bytes, int], tuple[Range, ...]] | None = None

    # --------------------------------------------------------------------- from the fold

    def posted(self, position: Position, ids: str | None) -> None:
        """Record a position, with the ids that its entry carries, if it does."""
        self._arrivals[position.position_id] = Arrival(position, read_ids(ids))
        if len(self._arrivals) > 2 * self._left + ARRIVALS_MIN:
            self._forget(position.posted_at_ms)
            self._left = len(self._arrivals)

    def restore(self, arrivals: Iterable[Arrival]) -> None:
        """Begin with positions of former times, in commit order; what comes may repeat them."""
        self._arrivals = {one.position.position_id: one for one in arrivals}

    def forget(self, lane: int, upto_ms: int) -> None:
        """Drop what has left a lane and was posted by an instant: no window asks for it."""
        for position_id, arrival in list(self._arrivals.items()):
            position = arrival.position
            if not arrival.stands and position.lane == lane and position.posted_at_ms <= upto_ms:
                del self._arrivals[position_id]

    def left_out(self, position_id: PositionId, part: tuple[Range, ...]) -> None:
        """Record what an entry of a lane's log calls duplicates."""
        arrival = self._arrivals.get(position_id)
        if arrival is not None:
            arrival.left_out = ranges.normalised((*arrival.left_out, *part))

    def retired(self, position_id: PositionId) -> None:
        """Record that nothing of a position is left."""
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
        """Name the duplicates of a position that has messages left and was looked at."""
        return self._found.get(position_id, ())

    def to_look_at(self, position: Position, now_ms: int) -> list[Arrival]:
        """List what has to be looked at to know the duplicates of a position, in commit order.

        Args:
            position: The position.
            now_ms: The instant; what is too old to matter to anything is forgotten.
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
            arrivals: What ``to_look_at`` listed, in that order, now with all ids.
        """
        for arrival in arrivals:
            first, twice = self._sort(arrival)
            self._sorted = arrival, first, ranges.of_offsets(twice)
            self._record()

    # -------------------------------------------------------------------------- helpers

    def _record(self) -> None:
        """Record what was found of the arrival that was sorted last.

        Each step may be done twice: who is interrupted in it does it again, whatever comes next.
        To sort it again, with some of its ids known, would make duplicates of its own messages.
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
        """Tell the first messages of their ids, and when they came, from the others."""
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
            if first_at_ms is None:
                first_at_ms = posted_at_ms - window_ms
            # What was moved here is here on purpose: it stays, and later sends know of it.
            if offset in gone or (not moved and posted_at_ms < first_at_ms + window_ms):
                twice.append(offset)
            else:
                first[one] = max(first_at_ms, posted_at_ms)
        return first, twice

    def _forget(self, now_ms: int) -> None:
        """Drop what no message can be a duplicate of any more, whatever is still looked at."""
        standing = (a.position.posted_at_ms for a in self._arrivals.values() if a.stands)
        oldest_ms = min(standing, default=now_ms)
        over_ms = min(oldest_ms, now_ms - CLOCKS_APART_MS) - self._window_ms
        for position_id, arrival in list(self._arrivals.items()):
            if not arrival.stands and arrival.position.posted_at_ms <= over_ms:
                del self._arrivals[position_id]
        if len(self._known) > 2 * self._tidied + LOOK_AHEAD:
            self._known = {one: at for one, at in self._known.items() if at > over_ms}
            self._tidied = len(self._known)
