"""Rules S4-02 to S4-17: xids, tickets, and where work in a branch begins and ends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import (
    SCHEMA,
    World,
    in_memory,
    numbers,
    on_delta_when_long,
    rows,
)
from tests.inside import client_of
from tests.locks import in_another_thread
from tests.specifications.dtx_world import Dtx, failing, refused
from txnqueue import Status
from txnqueue.core.state.branch import Branch
from txnqueue.errors import (
    BranchMisused,
    InvalidInput,
    LimitExceeded,
    NotPermitted,
    TransactionFinished,
    TransactionNotGiven,
)
from txnqueue.protocols.dtx import (
    AccessTicket,
    ChannelException,
    ReplyCode,
    XaStatus,
    Xid,
    demarcation,
)

rule = pytest.mark.rule


# ---------------------------------------------------------------------------- the words


@rule("S4-01")
def test_every_status_of_the_text_has_its_name() -> None:
    assert {status.value for status in XaStatus} == {
        *("xa-ok", "xa-rdonly", "xa-rbrollback", "xa-rbtimeout"),
        *("xa-heurhaz", "xa-heurcom", "xa-heurrb", "xa-heurmix"),
    }


@rule("S4-03")
def test_every_reply_code_is_a_channel_exception_of_its_own() -> None:
    codes = {kind.reply_code for kind in ChannelException.__subclasses__()}
    assert codes == set(ReplyCode) == {404, 503, 530, 540, 541}


@rule("S4-02")
def test_the_parts_of_an_xid_make_up_its_data() -> None:
    xid = Xid(7, 3, 2, b"abcde")
    assert (xid.gtrid, xid.bqual) == (b"abc", b"de")
    assert Xid.of(7, b"abc", b"de") == xid
    for lengths in ((3, 3), (3, 1), (6, -1)):
        with pytest.raises(InvalidInput):
            Xid(7, *lengths, b"abcde")
    assert len(Xid.of(0, bytes(128)).data) == 128
    with pytest.raises(LimitExceeded):
        Xid.of(0, bytes(129))
    refused: list[Any] = [-1, 1 << 32, "7", True]
    for format_id in refused:
        with pytest.raises(InvalidInput):
            Xid(format_id, 0, 0, b"")
    with pytest.raises(InvalidInput):
        Xid.of(7, "text", b"")  # type: ignore[arg-type]


@rule("S4-02")
def test_all_parts_identify_a_branch() -> None:
    same = Xid.of(1, b"ab", b"c")
    others = [Xid.of(2, b"ab", b"c"), Xid.of(1, b"a", b"bc"), Xid.of(1, b"ab", b"d")]
    assert len({same, Xid.of(1, b"ab", b"c"), *others}) == 4
    assert len({xid.transaction_id for xid in (same, *others)}) == 4


@rule("S4-02")
def test_any_octets_survive_the_store() -> None:
    for octets in (b"", b":/%", bytes(range(128)), bytes(range(128, 256))):
        xid = Xid.of(4_294_967_295, octets[:60], octets[60:])
        assert Xid.from_transaction_id(xid.transaction_id) == xid


@on_delta_when_long
@rule("S4-02")
def test_branches_that_differ_in_one_part_are_different_branches(world: World) -> None:
    dtx = Dtx(world)
    channel = dtx.channel()
    gtrid = world.name("g").encode()
    for xid in (Xid.of(1, gtrid, b"x"), Xid.of(2, gtrid, b"x"), Xid.of(1, gtrid + b"x")):
        assert channel.start(xid) is XaStatus.OK
        channel.end(xid)


# ------------------------------------------------------------------------------ tickets


@on_delta_when_long
@rule("S4-04")
def test_a_ticket_says_who_may_work_in_a_branch_and_who_may_decide_it(world: World) -> None:
    dtx, xid = Dtx(world), None
    etl, boss, other = (dtx.channel(name) for name in ("etl", "boss", "other"))
    ticket = AccessTicket("billing", (world.name("etl"),), (world.name("boss"),))
    xid = dtx.xid()
    etl.start(xid, ticket=ticket)
    dtx.work(etl)
    with refused(530):
        other.start(xid, join=True, ticket=ticket)
    etl.end(xid, ticket=ticket)
    before = dtx.entries()
    for channel in (etl, other):
        for decide in (channel.prepare, channel.rollback):
            with refused(530):
                decide(xid, ticket=ticket)
        with refused(530):
            channel.commit(xid, one_phase=True, ticket=ticket)
        with refused(530):
            channel.set_timeout(xid, 1, ticket=ticket)
    with refused(530):
        boss.commit(xid, one_phase=True)  # without the ticket
    with refused(530):
        boss.commit(xid, one_phase=True, ticket=AccessTicket("shipping"))
    assert dtx.entries() == before
    assert boss.commit(xid, one_phase=True, ticket=ticket) is XaStatus.OK


@on_delta_when_long
@rule("S4-04")
def test_a_ticket_binds_the_plain_interface_too_and_not_the_operator(world: World) -> None:
    dtx = Dtx(world)
    etl, boss = dtx.channel("etl"), dtx.channel("boss")
    ticket = AccessTicket("billing", None, (world.name("boss"),))
    xid = dtx.xid()
    etl.start(xid, ticket=ticket)
    dtx.work(etl)
    etl.end(xid, ticket=ticket)
    stranger = world.manager("stranger")
    branch = Branch.of(client_of(stranger).cache.key_state(xid.transaction_id))
    assert branch is not None
    with pytest.raises(NotPermitted, match="may not coordinate"):
        stranger.rollback(xid.transaction_id, attempt=f"{branch.attempt}@{branch.begun}")
    boss.prepare(xid, ticket=ticket)
    for decide in (stranger.commit, stranger.rollback):
        with pytest.raises(Exception, match="may not coordinate"):
            decide(xid.transaction_id)
    stranger.decide_heuristically(xid.transaction_id, commit=True, reason="boss is gone")
    with pytest.raises(Exception, match="may not coordinate"):
        stranger.forget(xid.transaction_id)
    boss.forget(xid, ticket=ticket)


@in_memory
@rule("S4-13", "S4-11")
def test_what_others_have_resumed_is_not_said_to_be_suspended(world: World) -> None:
    dtx = Dtx(world)
    channel, other, xid = dtx.channel(), dtx.channel("b"), dtx.xid()
    channel.start(xid)
    channel.end(xid, suspend=True)
    with refused(404) as caught:
        channel.end(xid)
    assert "resume it first" in str(caught.value)
    other.start(xid, resume=True)
    with refused(404) as caught:
        channel.end(xid)
    assert "does not work in" in str(caught.value)


@in_memory
@rule("S4-11")
@pytest.mark.parametrize("resumed", [True, False])
def test_a_channel_forgets_the_suspended_work_that_others_have_resumed_or_decided(
    world: World, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    """A transaction manager may suspend on one channel and resume on another, for years."""
    monkeypatch.setattr(demarcation, "SUSPENDED_COUNT", 2)
    dtx = Dtx(world)
    channel, other, kept = dtx.channel(), dtx.channel("b"), dtx.xid()
    channel.start(kept)
    channel.end(kept, suspend=True)
    for _ in range(5):
        xid = dtx.xid()
        channel.start(xid)
        channel.end(xid, suspend=True)
        if resumed:
            other.start(xid, resume=True)
            other.end(xid)
        other.rollback(xid)
    assert kept in channel._suspended and len(channel._suspended) <= 3
    channel.start(kept, resume=True)
    channel.end(kept)
    assert channel.commit(kept, one_phase=True) is XaStatus.OK


@in_memory
@rule("S4-04")
def test_what_is_no_ticket_is_refused(world: World) -> None:
    wrong: Any = "billing"
    dtx = Dtx(world)
    channel, xid = dtx.prepared()
    for act in (
        lambda: channel.start(dtx.xid(), ticket=wrong),
        lambda: channel.start(xid, join=True, ticket=wrong),
        lambda: channel.commit(xid, ticket=wrong),
        lambda: channel.recover(startscan=True, ticket=wrong),
    ):
        with pytest.raises(InvalidInput, match="AccessTicket"):
            act()
    assert channel.commit(xid) is XaStatus.OK


@in_memory
@rule("S4-07")
def test_what_takes_effect_at_once_is_not_taken_for_work_in_a_branch(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    early = channel.queue(dtx.orders.name)
    channel.start(xid)
    for queue in (early, channel.queue(dtx.orders.name)):
        for act in (queue.purge, lambda q=queue: q.drain(lambda batch, tx: None)):
            with pytest.raises(TransactionNotGiven, match=xid.transaction_id):
                act()
    channel.end(xid)
    assert (channel.rollback(xid), dtx.waiting()) == (XaStatus.OK, [1, 2, 3])
    assert early.purge() == 3  # in no branch


@on_delta_when_long
@rule("S4-04")
def test_a_ticket_that_keeps_its_own_user_out_starts_nothing(world: World) -> None:
    dtx, channel = Dtx(world), None
    channel, before = dtx.channel(), dtx.entries()
    with refused(530):
        channel.start(dtx.xid(), ticket=AccessTicket("billing", ("somebody else",)))
    assert dtx.entries() == before


@rule("S4-04")
def test_a_ticket_takes_no_text_for_a_list_of_principals() -> None:
    """Each part of it would be permitted: "a" by "etl@a"."""
    wrong: Any
    for wrong in ("etl", 7, (None,), {"etl": 1}):
        for role in ("associate", "coordinate"):
            with pytest.raises(InvalidInput):
                AccessTicket("billing", **{role: wrong})
    for wrong in (None, 7):
        with pytest.raises(InvalidInput):
            AccessTicket(wrong)


@on_delta_when_long
@rule("S4-04", "S4-28")
def test_a_ticket_lists_the_branches_of_its_realm(world: World) -> None:
    dtx = Dtx(world)
    channel, xids = dtx.channel(), {}
    for realm in ("billing", "shipping", None):
        ticket = AccessTicket(realm) if realm else None
        xids[realm] = xid = dtx.xid()
        channel.start(xid, ticket=ticket)
        channel.queue(dtx.orders.name).send(rows(9))
        channel.end(xid, ticket=ticket)
        channel.prepare(xid, ticket=ticket)
    both: dict[str, Any] = {"startscan": True, "endscan": True}
    found = channel.recover(**both, ticket=AccessTicket("billing"))
    assert set(found) == {xids["billing"], xids[None]}
    assert set(channel.recover(**both)) == set(xids.values())


# -------------------------------------------------------------------- select, start, end


@on_delta_when_long
@rule("S4-05", "S4-06")
def test_select_comes_first_and_may_be_repeated(world: World) -> None:
    dtx = Dtx(world)
    fresh = dtx.channel()._connection.channel()
    xid = dtx.xid()
    with refused(503):
        fresh.start(xid)
    with refused(503):
        fresh.end(xid)
    fresh.select()
    fresh.select()
    assert fresh.start(xid) is XaStatus.OK
    fresh.select()
    assert fresh.end(xid) is XaStatus.OK


@on_delta_when_long
@rule("S4-06")
def test_a_channel_works_in_one_branch_at_a_time(world: World) -> None:
    dtx = Dtx(world)
    channel, first, second = dtx.channel(), dtx.xid(), dtx.xid()
    channel.start(first)
    ways: list[dict[str, Any]] = [{}, {"join": True}, {"resume": True}]
    for flags in ways:
        with refused(503):
            channel.start(second, **flags)
    with refused(503):
        channel.start(first, join=True)
    channel.end(first)
    assert channel.start(second) is XaStatus.OK


@on_delta_when_long
@rule("S4-07")
def test_work_between_start_and_end_belongs_to_the_branch_and_other_work_to_nobody(
    world: World,
) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.queue(dtx.orders.name).send(rows(4))
    assert dtx.waiting() == [1, 2, 3, 4]
    channel.start(xid)
    inside = channel.queue(dtx.orders.name)
    assert numbers(inside.receive(2)) == [1, 2]
    inside.send(rows(9))
    assert dtx.waiting() == [3, 4]
    channel.end(xid)
    channel.queue(dtx.orders.name).send(rows(5))
    assert dtx.waiting() == [3, 4, 5]
    with pytest.raises(TransactionFinished):
        inside.send(rows(10))
    channel.rollback(xid)
    assert dtx.waiting() == [1, 2, 3, 4, 5]


@on_delta_when_long
@rule("S4-07")
def test_a_queue_that_was_taken_before_the_start_works_in_the_branch(world: World) -> None:
    dtx = Dtx(world)
    channel = dtx.channel()
    before = channel.queue(dtx.orders.name)
    for number, suspend in ((8, True), (9, False)):
        xid = dtx.xid()
        channel.start(xid)
        before.send(rows(number))
        got = numbers(before.receive(1))
        assert number not in dtx.waiting() and not set(got) & set(dtx.waiting())
        channel.end(xid, suspend=suspend)
        before.send(rows(number * 10))  # outside of any branch
        assert number * 10 in dtx.waiting()
        channel.rollback(xid)
        assert set(got) <= set(dtx.waiting()) and number not in dtx.waiting()


@in_memory
@rule("S4-07")
@pytest.mark.parametrize("how", ["accept", "reject", "release", "modify"])
def test_messages_of_a_channel_are_not_settled_behind_the_back_of_its_branch(
    world: World, how: str
) -> None:
    """Work between start and end is the branch's, and a rollback could not undo this."""
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    queue = channel.queue(dtx.orders.name)
    batch, other = queue.receive(1), queue.receive(1)
    channel.start(xid)
    with pytest.raises(BranchMisused, match="receive them in it"):
        getattr(batch, how)()
    assert dtx.orders.in_flight() == 2
    assert getattr(other, how)(transaction=None) == 1  # asked for in so many words
    assert dtx.orders.in_flight() == 1
    channel.end(xid)
    channel.rollback(xid)
    assert getattr(batch, how)() == 1
    assert dtx.orders.in_flight() == 0


@in_memory
@rule("S4-07")
def test_an_exchange_that_was_taken_before_the_start_publishes_in_the_branch(world: World) -> None:
    dtx = Dtx(world)
    manager, name = world.manager(), world.name("events")
    manager.create_exchange(name, "fanout", SCHEMA).bind(dtx.orders.name)
    channel, xid = dtx.channel(), dtx.xid()
    before, default = channel.exchange(name), channel.exchange()
    channel.start(xid)
    before.publish(rows(8))
    default.publish(rows(9), routing_key=dtx.orders.name)
    assert dtx.waiting() == [1, 2, 3]
    channel.end(xid)
    assert channel.commit(xid, one_phase=True) is XaStatus.OK
    assert dtx.waiting() == [1, 2, 3, 8, 9]
    before.publish(rows(10))
    assert dtx.waiting() == [1, 2, 3, 8, 9, 10]


@on_delta_when_long
@rule("S4-08", "S4-03")
def test_an_xid_that_was_used_before_cannot_be_started_again(world: World) -> None:
    dtx = Dtx(world)
    channel, other = dtx.channel("a"), dtx.channel("b")
    at_work, done, undone = dtx.xid(), dtx.xid(), dtx.xid()
    other.start(at_work)
    for xid, decide in ((done, channel.commit), (undone, None)):
        channel.start(xid)
        dtx.work(channel, receive=0)
        channel.end(xid)
        decide(xid, one_phase=True) if decide else channel.rollback(xid)
    for xid in (at_work, done, undone):
        with refused(530):
            channel.start(xid)


@on_delta_when_long
@rule("S4-09")
def test_join_and_resume_exclude_each_other(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    channel.end(xid, suspend=True)
    with refused(503):
        channel.start(xid, join=True, resume=True)
    assert channel.start(xid, resume=True) is XaStatus.OK


@on_delta_when_long
@rule("S4-10")
def test_channels_of_several_managers_work_in_one_branch(world: World) -> None:
    dtx = Dtx(world)
    first, second, xid = dtx.channel("a"), dtx.channel("b"), dtx.xid()
    first.start(xid)
    assert dtx.work(first, send=8) == [1]
    assert second.start(xid, join=True) is XaStatus.OK
    assert dtx.work(second, send=9) == [2]
    first.end(xid)
    second.end(xid)
    decider = dtx.channel("c")
    assert decider.prepare(xid) is XaStatus.OK
    assert dtx.waiting() == [3]
    assert decider.commit(xid) is XaStatus.OK
    assert dtx.waiting() == [3, 8, 9] and dtx.orders.in_flight() == 0


@on_delta_when_long
@rule("S4-10")
def test_a_channel_joins_a_branch_that_it_has_ended_before(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.ended()
    assert channel.start(xid, join=True) is XaStatus.OK
    dtx.work(channel, send=10)
    channel.end(xid)
    assert channel.commit(xid, one_phase=True) is XaStatus.OK
    assert dtx.waiting() == [3, 9, 10]


@on_delta_when_long
@rule("S4-10", "S4-03")
def test_join_of_nothing_of_the_prepared_and_where_it_is_not_offered(world: World) -> None:
    dtx = Dtx(world)
    with refused(404):
        dtx.channel().start(dtx.xid(), join=True)
    channel, xid = dtx.ended()
    with refused(540):
        dtx.channel("b", join_supported=False).start(xid, join=True)
    channel.prepare(xid)
    with refused(503):
        dtx.channel("b").start(xid, join=True)
    channel.commit(xid)
    with refused(404):
        dtx.channel("b").start(xid, join=True)


@on_delta_when_long
@rule("S4-11", "S4-16")
def test_a_suspended_branch_goes_on_where_it_stopped(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    queue = channel.queue(dtx.orders.name)
    batch = queue.receive(2)
    assert channel.end(xid, suspend=True) is XaStatus.OK
    with pytest.raises(TransactionFinished):
        queue.send(rows(9))
    channel.queue(dtx.orders.name).send(rows(7))  # not the branch's
    for unfinished in (channel.prepare, lambda xid: channel.commit(xid, one_phase=True)):
        with refused(503):
            unfinished(xid)
    assert channel.start(xid, resume=True) is XaStatus.OK
    batch.release(matching=batch.messages()[1:])  # what was received before is ours still
    queue.send(rows(9))
    channel.end(xid)
    assert channel.commit(xid, one_phase=True) is XaStatus.OK
    assert dtx.waiting() == [2, 3, 7, 9] and dtx.orders.in_flight() == 0


@on_delta_when_long
@rule("S4-11")
def test_another_channel_may_resume_and_keeps_what_was_done(world: World) -> None:
    dtx = Dtx(world)
    first, second, xid = dtx.channel("a"), dtx.channel("b"), dtx.xid()
    first.start(xid)
    dtx.work(first, send=8)
    first.end(xid, suspend=True)
    assert second.start(xid, resume=True) is XaStatus.OK
    dtx.work(second, send=9)
    with refused(503):
        first.start(xid, resume=True)  # it is not suspended any more
    second.end(xid)
    assert second.commit(xid, one_phase=True) is XaStatus.OK
    assert dtx.waiting() == [3, 8, 9]


@on_delta_when_long
@rule("S4-11")
def test_resume_of_what_is_not_suspended(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.ended()
    with refused(503):
        channel.start(xid, resume=True)
    with refused(404):
        channel.start(dtx.xid(), resume=True)
    dtx.channel("b").start(xid, join=True)
    with refused(503):
        channel.start(xid, resume=True)


@on_delta_when_long
@rule("S4-12", "S4-15", "S4-17")
def test_failed_work_makes_the_branch_rollback_only_for_everybody(world: World) -> None:
    dtx = Dtx(world)
    first, second, xid = dtx.channel("a"), dtx.channel("b"), dtx.xid()
    assert first.start(xid) is XaStatus.OK
    dtx.work(first)
    assert second.start(xid, join=True) is XaStatus.OK
    assert first.end(xid, fail=True) is XaStatus.RBROLLBACK
    assert first.start(xid, join=True) is XaStatus.RBROLLBACK
    assert not first.working
    assert second.end(xid) is XaStatus.RBROLLBACK
    assert dtx.waiting() == [2, 3]
    assert first.rollback(xid) is XaStatus.OK
    assert dtx.waiting() == [1, 2, 3]


@on_delta_when_long
@rule("S4-12")
def test_a_rollback_only_branch_is_not_resumed(world: World) -> None:
    dtx = Dtx(world)
    first, second, xid = dtx.channel("a"), dtx.channel("b"), dtx.xid()
    first.start(xid)
    second.start(xid, join=True)
    first.end(xid, suspend=True)
    second.end(xid, fail=True)
    assert first.start(xid, resume=True) is XaStatus.RBROLLBACK
    assert second.rollback(xid) is XaStatus.OK


@on_delta_when_long
@rule("S4-13")
def test_only_the_branch_that_a_channel_works_in_can_be_ended(world: World) -> None:
    dtx = Dtx(world)
    channel, other, xid = dtx.channel("a"), dtx.channel("b"), dtx.xid()
    with refused(404):
        channel.end(xid)
    channel.start(xid)
    with refused(404):
        other.end(xid)
    with refused(404):
        channel.end(dtx.xid())
    assert channel.end(xid) is XaStatus.OK
    with refused(404):
        channel.end(xid)
    channel.start(xid, join=True)
    channel.end(xid, suspend=True)
    with refused(404) as caught:
        channel.end(xid)
    assert "suspended: resume it first" in str(caught.value)


@on_delta_when_long
@rule("S4-14")
def test_fail_and_suspend_together_change_nothing(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    before = dtx.entries()
    with refused(503):
        channel.end(xid, fail=True, suspend=True)
    assert dtx.entries() == before and channel.working
    assert channel.end(xid) is XaStatus.OK


@on_delta_when_long
@rule("S4-14", "S4-03")
def test_an_error_while_ending_can_be_tried_again(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    with failing(channel), refused(541):
        channel.end(xid)
    assert channel.end(xid) is XaStatus.OK
    assert channel.commit(xid, one_phase=True) is XaStatus.OK
    assert dtx.waiting() == [2, 3, 9]


@on_delta_when_long
@rule("S4-15")
def test_an_end_without_flags_says_that_the_work_is_done(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    assert channel.end(xid) is XaStatus.OK
    assert channel.prepare(xid) is XaStatus.OK


@on_delta_when_long
@rule("S4-16")
def test_suspended_work_that_nobody_resumes_can_be_rolled_back(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    channel.end(xid, suspend=True)
    assert channel.rollback(xid) is XaStatus.OK
    assert dtx.waiting() == [1, 2, 3]
    with refused(404):
        channel.start(xid, resume=True)


# ------------------------------------------------------------------ what a session may not


@on_delta_when_long
@rule("S4-07")
def test_a_session_is_not_decided_by_itself(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    session = channel._working
    assert session is not None
    ends = {"commit", "rollback", "prepare", "__enter__", "table", "enlist", "auxiliary"}
    assert ends.isdisjoint(dir(session))
    inside = channel.queue(dtx.orders.name).receive(1)
    with pytest.raises(BranchMisused, match="cannot be kept"):
        inside.keep()
    leased = channel._connection.manager.queue(dtx.orders.name).receive(1)
    with pytest.raises(BranchMisused, match="receive them in it"):
        leased.accept(transaction=session)  # type: ignore[arg-type]
    leased.accept()


@on_delta_when_long
@rule("S4-07")
def test_a_channel_that_is_closed_at_work_has_failed(world: World) -> None:
    dtx, xid = Dtx(world), None
    xid = dtx.xid()
    with dtx.channel() as channel:
        channel.start(xid)
        dtx.work(channel)
    assert dtx.channel("tm").prepare(xid) is XaStatus.RBROLLBACK
    assert dtx.waiting() == [1, 2, 3]


@on_delta_when_long
@rule("S4-07")
def test_a_channel_that_is_closed_does_nothing_more(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.ended()
    queue, exchange = channel.queue(dtx.orders.name), channel.exchange("")
    channel.close()
    channel.close()
    before = dtx.entries()
    for method in (
        channel.select,
        channel.recover_all,
        channel.exchange_query,
        channel.binding_query,
        lambda: channel.start(dtx.xid()),
        lambda: channel.end(xid),
        lambda: channel.prepare(xid),
        lambda: channel.commit(xid, one_phase=True),
        lambda: channel.rollback(xid),
        lambda: channel.forget(xid),
        lambda: channel.set_timeout(xid, 5),
        lambda: channel.get_timeout(xid),
        lambda: channel.recover(startscan=True),
        lambda: channel.queue(dtx.orders.name),
        lambda: channel.exchange(""),
        lambda: queue.send(rows(9)),
        lambda: queue.receive(1),
        lambda: exchange.publish(rows(9), routing_key=dtx.orders.name),
    ):
        with refused(503) as caught:
            method()
        assert "closed" in str(caught.value)
    assert dtx.entries() == before
    assert dtx.channel("tm").commit(xid, one_phase=True) is XaStatus.OK


@in_memory
@rule("S4-04", "S4-07")
def test_a_channel_closes_what_it_does_in_a_branch_of_a_realm(world: World) -> None:
    dtx, ticket = Dtx(world), AccessTicket("billing")
    xid = dtx.xid()
    with dtx.channel() as channel:
        channel.start(xid, ticket=ticket)
        dtx.work(channel)
    assert dtx.channel("tm").prepare(xid, ticket=ticket) is XaStatus.RBROLLBACK


@in_memory
def test_what_is_sent_while_another_thread_ends_the_branch_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    queue = channel.queue(dtx.orders.name)
    queue.send(rows(8))
    payload = client_of(dtx.orders).store.payload
    stage = payload.stage

    def after_the_end(*given: Any) -> Any:
        monkeypatch.setattr(payload, "stage", stage)
        in_another_thread(lambda: channel.end(xid))
        return stage(*given)

    monkeypatch.setattr(payload, "stage", after_the_end)
    with pytest.raises(TransactionFinished, match="has ended or is suspended"):
        queue.send(rows(9))
    assert channel.prepare(xid) is XaStatus.OK
    channel.commit(xid)
    assert sorted(row["n"] for row in dtx.orders.peek_messages(9)) == [1, 2, 3, 8]


@on_delta_when_long
@rule("S4-08")
def test_other_transactions_cannot_take_a_branchs_name(world: World) -> None:
    dtx, xid = Dtx(world), None
    xid = dtx.xid()
    with pytest.raises(InvalidInput, match="reserved for branches"):
        world.manager().transaction(xid.transaction_id)
    with pytest.raises(InvalidInput):
        dtx.channel().start(xid.transaction_id)  # type: ignore[arg-type]


@on_delta_when_long
@rule("S4-07")
def test_a_branch_that_is_at_work_is_visible_to_the_plain_interface(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    assert world.manager("x").outcome(xid.transaction_id).status is Status.UNDECIDED
    channel.start(xid)
    assert world.manager("x").outcome(xid.transaction_id).status is Status.ACTIVE
    rows_of = world.manager("x").history.as_of().transactions().rows()
    (row,) = [row for row in rows_of if row["transaction_id"] == xid.transaction_id]
    assert row["status"] == "pending"
