"""Declared queues: find what a declaration would change, and change it.

A declaration names queues with their columns and settings. Applying it creates and alters queues;
what it does not mention is left alone. Dropping a queue takes two statements: one in the
declaration, and one by the client that applies it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from txnqueue.admin import alteration
from txnqueue.client.client import Client
from txnqueue.core.markup import Facts
from txnqueue.core.settings import QueueInfo, QueueSettings, check_name, did_you_mean, shown
from txnqueue.errors import InvalidInput, StoreNotFound
from txnqueue.storage.payload.schemas import check_schema, schema_from

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SECTIONS = ("queues", "drop")
_SETTINGS = {one.name for one in fields(QueueSettings)}


@dataclass(frozen=True, slots=True)
class DeclarationResult(Facts):
    """One change that a declaration made, or would make.

    Attributes:
        action: ``create``, ``alter`` or ``drop``.
        queue: The queue's name.
        changes: For ``alter``: what ``Queue.alter`` returns.
    """

    action: str
    queue: str
    changes: Mapping[str, tuple[object, object]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declared:
    """A declared queue: its columns, and the given settings."""

    name: str
    columns: StructType
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Declarations:
    """A checked declaration."""

    queues: Sequence[Declared]
    drop: Sequence[str]


def read(client: Client, declared: Mapping[str, Any]) -> Declarations:
    """Check a declaration before anything is changed.

    Raises:
        InvalidInput: A key is unknown, or a value is invalid.
    """
    _known("the declaration", _mapping("the declaration", declared), SECTIONS)
    queues = []
    for name, said in _mapping("queues", declared.get("queues") or {}).items():
        check_name(name)
        about = _mapping(f"queue {name!r}", said)
        _known(f"queue {name!r}", about, ("schema", *_SETTINGS))
        if not isinstance(about.get("schema"), str):
            raise InvalidInput(f"queue {name!r}: schema is missing: give the columns as DDL.")
        settings = {key: value for key, value in about.items() if key != "schema"}
        keys = QueueSettings(**settings)
        columns = schema_from(client.store.spark, about["schema"])
        columns = check_schema(columns, keys.group_by, keys.message_id)
        queues.append(Declared(name, columns, settings))
    drop = declared.get("drop") or []
    if not isinstance(drop, Sequence) or isinstance(drop, str):
        raise InvalidInput(f"drop={shown(drop)}: give a list of queue names.")
    both = {check_name(name) for name in drop} & {one.name for one in queues}
    if both:
        raise InvalidInput(
            f"queue {min(both)!r} is both declared and listed in drop: remove one of the two."
        )
    return Declarations(queues, drop)


def plan(client: Client, declared: Declarations, *, drop: bool) -> list[DeclarationResult]:
    """Find the changes to make; an empty list if all is as declared.

    Raises:
        InvalidInput: An existing queue differs from the declaration in a fixed setting.
        SchemaMismatch: An existing queue has a column with another type.
    """
    try:
        known = client.cache.queues()
    except StoreNotFound:
        known = {}
    steps = []
    for one in declared.queues:
        info = known.get(one.name)
        if info is None:
            steps.append(DeclarationResult("create", one.name))
            continue
        after = alteration.changed(info, one.columns, different(info, one.settings))
        changes = alteration.differences(info, after)
        if changes:
            steps.append(DeclarationResult("alter", one.name, changes))
    if drop:
        steps += [DeclarationResult("drop", name) for name in declared.drop if name in known]
    return steps


def different(info: QueueInfo, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings that differ from a queue's."""
    return {k: v for k, v in settings.items() if getattr(info.settings, k) != v}


def _mapping(what: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{what}: give a mapping of names to values, not {shown(value)}.")
    return value


def _known(what: str, said: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in said:
        if key not in known:
            near = did_you_mean(str(key), known)
            raise InvalidInput(f"{what}: unknown key {key!r}; {near}", name=key)
