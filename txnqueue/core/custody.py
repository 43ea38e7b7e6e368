"""Objects shared by the threads of a manager, usable only by the thread that holds their lock.

When the checks are turned on, as in the tests, a shared object checks the lock at each access. A
forgotten lock then fails where it was forgotten, not once in a million histories.

No payload is read while a lock is held, because that may take any time, and a heartbeat needs the
lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakSet

LockT = TypeVar("LockT", threading.Lock, threading.RLock)
CHECKED = False
"""Whether each touch is checked."""
_locks: WeakSet[Any] = WeakSet()


def freed_in_forks(lock: LockT) -> LockT:
    """Let a forked process find a lock free, which a thread of the first process may hold for long.

    That thread does not exist there: who waited for the lock would wait for ever, instead of being
    told that a manager belongs to the process that made it.
    """
    _locks.add(lock)
    return lock


def _free() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free)


def _new_lock() -> threading.RLock:
    return freed_in_forks(threading.RLock())


new_lock: Callable[[], threading.RLock] = _new_lock
"""Makes a lock; the tests make some that refuse a second one to the same thread."""


class Custody:
    """Says whether this thread holds a lock; what is copied stays under the same one."""

    def __init__(self, lock: threading.RLock) -> None:
        """Ask a lock what ``threading.Condition`` asks it."""
        self._asks: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]  # not in typeshed

    def held(self) -> bool:
        """Return whether this thread holds it."""
        return self._asks()

    def __deepcopy__(self, memo: dict[int, Any]) -> Custody:
        """Give itself."""
        return self


class NotRead(BaseException):
    """Data that is needed under a lock is not read yet: release the lock, read, begin again.

    It is no error, and only the code that has released the lock may catch it.
    """

    def __init__(self, read: Callable[[], None]) -> None:
        """Keep how it is read."""
        super().__init__("to be read without a lock")
        self.read = read
        self.without: Callable[[Exception], None] | None = None
        """Called with the error if the read fails and that is no reason to give up."""


def check(custody: Custody | None, what: str) -> None:
    """Check that this thread may touch something.

    Args:
        custody: Says whether it holds the lock; None: no other thread knows of it.
        what: What is touched.
    """
    assert not CHECKED or custody is None or custody.held(), f"{what} is touched without its lock"
