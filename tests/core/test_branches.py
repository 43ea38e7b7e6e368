"""What is planned of a branch that several sessions share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.core.test_ledger import STAMP
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.planning import branches, decisions
from txnqueue.core.state import TransactionState
from txnqueue.core.state.branch import Branch, Ticket, check_allowed, is_branch
from txnqueue.errors import BranchMisused, InvalidInput, NotPermitted

FACT = Entry("backlog/q", "lane/0", model.POSTED, queue_id="q", lane=0, ranges=((0, 2),), count=3)
CLAIM = replace(FACT, kind=model.RELEASED)


class Log:
    """The entries of a branch, as plans say them."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        started = branches.start("xid:1", "a1", 0, "one", 60.0, ticket=None, stamp=STAMP)
        self.land(started)

    def land(self, plan: Any) -> list[Entry]:
        version = len(self.entries) + 1
        landed = [
            replace(entry, append_id=f"a{version}", index=index, version=version)
            for index, entry in enumerate(plan.entries)
        ]
        assert all(condition.holds(self.entries) for condition in plan.conditions)
        self.entries += landed
        return landed

    @property
    def branch(self) -> Branch:
        found = Branch.of(TransactionState.of("xid:1", self.entries))
        assert found is not None
        return found


@pytest.mark.parametrize("facts", [(), (FACT,)])
@pytest.mark.parametrize("claims", [(), (CLAIM,)])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("fail", [False, True])
def test_a_session_that_ends_seals_what_it_did_and_holds_whatever_there_is_of_either(
    facts: Any, claims: Any, before: bool, fail: bool
) -> None:
    log = Log()
    if before:  # it was suspended, with a part that is out of date now
        log.land(branches.end(log.branch, "one", [FACT, FACT], [CLAIM], STAMP, suspend=True))
    landed = log.land(branches.end(log.branch, "one", facts, claims, STAMP, fail=fail))
    sealed = [entry for entry in landed if entry.kind == model.PART]
    assert len(sealed) == bool(facts or claims or before)
    back = [decisions.entry_to_json(entry) for entry in log.branch.given_back()]
    assert back == [decisions.entry_to_json(entry) for entry in claims]
    assert len(log.branch.facts()) == (0 if fail else len(facts))
    assert log.branch.sessions == {"one": model.ENDED}
    assert (log.branch.rollback_only is not None) is fail


def test_a_branch_is_the_same_in_whatever_order_its_entries_are_read() -> None:
    log = Log()
    log.land(branches.end(log.branch, "one", [FACT], [CLAIM], STAMP, suspend=True))
    log.land(branches.end(log.branch, "one", [FACT, FACT], [], STAMP))
    told = Branch.of(TransactionState.of("xid:1", log.entries[::-1]))
    assert told == log.branch and len(log.branch.facts()) == 2


def test_what_is_planned_of_a_branch_is_numbered_and_bars_what_was_planned_beside_it() -> None:
    log = Log()
    first = branches.associate(log.branch, "two", None, STAMP)
    beside = branches.set_timeout(log.branch, 5, STAMP)
    log.land(first)
    assert not all(condition.holds(log.entries) for condition in beside.conditions)
    log.land(branches.set_timeout(log.branch, 5, STAMP))
    assert [entry.sequence for entry in log.entries] == [1, 2, 3, 4]
    assert log.branch.timeout_seconds == 5
    log.land(branches.set_timeout(log.branch, None, STAMP))
    assert log.branch.timeout_seconds == 60


def test_the_horizon_ends_a_branch_until_it_is_prepared() -> None:
    log = Log()
    log.land(branches.end(log.branch, "one", [FACT], [], STAMP))
    passed = Entry(model.FENCE, "horizon", model.HORIZON_ADVANCED, begun=1, version=9)
    said = [log.branch]
    log.land(branches.seal(log.branch, model.PREPARED, STAMP))
    for branch, ended in zip([*said, log.branch], (True, False), strict=True):
        plan = branches.set_timeout(branch, 5, STAMP)
        horizon = [one for one in plan.conditions if one == model.horizon_at_most(branch.begun)]
        assert [one.holds([passed]) for one in horizon] == [False] * ended


def test_parts_are_in_the_order_in_which_they_were_sealed() -> None:
    log = Log()
    log.land(branches.associate(log.branch, "two", None, STAMP))
    other = replace(FACT, queue_id="other")
    log.land(branches.end(log.branch, "one", [FACT], [], STAMP, suspend=True))
    log.land(branches.end(log.branch, "two", [other], [], STAMP))
    log.land(branches.associate(log.branch, "one again", "one", STAMP))
    log.land(branches.end(log.branch, "one", [FACT], [], STAMP))
    assert [entry.queue_id for entry in log.branch.facts()] == ["other", "q"]


def test_an_end_that_landed_is_known_until_the_session_works_again() -> None:
    log = Log()
    assert not log.branch.has_ended("one", suspend=False, fail=False)
    with pytest.raises(BranchMisused, match=r"works in it\. Let it end"):
        log.branch.check_ended("prepared")
    log.land(branches.end(log.branch, "one", [FACT], [], STAMP, suspend=True))
    assert log.branch.has_ended("one", suspend=True, fail=False)
    with pytest.raises(BranchMisused, match="is suspended in it"):
        log.branch.check_ended("prepared")
    log.branch.check_ended("rolled back", suspended=True)


def test_what_is_no_ticket_is_refused_by_a_branch_of_everybody() -> None:
    ticket: Any = "a ticket"
    with pytest.raises(InvalidInput, match="give an AccessTicket"):
        Log().branch.check_presented(ticket)


def test_a_coordinator_is_asked_for_no_reason() -> None:
    log = Log()
    log.land(branches.end(log.branch, "one", [FACT], [], STAMP))
    sealed = branches.seal(log.branch, model.COMMITTED, STAMP).entries
    assert [e.body["asked"] for e in sealed if e.kind == model.COMMITTED] == [True]
    log.land(branches.seal(log.branch, model.PREPARED, STAMP))
    for commit, reason in ((True, None), (False, "rolled back")):
        said = branches.decide(log.branch, STAMP, commit=commit).entries
        assert {e.reason for e in said if e.kind in model.DECISIONS} == {reason}


@pytest.mark.parametrize(("allowed", "named"), [(("b", "c"), "b, c may."), ((), "no one may.")])
def test_who_is_not_permitted_is_told_who_is(allowed: Any, named: str) -> None:
    with pytest.raises(NotPermitted, match=f"'a' may not coordinate; {named}"):
        check_allowed("xid:1", {"coordinate": allowed}, "a", "coordinate")
    check_allowed("xid:1", {"coordinate": None}, "a", "coordinate")


def test_a_ticket_keeps_its_principals_and_a_key_tells_a_branch() -> None:
    principals: Any = ["a", "b"]
    assert Ticket("realm", associate=principals).associate == ("a", "b")
    assert [is_branch(key) for key in ("xid:1", "orders/1")] == [True, False]
