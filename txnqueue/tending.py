"""Commands of the command line for what waits: purge, move, dead letters, metrics, drop."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from txnqueue.console import TRY_AGAIN, WOULD_CHANGE, Session, command
from txnqueue.metrics import GAUGES
from txnqueue.presenting import told_of_changes, told_of_drop
from txnqueue.reading import read_yaml

_Queue = Annotated[str, typer.Argument(help="The queue's name.", show_default=False)]
_Where = Annotated[
    str | None,
    typer.Option(help="Only messages that fulfil this SQL predicate over payload and _message."),
]


@command("drop")
def drop(
    session: Session,
    queue: _Queue,
    reason: Annotated[str | None, typer.Option(help="Why; it stands in the history.")] = None,
    missing_ok: Annotated[
        bool, typer.Option("--missing-ok", help="No error if there is no such queue.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Needed: its messages are gone.")] = False,
) -> None:
    """Drop a queue with its messages; code 75 while prepared transactions hold it back."""
    if not yes:
        raise typer.BadParameter(f"{queue} and its messages would be gone: say --yes.")
    result = session.manager.drop_queue(queue, reason=reason, missing_ok=missing_ok)
    session.printer.fact(asdict(result), told_of_drop(result))
    if not result.dropped:
        raise typer.Exit(TRY_AGAIN)


@command("purge")
def purge(
    session: Session,
    queue: _Queue,
    where: _Where = None,
    reason: Annotated[str | None, typer.Option(help="Why; it stands in the history.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Needed: what is purged is gone.")] = False,
) -> None:
    """Throw messages away for good; what is in flight goes unless its holder settles it."""
    if not yes:
        raise typer.BadParameter(f"the waiting messages of {queue} would be gone: say --yes.")
    count = session.manager.queue(queue).purge(where, reason=reason)
    session.printer.fact({"queue": queue, "purged": count}, f"{count} messages are gone.")


@command("move")
def move(
    session: Session,
    queue: _Queue,
    to: Annotated[str, typer.Argument(help="The other queue.", show_default=False)],
    where: _Where = None,
) -> None:
    """Move waiting messages to another queue of the same columns."""
    count = session.manager.queue(queue).move(to, where)
    values = {"queue": queue, "to": to, "moved": count}
    session.printer.fact(values, f"{count} messages moved to {to}.")


@command("dead-letters")
def dead_letters(session: Session, queue: _Queue) -> None:
    """Count the dead letters of a queue by where they came from and why."""
    found = session.manager.queue(queue).dead_letters()
    columns = ("queue", "reason", "waiting", "in_flight", "oldest_at", "newest_at")
    session.printer.rows(found.rows(), columns, f"{queue} has no dead letters.")


@command("redrive")
def redrive(session: Session, queue: _Queue, where: _Where = None) -> None:
    """Send dead letters back to the queues that they came from: give the dead-letter queue."""
    count = session.manager.queue(queue).redrive(where)
    values = {"queue": queue, "redriven": count}
    session.printer.fact(values, f"{count} messages went back to where they came from.")


@command("apply")
def apply(
    session: Session,
    file: Annotated[str, typer.Argument(help="A YAML file of queues.", show_default=False)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would change: code 5 if something.")
    ] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Drop what the file lists under 'drop'.")
    ] = False,
) -> None:
    """Create and alter queues as a file declares them; a second time changes nothing."""
    steps = session.manager.apply(read_yaml(file), dry_run=dry_run, drop=drop)
    rows = [
        {"action": step.action, "queue": step.queue, "changes": told_of_changes(step)}
        for step in steps
    ]
    session.printer.rows(rows, ("action", "queue", "changes"), "Everything is as declared.")
    if dry_run and steps:
        raise typer.Exit(WOULD_CHANGE)


@command("metrics")
def metrics(
    session: Session,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print Prometheus' text format.")
    ] = False,
) -> None:
    """Measure every queue: what waits and since when, what is in flight, delayed or dead."""
    found = session.manager.metrics()
    if prometheus:
        typer.echo(found.prometheus(), nl=False)
    else:
        session.printer.rows(found.rows(), ("queue", *GAUGES), "There are no queues yet.")


@command("maintain")
def maintain(
    session: Session,
    transaction_seconds_max: Annotated[
        float, typer.Option(help="For so long a transaction may stay undecided.")
    ] = 86_400.0,
    payload_retention_days: Annotated[
        int, typer.Option(help="For so long the payload of consumed messages is kept.")
    ] = 7,
    vacuum: Annotated[
        bool, typer.Option("--vacuum/--no-vacuum", help="Delete files that nothing names any more.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be done.")
    ] = False,
) -> None:
    """Keep the store small and fast; run it from time to time, beside everything else."""
    done = session.manager.maintain(
        transaction_seconds_max=transaction_seconds_max,
        payload_retention_days=payload_retention_days,
        vacuum=vacuum,
        dry_run=dry_run,
    )
    would = "Would have been" if done.dry_run else "Done"
    lines = [
        f"{would}: {done.compacted} lanes compacted, {done.archived} entries archived, "
        f"{done.slices} slices of payload dropped, {done.rewritten} shards written into few files.",
        *(f"Not this time: {one}" for one in done.skipped),
    ]
    session.printer.fact(asdict(done), "\n".join(lines))
