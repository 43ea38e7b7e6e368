"""The bounds that end a drain before its queue is empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from txnqueue.core.handlers import check_ran
from txnqueue.core.settings import check_count, check_number


def _never() -> bool:
    return False


def _lasting(asked: Callable[[], bool]) -> Callable[[], bool]:
    """Make a question that is no longer asked once it was answered with yes.

    Who is asked may say so only once, as after taking a request to stop from a queue; a later no
    would let a run that was stopped pass for one that has finished.
    """
    said = False

    def ask() -> bool:
        nonlocal said
        said = said or asked()
        return said

    return ask


@dataclass(frozen=True, slots=True)
class Bounds:
    """What ends a drain before the queue is empty; None: nothing of the kind.

    Attributes:
        max_seconds: Begin no batch after this many seconds.
        max_messages: Begin no batch after this many messages.
        max_batches: Begin no batch after this many.
        stopped: Asked before each batch: whether to stop; once that is so, it stays so.
    """

    max_seconds: float | None = None
    max_messages: int | None = None
    max_batches: int | None = None
    stopped: Callable[[], bool] = _never

    def __post_init__(self) -> None:
        """Check every value."""
        if self.max_seconds is not None:
            check_number("max_seconds", self.max_seconds, 0, float("inf"))
        for name in ("max_messages", "max_batches"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), 1, float("inf"))
        object.__setattr__(self, "stopped", _lasting(self.stopped))

    def asked_to_stop(self) -> bool:
        """Ask whether to stop.

        Raises:
            InvalidInput: What is asked only prepares an answer.
        """
        return bool(check_ran(self.stopped(), "stopped"))

    def over(self, seconds: float) -> bool:
        """Whether no further batch may begin, claimed or not."""
        return self.asked_to_stop() or (
            self.max_seconds is not None and seconds >= self.max_seconds
        )

    def room(self, size: int, seconds: float, messages: int, batches: int) -> int:
        """How many messages the next batch may hold; 0 ends the drain."""
        if self.over(seconds):
            return 0
        if self.max_batches is not None and batches >= self.max_batches:
            return 0
        return size if self.max_messages is None else min(size, self.max_messages - messages)
