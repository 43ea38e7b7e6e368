"""Threads of Python that take turns often."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def switching(seconds: float) -> Iterator[None]:
    """Let threads take turns after so many seconds, or as soon after that as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
