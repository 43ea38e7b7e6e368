"""End a job when the scheduler asks: SIGTERM lets it finish its batch, or roll it back.

So does SIGHUP, which comes when the terminal is closed, unless it is ignored, as after ``nohup``.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

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
_outside: dict[int, Any] = {}
"""How this process took the signals of ``on_sigterm`` before, which is how its children take them.

A child that only asked its own copy of the job to stop would not end: for example, a
``multiprocessing.Pool`` ends its workers by SIGTERM, and waits for them.
"""
_forking = threading.local()


@contextmanager
def starting_java() -> Iterator[None]:
    """Let processes that are started in the block ignore SIGTERM and SIGHUP, and print on stderr.

    They are sent to the whole group of a job's processes. A Java that ended at once would take
    the batch with it that this process is to finish; it ends when this process does. What Java
    prints, for example while Spark fetches jars, is no part of a command's result.
    """
    global _starting_java  # noqa: PLW0603 - hooks of forks read it
    _prepare_children()
    _starting_java = True
    try:
        yield
    finally:
        _starting_java = False


@cache
def _prepare_children() -> None:
    if hasattr(os, "register_at_fork"):  # where processes begin as copies of others
        os.register_at_fork(
            before=_hold_back, after_in_parent=_let_through, after_in_child=_prepare_child
        )


def _hold_back() -> None:
    """Let signals wait until a new child is prepared: it forgets those that it hears before."""
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, tuple(_outside))


def _let_through() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _prepare_child() -> None:
    try:
        _put_back(_outside)
        _outside.clear()
        if _starting_java:
            _prepare_java()
    finally:
        _let_through()


def _put_back(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None:  # one that was not installed from Python
            signal.signal(number, handler)


def _prepare_java() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdout is not None:  # closed ones may be other files by now
        os.dup2(os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else 2, 1)


@contextmanager
def on_sigterm(grace_seconds: float) -> Iterator[Stop]:
    """Ask for a stop at SIGTERM or SIGHUP, and interrupt what goes on longer than it is given.

    Args:
        grace_seconds: So long the batch at hand may go on; then it is rolled back, and what
            it held is given back.
    """
    stop, asked_by = Stop(), "SIGTERM"

    def asked(number: int, _frame: FrameType | None) -> None:
        nonlocal asked_by
        if not stop():
            asked_by = signal.Signals(number).name
            stop.ask()
            signal.setitimer(signal.ITIMER_REAL, max(grace_seconds, 0.001))

    def too_late(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"not finished {grace_seconds} seconds after {asked_by}")

    heard = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        heard.append(signal.SIGHUP)
    _prepare_children()
    # While the others set the timer somebody has to hear it: else it would end the process.
    alarm: dict[int, Any] = {signal.SIGALRM: signal.signal(signal.SIGALRM, too_late)}
    before: dict[int, Any] = {number: signal.signal(number, asked) for number in heard}
    around = dict(_outside)  # of a block around this one, whose children this one's are too
    _outside.update({**alarm, **before, **around})
    try:
        yield stop
    finally:
        _put_back(before)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _put_back(alarm)
        _outside.clear()
        _outside.update(around)
