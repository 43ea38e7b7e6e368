"""An operator: declares queues, watches them, recovers, maintains, decides by hand."""

from collections.abc import Iterator

from txnqueue import (
    Database,
    DeclarationResult,
    MaintenanceResult,
    Queue,
    QueueDropResult,
    QueueManager,
    RecoveryResult,
    TwoPhaseDatabase,
    WaitingChange,
    errors,
)


def declare(manager: QueueManager) -> list[DeclarationResult]:
    queues = {"orders": {"schema": "customer string", "lanes": 2}}
    return manager.declare({"queues": queues})


def waiting(recovery: RecoveryResult) -> Iterator[str]:
    change: WaitingChange
    for change in recovery.waiting:
        yield f"{change.table}: {change.reason}; {change.remedy} ({change.change_id})"


def recover(
    manager: QueueManager, connections: dict[str, Database | TwoPhaseDatabase]
) -> list[str]:
    recovery = manager.recover(connections)
    for transaction_id in recovery.prepared:
        manager.rollback(transaction_id, reason="nobody decides it")
    return [*waiting(recovery), *(drop.queue for drop in recovery.drops)]


def tidy(manager: QueueManager) -> MaintenanceResult:
    return manager.maintain(payload_retention_days=3, vacuum=False)


def drop(queue: Queue) -> QueueDropResult | None:
    try:
        return queue.drop(reason="not needed")
    except errors.QueueInUse as used:
        print(f"{used.name} takes the dead letters of {used.used_by}")
        return None


def main(manager: QueueManager) -> None:
    assert [step.action for step in declare(manager)] == ["create"]
    orders = manager.queue("orders")
    print(orders.info.settings.lanes, manager.list_queues(), manager.list_exchanges())
    orders.send([{"customer": "ada"}, {"customer": "bob"}])
    orders.receive(1).reject(reason="by hand")
    for row in orders.dead_letters().rows():
        print(row["reason"], row["waiting"])
    print(manager.queue("orders.dead").redrive(limit=1), manager.metrics().prometheus())
    print(orders.move(manager.create_queue("vips", "customer string")), orders.purge())
    print(recover(manager, {}), tidy(manager).archived)
    dead = drop(manager.queue("orders.dead"))
    assert dead is None
    gone = drop(orders)
    assert gone is not None and gone.dropped
    try:
        manager.queue("orders")
    except errors.QueueNotFound as missing:
        print(missing.name, missing.queue_id)
    try:
        manager.create_queue("no name", "a long")
    except errors.InvalidInput as wrong:  # which ValueError catches too
        print(wrong.name, wrong.column, wrong.message)
