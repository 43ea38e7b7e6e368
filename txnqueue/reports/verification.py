"""Prove from a store's own tables that it keeps its promises.

Three independent sources are compared: the entries replayed message by message, the fold that the
library works with, and what Delta's log says about the journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from txnqueue.client.archive import Past, known
from txnqueue.client.client import Client
from txnqueue.client.past_reader import ENTRIES_MAX
from txnqueue.client.side_by_side import both
from txnqueue.core import model
from txnqueue.core.exchanges import ExchangeInfo
from txnqueue.core.markup import table
from txnqueue.core.model import Entry
from txnqueue.core.state import catalog, retention
from txnqueue.core.state.topology import Topology
from txnqueue.errors import StoreCorrupt
from txnqueue.reports.consistency import (
    ChangeChecks,
    CheckedPromise,
    Landings,
    Manifests,
    Moves,
    Named,
    Numbers,
    Payload,
    Places,
    Problems,
)
from txnqueue.reports.departures import Departures
from txnqueue.reports.digest import HistoryDigest, computed
from txnqueue.reports.replay import Replay
from txnqueue.storage.journal import Audit, EntryFilter, Order


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """A proof: one line per claim, and examples of what is wrong.

    Attributes:
        claims: The lines.
        problems: The examples.
        commit_seq: The last commit that was checked.
        log_from_version: The first version of the journal that was compared with Delta's log,
            which no longer covers older ones. Later than the newest version: none was compared.
    """

    claims: tuple[CheckedPromise, ...]
    problems: tuple[str, ...]
    commit_seq: int
    log_from_version: int = 0

    @property
    def ok(self) -> bool:
        """Whether every claim holds."""
        return all(claim.holds for claim in self.claims) and not self.problems

    @property
    def compared(self) -> str:
        """How far back Delta's log was compared, as text."""
        if self.log_from_version > model.version_of(self.commit_seq):
            return "Delta's log could not be compared: it tells nothing of these versions any more"
        return f"Delta's log was compared from version {self.log_from_version} on"

    def _repr_html_(self) -> str:
        """Show the claims in a notebook; nothing is read."""
        rows = [("✓" if c.holds else "✗", c.claim, c.found, c.expected) for c in self.claims] + [
            ("✗", problem, "", "") for problem in self.problems
        ]
        caption = f"Store as of commit {self.commit_seq}; {self.compared}"
        return table(caption, ("holds", "claim", "found", "expected"), rows)

    def __repr__(self) -> str:
        """Show the claims as lines."""
        lines = [
            f"{'✓' if c.holds else '✗'} {c.claim}: {c.found} of {c.expected}" for c in self.claims
        ]
        head = f"Store as of commit {self.commit_seq}; {self.compared}"
        return "\n".join([head, *lines, *self.problems])


def verify(client: Client, digest: HistoryDigest | None = None) -> VerificationResult:
    """Check everything that the journal, Delta's log and the payload tables say.

    Removed history is not checked: what needs all the entries of an append is checked from the
    history's beginning on. Messages are replayed from where each was sent, because all
    entries about a message stay as long as the message is known.

    Up to 20,000 entries are read once; more are read twice, as a stream. Memory holds these, or
    what is still open, and 24 bytes for each commit.

    Raises:
        HistoryRemoved: The digest covers removed history.
    """
    digests, told = _digest(client, digest) if digest is not None else ([], [])
    found = _whole(client)
    return replace(found, claims=(*found.claims, *digests), problems=(*found.problems, *told))


def _whole(client: Client) -> VerificationResult:
    while True:
        past = Past(client.store)
        beginning = past.beginning
        audit, found = both(
            client.store.spark,
            partial(client.store.journal.audit, past.version, beginning),
            partial(_checked, client, past),
        )
        if past.begins_now() == beginning:  # else what was read may have been removed meanwhile
            return found.compared(audit, beginning)


@dataclass(frozen=True)
class _Checked:
    """What the entries and the payload show.

    Attributes:
        claims: The lines.
        problems: The examples.
        landings: The commits.
    """

    claims: tuple[CheckedPromise, ...]
    problems: Sequence[str]
    landings: Landings

    def compared(self, audit: Audit, beginning: int) -> VerificationResult:
        """Add what Delta's log says."""
        logged = self.landings.entries_since(max(beginning, audit.since))
        set_back = (audit.set_back,) if audit.set_back else ()
        return VerificationResult(
            (*self.claims, *_log(audit, logged)),
            (*set_back, *self.problems),
            self.landings.newest,
            audit.since,
        )


def _checked(client: Client, past: Past) -> _Checked:
    problems, beginning = Problems(), past.beginning
    numbers, pins = Numbers(beginning, problems), defaultdict[str, dict[int, list[int]]](dict)
    departures, history = Departures(client.store, beginning, problems), _History(past)
    live, declared = retention.NamedPayload(), list[Entry]()
    needed = Named(beginning, problems)
    for entry, here in history.by_stream():
        numbers.see(entry)
        if here:
            live.see(entry)
            needed.note(entry)
            if entry.shard == model.CATALOG:
                declared.append(entry)
        else:
            departures.see(entry)
        if entry.kind == model.COMPACTED and entry.version >= beginning:
            departures.note_compaction(entry)
            lanes = pins[entry.queue_id or ""]
            lanes.setdefault(entry.lane or 0, []).append(entry.body["pin"])
    manifests, changes = Manifests(beginning, problems), ChangeChecks(past, beginning)
    declared.sort(key=Order.COMMIT.key)
    queues, exchanges = catalog.every_queue(declared), _exchanges(declared, problems)
    moves = Moves(queues, beginning, problems)
    replay = Replay(queues, pins, beginning, problems)
    owners = {
        **{one.payload_id: f"exchange {one.name}" for one in exchanges},
        **{one.payload_id: f"queue {one.name}" for one in queues.values()},
    }
    payload, landings = Payload(client, owners, live.slices, problems), Landings()
    places = Places(problems)
    for entry in history.by_commit():
        for check in (places, landings, needed, manifests, moves, changes, replay, payload):
            check.see(entry)
    needed.end(queues, exchanges)
    claims = (
        *numbers.claims(),
        *manifests.claims(numbers.late),
        *moves.claims(),
        *replay.claims(),
        *changes.claims(),
        *landings.claims(),
        *departures.claims((*changes.waiting.values(), *payload.undecided())),
        *payload.claims(changes.waiting.values()),
    )
    told = (*_left_out(past, history.newest), *problems.told)
    return _Checked(claims, told, landings)


def _exchanges(declared: Sequence[Entry], problems: Problems) -> list[ExchangeInfo]:
    """List all exchanges that there ever were; none if the entry of one is lost."""
    try:
        return list(Topology.of(declared).ever.values())
    except StoreCorrupt as error:
        problems.add(str(error))
        return []


class _History:
    """All entries of a past: few are read once, and more once in each order.

    Attributes:
        newest: The newest commit in the journal, even if it is after the past.
    """

    def __init__(self, past: Past) -> None:
        """Read nothing yet."""
        self._past = past
        self._few: list[Entry] | None = []
        self.newest = -1

    def by_stream(self) -> Iterator[tuple[Entry, bool]]:
        """Read the entries stream by stream, each with whether it is in the journal."""
        for entry, here in self._past.placed(Order.STREAM, EntryFilter()):
            if here:
                self.newest = max(self.newest, entry.commit_seq)
            if entry.commit_seq > self._past.upto:
                continue
            if self._few is not None:
                self._few.append(entry)
                if len(self._few) > ENTRIES_MAX:
                    self._few = None
            yield entry, here

    def by_commit(self) -> Iterator[Entry]:
        """Return the entries in commit order, after they were read stream by stream."""
        if self._few is None:
            return self._past.stream(Order.COMMIT)
        return known(sorted(self._few, key=Order.COMMIT.key), self._past.beginning)


def _left_out(past: Past, newest: int) -> Iterator[str]:
    """Tell of entries that queries of the history leave out.

    Args:
        past: The history.
        newest: The newest commit that was read in the journal.
    """
    if (ahead := past.archived_ahead()) is not None:
        yield (
            f"the archive has commit {ahead}, and the journal ends at version {past.version}: the "
            "store was maintained while it was copied, or its tables are of different moments"
        )
    if past.is_ahead(newest):
        yield f"the journal has commit {newest}, and ends at version {past.version}"
    if past.is_archive_foreign():
        yield "the archive has entries, and the journal says that nothing was archived"


def _digest(client: Client, kept: HistoryDigest) -> tuple[list[CheckedPromise], list[str]]:
    """Compare the entries with a digest of them that was kept outside the store.

    A store that ends before the digest has lost commits, or is an older copy of itself.
    """
    past = Past(client.store, kept.commit_seq)
    past.check_known(kept.after + 1)
    found = computed(past, kept.after, kept.commit_seq, kept.seed)
    same = found.sha256 == kept.sha256
    since = "" if kept.after < 0 else f" after {kept.after}"
    claims = [
        CheckedPromise(f"entries{since} that the digest covers", found.entries, kept.entries),
        CheckedPromise("digests that match", int(same), 1),
    ]
    newest = client.store.journal.version()
    if model.version_of(kept.commit_seq) > newest:
        text = f"the store ends at version {newest}, before the digest's commit {kept.commit_seq}"
        return claims, [text]
    text = f"commits after {kept.after} up to {kept.commit_seq} are not those of the digest"
    return claims, [] if same else [text]


def _log(audit: Audit, logged: int) -> list[CheckedPromise]:
    """Check that Delta's log shows what the tables show: entries come once, then are archived.

    The archive may have lost what is older than the history's beginning. Entries that the log
    does not show as inserted are older than the log.
    """
    return [
        CheckedPromise("entries that Delta's log shows as changed", audit.updated, 0),
        CheckedPromise("entries deleted that the archive holds", audit.known, audit.deleted),
        CheckedPromise("entries deleted that came back", audit.returned, 0),
        CheckedPromise("entries that Delta's log shows as inserted", audit.inserted, logged),
    ]
