"""What a user of a notebook does in its kernel: the cells of ``notebook.py`` call this."""

from __future__ import annotations

import threading
import time
from typing import Any

from txnqueue import QueueManager
from txnqueue.platform.local_spark import local_spark

LEASE_SECONDS = 10.0
EACH = 5
"""So many messages a send has: those of send n begin at n times this."""
TAKEN = 7
KEPT = {"transaction_seconds_max": 60.0, "payload_retention_days": 0}


class Notebook:
    """What is in the variables of a notebook: a session, a manager and its queues."""

    def __init__(self, root: str) -> None:
        """Begin, maybe where an earlier kernel of the same notebook left off."""
        self._root = root
        self._timer: threading.Timer | None = None
        self.open()
        for name in ("in", "out"):
            self.manager.create_queue(
                name, "i long", lease_seconds=LEASE_SECONDS, deliveries_max=1000, exist_ok=True
            )

    def open(self) -> None:
        """Start a session, or get the one that runs, and make a manager of it."""
        self.spark = local_spark("notebook", memory="1g", short_lived=True)
        self.manager = self._manager("notebook")

    def _manager(self, name: str) -> QueueManager:
        return QueueManager(self.spark, self._root, actor=name, consumer=name)

    # --------------------------------------------------------------------- what is done

    def send(self, number: int) -> None:
        """Send rows."""
        with self.manager.transaction(f"send/{number}") as tx:
            rows = [{"i": number * EACH + n} for n in range(EACH)]
            self.manager.queue("in").send(rows, transaction=tx)

    def frame(self, number: int) -> None:
        """Send a DataFrame."""
        rows = self.spark.range(number * EACH, (number + 1) * EACH, numPartitions=2)
        with self.manager.transaction(f"send/{number}") as tx:
            self.manager.queue("in").send(rows.selectExpr("id AS i"), transaction=tx)

    def pass_on(self, number: int) -> None:
        """Receive, and send on what was received."""
        with self.manager.transaction(f"pass/{number}") as tx:
            batch = self.manager.queue("in").receive(TAKEN, transaction=tx)
            self.manager.queue("out").send(batch.df.select("i"), transaction=tx)

    def drain(self, number: int) -> None:
        """Send on all that waits, batch by batch."""
        del number
        self._drain(self.manager)

    def _drain(self, manager: QueueManager) -> None:
        def handler(batch: Any, tx: Any) -> None:
            tx.queue("out").send(batch.df.select("i"))

        manager.queue("in").drain(handler, batch_size=TAKEN, until="empty")

    def maintain(self, number: int) -> None:
        """Keep the store small."""
        del number
        self.manager.maintain(**KEPT)  # type: ignore[arg-type]

    # ------------------------------------------------------------------ what disturbs it

    def cancel_after(self, seconds: float) -> None:
        """Cancel all jobs of Spark while something else is done."""
        self._timer = threading.Timer(seconds, self.spark.sparkContext.cancelAllJobs)
        self._timer.start()

    def disturbed(self) -> None:
        """Wait until what was to disturb has done so, unless its cell was interrupted before."""
        if self._timer is not None and self._timer.is_alive():
            self._timer.join()

    def stop_within(self, number: int) -> None:
        """Stop the session while a transaction is open that has received and sent."""
        with self.manager.transaction(f"pass/{number}") as tx:
            batch = self.manager.queue("in").receive(TAKEN, transaction=tx)
            self.manager.queue("out").send(batch.df.select("i"), transaction=tx)
            self.spark.stop()

    # ------------------------------------------------------------------- what came of it

    def told(self, transaction_id: str) -> None:
        """Print the outcome of a transaction, as this manager tells it."""
        print(self.manager.outcome(transaction_id).status.value)

    def told_to_another(self, transaction_id: str, seconds: float) -> None:
        """Print it as another manager tells it, when whatever is late has had its time."""
        time.sleep(seconds)
        print(self._manager("another").outcome(transaction_id).status.value)

    def audit(self, number: int, sent: list[int]) -> None:
        """Check, after the leases, that all that was sent can be had once, and the history."""
        time.sleep(LEASE_SECONDS)
        auditor = self._manager("auditor")
        auditor.recover()
        self._drain(auditor)
        left = {name: auditor.queue(name).depth() for name in ("in", "in.dead", "out.dead")}
        left["in flight"] = auditor.queue("in").in_flight() + auditor.queue("out").in_flight()
        assert not any(left.values()), f"still there after all leases: {left}"
        with auditor.transaction(f"audit/{number}") as tx:
            batch = auditor.queue("out").receive(100_000, transaction=tx)
            got = sorted(row["i"] for row in batch.messages())
            wanted = sorted(send * EACH + n for send in sent for n in range(EACH))
            assert got == wanted, f"{_apart(got, wanted)}"
        verified = auditor.history.verify()
        assert verified.ok, str(verified)


def _apart(got: list[int], wanted: list[int]) -> str:
    missing = sorted(set(wanted) - set(got))
    twice = sorted({one for one in got if got.count(one) > 1})
    return f"lost {missing}, twice {twice}, strange {sorted(set(got) - set(wanted))}"
