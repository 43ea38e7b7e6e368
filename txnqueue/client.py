"""What the parts of one manager share: the store, the runtime, the folds that it keeps."""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from txnqueue import catalog, compacting, model, recalling, survey
from txnqueue.appending import Landed, Planner, land
from txnqueue.closing import closed_error
from txnqueue.config import SLICE_WIDTH, QueueInfo
from txnqueue.errors import LayoutUnsupported, QueueClosed, QueueError, QueueNotFound, StoreNotFound
from txnqueue.ledger import KeyState, Owner, QueueFold
from txnqueue.payload.kinds import BothKinds
from txnqueue.planning import Plan, Stamp
from txnqueue.remembering import FoldReader, ShardReader
from txnqueue.runtime import Runtime
from txnqueue.store import Store
from txnqueue.topology import Topology

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from txnqueue.exchange import Exchange
    from txnqueue.queue import Queue
    from txnqueue.transaction import Transaction


logger = logging.getLogger("txnqueue")
KNOWN_SECONDS_MAX = 600.0
"""After so many seconds without an append or a receive, the version is asked for again."""


class Client:
    """One manager's view of a store."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        make_queue: Callable[[Client, QueueInfo, Transaction], Queue],
        begin: Callable[[Client], Transaction],
        make_exchange: Callable[[Client, str, Transaction], Exchange],
    ) -> None:
        """Share a store; nothing is read yet."""
        self.store = store
        self._make_queue = make_queue
        self._begin = begin
        self._transient: TransientClient | None = None
        self.payload = BothKinds(store.payload, store.transient.payload, store.spark)
        self._make_exchange = make_exchange
        self.runtime = runtime
        self.lock = threading.RLock()
        self.shard = int(runtime.new_id()[:1], 16) % model.TRANSACTION_SHARDS
        self._queues: dict[str, QueueInfo] = {}
        self._infos: dict[str, QueueInfo] = {}
        self.closed: dict[str, QueueError] = {}
        self._folds = FoldReader(store.journal)
        self._shards = ShardReader(store.journal)
        self._staging: set[str] = set()
        self.confirmations: list[model.Entry] = []
        self.conflicts: Counter[str] = Counter()
        self._epochs: dict[str, int] = {}
        self._turns: dict[str, int] = {}
        self._slice_width: int | None = None
        self._store_id = ""
        self._read_at = runtime.monotonic()
        self.log_max = compacting.LOG_MAX
        self._local = threading.local()

    # ---------------------------------------------------------------------------- store

    def open(self) -> None:
        """Check once that the store is there and has a layout that this library knows.

        The same query reads which queues there are.

        Raises:
            StoreNotFound: There is no store at this root.
            LayoutUnsupported: Another version of the library wrote it.
        """
        if self._slice_width is not None:
            return
        try:
            found = self._shards.read([model.FENCE, model.CATALOG])
        except Exception as error:
            if self.store.exists():
                raise
            raise StoreNotFound(
                f"There is no store at {self.store.root!r}: check the path; create_queue makes a "
                "new store.",
                root=self.store.root,
            ) from error
        layouts = _layouts(found)
        if not layouts:
            raise StoreNotFound(
                f"The store at {self.store.root!r} was begun and never finished: create_queue "
                "finishes it.",
                root=self.store.root,
            )
        newest = max(layouts, key=lambda entry: entry.sequence or 0)
        if (newest.sequence or 0) > model.LAYOUT:
            raise LayoutUnsupported(
                f"The store at {self.store.root!r} has layout {newest.sequence}, this library "
                f"writes {model.LAYOUT}: use a newer version.",
                layout=newest.sequence,
            )
        made_as = newest.body.get("root")
        if made_as != self.store.root:
            logger.warning(
                "store opened under another name root=%s made_as=%s: use one name everywhere, "
                "because Delta and the locks know a table by its name",
                self.store.root,
                made_as,
            )
        self._slice_width = int(newest.body.get("slice_width", SLICE_WIDTH))
        self._store_id = str(newest.body["store_id"])
        self._know(entry for entry in found if entry.shard == model.CATALOG)

    def layouts(self) -> list[model.Entry]:
        """Read the entries that say which layout the store has."""
        return _layouts(self.store.journal.read([model.FENCE]).entries)

    def make_queue(self, info: QueueInfo, transaction: Transaction) -> Queue:
        """Make a queue whose calls all work in a transaction."""
        return self._make_queue(self, info, transaction)

    def begin_transaction(self) -> Transaction:
        """Begin a transaction of the library's own."""
        return self._begin(self)

    # ------------------------------------------------------------------ transient messages

    @property
    def transient(self) -> TransientClient:
        """This manager's view of the messages that are in the memory of this process."""
        if self._transient is None:
            self._transient = TransientClient(self)
        return self._transient

    def of(self, info: QueueInfo) -> Client:
        """Give the view of the store that a queue, or its transient part, is in."""
        return self.transient if info.transient else self

    def parts_of(self, info: QueueInfo) -> list[QueueInfo]:
        """List the parts of a queue: the durable one, and the transient one if there may be any."""
        return [info, info.in_memory()] if self.store.transient.used else [info]

    def make_exchange(self, name: str, transaction: Transaction) -> Exchange:
        """Make an exchange that publishes in a transaction."""
        return self._make_exchange(self, name, transaction)

    # ----------------------------------------------------------------------- and the rest

    @property
    def slice_width(self) -> int:
        """How many versions of the journal share a slice of the payload."""
        return self._slice_width or SLICE_WIDTH

    def slice_of(self, begun: int) -> int:
        """Find the payload slice of work that began at a version."""
        return begun // self.slice_width

    def stamp(self) -> Stamp:
        """Say who writes now."""
        runtime = self.runtime
        return Stamp(runtime.actor, runtime.run_id, runtime.now_ms())

    def author(self) -> dict[str, object]:
        """Say who writes, for the histories of Delta tables."""
        return {"actor": self.runtime.actor, "run_id": self.runtime.run_id}

    def land(
        self,
        plan: Planner,
        operation: str,
        *,
        transaction_id: str | None = None,
        queue: str | None = None,
    ) -> Landed | None:
        """Append what is planned, whatever the store answers.

        What is to be confirmed of table changes rides along: facts that expect nothing.
        """
        with self.lock:
            riding = tuple(self.confirmations)

        def joined(lost: int) -> Plan | None:
            if lost and queue is not None:
                self.conflicts[queue] += 1
            planned = plan(lost)
            return planned if planned is None else planned + Plan(riding)

        try:
            landed = land(
                self.store.journal,
                self.runtime,
                joined,
                operation=operation,
                transaction_id=transaction_id,
                queue=queue,
            )
        except QueueError as error:
            self._learn_closed(error)
            raise
        self._read_at = self.runtime.monotonic()
        if landed is not None and riding:
            with self.lock:
                self.confirmations = [fact for fact in self.confirmations if fact not in riding]
        return landed

    # ---------------------------------------------------------------------- table changes

    @property
    def store_id(self) -> str:
        """What tells this store from every other."""
        self.open()
        return self._store_id

    def table_entries(self, table_ids: Iterable[str] | None) -> list[model.Entry]:
        """Read what the journal says of changes of some tables, or of all."""
        if table_ids is None:
            return self._shards.read(model.ALL_TABLES)
        return self._shards.read(map(model.table_shard, table_ids))

    def transaction_entries(self, keys: Iterable[str] | None = None) -> list[model.Entry]:
        """Read what the journal says of all transactions, or of those in some keys' shards."""
        if keys is not None:
            return self._shards.read(map(model.transaction_shard, keys))
        return self._shards.read(model.ALL_TRANSACTIONS)

    def survey(self) -> survey.Survey:
        """Read what the journal says but the queues' own entries: one query, of what is new."""
        self.open()
        entries, horizon = self._shards.read_with_horizon(survey.SHARDS)
        infos = self._know(entry for entry in entries if entry.shard == model.CATALOG)
        return survey.Survey.of(entries, horizon, infos.values())

    def shard_entries(self, shard: str) -> list[model.Entry]:
        """Read one shard."""
        return self._shards.read([shard])

    def create_staging(self, payload_id: str, schema: StructType) -> None:
        """Create the payload table for rows of these types, once."""
        if payload_id not in self._staging:
            self.store.payload.create(payload_id, schema)
            self._staging.add(payload_id)

    def confirm(self, facts: Iterable[model.Entry] = ()) -> None:
        """Append what is to be confirmed now, and some more facts."""
        with self.lock:
            now = (*self.confirmations, *facts)
            self.confirmations = []
        if not now:
            return
        try:
            self.land(lambda lost: Plan(now, (model.layout_unchanged(),)), "confirm changes")
        except BaseException:
            self.add_confirmations(now)  # said twice it says the same
            raise

    def add_confirmations(self, facts: Iterable[model.Entry]) -> None:
        """Keep facts for the next append."""
        with self.lock:
            self.confirmations.extend(facts)

    # ------------------------------------------------------------------------- catalog

    def queues(self) -> dict[str, QueueInfo]:
        """Read the catalog: the queues by name."""
        return self._know(self.catalog_entries())

    def _know(self, entries: Iterable[model.Entry]) -> dict[str, QueueInfo]:
        self._queues = catalog.queues(entries)
        self._infos.update((info.queue_id, info) for info in self._queues.values())
        return dict(self._queues)

    def newest(self, info: QueueInfo) -> QueueInfo:
        """Give the newest that was read so far of a queue; it costs nothing."""
        known = self._infos.get(info.queue_id, info)
        return known if known.sequence > info.sequence else info

    def learn(self, info: QueueInfo) -> None:
        """Take note of what a queue is now; names are looked up again."""
        self._infos[info.queue_id] = info
        self._queues = {}

    def renewed(self, info: QueueInfo) -> bool:
        """Read the catalog, and say whether it knows something newer of a queue."""
        self.queues()
        return self.newest(info).sequence > info.sequence

    def queue(self, name: str) -> QueueInfo:
        """Find a queue by name, in the catalog as last read or as it is now.

        Raises:
            QueueNotFound: There is no such queue.
        """
        info = self._queues.get(name) or self.queues().get(name)
        if info is None:
            known = ", ".join(sorted(self._queues)) or "none yet"
            raise QueueNotFound(
                f"There is no queue {name!r} in {self.store.root!r}; there are: {known}.",
                name=name,
            )
        return info

    def check_open(self, info: QueueInfo) -> None:
        """Check that nothing was read so far of a queue's being dropped; it costs nothing.

        Raises:
            QueueClosed: It is being dropped.
            QueueNotFound: It is gone.
        """
        if info.queue_id not in self.closed:
            return
        if isinstance(self.closed[info.queue_id], QueueClosed):  # it may be gone by now
            with self.lock:
                self.fold(info)
        known = self.closed[info.queue_id]
        raise type(known)(str(known), **known.details)

    def _learn_closed(self, error: QueueError) -> None:
        """Remember what closed, and look names up again from now on."""
        queue_id = error.details.get("queue_id")
        if queue_id is not None:
            self.closed[str(queue_id)] = error
            self._queues = {}

    def catalog_entries(self) -> list[model.Entry]:
        """Read the catalog as it is now: one query, of what is new."""
        self.open()
        return self._shards.read([model.CATALOG])

    def topology(self) -> Topology:
        """Read which exchanges and bindings there are now."""
        return Topology.of(self.catalog_entries())

    # --------------------------------------------------------------------------- folds

    def fold_to_change(self, info: QueueInfo) -> QueueFold:
        """Fold a queue that is about to be worked on.

        Raises:
            QueueClosed: It is being dropped.
            QueueNotFound: It is gone.
        """
        fold = self.fold(info)
        self.check_open(info)
        return fold

    def fold_to_show(self, info: QueueInfo) -> QueueFold:
        """Fold a queue that is about to be looked at, which may be closing.

        Raises:
            QueueNotFound: It was dropped.
        """
        fold = self.fold(info)
        if fold.closed is not None and fold.closed.kind == model.QUEUE_DROPPED:
            self.check_open(info)
        return fold

    def fold(self, info: QueueInfo) -> QueueFold:
        """Bring the fold of a queue up to the newest version: one query, of what is new."""
        (fold,) = self.folds([info])
        return fold

    def folds(self, infos: Iterable[QueueInfo]) -> list[QueueFold]:
        """Bring the folds of some queues up to the newest version: one query, of what is new.

        Those that were not folded before take one more for each thousand shards. One thread at
        a time: what two have read at once would be applied twice.
        """
        with self.lock:
            self._read_at = self.runtime.monotonic()
            wanted = list(infos)
            folds = self._folds.read(wanted)
            for info, fold in zip(wanted, folds, strict=True):
                self._learn_of(info, fold)
            return folds

    def _learn_of(self, info: QueueInfo, fold: QueueFold) -> None:
        if fold.altered is not None:
            known = self.newest(info)
            if fold.altered.body["sequence"] > known.sequence:
                self.learn(catalog.told(fold.altered, known))
        if fold.closed is not None:
            self._learn_closed(closed_error(fold.closed))

    def key_states(
        self, keys: Iterable[str], archived_since: int | None = None
    ) -> dict[str, KeyState]:
        """Read what the journal says of some transaction keys: one query.

        Args:
            keys: The keys.
            archived_since: Look into the archive too, if what was decided after this version
                may be there; None: never.
        """
        wanted = sorted(set(keys))
        if not wanted:
            return {}
        shards = map(model.transaction_shard, wanted)
        entries, horizon = self._shards.read_with_horizon(shards)
        if archived_since is not None and horizon > archived_since:
            archived = self.store.journal.archive.read(streams=wanted)
            entries += recalling.decided(archived, entries)
        return {key: KeyState.of(key, entries, horizon) for key in wanted}

    def key_state(self, key: str, archived_since: int | None = -1) -> KeyState:
        """Read what the journal, or else the archive, says of one transaction key."""
        return self.key_states([key], archived_since)[key]

    def check_known(self, owner: Owner) -> None:
        """Check that the history reaches back to where an attempt began.

        That it is found nowhere says something only then. To be called after it was looked for.

        Raises:
            HistoryRemoved: It may have been decided, and that may have been removed.
        """
        beginning = recalling.beginning_of(self.store.journal)
        if (owner.begun or 0) < beginning:
            what = f"What became of transaction {owner.key!r} is not known any more"
            raise recalling.removed(what, beginning)

    def never_decided(self, state: KeyState, owner: Owner) -> bool:
        """Say whether an attempt has ended for ever without a decision.

        Raises:
            HistoryRemoved: It has ended, and nobody can say any more whether it was decided.
        """
        if state.decided(owner.attempt or "") is not None or not state.is_over(owner):
            return False
        self.check_known(owner)
        return True

    def version_to_begin(self) -> int:
        """Return a version of the journal that is not much older than the newest one.

        Work that begins at an old one may be below the horizon before it is decided.
        """
        if self.runtime.monotonic() - self._read_at > KNOWN_SECONDS_MAX:
            self._read_at = self.runtime.monotonic()
            return self.store.journal.version()
        return self.store.journal.known_version()

    def epoch(self, fold: QueueFold) -> int:
        """Open this manager's consumer id on a queue: one above what it left in flight."""
        if fold.queue_id not in self._epochs:
            mine = [c.owner.epoch for c in fold.claims() if c.owner.consumer == self.consumer]
            self._epochs[fold.queue_id] = max(mine, default=0) + 1
        return self._epochs[fold.queue_id]

    def turn(self, queue_id: str) -> int:
        """Count the receives on a queue, so that each starts at the next lane."""
        self._turns[queue_id] = self._turns.get(queue_id, -1) + 1
        return self._turns[queue_id]

    @property
    def consumer(self) -> str:
        """The id under which this manager holds leases."""
        return self.runtime.consumer

    # -------------------------------------------------------------------------- blocks

    @property
    def blocks(self) -> list[Transaction]:
        """The transaction blocks that this thread is inside of, innermost last."""
        if not hasattr(self._local, "blocks"):
            self._local.blocks = []
        blocks: list[Transaction] = self._local.blocks
        return blocks


class TransientClient(Client):
    """One manager's view of the transient messages, which all managers of a process share.

    The catalog is the durable store's; nothing here makes a Delta commit, or waits for one.
    """

    def __init__(self, durable: Client) -> None:
        """Look at the transient part of a client's store."""
        super().__init__(
            durable.store.transient,
            durable.runtime,
            durable._make_queue,
            durable._begin,
            durable._make_exchange,
        )
        self._durable = durable
        self._shared = durable.store.transient
        self.lock = self._shared.lock
        self.payload = durable.payload
        self.log_max = sys.maxsize  # the memory forgets what is not needed by itself

    @property
    def transient(self) -> TransientClient:
        """Itself."""
        return self

    def open(self) -> None:
        """Check nothing: memory is always there."""

    def check_open(self, info: QueueInfo) -> None:
        """Check that nothing was read so far of a queue's being dropped, here or in the store.

        Raises:
            QueueClosed: It is being dropped.
            QueueNotFound: It is gone.
        """
        super().check_open(info)
        durable = {model.in_memory(queue_id): e for queue_id, e in self._durable.closed.items()}
        if info.queue_id in durable:
            raise durable[info.queue_id]

    def fold(self, info: QueueInfo) -> QueueFold:
        """Bring the fold of a queue's transient part up to now."""
        settings = info.settings
        fold = self._shared.fold(info.queue_id, settings.lanes, settings.duplicate_window_ms)
        if fold.closed is not None:
            self._learn_closed(closed_error(fold.closed))
        return fold

    def folds(self, infos: Iterable[QueueInfo]) -> list[QueueFold]:
        """Bring the folds of the transient parts of some queues up to now."""
        return [self.fold(info) for info in infos]

    def queues(self) -> dict[str, QueueInfo]:
        """Read the catalog: the transient parts of the queues by name."""
        return {name: info.in_memory() for name, info in self._durable.queues().items()}

    def key_states(
        self, keys: Iterable[str], archived_since: int | None = None
    ) -> dict[str, KeyState]:
        """Read what is known in memory of some transaction keys."""
        wanted = sorted(set(keys))
        entries = self.store.journal.read([model.transaction_shard(key) for key in wanted]).entries
        return {key: KeyState.of(key, entries) for key in wanted}

    def land(
        self,
        plan: Planner,
        operation: str,
        *,
        transaction_id: str | None = None,
        queue: str | None = None,
    ) -> Landed | None:
        """Append what is planned; nobody of this process comes in between."""
        with self.lock:
            landed = super().land(plan, operation, transaction_id=transaction_id, queue=queue)
            if landed is not None:
                self._shared.landed()
        return landed


def _layouts(fence: Iterable[model.Entry]) -> list[model.Entry]:
    return [entry for entry in fence if entry.kind == model.LAYOUT_CHANGED]
