"""What a type checker must refuse, line by line: mypy's codes for it, and pyright's."""

import sqlite3

from txnqueue import Batch, Message, Queue, QueueManager, TraceStep, Transaction


def connects(manager: QueueManager) -> None:
    QueueManager("/lake/messaging")  # wrong: arg-type, reportArgumentType
    QueueManager(None, "/lake", actors="ada")  # wrong: call-arg, reportCallIssue
    manager.creat_queue("orders")  # wrong: attr-defined, reportAttributeAccessIssue
    manager.create_queue("orders", like=[{"a": 1}])  # wrong: arg-type, reportArgumentType
    manager.create_queue("orders", "a long", lanes="4")  # wrong: arg-type, reportArgumentType
    manager.create_exchange("sold", "tpoic", "a long")  # wrong: arg-type, reportArgumentType
    manager.recover({"ledger": "postgres://"})  # wrong: dict-item, reportArgumentType


def sends(queue: Queue, tx: Transaction) -> None:
    queue.send(7)  # wrong: arg-type, reportArgumentType
    queue.send("a row")  # wrong: arg-type, reportArgumentType
    queue.send(["a row"])  # wrong: list-item, reportArgumentType
    queue.send([{"a": 1}], tx)  # wrong: call-arg arg-type, reportCallIssue
    queue.send([{"a": 1}], transaction="tx-1")  # wrong: arg-type, reportArgumentType
    queue.send([{"a": 1}], headers={"a": 1})  # wrong: dict-item, reportArgumentType
    sent = queue.send([{"a": 1}])
    print(sent.commit_seq)  # wrong: attr-defined, reportAttributeAccessIssue
    print(sent.receipt.commit_seq)  # wrong: union-attr, reportOptionalMemberAccess


def receives(queue: Queue) -> None:
    queue.receive("10")  # wrong: arg-type, reportArgumentType
    for message in queue.receive(10):  # wrong: attr-defined, reportGeneralTypeIssues
        print(message)
    queue.receive(10).accept(matching=7)  # wrong: arg-type, reportArgumentType
    queue.alter(lanes=4)  # wrong: call-arg, reportCallIssue
    queue.alter(lease_seconds="600")  # wrong: arg-type, reportArgumentType


def reads(message: Message, step: TraceStep) -> None:
    print(message["_message"]["orgin"])  # wrong: typeddict-item, reportGeneralTypeIssues
    print(message["_message"]["origin"]["queue"])  # wrong: index, reportOptionalSubscript
    print(step["time"])  # wrong: typeddict-item, reportGeneralTypeIssues


def watches(manager: QueueManager) -> None:
    for row in manager.metrics().rows():
        print(row["visable"])  # wrong: typeddict-item, reportGeneralTypeIssues
        print(row["oldest_age_seconds"] + 1)  # wrong: operator, reportOptionalOperand
    for state in manager.history.as_of().counts().rows():
        print(state["queue"] + state["posted"])  # wrong: operator, reportOperatorIssue


def drains(queue: Queue) -> None:
    def one_argument(batch: Batch) -> None:
        batch.accept()

    queue.drain(one_argument)  # wrong: arg-type, reportArgumentType
    queue.drain(lambda batch, tx: None, until="end")  # wrong: arg-type, reportArgumentType


def enlists(tx: Transaction, ledger: sqlite3.Connection) -> None:
    tx.enlist("ledger", ledger)  # wrong: call-overload, reportArgumentType
    tx.auxiliary("ledger", "ledger.db")  # wrong: arg-type, reportArgumentType
