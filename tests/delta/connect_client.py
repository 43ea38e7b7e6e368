"""What a program of Spark Connect does with the library, in a process of its own.

    python -m tests.delta.connect_client sc://127.0.0.1:PORT ROOT [look | lose]

With ``lose`` it waits until the server is gone, and ends.

A process has classic sessions or those of Connect, not both.
"""

from __future__ import annotations

import socket
import sys
import time
from typing import Any

from tests.inside import client_of
from txnqueue import QueueDataSource, QueueManager
from txnqueue.errors import InvalidInput, PlatformMissing

SCHEMA = "order_id long, customer string, amount double"
CLOSES_SECONDS = 30
_BEGAN = time.monotonic()


def told(what: str) -> None:
    """Say what is done, and when: what a run costs is read from it."""
    print(f"{time.monotonic() - _BEGAN:6.1f} s: {what}", flush=True)


def work(spark: Any, manager: QueueManager) -> None:
    """Do what most programs do."""
    frame = spark.createDataFrame(
        [(n, f"c{n % 3}", float(n), n % 2) for n in range(40)], f"{SCHEMA}, wait int"
    )
    orders = manager.create_queue("orders", SCHEMA, lanes=2)
    done = manager.create_queue("done", "customer string, amount double", dead_letter=False)
    told("queues")
    sent = orders.send(
        frame, delay_seconds="wait", header_columns={"of": "customer"}, order_by="order_id"
    )
    assert sent.count == 40
    assert orders.depth() >= 20
    orders.send([{"order_id": 100, "customer": "c9", "amount": -1.0}])
    told("sent")
    with manager.transaction("first") as tx:
        batch = orders.receive(1_000, transaction=tx)
        bad = batch.df.where("amount < 0")
        batch.reject(matching=bad, reason="negative", transaction=tx)
        kept = batch.df.where("amount >= 0").select("customer", "amount")
        done.send(kept, transaction=tx)
        table = tx.table("totals")
        table.append(kept)
        table.merge(
            spark.createDataFrame([("c9", 9.0)], "customer string, amount double"),
            on="customer",
            insert="*",
        )
    assert tx.receipt is not None and tx.receipt.applied
    taken = done.depth()
    assert spark.table("totals").count() == taken + 1
    assert manager.queue("orders.dead").depth() == 1
    told("a transaction")
    news = manager.create_exchange("news", "topic", "customer string, amount double")
    news.bind("done", routing_key="c.#")
    keyed = spark.createDataFrame([("c1", 1.0, "c.1")], "customer string, amount double, k string")
    assert news.publish(keyed, routing_key_column="k").count == 1
    told("published")
    with done.stream(lambda batch, tx: batch.df.count(), max_messages=taken + 1) as stream:
        assert stream.await_termination(120)
    assert stream.result.messages == taken + 1
    told("streamed")
    late = orders.receive(100, where="amount >= 0", wait_seconds=5)
    late.accept()
    told("received by a predicate")


def read_as_source(spark: Any, manager: QueueManager, folder: str) -> None:
    """Read a queue by its format, whose code the server has not."""
    QueueDataSource.register(spark)
    QueueDataSource.register(spark)  # the same once more, as a notebook does
    waiting = manager.queue("orders.dead").peek_messages()
    assert len(waiting) == 1
    batch = spark.read.format("txnqueue").option("queue", "orders.dead").load(manager.root)
    assert [row["amount"] for row in batch.collect()] == [-1.0]
    told("read as a source")
    stream = spark.readStream.format("txnqueue").option("queue", "orders.dead")
    query = (
        stream.load(manager.root)
        .writeStream.option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .toTable("dead_letters")
    )
    query.awaitTermination()
    assert [row["order_id"] for row in spark.table("dead_letters").collect()] == [100]
    told("streamed as a source")


def end_sessions(manager: QueueManager, *, lately: bool = False) -> None:
    """Let the server end all sessions of the library, as it does after an hour without a call.

    If ``lately``, it was asked for them less than a minute ago, as when somebody ends them.
    """
    store: Any = client_of(manager).store
    statements = store.statements
    idle = statements._idle
    for session in (*statements._sessions.values(), *idle[True], *idle[False]):
        session.client.release_session()
    if not lately:
        statements._asked.clear()


def go_on(spark: Any, manager: QueueManager) -> None:
    """Work on each time that all sessions have ended: a call goes on, and does all once."""
    orders = manager.queue("orders")
    before = spark.table("totals").count()
    end_sessions(manager)
    assert orders.depth() == 0
    end_sessions(manager)
    orders.send([{"order_id": n, "customer": "late", "amount": 1.0} for n in (200, 201)])
    end_sessions(manager)
    first = orders.receive(1)
    assert first.accept() == 1
    with manager.transaction() as tx:
        second = orders.receive(10, transaction=tx)
        tx.table("totals").append([{"customer": "late", "amount": 1.0}])
        end_sessions(manager, lately=True)
        # They lie in two lanes, of which either may come first.
        got = [row["order_id"] for batch in (first, second) for row in batch.messages()]
        assert sorted(got) == [200, 201], got
        end_sessions(manager)
    assert tx.receipt is not None
    manager.recover()  # if a change was left to it
    assert (orders.depth(), orders.in_flight()) == (0, 0)
    assert spark.table("totals").count() == before + 1
    told("went on in other sessions")


def end_all(spark: Any, manager: QueueManager) -> None:
    """Let the server end the user's session, too: no other one has its settings."""
    end_sessions(manager)
    spark.client.release_session()
    try:
        manager.queue("orders").depth()
    except PlatformMissing as error:
        assert "has ended this manager's session" in str(error)
    else:
        raise AssertionError("it went on")
    told("ended")


def refused(spark: Any, manager: QueueManager) -> None:
    """Try what cannot be done."""
    orders = manager.queue("orders")
    stream = spark.readStream.format("rate").load().selectExpr("value AS order_id")
    sinks = [orders.sink, lambda: manager.sink(print), manager.exchange("news").sink]
    takes = [
        orders.send,
        manager.exchange("news").publish,
        manager.transaction().table("totals").append,
    ]
    for call in [*sinks, *(lambda take=take: take(stream) for take in takes)]:
        try:
            call()
        except InvalidInput as error:
            assert "foreachBatch" in str(error)
        else:
            raise AssertionError("a stream was taken")
    told("refused")


def look(spark: Any, manager: QueueManager) -> None:
    """Look at what was done, and tidy up."""
    steps: list[Any] = manager.history.trace(queue="orders", where="order_id = 100").rows()
    assert [step["step"] for step in steps][:2] == ["sent", "claimed"]
    told("traced")
    manager.create_queue("nothing", SCHEMA, dead_letter=False)
    manager.create_views("connect_")
    assert spark.sql("SELECT * FROM connect_orders WHERE state = 'accepted'").count() > 0
    assert spark.sql("SELECT * FROM connect_nothing").count() == 0
    told("views")
    manager.maintain(transaction_seconds_max=0, payload_retention_days=0, vacuum=False)
    told("maintained")
    assert manager.history.verify().ok
    told("verified")


def lose(remote: str, manager: QueueManager) -> None:
    """Wait for the server to be gone while a manager has a change to confirm, and close that."""
    manager.create_queue("orders", SCHEMA).send([{"order_id": 1, "customer": "c", "amount": 1.0}])
    with manager.transaction() as tx:
        tx.table("totals").append([{"customer": "c", "amount": 1.0}])
    print("open", flush=True)
    host, port = remote.removeprefix("sc://").split(":")
    while True:
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            break
        time.sleep(0.1)
    told("the server is gone")
    began = time.monotonic()
    manager.close()
    assert time.monotonic() - began < CLOSES_SECONDS
    told("closed")


def main(remote: str, root: str, *more: str) -> None:
    """Work on a store, and look at it too if that is said."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(remote).getOrCreate()
    spark.sql("CREATE TABLE totals (customer string, amount double) USING delta")
    if "lose" in more:
        lose(remote, QueueManager(spark, root))
        spark.client.close()  # whose own exit hook would wait for ten minutes
        print("done", flush=True)
        return
    told("connected")
    with QueueManager(spark, root) as manager:
        work(spark, manager)
        read_as_source(spark, manager, f"{root}-source")
        refused(spark, manager)
        go_on(spark, manager)
        if "look" in more:
            look(spark, manager)
    told("closed")
    unclosed = QueueManager(spark, root)
    assert unclosed.queue("done").depth() == 0
    end_all(spark, unclosed)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
