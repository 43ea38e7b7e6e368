"""Channels, branches and an operator, at random, against a model of what must be answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.conftest import LONG
from tests.faults.audit import check
from txnqueue.errors import TransactionFinished, TransactionNotFound, TransactionNotPrepared
from txnqueue.protocols.dtx import Channel, ChannelException, Connection, XaStatus, Xid
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, memory_manager

CHANNELS, XIDS = 3, 3
OPEN, PREPARED, COMMITTED, ROLLED_BACK = "open", "prepared", "committed", "rolled back"
Answer = XaStatus | int | None
channels, xids = st.integers(0, CHANNELS - 1), st.integers(0, XIDS - 1)
flags = st.booleans()


@dataclass
class Model:
    """What is known of one branch."""

    state: str = OPEN
    told: XaStatus | None = None  # how others than the coordinator ended it
    working: set[int] = field(default_factory=set)
    suspended: list[int] = field(default_factory=list)
    doomed: bool = False
    sent: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)

    @property
    def heuristic(self) -> bool:
        return self.told in (XaStatus.HEURCOM, XaStatus.HEURRB)

    @property
    def decided(self) -> Answer:
        """What every method answers once it is decided; None while it is not."""
        if self.state in (OPEN, PREPARED):
            return None
        return self.told or 404


class Branching(RuleBasedStateMachine):
    """Three channels of two managers, three xids, one queue."""

    @initialize()
    def begin(self) -> None:
        self.clock, self.store = Clock(), MemoryStore()
        self.managers = [memory_manager(self.store, self.clock, name) for name in "ab"]
        self.operator = memory_manager(self.store, self.clock, "operator")
        self.queue = self.operator.create_queue("q", "n long", dead_letter=False)
        self.queue.send([{"n": n} for n in range(6)])
        self.available, self.next = set(range(6)), 6
        self.channels = [self._channel(n) for n in range(CHANNELS)]
        self.at: list[int | None] = [None] * CHANNELS
        self.branches: dict[int, Model] = {}
        self.void: dict[int, int] = {}  # received in a branch that was decided before
        self.explicit: set[str] = set()

    def _channel(self, n: int) -> Channel:
        channel = Connection(self.managers[n % 2]).channel()
        channel.select()
        return channel

    def _xid(self, n: int) -> Xid:
        return Xid.of(1, b"g", bytes([n]))

    def _expect(self, wanted: Answer, act: Callable[[], Any]) -> None:
        try:
            found = act()
        except ChannelException as refused:
            found = int(refused.reply_code)
        assert found == wanted, f"{found}, not {wanted}"

    def _give_back(self, branch: Model) -> None:
        self.available |= branch.taken

    # ------------------------------------------------------------------- demarcation

    @rule(c=channels, x=xids)
    def start(self, c: int, x: int) -> None:
        wanted: Answer = XaStatus.OK
        if self.at[c] is not None:
            wanted = 503
        elif x in self.branches:
            wanted = 530
        self._expect(wanted, lambda: self.channels[c].start(self._xid(x)))
        if wanted is XaStatus.OK:
            self.branches[x] = Model(working={c})
            self.at[c] = x

    @rule(c=channels, x=xids, resume=flags)
    def join(self, c: int, x: int, resume: bool) -> None:
        branch = self.branches.get(x)
        wanted: Answer = XaStatus.OK
        if self.at[c] is not None:
            wanted = 503
        elif branch is None:
            wanted = 404
        elif branch.decided is not None:
            wanted = 404 if branch.decided == 404 else XaStatus.RBROLLBACK
            wanted = 503 if branch.heuristic else wanted
        elif branch.state == PREPARED:
            wanted = 503
        elif branch.doomed:
            wanted = XaStatus.RBROLLBACK
        elif resume and not branch.suspended:
            wanted = 503
        self._expect(
            wanted, lambda: self.channels[c].start(self._xid(x), join=not resume, resume=resume)
        )
        if wanted is XaStatus.OK:
            assert branch is not None
            if resume:
                branch.suspended.remove(c if c in branch.suspended else branch.suspended[0])
            branch.working.add(c)
            self.at[c] = x

    @rule(c=channels, x=xids, fail=flags, suspend=flags)
    def end(self, c: int, x: int, fail: bool, suspend: bool) -> None:
        branch = self.branches.get(x)
        wanted: Answer = XaStatus.OK
        if fail and suspend:
            wanted = 503
        elif branch is None or self.at[c] != x:
            wanted = 404
        elif branch.decided is not None:
            wanted = branch.decided
        elif fail or branch.doomed:
            wanted = XaStatus.RBROLLBACK
        self._expect(wanted, lambda: self.channels[c].end(self._xid(x), fail=fail, suspend=suspend))
        if isinstance(wanted, XaStatus) and branch is not None:
            self.at[c] = None
            branch.working.discard(c)
            branch.doomed = branch.doomed or fail
            if suspend and branch.decided is None:
                branch.suspended.append(c)

    @rule(c=channels)
    def send(self, c: int) -> None:
        n, self.next = self.next, self.next + 1
        self.channels[c].queue("q").send([{"n": n}])
        x = self.at[c]
        (self.available if x is None else self.branches[x].sent).add(n)

    @rule(c=channels)
    def receive(self, c: int) -> None:
        x = self.at[c]
        nobodys = {n for n, branch in self.void.items() if branch != x}
        batch = self.channels[c].queue("q").receive(1)
        got = {row["n"] for row in batch.messages()}
        free = self.available | nobodys
        assert got <= free and len(got) == min(1, len(free))
        if got:  # a claim ends all that is void in its lane
            self.available = free - got
            self.void = {n: branch for n, branch in self.void.items() if branch == x}
        if x is not None and self.branches[x].decided is not None:
            self.void.update(dict.fromkeys(got, x))
        elif x is not None:
            self.branches[x].taken |= got
        elif got:
            batch.accept()

    @rule(c=channels, x=xids)
    def a_whole_branch_is_prepared(self, c: int, x: int) -> None:
        """What else takes four steps in their order."""
        if self.at[c] is None and x not in self.branches:
            self.start(c, x)
            self.send(c)
            self.end(c, x, fail=False, suspend=False)
            self.prepare(x)

    # ----------------------------------------------------------------- coordination

    @rule(x=xids)
    def prepare(self, x: int) -> None:
        branch = self.branches.get(x)
        wanted: Answer = XaStatus.OK
        if branch is None:
            wanted = 404
        elif branch.decided is not None:
            wanted = 503 if branch.heuristic else branch.decided
        elif branch.working or branch.suspended or branch.state == PREPARED:
            wanted = 503
        elif branch.doomed:
            wanted = XaStatus.RBROLLBACK
        elif not (branch.sent or branch.taken):
            wanted = XaStatus.RDONLY
        self._expect(wanted, lambda: self.channels[0].prepare(self._xid(x)))
        if branch is None or branch.state != OPEN or not isinstance(wanted, XaStatus):
            return
        if wanted is XaStatus.RBROLLBACK:
            branch.state, branch.told = ROLLED_BACK, wanted
            self._give_back(branch)
        else:
            branch.state = PREPARED if wanted is XaStatus.OK else COMMITTED

    @rule(x=xids, one_phase=flags)
    def commit(self, x: int, one_phase: bool) -> None:
        branch = self.branches.get(x)
        wanted: Answer = XaStatus.OK
        if branch is None:
            wanted = 404
        elif branch.decided is not None:
            wanted = branch.decided
        elif branch.working or branch.suspended or one_phase == (branch.state == PREPARED):
            wanted = 503
        elif branch.doomed:
            wanted = XaStatus.RBROLLBACK
        self._expect(wanted, lambda: self.channels[1].commit(self._xid(x), one_phase=one_phase))
        if branch is None or branch.decided is not None or not isinstance(wanted, XaStatus):
            return
        if wanted is XaStatus.OK:
            branch.state = COMMITTED
            self.available |= branch.sent
        else:
            branch.state, branch.told = ROLLED_BACK, wanted
            self._give_back(branch)

    @rule(x=xids)
    def rollback(self, x: int) -> None:
        branch = self.branches.get(x)
        wanted: Answer = XaStatus.OK
        if branch is None:
            wanted = 404
        elif branch.decided is not None:
            wanted = branch.decided
        elif branch.working:
            wanted = 503
        if branch is not None and branch.state == PREPARED:
            self.explicit.add(self._xid(x).transaction_id)
        self._expect(wanted, lambda: self.channels[2].rollback(self._xid(x)))
        if wanted is XaStatus.OK and branch is not None and branch.decided is None:
            branch.state = ROLLED_BACK
            self._give_back(branch)

    @rule(x=xids, commit=flags)
    def operate(self, x: int, commit: bool) -> None:
        branch, key = self.branches.get(x), self._xid(x).transaction_id
        try:
            self.operator.decide_heuristically(key, commit=commit, reason="gone")
        except (TransactionNotFound, TransactionNotPrepared, TransactionFinished):
            agreed = branch is not None and branch.heuristic
            assert branch is None or branch.state != PREPARED
            assert not agreed or commit != (branch.told is XaStatus.HEURCOM)
            return
        assert branch is not None
        if branch.state != PREPARED:
            assert branch.told is (XaStatus.HEURCOM if commit else XaStatus.HEURRB)
            return
        branch.state = COMMITTED if commit else ROLLED_BACK
        branch.told = XaStatus.HEURCOM if commit else XaStatus.HEURRB
        self.explicit.add(key)
        if commit:
            self.available |= branch.sent
        else:
            self._give_back(branch)

    @rule(x=xids)
    def forget(self, x: int) -> None:
        branch = self.branches.get(x)
        wanted: Answer = None
        if branch is None or branch.decided == 404:
            wanted = 404
        elif not branch.heuristic:
            wanted = 503
        self._expect(wanted, lambda: self.channels[0].forget(self._xid(x)))
        if wanted is None and branch is not None:
            branch.told = None

    @rule()
    def time_passes(self) -> None:
        self.clock.advance(301)
        self._overdue()

    def _overdue(self) -> None:
        late = {
            self._xid(x).transaction_id: branch
            for x, branch in self.branches.items()
            if branch.state == OPEN
        }
        assert set(self.operator.recover().aborted) >= set(late)
        for branch in late.values():
            branch.state, branch.told = ROLLED_BACK, XaStatus.RBTIMEOUT
            self._give_back(branch)

    @rule(c=channels)
    def the_process_dies(self, c: int) -> None:
        """A channel is gone; what it worked in waits for its time-out."""
        self.channels[c], self.at[c] = self._channel(c), None

    # -------------------------------------------------------------------- always

    @invariant()
    def recovery_lists_what_waits(self) -> None:
        if not hasattr(self, "branches"):
            return
        waiting = {
            self._xid(x)
            for x, branch in self.branches.items()
            if branch.state == PREPARED or branch.heuristic
        }
        assert set(self.channels[0].recover(startscan=True, endscan=True)) == waiting

    @invariant()
    def what_can_be_received_is_what_was_committed(self) -> None:
        if hasattr(self, "branches"):
            assert {row["n"] for row in self.queue.peek_messages(1000)} == self.available

    def teardown(self) -> None:
        if hasattr(self, "store"):
            check(self.store.journal.read_all().entries, self.explicit)
            assert self.operator.history.verify().ok


TestBranching = Branching.TestCase
TestBranching.settings = settings(
    max_examples=2_000 if LONG else 120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
