"""One manager's cache of a store: the catalog, the transactions, the table changes.

Entries never change: those read once are kept, and only new ones are read.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable

from txnqueue.client import archive
from txnqueue.client.append import layout_unsupported
from txnqueue.client.past_reader import PastReader
from txnqueue.client.readers import ShardReader
from txnqueue.client.runtime import Runtime
from txnqueue.core import model
from txnqueue.core.settings import SLICE_WIDTH_UNSAID, QueueInfo
from txnqueue.core.state import AttemptOwner, TransactionState, catalog, overview
from txnqueue.core.state.topology import Topology
from txnqueue.errors import QueueError, QueueNotFound, StoreNotFound
from txnqueue.storage.store import Store

logger = logging.getLogger("txnqueue")


class Cache:
    """The known entries of a store; each call reads only the new ones.

    The states of queues, which change with every message, are in ``states``.
    """

    def __init__(self, store: Store, runtime: Runtime) -> None:
        """Cache a store; nothing is read yet."""
        self.store = store
        self.runtime = runtime
        self._closed: dict[str, QueueError] = {}
        self._queues: dict[str, QueueInfo] = {}
        self._infos: dict[str, QueueInfo] = {}
        self._shards = ShardReader(store.journal)
        self.pasts = PastReader()
        self._slice_width: int | None = None
        self.layout = model.LAYOUT
        self._store_id = ""

    # ---------------------------------------------------------------------------- store

    def open(self) -> None:
        """Check once that the store exists and has a layout that this library knows.

        The same query reads the catalog.

        Raises:
            StoreNotFound: There is no store at this root.
            LayoutUnsupported: Another version of the library wrote it.
        """
        if self._slice_width is not None:
            return
        wanted = [model.FENCE, model.CATALOG]
        try:
            found = self._shards.read(wanted)
        except Exception as error:  # there may be no store
            if not self.store.exists():
                raise _not_found(self.store.root) from error
            found = self._shards.read(wanted)  # another client may have created it meanwhile
        layouts = _layouts(found)
        if not layouts:
            raise StoreNotFound(
                f"There is no store {_place(self.store.root)} yet, or its creation was "
                "interrupted: create_queue creates or completes it.",
                root=self.store.root,
            )
        newest = max(layouts, key=lambda entry: entry.sequence or 0)
        if (newest.sequence or 0) > model.LAYOUT:
            raise layout_unsupported(f"The store at {self.store.root!r}", newest.sequence or 0)
        made_as = newest.body.get("root")
        if _differs(made_as, self.store.root) and self.store.spark is not None:
            logger.warning(
                "store opened under another name root=%s made_as=%s: use one name everywhere, "
                "because Delta and the locks know a table by its name",
                self.store.root,
                made_as,
            )
        self.layout = newest.sequence or 0
        self._store_id = str(newest.body["store_id"])
        self.store.transient.belong_to(self._store_id)
        self._know(entry for entry in found if entry.shard == model.CATALOG)
        # Last, because it tells other threads that all of the above is set.
        self._slice_width = int(newest.body.get("slice_width", SLICE_WIDTH_UNSAID))

    @property
    def is_open(self) -> bool:
        """Whether the store was opened: it existed then."""
        return self._slice_width is not None

    def layouts(self) -> list[model.Entry]:
        """Read the entries that record the store's layout."""
        return _layouts(self.store.journal.read([model.FENCE]).entries)

    @property
    def slice_width(self) -> int:
        """How many versions of the journal share a slice of the payload."""
        return self._slice_width or SLICE_WIDTH_UNSAID

    def slice_of(self, begun: int) -> int:
        """Find the payload slice of work that began at a version."""
        return begun // self.slice_width

    @property
    def store_id(self) -> str:
        """The unique id of the store."""
        self.open()
        return self._store_id

    def past(self, upto: int | None = None) -> archive.Past:
        """Read how far the history reaches, up to a commit_seq or to the newest commit."""
        return archive.Past(self.store, upto, self._shards)

    def version_to_begin(self) -> int:
        """Return a version of the journal that was recently the newest.

        Work that begins at an old version may be below the horizon before it is decided.
        """
        return self.store.journal.known_version()

    # -------------------------------------------------------------------------- catalog

    def queues(self) -> dict[str, QueueInfo]:
        """Read the catalog: the queues by name."""
        return self._know(self.catalog_entries())

    def _know(self, entries: Iterable[model.Entry]) -> dict[str, QueueInfo]:
        self._queues = catalog.queues(entries)
        self._infos.update((info.queue_id, info) for info in self._queues.values())
        return dict(self._queues)

    def newest(self, info: QueueInfo) -> QueueInfo:
        """Return the newest description of a queue read so far; it reads nothing."""
        known = self._infos.get(info.queue_id, info)
        return known if known.sequence > info.sequence else info

    def learn(self, info: QueueInfo) -> None:
        """Record a queue's newest description; names are then looked up again."""
        self._infos[info.queue_id] = info
        self._queues = {}

    def renewed(self, info: QueueInfo) -> bool:
        """Read the catalog, and return whether it has a newer description of a queue."""
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

    def queue_now(self, name: str) -> QueueInfo:
        """Find a queue by name as it is now: another client may have replaced the known one.

        Raises:
            QueueNotFound: There is no such queue.
        """
        self.queues()
        return self.queue(name)

    def ever_named(self, name: str, entries: Iterable[model.Entry]) -> list[QueueInfo]:
        """List the queues that ever had a name, including those that were dropped.

        Args:
            name: The name.
            entries: The catalog's entries.

        Raises:
            QueueNotFound: There never was such a queue.
        """
        found = [info for info in catalog.every_queue(entries).values() if info.name == name]
        return found or [self.queue(name)]

    def catalog_entries(self) -> list[model.Entry]:
        """Read the catalog's entries, by one query of the new ones."""
        self.open()
        return self._shards.read([model.CATALOG])

    def topology(self) -> Topology:
        """Read the present exchanges and bindings."""
        return Topology.of(self.catalog_entries())

    def learn_closed(self, error: QueueError) -> None:
        """Remember the queue that an error reports as closed, and look names up again.

        A copy has no traceback, whose frames hold what was about to be sent.
        """
        queue_id = error.details.get("queue_id")
        if queue_id is not None:
            self._closed[str(queue_id)] = copy.copy(error)
            self._queues = {}

    def closed(self, info: QueueInfo) -> QueueError | None:
        """Return the error of work on a queue or its transient part, if it is known to be closed.

        It reads nothing. The transient part of a queue is closed with the durable one.
        """
        own = self._closed.get(info.queue_id)
        if own is not None or not info.transient:
            return own
        closed = {model.in_memory(queue_id): e for queue_id, e in list(self._closed.items())}
        return closed.get(info.queue_id)

    # ---------------------------------------------------------- transactions and tables

    def survey(self) -> overview.Survey:
        """Read the journal without lanes and backlogs, by one query of the new entries."""
        self.open()
        entries, horizon = self._shards.read_with_horizon(overview.SHARDS)
        infos = self._know(entry for entry in entries if entry.shard == model.CATALOG)
        return overview.Survey.of(entries, horizon, infos.values())

    def table_entries(self, table_ids: Iterable[str] | None) -> list[model.Entry]:
        """Read the shards with the entries about changes of some tables, or of all."""
        if table_ids is None:
            return self._shards.read(model.ALL_TABLES)
        return self._shards.read(map(model.table_shard, table_ids))

    def transaction_entries(self) -> list[model.Entry]:
        """Read the entries of all transactions."""
        return self._shards.read(model.ALL_TRANSACTIONS)

    def shard_entries(self, shard: str) -> list[model.Entry]:
        """Read the entries of one shard."""
        return self._shards.read([shard])

    def key_states(
        self, keys: Iterable[str], archived_since: int | None = None
    ) -> dict[str, TransactionState]:
        """Read the states of some transaction keys, by one query.

        Args:
            keys: The keys.
            archived_since: Read the archive too, if decisions after this version may be there;
                None for never.
        """
        wanted = sorted(set(keys))
        if not wanted:
            return {}
        shards = sorted(set(map(model.transaction_shard, wanted)))  # a lane's stream may be a key
        entries, horizon = self._shards.read_with_horizon(shards)
        if archived_since is not None and horizon > archived_since:
            archived = self.store.journal.archive.read(shards=shards, streams=wanted)
            entries += archive.decided(archived, entries)
        return TransactionState.of_keys(wanted, entries, horizon)

    def key_state(self, key: str, archived_since: int | None = -1) -> TransactionState:
        """Read the state of one transaction key, from the journal and if needed the archive."""
        return self.key_states([key], archived_since)[key]

    def check_known(self, owner: AttemptOwner) -> None:
        """Check that the history reaches back to where an attempt began.

        Only then the absence of a decision proves that there was none. Call this after the
        decision was looked for.

        Raises:
            HistoryRemoved: The attempt may have had a decision that was removed.
        """
        beginning = archive.decisions_beginning_of(self.store.journal)
        if owner.begun < beginning:
            what = f"The outcome of transaction {owner.key!r} is no longer known"
            raise archive.removed(what, beginning)

    def never_decided(self, state: TransactionState, owner: AttemptOwner) -> bool:
        """Return whether an attempt has no decision and can never have one.

        Raises:
            HistoryRemoved: The attempt is over, and its decision may have been removed.
        """
        if state.decided(owner.attempt) is not None or not state.is_over(owner):
            return False
        self.check_known(owner)
        return True


def _not_found(root: str) -> StoreNotFound:
    to_check = "the path"
    if "/" not in root:
        to_check = f"its name, or give a path, which has a '/', such as './{root}'"
    return StoreNotFound(
        f"There is no store {_place(root)}: check {to_check}; create_queue makes a new store.",
        root=root,
    )


def _differs(made_as: str | None, root: str) -> bool:
    """Return whether a store has two names; an older version left the catalog of a schema open."""
    if made_as is None or "/" in made_as or "/" in root:
        return made_as != root
    whole = "." in made_as and "." in root
    return made_as != root if whole else made_as.rpartition(".")[2] != root.rpartition(".")[2]


def _place(root: str) -> str:
    return f"at {root!r}" if "/" in root else f"in the schema {root!r}"


def _layouts(fence: Iterable[model.Entry]) -> list[model.Entry]:
    return [entry for entry in fence if entry.kind == model.LAYOUT_CHANGED]
