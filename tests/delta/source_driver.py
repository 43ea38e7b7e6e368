"""A driver process of its own that copies a queue by ``readStream``, until it kills itself."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tests import drivers
from txnqueue import QueueDataSource, QueueManager


def main(root: str, checkpoint: str, dies: str, at: str) -> None:
    """Run a streaming query, and die in a batch, before or after its commit."""
    spark = drivers.session("source")
    spark.dataSource.register(QueueDataSource)
    sink = QueueManager(spark, root).queue("copies").sink()

    def write(rows: Any, batch_id: int) -> None:
        if (dies, batch_id) == ("before", int(at)):
            os.kill(os.getpid(), signal.SIGKILL)
        sink(rows.select("n"), batch_id)
        if (dies, batch_id) == ("after", int(at)):
            os.kill(os.getpid(), signal.SIGKILL)

    source = spark.readStream.format("txnqueue").options(queue="orders", maxMessagesPerTrigger=1)
    writer = source.load(root).writeStream.foreachBatch(write)
    writer.option("checkpointLocation", checkpoint).start().processAllAvailable()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
