"""What work on a queue is told that is being dropped, or was."""

from __future__ import annotations

from txnqueue import model
from txnqueue.errors import QueueClosed, QueueError, QueueNotFound
from txnqueue.journal import Journal
from txnqueue.model import Entry, Unit


def closed_error(entry: Entry) -> QueueError:
    """Write the error of work on a queue that the fence's entry closed."""
    name, who = entry.body["name"], entry.actor
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


def is_closed(error: BaseException | None) -> bool:
    """Say whether an error is about a queue that is being dropped, or was."""
    return isinstance(error, QueueError) and "queue_id" in error.details


def closed_queue(journal: Journal, unit: Unit) -> QueueError | None:
    """Say which queue that an append expects to be open is closing or dropped, if one is."""
    streams = {c.stream for c in unit.conditions if _expects_open(c)}
    fence = journal.read([model.FENCE]).entries if streams else ()
    found = [entry for entry in fence if entry.stream in streams]
    return closed_error(max(found, key=lambda e: e.place)) if found else None


def bars(error: QueueError, unit: Unit) -> bool:
    """Say whether the queue that an error is about bars an append for ever."""
    stream = model.queue_stream(str(error.details["queue_id"]))
    return any(c.stream == stream and _expects_open(c) for c in unit.conditions)


def _expects_open(condition: model.Condition) -> bool:
    kinds = condition.kinds or ()
    return condition.shard == model.FENCE and model.QUEUE_CLOSING in kinds
