"""Descriptions of exchanges and of the queues bound to them."""

from __future__ import annotations

from txnqueue.client.client import Client
from txnqueue.core.exchanges import ExchangeInfo
from txnqueue.core.settings import check_flag
from txnqueue.core.state.topology import Topology
from txnqueue.errors import ExchangeNotFound
from txnqueue.reports.report import Report
from txnqueue.reports.snapshot import BINDINGS, binding_rows
from txnqueue.storage.payload.described import type_name
from txnqueue.types import BindingRow, ExchangeDescription


def found(client: Client, name: str) -> ExchangeInfo:
    """Find an exchange by name.

    Raises:
        ExchangeNotFound: There is no such exchange.
    """
    known = client.cache.topology().exchanges
    if name not in known:
        named = ", ".join(sorted(filter(None, known))) or "none yet"
        raise ExchangeNotFound(
            f"There is no exchange {name!r} in {client.store.root!r}; there are: {named}.",
            name=name,
        )
    return known[name]


def described(topology: Topology, info: ExchangeInfo) -> ExchangeDescription:
    """Describe an exchange, as ``Exchange.describe`` does.

    Args:
        topology: What there is now.
        info: The exchange, as it is there.
    """
    target = topology.queues.get(info.dead_letter_id or "")
    return {
        "name": info.name,
        "type": info.kind,
        "arguments": dict(info.arguments),
        "unroutable": info.unroutable,
        "dead_letter": target.name if target else None,
        "columns": {c["name"]: type_name(c["type"]) for c in info.schema.get("fields", ())},
        "bindings": len(topology.bindings(info)),
        "closing": info.closing,
    }


def bindings_of(client: Client, exchange_id: str, *, history: bool) -> Report[BindingRow]:
    """Report the bindings of an exchange, as ``Exchange.bindings`` does.

    Raises:
        InvalidInput: ``history`` is neither True nor False.
    """
    check_flag("history", history)
    entries = client.cache.catalog_entries()
    return Report(client, lambda: binding_rows(entries, exchange_id, history=history), BINDINGS)
