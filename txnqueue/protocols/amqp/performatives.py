"""The performatives of AMQP 1.0 that links speak with, as far as transactions concern them.

A reader of network frames makes these of them; in this process they are passed as they are.
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
"""The entry of a flow's properties that names the transaction of later acquisitions."""


class Role(enum.Enum):
    """The role of an end of a link: the specification's boolean."""

    SENDER = False
    RECEIVER = True


class SenderSettleMode(enum.IntEnum):
    """Whether a sender settles what it sends."""

    UNSETTLED = 0
    SETTLED = 1
    MIXED = 2


class ReceiverSettleMode(enum.IntEnum):
    """Whether a receiver settles first, or after the sender has."""

    FIRST = 0
    SECOND = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Attaches a link to a session.

    Attributes:
        name: The link's name.
        handle: The link's number in its session.
        role: Which end the sender of this performative is.
        source: Where messages come from.
        target: Where they go: a queue or a coordinator; None refuses.
        snd_settle_mode: How the sender settles.
        rcv_settle_mode: How the receiver settles.
        unsettled: What an earlier link of this name left unsettled, if it is to be resumed.
        initial_delivery_count: Where the sender's delivery count begins; only senders say so.
        max_message_size: The longest message that the sender of this performative takes, in
            octets; None: any.
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
        incoming_window: The transfers that its sender can take; None: any number.
        handle: The link.
        delivery_count: The link's delivery count as its sender knows it.
        link_credit: The deliveries that the receiver can take from there.
        drain: Whether the sender is to use its credit up, with messages or without.
        echo: Whether the other end is to answer with its own state.
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
        delivery_id: The delivery's number in its session; may be left out in later parts.
        delivery_tag: The delivery's name on its link.
        settled: Whether the sender has settled it.
        more: Whether more parts follow.
        state: The delivery's state: a transactional one puts it into a transaction.
        aborted: Whether the sender gives it up half sent.
        payload: The message, or the part.
    """

    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes = b""
    settled: bool = False
    more: bool = False
    state: DeliveryState | None = None
    aborted: bool = False
    payload: Payload = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Disposition:
    """Tells the other end of the state of deliveries.

    Attributes:
        role: Which end of the deliveries' links its sender is.
        first: The first delivery.
        last: The last one; the first when left out.
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
    """Detaches a link; closed, it is gone for good.

    Attributes:
        handle: The link.
        closed: Whether the link is over; otherwise its deliveries are still the controller's.
        error: Why.
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
