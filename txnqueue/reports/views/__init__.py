"""Views for SQL: queues, transactions, dispatches, bindings, and one per queue.

The views say in SQL what ``ledger`` says in Python: the state of each message that the
journal's entries fold to. A query reads the journal at one version, so it never sees half
of a transaction, and payload only where a commit has posted it.

A view is called like its queue, with '_' for '.' and '-'. If that is taken (by a view of the
store, or by another queue), the queue's id follows instead of its name. A column of a queue's
view that is called like one of the payload's gets a '_' before it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping

from txnqueue.client.client import Client
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import catalog
from txnqueue.core.state.topology import Topology
from txnqueue.errors import InvalidName, PlatformMissing
from txnqueue.reports.history import History
from txnqueue.reports.views.messages import messages
from txnqueue.reports.views.store import bindings, dispatches, queues, transactions
from txnqueue.storage.journal.tables import TABLE_PREFIX, TableNames, identifier

STORE_VIEWS = ("queues", "transactions", "dispatches", "bindings")
_PREFIX = re.compile(r"([A-Za-z][A-Za-z0-9_]*)?")


def create_views(
    client: Client, history: History, prefix: str, as_of: int | datetime.datetime | None
) -> list[str]:
    """Create the views of a store on the user's session.

    With a path they are temporary, in a catalog schema permanent. Queues that are created
    later get theirs by the next call.

    Args:
        client: The manager's view of the store.
        history: Finds the state to show.
        prefix: Put before each name: letters, digits and '_'.
        as_of: A commit_seq or an instant, to show the state then; None follows the store.

    Returns:
        The views' names, as SQL takes them.

    Raises:
        PlatformMissing: The store is in memory.
        InvalidName: The prefix cannot begin a name, or a table has one of the names.
        InvalidInput: There is no such commit yet.
    """
    from pyspark.errors import AnalysisException

    spark = client.store.spark
    texts = of_store(client, history, prefix, as_of)
    assert spark is not None
    for view, text in texts.items():
        try:
            spark.sql(text)
        except AnalysisException as error:
            if "EXPECT_VIEW_NOT_TABLE" not in str(error):
                raise
            raise InvalidName(
                f"{view!r} is a table of somebody else's: give another prefix=.", name=view
            ) from error
    return list(texts)


def of_store(
    client: Client, history: History, prefix: str, as_of: int | datetime.datetime | None
) -> dict[str, str]:
    """Write the statements that create the views of a store, by the views' names."""
    names = getattr(client.store, "names", None)
    if client.store.spark is None or not isinstance(names, TableNames):
        raise PlatformMissing("Views need a store in Delta tables: use manager.history instead.")
    client.store.journal.archive.create()  # the views read it, also before anything is there
    entries = client.cache.catalog_entries()
    if as_of is None:
        infos, ever = client.cache.queues(), catalog.every_queue(entries)
        return statements(names, infos, prefix, ever=ever, topology=Topology.of(entries))
    if isinstance(as_of, datetime.datetime):
        snapshot = history.as_of(timestamp=as_of)
        commit_seq = snapshot.commit_seq
    else:
        snapshot = history.as_of(as_of)
        commit_seq = as_of
    entries = [e for e in entries if e.commit_seq <= commit_seq]
    infos, ever = catalog.queues(entries), catalog.every_queue(entries)
    topology = Topology.of(entries)
    return statements(
        names, infos, prefix, commit_seq, snapshot.at_ms, ever=ever, topology=topology
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

    Returns:
        One statement per view.

    Raises:
        InvalidName: The prefix cannot begin a name, or makes one that is kept for tables.
    """
    if not _PREFIX.fullmatch(prefix):
        raise InvalidName(
            f"prefix={prefix!r}: give letters, digits and '_', a letter first.", name="prefix"
        )
    queries = {
        "queues": queues(names, commit_seq),
        "transactions": transactions(names, commit_seq),
        "dispatches": dispatches(names, commit_seq),
        "bindings": bindings(names, commit_seq),
    }
    exchanges = topology or Topology()
    for name, view in view_names(infos).items():
        queries[view] = messages(
            names, ever or infos, infos[name], exchanges, commit_seq, at_ms=at_ms
        )
    made = "CREATE OR REPLACE TEMPORARY VIEW" if names.by_path else "CREATE OR REPLACE VIEW"
    schema = [] if names.by_path else names.root.split(".")
    texts = {}
    for view, query in queries.items():
        path = [*schema, prefix + view]
        if schema and path[-1].lower().startswith(TABLE_PREFIX):
            raise InvalidName(
                f"The view {path[-1]!r} would be called like a table of the store: give another "
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
