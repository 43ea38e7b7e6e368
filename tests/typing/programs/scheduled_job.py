"""A job of a scheduler: drains a queue, runs transactions again, and knows its errors."""

from __future__ import annotations

import logging
import sqlite3
from typing import TYPE_CHECKING, Any

from txnqueue import (
    Batch,
    DrainResult,
    Handler,
    QueueManager,
    Receipt,
    RetryPolicy,
    Status,
    Transaction,
    errors,
)

if TYPE_CHECKING:
    import psycopg

logger = logging.getLogger("job")


def price(batch: Batch, tx: Transaction) -> None:
    rows = [{"customer": m["customer"], "total": m["amount"]} for m in batch.messages()]
    tx.queue("invoices").send(rows, durable=True)


def drain(manager: QueueManager, run_id: str, handler: Handler) -> DrainResult:
    orders = manager.queue("orders")
    try:
        return orders.drain(handler, run_id=run_id, until="empty", errors_max=3, on_batch=print)
    except errors.HandlerFailed as failed:
        logger.error("%s batches before %s", failed.result.batches, failed.__cause__)
        return failed.result
    except errors.QueueClosed as closed:
        raise SystemExit(f"{closed.name} is being dropped") from closed


def load(manager: QueueManager, day: str) -> Receipt:
    def work(tx: Transaction) -> None:
        tx.queue("orders").send([{"customer": "ada", "amount": 1.0}])

    retry = RetryPolicy(attempts_max=3, seconds_max=60)
    return manager.run_transaction(work, retry=retry, transaction_id=f"load of {day}")


def with_a_database(manager: QueueManager, ledger: sqlite3.Connection) -> Status:
    with manager.transaction(metadata={"job": "ledger"}) as tx:
        batch = manager.queue("invoices").receive(10, transaction=tx)
        booked = tx.enlist("ledger", ledger, last=True)
        booked.executemany(
            "INSERT INTO booked VALUES (?)", [(m["total"],) for m in batch.messages()]
        )
    return tx.status


def with_postgres(manager: QueueManager, connect: psycopg.Connection[Any]) -> None:
    with manager.transaction() as tx:
        billing = tx.enlist("billing", connect)
        billing.execute("INSERT INTO bills SELECT 1")
        log = tx.auxiliary("log", connect)
        log.execute("INSERT INTO log SELECT 1")
        log.commit()
    manager.recover({"billing": connect})


def carefully(manager: QueueManager) -> str | None:
    orders = manager.queue("orders")
    tx = manager.transaction()
    try:
        orders.receive(transaction=tx)
        return tx.commit().transaction_id
    except errors.TransactionAborted as aborted:
        logger.warning("%s: %s %s", aborted.transaction_id, aborted.reason, aborted.receipt)
    except errors.TransactionUnknown as unknown:
        return manager.outcome(unknown.transaction_id, unknown.attempt).status.value
    except errors.LeaseLost as lost:
        logger.warning("lost in %s: %s", lost.queue, lost.message)
    except errors.Busy as busy:
        logger.warning("%s gave up after %d tries", busy.operation, busy.tries)
    return None


def main(manager: QueueManager) -> None:
    manager.create_queue("orders", "customer string, amount double")
    manager.create_queue("invoices", "customer string, total double")
    assert load(manager, "monday") == load(manager, "monday")
    result = drain(manager, "pricing of monday", price)
    print(result.batches, result.messages, result.finished, result.last_error)
    ledger = sqlite3.connect(":memory:")
    ledger.execute("CREATE TABLE booked (total double)")
    ledger.commit()
    assert with_a_database(manager, ledger) is Status.COMMITTED
    print(carefully(manager))
    for attempt in manager.attempts(transaction_id="again"):
        with attempt as tx:
            tx.queue("orders").send([{"customer": "bob"}])
    batch = manager.queue("orders").receive(lease_seconds=60)
    with batch.heartbeat(lease_seconds=60) as heartbeat:
        print(len(batch), heartbeat.lost)
    batch.accept()
