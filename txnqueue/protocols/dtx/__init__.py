"""Distributed transactions of AMQP (dtx, after X/Open XA) on the queues of a store.

A *branch* of a distributed transaction is work on queues that an external transaction manager
decides: it prepares the branch and its other resources, and then commits all of them. Any number
of channels, in any number of driver processes, can work in one branch.

Example::

    connection = Connection(manager)
    channel = connection.channel()
    channel.select()
    xid = Xid.of(1, b"order-17", b"queues")
    channel.start(xid)
    channel.queue("orders").send([{"order_id": 17}])
    channel.end(xid)
    assert channel.prepare(xid) is XaStatus.OK
    channel.commit(xid)

``TpcConnection`` offers the same under the names of Python's DB-API 2.0 (PEP 249).
"""

from txnqueue.core.state.branch import Ticket as AccessTicket
from txnqueue.protocols.dtx.channel import Channel, Connection
from txnqueue.protocols.dtx.coordination import DtxCoordination
from txnqueue.protocols.dtx.demarcation import DtxDemarcation
from txnqueue.protocols.dtx.execution import Execution
from txnqueue.protocols.dtx.queries import Querying
from txnqueue.protocols.dtx.replies import (
    BranchRolledBack,
    ChannelException,
    CommandInvalid,
    HeuristicallyCompleted,
    InternalError,
    NotAllowed,
    NotFound,
    NotImplementedHere,
    ReplyCode,
    XaStatus,
)
from txnqueue.protocols.dtx.tpc import TpcConnection, TpcXid
from txnqueue.protocols.dtx.xid import Xid

__all__ = [
    "AccessTicket",
    "BranchRolledBack",
    "Channel",
    "ChannelException",
    "CommandInvalid",
    "Connection",
    "DtxCoordination",
    "DtxDemarcation",
    "Execution",
    "HeuristicallyCompleted",
    "InternalError",
    "NotAllowed",
    "NotFound",
    "NotImplementedHere",
    "Querying",
    "ReplyCode",
    "TpcConnection",
    "TpcXid",
    "XaStatus",
    "Xid",
]
