"""Commands for transactions: outcome, recover, waiting changes of tables."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from txnqueue.cli.arguments import Queue
from txnqueue.cli.console import IN_DOUBT, NOT_APPLIED, TRY_AGAIN, OpenStore, command
from txnqueue.cli.presentation import (
    in_the_shell,
    receipt_values,
    told_of_drop,
    told_of_exchange_drop,
)
from txnqueue.core.receipt import Status

_Change = Annotated[
    str, typer.Argument(help="The id of the change, as shown by recover.", show_default=False)
]

_Attempt = Annotated[
    str | None, typer.Option(help="One attempt of it, by its name in an error message.")
]


@command("outcome", looks=True)
def outcome(
    session: OpenStore,
    transaction_id: Annotated[
        str, typer.Argument(help="Its id, or the name in an error message.", show_default=False)
    ],
    attempt: _Attempt = None,
) -> None:
    """Show the outcome of a transaction; exit code 76 if nothing is decided."""
    found = session.looking.outcome(transaction_id, attempt)
    status = found.status.value
    values = {
        "transaction_id": transaction_id,
        "status": status,
        "reason": found.reason,
        "attempts": found.attempts,
        **(receipt_values(found.receipt) if found.receipt else {}),
    }
    detail = f" (commit_seq {found.receipt.commit_seq})" if found.receipt else ""
    detail += f": {found.reason}" if found.reason else ""
    session.printer.fact(values, f"{transaction_id}: {status}{detail}")
    if found.status in (Status.ACTIVE, Status.UNDECIDED, Status.UNKNOWN):
        raise typer.Exit(IN_DOUBT)


@command("recover")
def recover(session: OpenStore) -> None:
    """Abort what dead clients left behind, and list what waits for a decision."""
    found = session.manager.recover()
    waiting = [replace(one, remedy=in_the_shell(one.remedy)) for one in found.waiting]
    values = {
        "aborted": list(found.aborted),
        "released": found.released,
        "prepared": list(found.prepared),
        "heuristic": list(found.heuristic),
        "waiting": [asdict(change) for change in waiting],
        "databases": list(found.databases),
        "drops": [asdict(drop) for drop in found.drops],
        "exchange_drops": [asdict(drop) for drop in found.exchange_drops],
        "erasing": found.erasing,
    }
    lines = [f"{len(found.aborted)} transactions aborted, {found.released} messages released."]
    lines += [f"aborted: {key}" for key in found.aborted]
    lines += [f"prepared, waiting for a decision: {key}" for key in found.prepared]
    lines += [f"decided by an operator, not forgotten: {key}" for key in found.heuristic]
    lines += [
        f"not applied: {change.operation} of {change.rows or 'some'} rows to {change.table}, "
        f"transaction {change.transaction_id}: {change.reason}. {change.remedy}"
        for change in waiting
    ]
    lines += [f"the database {name} has not confirmed a commit" for name in found.databases]
    lines += [told_of_drop(drop) for drop in found.drops]
    lines += [told_of_exchange_drop(drop) for drop in found.exchange_drops]
    lines += [f"not erased yet: rows of {owner}: {why}" for owner, why in found.erasing.items()]
    session.printer.fact(values, "\n".join(lines))
    if found.waiting:
        raise typer.Exit(NOT_APPLIED)
    if found.erasing:
        raise typer.Exit(TRY_AGAIN)


@command("rollback")
def rollback(
    session: OpenStore,
    transaction_id: Annotated[str, typer.Argument(help="Its id.", show_default=False)],
    reason: Annotated[str, typer.Option(help="The reason; recorded in the history.")],
    attempt: _Attempt = None,
) -> None:
    """Roll back a transaction that is prepared, or hangs and holds messages."""
    session.manager.rollback(transaction_id, reason, attempt)
    session.printer.fact(
        {"transaction_id": transaction_id, "status": "rolled_back", "reason": reason},
        f"{transaction_id} is rolled back.",
    )


@command("release")
def release(
    session: OpenStore,
    queue: Queue,
    consumer: Annotated[str, typer.Option(help="The consumer whose leases end.")],
    reason: Annotated[str, typer.Option(help="The reason; recorded in the history.")],
) -> None:
    """End the leases of a consumer, as if they had expired: the deliveries count."""
    count = session.manager.release(queue, consumer=consumer, reason=reason)
    session.printer.fact(
        {"queue": queue, "consumer": consumer, "released": count, "reason": reason},
        f"{count} messages of {queue} have returned.",
    )


@command("apply-change")
def apply_change(session: OpenStore, change: _Change) -> None:
    """Apply a waiting table change to the table as it is now."""
    session.manager.apply_change(change)
    session.printer.fact({"change": change, "applied": True}, f"Change {change} is applied.")


@command("waive-change")
def waive_change(
    session: OpenStore,
    change: _Change,
    reason: Annotated[str, typer.Option(help="The reason; recorded in the history.")],
    *,
    table_gone: Annotated[
        bool, typer.Option("--table-gone", help="The table is gone for good, or is no Delta table.")
    ] = False,
) -> None:
    """Waive a waiting table change, on record."""
    session.manager.waive_change(change, reason, table_gone=table_gone)
    session.printer.fact({"change": change, "waived": True}, f"Change {change} is waived.")
