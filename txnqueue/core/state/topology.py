"""Exchanges and bindings in the catalog: read, created, altered, dropped (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txnqueue.core import exchanges, model
from txnqueue.core.exchanges import Arguments, Binding, BindingAnswer, ExchangeAnswer, ExchangeInfo
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan, Stamp
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import catalog
from txnqueue.core.state.closure import exchange_error
from txnqueue.errors import StoreCorrupt

KINDS = (
    model.EXCHANGE_CREATED,
    model.EXCHANGE_ALTERED,
    model.EXCHANGE_CLOSING,
    model.EXCHANGE_DROPPED,
)
DEFAULT = ExchangeInfo(exchanges.DEFAULT_EXCHANGE, "", exchanges.DIRECT, "", {})
"""The exchange to which every queue is bound by its name."""


def exchange_stream(name: str) -> str:
    """Name the stream of an exchange, and of its bindings, in the catalog."""
    return f"exchange/{name}"


@dataclass(slots=True)
class Topology:
    """The exchanges, queues and bindings that some entries of the catalog establish.

    Attributes:
        exchanges: The exchanges by name, including the default one and those being dropped.
        ever: All exchanges that ever existed, by id, in their last state.
        queues: The queues by id, without those being dropped.
        bound: The entry of each binding, by exchange id, also of queues that are gone.
        sequences: The next sequence number of each exchange's stream.
        posting: By queue id, the exchanges that may ever have posted to the queue.
    """

    exchanges: dict[str, ExchangeInfo] = field(
        default_factory=lambda: {exchanges.DEFAULT_EXCHANGE: DEFAULT}
    )
    ever: dict[str, ExchangeInfo] = field(default_factory=dict)
    queues: dict[str, QueueInfo] = field(default_factory=dict)
    bound: dict[str, dict[Binding, Entry]] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    posting: dict[str, dict[str, None]] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Topology:
        """Fold the catalog's entries.

        Raises:
            StoreCorrupt: The entry of an exchange to which a queue was bound is missing.
        """
        found = cls()
        mine = (entry for entry in entries if entry.shard == model.CATALOG)
        ordered = sorted(mine, key=lambda entry: entry.place)
        for entry in ordered:
            if entry.kind in KINDS:
                found._told(entry)
            elif entry.kind == model.QUEUE_BOUND:
                found._bindings(entry).setdefault(binding_of(entry), entry)
                found._posts(entry.body["exchange"], entry.queue_id)
            elif entry.kind == model.QUEUE_UNBOUND:
                found._bindings(entry).pop(binding_of(entry), None)
            else:
                continue
            name = entry.body["name"]
            found.sequences[name] = max(found.sequences.get(name, 1), (entry.sequence or 0) + 1)
        queues = catalog.queues(ordered).values()
        found.queues = {info.queue_id: info for info in queues if not info.closing}
        return found

    def _told(self, entry: Entry) -> None:
        """Record an exchange from an entry, which describes it completely."""
        info = _info(entry, self.ever.get(entry.body["exchange"]))
        self.ever[info.exchange_id] = info
        self.bound.setdefault(info.exchange_id, {})
        self._posts(info.exchange_id, info.dead_letter_id)
        if entry.kind == model.EXCHANGE_DROPPED:
            self.exchanges.pop(info.name, None)
        else:
            self.exchanges[info.name] = info

    def _bindings(self, entry: Entry) -> dict[Binding, Entry]:
        """Return the bindings of the exchange of which an entry makes or ends one."""
        name, exchange_id = entry.body["name"], entry.body["exchange"]
        if exchange_id not in self.bound:
            raise StoreCorrupt(
                f"The catalog binds a queue to the exchange {name!r} ({exchange_id}), whose own "
                "entry is missing: stop writing to the store, and keep it as it is."
            )
        return self.bound[exchange_id]

    def _posts(self, exchange_id: str, queue_id: str | None) -> None:
        self.posting.setdefault(queue_id or "", {})[exchange_id] = None

    def owners(self, queue_id: str) -> list[ExchangeInfo]:
        """List the exchanges whose payload may be in a queue: it is bound, or once was.

        An exchange also posts to its dead-letter queue.
        """
        return [self.ever[one] for one in self.posting.get(queue_id, ())]

    def known(self, info: ExchangeInfo) -> ExchangeInfo:
        """Return an exchange's newest description, for reading.

        Raises:
            ExchangeNotFound: The exchange was dropped.
        """
        now = self.exchanges.get(info.name)
        if now is None or now.exchange_id != info.exchange_id:
            raise exchange_error(model.EXCHANGE_DROPPED, info.name, info.exchange_id)
        return now

    def newest(self, info: ExchangeInfo) -> ExchangeInfo:
        """Return an exchange's newest description, for work with it.

        Raises:
            ExchangeClosed: The exchange is being dropped.
            ExchangeNotFound: The exchange was dropped.
        """
        now = self.known(info)
        if now.closing:
            raise exchange_error(model.EXCHANGE_CLOSING, info.name, info.exchange_id)
        return now

    def targets(self, info: ExchangeInfo) -> list[QueueInfo]:
        """List the queues that an exchange posts to: the bound ones, and its dead-letter queue."""
        wanted = [one.queue_id for one in self.bindings(info)]
        wanted += [info.dead_letter_id] if info.dead_letter_id in self.queues else []
        return [self.queues[queue_id] for queue_id in dict.fromkeys(wanted)]

    def bindings(self, info: ExchangeInfo) -> list[Binding]:
        """List the bindings of an exchange to existing queues."""
        if info.name == exchanges.DEFAULT_EXCHANGE:
            return [Binding(queue_id, one.name) for queue_id, one in self.queues.items()]
        return [one for one in self.bound.get(info.exchange_id, ()) if one.queue_id in self.queues]

    def query_exchange(self, name: str | None = None) -> ExchangeAnswer:
        """Answer a query about an exchange; see ``protocols.dtx``."""
        return exchanges.exchange_query(self.exchanges, name)

    def query_binding(
        self,
        exchange: str | None = None,
        queue: str | None = None,
        routing_key: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> BindingAnswer:
        """Answer a query about an exchange's bindings; see ``protocols.dtx``."""
        found = {name: self.bindings(info) for name, info in self.exchanges.items()}
        queue_ids = {info.name: queue_id for queue_id, info in self.queues.items()}
        return exchanges.binding_query(
            self.exchanges,
            found,
            queue_ids,
            exchange,
            queue,
            routing_key=routing_key,
            arguments=arguments,
        )


def schemas(entries: Iterable[Entry], exchange_id: str) -> list[Mapping[str, Any]]:
    """List the schemas in an exchange's catalog entries."""
    mine = (e for e in entries if e.kind in KINDS and e.body["exchange"] == exchange_id)
    return [entry.body["schema"] for entry in mine]


def create(info: ExchangeInfo, sequence: int, stamp: Stamp) -> Plan:
    """Plan the entry that creates an exchange."""
    plan = _tell(model.EXCHANGE_CREATED, info, sequence, stamp)
    target = info.dead_letter_id
    return plan + Plan((), (model.queue_open(target),) if target else ())


def alter(info: ExchangeInfo, sequence: int, stamp: Stamp) -> Plan:
    """Plan the entry that records an exchange's new description."""
    return _tell(model.EXCHANGE_ALTERED, info, sequence, stamp)


def close(
    info: ExchangeInfo, bound: Iterable[Entry], sequence: int, stamp: Stamp, reason: str | None
) -> Plan:
    """Plan the first step of a drop: the exchange takes no more messages, and its bindings end.

    Args:
        info: The exchange.
        bound: The entries of the present bindings, each of which ends.
        sequence: The next sequence number of the exchange's stream.
        stamp: The author and the instant.
        reason: The reason.
    """
    plan = _tell(model.EXCHANGE_CLOSING, info, sequence, stamp, reason)
    ended = tuple(
        Entry(
            model.CATALOG,
            entry.stream,
            model.QUEUE_UNBOUND,
            sequence=number,
            queue_id=entry.queue_id,
            reason=reason,
            body=entry.body,
            **stamp.columns(),
        )
        for number, entry in enumerate(bound, sequence + 1)
    )
    return plan + Plan(ended) + fence(model.EXCHANGE_CLOSING, info, stamp, reason)


def drop(info: ExchangeInfo, sequence: int, stamp: Stamp, reason: str | None) -> Plan:
    """Plan the second step of a drop: the exchange is gone, and its name is free."""
    plan = _tell(model.EXCHANGE_DROPPED, info, sequence, stamp, reason)
    return plan + fence(model.EXCHANGE_DROPPED, info, stamp, reason)


def fence(kind: str, info: ExchangeInfo, stamp: Stamp, reason: str | None) -> Plan:
    """Plan the entry in the fence, closing or dropped, that stops every publishing append."""
    stream = model.exchange_stream(info.exchange_id)
    sequence = 1 if kind == model.EXCHANGE_CLOSING else 2
    entry = Entry(
        model.FENCE,
        stream,
        kind,
        sequence=sequence,
        reason=reason,
        body={"v": 1, "name": info.name, "exchange": info.exchange_id},
        **stamp.columns(),
    )
    return Plan((entry,), (model.next_sequence(model.FENCE, stream, sequence),))


def _tell(
    kind: str, info: ExchangeInfo, sequence: int, stamp: Stamp, reason: str | None = None
) -> Plan:
    """Plan the entry that describes an exchange completely."""
    body = {
        "v": 1,
        "name": info.name,
        "exchange": info.exchange_id,
        "kind": info.kind,
        "payload": info.payload_id,
        "schema": dict(info.schema),
        "schema_version": info.schema_version,
        "unroutable": info.unroutable,
        "dead_letter": info.dead_letter_id,
        "durable": info.durable,
        "arguments": dict(info.arguments),
    }
    return _append(info, kind, None, body, sequence, stamp=stamp, reason=reason)


def bind(
    info: ExchangeInfo, queue: QueueInfo, binding: Binding, sequence: int, stamp: Stamp
) -> Plan:
    """Plan the entry that binds an open queue."""
    planned = _change(info, model.QUEUE_BOUND, queue, binding, sequence, stamp=stamp)
    return planned + Plan((), (model.queue_open(queue.queue_id),))


def unbind(
    info: ExchangeInfo, queue: QueueInfo, binding: Binding, sequence: int, stamp: Stamp
) -> Plan:
    """Plan the entry that ends a binding."""
    return _change(info, model.QUEUE_UNBOUND, queue, binding, sequence, stamp=stamp)


def _change(
    info: ExchangeInfo,
    kind: str,
    queue: QueueInfo,
    binding: Binding,
    sequence: int,
    *,
    stamp: Stamp,
) -> Plan:
    body = {
        "v": 1,
        "name": info.name,
        "exchange": info.exchange_id,
        "queue": queue.name,
        "routing_key": binding.routing_key,
        "arguments": dict(binding.arguments),
        "match": binding.match,
    }
    return _append(info, kind, queue.queue_id, body, sequence, stamp=stamp)


def binding_of(entry: Entry) -> Binding:
    """Read the binding that an entry makes or ends."""
    body = entry.body
    arguments: Arguments = tuple(sorted(body["arguments"].items()))
    return Binding(entry.queue_id or "", body["routing_key"], arguments, body["match"])


def _append(
    info: ExchangeInfo,
    kind: str,
    queue_id: str | None,
    body: dict[str, Any],
    sequence: int,
    *,
    stamp: Stamp,
    reason: str | None = None,
) -> Plan:
    stream = exchange_stream(info.name)
    entry = Entry(
        model.CATALOG,
        stream,
        kind,
        sequence=sequence,
        queue_id=queue_id,
        reason=reason,
        body=body,
        **stamp.columns(),
    )
    expected = model.next_sequence(model.CATALOG, stream, sequence)
    return Plan((entry,), (expected, model.layout_unchanged()))


def _info(entry: Entry, before: ExchangeInfo | None) -> ExchangeInfo:
    body = entry.body
    return ExchangeInfo(
        name=body["name"],
        exchange_id=body["exchange"],
        kind=body["kind"],
        payload_id=body["payload"],
        schema=body["schema"],
        schema_version=body["schema_version"],
        unroutable=body["unroutable"],
        dead_letter_id=body["dead_letter"],
        durable=body["durable"],
        arguments=body["arguments"],
        created_at_ms=before.created_at_ms if before else entry.recorded_at_ms,
        closing=entry.kind in (model.EXCHANGE_CLOSING, model.EXCHANGE_DROPPED),
    )
