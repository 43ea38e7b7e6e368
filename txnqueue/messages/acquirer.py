"""The interface of an attempt that the planning of sends and claims depends on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from txnqueue.client.client import Client
from txnqueue.client.consumer import Consumer
from txnqueue.core.state import AttemptOwner
from txnqueue.messages.staged import StagedSend


class Acquirer(Protocol):
    """An attempt of a transaction that sends and acquires messages."""

    client: Client
    id: str
    attempt_id: str
    consumer: Consumer
    lease_seconds: float | None
    takes_transient: bool
    keeps: bool
    already_committed: bool
    dead_lettered: int

    @property
    def owner(self) -> AttemptOwner:
        """The attempt as the owner of claims."""

    @property
    def slice(self) -> int:
        """The slice into which its payload is staged."""

    def check_active(self) -> None:
        """Check that the attempt takes more work."""

    def adding(self) -> AbstractContextManager[None]:
        """Add work in a block; another thread that wants to decide the attempt waits meanwhile."""

    def claiming(self, *, transient: bool = False) -> None:
        """Record that a claim is about to be appended."""

    def add_send(self, send: StagedSend) -> None:
        """Record staged rows."""

    def add_sends(self, sends: Sequence[StagedSend]) -> None:
        """Record staged rows for several queues: all, or none if the call is interrupted."""
