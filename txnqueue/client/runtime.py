"""What a client takes from outside the protocol: time, identity, chance and patience.

All of it is handed in, so that a test decides what the clock says and which ids are drawn.
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

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


def _actor() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user in the container
        return "unknown"


class UnderWay(Protocol[Result_co]):
    """What a worker does meanwhile."""

    def result(self) -> Result_co:
        """Wait for it, and give what it returned, or raise what it raised."""
        ...


class Background(Protocol):
    """Does things behind what the caller goes on with, one after the other."""

    def submit(self, act: Callable[[], Result], /) -> UnderWay[Result]:
        """Begin with something, now or when what came before is done."""
        ...

    def shutdown(self, *, wait: bool) -> None:
        """Take nothing more."""
        ...


def _one_thread() -> Background:
    return ThreadPoolExecutor(1, "txnqueue behind")


@dataclass(slots=True)
class Runtime:
    """The clock, the source of ids, the dice, and who is acting.

    Attributes:
        now_ms: Epoch milliseconds; decides only when a client may try, never the outcome.
        monotonic: Seconds for bounding retries.
        sleep: Waits for a number of seconds.
        new_id: Draws 32 hexadecimal digits that are unique.
        dice: Uniform in 0 to 1.
        actor: Who is written into every entry.
        run_id: The run of a job that the work belongs to.
        consumer: Names who holds leases; the same id again takes over what it left behind.
        retry: How appends that meet a conflict are tried again.
        new_background: Makes what works behind its caller: a thread.
    """

    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic: Callable[[], float] = time.monotonic
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

    What a failed try means, a conflict or a lost reply, and which error ends the operation, is
    the caller's decision.
    """

    def __init__(self, runtime: Runtime) -> None:
        """Start the clock of an operation."""
        self._runtime = runtime
        self._started = runtime.monotonic()
        self.failed = 0
        """How many tries have failed."""

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
        """Wait before the next try; with jitter, so that writers in conflict drift apart."""
        runtime = self._runtime
        runtime.sleep(runtime.retry.wait_seconds(self.failed, runtime.dice()))
