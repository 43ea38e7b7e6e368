"""Protocol modules that are wrong on purpose: the tests of the rules must catch every one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from sqlite3 import OperationalError
from typing import Any

import pytest

from tests.conformance.conftest import World
from tests.faults.injection import Fault
from tests.specifications import test_amqp_coordination as coordination
from tests.specifications import test_amqp_pipelining as pipelining
from tests.specifications import test_amqp_work as work
from tests.specifications import test_flow as flows
from txnqueue.protocols.amqp import Connection, transactions
from txnqueue.protocols.amqp.coordinator import CoordinatorLink
from txnqueue.protocols.amqp.sending_link import SendingLink
from txnqueue.protocols.amqp.session import Session
from txnqueue.protocols.flow import MessageFlow, Processing
from txnqueue.storage.store import MemoryStore
from txnqueue.transactions.auxiliary import Auxiliary

Break = Callable[[pytest.MonkeyPatch], None]


def consumes_what_it_rolls_back(patch: pytest.MonkeyPatch) -> None:
    """What was acquired inside is forgotten instead of given back."""
    patch.setattr(transactions, "_end_acquisition", lambda delivery: None)


def forgets_default_outcomes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transactions, "apply_defaults", lambda deliveries: None)


def leaves_transactions_of_closed_links(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatorLink, "closed", lambda self: None)


def links_stay_in_their_transaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SendingLink, "leave", lambda self, transaction: None)


def finds_transactions_of_every_session(patch: pytest.MonkeyPatch) -> None:
    found = Session.transaction

    def anywhere(self: Session, txn_id: Any) -> Any:
        for one in self.connection.transactions():
            if one.txn_id == txn_id:
                return one
        return found(self, txn_id)

    patch.setattr(Session, "transaction", anywhere)


def forgets_what_was_not_done(patch: pytest.MonkeyPatch) -> None:
    """What is under way when its link ends is dropped, and nobody is told."""
    patch.setattr(Connection, "doom", lambda self, txn_ids, why: None)


def closes_what_is_only_detached(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SendingLink, "suspended", SendingLink.closed)


def commits_on_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Processing, "roll_back_open", Processing.commit_open)


def commits_what_is_open_at_last(patch: pytest.MonkeyPatch) -> None:
    """What is outside is committed after the main transaction, as if no crash came between."""
    commit, process = Processing.commit_open, MessageFlow.process
    waiting: list[Processing] = []

    def after(self: MessageFlow, wait_seconds: float = 0.0) -> Any:
        processed = process(self, wait_seconds)
        while waiting:
            commit(waiting.pop())
        return processed

    patch.setattr(Processing, "commit_open", waiting.append)
    patch.setattr(MessageFlow, "process", after)


def auxiliaries_never_roll_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Auxiliary, "rollback", Auxiliary.commit)


def mixes_what_must_not_be_mixed(patch: pytest.MonkeyPatch) -> None:
    source = MessageFlow.source

    def mixing(self: MessageFlow, name: str, *, coordinated: bool) -> Any:
        self._uses.clear()
        return source(self, name, coordinated=coordinated)

    patch.setattr(MessageFlow, "source", mixing)


VARIANTS: dict[str, tuple[Break, Callable[..., None]]] = {
    "a roll back consumes": (
        consumes_what_it_rolls_back,
        work.test_the_two_ways_to_roll_back,
    ),
    "no default outcome": (
        forgets_default_outcomes,
        partial(work.test_settled_and_rolled_back_the_default_outcome_is_applied, default=None),
    ),
    "a closed control link rolls nothing back": (
        leaves_transactions_of_closed_links,
        partial(coordination.test_a_closed_control_link_rolls_back_what_it_declared, how="detach"),
    ),
    "a discharge leaves links in their transaction": (
        links_stay_in_their_transaction,
        work.test_a_discharge_leaves_credit_and_clears_the_transaction,
    ),
    "transactions are everybody's": (
        finds_transactions_of_every_session,
        partial(
            coordination.test_other_sessions_of_the_connection_join_in_if_the_capability_allows,
            able=False,
        ),
    ),
    "a commit does not ask what was dropped": (
        forgets_what_was_not_done,
        partial(
            pipelining.test_what_names_a_transaction_and_is_not_done_keeps_it_from_committing,
            act=pipelining.to_an_ended_link,
            fail=False,
        ),
    ),
    "every detach closes": (
        closes_what_is_only_detached,
        partial(
            pipelining.test_an_outcome_counts_after_a_detach_that_does_not_close,
            inside=False,
            fail=False,
        ),
    ),
    "a failed flow commits what is open": (
        commits_on_failure,
        partial(flows.test_what_is_left_open_follows_the_outcome, fails=True),
    ),
    "what is outside is committed last": (
        commits_what_is_open_at_last,
        partial(
            flows.test_a_crash_between_the_commits_repeats_the_message_and_loses_no_row,
            fault=Fault.CRASH_AFTER,
        ),
    ),
    "auxiliary transactions cannot roll back": (
        auxiliaries_never_roll_back,
        flows.test_auxiliary_transactions_follow_one_another,
    ),
    "both uses of a database at once": (
        mixes_what_must_not_be_mixed,
        partial(flows.test_a_database_may_refuse_both_uses_in_one_flow, first="coordinated"),
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_module_is_caught(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken, check = VARIANTS[name]
    world = World(MemoryStore())
    given: dict[str, Any] = {"world": world}
    of = check.func if isinstance(check, partial) else check
    if of.__module__ == flows.__name__:
        given = {"broker": flows.Broker(world, tmp_path)}
    given = {
        k: v for k, v in {**given, "tmp_path": tmp_path}.items() if k in signature(of).parameters
    }
    broken(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, OperationalError)) as caught:
        check(**given)
    print(f"{name}: {type(caught.value).__name__}: {str(caught.value)[:150]}")
