"""OpenAMQ's message transactions on the queues of a store.

A *channel* has two lists. What it sent in a transaction is in its ``transact_list`` until
it commits; what was dispatched to it is in its ``dispatch_list`` until it acknowledges it or
gives it back. A commit is one decision over both. A roll back drops what was sent and takes the
acknowledgements back; it gives no message back to a queue: that is what ``unget`` is for.

Example::

    channel = Connection(manager).channel()
    channel.select(transacted=True)
    for dispatch in channel.dispatch("orders").dispatches:
        channel.send("invoices", [invoice_of(dispatch.message)])
    channel.ack()
    channel.commit()

A dispatch is a lease of the core, bound to the transaction by the commit that acknowledges it.
"""

from txnqueue.protocols.openamq.channel import Channel
from txnqueue.protocols.openamq.connection import Connection
from txnqueue.protocols.openamq.lists import Dispatch, Held, Queued, Reply, Status

__all__ = ["Channel", "Connection", "Dispatch", "Held", "Queued", "Reply", "Status"]
