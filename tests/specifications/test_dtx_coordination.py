"""Rules S4-18 to S4-33: how branches are decided, recovered, timed and forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import World, alone_on_delta_when_long, in_memory, numbers, rows
from tests.inside import client_of
from tests.specifications.dtx_world import Dtx, failing, refused
from txnqueue import Status
from txnqueue.core.settings import BRANCH_SECONDS_MAX
from txnqueue.errors import (
    HeuristicNotFound,
    InvalidInput,
    TransactionFinished,
    TransactionNotFound,
    TransactionNotPrepared,
)
from txnqueue.protocols.dtx import ChannelException, Connection, XaStatus, Xid
from txnqueue.testing import MemoryStore

rule = pytest.mark.rule
OUTCOMES = {
    "one-phase commit": (("commit 1",), [2, 3, 9]),
    "one-phase rollback": (("rollback",), [1, 2, 3]),
    "two-phase commit": (("prepare", "commit 2"), [2, 3, 9]),
    "two-phase rollback": (("prepare", "rollback"), [1, 2, 3]),
    "recovery and commit": (("prepare", "recover", "commit 2"), [2, 3, 9]),
    "recovery and rollback": (("prepare", "recover", "rollback"), [1, 2, 3]),
}


def act(channel: Any, xid: Any, step: Any) -> Any:
    """Take one step of the grammar."""
    if step == "recover":
        assert xid in channel.recover(startscan=True, endscan=True)
        return XaStatus.OK
    if step.startswith("commit"):
        return channel.commit(xid, one_phase=step.endswith("1"))
    return getattr(channel, step)(xid)


# ------------------------------------------------------------------------------ outcomes


@alone_on_delta_when_long
@rule("S4-18", "S4-19", "S4-22", "S4-23")
@pytest.mark.parametrize("name", OUTCOMES)
def test_each_outcome_of_the_grammar(world: World, name: str) -> None:
    dtx = Dtx(world)
    _, xid = dtx.ended()
    decider = dtx.channel("tm")  # another manager than the one that worked
    steps, waiting = OUTCOMES[name]
    for step in steps:
        assert act(decider, xid, step) is XaStatus.OK
    assert dtx.waiting() == waiting and dtx.orders.in_flight() == 0
    committed = steps[-1].startswith("commit")
    status = world.manager("x").outcome(xid.transaction_id).status
    assert status is (Status.COMMITTED if committed else Status.ROLLED_BACK)


@in_memory
@rule("S4-18")
def test_each_method_of_a_branch_is_one_append(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    journal = world.store.journal
    for step in (
        lambda: channel.start(xid),
        lambda: channel.queue(dtx.orders.name).receive(1),
        lambda: channel.end(xid, suspend=True),
        lambda: channel.start(xid, resume=True),
        lambda: channel.end(xid),
        lambda: channel.set_timeout(xid, 5),
        lambda: channel.prepare(xid),
        lambda: channel.commit(xid),
    ):
        before = journal.version()
        step()
        assert journal.version() == before + 1


@alone_on_delta_when_long
@rule("S4-18", "S4-21")
@pytest.mark.parametrize("prepared", [False, True])
def test_the_wrong_one_phase_flag_changes_nothing(world: World, prepared: bool) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.prepared() if prepared else dtx.ended()
    before = dtx.entries()
    with refused(503):
        channel.commit(xid, one_phase=prepared)
    assert dtx.entries() == before
    assert channel.rollback(xid) is XaStatus.OK
    assert dtx.waiting() == [1, 2, 3]


@alone_on_delta_when_long
@rule("S4-18")
def test_a_branch_is_prepared_once(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.prepared()
    with refused(503):
        channel.prepare(xid)
    assert channel.commit(xid) is XaStatus.OK


@alone_on_delta_when_long
@rule("S4-20")
def test_what_nobody_started_is_not_found(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    for method in (channel.prepare, channel.commit, channel.rollback, channel.forget):
        with refused(404):
            method(xid)
    with refused(404):
        channel.commit(xid, one_phase=True)


@in_memory
@rule("S4-20", "S4-03")
def test_where_there_is_no_store_there_is_no_branch(world: World) -> None:
    channel, xid = Connection(world.manager()).channel(), Xid.of(1, b"g")
    channel.select()
    for method in (channel.prepare, channel.commit, channel.rollback, channel.forget):
        with refused(404) as caught:
            method(xid)
        assert "no store" in str(caught.value)
    ways: list[dict[str, Any]] = [{"join": True}, {"resume": True}]
    for flags in ways:
        with refused(404):
            channel.start(xid, **flags)
    with refused(404):
        channel.get_timeout(xid)
    with refused(404):
        channel.set_timeout(xid, 5)
    for call in (lambda: channel.start(xid), channel.recover_all):
        with refused(541) as caught:  # a wrong path must not look like nothing to recover
            call()
        assert "no store" in str(caught.value) and "create_queue" in str(caught.value)


@alone_on_delta_when_long
@rule("S4-20", "S4-27")
def test_nothing_is_decided_while_a_channel_works_in_the_branch(world: World) -> None:
    dtx = Dtx(world)
    channel, decider, xid = dtx.channel("a"), dtx.channel("tm"), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    before = dtx.entries()
    for method in (decider.prepare, decider.commit, decider.rollback, decider.forget):
        with refused(503):
            method(xid)
    with refused(503):
        decider.commit(xid, one_phase=True)
    assert dtx.entries() == before
    channel.end(xid)
    assert decider.rollback(xid) is XaStatus.OK


def just_before(channel: Any, act: Any) -> None:
    """Let something happen after a channel has read, and before it appends."""
    journal: Any = client_of(channel._connection.manager).store.journal
    append = journal.append

    def late(*asked: Any) -> Any:
        journal.append = append
        act()
        return append(*asked)

    journal.append = late


@alone_on_delta_when_long
@rule("S4-20", "S4-24", "S4-21")
@pytest.mark.parametrize("decide", ["prepare", "commit 1", "rollback"])
def test_nothing_is_decided_past_a_channel_that_joins_at_that_moment(
    world: World, decide: str
) -> None:
    dtx = Dtx(world)
    _, xid = dtx.ended()
    decider, other = dtx.channel("tm"), dtx.channel("b")
    just_before(decider, lambda: other.start(xid, join=True))
    with refused(503):
        act(decider, xid, decide)
    dtx.work(other, send=10)
    other.end(xid)
    assert act(decider, xid, "commit 1") is XaStatus.OK
    assert dtx.waiting() == [3, 9, 10]


@alone_on_delta_when_long
@rule("S4-24", "S4-19", "S4-23")
@pytest.mark.parametrize("decide", ["prepare", "commit 1", "rollback"])
def test_what_was_done_just_before_the_decision_is_part_of_it(world: World, decide: str) -> None:
    dtx = Dtx(world)
    _, xid = dtx.ended()
    decider, other = dtx.channel("tm"), dtx.channel("b")

    def a_whole_portion() -> None:
        other.start(xid, join=True)
        dtx.work(other, send=10)
        other.end(xid)

    just_before(decider, a_whole_portion)
    assert act(decider, xid, decide) is XaStatus.OK
    if decide == "prepare":
        assert decider.commit(xid) is XaStatus.OK
    assert dtx.waiting() == ([1, 2, 3] if decide == "rollback" else [3, 9, 10])
    assert dtx.orders.in_flight() == 0


@alone_on_delta_when_long
@rule("S4-22", "S4-25")
@pytest.mark.parametrize("second", ["commit 2", "rollback", "operator"])
@pytest.mark.parametrize("first", ["commit 2", "rollback", "operator"])
def test_of_two_decisions_at_once_one_holds_and_both_are_told(
    world: World, first: str, second: str
) -> None:
    dtx = Dtx(world)
    _, xid = dtx.prepared()
    key = xid.transaction_id
    deciders = {step: dtx.channel(step.replace(" ", "")) for step in {first, second}}

    def decide(step: Any) -> Any:
        if step != "operator":
            return act(deciders[step], xid, step)
        manager = deciders[step]._connection.manager
        return manager.decide_heuristically(key, commit=False, reason="gone")

    just_before(deciders[second], lambda: decide(first))
    told = None
    try:
        told = decide(second)
    except ChannelException as error:
        told = int(error.reply_code)
    except TransactionFinished:
        told = "finished"
    committed = first == "commit 2"
    assert dtx.waiting() == ([2, 3, 9] if committed else [1, 2, 3])
    if second == "operator":
        assert told == (None if first == "operator" else "finished")
    else:
        assert told == (XaStatus.HEURRB if first == "operator" else 404)
    heuristic = dtx.channel("tm").recover(startscan=True)
    assert heuristic == ([xid] if first == "operator" else [])


@alone_on_delta_when_long
@rule("S4-33", "S4-20")
@pytest.mark.parametrize("committed", [True, False])
def test_a_completed_branch_is_not_found_any_more(world: World, committed: bool) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.prepared()
    channel.commit(xid) if committed else channel.rollback(xid)
    before = dtx.entries()
    for method in (channel.prepare, channel.commit, channel.rollback, channel.forget):
        with refused(404):
            method(xid)
    with refused(404):
        channel.get_timeout(xid)
    with refused(404):
        channel.set_timeout(xid, 5)
    assert dtx.entries() == before


@alone_on_delta_when_long
@rule("S4-33")
def test_an_ended_association_is_what_prepare_needs(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.ended()
    assert channel.prepare(xid) is XaStatus.OK


@alone_on_delta_when_long
@rule("S4-19", "S4-23", "S4-24", "S4-27", "S4-03")
@pytest.mark.parametrize("method", ["commit", "rollback", "prepare", "forget"])
def test_an_error_of_the_store_is_541_and_can_be_tried_again(world: World, method: str) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.ended() if method == "prepare" else dtx.prepared()
    if method == "forget":
        world.manager("op").decide_heuristically(xid.transaction_id, commit=True, reason="gone")
    for call in ("append", "read"):
        with failing(channel, call), refused(541):
            getattr(channel, method)(xid)
    assert getattr(channel, method)(xid) in (XaStatus.OK, None)


@in_memory
@rule("S4-24")
def test_a_lost_reply_to_prepare_is_no_failure(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.ended()
    journal: Any = client_of(channel._connection.manager).store.journal
    append = journal.append

    def unheard(units: Any, metadata: Any) -> None:
        journal.append = append
        append(units, metadata)
        raise ConnectionError("no reply")

    journal.append = unheard
    assert channel.prepare(xid) is XaStatus.OK
    assert channel.commit(xid) is XaStatus.OK


@alone_on_delta_when_long
@rule("S4-24")
def test_prepare_covers_what_was_sent_and_what_was_received(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.prepared()
    world.lease_over()
    assert dtx.waiting() == [2, 3]
    assert len(dtx.orders.receive(10)) == 2  # the third is the branch's, whatever the clock says
    channel.rollback(xid)
    assert dtx.waiting() == [1]


@alone_on_delta_when_long
@rule("S4-24", "S4-15")
def test_a_rollback_only_branch_is_rolled_back_by_prepare_and_by_commit(world: World) -> None:
    dtx = Dtx(world)
    for decide in ("prepare", "commit 1"):
        channel, xid = dtx.channel(), dtx.xid()
        channel.start(xid)
        dtx.work(channel)
        channel.end(xid, fail=True)
        assert act(channel, xid, decide) is XaStatus.RBROLLBACK
        assert dtx.waiting() == [1, 2, 3]
        assert channel.rollback(xid) is XaStatus.RBROLLBACK  # it was, before it was asked for


@alone_on_delta_when_long
@rule("S4-24", "S4-22")
@pytest.mark.parametrize("decide", ["prepare", "commit 1"])
def test_a_branch_whose_queue_is_dropped_is_rolled_back(world: World, decide: str) -> None:
    dtx = Dtx(world)
    other = world.queue("other")
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    channel.queue(other.name).send(rows(5))
    channel.end(xid)
    world.manager("x").drop_queue(other.name)
    assert act(channel, xid, decide) is XaStatus.RBROLLBACK
    assert dtx.waiting() == [1, 2, 3]


@alone_on_delta_when_long
@rule("S4-26")
def test_a_branch_without_work_is_committed_by_prepare(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    channel.end(xid)
    assert channel.prepare(xid) is XaStatus.RDONLY
    for decide in (channel.commit, channel.rollback):
        with refused(404):
            decide(xid)
    assert channel.recover(startscan=True) == []
    assert world.manager("x").outcome(xid.transaction_id).status is Status.COMMITTED


@alone_on_delta_when_long
@rule("S4-26")
def test_released_messages_are_work(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    channel.queue(dtx.orders.name).receive(1).release()
    channel.end(xid)
    assert channel.prepare(xid) is XaStatus.OK
    channel.commit(xid)
    assert dtx.waiting() == [1, 2, 3]


@alone_on_delta_when_long
@rule("S4-19", "S4-23")
@pytest.mark.parametrize("committed", [True, False])
def test_what_was_rejected_in_a_branch_is_dead_once_it_is_committed(
    world: World, committed: bool
) -> None:
    dtx = Dtx(world, dead_letter=True)
    dead = world.manager("x").queue(f"{dtx.orders.name}.dead")
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    batch = channel.queue(dtx.orders.name).receive(2)
    batch.reject(matching=batch.messages()[:1], reason="bad")
    channel.end(xid)
    assert dead.depth() == 0
    channel.prepare(xid)
    channel.commit(xid) if committed else channel.rollback(xid)
    assert numbers(dead.peek_messages()) == ([1] if committed else [])
    assert dtx.waiting() == ([3] if committed else [1, 2, 3])


@alone_on_delta_when_long
@rule("S4-22", "S4-23")
def test_what_others_rolled_back_is_told(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.prepared()
    world.manager("x").rollback(xid.transaction_id, reason="on the telephone")
    assert channel.commit(xid) is XaStatus.RBROLLBACK
    assert channel.rollback(xid) is XaStatus.RBROLLBACK


@alone_on_delta_when_long
@rule("S4-23")
def test_messages_come_back_to_their_original_place(world: World) -> None:
    dtx = Dtx(world)
    first, second, xid = dtx.channel("a"), dtx.channel("b"), dtx.xid()
    first.start(xid)
    second.start(xid, join=True)
    assert numbers(first.queue(dtx.orders.name).receive(1)) == [1]
    assert numbers(second.queue(dtx.orders.name).receive(1)) == [2]
    first.end(xid)
    second.end(xid)
    first.rollback(xid)
    assert dtx.waiting() == [1, 2, 3]
    batch = dtx.orders.receive(10)
    assert {row["_message"]["delivery_count"] for row in batch.messages()} == {1}


# ------------------------------------------------------------- recovery and heuristics


@alone_on_delta_when_long
@rule("S4-25", "S4-28")
def test_recovery_lists_what_is_prepared_or_heuristically_completed_and_nothing_else(
    world: World,
) -> None:
    dtx = Dtx(world)
    names = ("prepared", "committed", "rolled back", "operator", "at work", "ended")
    channels = {name: dtx.channel(name.replace(" ", "-")) for name in names}
    xids = {name: dtx.xid() for name in names}
    for name, channel in channels.items():
        channel.start(xids[name])
        channel.queue(dtx.orders.name).send(rows(9))
        if name != "at work":
            channel.end(xids[name])
        if name not in ("at work", "ended"):
            channel.prepare(xids[name])
    channels["committed"].commit(xids["committed"])
    channels["rolled back"].rollback(xids["rolled back"])
    operator = world.manager("operator")
    operator.decide_heuristically(xids["operator"].transaction_id, commit=False, reason="gone")
    found = dtx.channel("tm").recover(startscan=True, endscan=True)
    assert set(found) == {xids["prepared"], xids["operator"]}
    recovery = operator.recover()
    assert recovery.prepared == (xids["prepared"].transaction_id,)
    assert recovery.heuristic == (xids["operator"].transaction_id,)


@alone_on_delta_when_long
@rule("S4-29")
def test_a_scan_is_opened_goes_on_and_is_closed(world: World) -> None:
    dtx = Dtx(world)
    _, first = dtx.prepared()
    channel = dtx.channel("tm")
    with refused(503):
        channel.recover()
    assert channel.recover(startscan=True) == [first]
    assert channel.recover() == []
    _, second = dtx.prepared("b")
    assert channel.recover() == [second]  # the scan goes on
    assert set(channel.recover(startscan=True)) == {first, second}  # and begins again
    assert channel.recover(endscan=True) == []
    with refused(503):
        channel.recover()
    assert set(channel.recover(startscan=True, endscan=True)) == {first, second}
    with refused(503):
        channel.recover()


@alone_on_delta_when_long
@rule("S4-28", "S4-29")
def test_everything_can_be_listed_without_a_scan(world: World) -> None:
    dtx = Dtx(world)
    _, xid = dtx.prepared()
    channel = dtx.channel("tm")
    assert channel.recover_all() == channel.recover_all() == [xid]
    with refused(503):
        channel.recover()
    assert channel.recover(startscan=True) == [xid]
    assert channel.recover_all() == [xid]
    assert channel.recover() == []  # the scan goes on
    with failing(channel, "read"), refused(541):
        channel.recover_all()


@alone_on_delta_when_long
@rule("S4-29")
def test_an_error_while_recovering_leaves_the_scan_as_it_was(world: World) -> None:
    dtx = Dtx(world)
    _, xid = dtx.prepared()
    channel = dtx.channel("tm")
    with failing(channel, "read"), refused(541):
        channel.recover(startscan=True)
    with refused(503):
        channel.recover()
    assert channel.recover(startscan=True) == [xid]


@alone_on_delta_when_long
@rule("S4-22", "S4-27", "S4-28")
@pytest.mark.parametrize("committed", [True, False])
def test_an_operators_decision_is_told_until_it_is_forgotten(world: World, committed: bool) -> None:
    dtx = Dtx(world)
    _, xid = dtx.prepared()
    key, operator = xid.transaction_id, world.manager("operator")
    operator.decide_heuristically(key, commit=committed, reason="the other side is gone")
    assert dtx.waiting() == ([2, 3, 9] if committed else [1, 2, 3])
    channel = dtx.channel("restarted")
    ways: list[dict[str, Any]] = [{"join": True}, {"resume": True}]
    for flags in ways:
        with refused(503):  # their own answers have no word for it
            channel.start(xid, **flags)
    with refused(503):
        channel.prepare(xid)
    told = XaStatus.HEURCOM if committed else XaStatus.HEURRB
    for _ in range(2):
        assert channel.commit(xid) is told
        assert channel.commit(xid, one_phase=True) is told
        assert channel.rollback(xid) is told
    outcome = operator.outcome(key)
    assert outcome.heuristic and outcome.status is (
        Status.COMMITTED if committed else Status.ROLLED_BACK
    )
    assert channel.recover(startscan=True) == [xid]
    channel.forget(xid)
    assert channel.recover(startscan=True) == []
    for method in (channel.commit, channel.rollback, channel.forget):
        with refused(404):
            method(xid)
    after = operator.outcome(key)
    assert (after.status, after.heuristic) == (outcome.status, False)  # the outcome stays
    with refused(530):
        channel.start(xid)


@alone_on_delta_when_long
@rule("S4-27")
def test_only_an_operators_decision_can_be_forgotten(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.ended()
    with refused(503):
        channel.forget(xid)
    channel.prepare(xid)
    with refused(503):
        channel.forget(xid)
    channel.commit(xid)
    with refused(404):
        channel.forget(xid)


@alone_on_delta_when_long
@rule("S4-22")
def test_an_operator_decides_once_with_a_reason_and_only_what_is_prepared(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.ended()
    key, operator = xid.transaction_id, world.manager("operator")
    with pytest.raises(TransactionNotPrepared, match="own client can commit it"):
        operator.decide_heuristically(key, commit=True, reason="too early")
    channel.prepare(xid)
    reasons: list[Any] = ["", " ", None]
    for reason in reasons:
        with pytest.raises(InvalidInput):
            operator.decide_heuristically(key, commit=True, reason=reason)
    operator.decide_heuristically(key, commit=False, reason="why not")
    operator.decide_heuristically(key, commit=False, reason="again")  # changes nothing
    with pytest.raises(TransactionFinished):
        operator.decide_heuristically(key, commit=True, reason="no, commit")
    with pytest.raises(TransactionFinished):
        operator.commit(key)
    assert operator.outcome(key).reason == "why not"
    operator.forget(key)
    with pytest.raises(HeuristicNotFound):
        operator.forget(key)


@alone_on_delta_when_long
@rule("S4-22")
def test_what_nobody_knows_is_not_found_by_an_operator(world: World) -> None:
    dtx = Dtx(world)
    operator = world.manager("operator")
    for unknown in (dtx.xid().transaction_id, "no such transaction"):
        for act in (
            lambda key: operator.decide_heuristically(key, commit=False, reason="gone"),
            operator.forget,
            operator.commit,
            operator.rollback,
        ):
            with pytest.raises(TransactionNotFound, match="check the id"):
                act(unknown)
    _, known = dtx.ended()
    with pytest.raises(TransactionNotPrepared):
        operator.commit(known.transaction_id)
    with pytest.raises(HeuristicNotFound):
        operator.forget(known.transaction_id)


@alone_on_delta_when_long
@rule("S4-22")
def test_a_normal_decision_is_not_heuristic_and_cannot_become_so(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.prepared()
    channel.commit(xid)
    operator = world.manager("operator")
    with pytest.raises(TransactionFinished):
        operator.decide_heuristically(xid.transaction_id, commit=True, reason="late")
    assert not operator.outcome(xid.transaction_id).heuristic


@alone_on_delta_when_long
@rule("S4-25")
def test_nothing_but_a_decision_ends_a_prepared_branch(world: World) -> None:
    dtx = Dtx(world)
    _, xid = dtx.prepared()
    world.clock.advance(1e6)
    other = world.manager("x")
    assert other.recover().aborted == ()
    assert numbers(other.queue(dtx.orders.name).receive(10)) == [2, 3]
    assert other.outcome(xid.transaction_id).status is Status.PREPARED
    with refused(530):
        dtx.channel("y").start(xid)
    assert dtx.channel("z").commit(xid) is XaStatus.OK


@alone_on_delta_when_long
@rule("S4-25")
def test_the_plain_interface_decides_what_a_channel_prepared(world: World) -> None:
    dtx = Dtx(world)
    (_, first), (_, second) = dtx.prepared("a"), dtx.prepared("b")
    other = world.manager("x")
    receipt = other.commit(first.transaction_id)
    assert receipt == other.commit(first.transaction_id)
    other.rollback(second.transaction_id, reason="no")
    assert dtx.waiting() == [2, 3, 9]
    assert other.history.verify().ok


@alone_on_delta_when_long
@rule("S4-25")
def test_the_plain_interface_rolls_back_whoever_works_in_a_branch(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    other = world.manager("x")
    with pytest.raises(TransactionNotPrepared):
        other.commit(xid.transaction_id)
    other.rollback(xid.transaction_id, reason="its process is gone")
    other.rollback(xid.transaction_id)
    assert dtx.waiting() == [1, 2, 3]
    assert channel.end(xid) is XaStatus.RBROLLBACK


# ------------------------------------------------------------------------------ time-outs


@alone_on_delta_when_long
@rule("S4-30", "S4-31")
def test_a_time_out_holds_until_it_is_set_again(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(default_timeout_seconds=77.0), dtx.xid()
    channel.start(xid)
    other = dtx.channel("b")  # with another default of its own
    assert other.get_timeout(xid) == 77
    other.set_timeout(xid, 500)
    assert channel.get_timeout(xid) == 500
    world.clock.advance(400)
    channel.end(xid)
    assert channel.get_timeout(xid) == 500
    channel.set_timeout(xid, 0)
    assert channel.get_timeout(xid) == 77


@alone_on_delta_when_long
@rule("S4-30", "S4-31")
def test_time_outs_of_what_is_not_there_or_of_no_use(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    with refused(404):
        channel.get_timeout(xid)
    with refused(404):
        channel.set_timeout(xid, 5)
    channel.start(xid)
    wrong: list[Any] = ["5", True, None]
    for seconds in wrong:
        with pytest.raises(InvalidInput):
            channel.set_timeout(xid, seconds)
    for seconds in (-1, 1e12, BRANCH_SECONDS_MAX + 1):
        with refused(541):
            channel.set_timeout(xid, seconds)
    with failing(channel), refused(541):
        channel.set_timeout(xid, 5)
    with failing(channel, "read"), refused(541):
        channel.get_timeout(xid)
    assert channel.get_timeout(xid) == 300


@alone_on_delta_when_long
@rule("S4-32", "S4-17", "S4-22", "S4-24")
@pytest.mark.parametrize("step", ["end", "prepare", "commit 1", "commit 2", "rollback"])
def test_a_branch_that_took_too_long_is_rolled_back_by_whoever_notices(
    world: World, step: str
) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    if step != "end":
        channel.end(xid)
    dtx.overdue()
    assert act(channel, xid, step) is XaStatus.RBTIMEOUT
    assert dtx.waiting() == [1, 2, 3]
    for again in ("prepare", "commit 1", "rollback"):
        assert act(channel, xid, again) is XaStatus.RBTIMEOUT
    with refused(404):
        channel.set_timeout(xid, 1000)
    assert channel.start(xid, join=True) is XaStatus.RBROLLBACK


@alone_on_delta_when_long
@rule("S4-32")
def test_another_consumer_notices_a_time_out_and_not_a_lease(world: World) -> None:
    dtx = Dtx(world, lease_seconds=10)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    world.clock.advance(11)
    other = world.manager("x").queue(dtx.orders.name)
    assert numbers(other.receive(1)) == [2]  # the branch holds the first one longer than a lease
    world.clock.advance(290)
    assert numbers(other.receive(1)) == [1]
    assert channel.end(xid) is XaStatus.RBTIMEOUT


@alone_on_delta_when_long
@rule("S4-32", "S4-23")
def test_whoever_notices_a_time_out_gives_back_what_the_branch_held_anywhere(world: World) -> None:
    dtx = Dtx(world, lease_seconds=10)
    other, third = (world.queue(name, lease_seconds=1e5) for name in ("other", "third"))
    channel, xid = dtx.channel(), dtx.xid()
    for queue in (other, third):
        queue.send(rows(5))
    channel.start(xid)
    for queue in (dtx.orders, other):
        channel.queue(queue.name).receive(1)
    leased = third.receive(1)  # what others hold stays with them
    dtx.overdue()
    world.manager("x").queue(dtx.orders.name).receive(1)
    assert world.manager("x").outcome(xid.transaction_id).status is Status.ROLLED_BACK
    assert numbers(other.peek_messages()) == [5] and other.in_flight() == 0
    assert third.in_flight() == 1
    leased.accept()


@alone_on_delta_when_long
@rule("S4-32")
def test_recovery_notices_a_time_out_of_a_branch_that_holds_nothing(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel, receive=0)
    channel.end(xid)
    channel.set_timeout(xid, 5)
    other = world.manager("x")
    assert other.recover().aborted == ()
    world.clock.advance(5)
    assert other.recover().aborted == (xid.transaction_id,)
    assert other.recover().aborted == ()
    assert channel.prepare(xid) is XaStatus.RBTIMEOUT
    assert dtx.waiting() == [1, 2, 3]


@alone_on_delta_when_long
@rule("S4-32")
def test_a_consumer_notices_a_time_out_that_is_shorter_than_the_lease(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel, receive=2)
    channel.set_timeout(xid, 2)
    other = world.manager("x").queue(dtx.orders.name)
    assert numbers(other.receive(1)) == [3]
    world.clock.advance(3)
    got = other.receive(10)
    assert set(numbers(got)) <= {1, 2} and len(got)
    assert channel.end(xid) is XaStatus.RBTIMEOUT


@in_memory
@rule("S4-32")
def test_a_drain_takes_over_what_an_overdue_branch_holds(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel, receive=1)
    channel.set_timeout(xid, 2)
    world.clock.advance(3)
    seen: list[int] = []
    other = world.manager("x").queue(dtx.orders.name)
    done = other.drain(lambda batch, tx: seen.extend(numbers(batch)), until="empty")
    assert done.finished and sorted(seen) == [1, 2, 3]


@in_memory
@rule("S4-32")
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_waiting_receive_wakes_when_the_time_of_a_branch_is_over(world: World, when: str) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel, receive=3)
    other = world.manager("x")
    runtime, sleep = client_of(other).runtime, client_of(other).runtime.sleep

    def shortening(seconds: float) -> None:
        runtime.sleep = sleep
        channel.set_timeout(xid, 20)
        sleep(seconds)

    if when == "before":
        channel.set_timeout(xid, 20)
    else:
        runtime.sleep = shortening
    began = world.clock.now_ms
    assert len(other.queue(dtx.orders.name).receive(1, wait_seconds=100))
    assert 20_000 <= world.clock.now_ms - began <= 20_200


@in_memory
@rule("S4-32", "S4-25")
def test_a_receive_reads_about_branches_only_where_one_holds_something(world: World) -> None:
    dtx = Dtx(world)
    dtx.orders.send(rows(*range(4, 20)))
    calls: list[str] = []
    manager = world.manager("x")
    other = manager.queue(dtx.orders.name)
    other.receive(1).accept()

    def reads() -> int:
        calls.clear()
        assert len(other.receive(1))
        return calls.count("read")

    world.store.journal.step = calls.append
    assert reads() == 1
    held = world.manager("y").queue(dtx.orders.name).receive(1)
    tx = world.manager("z").transaction()
    world.manager("z").queue(dtx.orders.name)
    tx.queue(dtx.orders.name).receive(1)
    assert reads() == 1, "a lease and a transaction are nothing to ask for"
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    assert reads() == 2, "the branch, and nothing twice as long as it is at work"
    channel.end(xid)
    channel.prepare(xid)
    assert reads() == 2
    channel.rollback(xid)
    assert reads() == 1
    held.accept()
    tx.rollback()


@in_memory
@rule("S4-23")
def test_what_a_channel_receives_in_a_branch_that_is_over_is_nobodys(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.channel(), dtx.xid()
    channel.start(xid)
    dtx.work(channel)
    world.manager("op").rollback(xid.transaction_id, reason="on the telephone")
    late = channel.queue(dtx.orders.name).receive(3)
    other = world.manager("x").queue(dtx.orders.name)
    assert dtx.waiting() == [n for n in (1, 2, 3) if n not in numbers(late)]
    found: list[int] = []
    while len(batch := other.receive(10)):  # no clock is turned
        found += numbers(batch)
        batch.accept()
    assert sorted(found) == [1, 2, 3]
    assert channel.end(xid) is XaStatus.RBROLLBACK
    assert world.manager("x").history.verify().ok


@alone_on_delta_when_long
@rule("S4-32", "S4-25")
def test_no_time_out_ends_a_prepared_branch(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.prepared()
    channel.set_timeout(xid, 1)
    dtx.overdue()
    assert world.manager("x").recover().aborted == ()
    assert channel.commit(xid) is XaStatus.OK


@alone_on_delta_when_long
@rule("S4-32")
def test_a_time_out_that_is_set_anew_counts_from_the_start(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.ended()
    channel.set_timeout(xid, 1000)
    world.clock.advance(999)
    channel.set_timeout(xid, 1001)
    world.clock.advance(1)
    assert channel.prepare(xid) is XaStatus.OK


@in_memory
@rule("S4-24")
def test_the_proof_of_a_store_finds_a_part_that_was_left_out(world: World) -> None:
    dtx = Dtx(world)
    channel, xid = dtx.ended()
    channel.commit(xid, one_phase=True)
    manager = world.manager("x")
    assert manager.history.verify().ok
    entries = world.store.journal.read_all().entries
    decision = next(e for e in entries if "parts" in e.body and e.kind == "committed")
    decision.body["parts"].clear()
    assert not manager.history.verify().ok


@alone_on_delta_when_long
@rule("S4-18", "S4-25")
def test_a_branch_of_two_managers_survives_both_of_them(world: World) -> None:
    dtx = Dtx(world)
    first, second, xid = dtx.channel("a"), dtx.channel("b"), dtx.xid()
    first.start(xid)
    second.start(xid, join=True)
    dtx.work(first, send=8)
    dtx.work(second, send=9)
    first.end(xid)
    second.end(xid)
    assert dtx.channel("tm").prepare(xid) is XaStatus.OK
    world.lease_over()
    restarted = dtx.channel("tm")
    assert xid in restarted.recover(startscan=True, endscan=True)
    assert restarted.commit(xid) is XaStatus.OK
    assert dtx.waiting() == [3, 8, 9]
    if isinstance(world.store, MemoryStore):
        assert world.manager("x").history.verify().ok
