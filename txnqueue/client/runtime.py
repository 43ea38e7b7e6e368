"""A client's clocks, ids, randomness, identity and retry policy.

All of them are passed in, so that tests control the clock and the ids.
"""

from __future__ import annotations

import getpass
import random
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from txnqueue.core.settings import RetryPolicy
from txnqueue.platform import clock

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


def _actor() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user in the container
        return "unknown"


class UnderWay(Protocol[Result_co]):
    """A call that runs in the background."""

    def result(self) -> Result_co:
        """Wait for the call, and return its result or raise its exception."""
        ...


class Background(Protocol):
    """Runs calls in the background, one after the other."""

    def submit(self, act: Callable[[], Result], /) -> UnderWay[Result]:
        """Begin a call, at once or when the earlier ones have ended."""
        ...

    def shutdown(self, *, wait: bool) -> None:
        """Take no more calls, and with ``wait`` wait for the present ones."""
        ...


def _one_thread() -> Background:
    return ThreadPoolExecutor(1, "txnqueue behind")


@dataclass(slots=True)
class Runtime:
    """The clocks, the sources of ids and chance, the identity and the retry policy of a client.

    Attributes:
        now_ms: Epoch milliseconds; decides only when a client may try, never the outcome.
        monotonic: Seconds on a monotonic clock, for waits and retries.
        sleep: Waits for a number of seconds.
        new_id: Draws a unique id of 32 hexadecimal digits.
        dice: Draws a number, uniform in 0 to 1.
        actor: The name that is recorded in every entry.
        run_id: The job run that the work belongs to.
        consumer: The consumer id; a new process with the same id takes over the old one's leases.
        retry: The policy by which appends are retried after conflicts.
        new_background: Makes the worker for background calls: a thread.
    """

    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic: Callable[[], float] = clock.monotonic
    sleep: Callable[[float], None] = time.sleep
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex
    dice: Callable[[], float] = random.random
    actor: str = field(default_factory=_actor)
    run_id: str | None = None
    consumer: str = field(default_factory=lambda: f"c-{uuid.uuid4().hex}")
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    new_background: Callable[[], Background] = _one_thread


class Retries:
    """The tries of one operation: counted, bounded in number and time, and spaced with jitter.

    The caller decides what a failed try means, a conflict or a lost reply, and which error ends
    the operation.
    """

    def __init__(self, runtime: Runtime) -> None:
        """Start the clock of an operation."""
        self._runtime = runtime
        self._started = runtime.monotonic()
        self.failed = 0
        """The number of failed tries."""

    @property
    def last(self) -> bool:
        """Whether a try that begins now is the last one."""
        policy = self._runtime.retry
        elapsed = self._runtime.monotonic() - self._started
        return self.failed + 1 >= policy.attempts_max or elapsed >= policy.seconds_max

    def fail(self) -> bool:
        """Count a failed try.

        Returns:
            Whether another try is left.
        """
        self.failed += 1
        policy = self._runtime.retry
        elapsed = self._runtime.monotonic() - self._started
        return self.failed < policy.attempts_max and elapsed <= policy.seconds_max

    def wait(self) -> None:
        """Wait before the next try, with jitter, so that conflicting writers drift apart."""
        runtime = self._runtime
        runtime.sleep(runtime.retry.wait_seconds(self.failed, runtime.dice()))
