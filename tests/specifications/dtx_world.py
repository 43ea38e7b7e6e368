"""What the tests of distributed transactions stand in: channels of several managers, and xids."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.conformance.conftest import World, numbers, rows
from tests.inside import client_of
from txnqueue.protocols.dtx import Channel, ChannelException, Connection, XaStatus, Xid

_NUMBERS = itertools.count(1)


class Dtx:
    """A queue with three messages, and as many channels on it as are wanted."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.world = world
        self.orders = world.queue(**settings)
        self.orders.send(rows(1, 2, 3))

    def xid(self, bqual: bytes = b"queues") -> Xid:
        """Make an xid that no other test uses."""
        return Xid.of(1, self.world.name(f"g{next(_NUMBERS)}").encode(), bqual)

    def channel(self, name: str = "a", **settings: Any) -> Channel:
        """Open a channel of a manager of its own, selected."""
        channel = Connection(self.world.manager(name), **settings).channel()
        channel.select()
        return channel

    def work(self, channel: Channel, send: int = 9, receive: int = 1) -> list[int]:
        """Receive, and send one message; in a branch if the channel works in one."""
        queue = channel.queue(self.orders.name)
        got = numbers(queue.receive(receive)) if receive else []
        queue.send(rows(send))
        return got

    def ended(self, name: str = "a", **settings: Any) -> tuple[Channel, Xid]:
        """Work in a new branch, and end it."""
        channel, xid = self.channel(name, **settings), self.xid()
        channel.start(xid)
        self.work(channel)
        channel.end(xid)
        return channel, xid

    def start_elsewhere(self, other: Channel, xid: Xid, *, suspend: bool = False) -> None:
        """Let another channel do the first portion of the work in a branch."""
        other.start(xid)
        self.work(other, send=8)
        other.end(xid, suspend=suspend)

    def prepared(self, name: str = "a") -> tuple[Channel, Xid]:
        """Prepare a branch with work."""
        channel, xid = self.ended(name)
        assert channel.prepare(xid) is XaStatus.OK
        return channel, xid

    def waiting(self) -> list[int]:
        """List what can be received."""
        return numbers(self.orders.peek_messages())

    def entries(self) -> int:
        """Count what has been written so far."""
        return len(client_of(self.orders).store.journal.read_all().entries)

    def overdue(self) -> None:
        """Turn the clock past every time-out."""
        self.world.clock.advance(301)


@contextmanager
def refused(code: int) -> Iterator[pytest.ExceptionInfo[ChannelException]]:
    """Expect a channel exception with this reply code."""
    with pytest.raises(ChannelException) as caught:
        yield caught
    assert caught.value.reply_code == code, caught.value


@contextmanager
def failing(channel: Channel, call: str = "append") -> Iterator[None]:
    """Let the store fail whatever a channel's manager asks of the journal."""
    journal = client_of(channel._connection.manager).store.journal

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("the store is away")

    setattr(journal, call, fails)
    try:
        yield
    finally:
        delattr(journal, call)
