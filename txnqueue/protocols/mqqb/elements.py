"""The elements of the specification's data model; their state is read from the store each time."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from txnqueue import queue as core
from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.model import PositionId, Range
from txnqueue.core.settings import is_text, place_of_message, shown
from txnqueue.core.state import AttemptOwner, Claim, LaneState, Position, QueueState
from txnqueue.errors import InvalidInput
from txnqueue.messages.parts import part_of
from txnqueue.storage.payload import messages_of
from txnqueue.transaction import Transaction as CoreTransaction
from txnqueue.transaction import attempt_of

Found = TypeVar("Found")


class State(enum.Enum):
    """Whether a message can be dequeued from its position."""

    AVAILABLE = "Available"
    LOCKED = "Locked"
    DELETED = "Deleted"
    PURGE_PENDING = "PurgePending"


class OperationType(enum.Enum):
    """The kinds of transactional operations."""

    ENQUEUE = "Enqueue"
    DEQUEUE = "Dequeue"
    MOVE = "Move"


@dataclass(frozen=True, slots=True)
class Message:
    """A message, which stays the same wherever it is moved.

    Attributes:
        identifier: Its id in the store, ``<send id>:<offset>``.
    """

    identifier: str

    @property
    def place(self) -> tuple[str, int]:
        """The send and the offset of the message in the store's tables.

        Raises:
            InvalidInput: The identifier is not a message id.
        """
        place = place_of_message(str(self.identifier))
        if place is None:
            raise InvalidInput(
                f"{self.identifier!r} is not a message id: give '<send id>:<offset>'.",
                name="identifier",
            )
        return place


@dataclass(slots=True, eq=False)
class MessagePosition:
    """The place of a message in a queue.

    Attributes:
        queue_reference: The queue.
        message_reference: The message.
        position_id: The store's position that it is in; None until a commit posts it.
        pending: The identifier of the undecided transaction that will post it.
    """

    queue_reference: Queue
    message_reference: Message
    position_id: PositionId | None = None
    pending: Callable[[], str | None] = field(default=lambda: None, repr=False)

    @property
    def state(self) -> State:
        """The present state, according to the store's tables."""
        if self.position_id is None and self.pending() is not None:
            return State.LOCKED
        self._look()
        return self.queue_reference.standing_of(self).state

    @property
    def transaction_identifier(self) -> str | None:
        """The transaction that locks it, to post it or to take it out; None if it is not Locked."""
        if self.position_id is None and (identifier := self.pending()) is not None:
            return identifier
        self._look()
        claim = self.queue_reference.standing_of(self).claim
        return claim.attempt.key if claim is not None and claim.attempt is not None else None

    @property
    def body(self) -> dict[str, Any] | None:
        """The message's columns and ``_message``; None if it is not there."""
        self._look()
        return self.queue_reference.body_of(self)

    def _look(self) -> None:
        """Find the position at which any client posted it."""
        if self.position_id is None:
            queue, message = self.queue_reference, self.message_reference
            found = queue.find(message, lambda one: not model.was_moved(one.origin))
            self.position_id = found.position_id if found is not None else None

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same place of the same message."""
        return isinstance(other, MessagePosition) and self._identity == other._identity

    def __hash__(self) -> int:
        """Hash the queue, the message and the position."""
        return hash((self.queue_reference.name, self.message_reference))

    @property
    def _identity(self) -> tuple[str, Message, PositionId | None]:
        return (self.queue_reference.name, self.message_reference, self.position_id)


class Standing(NamedTuple):
    """The present state of a position, its claim if it is in flight, and its delivery count."""

    state: State
    claim: Claim | None = None
    delivery_count: int = 0


class Queue:
    """A queue, with the list of its message positions."""

    def __init__(self, client: Client, queue: core.Queue) -> None:
        """Represent a queue of the store; use ``LocalQueueManager.queue``."""
        self._client = client
        self.core = queue

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.core.name

    def __repr__(self) -> str:
        """Show the name."""
        return f"<Queue {self.name}>"

    def purge(self, reason: str | None, deleted: list[MessagePosition] | None) -> int:
        """Delete Available positions, and mark Locked ones.

        Args:
            reason: The reason.
            deleted: A list that receives the positions Deleted at once, in the list's order;
                None if they are not needed.

        Returns:
            The number of positions Deleted at once.
        """
        left: list[tuple[Position, Range]] = []
        try:
            gone = (
                None if deleted is None else lambda one, part: left.extend((one, p) for p in part)
            )
            return self.core._purge(gone, None, reason)
        finally:  # what was deleted is deleted, even after an error
            if deleted is not None:
                deleted.extend(self._listed(left))

    @property
    def message_position_list(self) -> list[MessagePosition]:
        """All positions in the list's order: by priority, highest first, then oldest first.

        The lanes of a queue have no order among each other; they are listed as one.
        """

        def standing(fold: QueueState) -> list[tuple[Position, Range]]:
            return [one for lane in fold.lanes.values() for one in _standing(fold, lane)]

        return self._listed(one for found in self._in_each_part(standing) for one in found)

    def find(self, message: Message, wanted: Callable[[Position], bool]) -> MessagePosition | None:
        """Find the position of a message in this queue."""
        send_id, offset = message.place

        def here(fold: QueueState) -> list[Position]:
            return [
                position
                for position in fold.positions.values()
                if position.send_id == send_id
                and _holds(position.ranges, offset)
                and wanted(position)
            ]

        found = [position for positions in self._in_each_part(here) for position in positions]
        return self._position(found[0], offset) if found else None

    def standing_of(self, position: MessagePosition) -> Standing:
        """Return the present standing of a position."""
        _, offset = position.message_reference.place

        def here(fold: QueueState) -> Standing:
            known = fold.positions.get(position.position_id or ("", 0))
            if known is None:
                return Standing(State.DELETED)
            lane = fold.lanes[known.lane]
            for claim in lane.claims.values():
                if _holds(claim.items.get(known.position_id, ()), offset):
                    purged = _holds(claim.purging.get(known.position_id, ()), offset)
                    state = State.PURGE_PENDING if purged else State.LOCKED
                    return Standing(state, claim, claim.delivery_count)
            for segment in lane.standing(known, ((offset, offset),)):
                return Standing(State.AVAILABLE, None, segment.delivery_count)
            return Standing(State.DELETED)

        found = self._in_each_part(here)
        return next((one for one in found if one.state is not State.DELETED), found[-1])

    def body_of(self, position: MessagePosition) -> dict[str, Any] | None:
        """Read the columns of a message."""
        _, offset = position.message_reference.place
        standing = self.standing_of(position)
        if standing.state is State.DELETED:
            return None
        name = position.position_id or ("", 0)
        for known in self._in_each_part(lambda fold: fold.positions.get(name)):
            if known is not None:
                count = standing.delivery_count
                part = part_of(known, ((offset, offset),), self.name, known.lane, count)
                return messages_of(self._client.payload.table(self.core.schema, [part]))[0]
        return None

    # -------------------------------------------------------------------------- helpers

    def _in_each_part(self, look: Callable[[QueueState], Found]) -> list[Found]:
        """Query the durable part of the queue, and the transient part if there is one."""
        found = []
        for part in self._client.parts_of(self.core.info):
            with part.state_for_read() as state:
                found.append(look(state))
        return found

    def _listed(self, standing: Iterable[tuple[Position, Range]]) -> list[MessagePosition]:
        def order(one: tuple[Position, Range]) -> tuple[int, ...]:
            position, part = one
            return (-position.priority, *position.place, *part)

        return [
            self._position(position, offset)
            for position, (first, last) in sorted(standing, key=order)
            for offset in range(first, last + 1)
        ]

    def _position(self, position: Position, offset: int) -> MessagePosition:
        return MessagePosition(self, Message(f"{position.send_id}:{offset}"), position.position_id)


@dataclass(slots=True)
class TransactionalOperation:
    """One operation of a transaction.

    Attributes:
        operation_type: Enqueue, Dequeue or Move.
        message_position_reference: The position that it concerns.
        dequeue_reason: The reason of a Dequeue.
        target_queue_reference: The target of a Move.
    """

    operation_type: OperationType
    message_position_reference: MessagePosition
    dequeue_reason: str | None = None
    target_queue_reference: Queue | None = None


@dataclass(slots=True)
class Transaction:
    """A transaction, with its operations in their order.

    Attributes:
        identifier: Its id in the store, for ``manager.outcome``.
        transactional_operation_collection: Its operations.
        core: The plain transaction, if it was begun here; work done with it through the plain
            interface belongs to this transaction. None: it was prepared by another client or
            earlier.
        prepared: The prepared attempt, if it was not begun here.
        asked: Whether a requested decision has not been answered.
    """

    identifier: str
    transactional_operation_collection: list[TransactionalOperation] = field(default_factory=list)
    core: CoreTransaction | None = None
    prepared: AttemptOwner | None = field(default=None, repr=False)
    asked: bool = field(default=False, repr=False)

    @property
    def owner(self) -> AttemptOwner:
        """The attempt in the store."""
        found = attempt_of(self.core).owner if self.core is not None else self.prepared
        assert found is not None
        return found


class TransactionCollection(Mapping[str, Transaction]):
    """The transactions of a queue manager: those begun here, and those prepared in the store."""

    def __init__(self, read: Callable[[], dict[str, Transaction]]) -> None:
        """Create the collection; each access reads the store."""
        self._read = read

    def __getitem__(self, identifier: str) -> Transaction:
        """Find a transaction by its identifier."""
        return self._read()[identifier]

    def __iter__(self) -> Iterator[str]:
        """List the identifiers."""
        return iter(self._read())

    def __len__(self) -> int:
        """Count the transactions."""
        return len(self._read())


def identifier_of(transaction: Transaction | str) -> str:
    """Return the identifier of a transaction, or the identifier itself.

    Raises:
        InvalidInput: It is neither.
    """
    if isinstance(transaction, Transaction):
        return transaction.identifier
    if not is_text(transaction):
        raise InvalidInput(
            f"{shown(transaction)}: give a transaction or its identifier.",
            name="transaction_identifier",
        )
    return transaction


def _standing(fold: QueueState, lane: LaneState) -> Iterator[tuple[Position, Range]]:
    """List the messages of a lane, available or not."""
    for segment in lane.available:
        yield segment.position, (segment.first, segment.last)
    for claim in lane.claims.values():
        for position_id, part in claim.items.items():
            for piece in part:
                yield fold.positions[position_id], piece


def _holds(part: tuple[Range, ...], offset: int) -> bool:
    return any(first <= offset <= last for first, last in part)
