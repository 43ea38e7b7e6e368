"""Somebody who thinks in a specification's terms: XA, AMQP, OpenAMQ, MS-MQQB, message flows."""

import sqlite3

from txnqueue import QueueManager, errors
from txnqueue.protocols import amqp, dtx, flow, mqqb, openamq


def xa(manager: QueueManager) -> dtx.XaStatus:
    connection = dtx.Connection(manager)
    channel = connection.channel()
    channel.select()
    xid = dtx.Xid.of(1, b"order-17", b"queues")
    channel.start(xid)
    channel.queue("orders").send([{"order_id": 17}])
    channel.end(xid)
    if channel.prepare(xid) is dtx.XaStatus.OK:
        return channel.commit(xid)
    return channel.rollback(xid)


def python_names_for_it(manager: QueueManager, other: QueueManager) -> None:
    remote = dtx.TpcConnection(other)
    try:
        with manager.transaction() as tx:
            there = tx.enlist("there", remote)
            there.queue("orders").send([{"order_id": 18}])
            tx.queue("orders").send([{"order_id": 19}])
    except dtx.HeuristicallyCompleted as decided:
        print(decided.transaction_id, decided.status.value)
    except errors.TransactionAborted as aborted:
        print(aborted.transaction_id)


def amqp_1_0(manager: QueueManager) -> None:
    rules = amqp.AccessRules.read({"rules": [{"users": ["anonymous"], "send": ["orders"]}]})
    limits = amqp.Limits(connections=10, message_bytes=1_000_000)
    try:
        with amqp.AmqpServer(manager, port=0, rules=rules, limits=limits) as server:
            host, port = server.address
            print(host, port, server.connections)
    except errors.PlatformMissing as missing:  # python-qpid-proton
        print(missing)
    session = amqp.TransactionalResource(manager).connect().begin()
    source = amqp.Source("orders")
    session.handle(amqp.Attach(name="r", handle=0, role=amqp.Role.RECEIVER, source=source))
    try:
        for frame in session.handle(amqp.Flow(handle=0, link_credit=10)):
            if isinstance(frame, amqp.Transfer) and frame.delivery_id is not None:
                settled = amqp.Disposition(
                    role=amqp.Role.RECEIVER,
                    first=frame.delivery_id,
                    settled=True,
                    state=amqp.Accepted(),
                )
                session.handle(settled)
    except amqp.AmqpError as refused:
        print(refused.error.symbol, refused.description)


def message_transactions(manager: QueueManager) -> openamq.Reply:
    channel = openamq.Connection(manager).channel()
    channel.select(transacted=True)
    for dispatch in channel.dispatch("orders", limit=10).dispatches:
        channel.send("invoices", [{"order_id": dispatch.message["order_id"]}])
        print(dispatch.message["_message"]["delivery_count"])
        channel.ack(dispatch.tag)
    return channel.commit()


def local_queue_manager(manager: QueueManager) -> mqqb.RStatus:
    local = mqqb.LocalQueueManager(manager)
    transaction = local.create_transaction()
    local.enqueue_message("orders", {"order_id": 7}, transaction.identifier)
    return local.transaction_commit(transaction.identifier)


def book(processing: flow.Processing) -> None:
    processing.execute("audit", "INSERT INTO seen VALUES (?)", [processing.message["order_id"]])
    processing.put("invoices", [{"order_id": processing.message["order_id"]}])


def message_flow(manager: QueueManager) -> None:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:")
        connection.execute("CREATE TABLE seen (order_id integer)")
        connection.commit()
        return connection

    audit = flow.DataSource("audit", connect, last=True)
    flow.MessageFlow(manager, "orders", [book], data_sources=[audit]).run()


def main(manager: QueueManager) -> None:
    orders = manager.create_queue("orders", "order_id long")
    manager.create_queue("invoices", "order_id long")
    assert xa(manager) is dtx.XaStatus.OK
    assert message_transactions(manager).status is openamq.Status.OK
    assert local_queue_manager(manager) is mqqb.RStatus.MQ_OK
    message_flow(manager)
    orders.send([{"order_id": 8}])
    amqp_1_0(manager)
    assert (orders.depth(), manager.queue("invoices").depth()) == (0, 2)
