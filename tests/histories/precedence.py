"""What in a history says that one transaction came before another.

The nodes are committed transactions, acknowledgements outside of transactions, and looks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tests.histories.cycles import RT, RW, WR, WW, Cycle, Edge, worst
from tests.histories.history import (
    ACCEPTED,
    FAIL,
    NEVER,
    OK,
    POSTED,
    Fact,
    History,
    Operation,
)


def circle(history: History) -> Cycle | None:
    """Find what came before itself; None if nothing did."""
    sent = {(f.queue, i): f.txn for f in history.said(POSTED) for i in f.ids if f.txn}
    taken = {(f.queue, i): _taker(history, f, i) for f in history.said(ACCEPTED) for i in f.ids}
    return worst([*_ww(history), *_wr(history, sent), *_seen(history, sent, taken), *_rt(history)])


def _taker(history: History, fact: Fact, message: str) -> str | None:
    if fact.txn is not None:
        return fact.txn
    for one in history.of("accept"):
        if one.outcome != FAIL and one.given["queue"] == fact.queue and message in one.ids:
            return one.name
    return None


def _ww(history: History) -> Iterator[Edge]:
    """Two that sent to a lane, in its order."""
    last: dict[tuple[str, int], str] = {}
    for fact in sorted(history.said(POSTED), key=lambda f: f.seq):
        if fact.txn is None:
            continue
        before = last.get((fact.queue, fact.lane))
        if before is not None:
            yield Edge(before, fact.txn, WW)
        last[fact.queue, fact.lane] = fact.txn


def _wr(history: History, sent: dict[tuple[str, str], str]) -> Iterator[Edge]:
    """Who received a message, and who sent it."""
    for one in history.of("receive"):
        if one.outcome != OK or one.txn not in history.committed:
            continue
        for message in one.ids:
            sender = sent.get((one.given["queue"], message))
            if sender is not None and one.txn is not None:
                yield Edge(sender, one.txn, WR)


def _seen(
    history: History, sent: dict[tuple[str, str], str], taken: dict[tuple[str, str], str | None]
) -> Iterator[Edge]:
    """Who looked, and whose doings it saw or did not see."""
    for one in history.of("look"):
        if one.outcome != OK:
            continue
        queues, states = one.got["states"], history.states(one)
        for key, sender in sent.items():
            if key[0] in queues:
                shown = key in states
                yield Edge(sender, one.name, WR) if shown else Edge(one.name, sender, RW)
        for key, taker in taken.items():
            if key[0] in queues and taker is not None:
                gone = states.get(key) == ACCEPTED
                yield Edge(taker, one.name, WR) if gone else Edge(one.name, taker, RW)


def _rt(history: History) -> Iterator[Edge]:
    """Who was answered before another one was called."""
    found = spans(history)
    latest: list[tuple[int, str]] = sorted((end, node) for node, (_, end) in found.items())
    for node, (begin, _) in found.items():
        for end, before in latest:
            if end >= begin:
                break
            if before != node:
                yield Edge(before, node, RT)


def spans(history: History) -> dict[str, tuple[int, int]]:
    """When each node was called and answered: of a transaction, the calls that may commit it."""
    calls: defaultdict[str, list[Operation]] = defaultdict(list)
    for one in history.operations:
        commits = one.what == "commit" or (one.what == "decide" and one.given.get("commit"))
        if commits and one.txn in history.committed:
            calls[one.txn or ""].append(one)
        elif one.what in ("look", "accept") and one.outcome == OK:
            calls[one.name].append(one)
    return {
        node: (
            min(one.invoked for one in found),
            min((one.answered for one in found if one.outcome == OK), default=NEVER),
        )
        for node, found in calls.items()
    }
