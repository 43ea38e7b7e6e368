"""End a job when the scheduler asks: SIGTERM lets it finish its batch, or roll it back."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType

from txnqueue.core.settings import LEASE_SECONDS_MAX, check_number


class Stop:
    """Whether the process was asked to stop."""

    def __init__(self) -> None:
        """Begin without a request to stop."""
        self._asked = threading.Event()

    def __call__(self) -> bool:
        """Return whether the process was asked to stop."""
        return self._asked.is_set()

    def ask(self) -> None:
        """Ask."""
        self._asked.set()


def check_grace(grace_seconds: float) -> None:
    """Check ``--grace-seconds`` before anything begins: no timer of the system runs for ever.

    Raises:
        LimitExceeded: It is out of range, or no number.
    """
    check_number("grace_seconds", grace_seconds, 0, LEASE_SECONDS_MAX)


_starting_java = False


@contextmanager
def starting_java() -> Iterator[None]:
    """Let processes that are started in the block ignore SIGTERM, and print on stderr.

    Schedulers send it to the whole group of a job's processes. A Java that ended at once would take
    the batch with it that this process is to finish; it ends when this process does. What Java
    prints, for example while Spark fetches jars, is no part of a command's result.
    """
    global _starting_java  # noqa: PLW0603
    _prepare_children()
    _starting_java = True
    try:
        yield
    finally:
        _starting_java = False


@cache
def _prepare_children() -> None:
    if hasattr(os, "register_at_fork"):  # where processes begin as copies of others
        os.register_at_fork(after_in_child=_prepare_java)


def _prepare_java() -> None:
    if not _starting_java:
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.stdout is not None:  # closed ones may be other files by now
        os.dup2(os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else 2, 1)


@contextmanager
def on_sigterm(grace_seconds: float) -> Iterator[Stop]:
    """Ask for a stop at SIGTERM, and interrupt what goes on longer than it is given.

    Args:
        grace_seconds: So long the batch at hand may go on; then it is rolled back, and what
            it held is given back.
    """
    stop = Stop()

    def terminated(_number: int, _frame: FrameType | None) -> None:
        if not stop():
            stop.ask()
            signal.setitimer(signal.ITIMER_REAL, max(grace_seconds, 0.001))

    def too_late(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"not finished {grace_seconds} seconds after SIGTERM")

    # While SIGTERM sets the timer somebody has to hear it: else it would end the process.
    alarmed_before = signal.signal(signal.SIGALRM, too_late)
    terminated_before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, terminated_before)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarmed_before)
