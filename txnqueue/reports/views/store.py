"""The views of a store: queues, transactions, dispatches, bindings."""

from __future__ import annotations

from txnqueue.core import model
from txnqueue.core.exchanges import HEADERS, X_MATCH
from txnqueue.core.state import catalog
from txnqueue.storage.journal.tables import (
    JOURNAL_COLUMNS,
    TableNames,
    identifier,
    literal,
    literals,
)

_COMMITS = model.COMMITS_PER_VERSION
_COLUMNS_OF_ENTRIES = ", ".join(identifier(name) for name, _ in JOURNAL_COLUMNS)
_REMOVED = f"(shard = {literal(model.FENCE)} AND kind = {literal(model.HISTORY_REMOVED)})"
_CREATED = (
    "name string, dead_letter string, settings struct<lanes:int,group_by:string,"
    "lease_seconds:double,deliveries_max:int>"
)
_BINDING = (
    "name string, exchange string, queue string, routing_key string, "
    "arguments map<string,string>, `match` string"
)


def entries_query(names: TableNames, commit_seq: int | None, which: str) -> str:
    """Write the query of some entries, with their version and place in commit order.

    Entries never change, so that the newest version holds every former state, and the views
    of a former state outlive Delta's time travel. What has left the journal is in the archive,
    whose version Delta takes after the journal's; what is on its way is in both.
    """
    upto = ""
    if commit_seq is not None:  # a view may outlive what the history knows
        lost = _lost(commit_seq)
        which = f"{which} OR {_REMOVED}"
        upto = (
            f" AND if({_REMOVED},\n"
            f"    if(begun * {_COMMITS} > {commit_seq}, {lost}, false),\n"
            f"    version * {_COMMITS} + ordinal <= {commit_seq})"
        )
    return (
        f"SELECT *, version * {_COMMITS} + ordinal AS commit_seq,\n"
        "    struct(version, ordinal, `index`) AS place\n"
        "  FROM (SELECT *, row_number() OVER (PARTITION BY append_id, `index` ORDER BY version) "
        "AS nth\n"
        f"    FROM (SELECT {_COLUMNS_OF_ENTRIES}, _metadata.row_commit_version AS version\n"
        f"      FROM {names.journal} WHERE {which}\n"
        f"      UNION ALL SELECT {_COLUMNS_OF_ENTRIES}, "
        f"shiftright(commit_seq, {model.ORDINAL_BITS}) AS version\n"
        f"      FROM {names.archive} WHERE {which}))\n"
        f"  WHERE nth = 1{upto}"
    )


def still_known(names: TableNames, commit_seq: int) -> str:
    """Write a condition that is true, or fails: the history then begins after a commit."""
    return f"if({_beginning(names)} * {_COMMITS} > {commit_seq}, {_lost(commit_seq)}, true)"


def none_erased_since(names: TableNames, known: int) -> str:
    """Return a condition that is true, or fails if payload was erased that a view does not know of.

    Such entries never leave the journal, so their number is sufficient.

    Args:
        names: How the store's tables are called.
        known: How many erasures the view is told of.
    """
    recorded = f"shard = {literal(model.CATALOG)} AND kind = {literal(model.PAYLOAD_ERASING)}"
    said = literal("PayloadRemoved: payload was erased since; create the views again")
    return (
        f"if((SELECT count(*) FROM {names.journal} WHERE {recorded}) = {known}L, true, "
        f"CAST(raise_error({said}) AS boolean))"
    )


def _lost(commit_seq: int) -> str:
    said = literal(f"HistoryRemoved: the state after commit_seq {commit_seq} was removed")
    return f"CAST(raise_error({said}) AS boolean)"


def _beginning(names: TableNames) -> str:
    """Write the query of the version from which on the history is whole."""
    return f"(SELECT coalesce(max(begun), -1) FROM {names.journal} WHERE {_REMOVED})"


def _known(names: TableNames, commit_seq: int | None, by: str) -> str:
    """Write the query of what the catalog said last: of each name, or of each queue's id."""
    entries = entries_query(names, commit_seq, f"shard = {literal(model.CATALOG)}")
    return (
        "SELECT * FROM (\n"
        f"  SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY place DESC) AS newest,\n"
        "    min_by(recorded_at, place) OVER (PARTITION BY queue_id) AS created_at,\n"
        "    min_by(actor, place) OVER (PARTITION BY queue_id) AS created_by\n"
        f"  FROM (SELECT *, from_json(body, {literal(_CREATED)}) AS said\n"
        f"  FROM ({entries})\n"
        f"  WHERE kind IN ({literals(catalog.KINDS)}))) WHERE newest = 1"
    )


def queues(names: TableNames, commit_seq: int | None) -> str:
    """Return the query for the existing queues."""
    return (
        "SELECT said.name AS queue, queue_id, said.settings.lanes AS lanes,\n"
        "  said.settings.group_by AS group_by, said.settings.lease_seconds AS lease_seconds,\n"
        "  said.settings.deliveries_max AS deliveries_max, said.dead_letter AS dead_letter_id,\n"
        f"  created_at, created_by, kind = {literal(model.QUEUE_CLOSING)} AS closing\n"
        f"FROM ({_known(names, commit_seq, 'said.name')})\n"
        f"WHERE kind <> {literal(model.QUEUE_DROPPED)}"
    )


def transactions(names: TableNames, commit_seq: int | None) -> str:
    """Write the query of the attempts: the decision of each, or else what is known of it."""
    prepared, decided = literal(model.PREPARED), literals(sorted(model.DECISIONS))
    advanced = f"shard = {literal(model.FENCE)} AND kind = {literal(model.HORIZON_ADVANCED)}"
    horizon = f"SELECT max(begun) FROM ({entries_query(names, commit_seq, advanced)})"
    gone = literal(model.ROLLED_BACK)  # nobody can decide it any more
    return (
        "SELECT transaction_key AS transaction_id, attempt,\n"
        f"  if(rank > 0, kind, if(is_over, {gone}, 'pending')) AS status,\n"
        "  reason, actor, run_id, recorded_at,\n"
        "  if(rank = 2, commit_seq, NULL) AS commit_seq\n"
        "FROM (\n"
        "  SELECT *, row_number() OVER (PARTITION BY attempt ORDER BY rank DESC, place) AS first\n"
        "  FROM (SELECT *,\n"
        f"    if(kind IN ({decided}), 2, if(kind = {prepared}, 1, 0)) AS rank,\n"
        f"    begun < ({horizon}) AS is_over\n"
        f"  FROM ({entries_query(names, commit_seq, 'attempt IS NOT NULL')}))\n"
        ") WHERE first = 1\n"
        "-- of what claimed so long ago the decision may have been removed\n"
        f"  AND NOT (rank = 0 AND version < {_beginning(names)} AND is_over)"
    )


def dispatches(names: TableNames, commit_seq: int | None) -> str:
    """Write the query of all that was done to messages."""
    which = (
        f"queue_id IS NOT NULL AND shard <> {literal(model.CATALOG)} "
        f"AND kind <> {literal(model.COMPACTED)}"
    )
    return (
        "SELECT e.kind, q.said.name AS queue, e.lane, e.sequence, e.claim_sequence,\n"
        "  e.transaction_key AS transaction_id, e.attempt, e.`count`, e.reason, e.actor,\n"
        "  e.run_id, e.recorded_at, e.commit_seq\n"
        f"FROM ({entries_query(names, commit_seq, which)}) e\n"
        f"JOIN ({_known(names, commit_seq, 'queue_id')}) q ON q.queue_id = e.queue_id"
    )


def bindings(names: TableNames, commit_seq: int | None) -> str:
    """Write the query of the bindings that hold: each was said last to be bound."""
    kinds = literals((model.QUEUE_BOUND, model.QUEUE_UNBOUND))
    entries = entries_query(
        names, commit_seq, f"shard = {literal(model.CATALOG)} AND kind IN ({kinds})"
    )
    created = f"shard = {literal(model.CATALOG)} AND kind = {literal(model.EXCHANGE_CREATED)}"
    exchanges = (
        "SELECT get_json_object(body, '$.exchange') AS exchange,\n"
        "    get_json_object(body, '$.kind') AS kind\n"
        f"  FROM ({entries_query(names, commit_seq, created)})\n"
        f"  WHERE kind = {literal(model.EXCHANGE_CREATED)}"
    )
    return (
        "SELECT 'bound' AS kind, b.said.name AS exchange, b.said.queue AS queue,\n"
        "  b.said.routing_key AS routing_key,\n"
        f"  if(x.kind = {literal(HEADERS)},\n"
        f"    map_concat(map({literal(X_MATCH)}, b.said.`match`), b.said.arguments),\n"
        "    b.said.arguments) AS arguments,\n"
        "  b.reason, b.actor, b.run_id, b.recorded_at, b.commit_seq\n"
        "FROM (\n"
        "  SELECT *, row_number() OVER (PARTITION BY said.exchange, queue_id, said.routing_key,\n"
        "    get_json_object(body, '$.arguments'), said.`match` ORDER BY place DESC) AS newest\n"
        f"  FROM (SELECT *, from_json(body, {literal(_BINDING)}) AS said\n"
        f"  FROM ({entries}))) b\n"
        f"JOIN ({_known(names, commit_seq, 'queue_id')}) q ON q.queue_id = b.queue_id\n"
        f"LEFT JOIN ({exchanges}) x ON x.exchange = b.said.exchange\n"
        f"WHERE b.newest = 1 AND b.kind = {literal(model.QUEUE_BOUND)}\n"
        f"  AND q.kind NOT IN ({literals((model.QUEUE_CLOSING, model.QUEUE_DROPPED))})"
    )
