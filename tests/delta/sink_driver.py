"""A driver process of its own that streams files into a queue, until it kills itself or is done."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tests import drivers
from txnqueue import QueueManager

SCHEMA = "n long, key string"


def main(root: str, files: str, checkpoint: str, dies: str, at: str) -> None:
    """Run a streaming query, and die in a batch, before or after its commit."""
    spark = drivers.session("sink")
    sink = QueueManager(spark, root).queue("orders").sink()

    def write(rows: Any, batch_id: int) -> None:
        if (dies, batch_id) == ("before", int(at)):
            os.kill(os.getpid(), signal.SIGKILL)
        sink(rows, batch_id)
        if (dies, batch_id) == ("after", int(at)):
            os.kill(os.getpid(), signal.SIGKILL)

    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(files)
    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
