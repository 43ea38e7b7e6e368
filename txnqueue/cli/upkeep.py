"""Commands for the machine and the store: doctor, maintain, erase, take-over."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated, cast

import typer

from txnqueue.cli.arguments import Queue
from txnqueue.cli.console import PLATFORM, OpenStore, check_sure, command
from txnqueue.core.configuration import OPTIONS, Configuration
from txnqueue.errors import InvalidInput
from txnqueue.platform.doctor import doctor as examine


@command("doctor")
def doctor(session: OpenStore) -> None:
    """Check Java, Spark, Delta and the settings from the environment; start no Spark session."""
    checks = examine(_root(session.options.root))
    rows = [
        {"name": c.name, "found": c.found, "verdict": c.verdict, "meaning": c.meaning}
        for c in checks
    ]
    rows += [row for row in (*map(_setting, OPTIONS), _contradiction()) if row is not None]
    session.printer.rows(rows, ("name", "found", "verdict", "meaning"), "Nothing to check.")
    if any(row["verdict"] == "error" for row in rows):
        raise typer.Exit(PLATFORM)


def _environment() -> Configuration:
    return Configuration(lambda _key: None, os.environ)


def _root(given: str | None) -> str | None:
    """Return the root whose storage is judged; None if the environment's cannot be used."""
    try:
        return cast("str | None", _environment().value("root", given).value)
    except InvalidInput:  # which is shown beside the other settings
        return None


def _contradiction() -> dict[str, str] | None:
    """Show that the settings of new queues cannot be used together; None if they can."""
    try:
        _environment().declared_settings({})
    except InvalidInput as error:
        if error.name not in OPTIONS:  # which is shown if it cannot be used by itself
            found = error.source or ""
            return {"name": "queue", "found": found, "verdict": "error", "meaning": str(error)}
    return None


def _setting(key: str) -> dict[str, str] | None:
    """Show a setting that the environment makes; None if it does not."""
    try:
        found = _environment().value(key)
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
    meaning = f"Set by {found.source}; Spark's configuration and arguments take precedence."
    return {"name": key, "found": str(found.value), "verdict": "ok", "meaning": meaning}


@command("maintain")
def maintain(
    session: OpenStore,
    transaction_seconds_max: Annotated[
        float, typer.Option(help="How long a transaction may stay undecided.")
    ] = 86_400.0,
    payload_retention_days: Annotated[
        int, typer.Option(help="How long the payload of consumed messages is kept.")
    ] = 7,
    history_retention_days: Annotated[
        int | None,
        typer.Option(help="How long past states can be queried; if omitted, for ever."),
    ] = None,
    *,
    vacuum: Annotated[
        bool, typer.Option("--vacuum/--no-vacuum", help="Delete files that are no longer needed.")
    ] = True,
    full_vacuum: Annotated[
        bool,
        typer.Option(
            "--full-vacuum",
            help="Also delete what failed appends left behind; slower, and once a month is enough.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be done.")
    ] = False,
) -> None:
    """Keep the store small and fast; run it from time to time, beside everything else."""
    if full_vacuum and not vacuum:
        raise typer.BadParameter("give --no-vacuum or --full-vacuum, not both.")
    done = session.manager.maintain(
        transaction_seconds_max=transaction_seconds_max,
        payload_retention_days=payload_retention_days,
        history_retention_days=history_retention_days,
        vacuum="full" if full_vacuum else vacuum,
        dry_run=dry_run,
    )
    would = "Would have been" if done.dry_run else "Done"
    lines = [
        f"{would}: {done.compacted} lanes compacted, {done.archived} entries archived, "
        f"{done.slices} slices of payload dropped, {done.forgotten} entries removed from the "
        f"history, {done.rewritten} shards and days written into few files.",
        *(f"All payload of {one}, which was dropped, is deleted." for one in done.removed),
        *(
            f"Nothing names the payload table of {one}: check whether it is still needed."
            for one in done.orphans
        ),
        *(f"Skipped: {one}" for one in done.skipped),
    ]
    session.printer.fact(asdict(done), "\n".join(lines))


@command("erase")
def erase(
    session: OpenStore,
    queue: Queue,
    where: Annotated[
        str, typer.Option(help="A SQL predicate over the payload's columns.", show_default=False)
    ],
    reason: Annotated[
        str,
        typer.Option(help="The reason; recorded for ever, so name nobody.", show_default=False),
    ],
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Required, because erasing cannot be undone.")
    ] = False,
) -> None:
    """Delete the payload of messages for good, and keep their history; purges those that wait."""
    check_sure(f"the payload of messages of {queue}", sure=yes)
    done = session.manager.erase(queue, where, reason)
    until = done.readable_until
    lines = [f"{done.erased} rows erased; {done.purged} waiting messages purged."]
    if until is not None:
        lines.append(f"Their files stay until {until:%Y-%m-%d %H:%M} UTC, and the next maintain.")
    if done.undecided:
        lines.append(f"{done.undecided} rows may still become messages: erase again a day later.")
    session.printer.fact(asdict(done), "\n".join(lines))


@command("take-over")
def take_over(
    session: OpenStore,
    reason: Annotated[
        str, typer.Option(help="The reason; recorded in the history of the journal's table.")
    ],
) -> None:
    """Make this driver the writer of a store on S3, as the previous one has certainly ended."""
    taken = session.manager.take_over(reason)
    session.printer.fact(
        {"taken_over": session.manager.root if taken else None},
        "Taken over." if taken else "There is nothing to take over: any driver may write here.",
    )
