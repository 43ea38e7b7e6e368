"""The scheduled job: ``txnqueue consume orders --handler jobs.orders:handle --run-id …``."""

from __future__ import annotations

import datetime
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, cast

import typer

from txnqueue.cli import handlers
from txnqueue.cli.console import DEAD_LETTERS, HANDLER_FAILED, NOT_APPLIED, OpenStore, command
from txnqueue.cli.presentation import Output, complain, json_for
from txnqueue.cli.signals import check_grace, on_sigterm
from txnqueue.core.settings import describe_error
from txnqueue.errors import HandlerFailed, InvalidInput

if TYPE_CHECKING:
    from txnqueue.queue import Queue
    from txnqueue.results import DrainResult
    from txnqueue.types import Until

_Count = Annotated[int | None, typer.Option(min=1, help="Begin no batch after this many of them.")]


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, event, and its details."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        instant = datetime.datetime.fromtimestamp(record.created, datetime.timezone.utc)
        said: dict[str, object] = {
            "time": instant.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.getMessage()),
        }
        said.update(getattr(record, "details", {}))
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json_for(sys.stderr, said)


@contextmanager
def logging_json() -> Iterator[None]:
    """Write what happens to stderr, as JSON lines."""
    logger = logging.getLogger("txnqueue")
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(JsonLines())
    before = (logger.level, logger.propagate)
    logger.addHandler(lines)
    logger.setLevel(min(logging.INFO, logger.level or logging.INFO))
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before[0])
        logger.propagate = before[1]


@contextmanager
def showing(total: int, *, json_lines: bool) -> Iterator[Callable[[int], None]]:
    """Show progress: JSON lines for machines, a bar for people."""
    if json_lines:
        with logging_json():
            yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("consuming"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=Console(stderr=True))
    task = progress.add_task("consuming", total=total)
    progress.start()
    try:
        yield lambda count: progress.advance(task, count)
    finally:
        with suppress(OSError):  # the terminal may be closed by now, which is no failure of the job
            progress.stop()


@command("consume", short_lived=False)
def consume(
    session: OpenStore,
    queue: Annotated[str, typer.Argument(help="The queue's name.", show_default=False)],
    handler: Annotated[
        str | None, typer.Option(help="module:function; it is called with (batch, tx).")
    ] = None,
    sql: Annotated[
        str | None, typer.Option(help="Alternatively, a file of queries over the view 'batch'.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(help="Only messages that match this predicate over payload and _message."),
    ] = None,
    *,
    batch_size: Annotated[int, typer.Option(min=1, help="At most this many messages at once.")] = (
        100_000
    ),
    until: Annotated[
        str, typer.Option(help="snapshot: the present messages; empty: until nothing is left.")
    ] = "snapshot",
    max_messages: _Count = None,
    max_batches: _Count = None,
    max_seconds: Annotated[
        float | None, typer.Option(min=0, help="Begin no batch after this many of them.")
    ] = None,
    errors_max: Annotated[
        int, typer.Option(min=1, help="Give up after this many failures in a row.")
    ] = 20,
    ahead: Annotated[
        int, typer.Option(min=0, max=1, help="1: commit a batch while the next one is handled.")
    ] = 0,
    grace_seconds: Annotated[
        float, typer.Option(min=0, help="How long a batch may continue after SIGTERM.")
    ] = 20.0,
    nothing_exit_code: Annotated[
        int, typer.Option(min=0, max=255, help="The exit code if there was nothing to do.")
    ] = 0,
    dead_letters_exit_code: Annotated[
        int, typer.Option(min=0, max=255, help="The exit code if there are new dead letters.")
    ] = DEAD_LETTERS,
) -> None:
    """Drain a queue, each batch in one transaction; the same --run-id again goes on.

    A batch commits what the handler sent, and the changes of tables that it asked for, with
    the messages, or all of it is rolled back and delivered again.
    """
    if (handler is None) == (sql is None):
        raise InvalidInput("Give one of --handler and --sql, not both or neither.")
    check_grace(grace_seconds)
    handle = handlers.load(handler) if handler is not None else handlers.read_sql(sql or "")
    opened = session.manager.queue(queue)
    if isinstance(handle, handlers.SqlJob):
        _check_sql(handle, session, opened, ahead=ahead)
    for_people = sys.stderr is not None and sys.stderr.isatty()
    json_lines = session.options.output is Output.JSON or not for_people
    try:
        with (
            on_sigterm(grace_seconds) as stop,
            showing(opened.depth(), json_lines=json_lines) as advance,
        ):
            result = opened.drain(
                handle,
                where=where,
                batch_size=batch_size,
                run_id=session.options.run_id,
                until=cast("Until", until),  # which is checked there
                max_seconds=max_seconds,
                max_messages=max_messages,
                max_batches=max_batches,
                errors_max=errors_max,
                on_batch=advance,
                stopped=stop,
                ahead=ahead,
            )
    except HandlerFailed as error:
        session.printer.fact(_values(queue, error.result), _sentence(queue, error.result))
        raise
    session.printer.fact(_values(queue, result), _sentence(queue, result))
    failure = _failure(result)
    if failure is not None:
        complain(f"nothing was consumed; the last error: {describe_error(failure)}")
    code = _exit_code(result, nothing=nothing_exit_code, dead=dead_letters_exit_code)
    if code is not None:
        raise typer.Exit(code)


def _check_sql(job: handlers.SqlJob, session: OpenStore, queue: Queue, *, ahead: int) -> None:
    """Check that a file of queries can handle a queue's messages.

    Raises:
        InvalidInput: It changes tables and a batch is to be handled ahead, or a query is wrong.
    """
    if ahead and job.changes_tables:
        raise InvalidInput(
            "--ahead 1 handles a batch before the table changes of the previous one are "
            "applied: omit it for a file that changes tables."
        )
    job.check(session.manager, queue, session.spark)


def _failure(result: DrainResult) -> Exception | None:
    """Return the error because of which nothing was consumed, unless table changes still wait."""
    return result.last_error if result.applied and not result.batches else None


def _exit_code(result: DrainResult, *, nothing: int, dead: int) -> int | None:
    """Return the exit code that a run's result stands for; None if all is well.

    Args:
        result: The result.
        nothing: The code if there was nothing to do.
        dead: The code if there are new dead letters.
    """
    if not result.applied:
        return NOT_APPLIED
    if _failure(result) is not None:
        return HANDLER_FAILED
    if result.dead_lettered:
        return dead
    if not result.batches and not result.stopped:  # there may have been something to do
        return nothing
    return None


def _values(queue: str, result: DrainResult) -> dict[str, object]:
    return {
        "queue": queue,
        "run_id": result.run_id,
        "messages": result.messages,
        "batches": result.batches,
        "errors": result.errors,
        "dead_lettered": result.dead_lettered,
        "finished": result.finished,
        "already_finished": result.already_finished,
        "applied": result.applied,
        "stopped": result.stopped,
    }


def _sentence(queue: str, result: DrainResult) -> str:
    if result.already_finished:
        return f"Run {result.run_id} had already finished: nothing was consumed."
    ending = "finished" if result.finished else "not finished: repeat it with the same --run-id"
    dead = f", {result.dead_lettered} new dead letters" if result.dead_lettered else ""
    applied = "" if result.applied else " Table changes are not applied yet: txnqueue recover."
    return (
        f"Consumed {result.messages} messages of {queue} in {result.batches} batches, "
        f"{result.errors} errors{dead}; run {result.run_id} {ending}.{applied}"
    )
