"""Commands for past states: history, and the views for other tools."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txnqueue.cli.console import PLATFORM, OpenStore, command
from txnqueue.cli.presentation import QUEUE_COLUMNS
from txnqueue.core import model
from txnqueue.errors import PlatformMissing
from txnqueue.reports.audit.page import new_environment
from txnqueue.reports.moments import moment_of

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager
    from txnqueue.reports.verification import VerificationResult

LIMIT = 20
"""How many events or messages are listed without ``--limit``."""
EVENT_COLUMNS = (
    "commit_seq", "recorded_at", "kind", "queue", "lane", "count", "transaction_id", "actor",
    "run_id", "reason",
)  # fmt: skip  # fmt: skip
DECLARED = frozenset(
    {model.QUEUE_CREATED, model.QUEUE_ALTERED, model.QUEUE_BOUND, model.QUEUE_UNBOUND}
    | {model.EXCHANGE_CREATED, model.EXCHANGE_ALTERED, model.EXCHANGE_CLOSING}
    | {model.EXCHANGE_DROPPED, model.PAYLOAD_ERASING, model.PAYLOAD_ERASED, model.PAYLOAD_REMOVED}
)
"""Kinds of entries of the catalog; those of queues that are dropped are dispatches as well."""
STEP_COLUMNS = (
    "message_id", "commit_seq", "recorded_at", "step", "queue", "lane", "transaction_id",
    "decision", "actor", "run_id", "reason",
)  # fmt: skip  # fmt: skip
DIFFERENCE_COLUMNS = (
    "queue", "messages_before", "posted", "accepted", "rejected", "dead_lettered", "expired",
    "purged", "moved", "duplicates", "dropped", "messages_after",
)  # fmt: skip


@command("history", looks=True)
def history(
    session: OpenStore,
    as_of: Annotated[
        int | None,
        typer.Option(help="The queues after this commit_seq; with --queue its messages."),
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Only this queue.")] = None,
    where: Annotated[
        str | None,
        typer.Option(help="Trace the messages of --queue that match this SQL predicate."),
    ] = None,
    message: Annotated[str | None, typer.Option(help="Trace the message with this id.")] = None,
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Prove that every message is in one place.")
    ] = False,
    digest: Annotated[
        bool, typer.Option("--digest", help="Print a digest to keep elsewhere; up to --as-of.")
    ] = False,
    after: Annotated[
        str | None, typer.Option(help="The earlier digest that --digest continues.")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="The digest that --verify compares the history with.")
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Let --where search the payload that still exists.")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="At most this many events, or messages of --as-of --queue; 20 if omitted."
        ),
    ] = None,
) -> None:
    """Show the last events, the state after a commit, or traces of messages."""
    _check_question(as_of, queue, where, message, partial=partial)
    whole = digest or verify or where is not None or message is not None
    if limit is not None and (whole or (as_of is not None and queue is None)):
        raise typer.BadParameter(
            "--limit is about events, or messages of --as-of --queue: omit it."
        )
    limit = limit or LIMIT
    _check_digests(as_of, (after, digest), (against, verify), (queue, where, message))
    needs_spark = verify or where is not None  # the change feed, and SQL
    log = (session.manager if needs_spark else session.looking).history
    if digest:
        line = str(log.digest(as_of, after=-1 if after is None else after))
        session.printer.fact({"digest": line}, line)
    elif verify:
        _proof(session, log.verify(digest=against))
    elif message is not None or where is not None:
        sent_to = None if message else queue
        steps = log.trace(message, queue=sent_to, where=where, partial=partial).rows()
        session.printer.rows(steps, STEP_COLUMNS, "No such message was found.")
        if message is not None and not steps:
            raise typer.Exit(PLATFORM)
    elif as_of is not None and queue is not None:
        messages = log.as_of(as_of).messages(queue, limit).rows()
        session.printer.messages(messages, f"{queue} held no messages then.")
    elif as_of is not None:
        rows = log.as_of(as_of).counts().rows()
        session.printer.rows(rows, QUEUE_COLUMNS, "There were no queues.")
    else:
        changes = log.changes(queue=queue).rows()  # refuses a name that no queue ever had
        snapshot = log.as_of()
        transactions, dispatches = snapshot.transactions().rows(), snapshot.dispatches().rows()
        decided, undecided = _events(transactions, dispatches, changes, queue)
        events = [*decided[-limit:], *undecided[-limit:]]
        session.printer.rows(events, EVENT_COLUMNS, "Nothing has happened yet.")


def _check_question(
    as_of: int | None,
    queue: str | None,
    where: str | None,
    message: str | None,
    *,
    partial: bool,
) -> None:
    if where is not None and message is not None:
        raise typer.BadParameter("give --message or --where, not both.")
    if as_of is not None and (where is not None or message is not None):
        raise typer.BadParameter(
            "--as-of shows queues, while --message and --where trace: give one of them."
        )
    if where is not None and queue is None:
        raise typer.BadParameter("--where needs --queue.")
    if message is not None and queue is not None:
        raise typer.BadParameter("give --message or --queue, not both: an id names one message.")
    if partial and where is None and message is None:
        raise typer.BadParameter("--partial needs --where or --message.")


def _check_digests(
    as_of: int | None,
    continued: tuple[str | None, bool],
    compared: tuple[str | None, bool],
    others: tuple[str | None, ...],
) -> None:
    """Refuse options that would silently be ignored."""
    (after, digest), (against, verify) = continued, compared
    if after is not None and not digest:
        raise typer.BadParameter("--after needs --digest.")
    if against is not None and not verify:
        raise typer.BadParameter("--against needs --verify.")
    if digest and verify:
        raise typer.BadParameter("give --digest or --verify, not both.")
    if (digest or verify) and any(other is not None for other in others):
        raise typer.BadParameter(
            "--digest and --verify cover the whole store: omit the other filters."
        )
    if verify and as_of is not None:
        raise typer.BadParameter("--verify checks the store as it is now: omit --as-of.")


def _events(
    transactions: Iterable[Mapping[str, Any]],
    dispatches: Iterable[Mapping[str, Any]],
    changes: Iterable[Mapping[str, Any]],
    queue: str | None,
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Merge decisions, dispatches and what was declared or erased in commit order.

    Returns:
        These, and the attempts that are prepared or may still be decided. An attempt that never
        will be has no entry of its rollback, and no place among the others.
    """
    mine = (row for row in dispatches if queue is None or row["queue"] == queue)
    found = [row for row in mine if row["kind"] != model.QUEUE_ALTERED]  # a copy, see below
    touched = {row["attempt"] for row in found}
    found += [row for row in changes if row["kind"] in DECLARED and not _is_copy(row)]
    undecided: list[Mapping[str, Any]] = []
    for row in transactions:
        if queue is not None and row["attempt"] not in touched:
            continue
        if row["commit_seq"] is not None:
            found.append({"kind": row["status"], **row})
        elif row["status"] != model.ROLLED_BACK:
            undecided.append({"kind": row["status"], **row})
    return sorted(found, key=lambda row: row["commit_seq"]), undecided


def _is_copy(row: Mapping[str, Any]) -> bool:
    """Return whether a row is the copy of an alteration for readers of the queue's backlog."""
    return row["kind"] == model.QUEUE_ALTERED and row["sequence"] is None


def _proof(session: OpenStore, found: VerificationResult) -> None:
    rows = [
        {
            "holds": c.holds,
            "claim": c.claim,
            "found": c.found,
            "expected": c.expected,
            "log_from_version": found.log_from_version,
        }
        for c in found.claims
    ]
    session.printer.rows(rows, ("holds", "claim", "found", "expected"), "")
    session.printer.note(found.compared)
    for problem in found.problems:
        session.printer.note(problem)
    if not found.ok:
        raise typer.Exit(1)


@command("report", looks=True)
def report(
    session: OpenStore,
    html: Annotated[
        Path | None, typer.Option(help="Write the audit page into this file.", dir_okay=False)
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="The moment to begin after: a commit_seq, or an instant with its time zone.",
        ),
    ] = None,
    upto: Annotated[
        str | None, typer.Option("--to", help="The moment to end with; if omitted, now.")
    ] = None,
    *,
    payload: Annotated[
        bool, typer.Option("--payload", help="Show the rows of some dead letters.")
    ] = False,
    verify: Annotated[bool, typer.Option(help="Whether the store is verified.")] = True,
) -> None:
    """Report what happened between two moments: in figures, and as a page for an auditor."""
    if html is not None:
        _check_page(html)
    elif payload:
        raise typer.BadParameter("--payload needs --html: only the page shows rows.")
    given = {"--from": after, "--to": upto}
    moments = [None if text is None else moment_of(text, name) for name, text in given.items()]
    log = _verifying(session).history if verify else session.looking.history
    found = log.report(*moments, payload=payload, verify=verify)
    rows = [asdict(line) for line in found.figures.differences]
    session.printer.rows(rows, DIFFERENCE_COLUMNS, "There was no queue.")
    if html is not None:
        session.printer.note(f"The audit page is {found.save(html)}.")
    if found.proof is not None and not found.proof.ok:
        session.printer.note("The store could not be verified: run history --verify for details.")
        raise typer.Exit(1)


def _verifying(session: OpenStore) -> QueueManager:
    """Return the manager: only Spark reads the change feed, which the proof asks."""
    try:
        return session.manager
    except PlatformMissing as error:
        raise PlatformMissing(
            f"{error} Without the proof no Spark is needed: report --no-verify.",
            missing=error.missing,
        ) from error


def _check_page(html: Path) -> None:
    """Check that a page can be written, before the store is read and verified.

    Raises:
        PlatformMissing: jinja2 is not installed.
    """
    new_environment()
    there = Path(os.path.realpath(html))
    if there.is_file() or not there.exists():
        there = there.parent  # a page is written beside the one that it replaces
    elif there.is_dir():
        raise typer.BadParameter(f"--html: {str(html)!r} is a folder.")
    if not os.access(there, os.W_OK):
        raise typer.BadParameter(f"--html: {str(html)!r} cannot be written.")


@command("sql")
def sql(
    session: OpenStore,
    what: Annotated[str, typer.Argument(help="views: the statements that make the views.")],
    as_of: Annotated[int | None, typer.Option(help="As the store was after this commit_seq.")] = (
        None
    ),
    prefix: Annotated[str, typer.Option(help="A prefix for the names of the views.")] = "",
) -> None:
    """Print plain SQL: the views over the store's tables, for any tool that reads Delta."""
    if what != "views":
        raise typer.BadParameter("write: txnqueue sql views")
    for name, text in session.manager.view_statements(prefix, as_of).items():
        session.printer.script({"view": name, "statement": text}, f"{text};\n\n")
