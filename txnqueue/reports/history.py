"""The history: the state after any commit, and the path of any message.

All answers come from the journal's entries, which name versions and authors.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from txnqueue.client import archive
from txnqueue.client.archive import Past
from txnqueue.client.cache import Cache
from txnqueue.client.client import Client
from txnqueue.core import markup, model, ranges
from txnqueue.core.exchanges import ExchangeInfo
from txnqueue.core.model import Entry, Range
from txnqueue.core.settings import (
    QueueInfo,
    check_flag,
    check_id,
    check_predicate,
    place_of_message,
    shown,
)
from txnqueue.core.state import catalog, erasures, retention
from txnqueue.core.state.topology import Topology
from txnqueue.errors import InvalidInput, LimitExceeded, PayloadRemoved
from txnqueue.reports.audit_report import AuditReport, audit
from txnqueue.reports.digest import HistoryDigest, chain_after, computed
from txnqueue.reports.moments import (
    check_commit,
    check_commits,
    check_moment,
    cut,
    is_later,
    is_to_come,
    reversed_commits,
    state_at,
)
from txnqueue.reports.report import Report
from txnqueue.reports.snapshot import Snapshot, author_of
from txnqueue.reports.trace import TraceIndex
from txnqueue.reports.verification import VerificationResult, verify
from txnqueue.storage import setbacks
from txnqueue.storage.journal import EntryFilter
from txnqueue.types import ChangeRow, TraceStep

TRACED_MAX = 1_000
"""The maximum number of messages that one trace follows."""
LOOKED = 10
"""How many of the newest versions of the journal a notebook reads."""
_STEPS = (
    "message_id step queue lane target exchange rows transaction_id attempt decision reason actor "
    "run_id recorded_at commit_seq"
)
_CHANGES = (
    "commit_seq kind queue table lane sequence claim_sequence count transaction_id attempt reason "
    "actor run_id recorded_at"
)


class History:
    """Queries of a store's past; get it from ``manager.history``."""

    def __init__(self, client: Client) -> None:
        """Query a manager's store."""
        self._client = client

    def as_of(
        self,
        commit_seq: int | datetime.datetime | None = None,
        *,
        timestamp: datetime.datetime | None = None,
    ) -> Snapshot:
        """Return the state after a commit: one consistent cut over every queue.

        Args:
            commit_seq: The commit, as a receipt names it, or -1 for the state before the first
                one; or an aware instant.
            timestamp: The instant: the state after the last commit recorded by then, to the
                millisecond. If clocks contradict each other by more than an hour, it is the commit
                that fewest of them contradict.

        Returns:
            The state; the current one when both are omitted. What is delayed or expired in it is
            decided by the clock of the commit, by the instant, or by the clock of this call.

        Raises:
            InvalidInput: There is no such commit yet, or the instant has no time zone.
            HistoryRemoved: The state is older than the history's beginning, which ``horizon``
                returns. If it is removed later, the state raises this when it is queried.
        """
        self._client.open()
        return Snapshot(self._client, *state_at(self._client, commit_seq, timestamp))

    def trace(
        self,
        message_id: str | None = None,
        *,
        queue: str | None = None,
        where: str | None = None,
        partial: bool = False,
    ) -> Report[TraceStep]:
        """Follow messages through the store: one row per step, in commit order.

        Args:
            message_id: The message's id, ``<send id>:<offset>``.
            queue: Instead, with ``where``, the queue that the messages were sent to. Dropped queues
                of that name are searched too, and the exchanges that all of these were bound to.
            where: A SQL predicate over the payload's columns; those that only another queue of that
                name has are null.
            partial: Whether to search what is left, if payload of what was sent to the queue was
                erased or removed past its retention, or its history may have been removed.

        Returns:
            A report with message_id, step (sent, published once for each queue that got it, moved,
            claimed, lease_extended, kept, accepted, released, rejected, dead_lettered, expired,
            duplicate, purge_pending, purged, queue_dropped, erased, and changed once for each
            change of a table by the consuming transaction), queue, lane, target (the queue of a
            move, or the table; with lineage also how to find its rows), exchange (where it was
            published), rows, transaction_id, attempt, decision (of that transaction, as it stands;
            None also if it was removed from the history), reason, actor, run_id, recorded_at and
            commit_seq.

        Raises:
            InvalidInput: Neither a message id nor a queue and a predicate were given, or both.
            QueueNotFound: There never was such a queue.
            FilesNotReadable: The store was opened by ``look()``, and ``where`` needs Spark.
            LimitExceeded: More than 1,000 messages match.
            PayloadRemoved: The predicate cannot be applied to all that was sent to the queue.
            HistoryRemoved: Messages that match may have existed before the history's beginning.
        """
        check_flag("partial", partial)
        if message_id is not None:
            message_id = check_id(message_id, "message_id")
            if queue is not None or where is not None:
                raise InvalidInput("Give a message id, or queue= and where=, not both.")
        self._client.open()
        if message_id is not None:
            place = place_of_message(message_id)
            if place is None:
                raise InvalidInput(
                    f"{message_id!r} is not a message id: give '<send id>:<offset>', as in "
                    "_message.id.",
                    name="message_id",
                )
            found, searched = [place], set[str]()
        elif queue is not None and where is not None:
            about = check_id(queue, "queue")
            found, searched = self._find(about, check_predicate(where))
        else:
            raise InvalidInput(
                "Nothing to trace was given: pass a message id, or queue= and where=."
            )
        past, entries = _of_messages(self._client.cache, found)
        steps = [*map(TraceIndex(entries).steps_of, found)]
        if not partial:
            _check_sent(past, entries, searched, steps)
            self._check_there(queue, searched, past)
        found_steps = [step for path in steps for step in path]
        return Report(self._client, lambda: found_steps, _STEPS, is_short=True)

    def changes(
        self, after: int = -1, upto: int | None = None, *, queue: str | None = None
    ) -> Report[ChangeRow]:
        """Report what happened between two commits: one row per entry, in commit order.

        Args:
            after: The commit_seq to begin after; the history's beginning when omitted.
            upto: The last commit_seq; the newest when omitted.
            queue: Only entries about this queue, or dropped queues of that name.

        Returns:
            Columns commit_seq long, kind, queue, table string, lane int, sequence,
            claim_sequence, count long, transaction_id, attempt, reason, actor, run_id string,
            recorded_at timestamp.

        Raises:
            InvalidInput: ``upto`` comes before ``after``, or one of them is no commit_seq.
            HistoryRemoved: Entries after ``after`` were removed, or all up to ``upto``.
            QueueNotFound: There never was such a queue.
        """
        self._client.open()
        check_commits(after, upto)
        if upto is not None and after > upto:
            raise reversed_commits(after, upto)
        about = None if queue is None else check_id(queue, "queue")
        past = self._client.cache.past()
        if after >= 0:
            past.check_known(after + 1)
        elif upto is not None:
            past.check_known(upto)
        entries = past.catalog()
        ever = catalog.every_queue(entries)
        names = {queue_id: info.name for queue_id, info in ever.items()}
        since = max(after, model.commit_seq(past.beginning) - 1, -1)
        wanted = EntryFilter(after=since, upto=upto)
        if about is not None:
            wanted = self._about(about, entries, wanted)
        return Report(self._client, lambda: _changes(past, wanted, names), _CHANGES)

    def _about(self, name: str, entries: Iterable[Entry], wanted: EntryFilter) -> EntryFilter:
        """Narrow a filter to the entries about a queue, and about dropped queues of its name.

        Raises:
            QueueNotFound: There never was such a queue.
        """
        infos = self._client.cache.ever_named(name, entries)
        own = [archive.of_lanes(info.queue_id, info.settings.lanes).shards for info in infos]
        shards = {model.FENCE, model.CATALOG, *(shard for found in own for shard in found or ())}
        return replace(wanted, shards=shards, queue_ids=[info.queue_id for info in infos])

    def horizon(self) -> int:
        """Return the oldest commit_seq whose state can be queried.

        It is the store's first commit until ``maintain(history_retention_days=)`` has removed
        entries.
        """
        self._client.open()
        beginning = archive.beginning_of(self._client.store.journal)
        if beginning >= 0:
            return model.commit_seq(beginning)
        return min(entry.commit_seq for entry in self._client.cache.layouts())

    def verify(self, *, digest: HistoryDigest | str | None = None) -> VerificationResult:
        """Prove from the tables that the store keeps its promises.

        Args:
            digest: Prove as well that the entries are those of this digest, given as ``digest``
                returned it or as the line that it prints.

        Returns:
            One line per claim, with what was found and expected; ``ok`` if all hold.

        Raises:
            InvalidInput: ``digest`` is not a digest.
            HistoryRemoved: The digest covers commits before the history's beginning: give one
                that continues an earlier one from there on.
        """
        self._client.open()
        if digest is None:
            return verify(self._client, None)
        line = str(digest) if isinstance(digest, HistoryDigest) else digest
        return verify(self._client, HistoryDigest.parse(line))

    def digest(
        self, commit_seq: int | None = None, *, after: HistoryDigest | str | int = -1
    ) -> HistoryDigest:
        """Compute a chained digest of the history, to be kept outside the store.

        It stays the same whatever maintenance does, as long as the entries exist.

        Args:
            commit_seq: The last commit that it covers; the newest when omitted.
            after: An earlier digest that it continues, or the commit_seq after which it begins.
                A continued digest has the ``sha256`` of one over the whole history, and needs
                only the entries after the earlier one.

        Returns:
            The digest: ``verify(digest=)`` takes it, or its printed line.

        Raises:
            InvalidInput: There is no such commit yet, it lies before ``after``, or ``after`` is no
                digest.
            HistoryRemoved: Commits that the digest would cover were removed from the history.
            StoreCorrupt: The archive has entries although nothing was archived.
        """
        if commit_seq is not None:
            check_commit("commit_seq", commit_seq)
        if commit_seq == -1:
            raise InvalidInput(
                "commit_seq=-1: give a commit; there is none before the first.", name="commit_seq"
            )
        self._client.open()
        begins, seed = chain_after(after)
        past, _ = cut(self._client.cache, commit_seq)
        last = past.newest().commit_seq if commit_seq is None else commit_seq
        if last < begins:
            raise InvalidInput(
                f"after={begins} is later than commit_seq={last}: give an earlier digest.",
                name="after",
            )
        past.check_known(begins + 1)
        if past.is_archive_foreign():
            raise setbacks.archive_foreign(self._client.store.root)
        return computed(past, begins, last, seed)

    def report(
        self,
        after: int | datetime.datetime | None = None,
        upto: int | datetime.datetime | None = None,
        *,
        payload: bool = False,
        verify: bool = True,
    ) -> AuditReport:
        """Report what happened between two moments, for an auditor.

        All entries are read once as a stream, and at most twice more to verify the store.

        Args:
            after: The moment to begin after: a commit_seq, or an aware instant; the history's
                beginning when omitted.
            upto: The moment to end with; now when omitted.
            payload: Whether to show the rows of some dead letters of each cause.
            verify: Whether to verify the store as it is now.

        Returns:
            The figures, which can be written as one HTML page.

        Raises:
            InvalidInput: There is no such commit yet, an instant has no time zone, the second
                moment precedes the first, or the first is still to come.
            HistoryRemoved: A moment lies before the history's beginning.

        Example::

            closed = datetime.datetime(2026, 9, 30, 22, tzinfo=datetime.timezone.utc)
            manager.history.report(after=closed).save("audit.html")
        """
        check_flag("payload", payload)
        check_flag("verify", verify)
        for name, moment in (("after", after), ("upto", upto)):
            check_moment(name, moment)
        self._client.open()
        first = None if after is None else cut(self._client.cache, after, name="after")
        last = state_at(self._client, upto, name="upto")
        if first is not None and upto is None and is_to_come(first, last):
            raise InvalidInput(
                f"after={shown(after)} is still to come, and a report without upto= ends now: give "
                "an earlier moment.",
                name="after",
            )
        if first is not None and upto is not None and is_later(first, last):
            raise InvalidInput(
                f"upto={shown(upto)} comes before after={shown(after)}: give the earlier moment "
                "first.",
                name="upto",
            )
        return audit(self._client, first, last, payload=payload, proof=verify)

    @markup.never_raising
    def _repr_html_(self) -> str:
        """Show the newest commits in a notebook; only the newest versions are read."""
        newest = self._client.store.journal.version()
        rows = self.changes(model.commit_seq(max(newest - LOOKED + 1, 0)) - 1).rows()[::-1]
        columns = ("commit_seq", "recorded_at", "kind", "queue", "table", "count")
        caption = f"The last entries; the history begins with commit {self.horizon()}"
        who = ("transaction_id", "actor", "run_id", "reason")
        return markup.records(caption, rows, (*columns, *who))

    def __repr__(self) -> str:
        """Show the store's root."""
        return f"<History of {self._client.store.root}>"

    def _find(self, name: str, where: str) -> tuple[list[tuple[str, int]], set[str]]:
        """Find messages that were sent to a queue, or to dropped queues of that name.

        Published messages are searched in the exchanges that the queue was bound to. Each table
        has null in the columns of the queues that it lacks.

        Returns:
            The messages, and the queues that were searched.
        """
        entries = self._client.cache.catalog_entries()
        infos = self._client.cache.ever_named(name, entries)
        topology = Topology.of(entries)
        payload = self._client.store.payload
        named = [info.schema for info in infos]
        owners: dict[str, QueueInfo | ExchangeInfo] = {one.payload_id: one for one in infos}
        for info in infos:
            owners |= {one.payload_id: one for one in topology.owners(info.queue_id)}
        meant = [
            (payload_id, send_id, part)
            for payload_id, owner in owners.items()
            for _, send_id, part in payload.matching(
                payload.schema(owner.schema, *named), payload_id, where
            )
        ]
        queue_ids = {info.queue_id for info in infos}
        return self._sent(name, meant, queue_ids), queue_ids

    def _sent(
        self, name: str, meant: Sequence[tuple[str, str, tuple[Range, ...]]], queue_ids: set[str]
    ) -> list[tuple[str, int]]:
        """Keep those rows that became messages of some queues.

        Others were published for other queues, or by transactions that did not commit. What was
        sent before the history's beginning cannot be told from these: some follow if there is room.

        Args:
            name: The name of the queues.
            meant: The rows that match: the owner of the payload, the send and the offsets.
            queue_ids: The queues.

        Raises:
            LimitExceeded: They are more than one trace follows.
        """
        past = self._client.cache.past()
        backlogs = [model.backlog_shard(queue_id) for queue_id in queue_ids]
        came: dict[tuple[str, str], list[Range]] = defaultdict(list)
        for entry in past.find(EntryFilter(shards=backlogs, kinds=[model.POSTED])):
            came[entry.body["payload"], entry.body["send"]].extend(entry.ranges)
        known = {place: ranges.normalised(part) for place, part in came.items()}
        sent = _messages(
            (send_id, ranges.intersection(part, known.get((owner, send_id), ())))
            for owner, send_id, part in meant
        )
        found = list(islice(sent, TRACED_MAX + 1))
        if len(found) > TRACED_MAX:
            raise LimitExceeded(
                f"More than {TRACED_MAX} messages of {name!r} match where=: trace fewer of them at "
                "a time.",
                name="where",
            )
        if past.beginning >= 0:  # it may have had entries of some of the others
            others = _messages(
                (send_id, ranges.difference(part, known.get((owner, send_id), ())))
                for owner, send_id, part in meant
            )
            found += islice(others, TRACED_MAX - len(found))
        return found

    def _check_there(self, name: str | None, queue_ids: set[str], past: Past) -> None:
        """Check that no payload that was searched had been removed.

        Args:
            name: The name of the queues.
            queue_ids: The queues.
            past: The history, taken after the search.

        Raises:
            PayloadRemoved: Some payload had been removed or erased.
        """
        payload = self._client.store.payload
        if not queue_ids:
            return
        backlogs = [model.backlog_shard(queue_id) for queue_id in queue_ids]
        posted = past.find(EntryFilter(shards=backlogs, kinds=[model.POSTED]))
        sent = (e for e in posted if not model.was_moved(e.body.get("origin")))
        erased = erasures.rows_of(erasures.erasures(self._client.cache.catalog_entries()))
        for owner, slices in retention.named_slices(sent).items():
            if slices.intersection(slice_ for slice_, _ in erased.get(owner, ())):
                raise PayloadRemoved(
                    f"Payload of messages sent to {name!r} was erased; changes(queue={name!r}) "
                    "shows by whom: search the rest with partial=True, or trace by message id, "
                    "which finds any message.",
                    queue=name,
                )
            if slices - payload.slices(owner):
                raise PayloadRemoved(
                    f"Payload of messages sent to {name!r} was removed after its retention: "
                    "search the rest with partial=True, or trace by message id, which finds any "
                    "message.",
                    queue=name,
                )


def _messages(parts: Iterable[tuple[str, tuple[Range, ...]]]) -> Iterator[tuple[str, int]]:
    """Yield the places of messages, one by one."""
    for send_id, part in parts:
        for first, last in part:
            for offset in range(first, last + 1):
                yield send_id, offset


def _of_messages(cache: Cache, messages: Collection[tuple[str, int]]) -> tuple[Past, list[Entry]]:
    """Read the history and the entries about messages, all as of one beginning."""
    past = cache.past()
    return past, past.at_one_beginning(lambda: archive.of_messages(past, messages))


def _check_sent(
    past: Past, entries: list[Entry], queue_ids: set[str], paths: list[list[TraceStep]]
) -> None:
    """Check that nothing that a trace needs may have been removed.

    Args:
        past: The history.
        entries: The entries of the catalog, and those about the messages.
        queue_ids: The queues that were searched; none if a message was named.
        paths: The steps of each message.

    Raises:
        HistoryRemoved: A message was sent before the history's beginning, or may have been.
    """
    if past.beginning < 0:
        return
    if queue_ids:  # their messages may have left no trace
        made = (e.version for e in entries if e.queue_id in queue_ids)
        whole = min(made, default=-1) >= past.beginning
    else:
        whole = all(path and path[0]["step"] in ("sent", "published") for path in paths)
    if not whole:
        raise archive.removed(
            "Some of that may be missing (partial=True shows the rest)", past.beginning
        )


def _tables(past: Past, entries: Iterable[Entry]) -> dict[str, str]:
    """Name the tables that entries are about; the decision of a change holds its table's name."""
    found = list(entries)
    decided = [entry for entry in found if entry.kind == model.CHANGE_DECIDED]
    named = {entry.stream for entry in decided}
    ended = {
        entry.stream: entry.ended_change[0]
        for entry in found
        if entry.ended_change is not None and entry.stream not in named
    }
    if ended:
        kinds, append_ids = [model.CHANGE_DECIDED], set(ended.values())
        wanted = EntryFilter(shards=model.ALL_TABLES, kinds=kinds, append_ids=append_ids)
        decided += past.find(wanted)
    return {entry.stream: entry.body["change"]["table"] for entry in decided}


def _changes(past: Past, wanted: EntryFilter, names: Mapping[str, str]) -> list[ChangeRow]:
    """Read the rows of ``History.changes``.

    Raises:
        HistoryRemoved: Entries after the first commit were removed since the call.
    """
    entries = past.find(wanted)
    entries = [entry for entry in entries if entry.version >= past.beginning]
    tables = _tables(past, entries)
    return [
        {
            "commit_seq": entry.commit_seq,
            "kind": entry.kind,
            "queue": names.get(entry.queue_id or ""),
            "table": tables.get(entry.stream),
            "lane": entry.lane,
            "sequence": entry.sequence,
            "claim_sequence": entry.claim_sequence,
            "count": entry.count,
            "transaction_id": entry.transaction_key,
            "attempt": entry.attempt,
            **author_of(entry),
        }
        for entry in entries
    ]
