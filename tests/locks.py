"""Locks of which a thread may hold one at a time."""

from __future__ import annotations

import threading
from contextvars import ContextVar

_held: ContextVar[tuple[SingleLock, ...]] = ContextVar("held", default=())  # greenlets have theirs


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
        return self._lock._is_owned()
