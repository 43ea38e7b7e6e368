"""The command line: ``txnqueue send orders orders.csv --root /lake/messaging``.

Exit codes, for schedulers:

    0   done, or nothing to do
    1   unexpected failure
    2   usage, or input that cannot be used
    3   the store, the queue, the configuration or the platform
    4   a handler failed too often; its batches were rolled back
    5   apply --dry-run found something to change
    75  conflicts outlasted the retries, and nothing was changed: try again
    76  the outcome is not known: ask ``txnqueue outcome``, then ``txnqueue recover``
    77  committed, but changes of tables are not applied yet: ``txnqueue recover``, and do not
        run it again

Results go to stdout, everything else to stderr. Spark is started by the commands that
need a store, when they need it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from txnqueue import __version__

try:
    import typer

    from txnqueue import consuming, exchanging, tending  # noqa: F401 (their commands)
    from txnqueue.console import IN_DOUBT, NOT_APPLIED, PLATFORM, Session, app, command
except ModuleNotFoundError as error:
    if error.name not in ("typer", "rich"):
        raise
    sys.stderr.write(
        f"txnqueue: the command line needs {error.name}: pip install 'txnqueue[cli]'\n"
    )
    raise SystemExit(3) from None

from txnqueue.configuring import OPTIONS, Configuration
from txnqueue.errors import InvalidInput
from txnqueue.presenting import told_of_drop
from txnqueue.reading import check_file, read_file, spelled_out

if TYPE_CHECKING:
    from txnqueue.batch import Batch
    from txnqueue.deciding import Receipt
    from txnqueue.queue import Sent
    from txnqueue.transaction import Transaction
    from txnqueue.verifying import Verification

__all__ = ["app", "main"]

QUEUE_COLUMNS = (
    "queue", "lanes", "posted", "available", "delayed", "in_flight", "purge_pending", "accepted",
    "rejected", "dead_lettered", "expired", "purged", "moved", "duplicates",
)  # fmt: skip
EVENT_COLUMNS = (
    "commit_seq", "recorded_at", "kind", "queue", "lane", "count", "transaction_id", "actor",
    "run_id", "reason",
)  # fmt: skip
STEP_COLUMNS = (
    "message_id", "commit_seq", "recorded_at", "step", "queue", "lane", "transaction_id",
    "decision", "actor", "run_id", "reason",
)  # fmt: skip

_Queue = Annotated[str, typer.Argument(help="The queue's name.", show_default=False)]
_Change = Annotated[
    str, typer.Argument(help="The change, as recover names it.", show_default=False)
]
_Limit = Annotated[int, typer.Option(min=1, help="At most so many.")]
_Where = Annotated[
    str | None,
    typer.Option(help="Only messages that fulfil this SQL predicate over payload and _message."),
]


# ------------------------------------------------------------------- machine and queues


@command("doctor")
def doctor(session: Session) -> None:
    """Check that this machine has what txnqueue needs, and what it sets; starts no Spark."""
    from txnqueue import environment

    checks = environment.doctor(session.options.root)
    rows = [
        {"name": c.name, "found": c.found, "verdict": c.verdict, "meaning": c.meaning}
        for c in checks
    ]
    rows += [row for row in map(_setting, OPTIONS) if row is not None]
    session.printer.rows(rows, ("name", "found", "verdict", "meaning"), "Nothing to check.")
    if any(row["verdict"] == "error" for row in rows):
        raise typer.Exit(PLATFORM)


def _setting(key: str) -> dict[str, str] | None:
    """Show a setting that the environment makes; None if it does not."""
    try:
        found = Configuration(lambda key: None, os.environ).value(key)
    except InvalidInput as error:
        name = OPTIONS[key].variable
        return {
            "name": key,
            "found": os.environ[name],
            "verdict": "error",
            "meaning": str(error),
        }
    if found.source == "default":
        return None
    meaning = f"Set by {found.source}; Spark's configuration and arguments come before it."
    return {"name": key, "found": str(found.value), "verdict": "ok", "meaning": meaning}


@command("create")
def create(
    session: Session,
    queue: _Queue,
    schema: Annotated[
        str, typer.Option(help="The payload's columns as DDL: 'id long, amount double'.")
    ],
    lanes: Annotated[
        int | None, typer.Option(help="Units of order and of parallel consumption; 1: strict FIFO.")
    ] = None,
    group_by: Annotated[
        str | None, typer.Option(help="A column whose equal values stay in order.")
    ] = None,
    lease_seconds: Annotated[
        float | None, typer.Option(help="How long received messages are held.")
    ] = None,
    deliveries_max: Annotated[
        int | None, typer.Option(help="So many failed deliveries make a message dead.")
    ] = None,
    dead_letter: Annotated[
        bool | None,
        typer.Option(
            "--dead-letter/--no-dead-letter", help="Whether '<name>.dead' takes the dead."
        ),
    ] = None,
    dead_letter_expired: Annotated[
        bool | None,
        typer.Option("--dead-letter-expired", help="Whether it takes expired ones too."),
    ] = None,
    ordered: Annotated[
        bool | None, typer.Option("--ordered", help="One consumer at a time works on a lane.")
    ] = None,
    message_id: Annotated[
        str | None, typer.Option(help="A column that names the messages; never null.")
    ] = None,
    duplicate_window_seconds: Annotated[
        float | None,
        typer.Option(help="So long after the first message of an id no other one is delivered."),
    ] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="No error if it is there with the same schema.")
    ] = False,
) -> None:
    """Create a queue and its dead-letter queue; makes the store if there is none."""
    manager = session.manager
    made = manager.create_queue(
        queue,
        schema,
        exist_ok=exist_ok,
        lanes=lanes,
        group_by=group_by,
        lease_seconds=lease_seconds,
        deliveries_max=deliveries_max,
        dead_letter=dead_letter,
        dead_letter_expired=dead_letter_expired,
        ordered=ordered,
        message_id=message_id,
        duplicate_window_seconds=duplicate_window_seconds,
    )
    columns = made.schema.simpleString()
    session.printer.fact(
        {
            "queue": queue,
            "schema": columns,
            "lanes": made.info.settings.lanes,
            "root": manager.root,
        },
        f"Queue {queue} is there, with {columns}.",
    )


@command("list")
def list_queues(session: Session) -> None:
    """List the queues, and what became of their messages so far."""
    rows = session.manager.history.as_of().queue_rows()
    rows.sort(key=lambda row: str(row["queue"]))
    session.printer.rows(rows, QUEUE_COLUMNS, "There are no queues yet.")


@command("depth")
def depth(session: Session, queue: _Queue) -> None:
    """Count the messages that can be received now."""
    opened = session.manager.queue(queue)
    available, in_flight = opened.depth(), opened.in_flight()
    session.printer.fact(
        {"queue": queue, "available": available, "in_flight": in_flight},
        f"{queue}: {available} available, {in_flight} in flight",
    )


# ----------------------------------------------------------------- sending and receiving


@command("send")
def send(
    session: Session,
    queue: _Queue,
    file: Annotated[
        str,
        typer.Argument(
            help="CSV with a header (.csv), JSON lines (.json, .jsonl, .ndjson) or Parquet.",
            show_default=False,
        ),
    ],
    transaction_id: Annotated[
        str | None,
        typer.Option(help="Names the work: a second time under the same id sends nothing."),
    ] = None,
    order_by: Annotated[
        list[str] | None,
        typer.Option(help="A column that orders the messages; may be repeated."),
    ] = None,
    priority: Annotated[
        int | None, typer.Option(help="0 to 9; the highest is received first.")
    ] = None,
    delay_seconds: Annotated[
        float | None, typer.Option(help="They cannot be received before so many seconds.")
    ] = None,
    ttl_seconds: Annotated[
        float | None, typer.Option(help="They are delivered no more after so many seconds.")
    ] = None,
) -> None:
    """Send a file's rows, one message per row, all in one transaction."""
    check_file(file)
    manager = session.manager
    done: list[Sent] = []

    def work(tx: Transaction) -> None:
        into = tx.queue(queue)
        rows = read_file(session.spark, into.schema, file)
        with spelled_out(file):
            sent = into.send(
                rows,
                durable=True,  # the process ends with the command
                order_by=order_by,
                priority=priority,
                delay_seconds=delay_seconds,
                ttl_seconds=ttl_seconds,
            )
            done[:] = [sent]

    receipt = manager.run_transaction(work, transaction_id=transaction_id)
    count = done[0].count if done else 0
    values = {"queue": queue, "count": count, "already_committed": not done, **_receipt(receipt)}
    sentence = (
        f"Sent {count} messages to {queue}"
        if done
        else f"Already committed, nothing was sent: transaction {receipt.transaction_id}"
    )
    session.printer.fact(values, f"{sentence} (commit_seq {receipt.commit_seq}).")


@command("receive")
def receive(
    session: Session,
    queue: _Queue,
    limit: _Limit = 10,
    accept: Annotated[
        bool, typer.Option("--accept", help="Consume them once they are printed.")
    ] = False,
    release: Annotated[
        bool, typer.Option("--release", help="Give them back after printing: the default.")
    ] = False,
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep them in flight until the lease ends.")
    ] = False,
    lease_seconds: Annotated[
        float | None, typer.Option(help="For how long; the queue's setting when left out.")
    ] = None,
    where: _Where = None,
) -> None:
    """Receive messages and print them; they are RELEASED afterwards unless you say --accept."""
    if accept + release + hold > 1:
        raise typer.BadParameter("say one of --accept, --release and --hold.")
    batch = session.manager.queue(queue).receive(limit, lease_seconds=lease_seconds, where=where)
    if not len(batch):
        session.printer.messages([], f"{queue} has nothing to receive.")
        return
    try:
        session.printer.messages(batch.messages(), "")
        sys.stdout.flush()
    except BaseException:
        batch.release()
        raise
    session.printer.note(_settle(batch, accept, hold))


def _settle(batch: Batch, accept: bool, hold: bool) -> str:
    if hold:
        return f"{len(batch)} messages are held until {batch.held_until}."
    if accept:
        return f"{batch.accept()} messages are accepted."
    return f"{batch.release()} messages are released; --accept would have consumed them."


@command("peek")
def peek(session: Session, queue: _Queue, limit: _Limit = 20, where: _Where = None) -> None:
    """Look at the first available messages without receiving them."""
    messages = session.manager.queue(queue).peek_messages(limit, where)
    session.printer.messages(messages, f"{queue} has nothing to receive.")


# ------------------------------------------------------------------ transactions, history


@command("outcome")
def outcome(
    session: Session,
    transaction_id: Annotated[
        str, typer.Argument(help="Its id, or what an error message names.", show_default=False)
    ],
) -> None:
    """Say what became of a transaction; exit code 76 if nothing is decided."""
    found = session.manager.outcome(transaction_id)
    status = found.status.value
    values = {
        "transaction_id": transaction_id,
        "status": status,
        "reason": found.reason,
        "attempts": found.attempts,
        **(_receipt(found.receipt) if found.receipt else {}),
    }
    detail = f" (commit_seq {found.receipt.commit_seq})" if found.receipt else ""
    detail += f": {found.reason}" if found.reason else ""
    session.printer.fact(values, f"{transaction_id}: {status}{detail}")
    if status == "unknown":
        raise typer.Exit(IN_DOUBT)


@command("recover")
def recover(session: Session) -> None:
    """Abort what dead clients left behind, and list what waits for a decision."""
    found = session.manager.recover()
    values = {
        "aborted": list(found.aborted),
        "released": found.released,
        "prepared": list(found.prepared),
        "heuristic": list(found.heuristic),
        "waiting": [asdict(change) for change in found.waiting],
        "databases": list(found.databases),
        "drops": [asdict(drop) for drop in found.drops],
    }
    lines = [f"{len(found.aborted)} transactions aborted, {found.released} messages released."]
    lines += [f"aborted: {key}" for key in found.aborted]
    lines += [f"prepared, waits for a decision: {key}" for key in found.prepared]
    lines += [f"decided by an operator, and not forgotten: {key}" for key in found.heuristic]
    lines += [
        f"not applied: {change.operation} of {change.rows or 'some'} rows to {change.table}, "
        f"transaction {change.transaction_id}: {change.reason}. {change.remedy}"
        for change in found.waiting
    ]
    lines += [f"has not confirmed a commit: the database {name}" for name in found.databases]
    lines += [told_of_drop(drop) for drop in found.drops]
    session.printer.fact(values, "\n".join(lines))
    if found.waiting:
        raise typer.Exit(NOT_APPLIED)


@command("apply-change")
def apply_change(session: Session, change: _Change) -> None:
    """Apply a waiting table change to the table as it is, though it was replaced or set back."""
    session.manager.apply_change(change)
    session.printer.fact({"change": change, "applied": True}, f"Change {change} is applied.")


@command("waive-change")
def waive_change(
    session: Session,
    change: _Change,
    reason: Annotated[str, typer.Option(help="Why; it stands in the history.")],
) -> None:
    """Give a waiting table change up, for ever and on record."""
    session.manager.waive_change(change, reason)
    session.printer.fact({"change": change, "waived": True}, f"Change {change} is given up.")


@command("history")
def history(
    session: Session,
    as_of: Annotated[
        int | None,
        typer.Option(help="The queues after this commit_seq; with --queue its messages."),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Only this queue.")] = None,
    where: Annotated[
        str | None,
        typer.Option(help="Trace the messages of --queue that this SQL predicate holds for."),
    ] = None,
    message: Annotated[str | None, typer.Option(help="Trace the message of this id.")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Search with --where what payload is still there.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Prove that every message is in one place.")
    ] = False,
    limit: _Limit = 20,
) -> None:
    """Show what was: the last events, the state after a commit, or the path of messages."""
    _check_question(as_of, queue, where, message)
    log = session.manager.history
    if message is not None or where is not None:
        sent_to = None if message else queue
        steps = log.trace(message, queue=sent_to, where=where, partial=partial)
        session.printer.rows(steps, STEP_COLUMNS, "No such message is known.")
    elif as_of is not None and queue is not None:
        messages = log.as_of(as_of).message_rows(queue).slice(0, limit).to_pylist()
        session.printer.messages(messages, f"{queue} held no messages then.")
    elif as_of is not None:
        session.printer.rows(log.as_of(as_of).queue_rows(), QUEUE_COLUMNS, "There were no queues.")
    elif verify:
        _proof(session, log.verify())
    else:
        snapshot = log.as_of()
        events = _events(snapshot.transaction_rows(), snapshot.dispatch_rows(), queue)
        session.printer.rows(events[-limit:], EVENT_COLUMNS, "Nothing has happened yet.")


def _proof(session: Session, found: Verification) -> None:
    rows = [
        {"holds": c.holds, "claim": c.claim, "found": c.found, "expected": c.expected}
        for c in found.claims
    ]
    session.printer.rows(rows, ("holds", "claim", "found", "expected"), "")
    for problem in found.problems:
        session.printer.note(problem)
    if not found.ok:
        raise typer.Exit(1)


@command("sql")
def sql(
    session: Session,
    what: Annotated[str, typer.Argument(help="views: the statements that make the views.")],
    as_of: Annotated[int | None, typer.Option(help="As the store was after this commit_seq.")] = (
        None
    ),
    prefix: Annotated[str, typer.Option(help="Put before each view's name.")] = "",
) -> None:
    """Print plain SQL: the views over the store's tables, for any tool that reads Delta."""
    if what != "views":
        raise typer.BadParameter("say: txnqueue sql views")
    for name, text in session.manager.view_statements(prefix, as_of).items():
        session.printer.fact({"view": name, "statement": text}, f"{text};\n")


def _check_question(
    as_of: int | None, queue: str | None, where: str | None, message: str | None
) -> None:
    if where is not None and message is not None:
        raise typer.BadParameter("say --message or --where, not both.")
    if as_of is not None and (where is not None or message is not None):
        raise typer.BadParameter("--as-of shows queues, --message and --where trace: say one.")
    if where is not None and queue is None:
        raise typer.BadParameter("--where needs --queue.")


def _events(
    transactions: Iterable[Mapping[str, Any]],
    dispatches: Iterable[Mapping[str, Any]],
    queue: str | None,
) -> list[Mapping[str, Any]]:
    """Merge decisions and dispatches in commit order; what is undecided comes last."""
    found: list[Mapping[str, Any]] = [
        row for row in dispatches if queue is None or row["queue"] == queue
    ]
    touched = {row["attempt"] for row in found}
    for row in transactions:
        if queue is None or row["attempt"] in touched:
            found.append({"kind": row["status"], **row})
    undecided = 1 << 62
    return sorted(
        found, key=lambda row: undecided if row["commit_seq"] is None else row["commit_seq"]
    )


def _receipt(receipt: Receipt) -> dict[str, Any]:
    return {
        "transaction_id": receipt.transaction_id,
        "commit_seq": receipt.commit_seq,
        "journal_version": receipt.journal_version,
        "committed_at": receipt.committed_at,
    }


# ---------------------------------------------------------------------------- the start


def _show_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _before_all(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A transactional message queue inside the lakehouse."""


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
