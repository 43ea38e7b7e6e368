"""The command that prepares this machine: Delta's jars, and an archive of Java's classes."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from txnqueue.cli.console import OpenStore, command
from txnqueue.errors import PlatformMissing
from txnqueue.platform.local_spark import archive_classes, fetch_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@command("setup")
def setup(session: OpenStore) -> None:
    """Fetch Delta's jars and archive Java's classes: later sessions start in half the time."""
    jars = len(fetch_jars())
    try:
        archive, note = str(archive_classes(_work)), "is there"
    except PlatformMissing as error:
        archive, note = None, f"could not be made: {error}"
    session.printer.fact(
        {"jars": jars, "class_archive": archive},
        f"Delta's jar files: {jars}. The class archive {archive or ''} {note}.",
    )


def _work(spark: SparkSession) -> None:
    """Do once, on a store that is thrown away, what most programs do."""
    from txnqueue.manager import QueueManager

    with tempfile.TemporaryDirectory() as folder:
        table = f"{folder}/table"
        spark.range(1).write.format("delta").save(table)
        with QueueManager(spark, f"{folder}/store") as manager:
            queue = manager.create_queue("queue", "id long, text string")
            queue.send([{"id": 1, "text": "one"}])
            queue.send(spark.sql("SELECT id, string(id) AS text FROM range(10, 20)"))
            queue.peek_messages()
            with manager.transaction() as tx:
                batch = queue.receive(100, transaction=tx)
                batch.df.groupBy("text").count().toArrow()
                batch.messages()
                tx.table(table).append(batch.df.select("id"))
                tx.table(table).merge(batch.df.select("id"), on="id", update="*", insert="*")
