"""Who may touch what the threads of one manager share: whoever holds its lock.

What is shared asks the lock at each touch, as soon as the checks are turned on. The tests do
that: a forgotten lock then fails where it was forgotten, and not once in a million histories.

Nothing is read of the payload while a lock is held, because that may take as long as it likes,
and a heartbeat needs the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

Held: TypeAlias = Callable[[], bool]
"""Says whether this thread holds a lock."""

CHECKED = False
"""Whether each touch is checked."""
new_lock: Callable[[], threading.RLock] = threading.RLock
"""Makes a lock; the tests make some that refuse a second one to the same thread."""


class NotRead(BaseException):
    """What somebody needs who holds a lock is not read yet: let go of it, read, begin again.

    It is no error, and nobody but who let go of the lock is to catch it.
    """

    def __init__(self, read: Callable[[], None]) -> None:
        """Say how it is read."""
        super().__init__("to be read without a lock")
        self.read = read


def held(lock: threading.RLock) -> Held:
    """Make what says whether this thread holds a lock, by what ``threading.Condition`` asks."""
    asks: Held = lock._is_owned  # type: ignore[attr-defined]
    return asks


def check(mine: Held | None, what: str) -> None:
    """Check that this thread may touch something.

    Args:
        mine: Says whether it holds the lock; None: nobody else knows of it.
        what: What is touched.
    """
    assert not CHECKED or mine is None or mine(), f"{what} is touched without its lock"
