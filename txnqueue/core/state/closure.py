"""The errors of work on a closing or dropped queue or exchange (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from txnqueue.core import model
from txnqueue.core.model import Entry, Unit
from txnqueue.errors import ExchangeClosed, ExchangeNotFound, QueueClosed, QueueError, QueueNotFound

_CLOSING = frozenset({model.QUEUE_CLOSING, model.EXCHANGE_CLOSING})


def closed_error(entry: Entry) -> QueueError:
    """Make the error of work on a queue or an exchange that an entry of the fence closed."""
    name, who = entry.body["name"], entry.actor
    if entry.kind in (model.EXCHANGE_CLOSING, model.EXCHANGE_DROPPED):
        return exchange_error(entry.kind, name, entry.body["exchange"], f" by {who}")
    if entry.kind == model.QUEUE_DROPPED:
        return QueueNotFound(
            f"The queue {name!r} was dropped by {who}. If it was created again, "
            f"manager.queue({name!r}) opens the new one. Nothing was changed.",
            name=name,
            queue_id=entry.queue_id,
        )
    return QueueClosed(
        f"The queue {name!r} is being dropped by {who} and takes no more work: "
        f"drop_queue({name!r}) says what holds it back. Nothing was changed.",
        name=name,
        queue_id=entry.queue_id,
    )


def exchange_error(kind: str, name: str, exchange_id: str, by: str = "") -> QueueError:
    """Make the error of work on an exchange that is closing or dropped.

    Args:
        kind: ``exchange_closing`` or ``exchange_dropped``.
        name: The exchange's name.
        exchange_id: The exchange's id.
        by: The words that say who dropped it; empty if that is not known here.
    """
    if kind == model.EXCHANGE_DROPPED:
        return ExchangeNotFound(
            f"The exchange {name!r} was dropped{by}. If it was created again, "
            f"manager.exchange({name!r}) opens the new one. Nothing was changed.",
            name=name,
            exchange_id=exchange_id,
        )
    return ExchangeClosed(
        f"The exchange {name!r} is being dropped{by} and takes no more work: "
        f"drop_exchange({name!r}) says what holds it back. Nothing was changed.",
        name=name,
        exchange_id=exchange_id,
    )


def is_closed(error: BaseException | None) -> bool:
    """Return whether an error is about a queue or an exchange that is closing or dropped."""
    return isinstance(error, QueueError) and _stream_of(error) is not None


def expected_open(unit: Unit) -> frozenset[str]:
    """Return the streams of the fence whose queues and exchanges an append expects open."""
    return frozenset(c.stream for c in unit.conditions if _expects_open(c))


def closed_among(entries: Iterable[Entry], streams: Collection[str]) -> QueueError | None:
    """Return the error of the queue or exchange that was closed last among some.

    Args:
        entries: The entries of the fence.
        streams: The streams of the queues and exchanges.

    Returns:
        The error; None if all of them are open.
    """
    found = [entry for entry in entries if entry.stream in streams]
    return closed_error(max(found, key=lambda e: e.place)) if found else None


def bars(error: QueueError, unit: Unit) -> bool:
    """Return whether the closed queue or exchange of an error bars an append for ever."""
    stream = _stream_of(error)
    return any(c.stream == stream and _expects_open(c) for c in unit.conditions)


def _stream_of(error: QueueError) -> str | None:
    """Find the stream in the fence of the queue or exchange that an error reports as closed."""
    if "exchange_id" in error.details:
        return model.exchange_stream(str(error.details["exchange_id"]))
    if "queue_id" in error.details:
        return model.queue_stream(str(error.details["queue_id"]))
    return None


def _expects_open(condition: model.Condition) -> bool:
    kinds = condition.kinds or ()
    return condition.shard == model.FENCE and not _CLOSING.isdisjoint(kinds)
