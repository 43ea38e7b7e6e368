"""Makes the small store that each version leaves to the later ones.

    python -m tests.stores.make_store FOLDER

writes ``FOLDER/store`` and ``FOLDER/totals``, a table of a user, with the version that is
installed. What is in it is told by ``CONTENTS``; ``test_older_stores`` reads it on. The folder
was packed with ``tar -czf VERSION.tar.gz -C FOLDER store totals`` and is never made again: a
store that a newer library wrote would show nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from txnqueue import QueueManager
from txnqueue.platform.local_spark import local_spark
from txnqueue.transactions.table_applier import Applier

SCHEMA = "older_stores"
"""The catalog schema through which the store knows the user's table."""
CONTENTS = """
queue orders    lanes 2: 6 accepted and archived, 2 dead, 3 held under a lease that is over, 2 held
                by the prepared transaction, 7 available, 1 of a far tomorrow
queue invoices  1 available, 1 of the prepared transaction
queue unique    message ids, 1 available; a second one of the same id was left out
queue gone      dropped
exchange news   topic, bound to invoices by 'bill.#'
transactions    load/1 committed and archived, back/1 rolled back, hold/1 prepared,
                totals/1 committed with its table change applied, totals/2 without
table totals    ('ada', 1.0) of totals/1; totals/2 adds ('bob', 2.0)
"""


def make(spark: Any, folder: Path) -> None:
    spark.sql(f"CREATE SCHEMA {SCHEMA}")
    spark.sql(
        f"CREATE TABLE {SCHEMA}.totals (customer string, total double) USING delta "
        f"LOCATION '{folder}/totals'"
    )
    root = str(folder / "store")
    manager = QueueManager(spark, root, actor="operator", run_id="monday", consumer="first")
    orders = manager.create_queue("orders", "order_id long, customer string", lanes=2)
    invoices = manager.create_queue("invoices", "customer string, total double")
    unique = manager.create_queue(
        "unique", "k string", message_id="k", duplicate_window_seconds=604_800
    )
    manager.create_queue("gone", "n long", dead_letter=False).drop()
    news = manager.create_exchange("news", "topic", "customer string, total double")
    news.bind("invoices", routing_key="bill.#")

    with manager.transaction("load/1") as tx:
        orders.send([_order(n) for n in range(6)], transaction=tx)
    orders.receive(6).accept()
    manager.maintain(transaction_seconds_max=0, payload_retention_days=0, vacuum=False)

    orders.send([_order(n) for n in range(10, 24)])
    orders.send([_order(99)], delay_seconds=3650 * 86_400)
    with manager.transaction() as tx:
        tx.queue("orders").receive(2).reject(reason="negative")
    with manager.transaction("hold/1") as tx:
        tx.queue("orders").receive(2)
        tx.queue("invoices").send([{"customer": "eve", "total": 5.0}])
        tx.prepare()
    other = QueueManager(spark, root, actor="operator", consumer="second")
    other.queue("orders").receive(3, lease_seconds=1)
    invoices.send([{"customer": "ada", "total": 1.0}])
    unique.send([{"k": "a"}, {"k": "a"}])
    with manager.transaction("back/1") as tx:
        tx.queue("invoices").send([{"customer": "nobody", "total": 0.0}])
        tx.rollback("not wanted")
    with manager.transaction("totals/1") as tx:
        tx.table(f"{SCHEMA}.totals").append([{"customer": "ada", "total": 1.0}])
    Applier.apply = lambda self, *_: []  # dies before it applies
    with manager.transaction("totals/2") as tx:
        tx.table(f"{SCHEMA}.totals").append([{"customer": "bob", "total": 2.0}])


def _order(number: int) -> dict[str, object]:
    return {"order_id": number, "customer": "ada" if number % 2 else "bob"}


if __name__ == "__main__":
    session = local_spark("make store")
    make(session, Path(sys.argv[1]).resolve())
    session.stop()
