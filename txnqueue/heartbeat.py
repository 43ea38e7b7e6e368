"""Keep a lease alive while a long handler works."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from txnqueue.errors import InvalidInput, LeaseLost, SettlementPending

if TYPE_CHECKING:
    from txnqueue.batch import Batch

logger = logging.getLogger("txnqueue")


class Heartbeat:
    """Extends the lease of a batch again and again, as long as its block runs.

    The thread ends with the block. A beat that fails is logged, and the next one tries again:
    the lease is lost when another client has ended it, or when it is over because no beat came
    through. Then the block ends with ``LeaseLost``, unless it ends with an error of its own;
    ``lost`` tells it in between.
    """

    def __init__(self, batch: Batch, lease_seconds: float, every_seconds: float) -> None:
        """Describe it; users get it from ``Batch.heartbeat``."""
        self._batch = batch
        self._lease_seconds = lease_seconds
        self._every_seconds = every_seconds
        self._over = threading.Event()
        self._error: LeaseLost | None = None
        self._thread = threading.Thread(target=self._beat, name="txnqueue heartbeat", daemon=True)
        self.beats = 0

    @property
    def lost(self) -> bool:
        """Whether the lease was lost: others may have the messages.

        What was settled while a beat was on its way is not lost: nothing is left to hold.
        """
        return self._error is not None and self._batch.holds

    def __enter__(self) -> Heartbeat:
        """Start to beat.

        Raises:
            InvalidInput: It was started before: its thread ended with its block.
        """
        if self._thread.ident is not None:
            raise InvalidInput(
                "A heartbeat can be used for one block only: call batch.heartbeat() again."
            )
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
            except SettlementPending:  # a prepared transaction holds them, whatever the clock says
                self.beats += 1
            except LeaseLost as error:  # told at the end of the block, and by ``lost``
                self._error = error
                return
            except Exception as error:
                logger.warning("heartbeat failed, the next one tries again: %s", error)
                if self._batch.lease_over:
                    self._error = LeaseLost(
                        f"The lease ended, because it could not be extended: {error} Others may "
                        "have the messages now; nothing was changed."
                    )
                    self._error.__cause__ = error
                    return
            else:
                self.beats += 1
