"""Land one append, whatever the store answers.

An exception is not an outcome. After anything but success the journal is read first:
mine is there - done, and what I got is what the journal says, not what I last planned;
another's is there - plan again; nothing is there - say the same again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from txnqueue.client.runtime import Runtime
from txnqueue.core import model
from txnqueue.core.model import Entry, Unit
from txnqueue.core.planning import Plan
from txnqueue.core.state.closing import _expects_open, bars, closed_error
from txnqueue.errors import Busy, QueueError, TransactionUnknown, TxnQueueError
from txnqueue.storage.journal import AppendConflict, Journal
from txnqueue.version import __version__

Planner = Callable[[int], Plan | None]
"""Plans an append, given how often it was lost so far; None: there is nothing to do.

It reads the journal afresh at each call and raises a typed error when what was wanted can
no longer be done."""


@dataclass(frozen=True, slots=True)
class Landed:
    """An append that is in the journal: its entries as they stand there."""

    entries: tuple[Entry, ...]
    version: int

    @property
    def commit_seq(self) -> int:
        """The append's place in commit order."""
        return self.entries[0].commit_seq


def land(
    journal: Journal,
    runtime: Runtime,
    plan: Planner,
    *,
    operation: str,
    transaction_id: str | None = None,
    queue: str | None = None,
) -> Landed | None:
    """Append what is planned until it is surely in the journal, or surely cannot be.

    Args:
        journal: Where to append.
        runtime: The ids, the clock and the patience.
        plan: Plans the append; asked again after each lost race.
        operation: What the store's history calls the commit.
        transaction_id: The transaction that the append belongs to.
        queue: The queue that it is about.

    Returns:
        What landed, or None if the plan says that there is nothing to do.

    Raises:
        Busy: Others were faster at every try; nothing landed.
        TransactionUnknown: An earlier try may still land, whatever stands in the way of another.
        QueueClosed: A queue that it works on is being dropped; nothing landed.
        QueueNotFound: The same, when the drop is done.
        ExchangeClosed: An exchange that it publishes to is being dropped; nothing landed.
        ExchangeNotFound: The same, when the drop is done.
    """
    metadata = {
        "txnqueue": __version__,
        "operation": operation,
        "transaction_id": transaction_id,
        "queue": queue,
        "actor": runtime.actor,
        "run_id": runtime.run_id,
    }
    started = runtime.monotonic()
    since = -1
    tried: list[Unit] = []
    in_doubt = unsure = False  # unsure also after a conflict: the store may be wrong in that
    lost = 0
    while True:
        try:
            planned = plan(lost)
        except TxnQueueError as error:
            # What stands in the way may be an earlier try of our own that landed since.
            found = _find(journal, tried, since, unsure, transaction_id, error)
            if found is not None:
                return found
            if in_doubt and _may_land(journal, tried, transaction_id, error):
                raise _unknown(transaction_id, tried, error) from error
            raise
        except Exception as error:
            if in_doubt:
                raise _unknown(transaction_id, tried, error) from error
            raise
        if planned is None:
            return _find(journal, tried, since, unsure, transaction_id, None)
        if in_doubt:  # a try that landed since is what the plan goes on from
            found = _find(journal, tried, since, unsure, transaction_id, None)
            if found is not None:
                return found
        if not tried:  # what the plan has read is known by now
            since = journal.known_version() - 1
        unit = _unit(planned, tried, operation, runtime)
        cause: Exception | None = None
        refused = False
        try:
            answer = journal.append([unit], metadata)
            if answer.won[0] and answer.version is not None:
                landed = _landed(unit, answer.version)
                if in_doubt and len(tried) > 1:  # an earlier try may have landed as well
                    return _find(journal, tried, since, unsure, transaction_id, None) or landed
                return landed
            refused = True
        except AppendConflict as error:
            cause, unsure = error, True
        except TxnQueueError as error:
            if in_doubt:
                raise _unknown(transaction_id, tried, error) from error
            raise
        except Exception as error:
            cause, in_doubt, unsure = error, True, True
        found = _find(journal, tried, since, unsure, transaction_id, cause)
        if found is not None:
            return found
        if refused:
            _unless_closed(journal, tried, in_doubt, transaction_id)
        lost += 1
        policy = runtime.retry
        elapsed = runtime.monotonic() - started
        if lost >= policy.attempts_max or elapsed > policy.seconds_max:
            if in_doubt:
                raise _unknown(transaction_id, tried, cause) from cause
            raise Busy(operation=operation, queue=queue, tries=lost) from cause
        runtime.sleep(policy.wait_seconds(lost, runtime.dice()))


def _unless_closed(
    journal: Journal, tried: list[Unit], in_doubt: bool, transaction_id: str | None
) -> None:
    """Find out whether an append was refused because a queue or an exchange is being dropped.

    What closed stays closed, and bars for ever what expects it to be open.

    Raises:
        QueueClosed: So it is; of an exchange: ExchangeClosed.
        QueueNotFound: So it is, and the queue is gone; of an exchange: ExchangeNotFound.
        TransactionUnknown: So it is, but an earlier try that it does not bar may still land.
    """
    try:
        error = closed_by(journal, tried[-1])
    except Exception as failed:
        if in_doubt:
            raise _unknown(transaction_id, tried, failed) from failed
        raise
    if error is None:
        return
    if in_doubt and not all(bars(error, unit) for unit in tried):
        raise _unknown(transaction_id, tried, error) from error
    raise error


def _may_land(
    journal: Journal, tried: list[Unit], transaction_id: str | None, cause: Exception
) -> bool:
    """Say whether what one of the tries expects still holds: nothing bars it, and it may land.

    What is expected and does not hold any more never holds again.

    Raises:
        TransactionUnknown: Nobody can say.
    """
    shards = {shard for unit in tried for shard in unit.reads}
    try:
        entries = journal.read(shards).entries if shards else ()
    except Exception as error:
        raise _unknown(transaction_id, tried, cause) from error
    return any(all(c.holds(entries) for c in unit.conditions) for unit in tried)


def _unit(planned: Plan, tried: list[Unit], operation: str, runtime: Runtime) -> Unit:
    """Give a plan its append id: that of the last try if it says the same, else a new one."""
    unit = Unit.of(runtime.new_id(), planned.entries, planned.conditions, operation)
    if tried and unit.same_content(tried[-1]):
        return tried[-1]
    tried.append(unit)
    return unit


def _find(
    journal: Journal,
    tried: list[Unit],
    since: int,
    unsure: bool,
    transaction_id: str | None,
    cause: Exception | None,
) -> Landed | None:
    """Look whether any try is in the journal, by append id.

    Raises:
        TransactionUnknown: Nobody can say: it cannot be read, or may have been removed since.
    """
    if not tried:
        return None
    ids = {unit.append_id for unit in tried}
    shards = {entry.shard for unit in tried for entry in unit.entries}
    beginning = -1
    try:
        found = journal.read({*shards, model.FENCE}, after=since).entries
        if model.horizon(found) > since:  # what landed may have left the journal already
            found += journal.archive.read(append_ids=sorted(ids))
            beginning = model.beginning(journal.read([model.FENCE]).entries)
    except Exception as error:
        raise _unknown(transaction_id, tried, cause) from error
    known = {e.entry_id: e for e in found if e.append_id in ids}
    mine = sorted(known.values(), key=lambda e: e.place)
    if not mine and unsure and beginning > since:
        raise _unknown(transaction_id, tried, cause)
    return Landed(tuple(mine), mine[0].version) if mine else None


def _landed(unit: Unit, version: int) -> Landed:
    return Landed(tuple(replace(e, version=version) for e in unit.entries), version)


def _unknown(
    transaction_id: str | None, tried: list[Unit], cause: Exception | None
) -> TransactionUnknown:
    entries = tried[-1].entries
    known_as = transaction_id or f"append:{tried[-1].append_id}@{entries[0].shard}"
    mine = next(
        (e for e in entries if transaction_id and e.transaction_key == transaction_id), None
    )
    attempt = model.attempt_id(mine.attempt, mine.begun) if mine and mine.attempt else None
    return in_doubt(known_as, attempt, cause)


def in_doubt(known_as: str, attempt: str | None, cause: BaseException | None) -> TransactionUnknown:
    """Say that an outcome is in doubt, and how to ask for it."""
    asked = f"{known_as!r}" + (f", attempt={attempt!r}" if attempt else "")
    return TransactionUnknown(
        f"The outcome of {known_as!r} is in doubt: ask manager.outcome({asked}) before trying "
        "again.",
        transaction_id=known_as,
        attempt=attempt,
        last_error=cause,
    )


def closed_by(journal: Journal, unit: Unit) -> QueueError | None:
    """Say what is closing or dropped of what an append expects to be open, if anything is."""
    streams = {c.stream for c in unit.conditions if _expects_open(c)}
    fence = journal.read([model.FENCE]).entries if streams else ()
    found = [entry for entry in fence if entry.stream in streams]
    return closed_error(max(found, key=lambda e: e.place)) if found else None
