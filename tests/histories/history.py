"""What a run leaves behind: what its clients did and were told, and what the store says of it.

An operation is recorded when it is invoked and when it is answered. What was never answered, or
answered with "unknown", may have happened or not: its outcome is ``INFO``. The facts come from
the store's journal after the run, with the numbers that it orders commits by.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

OK, FAIL, INFO = "ok", "fail", "info"
POSTED, CLAIMED, ACCEPTED, RELEASED = "posted", "claimed", "accepted", "released"
PREPARED, COMMITTED, ROLLED_BACK = "prepared", "committed", "rolled_back"
NEVER = 1 << 62
"""The instant at which what was not answered is answered."""


_LONG = ("states", "committed")
Claim = tuple[str, int, int]
"""Names a claim: the queue, the lane, and its number in that lane."""
Place = tuple[str, str]
"""A message in a queue: the queue, and the message."""


@dataclass(frozen=True)
class Operation:
    """One call of a client.

    Attributes:
        name: Names it in its run.
        client: Who called.
        what: begin, send, receive, commit, prepare, rollback, decide, accept, release, look,
            outcome, recover.
        txn: The transaction that it belongs to; None: to none.
        invoked: When it was called, in nanoseconds of a clock that all clients share.
        answered: When it was answered; ``NEVER`` if it was not.
        outcome: ``OK``, ``FAIL`` (it surely has not happened) or ``INFO`` (nobody knows).
        given: What it was called with: ``queue``, ``ids``, ``commit``; ``messages`` to settle.
        got: What it answered: ``messages``, ``seq``, ``states``, ``committed``, ``status``,
            ``error``.
    """

    name: str
    client: str
    what: str
    txn: str | None = None
    invoked: int = 0
    answered: int = NEVER
    outcome: str = INFO
    given: Mapping[str, Any] = field(default_factory=dict)
    got: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        """The messages that it was called with, or that it delivered."""
        if self.messages:
            return [one["id"] for one in self.messages]
        return list(self.given.get("ids", ()))

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """The messages that it delivered or settled: ``id``, ``lane`` and number of the claim."""
        return [*self.got.get("messages", ()), *self.given.get("messages", ())]

    @property
    def by_claim(self) -> dict[Claim, tuple[str, ...]]:
        """The messages that it delivered or settled by their claims, in order."""
        found: dict[Claim, tuple[str, ...]] = {}
        for one in self.messages:
            claim = (self.given["queue"], one["lane"], one["claim"])
            found[claim] = (*found.get(claim, ()), one["id"])
        return found

    def __str__(self) -> str:
        """Show it on one line of a witness."""
        said = {**self.given, **{k: v for k, v in self.got.items() if k not in _LONG}}
        return f"{self.client} {self.what} {self.txn or '-'} {self.outcome} {json.dumps(said)}"


@dataclass(frozen=True)
class Fact:
    """One thing that the journal says.

    Attributes:
        name: Names it for ever.
        seq: Its place in commit order; what landed together has the same.
        version: The version of the journal that it came with.
        kind: Which one: see the constants above.
        txn: The transaction, by the name that its client gave it; None: none.
        attempt: The attempt of that transaction.
        queue: The queue.
        lane: The lane.
        claim: The number of the claim that is made or settled, in its lane.
        consumer: Who claimed.
        ids: The messages, in order.
        supersedes: The claims of the lane that this one ends.
    """

    name: str
    seq: int
    version: int
    kind: str
    txn: str | None = None
    attempt: str | None = None
    queue: str = ""
    lane: int = 0
    claim: int = 0
    consumer: str = ""
    ids: tuple[str, ...] = ()
    supersedes: tuple[int, ...] = ()

    @property
    def of_claim(self) -> Claim:
        """The claim that is made or settled."""
        return self.queue, self.lane, self.claim

    @property
    def places(self) -> list[Place]:
        """The messages, each in its queue."""
        return [(self.queue, message) for message in self.ids]

    def __str__(self) -> str:
        """Show it on one line of a witness."""
        where = f"{self.queue}/{self.lane}" + (f" claim {self.claim}" if self.claim else "")
        return f"#{self.seq} {self.kind} {self.txn or '-'} {where} {' '.join(self.ids)}"


@dataclass(frozen=True)
class History:
    """A run: its operations, its facts, and what each retained version shows.

    Attributes:
        operations: By the instants at which they were invoked.
        facts: In commit order.
        versions: The names of the facts that a version of the journal shows: in memory as it was
            read while the run went on, on Delta as it is read again afterwards.
        problems: What an audit of the journal's entries found, which knows them only.
        about: Seed, store, kinds of clients.
    """

    operations: tuple[Operation, ...]
    facts: tuple[Fact, ...]
    versions: Mapping[int, frozenset[str]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)

    def of(self, *what: str) -> list[Operation]:
        """List the operations of some kinds."""
        return [one for one in self.operations if one.what in what]

    def said(self, *kinds: str) -> list[Fact]:
        """List the facts of some kinds."""
        return [fact for fact in self.facts if fact.kind in kinds]

    @cached_property
    def sender(self) -> dict[Place, str]:
        """The transaction that was told to send each message to a queue."""
        sends = [one for one in self.of("send") if one.txn is not None]
        return {(one.given["queue"], i): one.txn or "" for one in sends for i in one.ids}

    @cached_property
    def claims(self) -> dict[Claim, Fact]:
        """The claims by their names."""
        return {fact.of_claim: fact for fact in self.said(CLAIMED)}

    @cached_property
    def committed(self) -> dict[str, Fact]:
        """The first commit of each transaction that has one."""
        found: dict[str, Fact] = {}
        for fact in self.said(COMMITTED):
            found.setdefault(fact.txn or "", fact)
        return found

    def states(self, look: Operation) -> dict[Place, str]:
        """Tell what a look shows of each message that it may show, by queue and message.

        It lists what is in the queues, and whose commits it knows of: what such a one sent and is
        not there has been taken.
        """
        shown = {(q, i): s for q, listed in look.got["states"].items() for i, s in listed.items()}
        for fact in self.said(POSTED):
            if fact.queue in look.got["states"] and fact.txn in look.got["committed"]:
                for message in fact.ids:
                    shown.setdefault((fact.queue, message), ACCEPTED)
        return shown

    def dumped(self) -> str:
        """Write it down, to be kept and read again."""
        return json.dumps(
            {
                "about": dict(self.about),
                "operations": [asdict(one) for one in self.operations],
                "facts": [asdict(fact) for fact in self.facts],
                "versions": {v: sorted(names) for v, names in self.versions.items()},
                "problems": list(self.problems),
            },
            indent=1,
        )


def loaded(text: str) -> History:
    """Read a history that was written down."""
    found = json.loads(text)
    facts = (
        Fact(**{**one, "ids": tuple(one["ids"]), "supersedes": tuple(one["supersedes"])})
        for one in found["facts"]
    )
    return History(
        tuple(Operation(**one) for one in found["operations"]),
        tuple(facts),
        {int(version): frozenset(names) for version, names in found["versions"].items()},
        tuple(found["problems"]),
        found["about"],
    )


def paired(events: Iterable[Mapping[str, Any]]) -> tuple[Operation, ...]:
    """Join invocations with their answers; who was killed never got one.

    Args:
        events: The recorder's lines, in any order.
    """
    invoked: dict[str, Mapping[str, Any]] = {}
    answers: dict[str, Mapping[str, Any]] = {}
    for event in events:
        (invoked if event["type"] == "invoke" else answers)[event["op"]] = event
    found = []
    for name, event in invoked.items():
        answer = answers.get(name, {"type": INFO, "t": NEVER, "got": {}})
        unknown = answer["type"] == INFO
        found.append(
            Operation(
                name,
                event["client"],
                event["f"],
                event["txn"],
                event["t"],
                NEVER if unknown else answer["t"],
                answer["type"],
                event["given"],
                answer["got"],
            )
        )
    return tuple(sorted(found, key=lambda one: (one.invoked, one.name)))
