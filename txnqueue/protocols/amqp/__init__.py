"""AMQP 1.0 transactions on a store of queues, in the specification's terms.

``AmqpServer`` serves clients on sockets. Behind it, ``TransactionalResource`` presents a store as
a container that performs transactional work; a ``Session`` of one of its connections takes
performatives and returns the answering ones. ``ProtonCodec`` encodes and decodes octets; it needs
python-qpid-proton.
"""

from txnqueue.protocols.amqp.access import AccessRules, Rule, hashed
from txnqueue.protocols.amqp.codec import ProtonCodec
from txnqueue.protocols.amqp.connection import Codec, Connection
from txnqueue.protocols.amqp.limits import Limits
from txnqueue.protocols.amqp.performatives import (
    Attach,
    Detach,
    Disposition,
    Flow,
    ReceiverSettleMode,
    Role,
    SenderSettleMode,
    Transfer,
)
from txnqueue.protocols.amqp.resource import TransactionalResource, key_of, txn_id_of
from txnqueue.protocols.amqp.server import AmqpServer
from txnqueue.protocols.amqp.session import Session
from txnqueue.protocols.amqp.types import (
    Accepted,
    AmqpData,
    AmqpError,
    AmqpSequence,
    AmqpValue,
    ApplicationProperties,
    Coordinator,
    Declare,
    Declared,
    Described,
    Discharge,
    Error,
    ErrorCondition,
    Header,
    Modified,
    Properties,
    Received,
    Rejected,
    Released,
    Source,
    Target,
    TransactionalState,
    TransactionError,
    TxnCapability,
)

__all__ = [
    "Accepted",
    "AccessRules",
    "AmqpData",
    "AmqpError",
    "AmqpSequence",
    "AmqpServer",
    "AmqpValue",
    "ApplicationProperties",
    "Attach",
    "Codec",
    "Connection",
    "Coordinator",
    "Declare",
    "Declared",
    "Described",
    "Detach",
    "Discharge",
    "Disposition",
    "Error",
    "ErrorCondition",
    "Flow",
    "Header",
    "Limits",
    "Modified",
    "Properties",
    "ProtonCodec",
    "Received",
    "ReceiverSettleMode",
    "Rejected",
    "Released",
    "Role",
    "Rule",
    "SenderSettleMode",
    "Session",
    "Source",
    "Target",
    "TransactionError",
    "TransactionalResource",
    "TransactionalState",
    "Transfer",
    "TxnCapability",
    "hashed",
    "key_of",
    "txn_id_of",
]
