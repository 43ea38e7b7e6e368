"""The read-only view of an exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txnqueue.reports.exchanges import bindings_of, described, found

if TYPE_CHECKING:
    from txnqueue.client.client import Client
    from txnqueue.reports.report import Report
    from txnqueue.types import BindingRow, ExchangeDescription


class ExchangeReader:
    """The reading half of an ``Exchange``: what it is, and which queues are bound to it."""

    def __init__(self, client: Client, name: str) -> None:
        """Open an exchange; users get it from ``StoreReader.exchange``.

        Raises:
            ExchangeNotFound: There is no such exchange.
        """
        self._client = client
        self._info = found(client, name)

    @property
    def name(self) -> str:
        """The exchange's name; empty for the default exchange."""
        return self._info.name

    def __repr__(self) -> str:
        """Show the name, the kind and the store."""
        return f"<ExchangeReader of {self.name!r} ({self._info.kind})>"

    def describe(self) -> ExchangeDescription:
        """Describe the exchange, as ``Exchange.describe`` does."""
        topology = self._client.cache.topology()
        return described(topology, topology.known(self._info))

    def bindings(self, *, history: bool = False) -> Report[BindingRow]:
        """Report the existing bindings, as ``Exchange.bindings`` does."""
        return bindings_of(self._client, self._info.exchange_id, history=history)
