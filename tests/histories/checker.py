"""Find what is wrong with a recorded history: each anomaly by its name, with a small witness.

Pure, and without the library: what clients saw is compared with what the journal says, and both
with themselves. ``CHECKS`` lists what is looked for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.histories.history import (
    ACCEPTED,
    CLAIMED,
    COMMITTED,
    FAIL,
    INFO,
    OK,
    POSTED,
    PREPARED,
    RELEASED,
    ROLLED_BACK,
    Fact,
    History,
    Operation,
)
from tests.histories.precedence import circle, spans

DECISIONS = (COMMITTED, ROLLED_BACK)


@dataclass(frozen=True)
class Anomaly:
    """Something that must not be: its name, what it is, and the lines that show it."""

    name: str
    what: str
    witness: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Show it with its witness."""
        return "\n  ".join([f"{self.name}: {self.what}", *self.witness])


def _anomaly(name: str, what: str, *witness: Operation | Fact | None) -> Anomaly:
    return Anomaly(name, what, tuple(str(one) for one in witness if one is not None))


def check(history: History) -> list[Anomaly]:
    """Look for everything in a history that ended with a recovery and a drain."""
    return [found for look_for in CHECKS for found in look_for(history)]


def figures(history: History) -> Counter[str]:
    """Count what happened, so that nobody takes a run for a proof in which nothing did."""
    counts: Counter[str] = Counter(operations=len(history.operations))
    for one in history.operations:
        counts[f"{one.what} {one.outcome}"] += 1
        counts[one.outcome] += 1
    counts["messages"] = sum(len(fact.ids) for fact in history.said(POSTED))
    counts["take-overs"] = sum(len(fact.supersedes) for fact in history.said(CLAIMED))
    counts["versions read again"] = len(history.versions)
    for kind in (COMMITTED, ROLLED_BACK, PREPARED):
        counts[kind] = len(history.said(kind))
    return counts


# ----------------------------------------------------------------------------- decisions


def _answers(history: History) -> Iterator[Anomaly]:
    """What a client was told of its decision is what the journal says."""
    for one in history.of("commit", "decide", "prepare"):
        if one.what == "decide" and not one.given.get("commit"):
            continue
        prepares = one.what == "prepare"
        if prepares:
            found = next((f for f in history.said(PREPARED) if f.txn == one.txn), None)
        else:
            found = history.committed.get(one.txn or "")
        if one.outcome == OK and found is None:
            yield _anomaly("lost commit", f"{one.what} of {one.txn} was answered and is gone", one)
        if one.outcome == FAIL and found is not None and not _rivals(history, one):
            yield _anomaly("reported failed", f"{one.txn} failed, and has landed", one, found)
        seq = one.got.get("seq")
        if found is not None and one.outcome == OK and seq is not None and seq != found.seq:
            yield _anomaly("commit order", f"{one.txn} was told another place", one, found)


def _rivals(history: History, failed: Operation) -> bool:
    """Tell whether another call may have done what one has failed to do."""
    kinds = ("prepare",) if failed.what == "prepare" else ("commit", "decide")
    return any(
        one is not failed and one.txn == failed.txn and one.outcome != FAIL
        for one in history.of(*kinds)
        if one.given.get("commit", True)
    )


def _decided_once(history: History) -> Iterator[Anomaly]:
    """An attempt is decided once, a transaction committed once; nobody was told otherwise."""
    first: dict[str, Fact] = {}
    for fact in history.said(*DECISIONS):
        before = first.setdefault(fact.attempt or "", fact)
        if before is not fact:
            yield _anomaly("decided twice", f"{fact.txn} has two decisions", before, fact)
    committed = Counter(fact.txn for fact in history.said(COMMITTED))
    for txn, times in committed.items():
        if times > 1 and len({f.attempt for f in history.said(COMMITTED) if f.txn == txn}) > 1:
            yield _anomaly("committed twice", f"{txn} was committed {times} times")
    for one in history.of("outcome"):
        status, found = one.got.get("status"), history.committed.get(one.txn or "")
        if one.outcome == OK and (
            (status == COMMITTED and found is None) or (status == ROLLED_BACK and found is not None)
        ):
            yield _anomaly("outcome changed", f"{one.txn} was {status}", one, found)


def _prepared(history: History) -> Iterator[Anomaly]:
    """What is prepared is rolled back only if somebody said so, and by the end it is decided."""
    prepared = {fact.attempt: fact for fact in history.said(PREPARED)}
    decided = {fact.attempt: fact for fact in history.said(*DECISIONS)}
    asked = {
        one.txn
        for one in history.of("rollback", "decide")
        if one.what == "rollback" or not one.given.get("commit")
    }
    for attempt, fact in prepared.items():
        end = decided.get(attempt)
        if end is None:
            yield _anomaly("hanging", f"{fact.txn} is prepared for ever", fact)
        elif end.kind == ROLLED_BACK and fact.txn not in asked:
            yield _anomaly("prepared was aborted", f"nobody rolled {fact.txn} back", fact, end)
        elif end.seq < fact.seq:
            yield _anomaly("decided twice", f"{fact.txn} was prepared afterwards", end, fact)


def _order(history: History) -> Iterator[Anomaly]:
    """Commits have places of their own, in the order in which clients saw them happen."""
    places: dict[int, Fact] = {}
    for fact in history.said(COMMITTED):
        other = places.setdefault(fact.seq, fact)
        if other is not fact:
            yield _anomaly("commit order", f"two commits at {fact.seq}", other, fact)
    looked = {one.name: one.got["seq"] for one in history.of("look") if one.outcome == OK}
    seqs = {txn: fact.seq for txn, fact in history.committed.items()} | looked
    calls = [(node, *span) for node, span in spans(history).items() if node in seqs]
    events = [(begin, 1, node) for node, begin, _ in calls]
    events += [(end, 0, node) for node, _, end in calls]
    latest = None
    for _, begins, node in sorted(events):
        if not begins and (latest is None or seqs[node] > seqs[latest]):
            latest = node
        elif begins and latest is not None and seqs[node] < seqs[latest]:
            lines = [one for one in history.operations if {one.name, one.txn} & {node, latest}]
            kept = [one for one in lines if one.what in ("commit", "decide", "look")]
            yield _anomaly("commit order", f"{node} came after {latest}", *kept)


# ------------------------------------------------------------------------------ messages


def _deliveries(history: History) -> Iterator[tuple[Operation, str]]:
    for one in history.of("receive"):
        if one.outcome == OK:
            for message in one.ids:
                yield one, message


def _sent(history: History) -> Iterator[Anomaly]:
    """Each delivered message was sent, by a transaction that had been committed by then."""
    commits: defaultdict[str | None, list[Operation]] = defaultdict(list)
    for one in history.of("commit", "decide"):
        commits[one.txn].append(one)
    for one, message in _deliveries(history):
        sender = history.sender.get(message)
        if sender is None:
            yield _anomaly("unexpected message", f"nobody sent {message}", one)
        elif sender == one.txn:
            yield _anomaly("own message", f"{sender} received {message} of its own", one)
        elif sender not in history.committed:
            yield _anomaly("aborted read", f"{message} was sent by {sender}, which ended", one)
        elif all(other.invoked > one.answered for other in commits[sender]):
            yield _anomaly("intermediate read", f"{message} came before the commit", one)


def _whole(history: History) -> Iterator[Anomaly]:
    """A commit has all that its transaction sent and received, and nothing more; others nothing."""
    sent, may_be_sent = _by_txn(history, "send", OK), _by_txn(history, "send", INFO)
    took = _by_txn(history, "receive", OK)
    for txn, commit in history.committed.items():
        posted = [f for f in history.said(POSTED) if f.txn == txn]
        made = Counter(i for fact in posted for i in fact.ids)
        for message in sent[txn] - made.keys():
            yield _anomaly("torn transaction", f"{message} of {txn} is missing", commit)
        for message in made.keys() - sent[txn] - may_be_sent[txn]:
            yield _anomaly("torn transaction", f"{txn} never sent {message}", commit)
        settled = [f for f in history.said(ACCEPTED) if f.txn == txn]
        done = {i for fact in settled for i in fact.ids}
        for message in took[txn] ^ done:
            yield _anomaly("torn transaction", f"{txn} did not take {message} wholly", commit)
        for fact in (*posted, *settled):
            if fact.seq != commit.seq:
                yield _anomaly("torn transaction", f"a part of {txn} came apart", commit, fact)
    for fact in history.said(POSTED, ACCEPTED):
        if fact.txn is not None and fact.txn not in history.committed:
            yield _anomaly("effect without commit", f"{fact.txn} has none", fact)


def _by_txn(history: History, what: str, outcome: str) -> defaultdict[str, set[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for one in history.of(what):
        if one.txn is not None and one.outcome == outcome:
            found[one.txn].update(one.ids)
    return found


def _once(history: History) -> Iterator[Anomaly]:
    """After the drain each message stands in its queue once, and was taken out of it once."""
    posted: dict[tuple[str, str], Fact] = {}
    gone: dict[tuple[str, str], Fact] = {}
    for fact in history.said(POSTED):
        for message in fact.ids:
            other = posted.setdefault((fact.queue, message), fact)
            if other is not fact:
                yield _anomaly("duplicate message", f"{message} stands there twice", other, fact)
        for message in {i for i, times in Counter(fact.ids).items() if times > 1}:
            yield _anomaly("duplicate message", f"{message} stands there twice", fact)
    for fact in history.said(ACCEPTED):
        for message in fact.ids:
            other = gone.setdefault((fact.queue, message), fact)
            if other is not fact:
                yield _anomaly("duplicate delivery", f"{message} was taken twice", other, fact)
    for (queue, message), fact in posted.items():
        if (queue, message) not in gone:
            yield _anomaly("lost message", f"{message} was never taken from {queue}", fact)
    delivered = {(one.given["queue"], i) for one, i in _deliveries(history)}
    for (queue, message), fact in gone.items():
        if (queue, message) not in delivered:
            yield _anomaly("lost message", f"{message} was taken, and nobody got it", fact)


def _acknowledged(history: History) -> Iterator[Anomaly]:
    """An acknowledgement outside of transactions is there if it was answered, and not if not."""
    mine = {(f.queue, i): f for f in history.said(ACCEPTED) if f.txn is None for i in f.ids}
    told: Counter[tuple[str, str]] = Counter()
    for one in history.of("accept"):
        for message in one.ids:
            key = (one.given["queue"], message)
            told[key] += one.outcome != FAIL
            if one.outcome == OK and key not in mine:
                yield _anomaly("lost acknowledgement", f"{message} was acknowledged", one)
    for key, fact in mine.items():
        if not told[key]:
            yield _anomaly("reported failed", f"{key[1]} was acknowledged all the same", fact)


# ---------------------------------------------------------------------- lanes and claims


def _lanes(history: History) -> Iterator[Anomaly]:
    """What is claimed for the first time comes in the order in which it was sent to its lane."""
    waiting: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for fact in sorted(history.said(POSTED, CLAIMED), key=lambda f: (f.seq, f.kind != POSTED)):
        lane = waiting[fact.queue, fact.lane]
        if fact.kind == POSTED:
            lane += fact.ids
            continue
        fresh = [message for message in fact.ids if message in lane]
        if fresh != lane[: len(fresh)]:
            yield _anomaly("lane order", f"{fresh} before {lane[: len(fresh)]}", fact)
        waiting[fact.queue, fact.lane] = [message for message in lane if message not in fresh]
    claimed = _claimed_orders(history)
    for one in history.of("receive"):
        for lane_number, ids in _by_lane(one).items():
            if one.outcome == OK and tuple(ids) not in claimed[one.given["queue"], lane_number]:
                yield _anomaly("lane order", f"{ids} is not what was claimed", one)


def _claimed_orders(history: History) -> defaultdict[tuple[str, int], set[tuple[str, ...]]]:
    found: defaultdict[tuple[str, int], set[tuple[str, ...]]] = defaultdict(set)
    for fact in history.said(CLAIMED):
        found[fact.queue, fact.lane].add(fact.ids)
    return found


def _by_lane(receive: Operation) -> dict[int, list[str]]:
    found: defaultdict[int, list[str]] = defaultdict(list)
    for message in receive.got.get("messages", ()):
        found[message["lane"]].append(message["id"])
    return found


def _fences(history: History) -> Iterator[Anomaly]:
    """A message is held by one claim at a time, and settled by the one that holds it."""
    holder: dict[tuple[str, str], Fact] = {}
    newest: dict[tuple[str, int], Fact] = {}
    for fact in history.facts:
        lane = (fact.queue, fact.lane)
        if fact.kind == CLAIMED:
            before = newest.get(lane)
            if before is not None and fact.claim <= before.claim:
                yield _anomaly("fence order", f"claim {fact.claim} is not new", before, fact)
            newest[lane] = fact
            for key in [k for k, held in holder.items() if _ends(fact, held)]:
                del holder[key]
            for message in fact.ids:
                held = holder.get((fact.queue, message))
                if held is not None:
                    yield _anomaly("claimed twice", f"{message} was held", held, fact)
                holder[fact.queue, message] = fact
        elif fact.kind in (ACCEPTED, RELEASED):
            for message in fact.ids:
                held = holder.pop((fact.queue, message), None)
                if fact.kind == ACCEPTED and (held is None or held.claim != fact.claim):
                    yield _anomaly("fence order", f"{message} was not held by it", held, fact)
    for (_, message), held in holder.items():
        yield _anomaly("hanging", f"{message} is held for ever", held)


def _ends(claim: Fact, held: Fact) -> bool:
    same = (claim.queue, claim.lane) == (held.queue, held.lane)
    return same and held.claim in claim.supersedes


# --------------------------------------------------------------------- looks and versions


def _looks(history: History) -> Iterator[Anomaly]:
    """A look shows all of a commit or nothing; what is gone stays gone; versions never change."""
    looks = sorted(
        (one for one in history.of("look") if one.outcome == OK), key=lambda one: one.got["seq"]
    )
    seen: dict[tuple[str, str], Operation] = {}
    gone: dict[tuple[str, str], Operation] = {}
    for one in looks:
        shown = history.states(one)
        yield from _torn(history, one, shown)
        for key, before in seen.items():
            if key not in shown:
                yield _anomaly("flicker", f"{key[1]} was there before", before, one)
        for key, state in shown.items():
            if state != ACCEPTED and key in gone:
                yield _anomaly("flicker", f"{key[1]} was gone before", gone[key], one)
            (gone if state == ACCEPTED else seen).setdefault(key, one)


def _torn(
    history: History, look: Operation, shown: dict[tuple[str, str], str]
) -> Iterator[Anomaly]:
    queues, known = look.got["states"].keys(), look.got["committed"]
    effects = {txn: {f"commit of {txn}": txn in known} for txn in history.committed}
    for fact in history.said(POSTED, ACCEPTED):
        if fact.txn not in history.committed or fact.queue not in queues:
            continue
        for message in fact.ids:
            state = shown.get((fact.queue, message))
            seen = state is not None if fact.kind == POSTED else state == ACCEPTED
            effects[fact.txn or ""][f"{fact.kind} {message} in {fact.queue}"] = seen
    for txn, found in effects.items():
        if len(set(found.values())) > 1:
            missing = [what for what, seen in found.items() if not seen]
            yield _anomaly("torn read", f"of {txn} it does not show {missing}", look)
    for _, message in shown:
        if history.sender.get(message) not in history.committed:
            yield _anomaly("aborted read", f"it shows {message}", look)


def _versions(history: History) -> Iterator[Anomaly]:
    """Each retained version shows what had landed by then, and nothing else."""
    for version, shown in history.versions.items():
        landed = {fact.name for fact in history.facts if fact.version <= version}
        if shown != landed:
            strange, missing = sorted(shown - landed)[:3], sorted(landed - shown)[:3]
            yield Anomaly("version changed", f"{version} shows {strange}, and not {missing}")


def _replayed(history: History) -> Iterator[Anomaly]:
    """What the audit of the entries found is an anomaly, too."""
    for problem in history.problems:
        yield Anomaly("journal", problem)


def _circles(history: History) -> Iterator[Anomaly]:
    """No transaction comes before itself."""
    found = circle(history)
    if found is not None:
        nodes = {edge.before for edge in found.edges}
        lines = [one for one in history.operations if {one.txn, one.name} & nodes]
        kept = [one for one in lines if one.what in ("commit", "decide", "look", "accept")]
        yield _anomaly(found.name, str(found), *kept)


CHECKS: tuple[Callable[[History], Iterable[Anomaly]], ...] = (
    _answers,
    _decided_once,
    _prepared,
    _order,
    _sent,
    _whole,
    _once,
    _acknowledged,
    _lanes,
    _fences,
    _looks,
    _versions,
    _replayed,
    _circles,
)
"""What is looked for, one promise after the other."""
