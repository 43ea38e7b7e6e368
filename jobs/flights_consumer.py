"""The consumer of the demo, a process of its own: drains a queue and routes what it holds.

Each batch is one transaction: it receives, rejects what was cancelled, sends delayed
flights to ``rebooking`` and totals per carrier to ``totals``. It tells its parent what it
does by JSON lines on stdout. With ``--pause-at N`` it stops in its Nth batch, after all
work and before the commit, and waits there to be killed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from flights_data import DELAYED

PAUSE_SECONDS = 600


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
    parser.add_argument("--pause-at", type=int, help="stop before committing this batch")
    return parser.parse_args()


def tell(event: str, **details: object) -> None:
    print(json.dumps({"event": event, **details}), flush=True)


def make_handler(given: argparse.Namespace):
    """Make what is done with each batch, in its transaction."""
    from pyspark.sql import functions as F

    handled = 0

    def handle(batch, tx) -> None:
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
                totals = kept.groupBy("carrier").agg(
                    F.count("*").alias("flights"), F.sum("dep_delay").alias("delay_minutes")
                )
                tx.queue("totals").send(totals)
        finally:
            rows.unpersist()
        if handled == given.pause_at:
            tell("holding", messages=len(batch), transaction_id=tx.id)
            time.sleep(PAUSE_SECONDS)
            raise TimeoutError("nobody killed this process")
        handled += 1

    return handle


def main() -> int:
    given = arguments()
    from txnqueue.environment import local_spark
    from txnqueue.manager import QueueManager

    spark = local_spark(given.actor, settings={"spark.ui.showConsoleProgress": "false"})
    manager = QueueManager(
        spark,
        given.root,
        actor=given.actor,
        run_id=given.run_id,
        # The next process of this id takes over at once what this one leaves behind.
        consumer=given.consumer,
    )
    tell("started")
    result = manager.queue(given.queue).drain(
        make_handler(given),
        batch_size=given.batch_size,
        run_id=given.run_id,
        errors_max=3,
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
