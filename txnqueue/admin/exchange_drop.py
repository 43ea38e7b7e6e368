"""Drop an exchange in two steps, as queues are: it closes, and it goes when nothing holds it.

The first step ends its bindings. Every append that publishes expects in the fence that the
exchange is open, so that from then on nobody can prepare what would publish to it: what holds
the drop back is read once, behind the closing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txnqueue.admin.drop import in_doubt
from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan
from txnqueue.core.routing import ExchangeInfo
from txnqueue.core.state import topology


@dataclass(frozen=True, slots=True)
class ExchangeDropResult:
    """How far the drop of an exchange has come.

    Attributes:
        exchange: The exchange's name.
        dropped: Whether it is gone; if not, it is closing and takes no more messages.
        held_by: The prepared transactions that hold it back: decide them by
            ``manager.commit`` or ``manager.rollback``, then drop again or ``recover``.
    """

    exchange: str
    dropped: bool
    held_by: tuple[str, ...] = ()


def drop(client: Client, info: ExchangeInfo, reason: str | None = None) -> ExchangeDropResult:
    """Close an exchange, and drop it unless prepared transactions hold it back; repeatable."""
    client.open()
    _close(client, info, reason)
    return finish(client, info, reason)


def finish(client: Client, info: ExchangeInfo, reason: str | None = None) -> ExchangeDropResult:
    """Drop an exchange that is closing, unless prepared transactions hold it back.

    Args:
        client: Whose drop it is.
        info: The exchange.
        reason: Why, for messages in memory; the store keeps the reason of the closing.
    """
    _fence_memory(client, info, reason)
    held_by = holding(client.cache.transaction_entries(), info.exchange_id)
    if held_by:
        return ExchangeDropResult(info.name, dropped=False, held_by=held_by)

    def plan(_lost: int) -> Plan | None:
        entries = client.cache.catalog_entries()
        found = topology.Topology.of(entries)
        now = found.exchanges.get(info.name)
        if now is None or now.exchange_id != info.exchange_id:
            return None
        mine = (e for e in entries if e.body.get("exchange") == info.exchange_id)
        closing = next(e for e in mine if e.kind == model.EXCHANGE_CLOSING)
        return topology.drop(now, found.sequences[info.name], client.stamp(), closing.reason)

    client.land(plan, "drop exchange")
    return ExchangeDropResult(info.name, dropped=True)


def holding(entries: Iterable[Entry], exchange_id: str) -> tuple[str, ...]:
    """Find the prepared and undecided transactions that publish to an exchange.

    Args:
        entries: All entries about transactions.
        exchange_id: The exchange.
    """
    return tuple(
        sorted(
            {
                entry.stream
                for entry in in_doubt(entries)
                for said in entry.body["manifest"]["entries"]
                if model.published_to(said["kind"], said["body"]) == exchange_id
            }
        )
    )


def _close(client: Client, info: ExchangeInfo, reason: str | None) -> None:
    """Write that the exchange is closing and has no bindings, unless that is written already."""

    def plan(_lost: int) -> Plan | None:
        found = client.cache.topology()
        now = found.exchanges.get(info.name)
        if now is None or now.exchange_id != info.exchange_id or now.closing:
            return None
        bound = found.bound[now.exchange_id]
        ended = [bound[binding] for binding in found.bindings(now)]
        return topology.close(now, ended, found.sequences[now.name], client.stamp(), reason)

    client.land(plan, "close exchange")


def _fence_memory(client: Client, info: ExchangeInfo, reason: str | None) -> None:
    """Close the exchange for messages in memory likewise."""
    if not client.store.transient.used:
        return
    memory, stream = client.transient, model.exchange_stream(info.exchange_id)

    def plan(_lost: int) -> Plan | None:
        if any(e.stream == stream for e in memory.store.journal.read([model.FENCE]).entries):
            return None
        return topology.fence(model.EXCHANGE_CLOSING, info, memory.stamp(), reason)

    memory.land(plan, model.EXCHANGE_CLOSING)
