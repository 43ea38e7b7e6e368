"""Keep a lease alive while a long handler works."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txnqueue.batch import Batch


class Heartbeat:
    """Extends the lease of a batch again and again, as long as its block runs.

    The thread ends with the block. If the lease was lost meanwhile the block ends with
    ``LeaseLost``, unless it ends with an error of its own; ``lost`` tells it in between.
    """

    def __init__(self, batch: Batch, lease_seconds: float, every_seconds: float) -> None:
        """Describe it; users get it from ``Batch.heartbeat``."""
        self._batch = batch
        self._lease_seconds = lease_seconds
        self._every_seconds = every_seconds
        self._over = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._beat, name="txnqueue heartbeat", daemon=True)
        self.beats = 0

    @property
    def lost(self) -> bool:
        """Whether the lease could not be extended: others may have the messages.

        What was settled while a beat was on its way is not lost: nothing is left to hold.
        """
        return self._error is not None and self._batch.holds

    def __enter__(self) -> Heartbeat:
        """Start to beat."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop, and wait for a beat that is on its way."""
        self._over.set()
        self._thread.join()
        if error is None and self._error is not None and self.lost:
            raise self._error

    def _beat(self) -> None:
        while not self._over.wait(self._every_seconds):
            try:
                self._batch.extend_lease(self._lease_seconds)
            except Exception as error:  # told at the end of the block, and by ``lost``
                self._error = error
                return
            self.beats += 1
