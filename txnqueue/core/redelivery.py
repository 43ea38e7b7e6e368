"""The fate of messages that return from a failed delivery (pure)."""

from __future__ import annotations

from dataclasses import dataclass

CLOCKS_APART_MS = 3_600_000
"""The clocks of clients are believed to be no further apart than this."""
NARROWING = 10
"""From the second redelivery on a claim holds at most this part of the former one."""


@dataclass(frozen=True, slots=True)
class Redelivery:
    """The rules by which messages of a queue are delivered again.

    Attributes:
        deliveries_max: Failed deliveries of a message alone after which it is dead; None: never.
        delay_ms: So long messages wait after their first failed delivery; 0: they do not.
        delay_ms_max: The wait doubles with each further one, up to this.
    """

    deliveries_max: int | None = None
    delay_ms: int = 0
    delay_ms_max: int = 0

    def size_max(self, delivery_count: int, former: int) -> int:
        """Return how many messages that failed together may share the next claim.

        What failed once comes back in the size it had: that is nearly always the machine. From
        then on claims narrow: to a tenth, or as much more as it takes to be alone in the last
        delivery before ``deliveries_max``. What has failed as often without being alone goes
        on narrowing to tenths.

        Args:
            delivery_count: How many deliveries failed, at least one.
            former: The size of the last one.
        """
        if delivery_count < 2:
            return former
        size = former // NARROWING
        left = 0 if self.deliveries_max is None else self.deliveries_max - delivery_count
        if left > 0:
            size = min(size, round(former ** (1 - 1 / left)))
        return max(1, size)

    def is_dead(self, delivery_count: int, former: int) -> bool:
        """Return whether deliveries are used up: only messages that came back alone count."""
        limit = self.deliveries_max
        return limit is not None and former == 1 and delivery_count >= limit

    def due_ms(self, delivery_count: int, former: int, failed_at_ms: int) -> int:
        """Return from when on messages may be delivered again; dead ones leave at once.

        Args:
            delivery_count: How many deliveries failed.
            former: The size of the last one.
            failed_at_ms: When that ended; 0 if what came last was no failure.
        """
        if not failed_at_ms or not self.delay_ms or self.is_dead(delivery_count, former):
            return 0
        doubled = self.delay_ms << min(delivery_count - 1, 40)
        return failed_at_ms + min(doubled, self.delay_ms_max)


AT_ONCE = Redelivery()
"""Messages return at once, after every failure."""
