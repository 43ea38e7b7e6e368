"""Histories told by hand: some that may happen, and one for each thing that must not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.histories.history import (
    ACCEPTED,
    CLAIMED,
    COMMITTED,
    FAIL,
    INFO,
    NEVER,
    OK,
    POSTED,
    PREPARED,
    RELEASED,
    ROLLED_BACK,
    Fact,
    History,
    Operation,
)


@dataclass
class Story:
    """Tells what clients did, each call in an instant of its own, and what the journal says."""

    now: int = 0
    operations: list[Operation] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    versions: dict[int, frozenset[str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def call(
        self, what: str, txn: str | None = None, outcome: str = OK, *, got: Any = None, **given: Any
    ) -> Operation:
        """Tell of one call."""
        self.now += 2
        answered = NEVER if outcome == INFO else self.now + 1
        name = f"op{len(self.operations)}"
        client = given.pop("client", "c1")
        one = Operation(name, client, what, txn, self.now, answered, outcome, given, got or {})
        self.operations.append(one)
        return one

    def fact(self, seq: int, kind: str, txn: str | None = None, **more: Any) -> Fact:
        """Tell what the journal says."""
        attempt = more.pop("attempt", f"{txn} 1" if txn else None)
        more["ids"] = tuple(more.get("ids", "").split())
        name = f"f{len(self.facts)}"
        self.facts.append(Fact(name, seq, seq, kind, txn, attempt, **more))
        return self.facts[-1]

    def send(self, txn: str, seq: int, ids: str, queue: str = "in", **more: Any) -> None:
        """Send in a transaction of its own, and commit."""
        self.call("send", txn, queue=queue, ids=ids.split(), **more)
        self.call("commit", txn, got={"seq": seq}, **more)
        self.fact(seq, COMMITTED, txn)
        self.fact(seq, POSTED, txn, queue=queue, ids=ids)

    def receive(
        self, txn: str | None, seq: int, claim: int, ids: str, queue: str = "in", **more: Any
    ) -> Fact:
        """Claim messages and deliver them."""
        messages = [{"id": one, "lane": 0, "claim": claim} for one in ids.split()]
        said = {"client": more["client"]} if "client" in more else {}
        self.call("receive", txn, queue=queue, got={"messages": messages}, **said)
        return self.fact(
            seq,
            CLAIMED,
            txn,
            queue=queue,
            claim=claim,
            ids=ids,
            supersedes=more.get("supersedes", ()),
        )

    def take(self, txn: str, seq: int, claim: int, ids: str, queue: str = "in") -> None:
        """Receive in a transaction of its own, and commit."""
        self.receive(txn, seq - 1, claim, ids, queue)
        self.call("commit", txn, got={"seq": seq})
        self.fact(seq, COMMITTED, txn)
        self.fact(seq, ACCEPTED, txn, queue=queue, claim=claim, ids=ids)

    def settle(
        self, how: str, ids: str, claim: int, outcome: str = OK, queue: str = "in", **more: Any
    ) -> None:
        """Settle messages that are held outside of transactions."""
        messages = [{"id": one, "lane": 0, "claim": claim} for one in ids.split()]
        self.call(how, None, outcome, queue=queue, messages=messages, **more)

    def roll_back(self, txn: str, seq: int, claim: int, ids: str, queue: str = "in") -> None:
        """Roll a transaction back that has received messages."""
        self.call("rollback", txn)
        self.fact(seq, ROLLED_BACK, txn)
        self.fact(seq, RELEASED, txn, queue=queue, claim=claim, ids=ids)

    def accepted(self, txn: str, seq: int, claim: int, ids: str, queue: str = "in") -> None:
        """Tell that the journal has a commit that takes messages."""
        self.fact(seq, COMMITTED, txn)
        self.fact(seq, ACCEPTED, txn, queue=queue, claim=claim, ids=ids)

    def posted(self, txn: str, seq: int, ids: str, queue: str = "in") -> None:
        """Tell that the journal has a commit that sends messages."""
        self.fact(seq, COMMITTED, txn)
        self.fact(seq, POSTED, txn, queue=queue, ids=ids)

    def look(self, seq: int, committed: str = "", held: str = "", **waiting: str) -> None:
        """Look at the store as of a commit: whose commits are known, what waits and what is held.

        Args:
            seq: The commit.
            committed: The transactions whose commits are known.
            held: The messages of the queue ``in`` that are held.
            waiting: The messages that wait, by queue.
        """
        states = {queue: dict.fromkeys(ids.split(), "available") for queue, ids in waiting.items()}
        states.setdefault("in", {}).update(dict.fromkeys(held.split(), "in_flight"))
        got = {"seq": seq, "committed": committed.split(), "states": states}
        self.call("look", client="watcher", got=got)

    def read_again(self) -> None:
        """Read every version again, as it should be."""
        for version in {fact.version for fact in self.facts}:
            shown = frozenset(fact.name for fact in self.facts if fact.version <= version)
            self.versions[version] = shown

    def told(self) -> History:
        """Give the history."""
        facts = sorted(self.facts, key=lambda fact: fact.seq)
        return History(
            tuple(self.operations), tuple(facts), dict(self.versions), tuple(self.problems)
        )

    def change(self, name: str, **columns: Any) -> None:
        """Change a fact."""
        self.facts = [replace(f, **columns) if f.name == name else f for f in self.facts]


# ------------------------------------------------------------------------------------ good


def sent_and_taken() -> Story:
    """Two messages are sent, seen, taken, and seen to be gone."""
    story = Story()
    story.send("T1", 10, "a b")
    story.look(10, "T1", **{"in": "a b"})
    story.take("T2", 13, 1, "a b")
    story.look(13, "T1 T2", **{"in": ""})
    story.read_again()
    return story


def passed_on() -> Story:
    """A transaction takes from one queue and sends to another one."""
    story = Story()
    story.send("T1", 10, "a b")
    story.receive("T2", 12, 1, "a b")
    story.call("send", "T2", queue="out", ids=["c"])
    story.call("commit", "T2", got={"seq": 13})
    story.fact(13, COMMITTED, "T2")
    story.fact(13, ACCEPTED, "T2", queue="in", claim=1, ids="a b")
    story.fact(13, POSTED, "T2", queue="out", ids="c")
    story.take("T3", 16, 1, "c", "out")
    return story


def unknown_and_landed() -> Story:
    """A commit was not answered, and landed; its sender learned so by asking."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("commit", "T1", INFO)
    story.fact(10, COMMITTED, "T1")
    story.fact(10, POSTED, "T1", queue="in", ids="a")
    story.call("outcome", "T1", got={"status": COMMITTED})
    story.take("T2", 13, 1, "a")
    return story


def taken_over() -> Story:
    """A consumer's lease is over; the next one gets its message, and the first one is told."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive(None, 11, 1, "a")
    story.receive(None, 12, 2, "a", client="c2", supersedes=(1,))
    story.settle("accept", "a", 1, FAIL)
    story.settle("accept", "a", 2, client="c2")
    story.fact(14, ACCEPTED, queue="in", claim=2, ids="a")
    return story


def rolled_back() -> Story:
    """What was sent and received is rolled back; another one takes it."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive("T2", 11, 1, "a")
    story.call("send", "T2", queue="out", ids=["b"])
    story.call("rollback", "T2")
    story.fact(12, ROLLED_BACK, "T2")
    story.fact(12, RELEASED, "T2", queue="in", claim=1, ids="a")
    story.take("T3", 16, 2, "a")
    return story


def prepared() -> Story:
    """A transaction prepares, dies, and is committed by somebody else."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("prepare", "T1")
    story.fact(9, PREPARED, "T1")
    story.call("decide", "T1", client="c2", commit=True)
    story.fact(10, COMMITTED, "T1")
    story.fact(10, POSTED, "T1", queue="in", ids="a")
    story.take("T2", 13, 1, "a")
    return story


def decided_by_another_one() -> Story:
    """What one has prepared another one commits; then others commit, and it commits at last."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("prepare", "T1")
    story.fact(9, PREPARED, "T1")
    story.call("decide", "T1", client="c2", commit=True)
    story.fact(10, COMMITTED, "T1")
    story.fact(10, POSTED, "T1", queue="in", ids="a")
    story.take("T2", 13, 1, "a")
    story.call("commit", "T1", got={"seq": 10})
    return story


def redelivered() -> Story:
    """What is rolled back comes again, at its place: before what was sent after it."""
    story = Story()
    story.send("T1", 10, "a b c")
    story.receive("T2", 11, 1, "a b")
    story.look(11, "T1", held="a b", **{"in": "c"})
    story.roll_back("T2", 12, 1, "a b")
    story.look(12, "T1", **{"in": "a b c"})
    story.take("T3", 14, 2, "a b")
    story.take("T4", 16, 3, "c")
    return story


def given_back() -> Story:
    """What a consumer gives back comes again before what another one left in the queue."""
    story = Story()
    story.send("T1", 10, "a b c")
    story.receive(None, 11, 1, "a")
    story.receive(None, 12, 2, "b", client="c2")
    story.settle("release", "a", 1)
    story.fact(13, RELEASED, queue="in", claim=1, ids="a")
    story.receive(None, 14, 3, "a", client="c3")
    story.settle("accept", "b", 2, client="c2")
    story.fact(15, ACCEPTED, queue="in", claim=2, ids="b")
    story.settle("accept", "a", 3, client="c3")
    story.fact(16, ACCEPTED, queue="in", claim=3, ids="a")
    story.take("T2", 18, 4, "c")
    return story


def came_back_meanwhile() -> Story:
    """A claim does not know of what was rolled back while its receive was under way."""
    story = Story()
    story.send("T1", 10, "a b")
    story.receive("T2", 11, 1, "a")
    story.receive("T3", 13, 2, "b", client="c2")  # it is called before T2 ends
    story.roll_back("T2", 12, 1, "a")
    story.call("commit", "T3", got={"seq": 14}, client="c2")
    story.accepted("T3", 14, 2, "b")
    story.take("T4", 16, 3, "a")
    return story


def taken_over_in_part() -> Story:
    """Who takes a claim over takes the first of its messages; the others wait at their places."""
    story = Story()
    story.send("T1", 10, "a b")
    story.receive(None, 11, 1, "a b")
    story.send("T2", 12, "c")
    story.receive(None, 13, 2, "a", client="c2", supersedes=(1,))
    story.look(13, "T1 T2", held="a", **{"in": "b c"})
    story.settle("accept", "a b", 1, FAIL)
    story.settle("accept", "a", 2, client="c2")
    story.fact(14, ACCEPTED, queue="in", claim=2, ids="a")
    story.take("T3", 16, 3, "b c")
    return story


def taken_over_from_a_transaction() -> Story:
    """Who takes a transaction's messages over rolls it back; its late rollback changes nothing."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive("T2", 11, 1, "a")
    story.receive("T3", 12, 2, "a", client="c2", supersedes=(1,))
    story.fact(12, ROLLED_BACK, "T2")
    story.fact(12, RELEASED, "T2", queue="in", claim=1, ids="a")
    story.call("commit", "T2", FAIL, got={"error": "TransactionAborted"})
    story.call("rollback", "T2")
    story.look(12, "T1", held="a", **{"in": ""})
    story.call("commit", "T3", got={"seq": 13}, client="c2")
    story.accepted("T3", 13, 2, "a")
    return story


def given_back_by_a_receive_that_fails() -> Story:
    """A receive that fails gives back what it had claimed, and nobody asked for that."""
    story = Story()
    story.send("T1", 10, "a")
    story.call("receive", None, FAIL, queue="in", got={"error": "ConnectionError"})
    story.fact(11, CLAIMED, queue="in", claim=1, ids="a")
    story.fact(12, RELEASED, queue="in", claim=1, ids="a")
    story.take("T2", 15, 2, "a")
    return story


def release_in_doubt() -> Story:
    """Nobody knows whether a release has landed; it has not, and the lease ends."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive(None, 11, 1, "a")
    story.call("release", None, INFO, queue="in", got={"error": "TransactionUnknown"})
    story.receive("T2", 12, 2, "a", client="c2", supersedes=(1,))
    story.call("commit", "T2", got={"seq": 13}, client="c2")
    story.accepted("T2", 13, 2, "a")
    return story


def prepared_and_given_up() -> Story:
    """What a prepared transaction holds returns when somebody rolls it back."""
    story = Story()
    story.send("T1", 10, "a b")
    story.receive("T2", 11, 1, "a")
    story.call("prepare", "T2")
    story.fact(12, PREPARED, "T2")
    story.look(12, "T1", held="a", **{"in": "b"})
    story.take("T3", 14, 2, "b")
    story.call("decide", "T2", client="c2", commit=False)
    story.fact(15, ROLLED_BACK, "T2")
    story.fact(15, RELEASED, "T2", queue="in", claim=1, ids="a")
    story.call("outcome", "T2", got={"status": ROLLED_BACK})
    story.call("commit", "T2", FAIL, got={"error": "TransactionAborted"})
    story.take("T4", 17, 3, "a")
    return story


def decided_by_two() -> Story:
    """Two decide what is prepared; who comes second is told how it was decided."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("prepare", "T1")
    story.fact(9, PREPARED, "T1")
    story.call("decide", "T1", client="c2", commit=True)
    story.posted("T1", 10, "a")
    refused = {"error": "TransactionFinished"}
    story.call("decide", "T1", FAIL, client="c3", commit=False, got=refused)
    story.take("T2", 13, 1, "a")
    return story


def looked_before_it_landed() -> Story:
    """Who looks names a commit before the one that lands meanwhile."""
    story = Story()
    story.send("T1", 10, "a")
    story.call("send", "T2", queue="in", ids=["b"])
    story.call("commit", "T2", INFO)
    story.look(11, "T1", **{"in": "a"})
    story.posted("T2", 12, "b")
    story.look(12, "T1 T2", **{"in": "a b"})
    story.take("T3", 15, 1, "a b")
    return story


GOOD = (
    sent_and_taken,
    passed_on,
    unknown_and_landed,
    taken_over,
    rolled_back,
    prepared,
    decided_by_another_one,
    redelivered,
    given_back,
    came_back_meanwhile,
    taken_over_in_part,
    taken_over_from_a_transaction,
    given_back_by_a_receive_that_fails,
    release_in_doubt,
    prepared_and_given_up,
    decided_by_two,
    looked_before_it_landed,
)


# ------------------------------------------------------------------------------------- bad


def lost_commit() -> Story:
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("commit", "T1", got={"seq": 10})
    return story


def failed_and_landed() -> Story:
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("commit", "T1", FAIL)
    story.fact(10, COMMITTED, "T1")
    story.fact(10, POSTED, "T1", queue="in", ids="a")
    story.take("T2", 13, 1, "a")
    return story


def decided_twice() -> Story:
    story = rolled_back()
    story.fact(17, COMMITTED, "T2")
    return story


def committed_twice() -> Story:
    story = sent_and_taken()
    story.versions.clear()
    story.fact(20, COMMITTED, "T2", attempt="T2 2")
    return story


def outcome_changed() -> Story:
    story = sent_and_taken()
    story.call("outcome", "T1", got={"status": ROLLED_BACK})
    return story


def prepared_was_aborted() -> Story:
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("prepare", "T1")
    story.fact(9, PREPARED, "T1")
    story.fact(10, ROLLED_BACK, "T1")
    return story


def prepared_for_ever() -> Story:
    story = Story()
    story.call("prepare", "T1")
    story.fact(9, PREPARED, "T1")
    return story


def out_of_order() -> Story:
    """The second commit began after the first one was answered, and has an earlier place."""
    story = Story()
    story.send("T1", 12, "a")
    story.send("T2", 10, "x", queue="out")
    story.take("T3", 15, 1, "a")
    story.take("T4", 17, 1, "x", "out")
    return story


def unexpected_message() -> Story:
    story = Story()
    story.send("T1", 10, "a")
    story.take("T2", 13, 1, "a")
    story.call("receive", "T3", queue="in", got={"messages": [{"id": "z", "lane": 0, "claim": 2}]})
    story.fact(14, CLAIMED, "T3", queue="in", claim=2, ids="z")
    story.call("rollback", "T3")
    story.fact(15, ROLLED_BACK, "T3")
    story.fact(15, RELEASED, "T3", queue="in", claim=2, ids="z")
    return story


def own_message() -> Story:
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.receive("T1", 9, 1, "a")
    story.call("commit", "T1", got={"seq": 10})
    story.fact(10, COMMITTED, "T1")
    story.fact(10, POSTED, "T1", queue="in", ids="a")
    story.fact(10, ACCEPTED, "T1", queue="in", claim=1, ids="a")
    return story


def aborted_read() -> Story:
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("rollback", "T1")
    story.fact(9, ROLLED_BACK, "T1")
    story.receive("T2", 10, 1, "a")
    story.call("rollback", "T2")
    story.fact(11, ROLLED_BACK, "T2")
    story.fact(11, RELEASED, "T2", queue="in", claim=1, ids="a")
    return story


def intermediate_read() -> Story:
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.receive("T2", 11, 1, "a")
    story.call("commit", "T1", got={"seq": 10})
    story.fact(10, COMMITTED, "T1")
    story.fact(10, POSTED, "T1", queue="in", ids="a")
    story.call("commit", "T2", got={"seq": 13})
    story.fact(13, COMMITTED, "T2")
    story.fact(13, ACCEPTED, "T2", queue="in", claim=1, ids="a")
    return story


def torn_sends() -> Story:
    """A committed transaction has one of its two sends."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("send", "T1", queue="out", ids=["b"])
    story.call("commit", "T1", got={"seq": 10})
    story.fact(10, COMMITTED, "T1")
    story.fact(10, POSTED, "T1", queue="in", ids="a")
    story.take("T2", 13, 1, "a")
    return story


def torn_in_time() -> Story:
    """What a transaction sent came with the commit, what it took a version later."""
    story = passed_on()
    story.change(next(f.name for f in story.facts if f.kind == ACCEPTED), seq=14, version=14)
    return story


def effect_without_commit() -> Story:
    story = rolled_back()
    story.fact(18, POSTED, "T2", queue="out", ids="b")
    story.receive("T4", 19, 1, "b", "out")
    story.call("rollback", "T4")
    story.fact(20, ROLLED_BACK, "T4")
    story.fact(20, RELEASED, "T4", queue="out", claim=1, ids="b")
    return story


def duplicate_message() -> Story:
    story = Story()
    story.send("T1", 10, "a")
    story.fact(10, POSTED, "T1", queue="in", ids="a")
    story.take("T2", 13, 1, "a")
    return story


def duplicate_delivery() -> Story:
    story = sent_and_taken()
    story.versions.clear()
    story.take("T3", 20, 2, "a")
    return story


def lost_message() -> Story:
    story = Story()
    story.send("T1", 10, "a b")
    story.take("T2", 13, 1, "a")
    return story


def taken_by_nobody() -> Story:
    """A message was taken out of the queue, and nobody got it."""
    story = Story()
    story.send("T1", 10, "a")
    story.fact(11, CLAIMED, queue="in", claim=1, ids="a")
    story.settle("accept", "a", 1, INFO)
    story.fact(12, ACCEPTED, queue="in", claim=1, ids="a")
    return story


def lost_acknowledgement() -> Story:
    """A consumer was told that it is done with a message, which came again."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive(None, 11, 1, "a")
    story.settle("accept", "a", 1)
    story.fact(12, RELEASED, queue="in", claim=1, ids="a")
    story.take("T2", 15, 2, "a")
    return story


def zombie_acknowledged() -> Story:
    """The consumer whose lease was taken over settles the message all the same."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive(None, 11, 1, "a")
    story.receive(None, 12, 2, "a", client="c2", supersedes=(1,))
    story.settle("accept", "a", 1)
    story.fact(14, ACCEPTED, queue="in", claim=1, ids="a")
    return story


def acknowledged_after_failure() -> Story:
    story = Story()
    story.send("T1", 10, "a")
    story.receive(None, 11, 1, "a")
    story.settle("accept", "a", 1, FAIL)
    story.fact(12, ACCEPTED, queue="in", claim=1, ids="a")
    return story


def claimed_twice() -> Story:
    """Two transactions hold one message; the second one takes it."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive("T2", 11, 1, "a")
    story.receive("T3", 12, 2, "a", client="c2")
    story.call("rollback", "T2")
    story.fact(13, ROLLED_BACK, "T2")
    story.call("commit", "T3", got={"seq": 14}, client="c2")
    story.fact(14, COMMITTED, "T3")
    story.fact(14, ACCEPTED, "T3", queue="in", claim=2, ids="a")
    return story


def held_for_ever() -> Story:
    story = Story()
    story.send("T1", 10, "a")
    story.receive("T2", 11, 1, "a")
    return story


def skipped() -> Story:
    """The second message of a lane is delivered before the first one.

    Nobody was told that they are there; but who sees the second one sees the first one, too.
    """
    story = Story()
    story.call("send", "T1", queue="in", ids=["a", "b"])
    story.call("commit", "T1", INFO)
    story.posted("T1", 10, "a b")
    story.take("T2", 13, 1, "b")
    story.take("T3", 16, 2, "a")
    return story


def inverted() -> Story:
    """A batch has its messages in another order than their lane."""
    story = Story()
    story.send("T1", 10, "a b")
    messages = [{"id": one, "lane": 0, "claim": 1} for one in "ba"]
    story.call("receive", "T2", queue="in", got={"messages": messages})
    story.fact(12, CLAIMED, "T2", queue="in", claim=1, ids="a b")
    story.call("commit", "T2", got={"seq": 13})
    story.fact(13, COMMITTED, "T2")
    story.fact(13, ACCEPTED, "T2", queue="in", claim=1, ids="a b")
    return story


def torn_read() -> Story:
    """A look shows that what a transaction took is gone, and not what it sent."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive("T2", 12, 1, "a")
    story.call("send", "T2", queue="out", ids=["c"])
    story.call("commit", "T2", INFO)
    story.fact(13, COMMITTED, "T2")
    story.fact(13, ACCEPTED, "T2", queue="in", claim=1, ids="a")
    story.fact(13, POSTED, "T2", queue="out", ids="c")
    story.look(13, "T1", **{"in": "", "out": ""})
    story.take("T3", 16, 1, "c", "out")
    return story


def flicker() -> Story:
    """What a look shows as gone is there again for the next one."""
    story = sent_and_taken()
    story.look(16, "T1 T2", **{"in": "a"})
    return story


def stale_read() -> Story:
    """Who looks after a commit was answered does not see it."""
    story = Story()
    story.send("T1", 10, "a")
    story.look(10, "", **{"in": ""})
    story.take("T2", 13, 1, "a")
    return story


def look_at_what_was_aborted() -> Story:
    """A look shows what was sent by a transaction that is rolled back afterwards."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.look(8, "", **{"in": "a"})
    story.call("rollback", "T1")
    story.fact(9, ROLLED_BACK, "T1")
    return story


def version_changed() -> Story:
    """A version that is read again shows what came later."""
    story = sent_and_taken()
    story.versions[10] |= {story.facts[-1].name}
    return story


def journal_against_itself() -> Story:
    """The audit of the entries alone has found something."""
    story = sent_and_taken()
    story.problems.append("P6 a sequence was given twice")
    return story


def write_cycle() -> Story:
    """Of two that sent to two queues each came before the other one in one of them."""
    story = Story()
    for n, (first, second) in enumerate([(10, 11), (11, 10)]):
        txn = f"T{n}"
        story.call("send", txn, queue="in", ids=[f"a{n}"])
        story.call("send", txn, queue="out", ids=[f"b{n}"])
        story.call("commit", txn, INFO)
        story.fact(first, COMMITTED, txn)
        story.fact(first, POSTED, txn, queue="in", ids=f"a{n}")
        story.fact(second, POSTED, txn, queue="out", ids=f"b{n}")
    story.take("T2", 15, 1, "a0 a1")
    story.take("T3", 18, 1, "b1 b0", "out")
    return story


def circular_information() -> Story:
    """Each of two transactions received what the other one sent."""
    story = Story()
    for txn, queue, mine in (("T1", "in", "a"), ("T2", "out", "b")):
        story.call("send", txn, queue=queue, ids=[mine])
        story.call("commit", txn, INFO)
    story.receive("T1", 8, 1, "b", "out")
    story.receive("T2", 9, 1, "a", "in")
    for seq, txn, sent, taken in ((10, "T1", "in", "out"), (11, "T2", "out", "in")):
        story.fact(seq, COMMITTED, txn)
        story.fact(seq, POSTED, txn, queue=sent, ids="a" if sent == "in" else "b")
        story.fact(seq, ACCEPTED, txn, queue=taken, claim=1, ids="a" if taken == "in" else "b")
    return story


def read_skew() -> Story:
    """A look shows a later transaction's message, and not that of the one it depends on."""
    story = passed_on()
    story.look(16, "T2 T3", **{"in": "", "out": ""})
    return story


def long_fork() -> Story:
    """Two that look see two sends in different orders."""
    story = Story()
    for txn, seq, message, queue in (("T1", 10, "a", "in"), ("T2", 11, "b", "out")):
        story.call("send", txn, queue=queue, ids=[message])
        story.call("commit", txn, INFO)
        story.fact(seq, COMMITTED, txn)
        story.fact(seq, POSTED, txn, queue=queue, ids=message)
    story.look(10, "T1", **{"in": "a", "out": ""})
    story.look(11, "T2", **{"in": "", "out": "b"})
    story.take("T3", 14, 1, "a")
    story.take("T4", 16, 1, "b", "out")
    return story


def decided_and_gone() -> Story:
    """Who decides for another one is told that it is committed, and it is not."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("prepare", "T1")
    story.fact(9, PREPARED, "T1")
    story.call("decide", "T1", client="c2", commit=True)
    story.call("rollback", "T1", INFO)
    story.fact(10, ROLLED_BACK, "T1")
    return story


def rolled_back_and_committed() -> Story:
    """A commit was not answered, its rollback was, and it is committed."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("commit", "T1", INFO)
    story.call("rollback", "T1")
    story.posted("T1", 10, "a")
    story.take("T2", 13, 1, "a")
    return story


def decided_otherwise() -> Story:
    """Who decides for another one is told that it is rolled back, and it is committed."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("prepare", "T1")
    story.fact(9, PREPARED, "T1")
    story.call("decide", "T1", client="c2", commit=False)
    story.posted("T1", 10, "a")
    story.take("T2", 13, 1, "a")
    return story


def undecided_after_its_commit() -> Story:
    story = sent_and_taken()
    story.call("outcome", "T1", got={"status": "undecided"})
    return story


def in_another_queue() -> Story:
    """What is sent to one queue is in another one."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("commit", "T1", got={"seq": 10})
    story.posted("T1", 10, "a", "out")
    story.take("T2", 13, 1, "a", "out")
    return story


def in_both_queues() -> Story:
    """What is sent to one queue is in another one, too."""
    story = Story()
    story.send("T1", 10, "a")
    story.fact(10, POSTED, "T1", queue="out", ids="a")
    story.take("T2", 13, 1, "a")
    story.take("T3", 16, 1, "a", "out")
    return story


def taken_out_of_another_queue() -> Story:
    """A message stands in two queues; who received it from one has taken it out of the other."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("send", "T1", queue="out", ids=["a"])
    story.call("commit", "T1", got={"seq": 10})
    story.posted("T1", 10, "a")
    story.fact(10, POSTED, "T1", queue="out", ids="a")
    story.receive("T2", 11, 1, "a")
    story.call("commit", "T2", got={"seq": 12})
    story.accepted("T2", 12, 1, "a", "out")
    return story


def came_back_at_the_end() -> Story:
    """What was rolled back comes after what was sent after it."""
    story = Story()
    story.send("T1", 10, "a b c")
    story.receive("T2", 11, 1, "a")
    story.roll_back("T2", 12, 1, "a")
    story.take("T3", 15, 2, "b c")
    story.take("T4", 18, 3, "a")
    return story


def came_back_in_reverse() -> Story:
    """What comes again does so in another order."""
    story = Story()
    story.send("T1", 10, "a b")
    story.receive("T2", 11, 1, "a b")
    story.roll_back("T2", 12, 1, "a b")
    story.take("T3", 15, 2, "b a")
    return story


def given_back_and_passed_over() -> Story:
    """The lane's own log says that a message was given back, and the next claim passes it over.

    Who received it was called before, but its claim is the lane's next entry.
    """
    story = Story()
    story.send("T1", 10, "a b")
    story.receive(None, 11, 1, "a")
    story.receive("T2", 13, 2, "b", client="c2")
    story.settle("release", "a", 1)
    story.fact(12, RELEASED, queue="in", claim=1, ids="a")
    story.call("commit", "T2", got={"seq": 14}, client="c2")
    story.accepted("T2", 14, 2, "b")
    story.take("T3", 16, 3, "a")
    return story


def handed_to_two() -> Story:
    """Two clients are given what one claim holds."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive(None, 11, 1, "a")
    messages = [{"id": "a", "lane": 0, "claim": 1}]
    story.call("receive", None, queue="in", client="c2", got={"messages": messages})
    story.settle("accept", "a", 1)
    story.fact(12, ACCEPTED, queue="in", claim=1, ids="a")
    return story


def handed_to_another_one() -> Story:
    """A transaction is given what another one has claimed."""
    story = Story()
    story.send("T1", 10, "a")
    messages = [{"id": "a", "lane": 0, "claim": 1}]
    story.call("receive", "T2", queue="in", got={"messages": messages})
    story.fact(11, CLAIMED, "T3", queue="in", claim=1, ids="a")
    story.call("commit", "T2", got={"seq": 12})
    story.accepted("T2", 12, 1, "a")
    return story


def claimed_before_it_was_posted() -> Story:
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("commit", "T1", INFO)
    story.receive("T2", 9, 1, "a")
    story.posted("T1", 10, "a")
    story.call("commit", "T2", got={"seq": 13})
    story.accepted("T2", 13, 1, "a")
    return story


def claimed_in_another_lane() -> Story:
    story = Story()
    story.send("T1", 10, "a")
    messages = [{"id": "a", "lane": 1, "claim": 1}]
    story.call("receive", "T2", queue="in", got={"messages": messages})
    story.fact(12, CLAIMED, "T2", queue="in", lane=1, claim=1, ids="a")
    story.call("commit", "T2", got={"seq": 13})
    story.fact(13, COMMITTED, "T2")
    story.fact(13, ACCEPTED, "T2", queue="in", lane=1, claim=1, ids="a")
    return story


def both_are_told_that_they_accepted() -> Story:
    """Whose claim was taken over is told, too, that it has accepted the message."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive(None, 11, 1, "a")
    story.receive(None, 12, 2, "a", client="c2", supersedes=(1,))
    story.settle("accept", "a", 1)
    story.settle("accept", "a", 2, client="c2")
    story.fact(14, ACCEPTED, queue="in", claim=2, ids="a")
    return story


def told_twice() -> Story:
    """Two calls are told that they have accepted one message by one claim."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive(None, 11, 1, "a")
    story.settle("accept", "a", 1)
    story.settle("accept", "a", 1)
    story.fact(14, ACCEPTED, queue="in", claim=1, ids="a")
    return story


def lost_release() -> Story:
    """A consumer was told that it has given a message back, and holds it until its lease ends."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive(None, 11, 1, "a")
    story.settle("release", "a", 1)
    story.receive(None, 20, 2, "a", client="c2", supersedes=(1,))
    story.settle("accept", "a", 2, client="c2")
    story.fact(22, ACCEPTED, queue="in", claim=2, ids="a")
    return story


def released_after_failure() -> Story:
    story = Story()
    story.send("T1", 10, "a")
    story.receive(None, 11, 1, "a")
    story.settle("release", "a", 1, FAIL)
    story.fact(12, RELEASED, queue="in", claim=1, ids="a")
    story.take("T2", 15, 2, "a")
    return story


def zombie_released() -> Story:
    """The consumer whose lease was taken over gives the message back, which another one holds."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive(None, 11, 1, "a")
    story.receive(None, 12, 2, "a", client="c2", supersedes=(1,))
    story.settle("release", "a", 1)
    story.fact(13, RELEASED, queue="in", claim=1, ids="a")
    story.settle("accept", "a", 2, client="c2")
    story.fact(15, ACCEPTED, queue="in", claim=2, ids="a")
    return story


def zombie_rolled_back() -> Story:
    """After a late rollback the message of another one is free: a third one claims it."""
    story = taken_over_from_a_transaction()
    story.facts = [fact for fact in story.facts if fact.seq < 13]
    story.operations.pop()
    story.receive("T4", 13, 3, "a", client="c3")
    story.call("commit", "T4", got={"seq": 14}, client="c3")
    story.accepted("T4", 14, 3, "a")
    return story


def released_by_another_transaction() -> Story:
    """The rollback of one transaction gives back what another one holds."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive("T2", 11, 1, "a")
    story.roll_back("T9", 12, 1, "a")
    story.call("rollback", "T2")
    story.take("T3", 15, 2, "a")
    return story


def taken_from_what_is_prepared() -> Story:
    """Messages of a prepared transaction are taken over; later it is rolled back."""
    story = Story()
    story.send("T1", 10, "a")
    story.receive("T2", 11, 1, "a")
    story.call("prepare", "T2")
    story.fact(12, PREPARED, "T2")
    story.receive("T3", 13, 2, "a", client="c2", supersedes=(1,))
    story.call("commit", "T3", got={"seq": 14}, client="c2")
    story.accepted("T3", 14, 2, "a")
    story.call("decide", "T2", commit=False)
    story.fact(16, ROLLED_BACK, "T2")
    return story


def rolled_back_though_that_failed() -> Story:
    """Who asked for the rollback of what is prepared was told that it failed."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("prepare", "T1")
    story.fact(9, PREPARED, "T1")
    story.call("decide", "T1", FAIL, commit=False, got={"error": "Busy"})
    story.fact(10, ROLLED_BACK, "T1")
    return story


def look_that_misses_a_commit() -> Story:
    """A look names a later commit, and does not know of one of which nobody was told."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("commit", "T1", INFO)
    story.posted("T1", 10, "a")
    story.look(20, "", **{"in": ""})
    story.take("T2", 23, 1, "a")
    return story


def look_at_the_future() -> Story:
    """A look shows a commit that comes after the one that it names."""
    story = Story()
    story.call("send", "T1", queue="in", ids=["a"])
    story.call("commit", "T1", INFO)
    story.posted("T1", 10, "a")
    story.look(5, "T1", **{"in": "a"})
    story.take("T2", 23, 1, "a")
    return story


def held_by_nobody() -> Story:
    """A look shows a message in flight, and nobody holds it."""
    story = Story()
    story.send("T1", 10, "a")
    story.look(10, "T1", held="a")
    story.take("T2", 13, 1, "a")
    return story


def store_is_corrupt() -> Story:
    """Everybody is told all the time that the store is corrupt."""
    story = sent_and_taken()
    story.call("look", None, FAIL, got={"error": "StoreCorrupt"})
    return story


def error_of_no_type() -> Story:
    story = sent_and_taken()
    story.call("receive", None, INFO, queue="in", got={"error": "KeyError"})
    return story


def refused_without_fault() -> Story:
    """Spark cannot read a statement of the library, and nobody made that happen."""
    story = sent_and_taken()
    story.call("commit", "T9", FAIL, got={"error": "StatementRefused"})
    return story


BAD: dict[Callable[[], Story], str] = {
    lost_commit: "lost commit",
    failed_and_landed: "reported failed",
    decided_twice: "decided twice",
    committed_twice: "committed twice",
    outcome_changed: "outcome changed",
    prepared_was_aborted: "prepared was aborted",
    prepared_for_ever: "hanging",
    out_of_order: "commit order",
    unexpected_message: "unexpected message",
    own_message: "own message",
    aborted_read: "aborted read",
    intermediate_read: "intermediate read",
    torn_sends: "torn transaction",
    torn_in_time: "torn transaction",
    effect_without_commit: "effect without commit",
    duplicate_message: "duplicate message",
    duplicate_delivery: "duplicate delivery",
    lost_message: "lost message",
    taken_by_nobody: "lost message",
    lost_acknowledgement: "lost accept",
    zombie_acknowledged: "fence order",
    acknowledged_after_failure: "reported failed",
    claimed_twice: "claimed twice",
    held_for_ever: "hanging",
    skipped: "lane order",
    inverted: "not what was claimed",
    torn_read: "torn read",
    flicker: "flicker",
    stale_read: "G-single-realtime",
    look_at_what_was_aborted: "aborted read",
    version_changed: "version changed",
    journal_against_itself: "journal",
    write_cycle: "G0",
    circular_information: "G1c",
    read_skew: "G-single",
    long_fork: "G2",
    decided_and_gone: "lost commit",
    rolled_back_and_committed: "rolled back and committed",
    decided_otherwise: "rolled back and committed",
    undecided_after_its_commit: "outcome changed",
    in_another_queue: "torn transaction",
    in_both_queues: "torn transaction",
    taken_out_of_another_queue: "torn transaction",
    came_back_at_the_end: "order after redelivery",
    came_back_in_reverse: "order after redelivery",
    given_back_and_passed_over: "order after redelivery",
    handed_to_two: "handed to two",
    handed_to_another_one: "not what was claimed",
    claimed_before_it_was_posted: "claimed elsewhere",
    claimed_in_another_lane: "claimed elsewhere",
    both_are_told_that_they_accepted: "lost accept",
    told_twice: "told twice",
    lost_release: "lost release",
    released_after_failure: "reported failed",
    zombie_released: "fence order",
    zombie_rolled_back: "claimed twice",
    released_by_another_transaction: "fence order",
    taken_from_what_is_prepared: "taken over too early",
    rolled_back_though_that_failed: "prepared was aborted",
    look_that_misses_a_commit: "wrong look",
    look_at_the_future: "wrong look",
    held_by_nobody: "wrong look",
    store_is_corrupt: "unexpected error",
    error_of_no_type: "unexpected error",
    refused_without_fault: "unexpected error",
}
"""What must be found in each; other names may be found besides."""
