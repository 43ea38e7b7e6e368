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
Reason = Annotated[str | None, typer.Option(help="The reason; recorded in the history.")]
