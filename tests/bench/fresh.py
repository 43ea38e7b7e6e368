"""A fresh process that does the first things once, and prints what each took."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.case import Parts, steps
from tests.bench.floors import Journal, RawTable


def queue(spark: Callable[[], Any], folder: Path) -> Parts:
    """Use the library for the first time."""
    from tests.bench.floors import aggregate
    from tests.bench.world import SCHEMA
    from txnqueue import QueueManager

    row = {"order_id": 1, "customer": "ada", "amount": 9.5}
    made: list[Any] = []

    def receive() -> None:
        with made[0].transaction() as tx:
            aggregate(made[1].receive(transaction=tx).df, 1)

    def create() -> None:
        made.append(QueueManager(spark(), str(folder)))
        made.append(made[0].create_queue("orders", SCHEMA))

    return steps(
        session=spark,
        create=create,
        send=lambda: made[1].send([row]),
        receive=receive,
    )()


def raw(spark: Callable[[], Any], folder: Path) -> Parts:
    """Do the like with plain Delta."""
    made: list[RawTable] = []
    merge = (
        f"MERGE INTO delta.`{folder}` t USING (SELECT 2L AS order_id, 'bob' AS customer, "
        "3.0D AS amount) s ON t.order_id = s.order_id WHEN NOT MATCHED THEN INSERT *"
    )
    return steps(
        session=spark,
        CREATE=lambda: made.append(RawTable(spark(), folder)),
        INSERT=lambda: made[0].insert(1),
        MERGE=lambda: spark().sql(merge).collect(),
        read=lambda: made[0].aggregate(1, 1),
    )()


def statements(spark: Callable[[], Any], folder: Path) -> Parts:
    """Execute as many statements of plain Delta as the library does, and set as it sets them."""
    tables: list[RawTable] = []
    journals: list[Journal] = []

    def create() -> None:
        journals.append(Journal.make(spark(), folder / "journal", versions=0))
        tables.extend(RawTable(spark(), folder / name) for name in ("orders", "dead"))
        journals[0].merge()

    def send() -> None:
        tables[0].insert(1)
        journals[0].merge()

    def receive() -> None:
        journals[0].merge()
        tables[0].aggregate(1, 1)
        journals[0].merge()

    return steps(session=spark, create=create, send=send, receive=receive)()


def plain_session() -> Any:
    """Start a session as Spark's users do, who name Delta's jars: it has no class archive."""
    from txnqueue import local_spark
    from txnqueue.platform.local_spark import cached_jars, delta_coordinate

    jars = ",".join(map(str, cached_jars(delta_coordinate())))
    return local_spark(settings={"spark.jars": jars})


def main(what: str, start: str, folder: str) -> None:
    """Do the first things.

    Args:
        what: "queue", "raw" or "statements".
        start: "archived", as after ``txnqueue setup``; "short", as the command line starts it
            then; or "plain".
        folder: Where tables go.
    """
    from txnqueue import local_spark

    sessions: dict[str, Callable[[], Any]] = {
        "archived": local_spark,
        "short": partial(local_spark, short_lived=True),
        "plain": plain_session,
    }
    session = sessions[start]
    work = {"queue": queue, "raw": raw, "statements": statements}[what]
    parts = work(session, Path(folder))
    print(json.dumps(parts), flush=True)
    session().stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
