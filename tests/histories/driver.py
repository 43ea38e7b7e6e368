"""A driver process of its own in a recorded run: works until it is killed or done."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from tests import drivers
from tests.histories.runs import OnDelta, Size
from txnqueue import QueueManager


def main(root: str, events: str, *said: str) -> None:
    """Do so many things at random."""
    name, life, actions, lease_seconds = said
    manager = QueueManager(drivers.session(name), root, actor=name, consumer=name)
    manager.list_queues()
    print("ready", flush=True)
    size = Size(lease_seconds=float(lease_seconds))
    dice = random.Random(f"{root} {name} {life}")
    client = OnDelta(Path(root), Path(events), size).client(f"{name}.{life}", manager, dice)
    for _ in range(int(actions)):
        client.step()
    print("done", flush=True)
    drivers.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
