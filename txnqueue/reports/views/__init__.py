"""Views for SQL: queues, transactions, dispatches, bindings, and one per queue.

The view of a queue shows the state of each message according to the fold of the journal's entries.
Temporary views do not change: the driver folds (``ledger``), and ``pieces`` joins the result with
the payload. The others express the fold in SQL (``messages``). A query reads the journal at one
version, so it never sees half of a transaction, and payload only if a commit has posted it.

A view is called like its queue, with '_' for '.' and '-'. If that is taken (by a view of the
store, or by another queue), the queue's id follows instead of its name. A column of a queue's
view that is called like one of the payload's gets a '_' before it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from txnqueue.client.archive import check_archive
from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.settings import QueueInfo, shown
from txnqueue.core.state import catalog, erasures
from txnqueue.core.state.topology import Topology
from txnqueue.errors import InvalidName, PlatformMissing
from txnqueue.reports.ledger import ledgers
from txnqueue.reports.moments import check_moment, cut
from txnqueue.reports.snapshot import Snapshot
from txnqueue.reports.views.columns import Owner
from txnqueue.reports.views.messages import Schemas, messages
from txnqueue.reports.views.pieces import frame
from txnqueue.reports.views.store import (
    bindings,
    dispatches,
    none_erased_since,
    queues,
    still_known,
    transactions,
)
from txnqueue.storage.journal.tables import TABLE_PREFIX, TableNames, identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STORE_VIEWS = ("queues", "transactions", "dispatches", "bindings")
_TRIES = 5
_REPLACED_MEANWHILE = ("TABLE_OR_VIEW_NOT_FOUND", "TABLE_OR_VIEW_ALREADY_EXISTS")
_PREFIX = re.compile(r"([A-Za-z][A-Za-z0-9_]*)?")


def create_views(client: Client, prefix: str, as_of: int | datetime.datetime | None) -> list[str]:
    """Create the views of a store on the user's session.

    In a catalog schema they are permanent, and follow the store. With a path they are temporary
    and show the store as it is now: all of them the same commit.

    Args:
        client: The manager's view of the store.
        prefix: Put before each name: letters, digits and '_'.
        as_of: A commit_seq or an instant, to show the state then.

    Returns:
        The views' names, as SQL takes them.

    Raises:
        PlatformMissing: The store is in memory.
        InvalidName: The prefix cannot begin a name, or a table has one of the names.
        InvalidInput: There is no such commit yet.
    """
    _check(prefix, as_of)
    spark, names = _tables(client)
    if names.by_path:
        return _temporary(client, spark, names, prefix, as_of)
    texts = _texts(client, names, prefix, as_of)
    for view, text in texts.items():
        _create(spark, view, text)
    return list(texts)


def _create(spark: SparkSession, view: str, text: str) -> None:
    """Create or replace a permanent view.

    Spark drops the old one first: two clients that replace one view may meet in between.

    Raises:
        InvalidName: A table has its name.
    """
    from pyspark.errors import AnalysisException

    for last in (False,) * (_TRIES - 1) + (True,):
        try:
            spark.sql(text)
            return
        except AnalysisException as error:
            said = str(error)
            if "EXPECT_VIEW_NOT_TABLE" in said:
                raise InvalidName(
                    f"{view!r} is a table that this store did not create: give another prefix=.",
                    name=view,
                ) from error
            if last or not any(sign in said for sign in _REPLACED_MEANWHILE):
                raise


def _temporary(
    client: Client,
    spark: SparkSession,
    names: TableNames,
    prefix: str,
    as_of: int | datetime.datetime | None,
) -> list[str]:
    """Create temporary views that stand still: those of queues from what the driver folds."""
    past, at_ms = cut(client.cache, as_of, name="as_of")
    if at_ms is None:
        now_ms = client.runtime.now_ms()
        at_ms = now_ms if as_of is None else Snapshot(client, past).at_ms
    entries = past.catalog()
    infos = catalog.queues(entries)
    texts = statements(names, {}, prefix, past.upto)
    owners: dict[str, Owner] = {one.payload_id: one for one in Topology.of(entries).ever.values()}
    owners |= {one.payload_id: one for one in catalog.every_queue(entries).values()}
    told = ledgers(past, infos.values())
    # What was erased is gone from every past; what comes later makes such a view fail.
    erased = erasures.erasures(entries if as_of is None else client.cache.past().catalog())
    conditions = [none_erased_since(names, len(erased))]
    if as_of is not None:
        conditions.append(still_known(names, past.upto))
    frames = {
        prefix + view: frame(
            spark,
            names.payload,
            infos[name],
            owners,
            told[infos[name].queue_id].pieces(at_ms),
            erased=erasures.rows_of(erased),
            condition=" AND ".join(conditions),
        )
        for name, view in view_names(infos).items()
    }
    for text in texts.values():
        spark.sql(text)
    for view, made in frames.items():
        made.createOrReplaceTempView(identifier(view))
    return [*texts, *frames]


def _check(prefix: object, as_of: object) -> None:
    """Check what users give, before anything is read or created.

    Raises:
        InvalidName: The prefix cannot begin a name.
        InvalidInput: The moment cannot be one.
    """
    _check_prefix(prefix)
    check_moment("as_of", as_of)


def _check_prefix(prefix: object) -> None:
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidName(
            f"prefix={shown(prefix)}: give letters, digits and '_', beginning with a letter.",
            name="prefix",
        )


def _tables(client: Client) -> tuple[SparkSession, TableNames]:
    """Find the session and the tables that views are made of.

    Raises:
        PlatformMissing: The store is in memory.
        StoreCorrupt: Its archive is gone, or that of another journal.
    """
    spark, names = client.store.spark, getattr(client.store, "names", None)
    if spark is None or not isinstance(names, TableNames):
        raise PlatformMissing("Views need a store in Delta tables: use manager.history instead.")
    journal = client.store.journal
    horizon = model.horizon(journal.read([model.FENCE]).entries)
    check_archive(client.store, horizon)
    if horizon < 0:
        journal.archive.create()  # the views read it, also before anything is there
    return spark, names


def of_store(client: Client, prefix: str, as_of: int | datetime.datetime | None) -> dict[str, str]:
    """Write the statements that create views which are SQL alone, by the views' names."""
    _check(prefix, as_of)
    _, names = _tables(client)
    return _texts(client, names, prefix, as_of)


def _texts(
    client: Client, names: TableNames, prefix: str, as_of: int | datetime.datetime | None
) -> dict[str, str]:
    entries = client.cache.catalog_entries()
    if as_of is None:
        infos, ever = client.cache.queues(), catalog.every_queue(entries)
        topology, schemas = Topology.of(entries), catalog.every_schema(entries)
        return statements(names, infos, prefix, ever=ever, topology=topology, schemas=schemas)
    snapshot = Snapshot(client, *cut(client.cache, as_of, name="as_of"))
    commit_seq = as_of if isinstance(as_of, int) else snapshot.commit_seq
    entries = [e for e in entries if e.commit_seq <= commit_seq]
    infos, ever = catalog.queues(entries), catalog.every_queue(entries)
    return statements(
        names,
        infos,
        prefix,
        commit_seq,
        snapshot.at_ms,
        ever=ever,
        topology=Topology.of(entries),
        schemas=catalog.every_schema(entries),
    )


def statements(
    names: TableNames,
    infos: Mapping[str, QueueInfo],
    prefix: str = "",
    commit_seq: int | None = None,
    at_ms: int | None = None,
    *,
    ever: Mapping[str, QueueInfo] | None = None,
    topology: Topology | None = None,
    schemas: Schemas | None = None,
) -> dict[str, str]:
    """Write the statements that create the views, by the views' names.

    Args:
        names: How the store's tables are called.
        infos: The queues.
        prefix: Put before each name.
        commit_seq: Shows the state after this commit; None the newest one at each query.
        at_ms: The instant that decides what is delayed and expired; None: when queried.
        ever: The queues and those that were dropped, whose payload may stand in others.
        topology: The exchanges, whose payload stands in queues too; None: there are none.
        schemas: The schemas that each queue ever had, by id; None: only those of now.

    Returns:
        One statement per view.

    Raises:
        InvalidName: The prefix cannot begin a name, or makes one that is kept for tables.
    """
    _check_prefix(prefix)
    queries = {
        "queues": queues(names, commit_seq),
        "transactions": transactions(names, commit_seq),
        "dispatches": dispatches(names, commit_seq),
        "bindings": bindings(names, commit_seq),
    }
    exchanges = topology or Topology()
    for name, view in view_names(infos).items():
        queries[view] = messages(
            names,
            ever or infos,
            infos[name],
            exchanges,
            commit_seq,
            at_ms=at_ms,
            schemas=schemas or {},
        )
    made = "CREATE OR REPLACE TEMPORARY VIEW" if names.by_path else "CREATE OR REPLACE VIEW"
    texts = {}
    for view, query in queries.items():
        path = [*names.namespace, prefix + view]
        if not names.by_path and path[-1].lower().startswith(TABLE_PREFIX):
            raise InvalidName(
                f"The view {path[-1]!r} would have the name of a table of the store: give another "
                "prefix=.",
                name=path[-1],
            )
        texts[".".join(path)] = f"{made} {'.'.join(map(identifier, path))} AS\n{query}"
    return texts


def view_names(infos: Mapping[str, QueueInfo]) -> dict[str, str]:
    """Find the name of each queue's view, without a prefix; no two differ only by case."""
    taken = set(STORE_VIEWS)
    found: dict[str, str] = {}
    for name in sorted(infos, key=lambda name: (_plain(name) != name, name)):
        view = _plain(name)
        if view.lower() in taken:
            view = _plain(infos[name].queue_id)
        while view.lower() in taken:
            view += "_"
        taken.add(view.lower())
        found[name] = view
    return {name: found[name] for name in infos}


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)
