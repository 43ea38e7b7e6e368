"""The main job on real data: 336,776 flights through four queues; two consumers are killed.

    python jobs/flights_demo.py                     # all flights, in a temporary folder
    python jobs/flights_demo.py --rows 8000         # a few
    python jobs/flights_demo.py --root /tmp/queues  # keeps the store; again is harmless
    python jobs/flights_demo.py --file my.csv --reject-where 'amount < 0'

Threads of this process send the flights week by week, each week in one transaction, to the queue
``departures``. Other processes consume them: cancelled flights become dead letters,
delayed ones go to ``rebooking``, totals per carrier to ``totals`` and into a Delta table,
each batch in one transaction. The first one is killed (SIGKILL) while it holds a batch that it has
not committed. The next one is killed between a commit and the change of the table that the commit
decided. A third one takes over and finishes. In the end every flight is looked for in the data.

Exit codes: 0 every line of the proof holds; 1 one does not, or a process failed; the
others as those of ``txnqueue``.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from flights_data import Work, digest, flights, own_file
from flights_report import Report, Stopwatch
from flights_worker import Worker

from txnqueue import QueueManager, Transaction
from txnqueue.errors import TxnQueueError

BATCHES = 4
SENDERS = 4


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, help="only the first so many rows")
    parser.add_argument("--root", help="where the store is; a temporary folder when left out")
    parser.add_argument("--file", type=Path, help="your own CSV, JSON lines or Parquet file")
    parser.add_argument("--reject-where", help="rows of --file that become dead letters, in SQL")
    parser.add_argument("--batch-size", type=int, help="messages in a batch; a quarter of the rows")
    parser.add_argument("--no-kill", action="store_true", help="let the consumers live")
    given = parser.parse_args()
    for name in ("rows", "batch_size"):
        if getattr(given, name) is not None and getattr(given, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: give at least 1")
    if given.reject_where and not given.file:
        parser.error("--reject-where goes with --file")
    return given


def _send(queue: str, chunk: Any, tx: Transaction) -> object:
    return tx.queue(queue).send(chunk)


def create_queues(spark: Any, manager: QueueManager, work: Work) -> None:
    manager.create_queue(
        work.queue, like=work.table, lanes=4, group_by=work.group_by, exist_ok=True
    )
    if work.routed:
        schema = "carrier string, flights long, delay_minutes double"
        manager.create_queue("rebooking", like=work.table, dead_letter=False, exist_ok=True)
        manager.create_queue("totals", schema, dead_letter=False, exist_ok=True)
        table = work.totals_table(manager.root)
        spark.sql(f"CREATE TABLE IF NOT EXISTS delta.`{table}` ({schema}) USING delta")


def produce(manager: QueueManager, work: Work, report: Report) -> int:
    """Send chunk by chunk, each in a transaction that happens once however often it is run.

    Some threads do it: what they commit at the same time goes in together.

    Returns:
        The commit_seq of the last commit.
    """

    def send(number: int, chunk: Any) -> int:
        receipt = manager.run_transaction(
            partial(_send, work.queue, chunk),
            transaction_id=f"produce/{number}",
            digest=digest(chunk),
        )
        return receipt.commit_seq

    commit_seq = -1
    with (
        report.progress("sending", work.table.num_rows) as advance,
        ThreadPoolExecutor(SENDERS) as senders,
    ):
        for chunk, sent in zip(work.chunks, senders.map(send, count(), work.chunks), strict=True):
            commit_seq = max(commit_seq, sent)
            advance(chunk.num_rows)
    return commit_seq


def spares(root: str, work: Work, given: argparse.Namespace) -> list[Worker]:
    """Start the consumers, which wait: two will be killed, each at the worst moment."""
    size = given.batch_size or max(1, -(-work.table.num_rows // BATCHES))
    victims: list[dict[str, Any]] = []
    if not given.no_kill:
        victims.append({"pause_at": 1 if work.table.num_rows > size else 0})
        victims += [{"pause_before_apply": True}] if work.routed else []
    return [
        Worker(root, work, size, f"consumer-{number}", **pause)
        for number, pause in enumerate([*victims, {}], 1)
    ]


def consume(manager: QueueManager, work: Work, workers: list[Worker], report: Report) -> int | None:
    """Let one consumer after the other work, until one finishes.

    Returns:
        The commit_seq at the moment of the first kill; None if nobody had to be killed.
    """
    killed_at = []
    with report.progress("consuming", manager.queue(work.queue).depth()) as advance:
        for worker in workers:
            worker.begin()
            for event in worker.events(advance):
                if event["event"] in ("holding", "decided"):
                    killed_at.append(manager.history.as_of().commit_seq)
                    worker.kill(signal.SIGKILL)
                    report.killed(worker, event)
                report.finished(event)
            if worker.process.returncode != -signal.SIGKILL:
                break
    if worker.process.returncode != 0:
        raise SystemExit("The consumer failed: its own message is above.")
    return killed_at[0] if killed_at else None


def audit(
    spark: Any, manager: QueueManager, work: Work, marks: dict[str, int | None], report: Report
) -> bool:
    """Print what is where, what was earlier, who did it, and the proof."""
    import flights_audit

    now = manager.history.as_of()
    counts = {row["queue"]: row for row in now.counts().rows()}
    report.queues("What is where now", [counts[name] for name in work.queues])
    for title, commit_seq in marks.items():
        if commit_seq is not None:
            then = manager.history.as_of(commit_seq).counts().rows()
            shown = [row for row in then if row["queue"] in work.queues]
            report.queues(f"{title} (as of commit {commit_seq})", shown)
    found = flights_audit.messages(spark, manager, work)
    report.path(*trace(manager, work, found[work.queue].table))
    proofs = list(flights_audit.prove(spark, work, found, counts))
    proofs += flights_audit.prove_table(spark, manager, work)
    report.proofs(proofs)
    return all(proof.holds for proof in proofs)


def trace(manager: QueueManager, work: Work, table: Any) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """Follow one message: of those that were delivered twice, the first that was accepted."""
    import pyarrow.compute as pc

    table = table.sort_by([("settled_at", "ascending"), ("message_id", "ascending")])
    for wanted in (
        pc.equal(pc.field("state"), "accepted"),
        pc.greater(pc.field("delivery_count"), 0),
    ):
        found = table.filter(wanted)
        table = found if found.num_rows else table
    row = table.slice(0, 1).to_pylist()[0]
    if not work.routed:
        return f"message {row['message_id']}", manager.history.trace(row["message_id"]).rows()
    keys = ("year", "month", "day", "carrier", "flight", "origin", "dest", "sched_dep_time")
    where = " AND ".join(f"{key} = {row[key]!r}" for key in keys if row.get(key) is not None)
    return where, manager.history.trace(queue=work.queue, where=where).rows()


def run(given: argparse.Namespace, root: str) -> int:
    watch = Stopwatch()
    report = Report()
    report.say(f"The store is {root}")
    work = (
        own_file(given.file, given.rows, given.reject_where) if given.file else flights(given.rows)
    )
    with report.working("starting Spark"):
        from txnqueue.manager import QueueManager
        from txnqueue.platform.local_spark import local_spark

        spark = local_spark("producer", short_lived=True)
        manager = QueueManager(spark, root, actor="producer", run_id="demo")
        create_queues(spark, manager, work)
    watch.lap("start")
    with ExitStack() as running:
        workers = [running.enter_context(worker) for worker in spares(root, work, given)]
        sent_at = produce(manager, work, report)
        watch.lap("send")
        killed_at = consume(manager, work, workers, report)
        watch.lap("consume")
    marks = {"When everything was sent": sent_at, "When a consumer was killed": killed_at}
    holds = audit(spark, manager, work, marks, report)
    watch.lap("audit")
    spark.stop()
    report.say(f"{watch} in all; {len(work.chunks)} transactions sent {work.table.num_rows:,} rows")
    return 0 if holds else 1


def main() -> int:
    given = arguments()
    root = given.root or tempfile.mkdtemp(prefix="txnqueue-demo-")
    # The kills are real, and so is the data: without --root both are gone afterwards.
    try:
        return run(given, root)
    except TxnQueueError as error:
        from txnqueue.cli.console import exit_code

        print(f"flights_demo: {error}", file=sys.stderr)
        return exit_code(error)
    finally:
        if not given.root:
            shutil.rmtree(root, ignore_errors=True)
            shutil.rmtree(f"{root}-gold", ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
