"""The command line: ``txnqueue send orders orders.csv --root /lake/messaging``.

Exit codes, for schedulers:

    0   done, or nothing to do
    1   unexpected failure
    2   usage, or input that cannot be used
    3   a problem of the store, the queue, the configuration or the platform; or there is no such
        message
    4   a handler failed: too often in a row, because the job is at fault, or with all its
        messages; its batches were rolled back
    5   declare --dry-run found something to change
    6   consumed, but some messages failed too often and are dead letters now
    7   depth --at-least: there are fewer messages
    75  conflicts outlasted the retries: try again; the error says what was done before, mostly
        nothing
    76  the outcome is unknown: ask ``txnqueue outcome``, then ``txnqueue recover``
    77  committed, but changes of tables are not applied yet: use ``txnqueue recover``, and do
        not run it again
    130 interrupted, by Ctrl-C or because a batch took too long after SIGTERM

Results go to stdout, everything else to stderr. Spark is started by the commands that
need a store, when they need it.
"""

from __future__ import annotations

import sys
from typing import Annotated

from txnqueue.version import __version__

try:
    import typer

    # isort: off
    # The help lists their commands in this order.
    from txnqueue.cli import setup, upkeep, queues, messages, consume  # noqa: F401 - adds its commands
    from txnqueue.cli import exchanges, transactions, history, amqp  # noqa: F401 - adds its commands

    # isort: on
    from txnqueue.cli.console import FAILED, app, printed
    from txnqueue.cli.presentation import Output, Printer, complain
except ModuleNotFoundError as error:
    if error.name not in ("typer", "rich"):
        raise
    sys.stderr.write(
        f"txnqueue: the command line needs {error.name}: pip install 'txnqueue[cli]'\n"
    )
    raise SystemExit(3) from None

__all__ = ["app", "main"]


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        printer = Printer(Output.TABLE)
        with printed(printer):
            printer.text(f"{__version__}\n")
        raise typer.Exit


@app.callback()
def _before_all(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """A transactional message queue inside the lakehouse."""


def main() -> None:
    """Run the command line."""
    try:
        app()
    except OSError as error:  # of the help, which is printed before a command begins
        complain(f"The output cannot be written: {error}.")
        Printer(Output.TABLE).close()
        raise SystemExit(FAILED) from error


if __name__ == "__main__":
    main()
