"""How the simulator's clients end transactions, their own and those of others."""

from __future__ import annotations

from typing import Any

from tests.faults.reference import (
    COMES_AND_GOES,
    LEASE_SECONDS,
    Intent,
)
from tests.inside import attempt_id, attempt_of
from txnqueue.core import model
from txnqueue.core.receipt import Status
from txnqueue.errors import (
    Busy,
    LeaseLost,
    SettlementPending,
    TransactionAborted,
    TransactionFinished,
    TransactionNotFound,
    TransactionNotPrepared,
    TransactionUnknown,
)

UNPREPARED = (TransactionNotFound, TransactionNotPrepared)


class Deciding:
    """What a client does to decide, and to find out what was decided."""

    reference: Any
    ask: Any
    simulation: Any
    manager: Any
    quiet: Any
    leased: list[Any]
    active: Any
    runtime: Any
    queue: Any
    open: dict[Any, Any]
    keys_alone: Any
    refuses_to_prepare: Any
    name: str
    committed_with: Any
    call: str
    began: int
    _send_to: Any

    def do_begin(self) -> None:
        key = self.simulation.random.choice((None, self.simulation.key()))
        known = key in self.reference.committed
        tx = self.manager.transaction(key)
        _, error = self.ask(attempt_of(tx).begin)
        if error is not None:
            return
        if tx.already_committed and tx.id in self.keys_alone:
            return
        if tx.already_committed:
            assert self.reference.committed[tx.id][1] == tx.receipt.commit_seq
            assert self.queue().send([{"n": 0}], transaction=tx).count == 0
            self.reference.counts["already committed"] += 1
            return
        assert not known, f"P9 {key} was committed, and its client is not told"
        intent = Intent(self.name, tx.id)
        self.open[tx] = self.reference.intents[attempt_id(tx)] = intent

    def do_commit(self) -> None:
        tx, intent = self.active(ending=True)
        if tx is None:
            return self.do_begin()
        receipt, error = self.ask(tx.commit, TransactionAborted, LeaseLost, SettlementPending)
        if receipt is not None and intent.expected():
            self._check_receipt(receipt)
            said = self.reference.decided.get(attempt_id(tx))
            assert said == model.COMMITTED, f"P9 {tx.id} is said to be committed: {said}"
        if receipt is not None:
            self.committed_with(tx)
        self._ended(tx, intent, error)
        return None

    def do_prepare(self) -> None:
        tx, intent = self.active()
        if tx is None:
            return self.do_begin()
        if self.refuses_to_prepare(tx):
            return None
        if self.simulation.random.random() < 0.5:
            self._send_to(COMES_AND_GOES, tx, intent)
        self.reference.preparing.add(attempt_id(tx))
        _, error = self.ask(tx.prepare, TransactionAborted, LeaseLost, SettlementPending)
        if error is None:
            self.reference.preparing.remove(attempt_id(tx))
            assert attempt_id(tx) in self.reference.prepared, "P5 it is said to be prepared"
        self._ended(tx, intent, error)
        return None

    def do_rollback(self) -> None:
        tx, intent = self.active(ending=True)
        if tx is None:
            return self.do_begin()
        _, error = self.ask(lambda: tx.rollback("no"))
        if error is None:
            said = self.reference.decided.get(attempt_id(tx))
            assert said != model.COMMITTED, f"P9 {tx.id} is said to be rolled back: {said}"
            self.reference.denied.add(attempt_id(tx))
        self._ended(tx, intent, error)
        return None

    def _ended(self, tx: Any, intent: Intent, error: Exception | None) -> None:
        """Believe what was said of a transaction, and forget it."""
        if (
            isinstance(error, ConnectionError | Busy | SettlementPending)
            and tx.status is Status.ACTIVE
        ):
            self.reference.denied.add(self.call)
            return
        if isinstance(error, TransactionAborted | LeaseLost):
            assert tx.status is Status.ROLLED_BACK
            self.reference.denied.add(attempt_id(tx))
        if isinstance(error, LeaseLost):
            self.reference.counts["fenced"] += 1
        for holding, said in intent.said.items():
            if tx.status is Status.ROLLED_BACK and not holding.inside:
                holding.free |= said.keys()
            elif tx.status is Status.COMMITTED and holding.keeping:
                holding.inside = holding.keeping = False
                self.leased.append(holding)
            elif tx.status is not Status.COMMITTED and holding in self.leased:
                self.leased.remove(holding)
        del self.open[tx]
        if isinstance(error, TransactionUnknown):
            if self.simulation.random.random() < 0.5:
                self._settle_doubt(tx)
            known = self.simulation.store.journal.known_version()
            outcome, failed = self.ask(lambda: self.manager.outcome(tx.id))
            late = self.simulation.store.journal.known_version() > known  # it landed just now
            if failed is None and self.quiet and not late:
                self._check_outcome(tx.id, outcome)

    def _settle_doubt(self, tx: Any) -> None:
        """Roll back what is in doubt: it is refused if it was committed after all."""
        _, error = self.ask(lambda: tx.rollback("in doubt"), TransactionFinished)
        committed = self.reference.decided.get(attempt_id(tx)) == model.COMMITTED
        if error is None:
            assert not committed, f"P9 {tx.id} is said to be rolled back, and was committed"
            self.reference.denied.add(attempt_id(tx))
        elif isinstance(error, TransactionFinished):
            assert committed, f"P9 {tx.id} is said to be committed, and was not"

    def _check_receipt(self, receipt: Any) -> None:
        """P4: it happened during the call, and its number says so."""
        assert receipt.journal_version == receipt.commit_seq >> 10
        newest = len(self.simulation.store.journal.commits) - 1
        assert self.began < receipt.journal_version <= newest, f"P4 {receipt} since {self.began}"

    def _check_outcome(self, key: str, outcome: Any) -> None:
        if key in self.keys_alone:
            return
        if outcome.status is Status.COMMITTED:
            assert self.reference.committed[key][1] == outcome.receipt.commit_seq
        else:
            assert key not in self.reference.committed, f"P9 {key} was committed: {outcome}"
        assert (outcome.status is Status.PREPARED) == (key in self.reference.waiting())

    # --------------------------------------------------------------------------- anybody

    def do_decide(self) -> None:
        waiting = sorted(self.reference.waiting())
        key = self.simulation.random.choice(waiting or [self.simulation.key()])
        known = key in self.reference.prepared.values()
        prepared = self._prepared_under(key)
        if self.simulation.random.random() < 0.5:
            receipt, error = self.ask(
                lambda: self.manager.commit(key), TransactionFinished, *UNPREPARED
            )
            if receipt is not None:
                assert self.reference.committed[key][1] == receipt.commit_seq
                self._check_decided(prepared, model.COMMITTED, key)
        else:
            self.reference.explicit.add(key)
            _, error = self.ask(
                lambda: self.manager.rollback(key), TransactionFinished, *UNPREPARED
            )
            if error is None:
                self._check_decided(prepared, model.ROLLED_BACK, key)
        if isinstance(error, UNPREPARED):
            assert not known, f"P5 {key} is prepared, and nobody knows"
        if error is None:
            self.reference.counts["decided"] += 1

    def _prepared_under(self, key: str) -> set[str]:
        """The attempts of a transaction that are prepared and undecided."""
        reference = self.reference
        return {a for a, k in reference.prepared.items() if k == key and a not in reference.decided}

    def _check_decided(self, prepared: set[str], wanted: str, key: str) -> None:
        """P9: what was prepared when its decision was asked for is decided as was told.

        Somebody else may have been faster. Then it is another attempt that is committed, or that
        was rolled back: a rollback by an id also ends an attempt beside the one that is committed.
        """
        allowed = {wanted, model.ROLLED_BACK}
        if "recover" in self.reference.landed[self.call]:
            allowed.add(model.COMMITTED)
        found = {attempt: self.reference.decided.get(attempt) for attempt in prepared}
        assert allowed.issuperset(found.values()), f"P9 {key} is said to be {wanted}: {found}"
        self.reference.counts["decided as told"] += len(prepared)

    def do_recover(self) -> None:
        recovery, _ = self.ask(self.manager.recover)
        if recovery is not None and self.quiet:
            assert set(recovery.prepared) == self.reference.waiting(), "P5 listed are exactly those"
            self.reference.counts["recovered"] += len(recovery.aborted)

    def do_maintain(self) -> None:
        seconds = self.simulation.random.choice((0, 0, 5, LEASE_SECONDS, 1_000))
        days = self.simulation.random.choice((0, 0, 1))
        done, _ = self.ask(
            lambda: self.manager.maintain(
                transaction_seconds_max=seconds, payload_retention_days=days
            )
        )
        if done:
            self.reference.counts["archived"] += done.archived
            self.reference.counts["slices"] += done.slices

    def do_look(self) -> None:
        """P3: what can be seen is what was committed."""
        queue = self.queue()
        began_ms = self.runtime.now_ms()
        looked, _ = self.ask(lambda: (queue.depth(), queue.in_flight()))
        if looked and self.quiet and began_ms == self.runtime.now_ms():
            queue_id = queue.info.queue_id
            ready = self.reference.ready(queue_id, began_ms, twice=True)
            expected = (len(ready), self.reference.held(queue_id))
            assert looked == expected, f"P3 it looks like {looked}, and is {expected}"

    def do_outcome(self) -> None:
        key = self.simulation.key()
        outcome, _ = self.ask(lambda: self.manager.outcome(key))
        if outcome and self.quiet:
            self._check_outcome(key, outcome)
