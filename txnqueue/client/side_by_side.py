"""Run several calls at a time for one caller, who waits for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar, cast

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
    """Run two calls with different results, as ``side_by_side`` does."""
    found: list[Result | Other] = side_by_side(spark, [one, other])
    return cast("tuple[Result, Other]", tuple(found))


def _inheriting(spark: SparkSession, act: Callable[[], Result]) -> Callable[[], Result]:
    """Wrap a call so that it runs on another thread with this thread's local properties."""
    from pyspark.util import inheritable_thread_target

    inherited: Callable[[], Result] = inheritable_thread_target(spark)(act)
    return inherited
