"""Wait for messages without asking the table all the time."""

from __future__ import annotations

from txnqueue.branching import Branch
from txnqueue.client import Client
from txnqueue.config import QueueInfo
from txnqueue.gathering import now

FIRST_SECONDS = 0.1
LONGEST_SECONDS = 5.0


class Patience:
    """How long a caller waits for something to receive.

    Between two looks only the journal's version is asked, a listing of one folder, and ever
    more seldom; the memory of this process, which costs nothing, all the time. A look is
    worth it when one of them has changed, or when a delay, a lease or the time of a branch
    has ended meanwhile.
    """

    def __init__(self, client: Client, info: QueueInfo, wait_seconds: float) -> None:
        """Begin to wait, before the first look.

        Args:
            client: Whose clock and journal they are.
            info: The queue.
            wait_seconds: For how long in all.
        """
        self._client = client
        self._info = info
        self._deadline = client.runtime.monotonic() + wait_seconds
        self._waits = wait_seconds > 0
        self._seen = now(client) if self._waits else (-1, -1)

    def until_something_changes(self) -> bool:
        """Wait until another look is worth it; false when the time is over."""
        if not self._waits:
            return False
        runtime, pause, due_ms = self._client.runtime, FIRST_SECONDS, self._due_ms()
        while True:
            left = self._deadline - runtime.monotonic()
            if left <= 0:
                return False
            if due_ms is not None:
                left = min(left, max(0.001, (due_ms - runtime.now_ms()) / 1000))
            self._sleep(min(left, pause))
            seen, self._seen = self._seen, now(self._client)
            if self._seen != seen or (due_ms is not None and runtime.now_ms() >= due_ms):
                return True
            pause = min(2 * pause, LONGEST_SECONDS)

    def _due_ms(self) -> int | None:
        """When the next delay or lease ends, or the time of a branch that holds something."""
        now_ms = self._client.runtime.now_ms()
        instants: list[int] = []
        for part in self._client.parts_of(self._info):
            side = self._client.of(part)
            with side.lock:
                fold = side.fold(part)
                waiting = [s for lane in fold.lanes.values() for s in lane.available]
                rules = self._client.newest(self._info).redelivery
                instants += [s.position.available_at_ms or 0 for s in waiting]
                instants += [s.due_ms(rules) for s in waiting if s.failed_at_ms]
                owners = [claim.owner for claim in fold.claims()]
                instants += [claim.ends_at_ms(now_ms) for claim in fold.claims()]
                states = side.key_states(o.key for o in owners if o.is_branch and o.key)
                branches = [Branch.of(state) for state in states.values()]
                instants += [b.deadline_ms for b in branches if b is not None and b.open]
        return min((instant for instant in instants if instant > now_ms), default=None)

    def _sleep(self, seconds: float) -> None:
        """Sleep, but not longer than until something comes into the memory."""
        runtime, memory = self._client.runtime, self._client.store.transient.journal
        while seconds > 0:
            runtime.sleep(min(seconds, FIRST_SECONDS))
            if memory.known_version() != self._seen[1]:
                return
            seconds -= FIRST_SECONDS
