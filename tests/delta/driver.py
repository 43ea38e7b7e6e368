"""A driver process of its own: produces or consumes on a store, until it is killed or done."""

from __future__ import annotations

import sys
from typing import Any

from tests import drivers
from txnqueue import QueueManager


def main(root: str, role: str, name: str, count: str) -> None:
    """Produce so many sends of ten messages, or consume until the queue is empty."""
    manager = QueueManager(drivers.session(name), root, actor=name, consumer=name)
    print("ready", flush=True)
    if role == "produce":
        for n in range(int(count)):
            rows = [{"i": n * 10 + i} for i in range(10)]
            with manager.transaction(f"produce/{n}") as tx:
                manager.queue("in").send(rows, transaction=tx)
            print(f"sent {n}", flush=True)
    else:

        def handler(batch: Any, tx: Any) -> None:
            tx.queue("out").send(batch.df.select("i"))

        manager.recover()
        result = manager.queue("in").drain(
            handler, batch_size=7, until="empty", on_batch=lambda n: print("batch", flush=True)
        )
        print(f"drained {result.messages}", flush=True)
    print("done", flush=True)
    drivers.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
