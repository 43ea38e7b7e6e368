"""Locks of which a thread may hold one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

_held: ContextVar[tuple[SingleLock, ...]] = ContextVar("held", default=())  # greenlets have theirs


def in_another_thread(act: Callable[[], Any]) -> Any:
    """Do something in a thread of its own, to its end."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(act()))
    thread.start()
    thread.join()
    return answers[0]


class SingleLock:
    """A reentrant lock that a thread cannot get while it holds another one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def acquire(self, blocking: bool = True) -> bool:
        assert all(other is self for other in _held.get()), "two locks in one thread"
        taken = self._lock.acquire(blocking)
        if taken:
            _held.set((*_held.get(), self))
        return taken

    def release(self) -> None:
        _held.set(_held.get()[:-1])
        self._lock.release()

    def __enter__(self) -> SingleLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        lock: Any = self._lock
        return bool(lock._is_owned())
