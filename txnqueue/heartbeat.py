"""Keep a lease alive while a long handler works."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from types import TracebackType
from typing import TYPE_CHECKING

from txnqueue.errors import InvalidInput, LeaseLost, SettlementPending

if TYPE_CHECKING:
    from txnqueue.batch import Batch

logger = logging.getLogger("txnqueue")
_Claim = tuple[int, int]


class Heartbeat:
    """Extends the lease of a batch again and again, as long as its block runs.

    The thread ends with the block. A beat that fails is logged, and the next one tries again:
    the lease is lost when another client has ended it, or when it is over because no beat came
    through. Then the block ends with ``LeaseLost``, unless it ends with an error of its own;
    ``lost`` tells it in between. What the block settles itself is not lost.
    """

    def __init__(
        self,
        batch: Batch,
        lease_seconds: float,
        every_seconds: float,
        unsettled: Callable[[], Collection[_Claim]],
    ) -> None:
        """Describe it; users get it from ``Batch.heartbeat``.

        Args:
            batch: The batch.
            lease_seconds: The length of each new lease.
            every_seconds: The seconds between beats.
            unsettled: Returns the claims that have unsettled messages, as errors name them.
        """
        self._batch = batch
        self._unsettled = unsettled
        self._lease_seconds = lease_seconds
        self._every_seconds = every_seconds
        self._over = threading.Event()
        self._errors: dict[_Claim | None, LeaseLost] = {}
        """By claim, why it could not be extended; by None, why none of them could."""
        self._thread = threading.Thread(target=self._beat, name="txnqueue heartbeat", daemon=True)
        self.beats = 0

    @property
    def lost(self) -> bool:
        """Whether the lease was lost: others may have the messages.

        What was settled while a beat was on its way is not lost: nothing is left to hold.
        """
        return bool(self._lost)

    @property
    def _lost(self) -> list[LeaseLost]:
        held = self._unsettled()
        return [
            error
            for claim, error in list(self._errors.items())
            if claim in held or (claim is None and held)
        ]

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
        lost = self._lost
        if error is None and lost:
            raise lost[0]

    def _beat(self) -> None:
        while not self._over.wait(self._every_seconds):
            try:
                self._batch.extend_lease(self._lease_seconds)
            except SettlementPending:  # a prepared transaction holds them, whatever the clock says
                self.beats += 1
            except LeaseLost as error:  # told by ``lost``, unless the block has just settled it
                self._errors[error.claim] = error
                if self._errors.keys() >= set(self._unsettled()):
                    return
            except Exception as error:
                logger.warning("heartbeat failed, the next one tries again: %s", error)
                if self._batch.lease_over:
                    self._errors[None] = LeaseLost(
                        f"The lease ended, because it could not be extended: {error} Others may "
                        "have the messages now; nothing was changed."
                    )
                    self._errors[None].__cause__ = error
                    return
            else:
                self.beats += 1
