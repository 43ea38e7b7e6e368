"""The state of all transactions, table changes and the catalog, from one reading (pure)."""

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
    """One consistent view of the journal, without the entries of lanes and backlogs.

    Attributes:
        keys: The states of the transactions, by key.
        changes: The entries about changes of tables and confirmations of databases.
        infos: The existing queues.
        exchanges: The existing exchanges.
        erasures: The catalog's entries about erased rows.
    """

    keys: Mapping[str, TransactionState]
    changes: Sequence[Entry]
    infos: Sequence[QueueInfo]
    exchanges: Sequence[ExchangeInfo]
    erasures: Sequence[Entry] = ()

    @classmethod
    def of(cls, entries: Iterable[Entry], horizon: int, infos: Iterable[QueueInfo]) -> Survey:
        """Sort the entries of ``SHARDS`` by what they are about."""
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
        """The keys of the transactions that are prepared and undecided."""
        return tuple(key for key, state in self.keys.items() if state.in_doubt is not None)

    @property
    def heuristic(self) -> tuple[str, ...]:
        """The keys of the transactions that an operator decided, until they are forgotten."""
        return tuple(key for key, state in self.keys.items() if state.heuristics)

    def overdue(self, now_ms: int) -> list[Branch]:
        """List the branches whose time-out is over and that are not prepared."""
        branches = map(Branch.of, self.keys.values())
        return [branch for branch in branches if branch is not None and branch.overdue(now_ms)]

    def unconfirmed_by(self, told: Iterable[Entry]) -> tuple[str, ...]:
        """List the databases that have not confirmed a commit.

        Args:
            told: Confirmations in addition to those that were read.
        """
        commits = (state.committed for state in self.keys.values())
        decisions = [entry for entry in commits if entry is not None]
        return tuple(sorted({name for name, _ in unconfirmed(decisions, [*self.changes, *told])}))

    @property
    def closing(self) -> list[QueueInfo]:
        """The queues that are being dropped."""
        return [info for info in self.infos if info.closing]

    @property
    def closing_exchanges(self) -> list[ExchangeInfo]:
        """The exchanges that are being dropped."""
        return [info for info in self.exchanges if info.closing]
