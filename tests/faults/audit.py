"""An independent checker of the promises, written message by message and without the ledger.

It reads nothing but the journal's entries and what the sends carry, and replays every
version. What it finds wrong it says with the promise's number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from txnqueue.core import model
from txnqueue.core.model import Entry

Message = tuple[str, int]  # send id, offset
Standing = tuple[tuple[str, int], int]  # position id, offset


@dataclass
class Ledger:
    """What the checker believes after some versions."""

    posted: dict[Standing, Entry] = field(default_factory=dict)
    held: dict[Standing, tuple[str, int, int]] = field(default_factory=dict)
    claims: dict[tuple[str, int, int], Entry] = field(default_factory=dict)
    bound: dict[tuple[str, int, int], str | None] = field(default_factory=dict)
    ended: set[tuple[str, int, int]] = field(default_factory=set)
    purging: set[Standing] = field(default_factory=set)
    retired: dict[Standing, Entry] = field(default_factory=dict)
    decided: dict[str, Entry] = field(default_factory=dict)
    prepared: dict[str, Entry] = field(default_factory=dict)
    committed: dict[str, str] = field(default_factory=dict)
    explicit: set[str] = field(default_factory=set)
    closed: dict[str, str] = field(default_factory=dict)
    closed_exchanges: dict[str, str] = field(default_factory=dict)
    horizon: int = -1
    problems: list[str] = field(default_factory=list)


def audit(entries: Iterable[Entry], explicit: Iterable[str] = ()) -> Ledger:
    """Replay a journal and collect every breach.

    Args:
        entries: All entries of all shards.
        explicit: Keys of prepared transactions that somebody did roll back explicitly.
    """
    ledger = Ledger(explicit=set(explicit))
    commits: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        commits[entry.version, entry.ordinal].append(entry)
    sequences: set[tuple[str, str, int]] = set()
    landed = Counter(entry.entry_id for commit in commits.values() for entry in commit)
    twice = sorted(name for name, times in landed.items() if times > 1)
    ledger.problems += [f"P1 the entry {name} landed twice" for name in twice]
    for place in sorted(commits):
        commit = sorted(commits[place], key=lambda e: e.index)
        ids = {e.append_id for e in commit}
        if len(ids) != 1:
            ledger.problems.append(f"P1 {place} holds entries of several appends {ids}")
        decisions = {e.attempt: e for e in commit if e.kind in model.DECISIONS}
        for entry in commit:
            if entry.sequence is not None:
                name = (entry.shard, entry.stream, entry.sequence)
                if name in sequences:
                    ledger.problems.append(f"P6 sequence {name} was given twice")
                sequences.add(name)
            _apply(ledger, entry, decisions)
    ledger.problems += branch_problems(e for p in sorted(commits) for e in commits[p])
    return ledger


def branch_problems(entries: Iterable[Entry]) -> list[str]:
    """Replay what several sessions did in one branch, and find what is wrong with it.

    A commit has all that the sessions' last parts say, and no session was at work when it was
    prepared or committed.
    """
    problems: list[str] = []
    started: dict[str, str | None] = {}
    working: dict[str | None, set[str]] = defaultdict(set)
    parts: dict[str | None, dict[str, Counter[str]]] = defaultdict(dict)
    wrote: dict[str | None, Counter[str]] = defaultdict(Counter)
    ended: dict[str | None, str] = {}
    operators: Counter[str | None] = Counter()
    for entry in entries:
        attempt, session = entry.attempt, entry.body.get("session", "")
        if entry.kind == model.STARTED:
            if entry.stream in started:
                problems.append(f"P1 {entry.stream} was started twice")
            started[entry.stream] = attempt
        elif entry.kind == model.ASSOCIATED:
            if attempt in ended:
                problems.append(f"P5 a session began in {attempt}, which is {ended[attempt]}")
            working[attempt].discard(entry.body.get("resumes", ""))
            working[attempt].add(session)
        elif entry.kind == model.ENDED:
            working[attempt].discard(session)
        elif entry.kind == model.PART:
            if attempt in ended:
                problems.append(f"P1 a part of {attempt}, which is {ended[attempt]}")
            parts[attempt][session] = _work(entry.body["entries"])
        elif entry.kind in (model.PREPARED, model.COMMITTED) and attempt in started.values():
            if working[attempt]:
                problems.append(f"P1 {attempt} was {entry.kind} while a session worked in it")
            ended[attempt] = entry.kind
        elif entry.kind == model.ROLLED_BACK:
            ended[attempt] = entry.kind
        elif entry.kind == model.HEURISTIC:
            operators[attempt] += 1
        elif entry.kind in (model.POSTED, *model.SETTLEMENTS) and entry.sequence is None:
            wrote[attempt][f"{entry.kind} {entry.queue_id}"] += entry.count or 0
    for attempt, by_session in parts.items():
        said: Counter[str] = sum(by_session.values(), Counter())
        if ended.get(attempt) == model.COMMITTED and said != +wrote[attempt]:
            problems.append(f"P1 {attempt} committed {dict(wrote[attempt])}, not {dict(said)}")
    problems += [f"P4 operators decided {a} twice" for a, times in operators.items() if times > 1]
    return problems


def _work(entries: Iterable[dict[str, object]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for entry in entries:
        count = entry["count"]
        assert isinstance(count, int)
        found[f"{entry['kind']} {entry['queue_id']}"] += count
    return found


def check(entries: Iterable[Entry], explicit: Iterable[str] = ()) -> Ledger:
    """Replay a journal and fail on the first breach."""
    ledger = audit(entries, explicit)
    assert not ledger.problems, "; ".join(ledger.problems)
    return ledger


def _apply(ledger: Ledger, entry: Entry, decisions: dict[str | None, Entry]) -> None:
    say = ledger.problems.append
    kind = entry.kind
    if entry.body.get("items") and kind not in model.NAMING:
        say(f"P8 {entry.entry_id} names positions, and a trace passes over what is {kind}")
    if entry.shard == model.FENCE:
        _fenced(ledger, entry)
    elif model.published_to(kind, entry.body) in ledger.closed_exchanges:
        exchange_id = str(model.published_to(kind, entry.body))
        if ledger.closed_exchanges[exchange_id] == model.EXCHANGE_DROPPED or (
            entry.attempt not in ledger.prepared
        ):
            say(f"P6 {entry.attempt} published to {exchange_id}, which is closed")
    elif entry.queue_id in ledger.closed and not _may_still(ledger, entry):
        say(f"P6 {kind} in {entry.queue_id} after {ledger.closed[entry.queue_id]}")
    decides = kind in (*model.DECISIONS, model.PREPARED) and entry.attempt not in ledger.prepared
    if decides and (entry.begun or 0) < ledger.horizon:
        say(f"P3 {entry.attempt} was decided below the horizon")
    if kind in model.DECISIONS:
        _decided(ledger, entry)
    elif kind == model.HORIZON_ADVANCED:
        ledger.horizon = max(ledger.horizon, entry.begun or 0)
    elif kind == model.PREPARED:
        if entry.attempt in ledger.decided:
            say(f"P4 {entry.attempt} prepared after it was decided")
        for one in entry.body["manifest"]["entries"]:
            if model.published_to(one["kind"], one["body"]) in ledger.closed_exchanges:
                say(f"P6 {entry.attempt} was prepared, and publishes to what is closed")
        ledger.prepared[entry.attempt or ""] = entry
    elif kind == model.POSTED:
        if entry.attempt is not None and (
            entry.attempt not in decisions or decisions[entry.attempt].kind != model.COMMITTED
        ):
            say(f"P1 {entry.entry_id} was posted without its transaction's commit")
        for offset in _offsets(entry):
            ledger.posted[entry.entry_id, offset] = entry
    elif kind == model.CLAIMED:
        _claimed(ledger, entry)
    elif kind == model.BOUND:
        name = (entry.queue_id or "", entry.claim_lane or 0, entry.claim_sequence or 0)
        ledger.bound[name] = entry.attempt
    elif kind == model.PURGE_PENDING:
        for standing in _standings(entry):
            if standing in ledger.held:
                ledger.purging.add(standing)
            elif standing not in ledger.retired:
                _retire(ledger, standing, entry)
    elif entry.is_removal:
        _supersede(ledger, entry)
        for standing in _standings(entry):
            if standing in ledger.held:
                say(f"P2 {standing} was {kind} while it was in flight")
            _retire(ledger, standing, entry)
    elif entry.is_settlement:
        _settled(ledger, entry, decisions)


def _fenced(ledger: Ledger, entry: Entry) -> None:
    """Follow a drop: nothing prepared names the queue, and what stands in it goes with it."""
    queue_id = entry.queue_id or ""
    if entry.kind in (model.QUEUE_CLOSING, model.QUEUE_DROPPED):
        before = ledger.closed.get(queue_id)
        if (before, entry.kind) not in _STEPS:
            ledger.problems.append(f"{queue_id} was {entry.kind} after {before}")
        ledger.closed[queue_id] = entry.kind
    elif entry.kind in (model.EXCHANGE_CLOSING, model.EXCHANGE_DROPPED):
        _exchange_fenced(ledger, entry)
    if entry.kind != model.QUEUE_DROPPED:
        return
    for attempt, prepared in ledger.prepared.items():
        named = {one["queue_id"] for one in prepared.body["manifest"]["entries"]}
        if attempt not in ledger.decided and queue_id in named:
            ledger.problems.append(f"P5 {queue_id} was dropped, and {attempt} is prepared there")
    gone = 0
    for standing, posted in ledger.posted.items():
        if posted.queue_id == queue_id and standing not in ledger.retired:
            ledger.held.pop(standing, None)
            _retire(ledger, standing, entry)
            gone += 1
    if gone != entry.count:
        ledger.problems.append(f"P2 {gone} messages went with {queue_id}, not {entry.count}")


def _exchange_fenced(ledger: Ledger, entry: Entry) -> None:
    """Follow the drop of an exchange: nothing prepared publishes to it when it goes."""
    exchange_id = entry.body["exchange"]
    before = ledger.closed_exchanges.get(exchange_id)
    if (before, entry.kind) not in _EXCHANGE_STEPS:
        ledger.problems.append(f"{exchange_id} was {entry.kind} after {before}")
    ledger.closed_exchanges[exchange_id] = entry.kind
    for attempt, prepared in ledger.prepared.items():
        said = prepared.body["manifest"]["entries"]
        named = {model.published_to(one["kind"], one["body"]) for one in said}
        if attempt in ledger.decided or exchange_id not in named:
            continue
        if entry.kind == model.EXCHANGE_DROPPED:
            ledger.problems.append(f"P5 {exchange_id} was dropped, and {attempt} is prepared there")


_EXCHANGE_STEPS = (
    (None, model.EXCHANGE_CLOSING),
    (model.EXCHANGE_CLOSING, model.EXCHANGE_DROPPED),
)
_STEPS = ((None, model.QUEUE_CLOSING), (model.QUEUE_CLOSING, model.QUEUE_DROPPED))


def _may_still(ledger: Ledger, entry: Entry) -> bool:
    """Whether an entry may be in a closed queue: of what is rolled back, or was prepared."""
    if entry.shard == model.CATALOG:
        return True
    if entry.kind == model.RELEASED and entry.sequence is None:
        return True
    closing = ledger.closed[entry.queue_id or ""] == model.QUEUE_CLOSING
    return closing and entry.attempt in ledger.prepared


def _decided(ledger: Ledger, entry: Entry) -> None:
    say = ledger.problems.append
    attempt = entry.attempt or ""
    if attempt in ledger.decided:
        say(f"P4 {attempt} was decided twice: {ledger.decided[attempt].kind}, {entry.kind}")
    ledger.decided[attempt] = entry
    if entry.kind == model.COMMITTED:
        key = entry.stream
        if key in ledger.committed:
            say(f"P1 {key} was committed twice")
        ledger.committed[key] = attempt
        others = [
            e
            for a, e in ledger.prepared.items()
            if e.stream == key and a != attempt and a not in ledger.decided
        ]
        if others:
            say(f"P5 {key} was committed while another attempt of it was prepared")
    elif attempt in ledger.prepared and entry.stream not in ledger.explicit:
        say(f"P5 prepared {attempt} was rolled back by nobody's decision")


def _claimed(ledger: Ledger, entry: Entry) -> None:
    _supersede(ledger, entry)
    name = (entry.queue_id or "", entry.lane or 0, entry.sequence or 0)
    ledger.claims[name] = entry
    for standing in _standings(entry):
        if standing not in ledger.posted:
            ledger.problems.append(f"P3 {name} claims {standing}, which nobody posted")
        if standing in ledger.retired:
            ledger.problems.append(f"P2 {name} claims {standing}, which is retired")
        if standing in ledger.held:
            ledger.problems.append(f"P2 {name} claims {standing}, held by {ledger.held[standing]}")
        ledger.held[standing] = name


def _supersede(ledger: Ledger, entry: Entry) -> None:
    for sequence in entry.body.get("supersedes", ()):
        name = (entry.queue_id or "", entry.lane or 0, sequence)
        claim = ledger.claims[name]
        owner = ledger.bound.get(name, claim.attempt)
        never = (claim.begun or 0) < ledger.horizon and owner not in ledger.prepared
        over = owner in ledger.decided or never or name in ledger.ended
        if owner is not None and not over:
            ledger.problems.append(f"P2 {name} was taken over from {owner}, which is undecided")
        _end(ledger, name, entry)


def _settled(ledger: Ledger, entry: Entry, decisions: dict[str | None, Entry]) -> None:
    name = (entry.queue_id or "", entry.claim_lane or 0, entry.claim_sequence or 0)
    say = ledger.problems.append
    claim = ledger.claims.get(name)
    if claim is None:
        say(f"P6 {entry.kind} of {name}, which is no claim")
        return
    if entry.sequence is None:
        if entry.attempt not in decisions:
            say(f"P1 {entry.kind} of {name} without the decision of {entry.attempt}")
        if ledger.bound.get(name, claim.attempt) != entry.attempt:
            return  # not the owner's: it does not count
    wanted = set(_standings(entry)) if entry.body.get("items") else None
    mine = {s for s, holder in ledger.held.items() if holder == name}
    if entry.sequence is not None and not mine:
        say(f"P6 {entry.kind} of {name}, which had ended")
    for standing in mine if wanted is None else wanted & mine:
        del ledger.held[standing]
        if entry.kind != model.RELEASED or standing in ledger.purging:
            _retire(ledger, standing, entry)
    if not any(holder == name for holder in ledger.held.values()):
        ledger.ended.add(name)


def _end(ledger: Ledger, name: tuple[str, int, int], entry: Entry) -> None:
    ledger.ended.add(name)
    for standing in [s for s, holder in ledger.held.items() if holder == name]:
        del ledger.held[standing]
        if standing in ledger.purging:
            _retire(ledger, standing, entry)


def _retire(ledger: Ledger, standing: Standing, entry: Entry) -> None:
    if standing in ledger.retired:
        ledger.problems.append(
            f"P2 {standing} was retired twice: {ledger.retired[standing].kind}, {entry.kind}"
        )
    ledger.retired[standing] = entry


def _offsets(entry: Entry) -> list[int]:
    return [offset for first, last in entry.ranges for offset in range(first, last + 1)]


def _standings(entry: Entry) -> list[Standing]:
    return [
        (position_id, offset)
        for position_id, part in model.unpack_items(entry)
        for first, last in part
        for offset in range(first, last + 1)
    ]


# ----------------------------------------------------------------- what a queue delivered


def accepted(ledger: Ledger, queue_id: str) -> Counter[Message]:
    """Count how often each message of a queue was accepted."""
    return Counter(
        (ledger.posted[standing].body["send"], standing[1])
        for standing, entry in ledger.retired.items()
        if entry.kind == model.ACCEPTED and entry.queue_id == queue_id
    )


def waiting(ledger: Ledger, queue_id: str) -> set[Standing]:
    """List what stands in a queue and is not retired."""
    return {
        standing
        for standing, entry in ledger.posted.items()
        if entry.queue_id == queue_id and standing not in ledger.retired
    }
