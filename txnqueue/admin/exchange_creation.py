"""Create an exchange: its payload table first, then one append."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txnqueue.admin import creation
from txnqueue.admin.exchange_alteration import check_columns
from txnqueue.client.client import Client
from txnqueue.core import exchanges, model
from txnqueue.core.exchanges import ExchangeInfo
from txnqueue.core.planning import Plan
from txnqueue.core.settings import as_json, check_choice, check_name, shown
from txnqueue.core.state import catalog, topology
from txnqueue.core.state.closure import exchange_error
from txnqueue.errors import ExchangeExists, InvalidInput, SchemaMismatch
from txnqueue.storage.payload.schemas import check_schema
from txnqueue.types import ExchangeKind, Unwanted

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def _create(client: Client, info: ExchangeInfo, columns: StructType) -> ExchangeInfo:
    """Create the payload table, then append the entry, unless another client did."""
    client.store.payload.create(info.payload_id, columns, routed=True)
    existing: ExchangeInfo | None = None

    def plan(_lost: int) -> Plan | None:
        nonlocal existing
        found = client.cache.topology()
        existing = found.exchanges.get(info.name)
        if existing is not None:
            return None
        creation.check_payload_there(client.cache.catalog_entries(), [info])
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
        SchemaMismatch: The exchange has other columns.
        ExchangeExists: The exchange differs otherwise, such as in its kind.
    """
    wanted = catalog.columns(want.schema)
    had = topology.schemas(client.cache.catalog_entries(), have.exchange_id)
    if all(catalog.columns(one) != wanted for one in had):
        raise SchemaMismatch(
            f"The exchange {have.name!r} exists and differs in "
            f"{catalog.differing(have.schema, want.schema)}: omit the schema to use it as it is, "
            "or alter it."
        )
    for what in ("kind", "unroutable", "dead_letter_id", "arguments"):
        found, asked = getattr(have, what), getattr(want, what)
        if found != asked:
            raise ExchangeExists(
                f"The exchange {have.name!r} exists with {what}={found!r}, not {asked!r}: omit "
                "the argument, or use another name.",
                name=have.name,
            )


def _check_arguments(arguments: object) -> dict[str, Any]:
    """Check the ``arguments`` of an exchange.

    Raises:
        InvalidInput: They cannot be recorded.
    """
    simple = (str, int, float, bool, type(None))
    if isinstance(arguments, Mapping) and all(
        isinstance(name, str) and isinstance(value, simple) for name, value in arguments.items()
    ):
        with contextlib.suppress(ValueError):  # the error is raised below
            return dict(as_json(dict(arguments)))
    raise InvalidInput(
        f"arguments={shown(arguments)}: give a dict of strings, numbers and booleans.",
        name="arguments",
    )


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of ``create_exchange``."""

    name: str
    kind: ExchangeKind
    schema: StructType
    unroutable: Unwanted
    dead_letter_queue: str | None
    arguments: object
    durable: bool = True
    """Has no effect; returned to a protocol's exchange query."""


def create_exchange(client: Client, asked: Asked, *, exist_ok: bool) -> ExchangeInfo:
    """Create an exchange, or return the existing one if it is the same.

    Raises:
        ExchangeExists: The exchange exists already, or with ``exist_ok`` a different one does.
        ExchangeClosed: The exchange exists and is being dropped.
        SchemaMismatch: The schema is invalid, or differs from that of the existing exchange or of
            the dead-letter queue.
        QueueNotFound: There is no such dead-letter queue.
    """
    name = asked.name
    kind = exchanges.check_kind(asked.kind)
    said = _check_arguments(asked.arguments)
    unroutable = check_choice("unroutable", asked.unroutable, exchanges.UNROUTABLE)
    dead_letter_queue = asked.dead_letter_queue
    if dead_letter_queue is not None:
        dead_letter_queue = check_name(dead_letter_queue)  # before a store is created
    if (unroutable == exchanges.DEAD_LETTER) != (dead_letter_queue is not None):
        raise InvalidInput(
            "unroutable='dead_letter' and dead_letter_queue= go together: give both or neither."
        )
    columns = check_schema(asked.schema, None)
    creation.create_store(client)
    data = columns.jsonValue()
    dead_letter_id = None
    if dead_letter_queue is not None:
        target = client.cache.queue_now(dead_letter_queue)
        check_columns(name, data, target)
        dead_letter_id = target.queue_id
    exchange_id = f"{name}-{client.runtime.new_id()[:8]}"
    info = ExchangeInfo(
        name,
        exchange_id,
        kind,
        f"exchange-{exchange_id}",
        data,
        unroutable=unroutable,
        dead_letter_id=dead_letter_id,
        durable=asked.durable,
        arguments=said,
    )
    existing = client.cache.topology().exchanges.get(name)
    if existing is None:
        existing = _create(client, info, columns)
        if existing.exchange_id == exchange_id:
            return existing  # with nothing read after the append that might fail
    if existing.closing:
        raise exchange_error(model.EXCHANGE_CLOSING, name, existing.exchange_id)
    if not exist_ok:
        raise ExchangeExists(
            f"There is already an exchange {name!r}: pass exist_ok=True to use it.", name=name
        )
    _check_same(client, existing, info)
    return existing
