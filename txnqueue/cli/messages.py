"""Commands for messages: send, receive, peek, replay, move, purge, dead letters, redrive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txnqueue.cli.arguments import Limit, Queue, Reason, Where
from txnqueue.cli.console import OpenStore, check_sure, command
from txnqueue.cli.files import format_of, read_file, spelled_out
from txnqueue.cli.presentation import receipt_values
from txnqueue.cli.repeatable import done_once
from txnqueue.core.state.catalog import DEAD_SUFFIX

if TYPE_CHECKING:
    from txnqueue.batch import Batch
    from txnqueue.messages.send import SendResult
    from txnqueue.transaction import Transaction


@command("send")
def send(
    session: OpenStore,
    queue: Queue,
    file: Annotated[
        str,
        typer.Argument(
            help="CSV with a header (.csv), JSON lines (.json, .jsonl, .ndjson) or Parquet.",
            show_default=False,
        ),
    ],
    transaction_id: Annotated[
        str | None,
        typer.Option(help="An id for the work: repeating it under the same id sends nothing."),
    ] = None,
    order_by: Annotated[
        list[str] | None,
        typer.Option(help="A column that orders the messages; may be repeated."),
    ] = None,
    *,
    priority: Annotated[
        int | None, typer.Option(help="0 to 9; the highest is received first.")
    ] = None,
    delay_seconds: Annotated[
        float | None, typer.Option(help="Deliver the messages after this many seconds.")
    ] = None,
    ttl_seconds: Annotated[
        float | None, typer.Option(help="Expire the messages after this many seconds.")
    ] = None,
) -> None:
    """Send a file's rows, one message per row, all in one transaction."""
    format_of(file)  # before Spark starts; whether it is there is asked once it is needed

    def work(tx: Transaction) -> SendResult:
        into = tx.queue(queue)
        rows = read_file(session.spark, into.schema, file)
        with spelled_out(file):
            return into.send(
                rows,
                durable=True,  # the process ends with the command
                order_by=order_by,
                priority=priority,
                delay_seconds=delay_seconds,
                ttl_seconds=ttl_seconds,
            )

    sent, receipt = done_once(session.manager, work, transaction_id, f"send to {queue}")
    count = 0 if sent is None else sent.count
    values = {
        "queue": queue,
        "count": count,
        "already_committed": sent is None,
        **receipt_values(receipt),
    }
    sentence = (
        f"Sent {count} messages to {queue}"
        if sent is not None
        else f"Already committed, nothing was sent: transaction {receipt.transaction_id}"
    )
    session.printer.fact(values, f"{sentence} (commit_seq {receipt.commit_seq}).")


@command("receive")
def receive(
    session: OpenStore,
    queue: Queue,
    limit: Limit = 10,
    *,
    accept: Annotated[bool, typer.Option("--accept", help="Consume them after printing.")] = False,
    release: Annotated[
        bool, typer.Option("--release", help="Give them back after printing (the default).")
    ] = False,
    hold: Annotated[
        bool, typer.Option("--hold", help="Keep them in flight until the lease ends.")
    ] = False,
    lease_seconds: Annotated[
        float | None, typer.Option(help="The lease in seconds; if omitted, the queue's setting.")
    ] = None,
    where: Where = None,
) -> None:
    """Receive messages and print them; they are RELEASED afterwards unless you say --accept."""
    if accept + release + hold > 1:
        raise typer.BadParameter("give only one of --accept, --release and --hold.")
    batch = session.manager.queue(queue).receive(limit, lease_seconds=lease_seconds, where=where)
    if not len(batch):
        session.printer.messages([], f"{queue} has nothing to receive.")
        return
    try:
        session.printer.messages(batch.messages(), "")
        session.printer.check_printed()
    except BaseException:
        batch.release()
        raise
    session.printer.note(_settle(batch, accept=accept, hold=hold))


def _settle(batch: Batch, *, accept: bool, hold: bool) -> str:
    if hold:
        return f"{len(batch)} messages are held until {batch.held_until}."
    if accept:
        return f"{batch.accept()} messages are accepted."
    return f"{batch.release()} messages are released; --accept would have consumed them."


@command("peek", looks=True)
def peek(session: OpenStore, queue: Queue, limit: Limit = 20, where: Where = None) -> None:
    """Look at the first available messages without receiving them."""
    if where is not None:  # which Spark evaluates
        messages = session.manager.queue(queue).peek_messages(limit, where)
    else:
        messages = session.looking.queue(queue).peek_messages(limit)
    session.printer.messages(messages, f"{queue} has nothing to receive.")


@command("replay")
def replay(
    session: OpenStore,
    queue: Queue,
    limit: Limit = 20,
    where: Where = None,
    *,
    after: Annotated[
        int, typer.Option(help="Only messages accepted by commits after this commit_seq.")
    ] = -1,
    upto: Annotated[
        int | None, typer.Option(help="Only messages accepted by commits up to this commit_seq.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Leave out what was removed or erased.")
    ] = False,
) -> None:
    """Look at messages again that were accepted, the first ones first; nothing is sent."""
    batch = session.manager.queue(queue).replay(
        after, upto, where=where, limit=limit, partial=partial
    )
    session.printer.messages(batch.messages(), f"No messages of {queue} were accepted then.")


@command("move")
def move(
    session: OpenStore,
    queue: Queue,
    to: Annotated[str, typer.Argument(help="The other queue.", show_default=False)],
    where: Where = None,
) -> None:
    """Move waiting messages to another queue of the same columns."""
    count = session.manager.queue(queue).move(to, where)
    values = {"queue": queue, "to": to, "moved": count}
    session.printer.fact(values, f"{count} messages moved to {to}.")


@command("purge")
def purge(
    session: OpenStore,
    queue: Queue,
    where: Where = None,
    reason: Reason = None,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Required, because purging cannot be undone.")
    ] = False,
) -> None:
    """Delete messages for good, those in flight when they would return to the queue."""
    check_sure(f"the waiting messages of {queue}", sure=yes)
    count = session.manager.queue(queue).purge(where, reason=reason)
    session.printer.fact({"queue": queue, "purged": count}, f"{count} messages are deleted.")


@command("dead-letters", looks=True)
def dead_letters(session: OpenStore, queue: Queue) -> None:
    """Count the dead letters of a queue by where they came from and why, with the last error."""
    found = session.looking.queue(queue).dead_letters()
    columns = ("queue", "reason", "waiting", "in_flight", "oldest_at", "newest_at", "error")
    session.printer.rows(found.rows(), columns, f"{queue} has no dead letters.")


@command("redrive")
def redrive(session: OpenStore, queue: Queue, where: Where = None) -> None:
    """Send dead letters back to the queues that they came from: give the dead-letter queue."""
    opened = session.manager.queue(queue)
    count = opened.redrive(where)
    values = {"queue": queue, "redriven": count}
    session.printer.fact(values, f"{count} messages were sent back to their origins.")
    if not count and opened.info.dead_letter_id is not None:
        session.printer.note(f"The dead letters of {queue} are in {queue}{DEAD_SUFFIX}.")
