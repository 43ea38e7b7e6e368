"""The queries of the classes exchange and binding; what does not exist is not an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txnqueue.core.exchanges import BindingAnswer, ExchangeAnswer, read_arguments
from txnqueue.core.settings import check_text
from txnqueue.core.state.branch import Ticket, check_ticket
from txnqueue.core.state.topology import Topology
from txnqueue.manager import client_of
from txnqueue.protocols.dtx.replies import Lifetime, replying

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager


class Querying(Lifetime):
    """A channel's queries about exchanges and their bindings."""

    def __init__(self, manager: QueueManager) -> None:
        """Query a manager's catalog."""
        self._manager = manager

    def exchange_query(
        self, exchange: str | None = None, *, ticket: Ticket | None = None
    ) -> ExchangeAnswer:
        """Describe an exchange.

        Args:
            exchange: Its name; the default exchange if omitted.
            ticket: Ignored: queries are not restricted.

        Returns:
            type, durable, not_found and arguments; if there is no such exchange, the type and
            the arguments are empty, and durable is None.

        Raises:
            InternalError: It failed.
        """
        self._check_open()
        with replying():
            check_ticket(ticket)
            check_text("exchange", exchange)
            return self._topology().query_exchange(exchange)

    def binding_query(
        self,
        exchange: str | None = None,
        queue: str | None = None,
        routing_key: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        ticket: Ticket | None = None,
    ) -> BindingAnswer:
        """Describe how an exchange is bound; omitted fields are not checked.

        Args:
            exchange: Its name; the default exchange if omitted.
            queue: A queue that may be bound to it.
            routing_key: The routing key of a binding.
            arguments: The arguments of a binding.
            ticket: As in ``exchange_query``.

        Returns:
            Five independent bits: exchange_not_found, queue_not_found,
            queue_not_matched, key_not_matched, args_not_matched.

        Raises:
            InternalError: It failed.
        """
        self._check_open()
        with replying():
            check_ticket(ticket)
            asked = {"exchange": exchange, "queue": queue, "routing_key": routing_key}
            for field, value in asked.items():
                check_text(field, value)
            if arguments is not None:
                read_arguments(arguments)
            return self._topology().query_binding(exchange, queue, routing_key, arguments)

    def _topology(self) -> Topology:
        return client_of(self._manager).cache.topology()
