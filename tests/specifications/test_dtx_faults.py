"""Branches whose store calls fail, land unheard, land late, or are the last: all or nothing.

And a method that failed can be called again, as the text of its error says.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, rows
from tests.faults import world as faulty
from tests.faults.injection import Crash, Fault, Injector
from tests.faults.interrupts import Interrupt
from tests.inside import client_of
from tests.silence import unanswered
from tests.specifications.dtx_world import Dtx, refused
from txnqueue.errors import TransactionFinished
from txnqueue.protocols.dtx import (
    AccessTicket,
    Channel,
    ChannelException,
    Connection,
    XaStatus,
    Xid,
)
from txnqueue.testing import MemoryStore

CALLS = 40
"""More store calls than the life of a branch takes."""
TRIES = 3


def unheard(channel: Channel) -> AbstractContextManager[None]:
    """Let the next append land, and nothing be read or written after it."""
    return unanswered(client_of(channel._connection.manager).store.journal, lands=True)


# ------------------------------------------------------------ an end that nobody heard of


@in_memory
@pytest.mark.rule("S4-14", "S4-15")
def test_after_an_end_in_doubt_no_work_is_taken_that_nobody_would_commit(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    queue = channel.queue(dtx.orders.name)
    queue.send(rows(8))
    with unheard(channel), refused(541):
        channel.end(xid)
    with pytest.raises(TransactionFinished, match="end it again"):
        queue.send(rows(9))
    with pytest.raises(TransactionFinished, match="end it again"):
        channel.queue(dtx.orders.name).receive(1)
    assert channel.working
    assert channel.end(xid) is XaStatus.OK
    channel.commit(xid, one_phase=True)
    assert dtx.waiting() == [1, 2, 3, 8]


@in_memory
@pytest.mark.rule("S4-14", "S4-15")
def test_a_refused_end_after_one_in_doubt_lets_no_work_in(world: World) -> None:
    """The part may be sealed: what was done after it would be in no part, and lost."""
    dtx = Dtx(world)
    channel, xid, ticket = dtx.channel(), dtx.xid(), AccessTicket("billing")
    channel.start(xid, ticket=ticket)
    queue = channel.queue(dtx.orders.name)
    with refused(530):
        channel.end(xid)  # nothing is in doubt yet
    queue.send(rows(8))
    with unheard(channel), refused(541):
        channel.end(xid, ticket=ticket)
    with refused(530):
        channel.end(xid)
    with pytest.raises(TransactionFinished, match="end it again"):
        queue.send(rows(9))
    assert channel.end(xid, ticket=ticket) is XaStatus.OK
    assert channel.commit(xid, one_phase=True, ticket=ticket) is XaStatus.OK
    assert dtx.waiting() == [1, 2, 3, 8]


@in_memory
@pytest.mark.rule("S4-13")
def test_a_channel_leaves_work_that_a_store_put_back_does_not_know(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    dtx.channel("b").start(xid)
    channel.start(xid, join=True)
    assert channel._working is not None
    channel._working.name = "of a later time than the backup"
    with refused(404):
        channel.end(xid)
    assert channel.start(dtx.xid()) is XaStatus.OK


@in_memory
@pytest.mark.rule("S4-14", "S4-15")
def test_an_end_in_doubt_can_be_made_a_failure(world: World) -> None:
    dtx = Dtx(world)
    ends: list[dict[str, Any]] = [{}, {"suspend": True}]
    for end in ends:
        channel, xid = dtx.channel(), dtx.xid()
        channel.start(xid)
        dtx.work(channel)
        with unheard(channel), refused(541):
            channel.end(xid, **end)
        assert channel.end(xid, fail=True) is XaStatus.RBROLLBACK
        assert channel.prepare(xid) is XaStatus.RBROLLBACK
        assert dtx.waiting() == [1, 2, 3]


@in_memory
@pytest.mark.rule("S4-14", "S4-07")
def test_a_channel_that_is_closed_after_an_end_in_doubt_has_failed(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    with unheard(channel), refused(541):
        channel.end(xid)
    channel.close()
    assert dtx.channel("tm").commit(xid, one_phase=True) is XaStatus.RBROLLBACK


@in_memory
@pytest.mark.rule("S4-14", "S4-16")
def test_a_suspension_in_doubt_can_be_made_an_end(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    with unheard(channel), refused(541):
        channel.end(xid, suspend=True)
    assert channel.end(xid) is XaStatus.OK
    assert channel.prepare(xid) is XaStatus.OK


@in_memory
@pytest.mark.rule("S4-13", "S4-14")
@pytest.mark.parametrize("end", [{"suspend": True}, {"fail": True}])
def test_what_has_ended_unheard_and_gone_on_is_not_ended_otherwise(world: World, end: Any) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    with unheard(channel), refused(541):
        channel.end(xid)
    decider = dtx.channel("tm")
    assert decider.prepare(xid) is XaStatus.OK
    before = dtx.entries()
    with refused(404):
        channel.end(xid, **end)
    assert dtx.entries() == before and not channel.working
    assert channel.start(dtx.xid()) is XaStatus.OK
    assert decider.commit(xid) is XaStatus.OK
    assert dtx.waiting() == [2, 3, 9]


@in_memory
@pytest.mark.rule("S4-13", "S4-14")
def test_a_channel_leaves_a_branch_that_was_completed_after_its_unheard_end(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    with unheard(channel), refused(541):
        channel.end(xid)
    dtx.channel("tm").commit(xid, one_phase=True)
    with refused(404):
        channel.end(xid)
    assert channel.start(dtx.xid()) is XaStatus.OK


@in_memory
@pytest.mark.rule("S4-11")
def test_a_resume_in_doubt_can_be_tried_again(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel, send=8)
    channel.end(xid, suspend=True)
    with unheard(channel), refused(541):
        channel.start(xid, resume=True)
    assert channel.start(xid, resume=True) is XaStatus.OK
    dtx.work(channel, send=9)
    assert channel.end(xid) is XaStatus.OK
    assert channel.commit(xid, one_phase=True) is XaStatus.OK
    assert dtx.waiting() == [3, 8, 9]


# ------------------------------------------------------ an association that nobody heard of

ASSOCIATIONS = ("start", "join", "resume", "resume others")


def doubtful(dtx: Dtx, how: str, *, lands: bool = True) -> tuple[Channel, Xid, Any]:
    """Associate a channel by an append whose reply is lost, and that cannot be read after."""
    channel, other, xid = dtx.channel(), dtx.channel("b"), dtx.xid()
    flags: Any = {}
    if how == "join":
        dtx.start_elsewhere(other, xid)
        flags = {"join": True}
    elif how == "resume":
        channel.start(xid)
        dtx.work(channel, send=8)
        channel.end(xid, suspend=True)
        flags = {"resume": True}
    elif how == "resume others":
        dtx.start_elsewhere(other, xid, suspend=True)
        flags = {"resume": True}
    journal = client_of(channel._connection.manager).store.journal
    with unanswered(journal, lands=lands), refused(541):
        channel.start(xid, **flags)
    return channel, xid, flags


SENT = {"start": [], "join": [8], "resume": [8], "resume others": [8]}
LEFT = {"start": [1, 2, 3], "join": [2, 3], "resume": [2, 3], "resume others": [2, 3]}


@in_memory
@pytest.mark.rule("S4-06", "S4-08", "S4-10", "S4-11", "S4-14")
@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("how", ASSOCIATIONS)
def test_an_association_in_doubt_is_tried_again(world: World, how: str, lands: bool) -> None:
    dtx = Dtx(world)
    channel, xid, flags = doubtful(dtx, how, lands=lands)
    before = dtx.entries()
    assert channel.start(xid, **flags) is XaStatus.OK
    assert (dtx.entries() == before) == lands, "one association, not two"
    channel.queue(dtx.orders.name).send(rows(9))
    assert channel.end(xid) is XaStatus.OK
    assert channel.commit(xid, one_phase=True) is XaStatus.OK
    assert dtx.waiting() == [*LEFT[how], *SENT[how], 9]


@in_memory
@pytest.mark.rule("S4-13", "S4-14")
@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("how", ASSOCIATIONS)
def test_an_association_in_doubt_is_ended(world: World, how: str, fail: bool) -> None:
    dtx = Dtx(world)
    channel, xid, _ = doubtful(dtx, how)
    assert channel.end(xid, fail=fail) is (XaStatus.RBROLLBACK if fail else XaStatus.OK)
    with refused(404):
        channel.end(xid)
    decided = dtx.channel("tm").commit(xid, one_phase=True)
    assert decided is (XaStatus.RBROLLBACK if fail else XaStatus.OK)
    assert dtx.waiting() == ([1, 2, 3] if fail else LEFT[how] + SENT[how])


@in_memory
@pytest.mark.rule("S4-14", "S4-15")
@pytest.mark.parametrize("again", [{}, {"fail": True}])
@pytest.mark.parametrize("how", ASSOCIATIONS)
def test_an_association_and_its_end_may_both_be_in_doubt(
    world: World, how: str, again: Any
) -> None:
    dtx = Dtx(world)
    channel, xid, _ = doubtful(dtx, how)
    with unheard(channel), refused(541):
        channel.end(xid)
    assert channel.end(xid, **again) is (XaStatus.RBROLLBACK if again else XaStatus.OK)
    decided = dtx.channel("tm").commit(xid, one_phase=True)
    assert decided is (XaStatus.RBROLLBACK if again else XaStatus.OK)
    assert dtx.waiting() == ([1, 2, 3] if again else LEFT[how] + SENT[how])


@in_memory
@pytest.mark.rule("S4-13", "S4-14")
@pytest.mark.parametrize("how", ASSOCIATIONS)
def test_an_association_in_doubt_is_ended_when_the_channel_is_closed(
    world: World, how: str
) -> None:
    dtx = Dtx(world)
    channel, xid, _ = doubtful(dtx, how)
    with unanswered(client_of(channel._connection.manager).store.journal, lands=False):
        with refused(541):
            channel.close()
    with refused(503):
        channel.start(dtx.xid())
    channel.close()  # the store is there again
    assert dtx.channel("tm").commit(xid, one_phase=True) is XaStatus.RBROLLBACK
    assert dtx.waiting() == [1, 2, 3]


@in_memory
@pytest.mark.rule("S4-13")
@pytest.mark.parametrize("how", ASSOCIATIONS)
def test_an_association_that_never_landed_is_not_ended(world: World, how: str) -> None:
    dtx = Dtx(world)
    channel, xid, _ = doubtful(dtx, how, lands=False)
    before = dtx.entries()
    with refused(404):
        channel.end(xid)
    channel.close()
    assert dtx.entries() == before


@in_memory
@pytest.mark.rule("S4-08", "S4-12")
def test_a_start_in_doubt_of_what_was_rolled_back_since_says_so(world: World) -> None:
    dtx = Dtx(world)
    channel, xid, _ = doubtful(dtx, "start")
    dtx.overdue()
    world.manager("x").recover()
    assert channel.start(xid) is XaStatus.RBROLLBACK
    assert not channel.working
    other = dtx.channel("c")
    with refused(530):
        other.start(xid)


@in_memory
@pytest.mark.rule("S4-08")
def test_a_start_in_doubt_is_refused_if_others_were_faster(world: World) -> None:
    dtx = Dtx(world)
    channel, xid, _ = doubtful(dtx, "start", lands=False)
    dtx.channel("c").start(xid)
    with refused(530):
        channel.start(xid)
    with refused(404):
        channel.end(xid)
    channel.close()


@pytest.mark.rule("S4-14", "S4-20")
@pytest.mark.parametrize("how", ASSOCIATIONS)
def test_an_association_that_is_interrupted_anywhere_is_ended_by_its_channel(how: str) -> None:
    """Else the branch could not be decided before its time-out."""
    nth, landed = 0, 0
    while True:
        nth += 1
        dtx = Dtx(World(MemoryStore()))
        channel, other, xid = dtx.channel(), dtx.channel("b"), dtx.xid()
        flags: Any = {} if how == "start" else {"join": True} if how == "join" else {"resume": True}
        if how in ("join", "resume others"):
            dtx.start_elsewhere(other, xid, suspend=how != "join")
        elif how == "resume":
            dtx.start_elsewhere(channel, xid, suspend=True)
        with suppress(KeyboardInterrupt), Interrupt(nth) as interrupt:
            channel.start(xid, **flags)
        if interrupt.at is None:
            break
        with suppress(ChannelException):  # it never landed
            assert channel.end(xid) is XaStatus.OK
            landed += 1
        channel.close()
        decided = patiently(partial(other.rollback, xid))
        assert decided in (XaStatus.OK, 404), f"{interrupt.at}: {decided}"
    assert landed > 3


# --------------------------------------------------------------- every call of a whole life


def patiently(act: Callable[[], Any]) -> Any:
    """Call a method, and again after a 541; the answer, the last reply code, or None."""
    code = None
    for _ in range(TRIES):
        try:
            return act()
        except ChannelException as refused:
            code = int(refused.reply_code)
            if code != 541:
                return code
        except KeyboardInterrupt:
            code = 541
    return code


def live(channel: Channel, xid: Xid, sent: list[int], received: list[int], one_phase: bool) -> Any:
    """Work in a branch in two portions, and commit it; what the commit answered."""
    channel.select()
    if patiently(lambda: channel.start(xid)) is not XaStatus.OK:
        return None

    def work(number: int) -> None:
        try:
            channel.queue("out").send([{"i": number}])
            sent.append(number)
            received.append(len(channel.queue("in").receive(1)))
        except (Exception, KeyboardInterrupt):
            pass  # what failed is no part of it

    work(7)
    for step in (
        lambda: channel.end(xid, suspend=True),
        lambda: channel.start(xid, resume=True),
    ):
        if patiently(step) is not XaStatus.OK:
            return None
    work(8)
    if patiently(lambda: channel.end(xid)) is not XaStatus.OK:
        return None
    if not one_phase and patiently(lambda: channel.prepare(xid)) not in (XaStatus.OK, 503):
        return None
    return patiently(lambda: channel.commit(xid, one_phase=one_phase))


@pytest.mark.rule("S4-14", "S4-19", "S4-23", "S4-24", "S4-25")
@pytest.mark.parametrize("one_phase", [True, False])
@pytest.mark.parametrize("fault", list(Fault))
def test_a_branch_happens_wholly_or_not_at_all_and_says_so(fault: Fault, one_phase: bool) -> None:
    outcomes = set()
    for at in range(CALLS):
        world, injector = faulty.World(), Injector(at, fault)
        world.create("in")
        world.create("out")
        world.helper("creator").queue("in").send([{"i": n} for n in range(3)])
        channel = Connection(world.manager("A", injector)).channel()
        xid, sent, received, told = Xid.of(1, b"g"), list[Any](), list[Any](), None
        injector.arm()
        with suppress(Crash):
            told = live(channel, xid, sent, received, one_phase)
        injector.disarm()
        injector.flush()
        world.explicit.add(xid.transaction_id)
        decider = Connection(world.manager("B")).channel()
        waiting = decider.recover(startscan=True, endscan=True)
        if waiting:
            assert waiting == [xid] and decider.rollback(xid) is XaStatus.OK
        world.clock.advance(301)
        world.manager("C").recover()
        world.ledger()
        fresh = world.manager("D")
        found = sorted(row["i"] for row in fresh.queue("out").peek_messages(100))
        source = fresh.queue("in")
        left = sum(len(source.receive(100)) for _ in range(4))  # what came back comes alone
        assert found in ([], sent), f"{at}: {found} of {sent}"
        if told is XaStatus.OK:
            assert found == sent, f"{at}: {told}, and {found} of {sent}"
        consumed = sum(received) if found else 0
        assert told in (XaStatus.OK, None, 404) or not found, f"{at}: {told}, and {found}"
        assert left + consumed == 3, f"{at}: {left} are left of 3, {received} were received"
        outcomes.add(bool(found))
    assert True in outcomes
