"""The parts of a fold: positions, segments, owners and claims (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import dropwhile, takewhile
from typing import Any

from txnqueue.core import ranges
from txnqueue.core.model import Entry, PositionId, Range
from txnqueue.core.redelivery import CLOCKS_APART_MS, Redelivery
from txnqueue.core.settings import BRANCH_PREFIX, REASON_LENGTH_MAX
from txnqueue.errors import StoreCorrupt

Errors = tuple[tuple[tuple[Range, ...], str], ...]
"""Messages of a position, each with the error of its last delivery."""


@dataclass(frozen=True, slots=True)
class Position:
    """Messages of one send in a lane: where their payload lies, and their order of delivery.

    ``origin`` says where a moved or dead-lettered position came from, and why;
    ``message_id`` is the payload's column that names its messages, if any.
    """

    position_id: PositionId
    queue_id: str
    lane: int
    payload_id: str
    slice: int
    send_id: str
    ranges: tuple[Range, ...]
    priority: int
    available_at_ms: int | None
    expires_at_ms: int | None
    schema_version: int
    origin: Mapping[str, Any] | None
    transaction_key: str | None
    place: tuple[int, int, int]
    posted_at_ms: int
    message_id: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> Position:
        """Read a position from the entry that posted it."""
        body = entry.body
        return cls(
            position_id=entry.entry_id,
            queue_id=entry.queue_id or "",
            lane=entry.lane or 0,
            payload_id=body["payload"],
            slice=body["slice"],
            send_id=body["send"],
            ranges=entry.ranges,
            priority=body.get("priority", 4),
            available_at_ms=body.get("available_at"),
            expires_at_ms=body.get("expires_at"),
            schema_version=body.get("schema", 1),
            origin=body.get("origin"),
            transaction_key=entry.transaction_key,
            place=entry.place,
            posted_at_ms=entry.recorded_at_ms,
            message_id=body.get("message_id"),
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Position:
        """Return this one: it never changes, and a copied fold has maybe a million of them."""
        return self

    def expired(self, now_ms: int) -> bool:
        """Return whether the position's time to live is over at an instant."""
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms

    def receivable(self, now_ms: int) -> bool:
        """Return whether the position may be delivered at an instant."""
        return (self.available_at_ms or 0) <= now_ms and not self.expired(now_ms)


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of messages of one position that can be claimed together.

    ``delivery_count`` counts the failed deliveries; ``former`` is the size of the last claim of
    them that counted (0 if none did): both determine how many messages the next claim may hold.
    ``not_to`` names the consumers to which the messages are undeliverable. ``failed_at_ms`` is
    when the last delivery failed, 0 if the messages did not come back from a failure.
    """

    position: Position
    first: int
    last: int
    delivery_count: int = 0
    former: int = 0
    not_to: frozenset[str] = frozenset()
    failed_at_ms: int = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Segment:
        """Return this one: it never changes, and a copied fold has maybe a million of them."""
        return self

    @property
    def history(self) -> tuple[int, int, frozenset[str]]:
        """The properties that all messages of one claim share."""
        return (self.delivery_count, self.former, self.not_to)

    def cut(self, first: int, last: int) -> Segment:
        """Take a piece of the run."""
        return Segment(self.position, first, last, *self.history, self.failed_at_ms)

    def by(self, version: int | None) -> bool:
        """Return whether the messages were posted by a version of the journal; None for any."""
        return version is None or self.position.place[0] <= version

    def due_ms(self, rules: Redelivery) -> int:
        """Return the instant from which the messages may be redelivered; 0 if they do not wait."""
        return rules.due_ms(self.delivery_count, self.former, self.failed_at_ms)

    def waits(self, now_ms: int, rules: Redelivery) -> bool:
        """Return whether the messages still wait because their last delivery failed.

        A failure recorded too far in the future comes from a wrong clock and delays nothing.
        """
        return (
            0 < self.failed_at_ms <= now_ms + CLOCKS_APART_MS
            and self.due_ms(rules) > now_ms
            and not self.position.expired(now_ms)
        )

    @property
    def timeless(self) -> bool:
        """Whether no delay, time to live or failed delivery limits when they may be delivered."""
        position = self.position
        is_free = position.available_at_ms is None and position.expires_at_ms is None
        return is_free and not self.failed_at_ms

    def receivable(self, now_ms: int, rules: Redelivery) -> bool:
        """Return whether the messages may be delivered at an instant."""
        return self.position.receivable(now_ms) and not self.waits(now_ms, rules)

    @property
    def size(self) -> int:
        """How many messages the segment holds."""
        return self.last - self.first + 1

    @property
    def order(self) -> tuple[int, int, int, int, int]:
        """The original place in the lane: priority, commit order, then offset."""
        version, ordinal, index = self.position.place
        return (-self.position.priority, version, ordinal, index, self.first)


def in_turn(
    segments: Iterable[Segment], now_ms: int, rules: Redelivery, *, in_order: bool
) -> Iterable[Segment]:
    """Return all segments, or in an ordered queue those before the first that waits to be retried.

    Args:
        segments: The messages of a lane, in order.
        now_ms: The instant.
        rules: The queue's rules of redelivery.
        in_order: Whether no message may overtake one that waits because it failed.
    """
    if not in_order:
        return segments
    return takewhile(lambda segment: not segment.waits(now_ms, rules), segments)


def held_back(
    segments: Iterable[Segment], now_ms: int, rules: Redelivery, *, in_order: bool
) -> Iterator[Segment]:
    """Yield the segments that wait to be retried; in an ordered queue also those kept behind them.

    Args:
        segments: The messages of a lane, in order.
        now_ms: The instant.
        rules: The queue's rules of redelivery.
        in_order: As in ``in_turn``.
    """
    for segment in dropwhile(lambda one: not one.waits(now_ms, rules), segments):
        if segment.waits(now_ms, rules) or (in_order and segment.receivable(now_ms, rules)):
            yield segment


@dataclass(frozen=True, slots=True)
class LeaseOwner:
    """A consumer that holds messages until its lease ends.

    ``opened_ms`` is when its id was opened, by its own clock; 0 in what older versions wrote.
    """

    consumer: str
    epoch: int
    opened_ms: int = field(default=0, compare=False)

    def columns(self) -> dict[str, Any]:
        """Return the columns that name the owner in an entry: none."""
        return {}


@dataclass(frozen=True, slots=True)
class AttemptOwner:
    """An attempt of a transaction, whose decision ends the claims that it holds.

    ``consumer``, ``epoch`` and ``opened_ms`` are those of the client that claimed for it, if it
    holds a claim.
    """

    key: str
    attempt: str
    begun: int
    consumer: str = ""
    epoch: int = 0
    opened_ms: int = field(default=0, compare=False)

    @classmethod
    def of(cls, entry: Entry) -> AttemptOwner:
        """Read which attempt wrote an entry.

        Raises:
            StoreCorrupt: The entry names no attempt.
        """
        if entry.transaction_key is None or entry.attempt is None or entry.begun is None:
            raise StoreCorrupt(
                f"The entry {entry.entry_id} ({entry.kind}) in {entry.shard!r} names no attempt: "
                "stop writing to the store, and keep it as it is."
            )
        return cls(entry.transaction_key, entry.attempt, entry.begun)

    @property
    def is_branch(self) -> bool:
        """Whether this is the attempt of a branch, which sessions share."""
        return self.key.startswith(BRANCH_PREFIX)

    def columns(self) -> dict[str, Any]:
        """Return the columns that name the attempt in an entry."""
        return {"transaction_key": self.key, "attempt": self.attempt, "begun": self.begun}

    def claiming_as(self, owner: Owner) -> AttemptOwner:
        """Return the attempt with the consumer and epoch of the client that claims for it."""
        return replace(self, consumer=owner.consumer, epoch=owner.epoch, opened_ms=owner.opened_ms)


Owner = LeaseOwner | AttemptOwner
"""Who holds a claim."""


@dataclass(slots=True)
class Claim:
    """Messages in flight: those that one entry of a lane's log claimed and no entry has ended.

    ``size`` is the number of messages claimed, or 2 for a single one in a batch with others, which
    was not delivered alone. ``counts`` says whether its end counts as a delivery; a claim made for
    a move has delivered nothing. ``purging`` holds the messages purged meanwhile, which are removed
    if they would return. An entry of ``version`` set ``deadline_ms`` at ``began_at_ms``, both by
    the clock of the client that claimed or extended; ``began_by_ms`` is the smallest clock recorded
    since, or shown when the claim was read. ``began_from_ms`` is what the reader's clock showed
    when the entry was not there yet; 0 if the reader does not know.
    """

    lane: int
    sequence: int
    owner: Owner
    deadline_ms: int
    delivery_count: int
    size: int
    former: int
    items: dict[PositionId, tuple[Range, ...]]
    claimed_at_ms: int
    bound: AttemptOwner | None = None
    counts: bool = True
    not_to: frozenset[str] = frozenset()
    purging: dict[PositionId, tuple[Range, ...]] = field(default_factory=dict)
    began_at_ms: int = field(default=0, compare=False)
    began_by_ms: int = field(default=0, compare=False)
    began_from_ms: int = field(default=0, compare=False)
    version: int = field(default=-1, compare=False)

    @classmethod
    def of(cls, entry: Entry, items: Mapping[PositionId, tuple[Range, ...]]) -> Claim:
        """Read a claim from its entry in a lane's log."""
        body = entry.body
        lease = LeaseOwner(body["consumer"], body["epoch"], body.get("opened", 0))
        return cls(
            lane=entry.lane or 0,
            sequence=entry.sequence or 0,
            owner=lease if entry.attempt is None else AttemptOwner.of(entry).claiming_as(lease),
            deadline_ms=body["deadline"],
            delivery_count=body["delivery_count"],
            size=body.get("size", entry.count or 0),
            former=body["former"],
            items=dict(items),
            claimed_at_ms=entry.recorded_at_ms,
            counts=body.get("counts", True),
            not_to=frozenset(body.get("not_to", ())),
            began_at_ms=entry.recorded_at_ms,
            began_by_ms=entry.recorded_at_ms,
            version=entry.version,
        )

    def hold(self, entry: Entry, began_from_ms: int) -> None:
        """Set the deadline that an entry records, which began after the given instant."""
        self.deadline_ms = entry.body["deadline"]
        self.began_at_ms = self.began_by_ms = entry.recorded_at_ms
        self.began_from_ms = began_from_ms
        self.version = entry.version

    def deadline_seen_ms(self, now_ms: int) -> int:
        """Return the deadline as a client that was given the claim sees it by its own clock.

        A lease that seems to begin in the future was recorded by that clock before it was set
        back; it keeps its length.
        """
        return min(self.deadline_ms, now_ms + self.deadline_ms - self.began_at_ms)

    def ends_at_ms(self, now_ms: int) -> int:
        """Return the instant at which the lease ends, as seen at ``now_ms``.

        A lease that seems to begin in the future was recorded by a clock that is ahead. It began
        at the latest at the smallest clock recorded since or shown when it was first read, and
        keeps its length. It also keeps it if that clock is behind the reader's, as far as the
        reader knows: its own clock showed an earlier instant before the lease began.
        """
        known_ms = self.began_from_ms + self.deadline_ms - self.began_at_ms
        return max(self.recorded_end_ms(now_ms), known_ms)

    def recorded_end_ms(self, now_ms: int) -> int:
        """Return when the lease ends by the clocks that entries recorded, and by no reader's."""
        if self.began_at_ms <= now_ms:
            return self.deadline_ms
        return self.began_by_ms + self.deadline_ms - self.began_at_ms

    @property
    def name(self) -> tuple[int, int]:
        """The claim's name and fencing token: its lane and sequence."""
        return (self.lane, self.sequence)

    @property
    def holder(self) -> Owner:
        """The holder that ends the claim: the attempt that it is bound to, else its owner."""
        return self.bound or self.owner

    @property
    def attempt(self) -> AttemptOwner | None:
        """The attempt whose decision ends the claim; None if only a lease holds it."""
        return self.holder if isinstance(self.holder, AttemptOwner) else None

    @property
    def attempt_id(self) -> str | None:
        """The id of the attempt whose decision ends the claim; None if only a lease holds it."""
        return self.attempt.attempt if self.attempt else None

    def ended_by(self, entry: Entry) -> bool:
        """Return whether an entry in the backlog ends the claim, as its attempt holds the claim."""
        return entry.attempt == self.attempt_id

    def lease(self) -> None:
        """Leave the claim's messages with its consumer under a lease, without any attempt."""
        owner = self.owner
        self.owner = LeaseOwner(owner.consumer, owner.epoch, owner.opened_ms)
        self.bound = None

    @property
    def acquirer(self) -> AttemptOwner | None:
        """The attempt that acquired the messages; None if a lease did.

        Messages that an attempt only settles go back to the consumer that holds the lease if the
        attempt is rolled back.
        """
        return self.owner if isinstance(self.owner, AttemptOwner) and not self.bound else None

    @property
    def count(self) -> int:
        """How many messages are still in flight under this claim."""
        return sum(map(ranges.count, self.items.values()))

    @property
    def purge_pending(self) -> dict[PositionId, tuple[Range, ...]]:
        """The messages in flight under the claim that were purged."""
        found = {
            position_id: ranges.intersection(part, self.purging.get(position_id, ()))
            for position_id, part in self.items.items()
        }
        return {position_id: part for position_id, part in found.items() if part}

    def ended_at_ms(self, now_ms: int) -> int:
        """Return when the delivery ended, if another client ends it: with the lease, or now.

        It goes by the clock that set the deadline: the wait after a failure begins no later.
        """
        return min(self.recorded_end_ms(now_ms), now_ms)

    def takeable(self, now_ms: int, taker: Owner) -> bool:
        """Return whether a client may try to take over the claim; clocks decide only that much.

        An older epoch of the same consumer id and another attempt of the same key are the
        taker's own past: their leases need not have ended. Which of two attempts is the past one
        is decided by whose tombstone lands first.
        """
        past_self = self.owner.consumer == taker.consumer and self.owner.epoch < taker.epoch
        past_attempt = (
            isinstance(self.owner, AttemptOwner)
            and isinstance(taker, AttemptOwner)
            and self.owner.key == taker.key
            and self.owner.attempt != taker.attempt
        )
        return self.ends_at_ms(now_ms) <= now_ms or past_self or past_attempt


def note_error(
    errors: dict[PositionId, Errors], items: Mapping[PositionId, tuple[Range, ...]], error: str
) -> None:
    """Record the error of a delivery for its messages."""
    said = error[:REASON_LENGTH_MAX]
    for position_id, part in items.items():
        forget_error(errors, position_id, part)
        others = errors.get(position_id, ())
        alike = [one for had, text in others if text == said for one in had]
        others = tuple((had, text) for had, text in others if text != said)
        errors[position_id] = (*others, (ranges.normalised((*alike, *part)), said))


def forget_error(
    errors: dict[PositionId, Errors], position_id: PositionId, part: tuple[Range, ...]
) -> None:
    """Forget the errors of messages that are gone, or that failed with another error."""
    if position_id not in errors or not part:
        return
    low, high = part[0][0], part[-1][1]
    left = tuple(
        (rest, text)
        for had, text in errors.pop(position_id)
        # Most errors are of other messages: thousands, if each message fails with its own.
        if (rest := had if had[-1][1] < low or high < had[0][0] else ranges.difference(had, part))
    )
    if left:
        errors[position_id] = left
