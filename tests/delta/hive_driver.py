"""A driver process of its own whose catalog is a Hive metastore: makes a store, or goes on."""

from __future__ import annotations

import sys
from typing import Any

from txnqueue import Queue, QueueManager
from txnqueue.platform.local_spark import local_spark

SCHEMA = "messaging"
ORDERS = [{"order_id": n, "state": "NY"} for n in range(5)]


def session(folder: str) -> Any:
    """Start Spark with a metastore in a Derby database in that folder."""
    return local_spark(
        "hive",
        cores=1,
        memory="1g",
        settings={
            "spark.sql.catalogImplementation": "hive",
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
            "spark.hadoop.javax.jdo.option.ConnectionURL": (
                f"jdbc:derby:;databaseName={folder}/metastore;create=true"
            ),
            "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
            "spark.hadoop.hive.metastore.schema.verification": "false",
        },
        short_lived=True,
    )


def make(spark: Any) -> None:
    """Make a store and a table, and consume some messages into it."""
    spark.sql(f"CREATE SCHEMA {SCHEMA}")
    spark.sql(f"CREATE TABLE {SCHEMA}.sold (order_id bigint, state string) USING delta")
    manager = QueueManager(spark, SCHEMA)
    orders = manager.create_queue("orders", "order_id long, state string", lease_seconds=1)
    orders.send(ORDERS)
    orders.receive(2, where="order_id < 2").accept()
    with manager.transaction("kept") as tx:
        batch = tx.queue("orders").receive(1)
        tx.table(f"{SCHEMA}.sold").append(batch.df.select("order_id", "state"))
    views = manager.create_views()
    assert f"{SCHEMA}.orders" in views, views
    _check(spark, orders, {2})
    tables = {row.tableName for row in spark.sql(f"SHOW TABLES IN {SCHEMA}").collect()}
    assert {"txnqueue_journal", "sold", "orders"} <= tables, tables


def go_on(spark: Any) -> None:
    """Consume what another process left, maintain, and prove it; then drop the queue."""
    manager = QueueManager(spark, f"spark_catalog.{SCHEMA.upper()}")
    orders = manager.queue("orders")
    _check(spark, orders, {2})
    assert manager.outcome("kept").status.value == "committed"

    def sell(batch: Any, tx: Any) -> None:
        tx.table(f"{SCHEMA}.sold").append(batch.df.select("order_id", "state"))

    assert orders.drain(sell).messages == 2
    manager.maintain()
    _check(spark, orders, {2, 3, 4})
    assert manager.history.verify().ok
    assert orders.depth() == 0
    manager.drop_queue("orders")
    assert "orders" not in manager.list_queues()


def _check(spark: Any, orders: Queue, sold: set[int]) -> None:
    assert {row.order_id for row in spark.table(f"{SCHEMA}.sold").collect()} == sold
    rows = spark.newSession().table(f"{SCHEMA}.orders").collect()
    accepted = {row.order_id for row in rows if row._state == "accepted"}
    assert accepted == {0, 1} | sold, accepted
    assert orders.depth() == len(ORDERS) - len(accepted)


def main(folder: str, step: str) -> None:
    """Do one step, and say so."""
    spark = session(folder)
    assert spark.conf.get("spark.sql.catalogImplementation") == "hive"
    {"make": make, "go on": go_on}[step](spark)
    spark.stop()
    print("done")


if __name__ == "__main__":
    main(*sys.argv[1:])
