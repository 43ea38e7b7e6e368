"""Somebody who leaves a transaction's block early, by a value or by ``Rollback``."""

from txnqueue import QueueManager, Rollback, Transaction


def first_amount(manager: QueueManager) -> float | None:
    with manager.transaction() as tx:
        batch = manager.queue("orders").receive(1, transaction=tx)
        return float(batch.messages()[0]["amount"]) if len(batch) else None


def take_all_or_none(manager: QueueManager, count: int) -> Transaction:
    with manager.transaction() as tx:
        if len(manager.queue("orders").receive(count, transaction=tx)) < count:
            raise Rollback(tx, reason="too few")
    return tx


def main(manager: QueueManager) -> None:
    manager.create_queue("orders", "amount double").send([{"amount": 1.5}])
    assert take_all_or_none(manager, 2).receipt is None
    assert first_amount(manager) == 1.5
    assert first_amount(manager) is None
