"""The columns of a queue's view, and the owners of the payload that it shows."""

from __future__ import annotations

from collections.abc import Mapping

from txnqueue.core.exchanges import ExchangeInfo
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import catalog
from txnqueue.storage.journal.tables import identifier, literal
from txnqueue.storage.payload import CORRELATION_ID, REPLY_TO
from txnqueue.storage.payload.column_names import folded

Owner = QueueInfo | ExchangeInfo
"""Whose payload it is."""
OF_HEADERS = {
    "headers": "d.headers",
    "correlation_id": f"try_element_at(d.headers, {literal(CORRELATION_ID)})",
    "reply_to": f"try_element_at(d.headers, {literal(REPLY_TO)})",
}
"""The last columns, of payload ``d``."""


def shown(info: QueueInfo, told: Mapping[str, str], *, payload: bool = True) -> list[str]:
    """List the columns of a queue's view: the payload's, then the metadata of each message.

    What is called like a column of the payload gets a '_' before it.

    Args:
        info: The queue.
        told: The expressions of what is told, by the names of their columns.
        payload: Whether there is payload ``d`` to show, with ``content`` and ``headers``.
    """
    names = [column["name"] for column in info.schema["fields"]]
    contents = [f"d.content.{identifier(name)} AS {identifier(name)}" for name in names]
    taken = set(map(folded, names))
    every = {**told, **OF_HEADERS} if payload else told
    return (contents if payload else []) + [
        f"{expression} AS {identifier(f'_{name}' if folded(name) in taken else name)}"
        for name, expression in every.items()
    ]


def content_of(info: QueueInfo, owner: Owner) -> str:
    """List a queue's columns as another one's payload has them: what came later is null.

    A column of the same name but another type is another one, which the owner got later: what it
    has sent to this queue has no value there.
    """
    there = dict(catalog.columns(owner.schema))
    lacks = {name for name, type_ in catalog.columns(info.schema) if there.get(name) != type_}
    if not lacks:
        return ", ".join(identifier(column["name"]) for column in info.schema["fields"])
    from pyspark.sql.types import StructType

    from txnqueue.storage.payload.queries import null_column

    types = StructType.fromJson(dict(info.schema)).fields
    return ", ".join(null_column(c) if c.name in lacks else identifier(c.name) for c in types)
