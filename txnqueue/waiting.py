"""Wait for messages without asking the table all the time."""

from __future__ import annotations

from txnqueue.client import Client
from txnqueue.config import QueueInfo

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 5.0


class Patience:
    """How long a caller waits for something to receive.

    Between two looks only the journal's version is asked, a listing of one folder, and ever
    more seldom. A look is worth it when the version has changed, or when a delay or a lease
    has ended meanwhile.
    """

    def __init__(self, client: Client, info: QueueInfo, wait_seconds: float) -> None:
        """Begin to wait.

        Args:
            client: Whose clock and journal they are.
            info: The queue.
            wait_seconds: For how long in all.
        """
        self._client = client
        self._info = info
        self._deadline = client.runtime.monotonic() + wait_seconds
        self._waits = wait_seconds > 0

    def until_something_changes(self) -> bool:
        """Wait until another look is worth it; false when the time is over."""
        if not self._waits:
            return False
        runtime, journal = self._client.runtime, self._client.store.journal
        with self._client.lock:
            fold = self._client.fold(self._info)
        seen, pause = fold.version, FIRST_SECONDS
        now_ms = runtime.now_ms()
        instants = [
            s.position.available_at_ms or 0 for lane in fold.lanes.values() for s in lane.available
        ]
        instants += [claim.deadline_ms for claim in fold.claims()]
        due_ms = min((instant for instant in instants if instant > now_ms), default=None)
        while True:
            left = self._deadline - runtime.monotonic()
            if left <= 0:
                return False
            if due_ms is not None:
                left = min(left, max(0.001, (due_ms - runtime.now_ms()) / 1000))
            runtime.sleep(min(left, pause))
            if due_ms is not None and runtime.now_ms() >= due_ms:
                return True
            if journal.version() != seen:
                return True
            pause = min(2 * pause, LONGEST_SECONDS)
