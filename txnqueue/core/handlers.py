"""Checks that users' functions can be called, and that a call runs them (pure).

A call of an ``async`` function, or of one with a ``yield``, does not run its body. A transaction
whose handler did nothing would still be committed, and accept its messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from txnqueue.core.settings import shown
from txnqueue.errors import InvalidInput

Returned = TypeVar("Returned")
_Asked = tuple[Callable[[object], bool], ...]
_PREPARES: _Asked = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)
_PREPARED: _Asked = (inspect.iscoroutine, inspect.isgenerator, inspect.isasyncgen)


def check_function(name: str, called: object, wanted: str = "a function") -> None:
    """Check that something can be called, and runs by that.

    Args:
        name: The argument that it was given as.
        called: What was given.
        wanted: What should be.

    Raises:
        InvalidInput: It cannot, or a call would only prepare it.
    """
    if not callable(called):
        raise InvalidInput(f"{name}={shown(called)}: give {wanted}.", name=name)
    if _only_prepares(called):
        raise InvalidInput(
            f"{name}={shown(called)} is async or contains a yield, so calling it does none of its "
            f"work: give {wanted} that does its work before it returns.",
            name=name,
        )


def _only_prepares(called: object) -> bool:
    """Return whether a call only prepares; a mock of a function has no code that says so."""
    while isinstance(called, partial):
        called = called.func
    flags = getattr(getattr(called, "__code__", None), "co_flags", 0)
    return isinstance(flags, int) and any(prepares(called) for prepares in _PREPARES)


def check_ran(returned: Returned, name: str = "handler") -> Returned:
    """Check by what a function returned that it has run.

    Args:
        returned: What it returned.
        name: The argument that the function was given as.

    Returns:
        The same.

    Raises:
        InvalidInput: It only prepared what it would do.
    """
    if not any(prepared(returned) for prepared in _PREPARED):
        return returned
    if inspect.iscoroutine(returned):
        returned.close()  # nobody shall wait for it
    raise InvalidInput(
        f"{name}= returned a {type(returned).__name__}, which is never run, so its work was not "
        "done. Let it do its work before it returns.",
        name=name,
    )
