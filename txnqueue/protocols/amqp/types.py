"""The types of AMQP 1.0 that transactions use: sections, outcomes, coordination, errors.

Classes and fields have the names of the specification's types and fields, with ``_`` for ``-``.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from txnqueue.errors import InvalidInput, TxnQueueError

TXN_ID_LENGTH_MAX = 32
"""The maximum length of a transaction-id, in octets."""


class TxnCapability(str, enum.Enum):
    """Capabilities of a coordinator, as desired by a controller or offered by the resource."""

    LOCAL_TRANSACTIONS = "amqp:local-transactions"
    DISTRIBUTED_TRANSACTIONS = "amqp:distributed-transactions"
    PROMOTABLE_TRANSACTIONS = "amqp:promotable-transactions"
    MULTI_TXNS_PER_SSN = "amqp:multi-txns-per-ssn"
    MULTI_SSNS_PER_TXN = "amqp:multi-ssns-per-txn"


class TransactionError(str, enum.Enum):
    """The error conditions of transactions."""

    UNKNOWN_ID = "amqp:transaction:unknown-id"
    ROLLBACK = "amqp:transaction:rollback"
    TIMEOUT = "amqp:transaction:timeout"


class ErrorCondition(str, enum.Enum):
    """The other error conditions that a resource returns."""

    INTERNAL_ERROR = "amqp:internal-error"
    NOT_FOUND = "amqp:not-found"
    DECODE_ERROR = "amqp:decode-error"
    RESOURCE_DELETED = "amqp:resource-deleted"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    NOT_ALLOWED = "amqp:not-allowed"
    INVALID_FIELD = "amqp:invalid-field"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    UNATTACHED_HANDLE = "amqp:session:unattached-handle"
    TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"
    HANDLE_IN_USE = "amqp:session:handle-in-use"
    FRAMING_ERROR = "amqp:connection:framing-error"
    CONNECTION_FORCED = "amqp:connection:forced"


Condition = TransactionError | ErrorCondition | str
"""Why something was refused; a controller may give a symbol outside these lists."""


@dataclass(frozen=True, slots=True)
class Error:
    """Why something was refused, as carried by ``rejected`` and ``detach``."""

    condition: Condition
    description: str = ""

    @property
    def symbol(self) -> str:
        """The condition as a frame carries it."""
        return self.condition.value if isinstance(self.condition, enum.Enum) else self.condition


class AmqpError(TxnQueueError):
    """The resource refused a request; ``condition`` is the specification's symbol for why."""

    condition: Condition
    description: str

    def __init__(self, condition: Condition, description: str) -> None:
        """Create the error from a condition and a description."""
        super().__init__(f"{Error(condition).symbol}: {description}")
        self.condition = condition
        self.description = description

    @property
    def error(self) -> Error:
        """The error as a frame carries it."""
        return Error(self.condition, self.description)


def transaction_id(value: object) -> bytes:
    """Check a transaction-id: 1 to 32 octets of binary data.

    Raises:
        InvalidInput: It is not.
    """
    if not isinstance(value, bytes) or not 1 <= len(value) <= TXN_ID_LENGTH_MAX:
        raise InvalidInput(
            f"txn-id {value!r}: a transaction-id is binary, 1 to {TXN_ID_LENGTH_MAX} octets.",
            name="txn-id",
        )
    return value


# ---------------------------------------------------------------------- message sections


@dataclass(frozen=True, slots=True)
class Header:
    """The header section, with the fields that a queue uses.

    Attributes:
        priority: 0 to 255; those from 9 on are delivered first.
        ttl: The time to live, in milliseconds.
        first_acquirer: Whether the message was never acquired before.
        delivery_count: The number of failed deliveries.
        durable: Whether the store keeps the message; of one from a client, its queue decides.
    """

    priority: int | None = None
    ttl: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0
    durable: bool = False


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties section, with the fields that a queue uses.

    Attributes:
        message_id: The message's id.
        reply_to: The queue for answers.
        correlation_id: The id to which an answer refers.
        to: The queue, for messages sent to the anonymous terminus.
        subject: The subject of the message.
        content_type: The MIME type of a body of octets.
        group_id: The group to which it belongs.
        creation_time: The time of its creation; as milliseconds if it is outside Python's range.
    """

    message_id: str | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    to: str | None = None
    subject: str | None = None
    content_type: str | None = None
    group_id: str | None = None
    creation_time: datetime.datetime | int | None = None


@dataclass(frozen=True, slots=True)
class ApplicationProperties:
    """The application-properties section: a message's headers, simple values by name."""

    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AmqpValue:
    """The amqp-value section: a map of the queue's columns, or a request to a coordinator."""

    value: Any


@dataclass(frozen=True, slots=True)
class AmqpData:
    """A data section: octets, for queues with a column ``body``."""

    octets: bytes


@dataclass(frozen=True, slots=True)
class AmqpSequence:
    """An amqp-sequence section: a list, which no queue takes."""

    values: list[Any]


@dataclass(frozen=True, slots=True)
class Described:
    """A described type without a meaning here: it is legal, but refused where it is used."""

    descriptor: int | str
    value: Any


Section = Header | Properties | ApplicationProperties | AmqpValue | AmqpData | AmqpSequence
Payload = tuple[Section, ...] | bytes
"""A message: its sections in this process, octets where a connection has a codec."""


# ------------------------------------------------------------------------- coordination


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The target of a control link: the transaction coordinator of a resource."""

    capabilities: tuple[TxnCapability | str, ...] = ()


@dataclass(frozen=True, slots=True)
class Declare:
    """Requests a txn-id; with a ``global_id``, for work of that global transaction."""

    global_id: bytes | str | None = None


@dataclass(frozen=True, slots=True)
class Discharge:
    """Ends a transaction, and tells whether its work has failed."""

    txn_id: bytes
    fail: bool | None = None


@dataclass(frozen=True, slots=True)
class Declared:
    """The outcome of a declare: the txn-id that the resource has allocated."""

    txn_id: bytes


# ---------------------------------------------------------------------------- outcomes


@dataclass(frozen=True, slots=True)
class Accepted:
    """The message was processed."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The message cannot be processed, or its request was refused."""

    error: Error | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The message was not and will not be processed by this receiver."""


@dataclass(frozen=True, slots=True)
class Modified:
    """As released, but it may also count as a failed delivery."""

    delivery_failed: bool = False
    undeliverable_here: bool = False


Outcome = Accepted | Rejected | Released | Modified


@dataclass(frozen=True, slots=True)
class TransactionalState:
    """The state of a delivery in a transaction, with the outcome that a commit will apply."""

    txn_id: bytes
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """How much of a delivery has arrived: a state, not an outcome."""

    section_number: int
    section_offset: int


DeliveryState = Outcome | Declared | TransactionalState | Received | Described
REJECTED_OUTCOME: Final = "amqp:rejected:list"
"""The symbol for the rejected outcome among those that a source supports."""


# ------------------------------------------------------------------------------ termini


@dataclass(frozen=True, slots=True)
class Source:
    """Where messages of a link come from.

    Attributes:
        address: The queue, for links on which the resource sends.
        default_outcome: The outcome of a delivery that is settled without one, or whose outcome
            was rolled back after it was settled; released if omitted.
        outcomes: Symbols of the outcomes that the source supports; all if omitted.
        dynamic: Whether the resource should create a node for the link.
        distribution_mode: Whether messages are moved or copied; moved if omitted.
        filters: The names of the filters that should select messages.
    """

    address: str | None = None
    default_outcome: Outcome | None = None
    outcomes: tuple[str, ...] | None = None
    dynamic: bool = False
    distribution_mode: str | None = None
    filters: tuple[str, ...] = ()

    @property
    def supports_rejected(self) -> bool:
        """Whether a delivery of this source can be rejected."""
        return self.outcomes is None or REJECTED_OUTCOME in self.outcomes


@dataclass(frozen=True, slots=True)
class Target:
    """Where messages of a link go.

    Attributes:
        address: The queue; None is the anonymous terminus, where each message goes to the queue
            named by ``to`` in its properties.
        dynamic: Whether the resource should create a node for the link.
    """

    address: str | None = None
    dynamic: bool = False
