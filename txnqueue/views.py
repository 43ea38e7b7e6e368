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

from txnqueue import catalog, model
from txnqueue.client import Client
from txnqueue.config import QueueInfo
from txnqueue.errors import InvalidName, PlatformMissing
from txnqueue.history import History
from txnqueue.journal.tables import (
    JOURNAL_COLUMNS,
    TABLE_PREFIX,
    TableNames,
    identifier,
    literal,
    literals,
)
from txnqueue.moving import once_same_columns
from txnqueue.payload import CORRELATION_ID, REPLY_TO
from txnqueue.routing import ExchangeInfo
from txnqueue.topology import Topology

Owner = QueueInfo | ExchangeInfo
"""Whose payload it is."""
STORE_VIEWS = ("queues", "transactions", "dispatches", "bindings")
_PREFIX = re.compile(r"([A-Za-z][A-Za-z0-9_]*)?")
_SETTLEMENTS = literals(sorted(model.SETTLEMENTS))
_CLAIMED, _REMOVALS = literal(model.CLAIMED), literals(sorted(model.REMOVALS))
_DROPPED = literal(model.QUEUE_DROPPED)
_RETIRING = literals((model.ACCEPTED, model.REJECTED, model.MOVED))
_TAKING = literals(sorted({model.CLAIMED, *model.REMOVALS}))
_PURGED, _PURGE_PENDING = literal(model.PURGED), literal(model.PURGE_PENDING)
_COLUMNS_OF_ENTRIES = ", ".join(identifier(name) for name, _ in JOURNAL_COLUMNS)
_SAID = (
    "payload string, slice bigint, send string, available_at bigint, expires_at bigint, "
    "items array<array<string>>, supersedes array<bigint>, delivery_count int, counted boolean, "
    "counts boolean"
)
_CREATED = (
    "name string, dead_letter string, settings struct<lanes:int,group_by:string,"
    "lease_seconds:double,deliveries_max:int>"
)
_BINDING = (
    "name string, exchange string, queue string, routing_key string, "
    "arguments map<string,string>, `match` string"
)


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
    entries = client.store.journal.read([model.CATALOG]).entries
    if as_of is None:
        infos, ever = client.queues(), catalog.every_queue(entries)
        return statements(names, infos, prefix, ever=ever, topology=Topology.of(entries))
    if isinstance(as_of, datetime.datetime):
        snapshot = history.as_of(timestamp=as_of)
        commit_seq = snapshot.commit_seq
    else:
        snapshot = history.as_of(as_of)
        commit_seq = as_of
    entries = tuple(e for e in entries if e.commit_seq <= commit_seq)
    infos, ever = catalog.queues(entries), catalog.every_queue(entries)
    topology = Topology.of(entries)
    return statements(names, infos, prefix, commit_seq, snapshot.at_ms, ever, topology)


def statements(
    names: TableNames,
    infos: Mapping[str, QueueInfo],
    prefix: str = "",
    commit_seq: int | None = None,
    at_ms: int | None = None,
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
        "queues": _queues(names, commit_seq),
        "transactions": _transactions(names, commit_seq),
        "dispatches": _dispatches(names, commit_seq),
        "bindings": _bindings(names, commit_seq),
    }
    exchanges = topology or Topology()
    for name, view in view_names(infos).items():
        queries[view] = _messages(names, ever or infos, infos[name], exchanges, commit_seq, at_ms)
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


# ------------------------------------------------------------------- views of the store


def _entries(names: TableNames, commit_seq: int | None, which: str) -> str:
    """Write the query of some entries, with their version and place in commit order.

    Entries never change, so that the newest version holds every former state, and the views
    of a former state outlive Delta's time travel. What has left the journal is in the archive,
    whose version Delta takes after the journal's; what is on its way is in both.
    """
    upto = "" if commit_seq is None else f" AND version * 1024 + ordinal <= {commit_seq}"
    return (
        "SELECT *, version * 1024 + ordinal AS commit_seq,\n"
        "    struct(version, ordinal, `index`) AS place\n"
        "  FROM (SELECT *, row_number() OVER (PARTITION BY append_id, `index` ORDER BY version) "
        "AS nth\n"
        f"    FROM (SELECT {_COLUMNS_OF_ENTRIES}, _metadata.row_commit_version AS version\n"
        f"      FROM {names.journal} WHERE {which}\n"
        f"      UNION ALL SELECT {_COLUMNS_OF_ENTRIES}, shiftright(commit_seq, 10) AS version\n"
        f"      FROM {names.archive} WHERE {which}))\n"
        f"  WHERE nth = 1{upto}"
    )


def _known(names: TableNames, commit_seq: int | None, by: str) -> str:
    """Write the query of what the catalog said last: of each name, or of each queue's id."""
    entries = _entries(names, commit_seq, f"shard = {literal(model.CATALOG)}")
    return (
        "SELECT * FROM (\n"
        f"  SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY place DESC) AS newest,\n"
        "    min_by(recorded_at, place) OVER (PARTITION BY queue_id) AS created_at,\n"
        "    min_by(actor, place) OVER (PARTITION BY queue_id) AS created_by\n"
        f"  FROM (SELECT *, from_json(body, {literal(_CREATED)}) AS said\n"
        f"  FROM ({entries})\n"
        f"  WHERE kind IN ({literals(catalog.KINDS)}))) WHERE newest = 1"
    )


def _queues(names: TableNames, commit_seq: int | None) -> str:
    return (
        "SELECT said.name AS name, queue_id, said.settings.lanes AS lanes,\n"
        "  said.settings.group_by AS group_by, said.settings.lease_seconds AS lease_seconds,\n"
        "  said.settings.deliveries_max AS deliveries_max, said.dead_letter AS dead_letter_id,\n"
        f"  created_at, created_by, kind = {literal(model.QUEUE_CLOSING)} AS closing\n"
        f"FROM ({_known(names, commit_seq, 'said.name')})\n"
        f"WHERE kind <> {literal(model.QUEUE_DROPPED)}"
    )


def _transactions(names: TableNames, commit_seq: int | None) -> str:
    """Write the query of the attempts: the decision of each, or else what is known of it."""
    prepared, decided = literal(model.PREPARED), literals(sorted(model.DECISIONS))
    return (
        "SELECT transaction_key AS transaction_id, attempt,\n"
        "  if(rank = 0, 'pending', kind) AS status, begun, reason, actor, run_id, recorded_at,\n"
        "  if(rank = 2, commit_seq, NULL) AS commit_seq\n"
        "FROM (\n"
        "  SELECT *, row_number() OVER (PARTITION BY attempt ORDER BY rank DESC, place) AS first\n"
        "  FROM (SELECT *,\n"
        f"    if(kind IN ({decided}), 2, if(kind = {prepared}, 1, 0)) AS rank\n"
        f"  FROM ({_entries(names, commit_seq, 'attempt IS NOT NULL')}))\n"
        ") WHERE first = 1"
    )


def _dispatches(names: TableNames, commit_seq: int | None) -> str:
    which = (
        f"queue_id IS NOT NULL AND shard <> {literal(model.CATALOG)} "
        f"AND kind <> {literal(model.COMPACTED)}"
    )
    return (
        "SELECT e.kind, q.said.name AS queue, e.lane, e.sequence, e.claim_sequence,\n"
        "  e.transaction_key AS transaction_id, e.attempt, e.`count`, e.reason, e.actor,\n"
        "  e.run_id, e.recorded_at, e.commit_seq\n"
        f"FROM ({_entries(names, commit_seq, which)}) e\n"
        f"JOIN ({_known(names, commit_seq, 'queue_id')}) q ON q.queue_id = e.queue_id"
    )


def _bindings(names: TableNames, commit_seq: int | None) -> str:
    """Write the query of the bindings that hold: each was said last to be bound."""
    kinds = literals((model.QUEUE_BOUND, model.QUEUE_UNBOUND))
    entries = _entries(names, commit_seq, f"shard = {literal(model.CATALOG)} AND kind IN ({kinds})")
    return (
        "SELECT b.said.name AS exchange, b.said.queue AS queue,\n"
        "  b.said.routing_key AS routing_key, b.said.arguments AS arguments,\n"
        "  b.said.`match` AS x_match, b.recorded_at AS bound_at, b.actor AS bound_by, b.run_id,\n"
        "  b.commit_seq\n"
        "FROM (\n"
        "  SELECT *, row_number() OVER (PARTITION BY said.exchange, queue_id, said.routing_key,\n"
        "    get_json_object(body, '$.arguments'), said.`match` ORDER BY place DESC) AS newest\n"
        f"  FROM (SELECT *, from_json(body, {literal(_BINDING)}) AS said\n"
        f"  FROM ({entries}))) b\n"
        f"JOIN ({_known(names, commit_seq, 'queue_id')}) q ON q.queue_id = b.queue_id\n"
        f"WHERE b.newest = 1 AND b.kind = {literal(model.QUEUE_BOUND)}\n"
        f"  AND q.kind NOT IN ({literals((model.QUEUE_CLOSING, model.QUEUE_DROPPED))})"
    )


# ------------------------------------------------------------------- the view of a queue


def _messages(
    names: TableNames,
    ever: Mapping[str, QueueInfo],
    info: QueueInfo,
    exchanges: Topology,
    commit_seq: int | None,
    at_ms: int | None,
) -> str:
    """Write the query of a queue's messages: payload, state, and who did what when.

    The payload stands last: Delta takes its version after the journal's, so that it has
    every row that the journal speaks of.
    """
    backlog = literal(model.backlog_shard(info.queue_id))
    lanes = literal(model.lane_shard(info.queue_id, 0).removesuffix("0"))
    fence, mine = literal(model.FENCE), literal(model.queue_stream(info.queue_id))
    gone = f"shard = {fence} AND stream = {mine} AND kind = {_DROPPED}"
    which = f"shard = {backlog} OR startswith(shard, {lanes}) OR ({gone})"
    columns = [column["name"] for column in info.schema["fields"]]
    payload = "\n  UNION ALL ".join(
        f"SELECT {literal(owner.payload_id)} AS payload_id, slice, send_id, send_offset, headers, "
        f"struct({_content(info, owner)}) AS content FROM {names.payload(owner.payload_id)}"
        for owner in _owners(ever, info, exchanges)
    )
    now = "unix_millis(current_timestamp())" if at_ms is None else literal(at_ms)
    shown = [f"d.content.{identifier(name)} AS {identifier(name)}" for name in columns]
    folded = {name.lower() for name in columns}
    for name, expression in _COLUMNS.items():
        alias = f"_{name}" if name in folded else name
        shown.append(f"{expression.replace('{now}', now)} AS {identifier(alias)}")
    selected = ",\n  ".join(shown)
    return (
        f"WITH entries AS (\n{_FLAT}\n"
        f"  FROM (SELECT *, from_json(body, {literal(_SAID)}) AS said\n"
        f"  FROM ({_entries(names, commit_seq, which)}))),\n"
        f"{_FOLD}\n"
        f"SELECT {selected}\n"
        "FROM posted p\n"
        "LEFT JOIN taken t USING (append_id, position, send_offset)\n"
        f"LEFT JOIN (SELECT * FROM entries WHERE kind = {_DROPPED}) x ON true\n"
        f"LEFT JOIN (\n  {payload}) d\n"
        "  ON d.payload_id = p.payload_id AND d.slice = p.slice AND d.send_id = p.send_id\n"
        "  AND d.send_offset = p.send_offset"
    )


def _content(info: QueueInfo, owner: Owner) -> str:
    """List a queue's columns as another one's payload has them: what came later is null."""
    there = {column["name"] for column in owner.schema["fields"]}
    if there.issuperset(column["name"] for column in info.schema["fields"]):
        return ", ".join(identifier(column["name"]) for column in info.schema["fields"])
    from pyspark.sql.types import StructType

    types = StructType.fromJson(dict(info.schema)).fields
    return ", ".join(
        identifier(c.name)
        if c.name in there
        else f"CAST(NULL AS {c.dataType.simpleString()}) AS {identifier(c.name)}"
        for c in types
    )


def _owners(infos: Mapping[str, QueueInfo], info: QueueInfo, exchanges: Topology) -> list[Owner]:
    """Find whose payload may stand in a queue: of those that it is dead letters of, and moved.

    Each brings along the exchanges that it is or was bound to.
    """
    found = [info]
    for target in found:
        found += [
            one
            for one in infos.values()
            if one not in found
            and (one.dead_letter_id == target.queue_id or once_same_columns(one, target))
        ]
    owners: dict[str, Owner] = {}
    for one in found:
        posting: list[Owner] = [one, *exchanges.owners(one.queue_id)]
        owners |= {owner.payload_id: owner for owner in posting}
    return list(owners.values())


_COLUMNS = {
    "message_id": "concat(p.send_id, ':', p.send_offset)",
    "lane": "p.lane",
    "state": (
        f"CASE WHEN t.last.kind IN ({_REMOVALS}) THEN t.last.kind\n"
        "    WHEN t.last.ending.kind IN "
        f"({_RETIRING}) THEN t.last.ending.kind\n"
        f"    WHEN t.purged THEN {_PURGED}\n"
        "    WHEN x.kind IS NOT NULL THEN 'dropped'\n"
        f"    WHEN t.pending IS NOT NULL THEN {_PURGE_PENDING}\n"
        "    WHEN t.last.kind IS NOT NULL AND t.last.ending IS NULL THEN 'in_flight'\n"
        "    WHEN p.expires_at <= {now} THEN 'expired'\n"
        "    WHEN p.available_at > {now} THEN 'delayed'\n"
        "    ELSE 'available' END"
    ),
    "delivery_count": "coalesce(t.delivery_count, 0)",
    "sent_by": "p.actor",
    "sent_in": "p.transaction_key",
    "sent_at": "p.recorded_at",
    "claimed_by": "t.claim.actor",
    "claimed_in": "t.claim.transaction_key",
    "claimed_at": "t.claim.recorded_at",
    "settled_by": "coalesce(t.settlement.actor, x.actor)",
    "settled_in": "t.settlement.transaction_key",
    "settled_at": "coalesce(t.settlement.recorded_at, x.recorded_at)",
    "reason": "coalesce(t.settlement.reason, if(t.settlement IS NULL, x.reason, NULL), p.reason)",
    "headers": "d.headers",
    "correlation_id": f"try_element_at(d.headers, {literal(CORRELATION_ID)})",
    "reply_to": f"try_element_at(d.headers, {literal(REPLY_TO)})",
}
"""The columns of a queue's view behind the payload's. The claim is the one that holds the
message or that the settlement ended; the reason is the settlement's, else why it came here."""

# Spark 4.2 loses columns when fields of a struct are taken above two generators: so what a
# body says and who wrote it are plain columns from the start.
_FLAT = """\
  SELECT place, kind, append_id, `index` AS position, coalesce(lane, 0) AS lane, sequence,
    claim_sequence, attempt, ranges, actor, transaction_key, recorded_at, reason,
    said.payload AS payload_id, said.slice AS slice, said.send AS send_id,
    said.available_at AS available_at, said.expires_at AS expires_at,
    coalesce(said.items, array()) AS items, coalesce(said.supersedes, array()) AS supersedes,
    said.delivery_count AS delivery_count, coalesce(said.counted, false) AS counted,
    coalesce(said.counts, true) AS counts"""

_AUTHOR = "actor, transaction_key, recorded_at, reason"
_MESSAGE = "append_id, position, send_offset"
_FOLD = f"""\
-- one row per message that was posted here
posted AS (
  SELECT {_MESSAGE}, lane, payload_id, slice, send_id, available_at, expires_at, {_AUTHOR}
  FROM entries
  LATERAL VIEW inline(ranges) r AS `first`, `last`
  LATERAL VIEW explode(sequence(`first`, `last`)) o AS send_offset
  WHERE kind = {literal(model.POSTED)}),
-- one row per message that a claim, a settlement or a dead letter names
named AS (
  SELECT place, kind, lane, sequence, claim_sequence, delivery_count, counts, {_AUTHOR},
    item[0] AS append_id, CAST(item[1] AS int) AS position, send_offset
  FROM entries
  LATERAL VIEW posexplode(items) i AS nth, item
  LATERAL VIEW inline(slice(ranges,
    CAST(1 + aggregate(slice(items, 1, nth), 0L, (n, one) -> n + CAST(one[2] AS bigint)) AS int),
    CAST(item[2] AS int))) r AS `first`, `last`
  LATERAL VIEW explode(sequence(`first`, `last`)) o AS send_offset
  WHERE kind IN ({_TAKING}, {_SETTLEMENTS}, {_PURGE_PENDING})),
-- the last attempt that a claim was bound to before a settlement of it
bindings AS (
  SELECT s.place, max_by(b.attempt, b.place) AS attempt
  FROM entries s JOIN entries b
    ON b.lane = s.lane AND b.claim_sequence = s.claim_sequence AND b.place < s.place
  WHERE s.kind IN ({_SETTLEMENTS}) AND b.kind = {literal(model.BOUND)}
  GROUP BY s.place),
-- what ends claims: settlements (in the backlog only their holder's), later claims, a drop
endings AS (
  SELECT s.place, s.kind, s.lane, s.claim_sequence AS sequence, size(s.items) = 0 AS whole,
    s.kind = {literal(model.RELEASED)} AND s.counted AS counted,
    s.actor, s.transaction_key, s.recorded_at, s.reason
  FROM entries s JOIN entries c
    ON c.lane = s.lane AND c.sequence = s.claim_sequence AND c.place < s.place
  LEFT JOIN bindings b ON b.place = s.place
  WHERE s.kind IN ({_SETTLEMENTS}) AND c.kind = {_CLAIMED}
    AND (s.sequence IS NOT NULL OR s.attempt <=> if(b.place IS NULL, c.attempt, b.attempt))
  UNION ALL
  SELECT place, 'superseded', lane, superseded, true, true, {_AUTHOR}
  FROM entries LATERAL VIEW explode(supersedes) x AS superseded
  WHERE kind IN ({_TAKING})
  UNION ALL
  SELECT x.place, x.kind, c.lane, c.sequence, true, false,
    x.actor, x.transaction_key, x.recorded_at, x.reason
  FROM entries x JOIN entries c ON c.place < x.place
  WHERE x.kind = {_DROPPED} AND c.kind = {_CLAIMED}),
-- how each message of each claim ended, if it did: by the first of these
ended AS (
  SELECT lane, sequence, {_MESSAGE},
    min_by(struct(kind, counted, place, {_AUTHOR}), place) AS ending
  FROM (
    SELECT e.*, {_MESSAGE} FROM endings e
    JOIN (SELECT lane, sequence, place, {_MESSAGE} FROM named WHERE kind = {_CLAIMED}) c
      ON c.lane = e.lane AND c.sequence = e.sequence AND c.place < e.place
    WHERE e.whole
    UNION ALL
    SELECT e.*, {_MESSAGE} FROM endings e
    JOIN (SELECT place, {_MESSAGE} FROM named) n ON n.place = e.place
    WHERE NOT e.whole)
  GROUP BY lane, sequence, {_MESSAGE}),
-- what took each message last, how often it was delivered in vain before, and whether it was
-- purged in flight: then it went with the end of its claim, or at once if that was over
taken AS (
  SELECT {_MESSAGE}, last, delivery_count, pending, purged,
    if(last.kind = {_CLAIMED}
        AND (last.ending IS NULL OR last.ending.kind IN ({_RETIRING}, {_DROPPED})
          OR last.ending.place > pending.place),
      last, NULL) AS claim,
    CASE WHEN last.kind IN ({_REMOVALS})
        THEN struct(last.actor, last.transaction_key, last.recorded_at, last.reason)
      WHEN last.ending.kind IN ({_RETIRING}, {_DROPPED})
        THEN struct(last.ending.actor, last.ending.transaction_key, last.ending.recorded_at,
          last.ending.reason)
      WHEN purged AND last.ending.place > pending.place
        THEN struct(last.ending.actor, last.ending.transaction_key, last.ending.recorded_at,
          pending.reason)
      WHEN purged
        THEN struct(pending.actor, pending.transaction_key, pending.recorded_at, pending.reason)
      END AS settlement
  FROM (
    SELECT *, pending IS NOT NULL
      AND (last.kind IS NULL OR coalesce(last.ending.kind <> {_DROPPED}, false)) AS purged
    FROM (
      SELECT {_MESSAGE},
        max_by(struct(kind, {_AUTHOR}, ending), place)
          FILTER (WHERE kind <> {_PURGE_PENDING}) AS last,
        min_by(struct(place, {_AUTHOR}), place)
          FILTER (WHERE kind = {_PURGE_PENDING}) AS pending,
        max_by(delivery_count + if(ending.counted AND counts, 1, 0), place)
          FILTER (WHERE kind = {_CLAIMED}) AS delivery_count
      FROM named LEFT JOIN ended USING (lane, sequence, {_MESSAGE})
      WHERE claim_sequence IS NULL
      GROUP BY {_MESSAGE})))"""
