"""The messages that each commit posted to a queue, and their places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from txnqueue.client import archive
from txnqueue.client.archive import Past
from txnqueue.core import model, ranges
from txnqueue.core.model import Range
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state.positions import Position
from txnqueue.messages.parts import part_of
from txnqueue.storage.journal import EntryFilter
from txnqueue.storage.payload import Part


@dataclass(frozen=True, slots=True)
class Posting:
    """Some messages that one commit posted to a queue.

    Attributes:
        commit_seq: The commit.
        part: Where their payload lies.
    """

    commit_seq: int
    part: Part

    @classmethod
    def of(cls, position: Position, part: Part) -> Posting:
        """Make one of a part of a position."""
        version, ordinal, _ = position.place
        return cls(model.commit_seq(version, ordinal), part)

    def __len__(self) -> int:
        """Count the messages."""
        return ranges.count(self.part.ranges)


def postings(past: Past, info: QueueInfo, after: int) -> list[Posting]:
    """Find what was posted to a queue after a commit, in commit order, wherever it is by now.

    Raises:
        HistoryRemoved: Some of it may have been removed from the history.
    """
    past.check_known(after + 1)
    found = past.find(replace(_posted(info), after=after))
    positions = (Position.of(entry) for entry in found)
    return [Posting.of(one, part_of(one, one.ranges, info.name, one.lane, 0)) for one in positions]


def last_posting(past: Past, info: QueueInfo) -> int:
    """Find up to which commit it is known what came into a queue; it never goes back.

    It moves on with what is posted, and with maintenance: so who asks now and then is never
    behind what maintenance removes, though nothing may have come for long.
    """
    fence = EntryFilter(shards=[model.FENCE])
    return max(past.newest(_posted(info)).commit_seq, past.newest(fence).commit_seq)


def append_at(past: Past, info: QueueInfo, commit_seq: int) -> str | None:
    """Find the append of a commit that ``last_posting`` or ``postings`` told; None: there is none.

    A commit's number says nothing about which of two copies of a store it belongs to.
    """
    if commit_seq < 0:
        return None
    both = (_posted(info), EntryFilter(shards=[model.FENCE]))
    found = past.find(*(replace(one, after=commit_seq - 1, upto=commit_seq) for one in both))
    return found[0].append_id if found else None


def portions(found: Iterable[Posting], messages_max: int) -> Iterator[list[Posting]]:
    """Cut postings into portions with a maximum number of messages, in their order (pure)."""
    portion: list[Posting] = []
    room = messages_max
    for posting in found:
        for piece in _pieces(posting.part.ranges, room, messages_max):
            portion.append(replace(posting, part=replace(posting.part, ranges=piece)))
            room -= ranges.count(piece)
            if room == 0:
                yield portion
                portion, room = [], messages_max
    if portion:
        yield portion


def _pieces(whole: tuple[Range, ...], first_size: int, size: int) -> Iterator[tuple[Range, ...]]:
    """Cut ranges into pieces: one of the first size, and more of the other."""
    piece: list[Range] = []
    room = first_size
    for first, last in whole:
        at = first
        while at <= last:
            end = min(last, at + room - 1)
            piece.append((at, end))
            room -= end - at + 1
            at = end + 1
            if room == 0:
                yield tuple(piece)
                piece, room = [], size
    if piece:
        yield tuple(piece)


def _posted(info: QueueInfo) -> EntryFilter:
    lanes = archive.of_lanes(info.queue_id, info.settings.lanes)
    return replace(lanes, kinds=[model.POSTED])
