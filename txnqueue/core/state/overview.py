"""What one reading of all transactions, all changes of tables and the catalog tells (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from txnqueue.core import model
from txnqueue.core.exchanges import ExchangeInfo
from txnqueue.core.model import Entry
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import TransactionState, topology
from txnqueue.core.state.branch import Branch
from txnqueue.core.state.confirmations import unconfirmed

SHARDS = (*model.ALL_TRANSACTIONS, *model.ALL_TABLES, model.CATALOG)


@dataclass(frozen=True, slots=True)
class Survey:
    """One cut of what the journal says, but for the queues' own entries.

    Attributes:
        keys: What is known of the transactions, by key.
        changes: What was decided and confirmed of tables and databases.
        infos: The queues that there are.
        exchanges: The exchanges that there are.
        erasures: What the catalog says of rows that were erased.
    """

    keys: Mapping[str, TransactionState]
    changes: Sequence[Entry]
    infos: Sequence[QueueInfo]
    exchanges: Sequence[ExchangeInfo]
    erasures: Sequence[Entry] = ()

    @classmethod
    def of(cls, entries: Iterable[Entry], horizon: int, infos: Iterable[QueueInfo]) -> Survey:
        """Sort out the entries of these shards."""
        transactions, changes, said, erased = [], [], [], []
        for entry in entries:
            if entry.shard in model.ALL_TRANSACTIONS:
                transactions.append(entry)
            elif entry.shard in model.ALL_TABLES:
                changes.append(entry)
            elif entry.kind in topology.KINDS:
                said.append(entry)
            elif entry.kind in (model.PAYLOAD_ERASING, model.PAYLOAD_ERASED):
                erased.append(entry)
        exchanges = topology.Topology.of(said).exchanges.values()
        keys = TransactionState.by_key(transactions, horizon)
        return cls(keys, changes, tuple(infos), tuple(exchanges), erased)

    @property
    def prepared(self) -> tuple[str, ...]:
        """The transactions that are prepared and undecided."""
        return tuple(key for key, state in self.keys.items() if state.in_doubt is not None)

    @property
    def heuristic(self) -> tuple[str, ...]:
        """The transactions that an operator decided, until they are forgotten."""
        return tuple(key for key, state in self.keys.items() if state.heuristics)

    def overdue(self, now_ms: int) -> list[Branch]:
        """List the branches that took too long and are not prepared."""
        branches = map(Branch.of, self.keys.values())
        return [branch for branch in branches if branch is not None and branch.overdue(now_ms)]

    def unconfirmed_by(self, told: Iterable[Entry]) -> tuple[str, ...]:
        """List the databases that have not confirmed a commit.

        Args:
            told: Confirmations besides those that were read.
        """
        commits = (state.committed for state in self.keys.values())
        decisions = [entry for entry in commits if entry is not None]
        return tuple(sorted({name for name, _ in unconfirmed(decisions, [*self.changes, *told])}))

    @property
    def closing(self) -> list[QueueInfo]:
        """The queues whose drop was begun."""
        return [info for info in self.infos if info.closing]

    @property
    def closing_exchanges(self) -> list[ExchangeInfo]:
        """The exchanges whose drop was begun."""
        return [info for info in self.exchanges if info.closing]
