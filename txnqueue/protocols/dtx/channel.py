"""Connections and their channels."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from txnqueue.core.settings import (
    BRANCH_SECONDS_DEFAULT,
    BRANCH_SECONDS_MAX,
    check_flag,
    check_number,
)
from txnqueue.manager import client_of
from txnqueue.protocols.dtx.branches import Branches
from txnqueue.protocols.dtx.coordination import DtxCoordination
from txnqueue.protocols.dtx.demarcation import DtxDemarcation
from txnqueue.protocols.dtx.queries import Querying

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager


class Connection:
    """A connection for distributed transactions on the queues of one manager."""

    def __init__(
        self,
        manager: QueueManager,
        *,
        default_timeout_seconds: float = BRANCH_SECONDS_DEFAULT,
        join_supported: bool = True,
    ) -> None:
        """Use a manager.

        Args:
            manager: The manager, whose actor is the principal named in tickets.
            default_timeout_seconds: How long a branch started here may take until it is
                prepared, unless a time-out is set.
            join_supported: Whether channels of this connection may join existing branches.

        Raises:
            InvalidInput: A value is of a wrong type.
            LimitExceeded: The time-out is out of range.
        """
        client = client_of(manager)
        check_flag("join_supported", join_supported)
        check_number("default_timeout_seconds", default_timeout_seconds, 0.001, BRANCH_SECONDS_MAX)
        self.manager = manager
        self.default_timeout_seconds = default_timeout_seconds
        self.join_supported = join_supported
        self.branches = Branches(client)

    @property
    def principal(self) -> str:
        """The principal of this connection."""
        return client_of(self.manager).runtime.actor

    def channel(self) -> Channel:
        """Open a channel; each thread that works in branches needs its own."""
        return Channel(self)


class Channel(DtxDemarcation, DtxCoordination, Querying):
    """A channel of a connection; a ``with`` block closes it at its end."""

    def __init__(self, connection: Connection) -> None:
        """Open a channel; use ``Connection.channel``."""
        DtxDemarcation.__init__(self, connection)
        DtxCoordination.__init__(self, connection)
        Querying.__init__(self, connection.manager)

    def __enter__(self) -> Channel:
        """Enter the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the channel."""
        self.close()
