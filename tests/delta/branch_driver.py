"""A driver process of its own that works in branches, and is killed in the middle of it all."""

from __future__ import annotations

import os
import signal
import sys

from tests import drivers
from txnqueue import QueueManager
from txnqueue.protocols.dtx import Connection, Execution, XaStatus, Xid


def main(root: str, shared: str) -> None:
    """Work in the shared branch and in others, and die."""
    session = drivers.session("branch driver")
    manager = QueueManager(session, root, actor="driver", consumer="driver")
    channel = Connection(manager, default_timeout_seconds=3600).channel()
    channel.select()

    def work(xid: Xid, n: int, *, join: bool = False) -> None:
        assert channel.start(xid, join=join) is XaStatus.OK
        queue = channel.queue("orders")
        assert len(queue.receive(1)) == 1
        queue.send([{"n": n}])
        assert channel.end(xid) is XaStatus.OK

    work(Xid.from_transaction_id(shared), 10, join=True)
    for number, gtrid in enumerate((b"prepared", b"operator"), 11):
        work(Xid.of(2, gtrid), number)
        assert channel.prepare(Xid.of(2, gtrid)) is XaStatus.OK
    key = Xid.of(2, b"operator").transaction_id
    manager.decide_heuristically(key, commit=False, reason="the other side is gone")
    assert Execution(manager, "loader").complete(0, 1, 3) == 2
    channel.start(Xid.of(2, b"at work"))
    channel.queue("orders").send([{"n": 13}])
    print("ready", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
