"""A stream: a continuous drain of a queue in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from txnqueue.client.client import Client
from txnqueue.core.bounds import Bounds
from txnqueue.core.settings import LEASE_SECONDS_MAX, check_number, describe_error
from txnqueue.drain import Drain
from txnqueue.errors import Busy, InvalidInput
from txnqueue.messages.receive import Poller
from txnqueue.results import DrainResult

if TYPE_CHECKING:
    from txnqueue.queue import Queue

logger = logging.getLogger("txnqueue")
BUSY_SECONDS = 1.0
"""How long a stream waits when other clients were faster at every try."""


class Stream:
    """A consumer in a thread of the program, one transaction per batch, until it is stopped.

    The journal alone records what the stream has consumed. So there is no file to lose,
    and any number of streams and other consumers may work on one queue.

    Example::

        with orders.stream(pay) as stream:
            stream.await_termination()
    """

    def __init__(
        self,
        client: Client,
        queue: Queue,
        drain: Drain,
        max_messages: int | None,
        on_batch: Callable[[int], None] | None,
    ) -> None:
        """Start the stream; users get it from ``Queue.stream``."""
        self._client = client
        self._queue = queue
        self._drain = drain
        self._on_batch = on_batch
        self._stopping = threading.Event()
        self._bounds = Bounds(max_messages=max_messages, stopped=self._stopping.is_set)
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=self._work, name=f"txnqueue stream {queue.name}", daemon=True
        )
        client.streams.add(self)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        """Whether the stream still runs."""
        return self._thread.is_alive()

    @property
    def exception(self) -> BaseException | None:
        """The error that ended the stream; None while it runs, and if no error ended it."""
        return self._error

    @property
    def result(self) -> DrainResult:
        """What the stream has consumed so far, as a drain would report it."""
        return replace(self._drain.result, stopped=self._stopping.is_set())

    def stop(self, timeout_seconds: float | None = None) -> bool:
        """Stop the stream after the current batch, and wait until it has ended.

        A handler is not interrupted. If the process ends before the batch is committed, the batch's
        messages are available again when their lease has ended.

        Args:
            timeout_seconds: Wait at most this long; without limit when omitted.

        Returns:
            Whether the stream has ended.

        Raises:
            InvalidInput: The caller is the stream's own handler, or the timeout is invalid; the
                stream goes on.
        """
        self._check_waiting(timeout_seconds)
        self._stopping.set()
        return self._ended(timeout_seconds)

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the stream ends: by ``stop``, by ``max_messages``, or by an error.

        Args:
            timeout_seconds: Wait at most this long; without limit when omitted.

        Returns:
            Whether the stream has ended.

        Raises:
            TxnQueueError: The error that ended the stream. Nothing of a batch that was not
                committed happened: start another stream to go on.
        """
        self._check_waiting(timeout_seconds)
        ended = self._ended(timeout_seconds)
        if ended and self._error is not None:
            raise self._error
        return ended

    def __enter__(self) -> Stream:
        """Return the stream, which is stopped when the block ends."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the stream; raise the error that ended it, unless the block itself raised one."""
        self.stop()
        if error is None and self._error is not None:
            raise self._error

    def __repr__(self) -> str:
        """Show the queue, and whether the stream runs."""
        state = "active" if self.is_active else "failed" if self._error else "ended"
        return f"<Stream of {self._queue.name}, {state}>"

    # -------------------------------------------------------------------------- helpers

    def _check_waiting(self, timeout_seconds: float | None) -> None:
        """Check that the caller may wait for the end of the stream.

        Raises:
            InvalidInput: The caller is the stream's handler, or the timeout is invalid.
        """
        if timeout_seconds is not None:
            check_number("timeout_seconds", timeout_seconds, 0, LEASE_SECONDS_MAX)
        if self._thread is threading.current_thread():
            raise InvalidInput(
                "A handler cannot wait for the end of its own stream: raise an error to end it, "
                "or stop it from elsewhere."
            )

    def _ended(self, timeout_seconds: float | None) -> bool:
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        """Drain the queue, wait until messages may have come, and repeat."""
        try:
            forever = float("inf")
            poller = Poller(self._client, self._queue.info, forever, self._stopping)
            while self._drained() and poller.wait_for_change():
                pass
        except BaseException as error:  # for the program, which may wait in another thread
            self._error = error
            about = (self._queue.name, describe_error(error))
            logger.warning("stream ended queue=%s error=%s", *about)
        finally:
            self._client.streams.discard(self)

    def _drained(self) -> bool:
        """Consume the available messages; return whether to go on after that."""
        while not self._stopping.is_set():
            try:
                consumed = self._drain.run("empty", self._bounds, self._on_batch).messages
            except Busy as error:  # nothing happened: the next try may succeed
                logger.info("stream tries again queue=%s error=%s", self._queue.name, error)
                self._stopping.wait(BUSY_SECONDS)
            else:
                return self._bounds.room(1, 0, consumed, 0) > 0
        return False
