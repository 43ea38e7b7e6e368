"""A driver process that moves a message, with rows in a database and two tables, and is killed."""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from tests import drivers
from tests.faults.injection import Crash, Fault, Injector
from tests.faults.world import World
from tests.inside import attempt_of
from tests.postgres import connect, insert
from txnqueue.storage.store import DeltaStore
from txnqueue.testing import Clock


class Killer(Injector):
    """Ends the process where a crash is due: nothing more of it runs."""

    def call(self, name: str, perform: Callable[[], Any]) -> Any:
        """Make one call, or die."""
        try:
            return super().call(name, perform)
        except Crash:
            os.kill(os.getpid(), signal.SIGKILL)


def count_calls(branch: Any, killer: Killer) -> None:
    """Let the calls of a branch in the database count like those of the store."""
    for name in ("prepare", "commit"):
        act = getattr(branch, name)
        setattr(branch, name, functools.partial(killer.call, f"database {name}", act))


def main(  # noqa: PLR0917 - the words of the command line
    root: str, database: str, generation: str, now_ms: str, at: str, fault: str
) -> None:
    """Move the next message, and be killed at this call."""
    store = DeltaStore(drivers.session("mover"), root)
    world = World(store=store, clock=Clock(int(now_ms)), generation=int(generation))
    killer = Killer(int(at), Fault(fault))
    manager = world.manager("A", killer)
    manager.list_queues()
    killer.arm()
    tx = manager.transaction(f"move-{generation}")
    batch = tx.queue("in").receive(1)
    (message,) = batch.messages()
    tx.queue("out").send([{"i": message["i"]}])
    for table in ("gold", "silver"):
        tx.table(f"{root}/{table}").append(batch.df.select("i"))
    insert(tx.enlist("ledger", connect(database)), message["i"])
    count_calls(attempt_of(tx).participants._branches["ledger"], killer)
    tx.commit()
    print(*killer.calls, sep=",")
    drivers.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
