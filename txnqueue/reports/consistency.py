"""Checks of the rules for a store's entries, entry by entry, in bounded memory.

Numbers and decisions are checked stream by stream, everything else in commit order. Only open items
are remembered (attempts, waiting changes, payload to be counted), and the append of each commit.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from txnqueue.client.archive import NAMES_MAX, Past
from txnqueue.client.client import Client
from txnqueue.core import model, ranges
from txnqueue.core.exchanges import ExchangeInfo
from txnqueue.core.model import Entry, PositionId, Range
from txnqueue.core.planning.decisions import entry_from_json
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import compaction, erasures, retention
from txnqueue.storage.journal import EntryFilter, Order
from txnqueue.storage.payload import StagedPlace
from txnqueue.storage.tables import Change

PROBLEMS_MAX = 20
EVERYTHING: tuple[Range, ...] = ((0, (1 << 62) - 1),)
"""All offsets of a send."""
SPANS_MAX = 20_000
"""The ranges of payload that are remembered before the rows there are counted."""


@dataclass(frozen=True, slots=True)
class CheckedPromise:
    """One line of the proof: what is claimed, what was found, what must be."""

    claim: str
    found: int
    expected: int

    @property
    def holds(self) -> bool:
        """Whether it holds."""
        return self.found == self.expected


_Place = tuple[int, Sequence[str], tuple[Range, ...], int]
"""Where rows must be: the slice, the sends, the offsets of each, and how many in all."""


class Problems:
    """Examples of what is wrong."""

    def __init__(self) -> None:
        """Begin with none."""
        self.told: list[str] = []

    @property
    def enough(self) -> bool:
        """Whether the maximum is reached, so no more need to be looked for."""
        return len(self.told) >= PROBLEMS_MAX

    def add(self, problem: str) -> None:
        """Remember a problem, unless there are enough."""
        if not self.enough:
            self.told.append(problem)


class Places:
    """Each commit is of one append, and each of its entries is there once.

    Entries have to come in commit order.
    """

    def __init__(self, problems: Problems) -> None:
        """Begin before the first entry."""
        self._problems = problems
        self._before: Entry | None = None

    def see(self, entry: Entry) -> None:
        """Record the next entry."""
        before, self._before = self._before, entry
        if entry.version < 0 or not 0 <= entry.ordinal < model.commit_seq(1):
            self._problems.add(f"no commit has the number of {named(entry)}")
        elif before is None or entry.commit_seq != before.commit_seq:
            self._see_gap(entry, 0)
        elif entry.append_id != before.append_id:
            seq = entry.commit_seq
            self._problems.add(f"two appends are at commit_seq {seq}: what came after what is lost")
        elif entry.index == before.index:
            self._problems.add(f"{named(entry)} is there twice")
        else:
            self._see_gap(entry, before.index + 1)

    def _see_gap(self, entry: Entry, expected: int) -> None:
        """Find the entries that are missing before the creation of a queue, in its append.

        They create the queue whose dead letters it takes, which nothing else may name, or the
        store. None of them ever leaves the journal.
        """
        if entry.kind == model.QUEUE_CREATED and entry.index > expected:
            self._problems.add(f"what its append had before {named(entry)} is lost")


class Named:
    """The positions and the queues that entries name are there, whatever their age.

    No client can read a lane without the positions that its log names, and of a log from before
    the history's beginning nothing else tells that one is missing: there it may have been removed.
    """

    def __init__(self, beginning: int, problems: Problems) -> None:
        """Begin before the first entry.

        Args:
            beginning: What came from this version on is replayed.
            problems: Takes what is wrong.
        """
        self._beginning = beginning
        self._problems = problems
        self._positions: dict[tuple[str, int], set[PositionId]] = defaultdict(set)
        self._queues: dict[str, None] = {}
        self._dropped: set[str] = set()

    def note(self, entry: Entry) -> None:
        """Note which positions an entry in the journal needs; those of a lane come in its order."""
        queue_id, lane = entry.queue_id or "", entry.lane or 0
        if entry.kind == model.QUEUE_DROPPED:  # its messages are gone, and its entries leave
            self._dropped.add(queue_id)
        elif entry.kind == model.COMPACTED:  # it stands for what came before it
            self._positions[queue_id, lane] = set(compaction.names(entry))
        elif entry.version < self._beginning and (entry.kind == model.CLAIMED or entry.is_removal):
            self._positions[queue_id, lane].update(name for name, _ in model.unpack_items(entry))

    def see(self, entry: Entry) -> None:
        """Record the next entry, wherever it is; what is only in the archive is a departure."""
        if entry.lane is not None:
            self._queues[entry.queue_id or ""] = None
        if entry.kind == model.POSTED:
            lane = (entry.queue_id or "", entry.lane or 0)
            self._positions.get(lane, set()).discard(entry.entry_id)

    def end(self, queues: Mapping[str, QueueInfo], exchanges: Iterable[ExchangeInfo]) -> None:
        """Tell what is missing.

        Args:
            queues: All queues that there ever were, by id: they stay in the catalog.
            exchanges: All exchanges that there ever were.
        """
        for (queue_id, lane), missing in self._positions.items():
            if missing and queue_id not in self._dropped:
                self._problems.add(
                    f"lane {lane} of {queue_id} cannot be read: it names the position "
                    f"{min(missing)}, whose entry is lost"
                )
        wanted: list[str | None] = [*self._queues]
        wanted += [one.dead_letter_id for one in queues.values()]
        wanted += [one.dead_letter_id for one in exchanges]
        for lost in dict.fromkeys(filter(None, wanted)):
            if lost not in queues:
                self._problems.add(f"the entry that created the queue {lost} is lost")


def named(entry: Entry) -> str:
    """Name an entry in a problem."""
    return f"the entry {entry.entry_id} ({entry.kind})"


class Landings:
    """Each append landed once: no two commits are of one.

    Of a commit 24 bytes are remembered, however long the history is.

    Attributes:
        newest: The last commit's commit_seq; -1 before the first.
    """

    def __init__(self) -> None:
        """Begin before the first commit."""
        self.newest = -1
        self._versions, self._entries, self._appends = array("q"), array("Q"), array("Q")

    def see(self, entry: Entry) -> None:
        """Record the next entry."""
        if entry.commit_seq != self.newest:
            self.newest = entry.commit_seq
            self._versions.append(entry.version)
            self._entries.append(0)
            digest = blake2b(entry.append_id.encode(), digest_size=8).digest()
            self._appends.append(int.from_bytes(digest, "big"))
        self._entries[-1] += 1

    def entries_since(self, version: int) -> int:
        """Count the entries from a version on."""
        return sum(self._entries[bisect_left(self._versions, version) :])

    def claims(self) -> list[CheckedPromise]:
        """Tell how many appends the commits are of."""
        import pyarrow as pa
        from pyarrow import compute

        commits = len(self._appends)
        digests = pa.Array.from_buffers(pa.uint64(), commits, [None, pa.py_buffer(self._appends)])
        appends = compute.count_distinct(digests).as_py()
        return [CheckedPromise("appends that landed once", appends, commits)]


class Numbers:
    """Each attempt is decided once, each key committed once, each sequence number given once.

    No number is left out either: each entry was appended under the one after the newest. Entries
    have to come stream by stream. An attempt belongs to one key, which is a stream.
    """

    def __init__(self, beginning: int, problems: Problems) -> None:
        """Begin before the first stream.

        Args:
            beginning: Of commits before this version not all is known.
            problems: Takes what is wrong.
        """
        self._beginning = beginning
        self._problems = problems
        self._before: Entry | None = None
        self._stream: tuple[str, str] | None = None
        self._attempts: Counter[str | None] = Counter()
        self._committed: dict[str | None, tuple[int, int, int]] = {}
        self._late: set[str | None] = set()
        self._commits = 0
        self._sequence: tuple[int, int] | None = None
        self._counts: Counter[tuple[str, bool]] = Counter()
        self.late = 0

    def see(self, entry: Entry) -> None:
        """Record the next entry."""
        if (entry.shard, entry.stream) != self._stream:
            self._end_stream()
            self._stream = (entry.shard, entry.stream)
        if entry.kind in model.DECISIONS:
            self._attempts[entry.attempt] += 1
        if entry.kind == model.COMMITTED:
            self._commits += 1
            self._committed[entry.attempt] = entry.place
        if (
            entry.kind == model.PART
            and self._committed.get(entry.attempt, entry.place) < entry.place
        ):
            self._late.add(entry.attempt)
        if entry.sequence is not None:
            self._see_gap(entry, entry.sequence)
            number, times = self._sequence or (-1, 0)
            if number != entry.sequence:
                self._end_sequence()
                times = 0
            self._sequence = (entry.sequence, times + 1)

    def _see_gap(self, entry: Entry, number: int) -> None:
        """Find the numbers that are missing before an entry, if its history is known."""
        before, self._before = self._before, entry
        known = self._beginning <= 0 or _stays(entry)
        if before is None:
            expected = 1
            # The number of a layout is that of the layout, and a new store begins with the second.
            known = known and entry.kind != model.LAYOUT_CHANGED
        else:
            expected = (before.sequence or 0) + 1
            known = known or min(before.version, entry.version) >= self._beginning
        if known and number > expected:
            self._problems.add(
                f"{number - expected} numbers of the stream {entry.stream} of {entry.shard} are "
                f"missing before {number}: what had them is lost"
            )

    def claims(self) -> list[CheckedPromise]:
        """Tell what was found of all entries."""
        self._end_stream()
        names = {
            "attempt": "attempts decided once",
            "transaction": "transactions committed once",
            "": "sequence numbers given once",
        }
        counts = self._counts
        return [
            CheckedPromise(text, counts[what, True], counts[what, True] + counts[what, False])
            for what, text in names.items()
        ]

    def _end_stream(self) -> None:
        self._end_sequence()
        for attempt, times in self._attempts.items():
            self._count("attempt", attempt, times)
        if self._stream is not None and self._commits:
            self._count("transaction", self._stream[1], self._commits)
        self.late += len(self._late)
        self._before = None
        self._attempts, self._commits = Counter(), 0
        self._committed, self._late = {}, set()

    def _end_sequence(self) -> None:
        if self._sequence is not None and self._stream is not None:
            self._count("", (*self._stream, self._sequence[0]), self._sequence[1])
        self._sequence = None

    def _count(self, what: str, name: object, times: int) -> None:
        self._counts[what, times == 1] += 1
        if times > 1:
            self._problems.add(f"decided or given twice: {what} {name}")


def _stays(entry: Entry) -> bool:
    """Return whether an entry, and all of its stream, never leaves the journal."""
    return entry.shard in (model.CATALOG, model.FENCE) and entry.kind not in model.MARKS


class Manifests:
    """What a commit says that it posted and settled stands beside it, and nowhere else.

    That of a prepared transaction says what was prepared. That of a branch names the newest part
    of each session.
    """

    def __init__(self, beginning: int, problems: Problems) -> None:
        """Begin before the first commit.

        Args:
            beginning: Of commits before this version not all is known.
            problems: Takes what is wrong.
        """
        self._beginning = beginning
        self._problems = problems
        self._append_id = ""
        self._beside: dict[str, Counter[str]] = defaultdict(Counter)
        self._committed: list[Entry] = []
        self._rolled_back: set[str | None] = set()
        self._prepared: dict[str | None, Counter[str]] = {}
        self._version = -1
        self._parts: dict[str | None, dict[str, int | None]] = defaultdict(dict)
        self._right = self._expected = 0

    def see(self, entry: Entry) -> None:
        """Record the next entry: what one append wrote comes together."""
        if entry.append_id != self._append_id:
            self._end_append()
            self._append_id, self._version = entry.append_id, entry.version
        if entry.kind == model.PART:
            self._parts[entry.attempt][entry.body["session"]] = entry.sequence
        elif entry.kind == model.PREPARED:
            self._prepared[entry.attempt] = _counts_of(entry)
        if entry.kind == model.COMMITTED:
            self._committed.append(entry)
        elif entry.kind == model.ROLLED_BACK:
            self._parts.pop(entry.attempt, None)
            self._prepared.pop(entry.attempt, None)
            self._rolled_back.add(entry.attempt)
        which = "posted" if entry.kind == model.POSTED else "settled"
        if (
            (entry.kind == model.POSTED or entry.is_settlement)
            and entry.attempt is not None
            and entry.sequence is None
        ):
            count = entry.count or 0
            self._beside[entry.attempt][f"{which} {entry.queue_id}"] += count

    def claims(self, late: int) -> list[CheckedPromise]:
        """Tell what was found of all commits.

        Args:
            late: In how many branches a session worked after the commit.
        """
        self._end_append()
        return [CheckedPromise("manifests whose counts hold", self._right - late, self._expected)]

    def _end_append(self) -> None:
        for entry in self._committed:
            beside = self._beside.pop(entry.attempt or "", Counter())
            parts = self._parts.pop(entry.attempt, {})
            said = _counts_of(entry)
            prepared = self._prepared.pop(entry.attempt, said)
            if entry.version < self._beginning:
                continue
            self._expected += 1
            whole = "manifest" in entry.body and entry.body.get("parts", {}) == parts
            if whole and said == beside == prepared:
                self._right += 1
            else:
                text = f"the manifest of {entry.stream} is not what was written beside it"
                self._problems.add(text)
        self._end_undecided()
        self._beside.clear()
        self._committed.clear()
        self._rolled_back.clear()

    def _end_undecided(self) -> None:
        """Count a manifest that is missing: something was done, and no decision stands beside it.

        What is rolled back gives messages back, and posts none.
        """
        for attempt, done in self._beside.items():
            gives_back = not any(what.startswith("posted ") for what in done)
            if self._version >= self._beginning and not (
                attempt in self._rolled_back and gives_back
            ):
                self._expected += 1
                self._problems.add(f"no decision of {attempt} stands beside what it did")


def _counts_of(entry: Entry) -> Counter[str]:
    """Read how many messages the manifest of an entry says were posted and settled, by queue."""
    manifest = entry.body.get("manifest", {})
    return Counter(
        {
            f"{which} {queue_id}": count
            for which in ("posted", "settled")
            for queue_id, count in manifest.get(which, {}).items()
        }
    )


class Moves:
    """What left a queue for another one came there by the same append, and nothing else did."""

    def __init__(self, infos: Mapping[str, QueueInfo], beginning: int, problems: Problems) -> None:
        """Begin before the first append.

        Args:
            infos: All queues that there ever were, by id.
            beginning: Of appends before this version not all is known.
            problems: Takes what is wrong.
        """
        self._infos = infos
        self._beginning = beginning
        self._problems = problems
        self._append_id = ""
        self._gone: Counter[tuple[str, str]] = Counter()
        self._came: Counter[tuple[str, str]] = Counter()
        self._right = self._expected = 0

    def see(self, entry: Entry) -> None:
        """Record the next entry: what one append wrote comes together."""
        if entry.append_id != self._append_id:
            self._end_append()
            self._append_id = entry.append_id
        if entry.version < self._beginning:
            return
        here, count = entry.queue_id or "", entry.count or 0
        if entry.kind == model.POSTED:
            source = self._source(entry)
            if source is not None:
                self._came[source, here] += count
        elif (target := self._target(entry)) is not None:
            self._gone[here, target] += count

    def claims(self) -> list[CheckedPromise]:
        """Tell what was found of all moves."""
        self._end_append()
        what = "messages that left a queue for another one, and came there"
        return [CheckedPromise(what, self._right, self._expected)]

    def _source(self, entry: Entry) -> str | None:
        """Find the queue that posted messages left; None: a transaction sent them."""
        origin = entry.body.get("origin")
        if origin is not None and model.was_moved(origin):
            return str(origin["queue_id"])
        return None if entry.attempt is not None else ""

    def _target(self, entry: Entry) -> str | None:
        """Find the queue that messages left for; None: they stay, or are gone."""
        if entry.kind == model.REJECTED:
            info = self._infos.get(entry.queue_id or "")
            return info.dead_letter_id if info is not None else None
        return entry.body.get("target") if entry.kind in model.REMOVALS else None

    def _end_append(self) -> None:
        for names in self._gone.keys() | self._came.keys():
            gone, came = self._gone[names], self._came[names]
            self._right += min(gone, came)
            self._expected += max(gone, came)
            if gone != came:
                here, there = (self._name(queue_id) for queue_id in names)
                self._problems.add(
                    f"{came} messages came from {here} to {there}, and {gone} left for it: "
                    f"append {self._append_id}"
                )
        self._gone.clear()
        self._came.clear()

    def _name(self, queue_id: str) -> str:
        info = self._infos.get(queue_id)
        return f"queue {info.name}" if info is not None else queue_id or "nowhere"


class ChangeChecks:
    """Every table change belongs to a committed transaction; what waits is counted."""

    def __init__(self, past: Past, beginning: int) -> None:
        """Begin before the first change.

        Args:
            past: Finds single entries that came long before.
            beginning: Of changes that were decided before this version not all is known.
        """
        self._past = past
        self._beginning = beginning
        self.waiting: dict[PositionId, Entry] = {}
        self._uncommitted: Counter[str] = Counter()
        self._append: tuple[str, set[str | None]] = ("", set())
        self._unasked: set[PositionId] = set()
        self._decided = self._ended = 0

    def see(self, entry: Entry) -> None:
        """Record the next entry."""
        if entry.kind == model.COMMITTED:
            self._uncommitted.pop(entry.attempt or "", None)
            if self._append[0] != entry.append_id:
                self._append = (entry.append_id, set())
            self._append[1].add(entry.attempt)
        elif entry.kind == model.CHANGE_DECIDED:
            self.waiting[entry.entry_id] = entry
            if entry.version >= self._beginning:
                self._decided += 1
                append_id, attempts = self._append
                if append_id != entry.append_id or entry.attempt not in attempts:
                    self._uncommitted[entry.attempt or ""] += 1
        elif (name := entry.ended_change) is not None:
            ended = self.waiting.pop(name, None)
            if ended is not None:
                self._ended += ended.version >= self._beginning
            elif entry.version >= self._beginning and (entry.begun or 0) >= self._beginning:
                self._unasked.add(name)  # told twice, or of nothing
                if len(self._unasked) >= NAMES_MAX:
                    self._ask()

    def claims(self) -> list[CheckedPromise]:
        """Tell what was found of all changes."""
        self._ask()
        left = sum(e.version >= self._beginning for e in self.waiting.values())
        told = "table changes applied or waived, or known to wait"
        return [
            CheckedPromise("table changes of committed transactions", self._right(), self._decided),
            CheckedPromise(told, self._ended + left, self._decided),
        ]

    def _right(self) -> int:
        """Count the changes whose transaction was committed, if need be before them."""
        wrong, names = 0, sorted(self._uncommitted)
        for start in range(0, len(names), NAMES_MAX):
            portion = names[start : start + NAMES_MAX]
            meant = EntryFilter(kinds=[model.COMMITTED], attempts=portion)
            committed = {entry.attempt for entry in self._past.find(meant)}
            wrong += sum(self._uncommitted[one] for one in portion if one not in committed)
        return self._decided - wrong

    def _ask(self) -> None:
        """Count as ended what was never decided, so that the sums differ."""
        if self._unasked:
            append_ids = {append_id for append_id, _ in self._unasked}
            meant = EntryFilter(kinds=[model.CHANGE_DECIDED], append_ids=append_ids)
            known = {e.entry_id for e in self._past.find(meant)}
            self._ended += len(self._unasked - known)
            self._unasked.clear()


class Payload:
    """Every message has its payload, unless it was erased: one row, and no more.

    That is, every message of every queue, and what prepared transactions are going to send.

    A dead letter may be known longer than the sent message, so a moved one is counted in each queue
    that it came to.

    Slices that nothing in the journal names any more may have been removed, so they are left out,
    including those for which this became true during the check.
    """

    def __init__(
        self,
        client: Client,
        owners: Mapping[str, str],
        live: retention.Slices,
        problems: Problems,
    ) -> None:
        """Begin before the first entry.

        Args:
            client: Whose store it is.
            owners: What the owners of payload are called, by their ids.
            live: The slices that entries in the journal name.
            problems: Where missing rows are told.
        """
        self._client = client
        self._owners = owners
        self._problems = problems
        self._live = live
        self._erasures = self._erased()
        self._wanted: dict[str, list[_Place]] = defaultdict(list)
        self._prepared: dict[str | None, Entry] = {}
        self._spans = self._found = self._expected = 0

    def see(self, entry: Entry) -> None:
        """Record the next entry."""
        if entry.kind == model.POSTED:
            body = entry.body
            count = ranges.count(entry.ranges)
            self._want(body["payload"], body["slice"], (body["send"],), entry.ranges, count)
        elif entry.kind == model.PREPARED:
            self._prepared[entry.attempt] = entry
        elif entry.kind in model.DECISIONS:
            self._prepared.pop(entry.attempt, None)

    def undecided(self) -> Iterable[Entry]:
        """Return the entries of the transactions that are prepared."""
        return self._prepared.values()

    def claims(self, waiting: Iterable[Entry]) -> list[CheckedPromise]:
        """Tell what was found of all messages.

        Args:
            waiting: The changes of tables that wait; what was applied needs its rows no more.
        """
        sealed = [
            entry_from_json(data)
            for prepared in self._prepared.values()
            for data in prepared.body["manifest"]["entries"]
        ]
        for entry in sealed:
            self.see(entry)
        for entry in (*waiting, *(one for one in sealed if one.kind == model.CHANGE_DECIDED)):
            source = Change.from_json(entry.body["change"]).source
            if source is not None:
                place = (source.payload_id, source.slice, source.send_ids)
                self._want(*place, EVERYTHING, source.count)
        for owner in list(self._wanted):
            self._count(owner)
        what = "messages and waiting changes whose payload is there, once"
        return [CheckedPromise(what, self._found, self._expected), *self._gone()]

    def _gone(self) -> list[CheckedPromise]:
        """Tell whether what was recorded as deleted is gone, if anything was ever erased."""
        done = erasures.rows_of(one for one in self._erasures if one.done is not None)
        if not done:
            return []
        left = count = 0
        for owner, places in done.items():
            listed = [(*place, part) for place, part in places.items()]
            back = self._client.store.payload.rows(owner, listed)
            if back:
                name = self._owners.get(owner, owner)
                self._problems.add(f"{name}: {back} erased rows are there again: erase them again")
            left += back
            count += sum(ranges.count(part) for part in places.values())
        return [CheckedPromise("erased messages whose payload is gone", count - left, count)]

    def _want(
        self, owner: str, number: int, send_ids: Sequence[str], part: tuple[Range, ...], count: int
    ) -> None:
        if number not in self._live.get(owner, ()):
            return
        self._wanted[owner].append((number, send_ids, part, count))
        self._spans += len(part) * len(send_ids)
        if self._spans >= SPANS_MAX:
            self._count(max(self._wanted, key=lambda one: len(self._wanted[one])))

    def _count(self, owner: str) -> None:
        """Count an owner's rows; if some are missing, leave out slices removed meanwhile."""
        wanted = self._wanted.pop(owner)
        self._spans -= sum(len(part) * len(sends) for _, sends, part, _ in wanted)
        while True:
            live = self._live.get(owner, set())
            erased = erasures.rows_of(self._erasures).get(owner, {})
            wanted = [one for one in wanted if one[0] in live]
            found = self._client.store.payload.rows(owner, _places(wanted, erased))
            expected = sum(count for *_, count in wanted) - _erased_of(wanted, erased)
            known = len(self._erasures)
            if found != expected:
                now = self._named()
                self._live = {one: left & now.get(one, set()) for one, left in self._live.items()}
                self._erasures = self._erased()
            same = self._live.get(owner, set()) == live and len(self._erasures) == known
            if found == expected or same:
                self._found += found
                self._expected += expected
                if found != expected:
                    self._tell(owner, wanted, erased)
                return

    def _tell(self, owner: str, wanted: Sequence[_Place], erased: erasures.Places) -> None:
        """Say in which slices rows are missing, or too many, and which message is the first."""
        name = self._owners.get(owner, owner)
        for number in sorted({one[0] for one in wanted}):
            if self._problems.enough:
                return
            here = [one for one in wanted if one[0] == number]
            found = self._client.store.payload.rows(owner, _places(here, erased))
            expected = sum(count for *_, count in here) - _erased_of(here, erased)
            if found != expected:
                told = f"{name}: {found} rows of payload are there in slice {number}, of {expected}"
                told += self._first(owner, [one for one in here if one[2] != EVERYTHING], erased)
                self._problems.add(told)

    def _first(self, owner: str, wanted: Sequence[_Place], erased: erasures.Places) -> str:
        """Name the first message without exactly one row, by bisection."""
        places = [place for place in _places(wanted, erased) if place[2]]
        if not places or self._is_there(owner, places):
            return ""  # rows of waiting changes are missing, which have no messages
        while (count := _count_of(places)) > 1:
            head, tail = _halved(places, count // 2)
            places = tail if self._is_there(owner, head) else head
        ((_, send_id, part),) = places
        return f"; the first that is not there once is {send_id}:{part[0][0]}"

    def _is_there(self, owner: str, places: Sequence[StagedPlace]) -> bool:
        return self._client.store.payload.rows(owner, places) == _count_of(places)

    def _named(self) -> retention.Slices:
        kinds = [model.POSTED, model.CHANGE_DECIDED, model.PREPARED, *model.DECISIONS]
        journal = self._client.store.journal
        return retention.named_slices(journal.stream(Order.COMMIT, EntryFilter(kinds=kinds)))

    def _erased(self) -> list[erasures.Erasure]:
        return erasures.erasures(self._client.cache.catalog_entries())


def _places(wanted: Iterable[_Place], erased: erasures.Places) -> list[StagedPlace]:
    """List where rows must be, without those that were erased."""
    return [
        (number, send_id, ranges.difference(part, erased.get((number, send_id), ())))
        for number, send_ids, part, _ in wanted
        for send_id in send_ids
    ]


def _count_of(places: Iterable[StagedPlace]) -> int:
    return sum(ranges.count(part) for *_, part in places)


def _halved(
    places: Iterable[StagedPlace], count: int
) -> tuple[list[StagedPlace], list[StagedPlace]]:
    """Divide places into those of the first rows, up to a number, and the others."""
    head: list[StagedPlace] = []
    tail: list[StagedPlace] = []
    for number, send_id, part in places:
        first = ranges.take(part, count)
        count -= ranges.count(first)
        for half, taken in ((head, first), (tail, ranges.difference(part, first))):
            if taken:
                half.append((number, send_id, taken))
    return head, tail


def _erased_of(wanted: Iterable[_Place], erased: erasures.Places) -> int:
    """Count what was erased of the rows that are wanted."""
    return sum(
        ranges.count(ranges.intersection(part, erased.get((number, send_id), ())))
        for number, send_ids, part, _ in wanted
        for send_id in send_ids
    )
