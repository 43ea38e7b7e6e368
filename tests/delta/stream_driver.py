"""A driver process of its own that streams a queue, until it kills itself or is done."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tests import drivers
from txnqueue import QueueManager

CHECKPOINT = "/checkpoints/streams"


def copy_to(gold: str, batch: Any, tx: Any) -> None:
    """Send what a batch has to another queue, and append it to a table."""
    rows = batch.df.select("n")
    tx.queue("out").send(rows)
    tx.table(gold).append(rows)


def main(root: str, gold: str, dies: str, at: str) -> None:
    """Stream a queue, and die in a batch, before or after its commit."""
    manager = QueueManager(drivers.session("stream"), root)
    done = 0

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def handler(batch: Any, tx: Any) -> None:
        copy_to(gold, batch, tx)
        if dies == "before" and done == int(at):
            die()

    def on_batch(_count: int) -> None:
        nonlocal done
        done += 1
        if dies == "after" and done == int(at):
            die()

    orders = manager.queue("in")
    with orders.stream(handler, checkpoint=CHECKPOINT, batch_size=2, on_batch=on_batch) as stream:
        stream.await_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
