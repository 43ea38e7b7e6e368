"""The consumer of the demo, a process of its own: drains a queue and routes what it holds.

Each batch is one transaction: it receives, rejects what was cancelled, sends delayed
flights to ``rebooking`` and totals per carrier to ``totals``, and merges these totals into a
Delta table. It tells its parent what it does by JSON lines on stdout.

With ``--pause-at N`` it stops in its Nth batch, after all work and before the commit, and
waits there to be killed. With ``--pause-before-apply`` it takes one batch only, and stops
between its commit and the change of the table that was decided by it.

With ``--standby`` it starts Spark and waits for a line on stdin, as a spare does that is to
take over at once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from flights_data import DELAYED

PAUSE_SECONDS = 600
ADDED = {
    "flights": "target.flights + source.flights",
    "delay_minutes": "coalesce(target.delay_minutes, 0) + coalesce(source.delay_minutes, 0)",
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--actor", required=True)
    parser.add_argument("--consumer", default="flights-consumer")
    parser.add_argument("--run-id", default="consume")
    parser.add_argument("--batch-size", type=int, default=100_000)
    parser.add_argument("--reject-where")
    parser.add_argument("--reason", default="")
    parser.add_argument("--routed", action="store_true", help="the rows are flights")
    parser.add_argument("--table", help="the Delta table that totals are merged into")
    parser.add_argument("--pause-at", type=int, help="stop before committing this batch")
    parser.add_argument("--pause-before-apply", action="store_true")
    parser.add_argument("--standby", action="store_true", help="begin when a line comes on stdin")
    return parser.parse_args()


def tell(event: str, **details: object) -> None:
    print(json.dumps({"event": event, **details}), flush=True)


def wait_to_be_killed() -> None:
    time.sleep(PAUSE_SECONDS)
    raise TimeoutError("nobody killed this process")


class PausingTables:
    """The user's tables, which a decided change does not reach."""

    def __init__(self, tables: Any) -> None:
        self._tables = tables

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tables, name)

    def apply(self, change: Any, stamp: Any, **_: Any) -> None:
        tell("decided", transaction_id=stamp.transaction_id, table=change.table)
        wait_to_be_killed()


def make_handler(given: argparse.Namespace) -> Any:
    """Make what is done with each batch, in its transaction."""
    from pyspark.sql import functions as F

    handled = 0

    def handle(batch: Any, tx: Any) -> None:
        nonlocal handled
        rows = batch.df.cache()
        try:
            kept = rows
            if given.reject_where:
                rejected = rows.where(given.reject_where)
                batch.reject(matching=rejected, reason=given.reason)
                kept = rows.where(f"({given.reject_where}) IS NOT TRUE")
            if given.routed:
                tx.queue("rebooking").send(kept.where(DELAYED))
                counted = kept.groupBy("carrier").agg(
                    F.count("*").alias("flights"), F.sum("dep_delay").alias("delay_minutes")
                )
                totals = counted.toArrow()
                tx.queue("totals").send(totals)
                if given.table:
                    tx.table(given.table).merge(totals, on="carrier", update=ADDED, insert="*")
        finally:
            rows.unpersist()
        if handled == given.pause_at:
            tell("holding", messages=len(batch), transaction_id=tx.id)
            wait_to_be_killed()
        handled += 1

    return handle


def main() -> int:
    given = arguments()
    from txnqueue.manager import QueueManager
    from txnqueue.platform.local_spark import local_spark
    from txnqueue.storage.store import DeltaStore

    spark = local_spark(given.actor, short_lived=True)
    if given.standby and not sys.stdin.readline():
        return 0  # nobody needs this spare any more
    store: Any = DeltaStore(spark, given.root)
    if given.pause_before_apply:
        store.tables = PausingTables(store.tables)
    manager = QueueManager(
        spark,
        store=store,
        actor=given.actor,
        run_id=given.run_id,
        # The next process of this id takes over at once what this one leaves behind.
        consumer=given.consumer,
    )
    found = manager.recover()
    tell("started", aborted=len(found.aborted), waiting=len(found.waiting))
    result = manager.queue(given.queue).drain(
        make_handler(given),
        batch_size=given.batch_size,
        run_id=given.run_id,
        errors_max=3,
        max_batches=1 if given.pause_before_apply else None,
        on_batch=lambda messages: tell("committed", messages=messages),
    )
    tell(
        "finished",
        batches=result.batches,
        messages=result.messages,
        errors=result.errors,
        finished=result.finished,
        already_finished=result.already_finished,
    )
    spark.stop()
    return 0 if result.finished else 1


if __name__ == "__main__":
    sys.exit(main())
