"""A journal that stops answering at its next append, whether that lands or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest


@contextmanager
def unanswered(journal: Any, *, lands: bool) -> Iterator[None]:
    """Give no reply to the next append, and in this block let nothing be read or written after."""
    append, read = journal.append, journal.read

    def silent(*args: Any, **kwargs: Any) -> Any:
        if lands:
            append(*args, **kwargs)
        journal.append = journal.read = _away
        raise ConnectionError("no reply")

    journal.append = silent
    try:
        yield
    finally:
        journal.append, journal.read = append, read


@contextmanager
def lands_later(journal: Any) -> Iterator[Callable[[], None]]:
    """As ``unanswered``; what this yields lets that append arrive, at most once."""
    append, read = journal.append, journal.read
    late: list[Callable[[], Any]] = []

    def silent(*args: Any, **kwargs: Any) -> Any:
        late.append(partial(append, *args, **kwargs))
        journal.append = journal.read = _away
        raise ConnectionError("no reply")

    def land() -> None:
        while late:
            late.pop()()

    journal.append = silent
    try:
        yield land
    finally:
        journal.append, journal.read = append, read


@contextmanager
def away(journal: Any) -> Iterator[None]:
    """Let nothing be read or written in this block."""
    append, read = journal.append, journal.read
    journal.append = journal.read = _away
    try:
        yield
    finally:
        journal.append, journal.read = append, read


def _away(*_: Any, **__: Any) -> Any:
    raise ConnectionError("the store is away")


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
