"""Arguments and options shared by several commands."""

from __future__ import annotations

from typing import Annotated

import typer

Queue = Annotated[str, typer.Argument(help="The queue's name.", show_default=False)]
Limit = Annotated[int, typer.Option(min=1, help="At most this many.")]
Where = Annotated[
    str | None,
    typer.Option(help="Only messages that match this SQL predicate over payload and _message."),
]


def _checked(reason: str | None) -> str | None:
    """Check a reason that may be left out: an empty one is a variable that is not set."""
    if reason is not None and not reason.strip():
        raise typer.BadParameter("give the reason, or omit the option.")
    return reason


Reason = Annotated[
    str | None, typer.Option(help="The reason; recorded in the history.", callback=_checked)
]
