"""What a program of Spark Connect does with the library, in a process of its own.

    python -m tests.delta.connect_client sc://127.0.0.1:PORT ROOT

A process has classic sessions or those of Connect, not both.
"""

from __future__ import annotations

import sys
from typing import Any


def main(remote: str, root: str) -> None:
    from pyspark.sql import SparkSession

    from txnqueue import QueueManager
    from txnqueue.errors import InvalidInput

    spark = SparkSession.builder.remote(remote).getOrCreate()
    spark.sql("CREATE TABLE totals (customer string, amount double) USING delta")
    frame = spark.createDataFrame(
        [(n, f"c{n % 3}", float(n), n % 2) for n in range(40)],
        "order_id long, customer string, amount double, wait int",
    )
    with QueueManager(spark, root) as manager:
        orders = manager.create_queue(
            "orders", "order_id long, customer string, amount double", lanes=2
        )
        done = manager.create_queue("done", "customer string, amount double", dead_letter=False)
        sent = orders.send(
            frame, delay_seconds="wait", header_columns={"of": "customer"}, order_by="order_id"
        )
        assert sent.count == 40
        assert orders.depth() >= 20
        orders.send([{"order_id": 100, "customer": "c9", "amount": -1.0}])
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
        news = manager.create_exchange("news", "topic", "customer string, amount double")
        news.bind("done", routing_key="c.#")
        keyed = spark.createDataFrame(
            [("c1", 1.0, "c.1")], "customer string, amount double, k string"
        )
        assert news.publish(keyed, routing_key_column="k").count == 1
        result = done.drain(lambda batch, tx: batch.df.count(), batch_size=15)
        assert (result.messages, result.finished) == (taken + 1, True)
        late = orders.receive(100, where="amount >= 0", wait_seconds=5)
        late.accept()
        stream = spark.readStream.format("rate").load().selectExpr("value AS order_id")
        for take in (orders.send, manager.transaction().table("totals").append):
            try:
                take(stream)
            except InvalidInput as error:
                assert "foreachBatch" in str(error)
            else:
                raise AssertionError("a stream was taken")
        steps: list[Any] = manager.history.trace(queue="orders", where="order_id = 100").rows()
        assert [step["step"] for step in steps][:2] == ["sent", "claimed"]
        manager.create_views("connect_")
        assert spark.sql("SELECT * FROM connect_orders WHERE state = 'accepted'").count() > 0
        manager.maintain(transaction_seconds_max=0, payload_retention_days=0, vacuum=False)
        assert manager.history.verify().ok
    assert QueueManager(spark, root).queue("done").depth() == 0  # and is not closed
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
