"""Declared queues: find what a declaration would change, and change it.

A declaration names queues with their columns and settings. Applying it creates and alters queues;
what it does not mention is left alone. Dropping a queue takes two statements: one in the
declaration, and one by the client that applies it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from txnqueue.admin import alteration, creation
from txnqueue.admin.drop import check_unused, drop_named
from txnqueue.client.client import Client
from txnqueue.core.markup import Facts
from txnqueue.core.settings import (
    QueueInfo,
    QueueSettings,
    check_name,
    check_text,
    did_you_mean,
    is_text,
    shown,
)
from txnqueue.errors import InvalidInput, QueueInUse, StoreNotFound
from txnqueue.storage.payload.schemas import check_schema, schema_from

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SECTIONS = ("queues", "drop")
_SETTINGS = {one.name: one.default for one in fields(QueueSettings)}


@dataclass(frozen=True, slots=True)
class DeclarationResult(Facts):
    """One change that a declaration made, or would make.

    Attributes:
        action: ``create``, ``alter`` or ``drop``.
        queue: The queue's name.
        changes: For ``alter``: what ``Queue.alter`` returns.
        held_by: For ``drop``: the prepared transactions that hold it back, or the drop of the queue
            whose dead letters this one takes. Decide them, then declare again.
    """

    action: str
    queue: str
    changes: Mapping[str, tuple[object, object]] = field(default_factory=dict)
    held_by: tuple[str, ...] = ()


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
        with _about(name):
            queues.append(_read(client, name, said))
    drop = declared.get("drop") or []
    if not isinstance(drop, Sequence) or isinstance(drop, str):
        raise InvalidInput(f"drop={shown(drop)}: give a list of queue names.")
    both = {check_name(name) for name in drop} & {one.name for one in queues}
    if both:
        raise InvalidInput(
            f"queue {min(both)!r} is both declared and listed in drop: remove one of the two."
        )
    return Declarations(queues, drop)


def _read(client: Client, name: str, said: object) -> Declared:
    """Check what is declared of one queue."""
    about = _mapping("the queue", said)
    _known("the queue", about, ("schema", *_SETTINGS))
    if not isinstance(about.get("schema"), str):
        raise InvalidInput("schema is missing: give the columns as DDL.")
    settings = {key: value for key, value in about.items() if key != "schema"}
    for key, value in settings.items():
        if value is None and _SETTINGS[key] is not None:
            raise InvalidInput(f"{key}={shown(value)}: give a value, or leave it out.", name=key)
    keys = [check_text(key, settings.get(key)) for key in ("group_by", "message_id")]
    columns = schema_from(client.store.spark, about["schema"])
    return Declared(name, check_schema(columns, *keys), settings)


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Name the queue in an error about it: a declaration has many."""
    try:
        yield
    except InvalidInput as error:
        error.message = f"queue {name!r}: {error}"
        error.args = (error.message,)
        raise


def plan(
    client: Client,
    declared: Declarations,
    settings_of: Callable[[Mapping[str, Any]], QueueSettings],
    *,
    drop: bool,
) -> list[DeclarationResult]:
    """Find the changes to make; an empty list if all is as declared.

    Each change is checked against what the changes before it will have made of the store.

    Args:
        client: The client of the store.
        declared: The declaration.
        settings_of: Makes the settings of a new queue from those that are declared.
        drop: Whether to drop what it lists in ``drop``.

    Raises:
        InvalidInput: An existing queue differs from the declaration in a fixed setting.
        SchemaMismatch: An existing queue has a column with another type.
        QueueClosed: A queue is being dropped.
        QueueInUse: A queue to drop, or to get columns, takes another queue's dead letters.
    """
    try:
        known = dict(client.cache.queues())
    except StoreNotFound:
        known = {}
    steps: list[DeclarationResult] = []
    for one in declared.queues:
        with _about(one.name):
            new, step = _step(client, known, one, settings_of)
        steps += [step] if step is not None else []
        known.update((each.name, each) for each in new)
    # A queue goes before the one that takes its dead letters, whose name is longer.
    gone = dict.fromkeys(name for name in declared.drop if drop and name in known)
    for name in sorted(gone, key=len):
        check_unused(known.pop(name), known.values())
        steps.append(DeclarationResult("drop", name))
    return steps


def _step(
    client: Client,
    known: Mapping[str, QueueInfo],
    one: Declared,
    settings_of: Callable[[Mapping[str, Any]], QueueSettings],
) -> tuple[Sequence[QueueInfo], DeclarationResult | None]:
    """Return what a queue will be, with its dead-letter queue, and the change; None for none."""
    info = known.get(one.name)
    if info is None:
        settings = settings_of(one.settings)
        new, _ = creation.described(client, known, one.name, one.columns, settings)
        return new, DeclarationResult("create", one.name)
    if info.closing:
        raise creation.taken(info)
    altered = _altered(info, known, one)
    changes = alteration.differences(info, altered[0])
    return altered, DeclarationResult("alter", one.name, changes) if changes else None


def _altered(info: QueueInfo, known: Mapping[str, QueueInfo], one: Declared) -> list[QueueInfo]:
    """Return an existing queue as declared, and its dead-letter queue if that gets columns, too."""
    columns = _lacking(info, one.columns)
    mine, *others = alteration.involved(info, known, columns)
    after = alteration.changed(mine, columns, _different(info, one.settings))
    return [after, *(alteration.changed(other, columns, {}) for other in others)]


def _lacking(info: QueueInfo, columns: StructType) -> StructType | None:
    """Return the given columns if a queue lacks some of them; None if it has them all."""
    return columns if alteration.grown(info, columns) != info else None


def _different(info: QueueInfo, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings that differ from a queue's.

    Raises:
        InvalidInput: A value cannot be used, also beside the queue's other settings.
    """
    wanted = replace(info.settings, **settings)
    return {k: v for k, v in settings.items() if getattr(info.settings, k) != getattr(wanted, k)}


def carry_out(
    client: Client,
    declared: Declarations,
    steps: Iterable[DeclarationResult],
    settings_of: Callable[[Mapping[str, Any]], QueueSettings],
) -> list[DeclarationResult]:
    """Make the changes that were found.

    Args:
        client: The client of the store.
        declared: The declaration.
        steps: The changes.
        settings_of: As in ``plan``.

    Returns:
        The changes, with what holds back the drops.

    Raises:
        QueueInUse: A queue to drop takes the dead letters of a queue that stays.
    """
    queues = {one.name: one for one in declared.queues}
    held: dict[str, tuple[str, ...]] = {}
    done: list[DeclarationResult] = []
    for step in steps:
        if step.action == "drop":
            step = replace(step, held_by=_drop(client, step.queue, held))
        elif step.action == "create":
            _create(client, queues[step.queue], settings_of)
        else:
            _alter(client, queues[step.queue])
        done.append(step)
    return done


def _drop(client: Client, name: str, held: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Drop a queue, and return what holds it back, which is noted in ``held`` by queue, too."""
    try:
        held_by = drop_named(client, name, missing_ok=True).held_by
    except QueueInUse as error:  # by a queue whose own drop is held back
        if error.used_by not in held:
            raise
        held_by = held[error.used_by]
    if held_by:
        held[name] = held_by
    return held_by


def _create(
    client: Client, one: Declared, settings_of: Callable[[Mapping[str, Any]], QueueSettings]
) -> None:
    creation.ensure_queue(client, one.name, one.columns, settings_of(one.settings), exist_ok=True)


def _alter(client: Client, one: Declared) -> None:
    client.open()
    info = client.cache.newest(client.cache.queue(one.name))
    columns = _lacking(info, one.columns)
    alteration.alter(client, info, columns, _different(info, one.settings))


def _mapping(what: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{what}: give a mapping of names to values, not {shown(value)}.")
    return value


def _known(what: str, said: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in said:
        if key not in known:
            near = did_you_mean(key if is_text(key) else shown(key), known)
            raise InvalidInput(f"{what}: unknown key {shown(key)}; {near}", name=key)
