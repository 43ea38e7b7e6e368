"""The performatives of AMQP 1.0 links, with the fields that transactions need.

They are read from network frames; within this process they are passed as they are.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from txnqueue.protocols.amqp.types import (
    Coordinator,
    DeliveryState,
    Error,
    Payload,
    Source,
    Target,
    TransactionalState,
)

TXN_ID = "txn-id"
"""The key in a flow's properties that names the transaction of later acquisitions."""


class Role(enum.Enum):
    """The role of an end of a link: the specification's boolean."""

    SENDER = False
    RECEIVER = True


class SenderSettleMode(enum.IntEnum):
    """Whether a sender sends deliveries settled."""

    UNSETTLED = 0
    SETTLED = 1
    MIXED = 2


class ReceiverSettleMode(enum.IntEnum):
    """Whether a receiver settles before or after the sender."""

    FIRST = 0
    SECOND = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Attaches a link to a session.

    Attributes:
        name: The link's name.
        handle: The link's number in its session.
        role: The role of the performative's sender.
        source: Where messages come from.
        target: Where they go: a queue or a coordinator; None refuses the link.
        snd_settle_mode: How the sender settles.
        rcv_settle_mode: How the receiver settles.
        unsettled: What an earlier link of this name left unsettled, to be resumed.
        initial_delivery_count: Where the sender's delivery count begins; given only by senders.
        max_message_size: The longest message, in octets, that the sender of this performative
            accepts; None: any.
    """

    name: str
    handle: int
    role: Role
    source: Source | None = None
    target: Target | Coordinator | None = None
    snd_settle_mode: SenderSettleMode = SenderSettleMode.MIXED
    rcv_settle_mode: ReceiverSettleMode = ReceiverSettleMode.FIRST
    unsettled: Mapping[bytes, DeliveryState | None] | None = None
    initial_delivery_count: int | None = None
    max_message_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Updates the flow state of a session, and of one of its links if there is a handle.

    Attributes:
        incoming_window: The number of transfers that its sender can take; None: any number.
        handle: The link.
        delivery_count: The link's delivery count as known to its sender.
        link_credit: The number of deliveries that the receiver takes beyond that count.
        drain: Whether the sender must use up its credit, with or without messages.
        echo: Whether the other end must answer with its own state.
        properties: With an entry ``txn-id``, the transaction of later acquisitions.
    """

    incoming_window: int | None = None
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    drain: bool = False
    echo: bool = False
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Carries a message, or a part of it.

    Attributes:
        handle: The link.
        delivery_id: The delivery's number in its session; optional in later parts.
        delivery_tag: The delivery's name on its link.
        message_format: How the payload is to be read; 0 is the format of the specification.
        settled: Whether the sender has settled it.
        more: Whether more parts follow.
        rcv_settle_mode: How the receiver settles this delivery; None: as the link says.
        state: The delivery's state: a transactional one puts it into a transaction.
        aborted: Whether the sender abandons it before it is complete.
        payload: The message, or the part.
    """

    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes = b""
    message_format: int = 0
    settled: bool = False
    more: bool = False
    rcv_settle_mode: ReceiverSettleMode | None = None
    state: DeliveryState | None = None
    aborted: bool = False
    payload: Payload = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Disposition:
    """Tells the other end the state of deliveries.

    Attributes:
        role: The role of its sender in the deliveries' links.
        first: The first delivery.
        last: The last one; the first if omitted.
        settled: Whether its sender has settled them.
        state: Their state.
    """

    role: Role
    first: int
    last: int | None = None
    settled: bool = False
    state: DeliveryState | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Detach:
    """Detaches a link, for good if closed.

    Attributes:
        handle: The link.
        closed: Whether the link is over; otherwise the controller keeps its deliveries.
        error: The reason.
    """

    handle: int
    closed: bool = True
    error: Error | None = None


Performative = Attach | Flow | Transfer | Disposition | Detach


def transactions_named(performative: Performative) -> list[object]:
    """List the txn-ids that a performative carries, valid or not."""
    states: list[DeliveryState | None] = []
    if isinstance(performative, Flow):
        txn_id = performative.properties.get(TXN_ID)
        return [] if txn_id is None else [txn_id]
    if isinstance(performative, Attach):
        states.extend((performative.unsettled or {}).values())
    elif not isinstance(performative, Detach):
        states.append(performative.state)
    return [state.txn_id for state in states if isinstance(state, TransactionalState)]
