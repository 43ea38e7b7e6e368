"""OpenAMQ's message transactions on the queues of a store.

A *channel* has two lists: ``transact_list`` holds the messages sent in a transaction until it
commits, and ``dispatch_list`` holds dispatched messages until they are acknowledged or given back.
A commit is one decision over both. A rollback drops the sent messages and takes acknowledgements
back; it does not return messages to their queues, as ``unget`` does.

Example::

    channel = Connection(manager).channel()
    channel.select(transacted=True)
    for dispatch in channel.dispatch("orders").dispatches:
        channel.send("invoices", [invoice_of(dispatch.message)])
    channel.ack()
    channel.commit()

A dispatch is a lease; the commit that acknowledges it binds it to the transaction.
"""

from txnqueue.protocols.openamq.channel import Channel
from txnqueue.protocols.openamq.connection import Connection
from txnqueue.protocols.openamq.lists import Dispatch, Held, Queued, Reply, Status

__all__ = ["Channel", "Connection", "Dispatch", "Held", "Queued", "Reply", "Status"]
