"""Somebody in a notebook: sends rows and DataFrames, looks at messages, settles them."""

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from txnqueue import Batch, Message, Queue, QueueManager, Rows, SendResult, local_spark


def session() -> SparkSession:
    return local_spark(memory="1g")


def connect(spark: SparkSession) -> QueueManager:
    return QueueManager(spark, "/lake/messaging", actor="ada")


def send(queue: Queue, rows: Rows) -> SendResult:
    return queue.send(rows, priority=9, headers={"source": "notebook"})


def send_tables(queue: Queue, frame: DataFrame) -> int:
    return send(queue, frame).count + send(queue, frame.toPandas()).count


def with_frames(manager: QueueManager) -> None:
    orders = manager.queue("orders")
    invoices = manager.queue("invoices")
    with manager.transaction() as tx:
        batch = orders.receive(1_000, transaction=tx)
        totals = batch.df.groupBy("customer").agg(F.sum("amount").alias("total"))
        invoices.send(totals, transaction=tx)
        batch.reject(where="amount < 0", reason="negative", transaction=tx)
    orders.peek(where="amount > 5").show()
    orders.receive(matching=totals, on="customer").release()


def title(message: Message) -> str:
    about = message["_message"]
    if about["origin"] is not None:
        return f"{about['id']} of {about['origin']['queue']}: {about['origin']['reason']}"
    return f"{about['id']} since {about['enqueued_at'].isoformat()} {dict(about['headers'] or [])}"


def settle(batch: Batch) -> list[str]:
    titles = [title(message) for message in batch.messages()]
    batch.accept(matching=batch.messages()[:1])
    batch.release(matching=[message["_message"]["id"] for message in batch.messages()[1:2]])
    batch.modify(delivery_failed=False)
    return titles


def main(manager: QueueManager) -> None:
    orders = manager.create_queue("orders", "customer string, amount double", lanes=2)
    sent = send(orders, [{"customer": "ada", "amount": 9.5}, {"customer": "bob", "amount": 3.0}])
    assert sent.receipt is not None
    print(sent.count, sent.receipt.commit_seq, orders.depth())
    send(orders, pd.DataFrame({"customer": ["eve"], "amount": [1.0]}))
    print([title(message) for message in orders.peek_messages()])
    print(settle(orders.receive()), orders.in_flight())

    sold = manager.create_exchange("sold", "topic", "customer string, amount double")
    assert sold.bind(orders, routing_key="eu.#")
    published = sold.publish([{"customer": "yan", "amount": 2.0}], routing_key="us")
    print(published.queues, [title(message) for message in published.returned_messages()])
    print(orders.alter("note string", lease_seconds=600))
