"""Progress of calls for people, in a notebook or a terminal, invisible to programs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

from txnqueue.errors import PlatformMissing

Show = Callable[[int], object]
"""Shows how many messages are done."""


@contextlib.contextmanager
def showing_progress(what: str, total: int | None) -> Iterator[Show]:
    """Show progress as long as the block runs.

    Args:
        what: What is done.
        total: How many messages there are to do, as far as is known.

    Raises:
        PlatformMissing: There is no notebook, and rich is not installed.
    """
    display = _display()
    if display is not None:
        show = _quietly(_Element(what, total, display).show)
        show(0)
        yield show
        return
    try:
        from rich import progress as bars
        from rich.console import Console
    except ModuleNotFoundError as error:
        raise PlatformMissing(
            f"progress=True needs {error.name} in a terminal: pip install 'txnqueue[cli]'.",
            missing=error.name,
        ) from error
    bar = bars.Progress(
        bars.TextColumn("{task.description}", markup=False),
        bars.BarColumn(),
        bars.MofNCompleteColumn() if total is not None else bars.TextColumn("{task.completed}"),
        bars.TextColumn("messages"),
        bars.TimeElapsedColumn(),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(what, total=total)
        yield _quietly(lambda done: bar.update(task, completed=done))


def counting(show: Show, on_batch: Show | None) -> Show:
    """Show the sum of what batches held; then do what is to be done after each.

    Args:
        show: Shows the sum.
        on_batch: Called with the number of messages of each batch.
    """
    done = 0

    def add(count: int) -> object:
        nonlocal done
        done += count
        show(done)
        if on_batch is not None:
            return on_batch(count)
        return None

    return add


def _quietly(show: Show) -> Show:
    """Ignore that something cannot be shown: it must not end what is done."""

    def shown(done: int) -> None:
        with contextlib.suppress(Exception):
            show(done)

    return shown


def _display() -> Callable[..., Any] | None:
    """Find what displays in the notebook whose kernel this process is; None if it is none."""
    python = sys.modules.get("IPython")
    shell = python.get_ipython() if python is not None else None
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import display

    found: Callable[..., Any] = display
    return found


class _Element:
    """An element of HTML that is replaced as the work goes on; it needs no widgets."""

    def __init__(self, what: str, total: int | None, display: Callable[..., Any]) -> None:
        self._what, self._total, self._display = what, total, display
        self._handle: Any = None

    def show(self, done: int) -> None:
        """Show how many messages are done."""
        page = {"text/html": self._page(done), "text/plain": f"{self._what}: {done} messages"}
        if self._handle is None:
            self._handle = self._display(page, raw=True, display_id=True)
        else:
            self._handle.update(page, raw=True)

    def _page(self, done: int) -> str:
        of = "" if self._total is None else f" of {self._total:,}"
        bar = f'<progress value="{done}" max="{self._total}"></progress> ' if self._total else ""
        return f"<div>{bar}{escape(self._what)}: {done:,}{of} messages</div>"
