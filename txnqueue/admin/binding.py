"""Bind queues to exchanges, and end bindings: each is one append."""

from __future__ import annotations

from collections.abc import Callable

from txnqueue.admin.exchange_alteration import check_columns
from txnqueue.client.client import Client
from txnqueue.core import exchanges
from txnqueue.core.exchanges import Binding, ExchangeInfo
from txnqueue.core.planning import Plan
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import topology
from txnqueue.core.state.topology import Topology
from txnqueue.errors import LimitExceeded, QueueClosed, QueueError, QueueNotFound


def bind(client: Client, info: ExchangeInfo, queue: QueueInfo, binding: Binding) -> bool:
    """Bind a queue to an exchange, unless it has this binding.

    Args:
        client: The client that binds.
        info: The exchange.
        queue: The queue.
        binding: The binding.

    Returns:
        Whether this binding is new.

    Raises:
        QueueNotFound: The queue was dropped.
        QueueClosed: The queue is being dropped.
        SchemaMismatch: The queue's columns do not fit the exchange's.
        LimitExceeded: The exchange would have too many bindings or bound queues.
        ExchangeClosed: The exchange is being dropped; after that it is ``ExchangeNotFound``.
    """

    def plan(found: Topology, now: ExchangeInfo) -> Plan | None:
        check_columns(now.name, now.schema, found.queues[queue.queue_id])
        known = found.bindings(now)
        if binding in known:
            return None
        queues = {queue.queue_id, *(one.queue_id for one in known)}
        if len(known) >= exchanges.BINDINGS_MAX or len(queues) > exchanges.QUEUES_MAX:
            raise LimitExceeded(
                f"The exchange {info.name!r} has {len(known)} bindings of {len(queues) - 1} "
                f"other queues: at most {exchanges.BINDINGS_MAX} bindings and "
                f"{exchanges.QUEUES_MAX} queues are allowed; use another exchange.",
                name=info.name,
            )
        sequence = found.sequences[now.name]
        return topology.bind(now, queue, binding, sequence, client.stamp())

    return _change(client, info, queue, plan, "bind")


def unbind(client: Client, info: ExchangeInfo, queue: QueueInfo, binding: Binding) -> bool:
    """End a binding of a queue to an exchange, if there is one.

    Args:
        client: The client that unbinds.
        info: The exchange.
        queue: The queue.
        binding: The binding.

    Returns:
        Whether there was such a binding.

    Raises:
        QueueNotFound: The queue was dropped.
        QueueClosed: The queue is being dropped.
        ExchangeClosed: The exchange is being dropped; after that it is ``ExchangeNotFound``.
    """

    def plan(found: Topology, now: ExchangeInfo) -> Plan | None:
        if binding not in found.bound[now.exchange_id]:
            return None
        sequence = found.sequences[now.name]
        return topology.unbind(now, queue, binding, sequence, client.stamp())

    return _change(client, info, queue, plan, "unbind")


def _change(
    client: Client,
    info: ExchangeInfo,
    queue: QueueInfo,
    plan: Callable[[Topology, ExchangeInfo], Plan | None],
    operation: str,
) -> bool:
    """Append an entry about a binding, and plan it anew after each reading."""

    def planned(_lost: int) -> Plan | None:
        found = client.cache.topology()
        now = found.newest(info)
        if queue.queue_id not in found.queues:
            raise _not_open(queue, client.cache.queues().get(queue.name))
        return plan(found, now)

    client.open()
    return client.land(planned, operation, queue=queue.name) is not None


def _not_open(info: QueueInfo, now: QueueInfo | None) -> QueueError:
    """Return the error of binding a queue that is being dropped, or was dropped."""
    if now is not None and now.queue_id == info.queue_id:
        return QueueClosed(
            f"The queue {info.name!r} is being dropped and takes no more work: "
            f"drop_queue({info.name!r}) says what holds it back.",
            name=info.name,
            queue_id=info.queue_id,
        )
    return QueueNotFound(
        f"The queue {info.name!r} was dropped: manager.list_queues() names the existing queues.",
        name=info.name,
        queue_id=info.queue_id,
    )
