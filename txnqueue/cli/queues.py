"""Commands for queues: create, list, depth, metrics, drop, declare."""

from __future__ import annotations

from typing import Annotated

import typer

from txnqueue.cli import exporter, sensor
from txnqueue.cli.arguments import Queue, Reason
from txnqueue.cli.console import TOO_FEW, WOULD_CHANGE, OpenStore, command, drop_surely
from txnqueue.cli.files import read_yaml
from txnqueue.cli.presentation import QUEUE_COLUMNS, told_of_drop, told_of_step
from txnqueue.core.settings import LEASE_SECONDS_MAX
from txnqueue.reports.metrics import GAUGES


@command("create")
def create(
    session: OpenStore,
    queue: Queue,
    schema: Annotated[
        str, typer.Option(help="The payload's columns as DDL: 'id long, amount double'.")
    ],
    lanes: Annotated[
        int | None, typer.Option(help="Units of order and of parallel consumption; 1: strict FIFO.")
    ] = None,
    group_by: Annotated[
        str | None, typer.Option(help="A column whose equal values stay in order.")
    ] = None,
    *,
    lease_seconds: Annotated[
        float | None, typer.Option(help="How long received messages are held.")
    ] = None,
    deliveries_max: Annotated[
        int | None, typer.Option(help="Failed deliveries after which a message is dead.")
    ] = None,
    redelivery_delay_seconds: Annotated[
        float | None,
        typer.Option(help="Seconds before a failed message is redelivered; doubled each time."),
    ] = None,
    redelivery_delay_seconds_max: Annotated[
        float | None, typer.Option(help="The longest wait before a redelivery.")
    ] = None,
    dead_letter: Annotated[
        bool | None,
        typer.Option(
            "--dead-letter/--no-dead-letter", help="Create the dead-letter queue '<name>.dead'."
        ),
    ] = None,
    dead_letter_expired: Annotated[
        bool | None,
        typer.Option("--dead-letter-expired", help="Also move expired messages there."),
    ] = None,
    ordered: Annotated[
        bool | None, typer.Option("--ordered", help="Let one consumer at a time work on a lane.")
    ] = None,
    message_id: Annotated[
        str | None, typer.Option(help="The column with the messages' ids; never null.")
    ] = None,
    duplicate_window_seconds: Annotated[
        float | None,
        typer.Option(help="Deliver no second message with the same id within this time."),
    ] = None,
    exist_ok: Annotated[
        bool, typer.Option("--exist-ok", help="No error if it exists with the same schema.")
    ] = False,
) -> None:
    """Create a queue and its dead-letter queue, and the store if there is none."""
    manager = session.manager
    made = manager.create_queue(
        queue,
        schema,
        exist_ok=exist_ok,
        lanes=lanes,
        group_by=group_by,
        lease_seconds=lease_seconds,
        deliveries_max=deliveries_max,
        redelivery_delay_seconds=redelivery_delay_seconds,
        redelivery_delay_seconds_max=redelivery_delay_seconds_max,
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
        f"Queue {queue} exists, with {columns}.",
    )


@command("list", looks=True)
def list_queues(session: OpenStore) -> None:
    """List the queues with the numbers of their messages by state."""
    rows = session.looking.history.as_of().counts().rows()
    rows.sort(key=lambda row: str(row["queue"]))
    session.printer.rows(rows, QUEUE_COLUMNS, "There are no queues yet.")


@command("depth", looks=True)
def depth(
    session: OpenStore,
    queue: Queue,
    *,
    at_least: Annotated[
        int | None,
        typer.Option(min=1, help="Exit code 7 if fewer messages than this can be received."),
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait until there are that many, as a scheduler's sensor."),
    ] = False,
    timeout_seconds: Annotated[
        float | None, typer.Option(min=0, help="How long to wait; if omitted, for ever.")
    ] = None,
    poll_seconds: Annotated[
        float,
        typer.Option(min=0.1, max=LEASE_SECONDS_MAX, help="How long to wait between two checks."),
    ] = 5.0,
) -> None:
    """Count the messages that can be received now."""
    if wait and at_least is None:
        raise typer.BadParameter("--wait needs --at-least.")
    if timeout_seconds is not None and not wait:
        raise typer.BadParameter("--timeout-seconds needs --wait.")
    store = session.looking
    opened = store.queue(queue)
    enough = True
    if at_least is not None:
        seconds = timeout_seconds if wait else 0.0
        enough = sensor.wait(store, opened, at_least, seconds, poll_seconds) >= at_least
    available, in_flight = opened.depth(), opened.in_flight()
    session.printer.fact(
        {"queue": queue, "available": available, "in_flight": in_flight},
        f"{queue}: {available} available, {in_flight} in flight",
    )
    if not enough:
        raise typer.Exit(TOO_FEW)


@command("metrics", looks=True)
def metrics(
    session: OpenStore,
    *,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print Prometheus' text format.")
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve them to Prometheus until SIGTERM or Ctrl-C.")
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65_535, help="The port on which --serve listens; 0: any free port."
        ),
    ] = 9_464,
    address: Annotated[
        str,
        typer.Option(
            help="The address on which --serve listens; the default is only this machine."
        ),
    ] = "127.0.0.1",
) -> None:
    """Measure every queue: messages, their ages, those in flight, delayed or dead."""
    store = session.looking
    if serve:
        exporter.serve(store, port, address, session.printer.note)
        return
    found = store.metrics()
    if prometheus:
        session.printer.text(found.prometheus())
    else:
        session.printer.rows(found.rows(), ("queue", *GAUGES), "There are no queues yet.")


@command("drop")
def drop(
    session: OpenStore,
    queue: Queue,
    reason: Reason = None,
    *,
    missing_ok: Annotated[
        bool, typer.Option("--missing-ok", help="No error if there is no such queue.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Required, because its messages are deleted.")
    ] = False,
) -> None:
    """Drop a queue with its messages; code 75 while prepared transactions hold it back."""
    drop_surely(
        session,
        f"{queue} and its messages",
        lambda: session.manager.drop_queue(queue, reason=reason, missing_ok=missing_ok),
        told_of_drop,
        sure=yes,
    )


@command("declare")
def declare(
    session: OpenStore,
    file: Annotated[str, typer.Argument(help="A YAML file of queues.", show_default=False)],
    *,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only show what would change; exit code 5 if anything."),
    ] = False,
    drop: Annotated[
        bool, typer.Option("--drop", help="Drop what the file lists under 'drop'.")
    ] = False,
) -> None:
    """Create and alter queues as a file declares them; a second time changes nothing."""
    declared = read_yaml(file)  # before Spark starts for it
    steps = session.manager.declare(declared, dry_run=dry_run, drop=drop)
    rows = [
        {"action": step.action, "queue": step.queue, "changes": told_of_step(step)}
        for step in steps
    ]
    session.printer.rows(rows, ("action", "queue", "changes"), "Everything is as declared.")
    if dry_run and steps:
        raise typer.Exit(WOULD_CHANGE)
