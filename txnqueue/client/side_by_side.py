"""Run several calls at a time for one caller, who waits for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
Other = TypeVar("Other")
THREADS_MAX = 8
"""The most calls at a time: Spark's jobs share the cores anyway."""


def side_by_side(spark: SparkSession | None, acts: Sequence[Callable[[], Result]]) -> list[Result]:
    """Run calls on threads that inherit the caller's local properties; without Spark one by one.

    On threads, all calls have ended before an error is raised. An interrupted caller does not wait
    for them: so their effects must not matter before their results are used.

    Args:
        spark: The caller's session; None without Spark.
        acts: The calls.

    Returns:
        The results, in the order of the calls.

    Raises:
        Exception: The exception of the first call, in that order, that failed.
    """
    if spark is None or len(acts) == 1:
        return [act() for act in acts]
    pool = ThreadPoolExecutor(THREADS_MAX, "txnqueue side by side")
    try:
        # Each call inherits a separate copy of the properties, which they must not share.
        under_way = [pool.submit(_inheriting(spark, act)) for act in acts]
        wait(under_way)
        return [one.result() for one in under_way]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def both(
    spark: SparkSession | None, one: Callable[[], Result], other: Callable[[], Other]
) -> tuple[Result, Other]:
    """Run a call on a thread as ``side_by_side`` does, and another one on the caller's meanwhile.

    An interrupt ends the other one, and does not wait for the first: let it be the shorter one.

    Args:
        spark: The caller's session; None without Spark: then one runs after the other.
        one: The call on the thread.
        other: The call on the caller's thread.

    Returns:
        Both results.

    Raises:
        Exception: That of the other call, or else that of the first one.
    """
    if spark is None:
        return one(), other()
    pool = ThreadPoolExecutor(1, "txnqueue side by side")
    try:
        under_way = pool.submit(_inheriting(spark, one))
        try:
            found = other()
        except Exception:
            wait([under_way])
            raise
        return under_way.result(), found
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _inheriting(spark: SparkSession, act: Callable[[], Result]) -> Callable[[], Result]:
    """Wrap a call so that it runs on another thread with this thread's local properties."""
    from pyspark.util import inheritable_thread_target

    inherited: Callable[[], Result] = inheritable_thread_target(spark)(act)
    return inherited
