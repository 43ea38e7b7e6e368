"""Land one append, whatever the store replies.

An exception is not an outcome, so after anything but success the journal is read first. If the
append is there, it has landed, with the entries in the journal and not those last planned; if
another one is there instead, it is planned again; if neither is there, the same entries are tried
again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from txnqueue.client.runtime import Retries, Runtime
from txnqueue.core import model
from txnqueue.core.custody import NotRead
from txnqueue.core.model import Entry, Unit
from txnqueue.core.planning import Plan
from txnqueue.core.settings import APPEND_PREFIX, TRANSACTION_ID_LENGTH_MAX
from txnqueue.core.state.closure import bars, closed_among, expected_open
from txnqueue.errors import (
    Busy,
    LayoutUnsupported,
    QueueError,
    TransactionUnknown,
    TxnQueueError,
)
from txnqueue.storage.journal import AppendConflict, Journal
from txnqueue.version import __version__

Planner = Callable[[int], Plan | None]
"""Plans an append, given how often it was lost so far; None if there is nothing to do.

It reads the journal's new entries at each call, and raises a typed error when the operation is no
longer possible."""


@dataclass(frozen=True, slots=True)
class Landed:
    """An append that is in the journal, with its entries as recorded there."""

    entries: tuple[Entry, ...]
    version: int

    @property
    def commit_seq(self) -> int:
        """The append's place in commit order."""
        return self.entries[0].commit_seq


def _no_reading(missing: NotRead) -> None:
    raise missing


class Append:
    """One append, from its first plan until it certainly is in the journal or certainly cannot.

    Attributes:
        queue: The queue that it is about.
    """

    def __init__(
        self,
        journal: Journal,
        runtime: Runtime,
        operation: str,
        *,
        transaction_id: str | None = None,
        queue: str | None = None,
        read: Callable[[NotRead], None] = _no_reading,
    ) -> None:
        """Describe an append that is not planned yet.

        Args:
            journal: The journal to append to.
            runtime: The ids, the clock and the retry policy.
            operation: The operation's name in the metadata of the Delta commit.
            transaction_id: The transaction that the append belongs to.
            queue: The queue that it is about.
            read: Reads what a plan lacks, if no lock is held; else raises the ``NotRead`` again.
        """
        self._journal = journal
        self._runtime = runtime
        self._operation = operation
        self._transaction_id = transaction_id
        self.queue = queue
        self._read = read
        self._retries = Retries(runtime)
        self._since = -1
        self._tried: list[Unit] = []
        self._in_doubt = False
        self._unsure = False  # also after a conflict: the store may be wrong in that

    @property
    def lost(self) -> int:
        """How many tries did not land."""
        return self._retries.failed

    def land(self, plan: Planner, riding: Sequence[Entry] = ()) -> Landed | None:
        """Land the planned append, whatever the store answers.

        Args:
            plan: Plans the append; called again after each conflict.
            riding: Entries without conditions that go with it.

        Returns:
            The entries that landed; None if the plan has nothing to do.

        Raises:
            Busy: Every try met a conflict; nothing landed.
            LayoutUnsupported: A newer version of the library changed the layout; nothing landed.
            TransactionUnknown: An earlier try may still land, though another one failed.
            QueueClosed: A queue that it works on is being dropped; nothing landed.
            QueueNotFound: The queue was dropped; nothing landed.
            ExchangeClosed: An exchange that it publishes to is being dropped; nothing landed.
            ExchangeNotFound: The exchange was dropped; nothing landed.
        """
        while True:
            try:
                planned = plan(self.lost)
            except NotRead as missing:
                found = self._learned(missing)
                if found is not None:
                    return found
                continue
            except Exception as error:  # an earlier try may have landed
                found = self._found_despite(error)
                if found is None:
                    raise
                return found
            if planned is None:
                return self._settled(None)
            if self._in_doubt:  # the plan may have read a try that has landed since
                found = self._find(None)
                if found is not None:
                    return found
            unit = self._unit(planned + Plan(tuple(riding)))
            landed = self._try(unit)
            if landed is not None:
                return landed

    def outcome(self) -> bool | None:
        """Find out whether a call of ``land`` that was interrupted, or is in doubt, has landed.

        ``land`` may then be called again, and finds a try that lands late.

        Returns:
            Whether it has; None if it has not, and may still do so.

        Raises:
            TransactionUnknown: The journal cannot be read, or a try may have been removed since.
        """
        if not self._tried:
            return False
        self._in_doubt = self._unsure = True
        self._retries = Retries(self._runtime)
        if self._find(None) is not None:
            return True
        if self._may_land(None):
            return None
        return self._find(None) is not None  # it may have landed between the two readings

    # ---------------------------------------------------------------------------- steps

    def _learned(self, missing: NotRead) -> Landed | None:
        """Read what a plan lacks, or plan without it; return an earlier try that landed, if any."""
        try:
            self._read(missing)
        except Exception as error:  # as above; or the plan does without
            if missing.without is None:
                found = self._found_despite(error)
                if found is None:
                    raise
                return found
            missing.without(error)
        return None

    def _unit(self, planned: Plan) -> Unit:
        """Make the plan's unit: the last try if the content is equal, else one with a new id."""
        if not self._tried:  # what the plan has read is known by now
            self._since = self._journal.known_version() - 1
        append_id = self._runtime.new_id()
        unit = Unit.of(append_id, planned.entries, planned.conditions, self._operation)
        if self._tried and unit.same_content(self._tried[-1]):
            return self._tried[-1]
        self._tried.append(unit)
        return unit

    def _try(self, unit: Unit) -> Landed | None:
        """Try once; return None if it did not land and may be planned anew."""
        cause: Exception | None = None
        refused = False
        try:
            answer = self._journal.append([unit], self._metadata())
            if answer.won[0] and answer.version is not None:
                return self._landed(unit, answer.version, answer.ordinal)
            refused = True
        except AppendConflict as error:
            cause, self._unsure = error, True
        except TxnQueueError as error:
            if self._in_doubt:
                raise self._unknown(error) from error
            raise
        except Exception as error:  # no outcome: the journal is read
            cause, self._in_doubt, self._unsure = error, True, True
        found = self._find(cause)
        if found is None:
            if refused:
                self._check_open()
            self._wait(cause)
        return found

    def _landed(self, unit: Unit, version: int, ordinal: int) -> Landed:
        """Return the tries that landed: this one, and earlier ones that were in doubt."""
        placed = (replace(e, version=version, ordinal=ordinal) for e in unit.entries)
        mine = Landed(tuple(placed), version)
        earlier = self._in_doubt and len(self._tried) > 1
        return (self._find(None) if earlier else None) or mine

    def _wait(self, cause: Exception | None) -> None:
        """Wait before the next try.

        Raises:
            Busy: No try is left; nothing landed.
            TransactionUnknown: No try is left, and an earlier one may still land.
        """
        if not self._retries.fail():
            if self._in_doubt:
                raise self._unknown(cause) from cause
            self._check_layout()
            where = "" if self.queue is None else f" on the queue {self.queue!r}"
            raise Busy(
                f"Concurrent writers won all {self.lost} tries of {self._operation!r}{where}; "
                "nothing was changed: try again later.",
                operation=self._operation,
                queue=self.queue,
                tries=self.lost,
            ) from cause
        self._retries.wait()

    def _metadata(self) -> dict[str, object]:
        return {
            "txnqueue": __version__,
            "operation": self._operation,
            "transaction_id": self._transaction_id,
            "queue": self.queue,
            "actor": self._runtime.actor,
            "run_id": self._runtime.run_id,
        }

    # ---------------------------------------------------------------------------- doubt

    def _found_despite(self, error: Exception) -> Landed | None:
        """Find an earlier try that landed and so made the plan fail; None if there is none.

        Raises:
            TransactionUnknown: An earlier try may still land.
        """
        if isinstance(error, TxnQueueError):
            return self._settled(error)
        if self._in_doubt:
            raise self._unknown(error) from error
        return None

    def _settled(self, cause: Exception | None) -> Landed | None:
        """Find the tries that landed; None if none has, and none will.

        Raises:
            TransactionUnknown: An earlier try may still land.
        """
        found = self._find(cause)
        if found is not None or not self._in_doubt:
            return found
        if self._may_land(cause):
            raise self._unknown(cause) from cause
        return self._find(cause)  # it may have landed between the two readings

    def _find(self, cause: Exception | None) -> Landed | None:
        """Find the tries that are in the journal, by append id; None if there are none.

        Raises:
            TransactionUnknown: The journal cannot be read, or a try may have been removed since.
        """
        if not self._tried:
            return None
        journal = self._journal
        ids = {unit.append_id for unit in self._tried}
        shards = {entry.shard for unit in self._tried for entry in unit.entries}
        beginning = -1
        try:
            found = journal.read({*shards, model.FENCE}, after=self._since).entries
            if model.horizon(found) > self._since:  # a try may have left the journal already
                found += journal.archive.read(append_ids=sorted(ids))
                beginning = model.beginning(journal.read([model.FENCE]).entries)
        except Exception as error:
            raise self._unknown(cause) from error
        known = model.each_once(e for e in found if e.append_id in ids)
        mine = sorted(known, key=lambda e: e.place)
        if not mine and self._unsure and beginning > self._since:
            raise self._unknown(cause)
        return Landed(tuple(mine), mine[0].version) if mine else None

    def _check_open(self) -> None:
        """Check that the append was not refused because a queue or exchange is being dropped.

        A closed queue stays closed, and bars for ever every try that expects it to be open.

        Raises:
            QueueClosed: A queue is closing; for an exchange, ``ExchangeClosed``.
            QueueNotFound: A queue is gone; for an exchange, ``ExchangeNotFound``.
            TransactionUnknown: One is closed, but an earlier try that it does not bar may land.
        """
        try:
            error = closed_by(self._journal, self._tried[-1])
        except Exception as failed:
            if self._in_doubt:
                raise self._unknown(failed) from failed
            raise
        if error is None:
            return
        if self._in_doubt and not all(bars(error, unit) for unit in self._tried):
            raise self._unknown(error) from error
        raise error

    def _check_layout(self) -> None:
        """Check that no newer version changed the layout, which bars every append.

        Raises:
            LayoutUnsupported: A newer version did; nothing landed.
        """
        changed = model.layout_unchanged()
        if changed in self._tried[-1].conditions:
            fence = self._journal.read([model.FENCE]).entries
            newest = max((e.sequence or 0 for e in fence if changed.matches(e)), default=0)
            if newest:
                raise layout_unsupported("The store", newest)

    def _may_land(self, cause: Exception | None) -> bool:
        """Return whether the conditions of one of the tries still hold, so that it may land.

        A condition that no longer holds never holds again.

        Raises:
            TransactionUnknown: The journal cannot be read.
        """
        shards = {shard for unit in self._tried for shard in unit.reads}
        try:
            entries = self._journal.read(shards).entries if shards else ()
        except Exception as error:
            raise self._unknown(cause) from error
        return any(all(c.holds(entries) for c in unit.conditions) for unit in self._tried)

    def _unknown(self, cause: Exception | None) -> TransactionUnknown:
        key, last = self._transaction_id, self._tried[-1]
        known_as = key or self._name()
        mine = next((e for e in last.entries if key and e.transaction_key == key), None)
        attempt = model.attempt_id(mine.attempt, mine.begun) if mine and mine.attempt else None
        return in_doubt(known_as, attempt, cause)

    def _name(self) -> str:
        """Name the append by all its tries: each of them may land late, under an id of its own."""
        ids = dict.fromkeys(unit.append_id for unit in self._tried)
        shards = dict.fromkeys(unit.entries[0].shard for unit in self._tried)
        return f"{APPEND_PREFIX}{','.join(ids)}@{','.join(shards)}"


def in_doubt(known_as: str, attempt: str | None, cause: BaseException | None) -> TransactionUnknown:
    """Make the error of an outcome in doubt, with the call that resolves the doubt."""
    asked = f"{known_as!r}" + (f", attempt={attempt!r}" if attempt else "")
    what = f"{known_as!r}" if len(known_as) <= TRANSACTION_ID_LENGTH_MAX else "this call"
    return TransactionUnknown(
        f"The outcome of {what} is in doubt: ask manager.outcome({asked}) before trying again.",
        transaction_id=known_as,
        attempt=attempt,
        last_error=cause,
    )


def layout_unsupported(store: str, layout: int) -> LayoutUnsupported:
    """Make the error of a store that a newer version of the library wrote."""
    return LayoutUnsupported(
        f"{store} has layout {layout}, this library writes {model.LAYOUT}: use a newer version.",
        layout=layout,
    )


def closed_by(journal: Journal, unit: Unit) -> QueueError | None:
    """Return the error of a closed queue or exchange that an append expects open; None if none."""
    streams = expected_open(unit)
    return closed_among(journal.read([model.FENCE]).entries, streams) if streams else None
