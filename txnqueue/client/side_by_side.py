"""Do several things at a time for one caller, who waits for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = TypeVar("Result")
THREADS_MAX = 8
"""So many at a time: Spark's jobs share the cores anyway."""


def side_by_side(spark: SparkSession | None, acts: Sequence[Callable[[], Result]]) -> list[Result]:
    """Do things on threads that have the caller's local properties; without Spark one by one.

    All of them are done, or have failed, before anything is raised. A caller that is interrupted
    waits for none: what they have done is to be nobody's until their results are used.

    Args:
        spark: The caller's session.
        acts: What to do.

    Returns:
        The results, in the order of the acts.

    Raises:
        Exception: What the first of them raised that failed.
    """
    if spark is None or len(acts) == 1:
        return [act() for act in acts]
    pool = ThreadPoolExecutor(THREADS_MAX, "txnqueue side by side")
    try:
        # Each has properties of its own: one call for all of them would share the object.
        under_way = [pool.submit(_inheriting(spark, act)) for act in acts]
        wait(under_way)
        return [one.result() for one in under_way]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _inheriting(spark: SparkSession, act: Callable[[], Result]) -> Callable[[], Result]:
    """Let another thread do something with this thread's local properties."""
    from pyspark.util import inheritable_thread_target

    inherited: Callable[[], Result] = inheritable_thread_target(spark)(act)
    return inherited
