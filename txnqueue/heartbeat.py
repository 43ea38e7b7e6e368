"""Keep a lease alive while a long handler works."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType

from txnqueue.errors import InvalidInput, LeaseLost, SettlementPending
from txnqueue.messages.settlement import Name

logger = logging.getLogger("txnqueue")


class Heartbeat:
    """Extends the lease of a batch again and again, as long as its block runs.

    The thread ends with the block. A beat that fails is logged, and the next one tries again:
    the lease is lost when another client has ended it, or when it has ended because no beat came
    through. Then the block ends with ``LeaseLost``, unless it ends with an error of its own;
    meanwhile ``lost`` is true. Messages that the block itself settles are not lost. A batch may
    have several leases, one for each lane: those that are not lost are still extended.
    """

    def __init__(
        self,
        lease_seconds: float,
        every_seconds: float,
        unsettled: Callable[[], Mapping[Name, bool]],
        extend: Callable[[float, dict[Name, LeaseLost]], None],
    ) -> None:
        """Prepare the heartbeat; users get it from ``Batch.heartbeat``.

        Args:
            lease_seconds: The length of each new lease.
            every_seconds: The seconds between beats.
            unsettled: Returns the claims that have unsettled messages, and whether the lease of
                each is over.
            extend: Extends the leases of those claims, and records which of them are lost.
        """
        self._unsettled = unsettled
        self._extend = extend
        self._lease_seconds = lease_seconds
        self._every_seconds = every_seconds
        self._over = threading.Event()
        self._errors: dict[Name, LeaseLost] = {}
        """By claim, why it could not be extended."""
        self._thread = threading.Thread(target=self._beat, name="txnqueue heartbeat", daemon=True)
        self.beats = 0

    @property
    def lost(self) -> bool:
        """Whether a lease was lost: others may have its messages.

        Messages that were settled while a beat was under way are not lost: none are left to hold.
        """
        return bool(self._lost)

    @property
    def _lost(self) -> list[LeaseLost]:
        held = self._unsettled()
        return [error for claim, error in list(self._errors.items()) if claim in held]

    def __enter__(self) -> Heartbeat:
        """Start the beats.

        Raises:
            InvalidInput: The heartbeat was used for a block before.
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
        """Stop, and wait for a beat that is under way.

        Raises:
            LeaseLost: A lease was lost, and the block ended without an error.
        """
        self._over.set()
        self._thread.join()
        lost = self._lost
        if error is None and lost:
            raise lost[0]

    def _beat(self) -> None:
        while not self._over.wait(self._every_seconds):
            extended = self._extend_rest()
            held = self._unsettled().keys()
            if held and held <= self._errors.keys():  # told by ``lost``, unless just settled
                return
            self.beats += extended

    def _extend_rest(self) -> bool:
        """Extend the leases that are not lost, and return whether that succeeded."""
        try:
            self._extend(self._lease_seconds, self._errors)
        except SettlementPending:  # a prepared transaction holds them, whatever the clock says
            return True
        except Exception as error:  # the lease lasts for more tries
            logger.warning("heartbeat failed, the next one tries again: %s", error)
            self._give_up(error)
            return False
        return True

    def _give_up(self, cause: Exception) -> None:
        """Record the claims whose lease has ended as lost."""
        for claim, is_over in self._unsettled().items():
            if is_over and claim not in self._errors:
                lost = LeaseLost(
                    f"The lease ended, because it could not be extended: {cause} Others may have "
                    "the messages now; nothing was changed."
                )
                lost.__cause__ = cause
                self._errors[claim] = lost
