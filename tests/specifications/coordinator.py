"""A coordinator of two resources: a store of queues, prepared, and SQLite, whose commit decides."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

from tests import drivers
from txnqueue import QueueManager
from txnqueue.protocols.dtx import TpcConnection

STEPS = ("begun", "sent", "prepared", "written", "decided", "committed")


def place_order(
    queues: Any, database: sqlite3.Connection, queue: str, n: int, step: Callable[[str], None]
) -> None:
    xid = queues.xid(1, f"order-{n}", queue)
    queues.tpc_begin(xid)
    step("begun")
    queues.queue(queue).send([{"n": n}])
    step("sent")
    queues.tpc_prepare()
    step("prepared")
    database.execute("INSERT INTO orders VALUES (?)", (n,))
    database.execute("INSERT INTO decided VALUES (?)", (xid.gtrid,))
    step("written")
    database.commit()
    step("decided")
    queues.tpc_commit()
    step("committed")


def recover(queues: Any, database: sqlite3.Connection) -> None:
    for xid in queues.tpc_recover():
        found = database.execute("SELECT 1 FROM decided WHERE gtrid = ?", (xid.gtrid,)).fetchone()
        queues.tpc_commit(xid) if found else queues.tpc_rollback(xid)


def open_database(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE IF NOT EXISTS orders (n INTEGER)")
    database.execute("CREATE TABLE IF NOT EXISTS decided (gtrid TEXT PRIMARY KEY)")
    database.commit()
    return database


def main(root: str, path: str, queue: str, n: str, kill_at: str) -> None:
    def step(name: str) -> None:
        if name == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    spark = drivers.session("coordinator")
    queues = TpcConnection(QueueManager(spark, root, actor="coordinator"))
    place_order(queues, open_database(path), queue, int(n), step)


if __name__ == "__main__":
    main(*sys.argv[1:])
