"""Makes the small store whose tables begin with a checkpoint, as every store does after a while.

    python -m tests.stores.make_checkpoints FOLDER

writes ``FOLDER/store``: the work of ``make_store``, and some more, with a checkpoint after every
second commit. Of the journal, what is older than its last checkpoint but one is gone, as after the
days that Delta keeps it. It was packed with ``tar -czf checkpoints.tar.gz -C FOLDER store``.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.stores import make_store
from txnqueue import QueueManager
from txnqueue.platform.local_spark import local_spark
from txnqueue.storage.journal import tables


def make(spark: Any, folder: Path) -> None:
    """Make the store."""
    with ExitStack() as often:
        for properties in (
            tables.JOURNAL_PROPERTIES, tables.ARCHIVE_PROPERTIES, tables.PAYLOAD_PROPERTIES
        ):  # fmt: skip
            often.enter_context(patch.dict(properties, {"delta.checkpointInterval": "2"}))
        make_store.make(spark, folder)
    manager = QueueManager(spark, str(folder / "store"), actor="operator", consumer="third")
    for number in range(3):
        manager.queue("invoices").send([{"customer": "cid", "total": float(number)}])
        manager.queue("unique").send([{"k": f"b{number}"}])
        manager.queue("orders").receive(1).accept()
        manager.maintain(transaction_seconds_max=0, payload_retention_days=0, vacuum=False)
    forget(folder / "store" / "journal" / "_delta_log")


def forget(log: Path) -> None:
    """Delete what is older than the last checkpoint but one, with the sums beside it."""
    first = sorted(log.glob("*.checkpoint.parquet"))[-2].name[:20]
    for file in log.iterdir():
        name = file.name.removeprefix(".")
        if file.is_file() and name[:20].isdecimal() and name[:20] < first:
            file.unlink()


if __name__ == "__main__":
    session = local_spark("make checkpoints")
    make(session, Path(sys.argv[1]).resolve())
    session.stop()
