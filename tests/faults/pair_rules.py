"""What two operations that meet promise each other: a table, written from the documentation.

Commit order is total and follows real time, and an operation that lost a race goes on from what
the other one left. So of two operations the one that lands first does all that it would do
alone, and the other one what the table says of a board on which the first has played.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

AVAILABLE, HELD, PREPARED = "available", "held", "prepared"
ACCEPTED, ASIDE, GONE = "accepted", "moved", "dropped"
FINAL = (ACCEPTED, ASIDE, GONE)
OPEN, CLOSING, DROPPED = "open", "closing", "dropped"


@dataclass
class Place:
    """Where a message is.

    Attributes:
        state: One of the states above.
        holder: Who has it, if somebody has.
        inside: Whether an open transaction has it, and not a lease.
        over: Whether that lease has ended, so that others may take it.
    """

    state: str = AVAILABLE
    holder: str | None = None
    inside: bool = False
    over: bool = False

    def become(self, state: str, holder: str | None = None) -> None:
        """Go to another state; what others may not take."""
        self.state, self.holder, self.inside, self.over = state, holder, False, False

    def seen(self) -> str:
        """Say what the journal shows of it."""
        return f"{HELD} by {self.holder}" if self.state == HELD else self.state


@dataclass
class Board:
    """The messages in the order of their lane, and what became of them.

    Attributes:
        places: Each message's place, by its number, in the order of the lane.
        queue: Whether their queue is open.
        out: What committed transactions have sent.
        table: What they have appended to a table.
        rivals: Whether the two operations decide two attempts of one transaction id.
        taken: Whether one of these attempts is prepared or committed.
        apart: Whether it is another queue that a drop drops.
    """

    places: dict[int, Place] = field(default_factory=dict)
    queue: str = OPEN
    out: set[int] = field(default_factory=set)
    table: set[int] = field(default_factory=set)
    rivals: bool = False
    taken: bool = False
    apart: bool = False

    def finish_drop(self) -> None:
        """Drop a queue that is closing, unless something prepared holds it back."""
        if self.queue != CLOSING or PREPARED in {p.state for p in self.places.values()}:
            return
        self.queue = DROPPED
        for place in self.places.values():
            if place.state not in FINAL:
                place.become(GONE)


@dataclass(frozen=True)
class Rule:
    """What one operation does.

    Attributes:
        appends: The appends that it stands for, in docs/reference/operations.md.
        own: What its own message becomes; None: it has none.
        needs: The state in which it must find that one, still held by itself if held.
        refused: What is raised if that is not so.
        repeats: Other states of its own message that are a repetition, which changes nothing.
        closed: What is raised while the queue is closing; None: it is not held up by that.
        dropped: The same, once the queue is gone.
        produces: Whether it lands what its transaction has sent.
        changes: Whether it decides what its transaction does to a table.
        of_id: Whether it decides an attempt, of which an id has one.
        takes: Whether it takes what waits, and expects nothing of the backlog.
        posts: Whether messages begin to wait by it, by entries of the backlog alone.
    """

    appends: str
    own: str | None = None
    needs: str | None = None
    refused: str = "LeaseLost"
    repeats: tuple[str, ...] = ()
    closed: str | None = "QueueClosed"
    dropped: str | None = "QueueNotFound"
    produces: bool = False
    changes: bool = False
    of_id: bool = False
    takes: bool = False
    posts: bool = False


ABORTED = "TransactionAborted"
RULES = {
    "send": Rule("commit: transaction, backlog", own=AVAILABLE, posts=True),
    "claim": Rule("claim, also one that takes over: lanes, transaction", takes=True),
    "accept": Rule("settle outside a transaction: lanes", own=ACCEPTED, needs=HELD),
    "extend": Rule("extend a lease: lanes", own=HELD, needs=HELD),
    "commit": Rule(
        "commit that settles and changes a table: transaction, backlogs, table",
        own=ACCEPTED,
        needs=HELD,
        refused=ABORTED,
        closed=ABORTED,
        dropped=ABORTED,
        produces=True,
        changes=True,
        of_id=True,
    ),
    "prepare": Rule(
        "prepare of what settles leased messages: transaction, lanes",
        own=PREPARED,
        needs=HELD,
        closed=ABORTED,
        dropped=ABORTED,
        of_id=True,
    ),
    "recover": Rule(
        "roll back another's, and the end of a drop: transaction, backlog",
        closed=None,
        dropped=None,
        posts=True,
    ),
    "commit prepared": Rule(
        "decide a prepared attempt: transaction, backlogs",
        own=ACCEPTED,
        needs=PREPARED,
        refused="TransactionFinished",
        repeats=(ACCEPTED,),
        closed=None,
        dropped=None,
        produces=True,
    ),
    "rollback prepared": Rule(
        "decide a prepared attempt: transaction, backlogs",
        own=AVAILABLE,
        needs=PREPARED,
        refused="TransactionFinished",
        repeats=(AVAILABLE,),
        closed=None,
        dropped=None,
        posts=True,
    ),
    "move": Rule("purge, move, redrive: lanes, another backlog", takes=True),
    "maintain": Rule(
        "compact, advance the horizon, archive, remove payload: lanes, fence, catalog",
        closed=None,
        dropped=None,
    ),
    "drop": Rule("close a queue, drop it: catalog, fence", closed=None, dropped=None),
}
"""Twelve operations, which between them make each kind of append of the journal that messages,
transactions and queues need: exchanges append as queues do, branches as transactions."""


@dataclass
class Move:
    """One operation of somebody on a board."""

    name: str
    who: str
    number: int | None

    @property
    def rule(self) -> Rule:
        """What the table says of it."""
        return RULES[self.name]

    def play(self, board: Board) -> str:
        """Do it on a board, and say what its caller is told."""
        rule = self.rule
        raised = {OPEN: None, CLOSING: rule.closed, DROPPED: rule.dropped}[board.queue]
        if raised is None:
            raised = self._refused(board)
        if raised is not None:
            self._give_back(board)
            return raised
        self._of_its_own(board)
        self._of_others(board)
        return "ok"

    def _refused(self, board: Board) -> str | None:
        rule = self.rule
        if rule.of_id and board.rivals and board.taken:
            return ABORTED
        if rule.needs is None or self.number is None:
            return None
        place = board.places[self.number]
        if place.state in rule.repeats:
            return None
        mine = place.state == rule.needs and place.holder in (None, self.who)
        return None if mine else rule.refused

    def _give_back(self, board: Board) -> None:
        """What a transaction received inside returns when it is refused; a lease stays."""
        place = board.places.get(self.number or -1)
        if self.rule.of_id and place is not None and place.inside and place.holder == self.who:
            place.become(AVAILABLE)

    def _of_its_own(self, board: Board) -> None:
        rule, number = self.rule, self.number
        if rule.own is None or number is None:
            return
        place = board.places.setdefault(number, Place())
        if place.state in rule.repeats:
            return
        place.become(rule.own, self.who if rule.own == HELD else None)
        board.taken = board.taken or rule.of_id
        if rule.produces:
            board.out.add(number)
        if rule.changes:
            board.table.add(number)

    def _of_others(self, board: Board) -> None:
        places = board.places.values()
        if self.name == "claim":  # the first of the lane that waits, or that others may take
            for place in places:
                if place.state == AVAILABLE or (place.state == HELD and place.over):
                    place.become(HELD, self.who)
                    break
        elif self.name == "move":  # what waits; what is in flight stays
            for place in places:
                if place.state == AVAILABLE:
                    place.become(ASIDE)
        elif self.name == "recover":  # the transactions whose leases are over; and drops
            for place in places:
                if place.state == HELD and place.inside and place.over:
                    place.become(AVAILABLE)
            board.finish_drop()
        elif self.name == "drop":
            self.close(board)
            board.finish_drop()

    def close(self, board: Board) -> None:
        """Do the first half of a drop."""
        if board.queue == OPEN and not board.apart:
            board.queue = CLOSING


@dataclass(frozen=True)
class Reached:
    """How far an operation had come when it was held.

    Attributes:
        calls: How many store calls it had made.
        landed: How many of its appends had landed.
        planned: Whether the next one was planned, from what it had read.
    """

    calls: int
    landed: int
    planned: bool


@dataclass(frozen=True)
class Outcome:
    """What must come of two operations, or came of them."""

    told: tuple[str, str]
    places: Mapping[int, str]
    out: Set[int]
    table: Set[int]
    queue: str


def outcomes(board: Board, held: Move, reached: Reached, other: Move) -> list[Outcome]:
    """Find what must come of it: one outcome, but for one case.

    "A commit and a claim never conflict": who takes what waits leaves alone what is posted, or
    comes back, once it has read the queue. While it reads, it may see that or not.

    Args:
        board: As it is before.
        held: The operation that is held, while the other one runs to its end.
        reached: How far it had come by then.
        other: The other one.
    """
    if reached.landed:
        return [_played(board, held, reached, other, held_first=True)]
    reads = held.rule.takes and other.rule.posts and reached.calls > 0
    orders = [True] if reads and reached.planned else [False, True] if reads else [False]
    return [_played(board, held, reached, other, held_first=first) for first in orders]


def _played(
    before: Board, held: Move, reached: Reached, other: Move, *, held_first: bool
) -> Outcome:
    board = copy.deepcopy(before)
    if held.name == "drop" and reached.landed == 1:
        held.close(board)
        told = "ok", other.play(board)
        board.finish_drop()
    elif held_first:
        told = held.play(board), other.play(board)
    else:
        late = other.play(board)
        told = held.play(board), late
    if "drop" in (held.name, other.name):
        board.finish_drop()  # whoever looks has recovered before
    places = {number: place.seen() for number, place in board.places.items()}
    return Outcome(told, places, board.out, board.table, board.queue)


def shared(pair: Sequence[str]) -> bool:
    """Whether the two operations are about one message or transaction, if they meet."""
    takers, deciders = {"claim", "move", "drop"}, {"commit prepared", "rollback prepared"}
    aborted = {"recover", *pair} in ({"recover"}, {"recover", "commit"})
    return (aborted and "recover" in pair) or set(pair) <= takers or set(pair) <= deciders
