"""A journal that stops answering at its next append, whether that lands or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def unanswered(journal: Any, *, lands: bool) -> Iterator[None]:
    """Give no reply to the next append, and in this block let nothing be read or written after."""
    append, read = journal.append, journal.read

    def away(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("the store is away")

    def silent(*args: Any, **kwargs: Any) -> Any:
        if lands:
            append(*args, **kwargs)
        journal.append, journal.read = away, away
        raise ConnectionError("no reply")

    journal.append = silent
    try:
        yield
    finally:
        journal.append, journal.read = append, read


@contextmanager
def interrupted(journal: Any, *, lands: bool) -> Iterator[None]:
    """Interrupt the next append as Ctrl+C does, which is what ends this block."""
    append = journal.append

    def interrupts(*args: Any, **kwargs: Any) -> Any:
        journal.append = append
        if lands:
            append(*args, **kwargs)
        raise KeyboardInterrupt

    journal.append = interrupts
    with pytest.raises(KeyboardInterrupt):
        yield
