"""Find what is wrong with a recorded history: each anomaly by its name, with a small witness.

Pure, and without the library: what clients saw is compared with what the journal says, and both
with themselves. ``CHECKS`` lists what is looked for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from tests.histories.anomaly import Anomaly, anomaly
from tests.histories.errors import errors
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
    Claim,
    Fact,
    History,
    Operation,
    Place,
)
from tests.histories.lanes import (
    claimed_where_posted,
    fences,
    first_claims_in_order,
    handed_to_one,
    redeliveries_in_order,
)
from tests.histories.looks import looks, looks_are_exact, versions
from tests.histories.precedence import circle, spans

DECISIONS = (COMMITTED, ROLLED_BACK)
SETTLED = {"accept": ACCEPTED, "release": RELEASED}
"""What a call says in the journal that settles messages outside of transactions."""


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
            yield anomaly("lost commit", f"{one.what} of {one.txn} was answered and is gone", one)
        if one.outcome == FAIL and found is not None and not _rivals(history, one):
            yield anomaly("reported failed", f"{one.txn} failed, and has landed", one, found)
        seq = one.got.get("seq")
        if found is not None and one.outcome == OK and seq is not None and seq != found.seq:
            yield anomaly("commit order", f"{one.txn} was told another place", one, found)


def _rolled_back(history: History) -> Iterator[Anomaly]:
    """What a client was told is rolled back is not committed, neither before nor afterwards."""
    for one in history.of("rollback", "decide"):
        if one.what == "decide" and one.given.get("commit"):
            continue
        found = history.committed.get(one.txn or "")
        if one.outcome == OK and found is not None:
            yield anomaly("rolled back and committed", f"{one.txn} is committed", one, found)


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
            yield anomaly("decided twice", f"{fact.txn} has two decisions", before, fact)
    committed = Counter(fact.txn for fact in history.said(COMMITTED))
    for txn, times in committed.items():
        if times > 1 and len({f.attempt for f in history.said(COMMITTED) if f.txn == txn}) > 1:
            yield anomaly("committed twice", f"{txn} was committed {times} times")
    for one in history.of("outcome"):
        status, found = one.got.get("status"), history.committed.get(one.txn or "")
        if one.outcome == OK and (
            (status == COMMITTED and found is None) or (status == ROLLED_BACK and found is not None)
        ):
            yield anomaly("outcome changed", f"{one.txn} was {status}", one, found)
        if one.outcome == OK and status != COMMITTED and _was_committed(history, one):
            yield anomaly("outcome changed", f"{one.txn} is {status} after its commit", one, found)


def _was_committed(history: History, asked: Operation) -> bool:
    """Tell whether somebody had been told before a question that a transaction is committed."""
    return any(
        one.outcome == OK and one.txn == asked.txn and one.answered < asked.invoked
        for one in history.of("commit", "decide")
        if one.given.get("commit", True)
    )


def _prepared(history: History) -> Iterator[Anomaly]:
    """What is prepared is rolled back only if somebody said so, and by the end it is decided."""
    prepared = {fact.attempt: fact for fact in history.said(PREPARED)}
    decided = {fact.attempt: fact for fact in history.said(*DECISIONS)}
    asked = {
        one.txn
        for one in history.of("rollback", "decide")
        if one.outcome != FAIL and not one.given.get("commit")
    }
    for attempt, fact in prepared.items():
        end = decided.get(attempt)
        if end is None:
            yield anomaly("hanging", f"{fact.txn} is prepared for ever", fact)
        elif end.kind == ROLLED_BACK and fact.txn not in asked:
            yield anomaly("prepared was aborted", f"nobody rolled {fact.txn} back", fact, end)
        elif end.seq < fact.seq:
            yield anomaly("decided twice", f"{fact.txn} was prepared afterwards", end, fact)


def _order(history: History) -> Iterator[Anomaly]:
    """Commits have places of their own, in the order in which clients saw them happen."""
    places: dict[int, Fact] = {}
    for fact in history.said(COMMITTED):
        other = places.setdefault(fact.seq, fact)
        if other is not fact:
            yield anomaly("commit order", f"two commits at {fact.seq}", other, fact)
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
            yield anomaly("commit order", f"{node} came after {latest}", *kept)


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
        queue = one.given["queue"]
        sender = history.sender.get((queue, message))
        if sender is None:
            yield anomaly("unexpected message", f"nobody sent {message} to {queue}", one)
        elif sender == one.txn:
            yield anomaly("own message", f"{sender} received {message} of its own", one)
        elif sender not in history.committed:
            yield anomaly("aborted read", f"{message} was sent by {sender}, which ended", one)
        elif all(other.invoked > one.answered for other in commits[sender]):
            yield anomaly("intermediate read", f"{message} came before the commit", one)


def _whole(history: History) -> Iterator[Anomaly]:
    """A commit has all that its transaction sent and received, and nothing more; others nothing.

    What is meant is in the queue that it was sent to, or received from, and in no other.
    """
    sent, may_be_sent = _by_txn(history, "send", OK), _by_txn(history, "send", INFO)
    took = _by_txn(history, "receive", OK)
    for txn, commit in history.committed.items():
        posted = [f for f in history.said(POSTED) if f.txn == txn]
        made = {place for fact in posted for place in fact.places}
        for queue, message in sorted(sent[txn] - made):
            yield anomaly("torn transaction", f"{message} of {txn} is missing in {queue}", commit)
        for queue, message in sorted(made - sent[txn] - may_be_sent[txn]):
            yield anomaly("torn transaction", f"{txn} never sent {message} to {queue}", commit)
        settled = [f for f in history.said(ACCEPTED) if f.txn == txn]
        done = {place for fact in settled for place in fact.places}
        for queue, message in sorted(took[txn] ^ done):
            what = f"{txn} did not take {message} wholly out of {queue}"
            yield anomaly("torn transaction", what, commit)
        for fact in (*posted, *settled):
            if fact.seq != commit.seq:
                yield anomaly("torn transaction", f"a part of {txn} came apart", commit, fact)
    for fact in history.said(POSTED, ACCEPTED):
        if fact.txn is not None and fact.txn not in history.committed:
            yield anomaly("effect without commit", f"{fact.txn} has none", fact)


def _by_txn(history: History, what: str, outcome: str) -> defaultdict[str, set[Place]]:
    found: defaultdict[str, set[Place]] = defaultdict(set)
    for one in history.of(what):
        if one.txn is not None and one.outcome == outcome:
            found[one.txn].update((one.given["queue"], message) for message in one.ids)
    return found


def _once(history: History) -> Iterator[Anomaly]:
    """After the drain each message stands in its queue once, and was taken out of it once."""
    posted: dict[Place, Fact] = {}
    gone: dict[Place, Fact] = {}
    for fact in history.said(POSTED):
        for message in fact.ids:
            other = posted.setdefault((fact.queue, message), fact)
            if other is not fact:
                yield anomaly("duplicate message", f"{message} stands there twice", other, fact)
        for message in {i for i, times in Counter(fact.ids).items() if times > 1}:
            yield anomaly("duplicate message", f"{message} stands there twice", fact)
    for fact in history.said(ACCEPTED):
        for message in fact.ids:
            other = gone.setdefault((fact.queue, message), fact)
            if other is not fact:
                yield anomaly("duplicate delivery", f"{message} was taken twice", other, fact)
    for (queue, message), fact in posted.items():
        if (queue, message) not in gone:
            yield anomaly("lost message", f"{message} was never taken from {queue}", fact)
    delivered = {(one.given["queue"], i) for one, i in _deliveries(history)}
    for (queue, message), fact in gone.items():
        if (queue, message) not in delivered:
            yield anomaly("lost message", f"{message} was taken, and nobody got it", fact)


def _settled(history: History) -> Iterator[Anomaly]:
    """What is settled outside of transactions is settled by those who were told so."""
    receives = [one for one in history.of("receive") if one.outcome == OK]
    handed = {claim for one in receives for claim in one.by_claim}
    for what, kind in SETTLED.items():
        landed = {
            (fact.of_claim, message): fact
            for fact in history.said(kind)
            if fact.txn is None
            for message in fact.ids
        }
        perhaps: set[tuple[Claim, str]] = set()
        told: dict[tuple[Claim, str], Operation] = {}
        for one in history.of(what):
            for key in [(claim, i) for claim, ids in one.by_claim.items() for i in ids]:
                if one.outcome != FAIL:
                    perhaps.add(key)
                if one.outcome != OK:
                    continue
                if key not in landed:
                    yield anomaly(f"lost {what}", f"{key[1]} is not {kind}", one)
                other = told.setdefault(key, one)
                if other is not one:
                    yield anomaly("told twice", f"{what} of {key[1]}", other, one)
        for key, fact in landed.items():
            # A receive that fails gives back what it has claimed.
            if key not in perhaps and (kind == ACCEPTED or key[0] in handed):
                yield anomaly("reported failed", f"{key[1]} is {kind} all the same", fact)


# --------------------------------------------------------------------------------- others


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
        yield anomaly(found.name, str(found), *kept)


CHECKS: tuple[Callable[[History], Iterable[Anomaly]], ...] = (
    _answers,
    _rolled_back,
    _decided_once,
    _prepared,
    _order,
    _sent,
    _whole,
    _once,
    _settled,
    first_claims_in_order,
    redeliveries_in_order,
    handed_to_one,
    claimed_where_posted,
    fences,
    looks,
    looks_are_exact,
    versions,
    errors,
    _replayed,
    _circles,
)
"""What is looked for, one promise after the other."""
