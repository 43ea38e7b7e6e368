"""Protocols that are wrong on purpose: the checks must catch every one of them.

Each variant breaks one rule of the real code. If one passes, the checks are too weak.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from tests.conftest import LONG
from tests.faults import forgetting as days
from tests.faults import keeping, programs
from tests.faults.explore import Program, explore
from tests.faults.matrix import cases, fresh, fresh_for, run
from tests.faults.scenarios import EVERYTHING
from tests.faults.simulation import simulate
from tests.faults.world import World
from txnqueue import batch
from txnqueue.admin import drop, erasure, history_removal, maintenance, recovery
from txnqueue.client.append import Append, Landed
from txnqueue.client.cache import Cache
from txnqueue.client.client import Client
from txnqueue.client.readers import ShardReader
from txnqueue.core import model, planning
from txnqueue.core.model import Condition, Entry, PositionId, Unit
from txnqueue.core.planning import Plan, decisions
from txnqueue.core.receipt import Status
from txnqueue.core.state import Claim, LaneState, QueueState, compaction, retention
from txnqueue.core.state.branch import Branch
from txnqueue.errors import Busy, StoreCorrupt, TxnQueueError
from txnqueue.messages import claim as receiving
from txnqueue.messages import settlement, takeover
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.journal.memory import MemoryJournal
from txnqueue.storage.tables import TableCommit
from txnqueue.storage.tables.memory import MemoryTables
from txnqueue.testing import Clock, runtime
from txnqueue.transactions import commit, table_applier, work
from txnqueue.transactions.table_applier import Applier

Break = Callable[[pytest.MonkeyPatch], None]
Catch = Callable[[], None]


def exploring(
    clients: dict[str, Program],
    judge: Callable[..., None] = programs.judge,
    build: Callable[[World], None] = programs.build,
    **faults: int,
) -> Catch:
    """Look for a violation among all interleavings."""

    def catch() -> None:
        explore(build, clients, judge, states_max=60_000, **faults)

    return catch


def crashing(*names: str) -> Catch:
    """Look for a violation in the crash matrix of some operations."""

    def catch() -> None:
        for operation in EVERYTHING:
            if operation.name in names:
                for case in cases(operation):
                    try:
                        run(fresh_for(operation), case)
                    except TxnQueueError as error:  # what was left cannot be consumed
                        raise AssertionError(f"{case}: {error}") from error

    return catch


def simulating(seeds: int) -> Catch:
    """Look for a violation among so many seeds of the simulator."""

    def catch() -> None:
        for seed in range(seeds):
            simulate(seed)

    return catch


TWO_CONSUMERS = {"A": programs.consumer("A"), "B": programs.consumer("B")}
ONE_KEY = {"A": programs.consumer("A", "K"), "B": programs.consumer("B", "K")}
TWO_LEASES = {"A": programs.acknowledger("A"), "B": programs.acknowledger("B")}
BRANCH = {"A": programs.ender("A"), "C": programs.coordinator("C")}
PREPARED = {"A": programs.preparer("A", "K"), "B": programs.consumer("B")}


DROPPING = {"A": programs.dropper("A"), "B": programs.preparer("B", "K")}


def drops_what_is_prepared(patch: pytest.MonkeyPatch) -> None:
    """Drop a queue or an exchange although prepared transactions name it."""
    patch.setattr(drop, "holding", lambda entries, stream: ())


def looks_before_it_closes(patch: pytest.MonkeyPatch) -> None:
    """Find out what is prepared first, and close the queue after that."""
    real = drop._close_queue
    seen: list[Any] = []

    def hasty(client: Any, info: Any, reason: Any) -> None:
        stream = model.queue_stream(info.queue_id)
        seen[:] = [drop.holding(client.cache.transaction_entries(), stream)]
        real(client, info, reason)

    patch.setattr(drop, "_close_queue", hasty)

    def finish(client: Any, info: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(drop, "holding", lambda entries, stream: seen[0])
            return finishing(client, info)

    finishing = drop.finish_queue
    patch.setattr(drop, "finish_queue", finish)


def prepared_needs_an_open_queue(patch: pytest.MonkeyPatch) -> None:
    """Refuse the commit of what was prepared before the queue closed."""
    real = decisions.decide_prepared

    def strict(prepared: model.Entry, **kwargs: Any) -> Plan:
        named = {one["queue_id"] for one in prepared.body["manifest"]["entries"]}
        return real(prepared, **kwargs) + Plan((), tuple(map(model.queue_open, sorted(named))))

    patch.setattr(decisions, "decide_prepared", strict)


def expects_open(condition: Condition) -> bool:
    return condition.shard == model.FENCE and model.QUEUE_CLOSING in (condition.kinds or ())


def without(kind: Callable[[Condition], bool]) -> Break:
    """Leave out some conditions of every append."""

    def broken(patch: pytest.MonkeyPatch) -> None:
        of = Unit.of.__func__  # type: ignore[attr-defined]

        def weaker(cls: Any, append_id: str, entries: Any, conditions: Any, op: str = "") -> Any:
            return of(cls, append_id, entries, [c for c in conditions if not kind(c)], op)

        patch.setattr(Unit, "of", classmethod(weaker))

    return broken


def not_reading(prefix: str) -> Break:
    """Expect something of a shard without reading it: no conflict is noticed there."""

    def broken(patch: pytest.MonkeyPatch) -> None:
        def reads(self: Unit) -> frozenset[str]:
            return frozenset(c.shard for c in self.conditions if not c.shard.startswith(prefix))

        patch.setattr(Unit, "reads", property(reads))

    return broken


def equal_sequence(patch: pytest.MonkeyPatch) -> None:
    """Expect that nobody has exactly this number, instead of this one or a later one."""

    real = Condition.matches

    def matches(self: Condition, entry: model.Entry) -> bool:
        if self.sequence_from is not None and entry.sequence != self.sequence_from:
            return False
        return real(self, entry)

    patch.setattr(Condition, "matches", matches)
    patch.setattr(Unit, "reads", property(lambda self: frozenset({model.FENCE})))


def exception_is_an_outcome(patch: pytest.MonkeyPatch) -> None:
    """Believe the store when it says that an append lost."""
    patch.setattr(Append, "_find", lambda *_: None)


def new_append_id_per_try(patch: pytest.MonkeyPatch) -> None:
    """Forget earlier tries, and look only for the last one."""
    find = Append._find

    def last_only(self: Any, cause: Any) -> Any:
        tried, self._tried = self._tried, self._tried[-1:]
        try:
            return find(self, cause)
        finally:
            self._tried = tried

    def fresh_unit(self: Any, planned: Plan) -> Unit:
        if not self._tried:
            self._since = self._journal.known_version() - 1
        append_id = self._runtime.new_id()
        unit = Unit.of(append_id, planned.entries, planned.conditions, self._operation)
        self._tried.append(unit)
        return unit

    patch.setattr(Append, "_unit", fresh_unit)
    patch.setattr(Append, "_find", last_only)


def believes_its_last_plan(patch: pytest.MonkeyPatch) -> None:
    """Take what was last planned for what landed."""
    find = Append._find

    def mistaken(self: Any, cause: Any) -> Any:
        found = find(self, cause)
        if found is None:
            return None
        entries = tuple(replace(e, version=found.version) for e in self._tried[-1].entries)
        return Landed(entries, found.version)

    patch.setattr(Append, "_find", mistaken)


def absent_is_aborted(patch: pytest.MonkeyPatch) -> None:
    """Take a transaction without an entry for an aborted one: no tombstone."""
    real = takeover.Takeovers.find

    def careless(self: Any, fold: QueueState, owner: Any, *rest: Any, **more: Any) -> Any:
        found = real(self, fold, owner, *rest, **more)
        for _, claims in found.tombstones.values():
            for claim in claims:
                found.superseded.setdefault(claim.lane, []).append(claim)
        found.tombstones.clear()
        return found

    patch.setattr(takeover.Takeovers, "find", careless)


def queue_before_owner(patch: pytest.MonkeyPatch) -> None:
    """Read the queue first and the owner's decision after it."""

    def careless(
        self: Any, fold: QueueState, owner: Any, now_ms: int, *, closely: bool = False
    ) -> Any:
        found = self._candidates(fold, owner, now_ms, closely=closely)
        attempts = (one.claim.attempt for one in found)
        states = self._client.states.key_states(a.key for a in attempts if a is not None)
        superseded: dict[int, list[Claim]] = {}
        tombstones: dict[str, Any] = {}
        for one in found:
            if not one.may_end(states, now_ms):
                continue
            claim, holder = one.claim, one.claim.attempt
            if holder is None or states[holder.key].decided(holder.attempt):
                superseded.setdefault(claim.lane, []).append(claim)
            else:
                tombstones.setdefault(holder.attempt, (holder, []))[1].append(claim)
        return takeover.Takeover(superseded, tombstones, self._elsewhere(tombstones), owner)

    patch.setattr(takeover.Takeovers, "find", careless)


def prepared_may_be_swept(patch: pytest.MonkeyPatch) -> None:
    """Let a lease's end abort a prepared transaction."""
    patch.setattr(takeover, "may_end", lambda *_, lease_over=True: lease_over)
    patch.setattr(recovery, "may_end", lambda *_: True)
    undecided = model.undecided
    patch.setattr(
        model,
        "undecided",
        lambda key, attempt, *, unprepared: undecided(key, attempt, unprepared=False),
    )


def takes_its_own_batch_over(patch: pytest.MonkeyPatch) -> None:
    """Let a joined append take over the claims that it commits."""
    real = receiving.ClaimPlanner.__init__

    def forgetful(self: Any, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self.takeovers.beside = ()

    patch.setattr(receiving.ClaimPlanner, "__init__", forgetful)
    patch.setattr(Plan, "excludes", lambda self, other: False)


def acknowledges_unseen(patch: pytest.MonkeyPatch) -> None:
    """Settle a lease without looking whether it is still held."""

    def blind(client: Any, one: Any, folds: Any) -> Any:
        return client.states.fold(one.info), one.claim

    patch.setattr(settlement, "still_ours", blind)
    patch.setattr(work, "still_ours", blind)


def settles_without_owning(patch: pytest.MonkeyPatch) -> None:
    """Count a settlement whoever wrote it."""
    real = QueueState._settled

    def gullible(self: QueueState, lane: Any, entry: model.Entry) -> None:
        claim = lane.claims.get(entry.claim_sequence or 0)
        if claim is not None and entry.sequence is None:
            entry = replace(entry, attempt=claim.attempt_id)
        real(self, lane, entry)

    patch.setattr(QueueState, "_settled", gullible)


def commits_without_settling(patch: pytest.MonkeyPatch) -> None:
    """Leave it to the reader to infer what a commit consumed."""
    patch.setattr(settlement.Account, "dispositions", lambda self, one, attempt: [])


def rolls_back_silently(patch: pytest.MonkeyPatch) -> None:
    """Roll back without an entry although a commit may be on its way."""

    def silent(attempt: Any, reason: str | None = None, *, counted: bool = True) -> None:
        attempt.status = Status.ROLLED_BACK

    patch.setattr(commit, "rollback", silent)


def releases_what_others_hold(patch: pytest.MonkeyPatch) -> None:
    """Give messages back by a fact although their claim is somebody's lease."""
    real = decisions.rollback

    def generous(owner: Any, facts: Any, stamp: Any, reason: str, said: Any = None) -> Plan:
        return real(owner, [replace(f, kind=model.ACCEPTED) for f in facts], stamp, reason, said)

    patch.setattr(decisions, "rollback", generous)


def gives_up_with_aborted(patch: pytest.MonkeyPatch) -> None:
    """Report a lost reply as a failure."""
    real = Append._try

    def impatient(self: Any, unit: Unit) -> Any:
        try:
            answer = self._journal.append([unit], {})
        except (ConnectionError, AppendConflict) as error:
            raise Busy() from error
        return (
            self._landed(unit, answer.version, answer.ordinal)
            if answer.won[0]
            else real(self, unit)
        )

    patch.setattr(Append, "_try", impatient)


def _pretended(self: Any, one: Any) -> TableCommit:
    return TableCommit(0, "", None, {})


def applies_only_its_own(patch: pytest.MonkeyPatch) -> None:
    """Apply the newest change of a table, and not the older ones before it."""
    real = table_applier.unapplied

    def newest(entries: Any) -> Any:
        return {table: changes[-1:] for table, changes in real(entries).items()}

    patch.setattr(table_applier, "unapplied", newest)


def believes_a_skip(patch: pytest.MonkeyPatch) -> None:
    """Take a change for applied because the table has seen a higher number."""
    applies_only_its_own(patch)
    patch.setattr(table_applier.Applier, "_surely_marked", _pretended)


def applies_without_a_number(patch: pytest.MonkeyPatch) -> None:
    """Apply a change as if nobody else could have done so."""
    real = MemoryTables.apply

    def careless(self: Any, change: Any, stamp: Any, *, empty: bool = False) -> Any:
        self._tables[change.table].numbers.clear()
        return real(self, change, stamp, empty=empty)

    patch.setattr(MemoryTables, "apply", careless)
    patch.setattr(table_applier, "mark_of", lambda *_: None)
    patch.setattr(table_applier.Applier, "_surely_marked", _pretended)


def keeps_before_it_settles(patch: pytest.MonkeyPatch) -> None:
    dispositions = settlement.Account.dispositions
    patch.setattr(settlement.Account, "dispositions", lambda *given: dispositions(*given)[::-1])


def settles_what_it_keeps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batch.Batch, "keep", lambda self: None)


def overlooks_parts(patch: pytest.MonkeyPatch) -> None:
    """Decide a branch as it was read, whatever was written of it since."""
    shard = model.transaction_shard
    patch.setattr(
        Branch,
        "expects_next",
        lambda self: model.next_sequence(shard(self.key), self.key, 1 << 40),
    )


def overlooks_sessions(patch: pytest.MonkeyPatch) -> None:
    """Decide a branch while a session works in it."""
    patch.setattr(Branch, "check_ended", lambda *given, **named: None)


def starts_twice(patch: pytest.MonkeyPatch) -> None:
    """Start a branch without looking whether the append finds another start."""
    patch.setattr(model, "unused", lambda key: model.undecided(key, "nobody", unprepared=True))


def times_a_prepared_branch_out(patch: pytest.MonkeyPatch) -> None:
    """Let a time-out end a prepared branch."""
    patch.setattr(Branch, "open", property(lambda self: self.decision is None))
    prepared_may_be_swept(patch)


def operators_decide_again(patch: pytest.MonkeyPatch) -> None:
    """Let a decision on what is prepared expect nothing of other decisions."""
    without(lambda c: c.kinds == (model.COMMITTED, model.ROLLED_BACK))(patch)


def purged_comes_back(patch: pytest.MonkeyPatch) -> None:
    """Give back what was purged in flight."""
    real = QueueState.returning

    def forgetful(self: QueueState, claim: Claim, *when: Any, **how: Any) -> Any:
        return real(self, replace(claim, purging={}), *when, **how)

    patch.setattr(QueueState, "returning", forgetful)
    patch.setattr(Claim, "purge_pending", {})


def purges_only_what_it_sees(patch: pytest.MonkeyPatch) -> None:
    """Miss what came back between the purge's look and its append."""
    real = QueueState._purge_pending

    def late(self: QueueState, lane: Any, entry: model.Entry) -> None:
        available, lane.available = lane.available, []
        real(self, lane, entry)
        lane.available = available

    patch.setattr(QueueState, "_purge_pending", late)


def moves_without_arriving(patch: pytest.MonkeyPatch) -> None:
    """End the claim of what is moved, and post it nowhere."""
    patch.setattr(work, "departures", lambda *_: Plan())


def moves_without_leaving(patch: pytest.MonkeyPatch) -> None:
    """Post what is moved, and release its claim."""
    real = work._settle

    def stays(one: Any, disposition: Any, *rest: Any) -> Any:
        return real(one, replace(disposition, kind=model.RELEASED), *rest)

    patch.setattr(work, "_settle", stays)


def counts_moves_as_deliveries(patch: pytest.MonkeyPatch) -> None:
    """Count a delivery when a move is rolled back."""
    real = planning.claim

    def counting(*args: Any, **kwargs: Any) -> Plan:
        return real(*args)

    patch.setattr(planning, "claim", counting)
    patch.setattr(Claim, "of", _counting(Claim.of))


def _counting(real: Callable[..., Claim]) -> Callable[..., Claim]:
    return lambda entry, items: replace(real(entry, items), counts=True)


def delivers_what_was_refused(patch: pytest.MonkeyPatch) -> None:
    """Forget who does not want a message again."""
    real = planning.select

    def select(*args: Any, **named: Any) -> Any:
        return real(*args, **{**named, "consumer": None})

    patch.setattr(planning, "select", select)


def purging_meanwhile() -> None:
    """Roll a transaction back between a purge's look and its append."""
    world = fresh()
    world.helper("creator").queue("in").send([{"i": i} for i in range(4)])
    tx = world.manager("A").transaction()
    tx.queue("in").receive(2)
    journal, append = world.store.journal, world.store.journal.append

    def meanwhile(units: Any, metadata: Any) -> Any:
        journal.append = append
        tx.rollback()
        return append(units, metadata)

    journal.append = meanwhile
    queue = world.manager("B").queue("in")
    queue.purge()
    world.ledger()
    assert queue.depth() == 0, "P2 what was purged can be received"


def landing_late() -> None:
    """Plan a second append while the first is on its way, and lands before it."""
    journal = MemoryJournal()
    late: list[Callable[[], Any]] = []
    append = journal.append

    def slow(units: Any, metadata: Any) -> Any:
        if not late:
            late.append(lambda: append(units, metadata))
            raise ConnectionError("no reply")
        late[0]()
        return append(units, metadata)

    journal.append = slow

    def plan(lost: int) -> Plan:
        entry = model.Entry("lane/q/0", "lane/0", model.CLAIMED, sequence=1, count=lost)
        return Plan((entry,), (model.next_sequence("lane/q/0", "lane/0", 1),))

    landed = Append(journal, runtime(Clock()), "claim").land(plan)
    assert landed is not None
    there = journal.read(["lane/q/0"]).entries
    assert landed.entries == there, "P6 what is believed is not what the journal says"


def forgets_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    """Compact a lane without its claims: their messages wait again, or are gone."""
    real = compaction.body

    def careless(*given: Any, **named: Any) -> dict[str, Any]:
        return {**real(*given, **named), "in_flight": []}

    patch.setattr(compaction, "body", careless)


def forgets_deliveries(patch: pytest.MonkeyPatch) -> None:
    """Compact a lane without how often its messages were delivered."""
    real = compaction._waiting

    def careless(lane: LaneState) -> Any:
        return [
            [append_id, index, [[first, last, 0, 0] for first, last, *_ in runs]]
            for append_id, index, runs in real(lane)
        ]

    patch.setattr(compaction, "_waiting", careless)


def pins_the_newest_version(patch: pytest.MonkeyPatch) -> None:
    """Compact from one version, and say that it was a later one."""
    real = compaction.body
    patch.setattr(
        compaction,
        "body",
        lambda lane, pin, *rest, **named: {**real(lane, pin, *rest, **named), "pin": pin + 3},
    )


def deletes_before_it_copies(patch: pytest.MonkeyPatch) -> None:
    """Let entries leave the journal before they stand in the archive."""

    def hasty(self: Any, entries: Any, day: str) -> bool:
        gone = {entry.entry_id for entry in entries}
        shards = self._client.store.inner.journal._shards
        for shard in {entry.shard for entry in entries}:
            shards[shard] = [e for e in shards[shard] if e.entry_id not in gone]
        self._journal.archive.add(entries, day, {})
        return True

    patch.setattr(maintenance._Run, "_move", hasty)


def overlooks_prepared_payload(patch: pytest.MonkeyPatch) -> None:
    """Look for payload that is needed in positions only."""
    real = retention.named_slices

    def careless(entries: Any) -> Any:
        return real(e for e in entries if e.kind != model.PREPARED)

    patch.setattr(retention, "named_slices", careless)


def leaves_the_prepared_behind(patch: pytest.MonkeyPatch) -> None:
    """Let a decision leave, and what was prepared stay."""
    real = retention._of_transactions

    def careless(*args: Any) -> Any:
        return [entry for entry in real(*args) if entry.kind != model.PREPARED]

    patch.setattr(retention, "_of_transactions", careless)


def asks_the_journal_only(patch: pytest.MonkeyPatch) -> None:
    """Look an id up without the archive."""
    real = Cache.key_states
    patch.setattr(Cache, "key_states", lambda self, keys, since=None: real(self, keys, None))


def reads_transactions_piece_by_piece(patch: pytest.MonkeyPatch) -> None:
    """Read on what is known, then the rest, and take all for as new as the horizon."""

    def read(self: ShardReader, shards: Iterable[str]) -> tuple[list[Entry], int]:
        in_turn = sorted(set(shards), key=lambda shard: shard not in self._known)
        found = [whole(self, [shard]) for shard in in_turn]
        return [e for entries, _ in found for e in entries], max((h for _, h in found), default=-1)

    whole = ShardReader.read_with_horizon
    patch.setattr(ShardReader, "read_with_horizon", read)


def keeps_open_what_is_over(patch: pytest.MonkeyPatch) -> None:
    """Take a branch for undecided that nobody can decide any more."""
    real = Branch.of.__func__  # type: ignore[attr-defined]

    def of(cls: type[Branch], state: Any) -> Branch | None:
        branch = real(cls, state)
        return None if branch is None else replace(branch, lost=False)

    patch.setattr(Branch, "of", classmethod(of))


def removes_before_it_says_so(patch: pytest.MonkeyPatch) -> None:
    """Remove entries from the archive, and say after it that the history begins later."""
    real = history_removal.announce

    def hasty(client: Client, removal: Any) -> None:
        client.store.journal.archive.forget(removal.day, removal.standing, {})
        real(client, removal)

    patch.setattr(history_removal, "announce", hasty)


def begins_too_early(patch: pytest.MonkeyPatch) -> None:
    """Take the history for whole from where any of its days was said."""
    real = retention.beginning

    def early(entries: Iterable[Entry], *given: Any, **also: Any) -> tuple[int, str] | None:
        every = [entry for entry in entries if entry.kind == model.HORIZON_ADVANCED]
        found = real(every, *given, **also)
        return None if found is None else (min(entry.version for entry in every), found[1])

    patch.setattr(retention, "beginning", early)


def keeps_by_its_own_clock(patch: pytest.MonkeyPatch) -> None:
    """Archive under the day that the keeper's clock shows, not under the one that was read."""
    real = maintenance._Run._move

    def move(self: Any, entries: Any, day: str) -> bool:
        return real(self, entries, self._today.isoformat())

    patch.setattr(maintenance._Run, "_move", move)


def forgets_what_was_done_to_standing_messages(patch: pytest.MonkeyPatch) -> None:
    """Remove what is old, also of messages that still stand."""
    patch.setattr(retention, "standing", lambda entries, version: [])


def forgets_how_claims_of_standing_messages_ended(patch: pytest.MonkeyPatch) -> None:
    """Keep of what is old only what names messages that still stand."""
    real = retention.concerning

    def naming(entries: Iterable[Entry], positions: Iterable[Entry]) -> set[PositionId]:
        bare = [replace(entry, claim_sequence=None) for entry in entries]
        return real(bare, positions)

    patch.setattr(retention, "concerning", naming)


def forgets_who_ended_claims_of_standing_messages(patch: pytest.MonkeyPatch) -> None:
    """Remove old claims of other messages, though they ended one of a message that stands."""
    real = retention.concerning

    def blind(entries: Iterable[Entry], positions: Iterable[Entry]) -> set[PositionId]:
        bare = [replace(e, body={**e.body, "supersedes": ()}) for e in entries]
        return real(bare, positions)

    patch.setattr(retention, "concerning", blind)


def takes_forgotten_for_undone(patch: pytest.MonkeyPatch) -> None:
    """Take what is found nowhere for what never happened, however long ago it began."""
    patch.setattr(Cache, "check_known", lambda self, owner: None)


def leaves_what_it_erases(patch: pytest.MonkeyPatch) -> None:
    """Say that rows are erased, and leave them."""
    patch.setattr(erasure, "_delete", lambda client, owner, places: None)


def finishes_no_erasure(patch: pytest.MonkeyPatch) -> None:
    """Leave it to nobody to delete what is recorded as erased."""
    recovers: Any = recovery
    patch.setattr(recovers.erasure, "finish", lambda client, facts: {})


def drops_what_is_named(patch: pytest.MonkeyPatch) -> None:
    """Remove payload below the horizon, though entries name it."""
    of_rule = retention.droppable
    patch.setattr(retention, "droppable", lambda there, named, *more: of_rule(there, (), *more))


def waives_without_a_number(patch: pytest.MonkeyPatch) -> None:
    """Record that a change is waived, and let others apply it meanwhile."""
    patch.setattr(Applier, "_is_there", lambda self, one, *, table_gone: False)


VARIANTS: dict[str, tuple[Break, Catch]] = {
    "absent = aborted": (absent_is_aborted, exploring(TWO_CONSUMERS, tick=1)),
    "the queue read before the owner": (queue_before_owner, exploring(TWO_CONSUMERS, tick=1)),
    "next sequence checked with = and not read": (equal_sequence, exploring(TWO_CONSUMERS)),
    "no next sequence at all": (
        without(lambda c: c.sequence_from is not None and c.shard.startswith("lane/")),
        exploring(TWO_LEASES, late=1),
    ),
    "lanes expected and not read": (not_reading("lane/"), exploring(TWO_CONSUMERS)),
    "transactions expected and not read": (
        not_reading("transaction/"),
        exploring(TWO_CONSUMERS, tick=1),
    ),
    "an attempt may be decided twice": (
        without(lambda c: c.attempts is not None and not c.present),
        exploring(TWO_CONSUMERS, tick=1),
    ),
    "a key may be committed twice": (
        without(lambda c: c.attempts_except is not None),
        exploring(ONE_KEY),
    ),
    "an exception is an outcome": (exception_is_an_outcome, crashing("accept", "send")),
    "a new append id per try": (
        new_append_id_per_try,
        exploring({"A": programs.acknowledger("A")}, late=1),
    ),
    "the last plan is believed": (believes_its_last_plan, landing_late),
    "a prepared transaction is swept": (prepared_may_be_swept, exploring(PREPARED, tick=1)),
    "a drain takes its own batch over": (
        takes_its_own_batch_over,
        exploring({"A": programs.drainer("A")}, tick=1),
    ),
    "an acknowledgement without looking": (acknowledges_unseen, exploring(TWO_LEASES, tick=1)),
    "a commit without settlements": (commits_without_settling, crashing("commit")),
    "a silent roll back": (rolls_back_silently, crashing("commit")),
    "a roll back that consumes": (releases_what_others_hold, crashing("rollback")),
    "only its own change is applied": (
        applies_only_its_own,
        crashing("commit after another's unapplied change"),
    ),
    "a skipped change is believed": (
        believes_a_skip,
        crashing("commit after another's unapplied change"),
    ),
    "a change is applied without a number": (
        applies_without_a_number,
        crashing("commit with a table change"),
    ),
    "kept before the rest is settled": (keeps_before_it_settles, crashing("commit and keep")),
    "what is kept is settled": (settles_what_it_keeps, crashing("commit and keep")),
    "work on a queue that is closing": (
        without(expects_open),
        exploring(DROPPING, programs.judge_drop),
    ),
    "closing expected and not read": (
        not_reading("fence"),
        exploring(DROPPING, programs.judge_drop),
    ),
    "a drop that waits for nothing": (
        drops_what_is_prepared,
        crashing("drop queue that is held back"),
    ),
    "what holds a drop back is looked for before it closes": (
        looks_before_it_closes,
        exploring(DROPPING, programs.judge_drop),
    ),
    "what is prepared needs an open queue": (
        prepared_needs_an_open_queue,
        exploring(DROPPING, programs.judge_drop),
    ),
    "a part is left out": (
        overlooks_parts,
        exploring(
            {"A": programs.joiner("A"), "C": programs.coordinator("C", one_phase=True)},
            build=programs.build_branch,
        ),
    ),
    "a branch is decided while somebody works in it": (
        overlooks_sessions,
        exploring(BRANCH, build=programs.build_parts),
    ),
    "a branch is started twice": (
        starts_twice,
        exploring({"A": programs.starter("A"), "B": programs.starter("B")}),
    ),
    "a time-out ends a prepared branch": (
        times_a_prepared_branch_out,
        crashing("commit a prepared branch"),
    ),
    "an operator decides what is decided": (
        operators_decide_again,
        exploring(
            {"A": programs.undoer("A"), "O": programs.operator("O")},
            build=programs.build_prepared,
        ),
    ),
    "what was purged comes back": (
        purged_comes_back,
        crashing("rollback of what was purged"),
    ),
    "a purge of what it sees only": (purges_only_what_it_sees, purging_meanwhile),
    "a move that arrives nowhere": (moves_without_arriving, crashing("commit of a move")),
    "a move that leaves nothing": (moves_without_leaving, simulating(30)),
    "a move that counts as a delivery": (counts_moves_as_deliveries, simulating(30)),
    "a refused message is delivered": (delivers_what_was_refused, simulating(30)),
    "a compaction forgets what is in flight": (
        forgets_what_is_in_flight,
        keeping.what_is_in_flight_stays_with_its_holder,
    ),
    "a compaction forgets deliveries": (
        forgets_deliveries,
        keeping.a_cold_client_knows_what_failed,
    ),
    "a compaction says that it knows more": (pins_the_newest_version, crashing("maintain")),
    "deleted before it is copied": (
        deletes_before_it_copies,
        keeping.nothing_is_lost_between_journal_and_archive,
    ),
    "the horizon is not looked at": (
        without(lambda c: c.begun_above is not None),
        keeping.nobody_decides_below_the_horizon,
    ),
    "payload of what is prepared is dropped": (
        overlooks_prepared_payload,
        keeping.what_was_prepared_can_be_carried_out,
    ),
    "the prepared stays behind its decision": (
        leaves_the_prepared_behind,
        keeping.what_was_prepared_can_be_carried_out,
    ),
    "transactions are read piece by piece": (
        reads_transactions_piece_by_piece,
        keeping.what_is_prepared_is_nobody_elses,
    ),
    "what the horizon has passed stays open": (
        keeps_open_what_is_over,
        keeping.what_the_horizon_has_passed_is_over,
    ),
    "a creation does not expect its payload": (
        without(lambda c: c.kinds == (model.PAYLOAD_REMOVED,)),
        keeping.what_is_created_has_its_payload,
    ),
    "history is removed before that is said": (
        removes_before_it_says_so,
        days.what_is_removed_was_announced,
    ),
    "the history begins too early": (begins_too_early, days.days_on_end),
    "archived under the keeper's own day": (keeps_by_its_own_clock, days.clocks_decide_nothing),
    "what was done to standing messages is removed": (
        forgets_what_was_done_to_standing_messages,
        days.days_on_end,
    ),
    "how claims of standing messages ended is removed": (
        forgets_how_claims_of_standing_messages_ended,
        days.days_on_end,
    ),
    "who ended claims of standing messages is removed": (
        forgets_who_ended_claims_of_standing_messages,
        days.a_lease_that_another_claim_ended_is_over,
    ),
    "what is forgotten is undone": (
        takes_forgotten_for_undone,
        days.what_is_not_known_is_not_guessed,
    ),
    "what is forgotten is undone in memory": (
        takes_forgotten_for_undone,
        days.what_is_in_memory_waits_for_an_answer,
    ),
    "an archived id is forgotten": (asks_the_journal_only, keeping.an_id_is_used_once),
    "rows that are erased stay": (leaves_what_it_erases, crashing("erase")),
    "nobody finishes an erasure": (finishes_no_erasure, crashing("erase")),
    "payload that is needed is dropped": (
        drops_what_is_named,
        crashing("maintain, of all that has finished"),
    ),
    "a waived change is applied": (waives_without_a_number, crashing("waive a change")),
    "a lost reply reported as failure": (gives_up_with_aborted, crashing("accept", "receive")),
}


FOR_LONG = (
    "what holds a drop back is looked for before it closes",
    "what is prepared needs an open queue",
    "closing expected and not read",
)
"""Those that are found after ten seconds and more."""


@pytest.mark.parametrize("name", [one for one in VARIANTS if LONG or one not in FOR_LONG])
def test_a_broken_protocol_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, catch = VARIANTS[name]
    broken(monkeypatch)
    with pytest.raises((AssertionError, StoreCorrupt)) as caught:
        catch()
    print(f"{name}: {type(caught.value).__name__}: {str(caught.value)[:150]}")
