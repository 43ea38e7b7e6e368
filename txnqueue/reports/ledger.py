"""The fate of every message that was ever in a queue, from the fold that shows its contents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from txnqueue.client import archive
from txnqueue.client.archive import Past
from txnqueue.core import model, ranges
from txnqueue.core.model import Entry, PositionId, Range
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import QueueState
from txnqueue.core.state.positions import Claim, Segment
from txnqueue.core.state.queue import LaneState
from txnqueue.storage.journal import EntryFilter

DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages of one position that the same became of.

    Attributes:
        posted: The entry that posted them.
        ranges: Their offsets.
        state: What they are in: a state of the views.
        delivery_count: How often they were delivered in vain before.
        claimed: The entry of the claim that holds them, or that their settlement ended.
        settled: The entry that they went by; its reason is why.
    """

    posted: Entry
    ranges: tuple[Range, ...]
    state: str
    delivery_count: int
    claimed: Entry | None = None
    settled: Entry | None = None

    @property
    def reason(self) -> str | None:
        """Why the messages went, else why they came."""
        said = self.settled.reason if self.settled else None
        return self.posted.reason if said is None else said


class Ledger(QueueState):
    """The state of one queue, which also remembers what has left it."""

    def __init__(self, info: QueueInfo) -> None:
        """Begin before the first entry.

        Args:
            info: The queue, with the rules of redelivery that it has in the end.
        """
        super().__init__(info.queue_id, info.settings.lanes)
        self._rules = info.redelivery
        self._entry = Entry("", "", "")
        self._postings: dict[PositionId, Entry] = {}
        self._claims: dict[tuple[int, int], Entry] = {}
        self._purges: dict[PositionId, list[tuple[tuple[Range, ...], Entry]]] = {}
        self._gone: list[Piece] = []

    def apply(self, entry: Entry) -> None:
        """Apply one entry, and note what leaves the queue by it."""
        self._entry = entry
        if entry.kind == model.POSTED:
            self._postings[entry.entry_id] = entry
        elif entry.kind == model.CLAIMED:
            self._claims[entry.lane or 0, entry.sequence or 0] = entry
        super().apply(entry)

    def pieces(self, at_ms: int) -> Iterator[Piece]:
        """Yield the fate of every message, as of an instant."""
        yield from self._gone
        for lane in self.lanes.values():
            for segment in lane.available:
                yield self._piece(segment, self._waiting(segment, at_ms))
            for claim in lane.claims.values():
                pending = claim.purge_pending
                for position_id, held in claim.items.items():
                    purged = pending.get(position_id, ())
                    rest = ranges.difference(held, purged)
                    yield from self._held(claim, position_id, rest, "in_flight")
                    yield from self._held(claim, position_id, purged, model.PURGE_PENDING)

    def _waiting(self, segment: Segment, at_ms: int) -> str:
        if segment.position.expired(at_ms):
            return model.EXPIRED
        return "available" if segment.receivable(at_ms, self._rules) else "delayed"

    # ------------------------------------------------------- what leaves, kind by kind

    def _fenced(self, entry: Entry) -> None:
        mine = entry.stream == model.queue_stream(self.queue_id)
        if mine and entry.kind == model.QUEUE_DROPPED:
            for lane in self.lanes.values():
                self._gone += [self._piece(one, DROPPED, entry) for one in lane.available]
                for claim in lane.claims.values():
                    for position_id, held in claim.items.items():
                        self._gone += self._held(claim, position_id, held, DROPPED, entry)
        super()._fenced(entry)

    def _removed(self, lane: LaneState, entry: Entry) -> None:
        self._supersede(lane, entry)  # what comes back by it goes with the rest
        for position_id, part in model.unpack_items(entry):
            self._gone += self._standing(lane, position_id, part, entry.kind)
        super()._removed(lane, entry)

    def _purge_pending(self, lane: LaneState, entry: Entry) -> None:
        for position_id, part in model.unpack_items(entry):
            self._gone += self._standing(lane, position_id, part, model.PURGED)
            self._purges.setdefault(position_id, []).append((part, entry))
        super()._purge_pending(lane, entry)

    def _put_back(
        self,
        lane: LaneState,
        claim: Claim,
        failed_at_ms: int,
        *,
        counted: bool = True,
        not_to: str | None = None,
    ) -> None:
        for position_id, part in claim.purge_pending.items():
            lost = counted and claim.counts
            for going, reason in self._why_purged(position_id, part):
                by = replace(self._entry, reason=reason)
                self._gone += self._held(claim, position_id, going, model.PURGED, by, lost=lost)
        super()._put_back(lane, claim, failed_at_ms, counted=counted, not_to=not_to)

    def _settled(self, lane: LaneState, entry: Entry) -> None:
        claim = lane.claims.get(entry.claim_sequence or 0)
        if claim is None or entry.kind == model.RELEASED:
            super()._settled(lane, entry)
            return
        named = [position_id for position_id, _ in model.unpack_items(entry)] or list(claim.items)
        before = {position_id: claim.items.get(position_id, ()) for position_id in named}
        super()._settled(lane, entry)
        for position_id, held in before.items():
            going = ranges.difference(held, claim.items.get(position_id, ()))
            self._gone += self._held(claim, position_id, going, entry.kind, entry)

    # ------------------------------------------------------------------------- helpers

    def _standing(
        self, lane: LaneState, position_id: PositionId, part: tuple[Range, ...], state: str
    ) -> Iterator[Piece]:
        """Pass on what of some messages is available and goes now."""
        position = self.positions.get(position_id)
        if position is not None and part:
            for segment in lane.standing(position, part):
                yield self._piece(segment, state, self._entry)

    def _piece(self, segment: Segment, state: str, settled: Entry | None = None) -> Piece:
        posted = self._postings[segment.position.position_id]
        found = ((segment.first, segment.last),)
        return Piece(posted, found, state, segment.delivery_count, settled=settled)

    def _held(
        self,
        claim: Claim,
        position_id: PositionId,
        part: tuple[Range, ...],
        state: str,
        settled: Entry | None = None,
        *,
        lost: bool = False,
    ) -> Iterator[Piece]:
        """Yield the messages that a claim holds, or held until now."""
        if not part:
            return
        posted, claimed = self._postings[position_id], self._claims[claim.name]
        count = claim.delivery_count + (1 if lost else 0)
        yield Piece(posted, part, state, count, claimed, settled)

    def _why_purged(
        self, position_id: PositionId, part: tuple[Range, ...]
    ) -> Iterator[tuple[tuple[Range, ...], str | None]]:
        """Pass on messages that were purged in flight, with the reason of the first purge."""
        for purged, entry in self._purges.get(position_id, ()):
            going = ranges.intersection(part, purged)
            part = ranges.difference(part, purged)
            yield going, entry.reason


def ledgers(past: Past, infos: Iterable[QueueInfo]) -> dict[str, Ledger]:
    """Fold some queues by one reading of what is known of them.

    Args:
        past: What is known.
        infos: The queues, as they were last.

    Returns:
        The ledgers by the ids of the queues.
    """
    found = {info.queue_id: Ledger(info) for info in infos}
    fence = {model.queue_stream(queue_id): ledger for queue_id, ledger in found.items()}
    shards = {shard for ledger in found.values() for shard in ledger.shards} - {model.FENCE}
    wanted = [
        EntryFilter(shards=sorted(shards)),
        EntryFilter(shards=[model.FENCE], streams=sorted(fence)),
    ]
    entries = past.find(*wanted) if found else []
    for entry in archive.known(entries, past.beginning):
        of_fence = entry.shard == model.FENCE
        (fence[entry.stream] if of_fence else found[entry.queue_id or ""]).apply(entry)
    return found
