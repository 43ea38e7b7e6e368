"""What several modules of the suite work with: branches, and predicates without Spark."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conformance.conftest import World
from txnqueue.messages import selector
from txnqueue.messages.selector import Selector
from txnqueue.protocols.dtx import Connection, XaStatus, Xid
from txnqueue.storage.payload.islands import by_send

REDELIVERED, FRESH = "_message.redelivered", "NOT _message.redelivered"
_DIVISOR = re.compile(r"n % (\d+) = 0")


class Branch:
    """Work of one channel in a new branch, until it is decided."""

    def __init__(self, world: World, name: str) -> None:
        self.channel = Connection(world.manager(name)).channel()
        self.channel.select()
        self.xid = Xid.of(1, world.name(name).encode(), b"queues")
        self.channel.start(self.xid)

    @property
    def id(self) -> str:
        """The transaction's id."""
        return self.xid.transaction_id

    def queue(self, queue: Any) -> Any:
        """Open a queue in the branch."""
        return self.channel.queue(queue.name)

    def exchange(self, exchange: Any) -> Any:
        """Open an exchange in the branch."""
        return self.channel.exchange(exchange.name)

    def prepare(self) -> None:
        """End the work, and prepare it."""
        assert self.channel.end(self.xid) is XaStatus.OK
        assert self.channel.prepare(self.xid) is XaStatus.OK

    def decide(self, *, commit: bool) -> None:
        """Prepare it, and decide it."""
        self.prepare()
        decide = self.channel.commit if commit else self.channel.rollback
        assert decide(self.xid) is XaStatus.OK


def understand_divisors(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a store without Spark understand ``n % 3 = 0``, ``REDELIVERED`` and ``FRESH``.

    Returns:
        The numbers that were looked at, as long as Spark has not done it.
    """
    looked: list[int] = []

    def meant_of(self: Selector, parts: Any) -> list[tuple[Any, ...]] | None:
        found = self._client.payload.table(self._schema, parts).to_pylist()
        looked.extend(row["n"] for row in found)
        if self._where in (REDELIVERED, FRESH):
            wanted = self._where == REDELIVERED
            meant = [row["_message"] for row in found if row["_message"]["redelivered"] == wanted]
        else:
            asked = _DIVISOR.fullmatch(str(self._where))
            assert asked is not None, self._where
            meant = [row["_message"] for row in found if row["n"] % int(asked[1]) == 0]
        lie = by_send((m["send_id"], m["send_offset"], m["send_offset"]) for m in meant)
        pieces = [(send_id, *one) for send_id, part in lie.items() for one in part]
        return pieces if len(pieces) <= vars(selector)["RANGES_PER_CALL_MAX"] else None

    if not world.has_frames:
        monkeypatch.setattr(Selector, "_ranges", meant_of)
    return looked
