"""The exchanges of a store: made, opened, listed, asked about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txnqueue import catalog, creation, model, routing, topology
from txnqueue.client import Client
from txnqueue.closing import exchange_error
from txnqueue.config import check_name, check_text
from txnqueue.errors import ExchangeExists, InvalidInput, SchemaMismatch
from txnqueue.exchange import Exchange, open_exchange
from txnqueue.exchange_drop import ExchangeDrop
from txnqueue.exchange_growth import check_columns
from txnqueue.planning import Plan
from txnqueue.routing import BindingAnswer, ExchangeAnswer, ExchangeInfo
from txnqueue.scope import at_once
from txnqueue.types import ExchangeKind, Tabular, Unwanted

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Exchanges:
    """What a manager does about exchanges."""

    _client: Client

    def create_exchange(
        self,
        name: str,
        kind: ExchangeKind = routing.DIRECT,
        schema: str | StructType | None = None,
        *,
        like: Tabular | None = None,
        unroutable: Unwanted = routing.RETURN,
        dead_letter_queue: str | None = None,
        durable: bool = True,
        arguments: Mapping[str, Any] | None = None,
        exist_ok: bool = False,
    ) -> Exchange:
        """Create an exchange, to which queues of the same columns can be bound.

        Args:
            name: Letters, digits, '.', '_' or '-'; a queue may have the same name.
            kind: ``direct`` (the routing key is the binding's), ``topic`` (it fits the binding's
                pattern), ``fanout`` (everything) or ``headers`` (headers are what the binding
                asks for).
            schema: The payload's columns, as DDL or ``StructType``.
            like: A DataFrame, pandas or Arrow table to take the schema from instead.
            unroutable: What becomes of messages that no binding wants: ``return`` gives them
                back by what ``publish`` answers, ``dead_letter`` sends them to a queue,
                ``refuse`` refuses everything that is published with them.
            dead_letter_queue: The queue for ``unroutable="dead_letter"``.
            durable: Information for whoever asks; the exchange is kept in any case.
            arguments: Information for whoever asks: strings, numbers and booleans by name.
            exist_ok: Use an exchange of that name as it is, if all this is the same; its columns
                may be those that it had before some were added.

        Returns:
            The exchange.

        Raises:
            ExchangeExists: There is one already, or another one with ``exist_ok``.
            ExchangeClosed: There is one that is being dropped.
            InvalidName: The name cannot be used.
            SchemaMismatch: The schema cannot be used, or the dead-letter queue has another one.
            QueueNotFound: There is no such dead-letter queue.
            PayloadRemoved: It took so long that a maintenance has removed its empty table.
            TransactionNotGiven: Inside a transaction block.
        """
        from txnqueue.payload.schemas import check_schema

        check_name(name, "exchange")
        at_once(self._client, "create_exchange")
        routing.check_kind(kind)
        said = _check_arguments(arguments or {})
        if unroutable not in routing.UNROUTABLE:
            raise InvalidInput(
                f"unroutable={unroutable!r}: it is {', '.join(routing.UNROUTABLE)}.",
                name="unroutable",
            )
        if (unroutable == routing.DEAD_LETTER) != (dead_letter_queue is not None):
            raise InvalidInput("unroutable='dead_letter' and dead_letter_queue= need each other.")
        columns = check_schema(creation.read_schema(self._client, schema, like), None)
        creation.create_store(self._client)
        data = columns.jsonValue()
        dead_letter_id = None
        if dead_letter_queue is not None:
            target = self._client.queue(check_name(dead_letter_queue))
            check_columns(name, data, target)
            dead_letter_id = target.queue_id
        exchange_id = f"{name}-{self._client.runtime.new_id()[:8]}"
        info = ExchangeInfo(
            name,
            exchange_id,
            kind,
            f"exchange-{exchange_id}",
            data,
            unroutable=unroutable,
            dead_letter_id=dead_letter_id,
            durable=bool(durable),
            arguments=said,
        )
        existing = self._client.topology().exchanges.get(name)
        if existing is None:
            existing = _create(self._client, info, columns)
        if existing.closing:
            raise exchange_error(model.EXCHANGE_CLOSING, name, existing.exchange_id)
        if existing.exchange_id != exchange_id and not exist_ok:
            raise ExchangeExists(
                f"There is an exchange {name!r} already: pass exist_ok=True to use it.", name=name
            )
        _check_same(self._client, existing, info)
        return Exchange(self._client, existing)

    def exchange(self, name: str = routing.DEFAULT_EXCHANGE) -> Exchange:
        """Open an exchange; without a name the default one, to which every queue is bound.

        Raises:
            ExchangeNotFound: There is no such exchange.
            StoreNotFound: There is no store at this root.
        """
        if name != routing.DEFAULT_EXCHANGE:
            check_name(name, "exchange")
        return open_exchange(self._client, name)

    def drop_exchange(
        self, name: str, *, reason: str | None = None, missing_ok: bool = False
    ) -> ExchangeDrop:
        """Drop an exchange and its bindings; repeating it goes on, as ``Exchange.drop`` says.

        Args:
            name: The exchange's name.
            reason: Why; it stands in the history.
            missing_ok: No error if there is no such exchange.

        Returns:
            Whether it is gone, and which prepared transactions hold it back if not.

        Raises:
            ExchangeNotFound: There is no such exchange.
            TransactionNotGiven: Inside a transaction block.
        """
        check_name(name, "exchange")
        at_once(self._client, "drop_exchange")
        check_text("reason", reason)
        info = self._client.topology().exchanges.get(name)
        if info is None and missing_ok:
            return ExchangeDrop(name, True)
        found = Exchange(self._client, info) if info else open_exchange(self._client, name)
        return found.drop(reason=reason)

    def list_exchanges(self) -> list[str]:
        """List the exchanges' names, those that are closing included.

        The default exchange has no name and is not listed.

        Raises:
            StoreNotFound: There is no store at this root.
        """
        return sorted(filter(None, self._client.topology().exchanges))

    def query_exchange(self, name: str | None = None) -> ExchangeAnswer:
        """Say what is known of an exchange, of the default one when the name is left out.

        An exchange that is not there is an answer, and no error.
        """
        check_text("name", name)
        return self._client.topology().query_exchange(name)

    def query_binding(
        self,
        exchange: str | None = None,
        queue: str | None = None,
        routing_key: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> BindingAnswer:
        """Say what is known of the bindings of an exchange; what is not there is no error.

        Args:
            exchange: The exchange; the default one when left out.
            queue: Is this queue bound to it?
            routing_key: Has a binding of it exactly this key or pattern?
            arguments: Has a binding of it exactly these arguments?
        """
        for field, value in {"exchange": exchange, "queue": queue, "key": routing_key}.items():
            check_text(field, value)
        found = self._client.topology()
        return found.query_binding(exchange, queue, routing_key, arguments)


def _create(client: Client, info: ExchangeInfo, columns: StructType) -> ExchangeInfo:
    """Create the payload table first, then append the entry, if nobody else did."""
    client.store.payload.create(info.payload_id, columns, routed=True)
    existing: ExchangeInfo | None = None

    def plan(lost: int) -> Plan | None:
        nonlocal existing
        found = client.topology()
        existing = found.exchanges.get(info.name)
        if existing is not None:
            return None
        creation.check_payload_there(client.catalog_entries(), [info])
        there = Plan((), (model.payload_there(info.payload_id),))
        return topology.create(info, found.sequences.get(info.name, 1), client.stamp()) + there

    landed = client.land(plan, "create exchange")
    if landed is not None:
        return topology.Topology.of(landed.entries).exchanges[info.name]
    assert existing is not None
    return existing


def _check_same(client: Client, have: ExchangeInfo, want: ExchangeInfo) -> None:
    """Check that an exchange is what was asked for, or was before it grew.

    Raises:
        SchemaMismatch: It has other columns.
        ExchangeExists: It is of another kind, or differs otherwise.
    """
    wanted = catalog.columns(want.schema)
    had = topology.schemas(client.catalog_entries(), have.exchange_id)
    if all(catalog.columns(one) != wanted for one in had):
        raise SchemaMismatch(f"The exchange {have.name!r} is there, and has other columns.")
    for what in ("kind", "unroutable", "dead_letter_id", "durable", "arguments"):
        found, asked = getattr(have, what), getattr(want, what)
        if found != asked:
            raise ExchangeExists(
                f"The exchange {have.name!r} is there with {what}={found!r}, not {asked!r}.",
                name=have.name,
            )


def _check_arguments(arguments: object) -> dict[str, Any]:
    """Check what an exchange is created with besides.

    Raises:
        InvalidInput: It could not be written down.
    """
    plain = (str, int, float, bool, type(None))
    if isinstance(arguments, Mapping) and all(
        isinstance(name, str) and isinstance(value, plain) for name, value in arguments.items()
    ):
        return dict(json.loads(json.dumps(dict(arguments))))
    raise InvalidInput(
        f"arguments={arguments!r}: give a dict of strings, numbers and booleans.",
        name="arguments",
    )
