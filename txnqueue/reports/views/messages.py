"""The view of a queue: its messages, and the state and history of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from txnqueue.core import model
from txnqueue.core.redelivery import CLOCKS_APART_MS
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import catalog
from txnqueue.core.state.topology import Topology
from txnqueue.reports.views.columns import Owner, content_of, shown
from txnqueue.reports.views.store import entries_query
from txnqueue.storage.journal.tables import TableNames, literal, literals

Schemas = Mapping[str, Sequence[Mapping[str, Any]]]
"""The schemas that each queue ever had, by the queues' ids."""
_SETTLEMENTS = literals(sorted(model.SETTLEMENTS))
_CLAIMED, _REMOVALS = literal(model.CLAIMED), literals(sorted(model.REMOVALS))
_DROPPED = literal(model.QUEUE_DROPPED)
_RETIRING = literals((model.ACCEPTED, model.REJECTED, model.MOVED))
_TAKING = literals(sorted({model.CLAIMED, *model.REMOVALS}))
_ALTERED = literal(model.QUEUE_ALTERED)
_PURGED, _PURGE_PENDING = literal(model.PURGED), literal(model.PURGE_PENDING)
_ONCE = "rand() >= 0.0"
"""Always true; Spark evaluates a nondeterministic expression once, wherever a query names it."""
_CHOSEN_FROM = 4
"""Above this number of payload tables it is cheaper to query first which of them matter."""
_SAID = (
    "payload string, slice bigint, send string, available_at bigint, expires_at bigint, "
    "items array<array<string>>, supersedes array<bigint>, delivery_count int, counted boolean, "
    "counts boolean, size bigint, failed_at bigint, ended_at array<bigint>, "
    "settings struct<deliveries_max:int>, "
    "later struct<redelivery_delay_seconds:double,redelivery_delay_seconds_max:double>"
)


def messages(
    names: TableNames,
    ever: Mapping[str, QueueInfo],
    info: QueueInfo,
    exchanges: Topology,
    commit_seq: int | None,
    *,
    at_ms: int | None,
    schemas: Schemas,
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
    owners = _owners(ever, info, exchanges, schemas)
    payload = "\n  UNION ALL ".join(
        f"SELECT {literal(owner.payload_id)} AS payload_id, slice, send_id, send_offset, headers, "
        f"struct({content_of(info, owner)}) AS content FROM {names.payload(owner.payload_id)}"
        f"{_if_posted(names, info, owner) if len(owners) >= _CHOSEN_FROM else ''}"
        for owner in owners
    )
    now = "unix_millis(current_timestamp())" if at_ms is None else literal(at_ms)
    told = {name: expression.replace("{now}", now) for name, expression in _COLUMNS.items()}
    selected = ",\n  ".join(shown(info, told))
    known = info.settings
    limit = f"coalesce(altered.deliveries_max, {known.deliveries_max})"
    rules = _RULES.format(
        limit=limit if info.dead_letter_id else "NULL",
        delay=known.redelivery_delay_seconds,
        longest=known.redelivery_delay_seconds_max,
    )
    return (
        f"WITH entries AS (\n{_FLAT}\n"
        f"  FROM (SELECT *, from_json(body, {literal(_SAID)}) AS said\n"
        f"  FROM ({entries_query(names, commit_seq, which)}))\n  WHERE {_ONCE}),\n"
        f"{_FOLD},\n{rules}\n"
        f"SELECT {selected}\n"
        "FROM posted p CROSS JOIN rules\n"
        "LEFT JOIN taken t USING (append_id, position, send_offset)\n"
        f"LEFT JOIN (SELECT * FROM entries WHERE kind = {_DROPPED}) x ON true\n"
        f"LEFT JOIN (\n  {payload}) d\n"
        "  ON d.payload_id = p.payload_id AND d.slice = p.slice AND d.send_id = p.send_id\n"
        "  AND d.send_offset = p.send_offset"
    )


def _if_posted(names: TableNames, info: QueueInfo, owner: Owner) -> str:
    """Write the condition that a queue ever got messages whose payload one table has.

    A move may bring any other queue's payload along, also later, so that the view knows the table;
    but Spark asks this once for all tables, and opens no partition of those that it is false for.
    """
    posted = (
        f"shard = {literal(model.backlog_shard(info.queue_id))} AND kind = {literal(model.POSTED)}"
    )
    both = " UNION ALL ".join(
        f"SELECT body FROM {table} WHERE {posted}" for table in (names.journal, names.archive)
    )
    said = f"(SELECT collect_set(get_json_object(body, '$.payload')) FROM ({both}))"
    return (
        f" WHERE if(array_contains({said}, {literal(owner.payload_id)}), slice IS NOT NULL, false)"
    )


def _owners(
    infos: Mapping[str, QueueInfo], info: QueueInfo, exchanges: Topology, schemas: Schemas
) -> list[Owner]:
    """Find the owners whose payload may be in a queue: by dead letters and by moves.

    Each brings along the exchanges that it is or was bound to.
    """
    found = [info]
    for target in found:
        found += [
            one
            for one in infos.values()
            if one not in found
            and (one.dead_letter_id == target.queue_id or _once_same_columns(one, target, schemas))
        ]
    owners: dict[str, Owner] = {}
    for one in found:
        posting: list[Owner] = [one, *exchanges.owners(one.queue_id)]
        owners |= {owner.payload_id: owner for owner in posting}
    return list(owners.values())


def _once_same_columns(one: QueueInfo, other: QueueInfo, schemas: Schemas) -> bool:
    """Return whether messages could be moved from one queue to the other at any time.

    Columns are only added. So two queues may become the same as long as one has the first columns
    of the other; and they once were if they ever had one schema, whatever each of them got since.
    """
    had = [schemas.get(info.queue_id, [info.schema]) for info in (one, other)]
    here, there = ([catalog.columns(schema) for schema in ever] for ever in had)
    shorter, longer = sorted((here[-1], there[-1]), key=len)
    return longer[: len(shorter)] == shorter or any(columns in there for columns in here)


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
        f"    WHEN rules.delay > 0 AND t.failed_at <= {{now}} + {CLOCKS_APART_MS}\n"
        "      AND NOT (rules.deliveries_max IS NOT NULL AND t.former = 1"
        " AND t.delivery_count >= rules.deliveries_max)\n"
        "      AND t.failed_at + least(rules.longest, rules.delay * pow(2, t.delivery_count - 1))"
        " > {now} THEN 'delayed'\n"
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
}
"""What a queue's view tells of each message. The claim is the one that holds the
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
    coalesce(said.counts, true) AS counts, coalesce(said.size, `count`) AS claim_size,
    coalesce(said.failed_at, unix_millis(recorded_at)) AS failed_at,
    coalesce(said.ended_at, array()) AS ended_at, said.settings.deliveries_max AS deliveries_max,
    said.later.redelivery_delay_seconds AS delay,
    said.later.redelivery_delay_seconds_max AS longest"""

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
  SELECT place, kind, lane, sequence, claim_sequence, delivery_count, counts, claim_size, {_AUTHOR},
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
    s.kind = {literal(model.RELEASED)} AND s.counted AS counted, s.failed_at,
    s.actor, s.transaction_key, s.recorded_at, s.reason
  FROM entries s JOIN entries c
    ON c.lane = s.lane AND c.sequence = s.claim_sequence AND c.place < s.place
  LEFT JOIN bindings b ON b.place = s.place
  WHERE s.kind IN ({_SETTLEMENTS}) AND c.kind = {_CLAIMED}
    AND (s.sequence IS NOT NULL OR s.attempt <=> if(b.place IS NULL, c.attempt, b.attempt))
  UNION ALL
  SELECT place, 'superseded', lane, superseded, true, true,
    coalesce(get(ended_at, nth), failed_at), {_AUTHOR}
  FROM entries LATERAL VIEW posexplode(supersedes) x AS nth, superseded
  WHERE kind IN ({_TAKING})
  UNION ALL
  SELECT x.place, x.kind, c.lane, c.sequence, true, false, x.failed_at,
    x.actor, x.transaction_key, x.recorded_at, x.reason
  FROM entries x JOIN entries c ON c.place < x.place
  WHERE x.kind = {_DROPPED} AND c.kind = {_CLAIMED}),
-- how each message of each claim ended, if it did: by the first of these
ended AS (
  SELECT lane, sequence, {_MESSAGE},
    min_by(struct(kind, counted, failed_at, place, {_AUTHOR}), place) AS ending
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
  SELECT {_MESSAGE}, last, delivery_count, pending, purged, last.claim_size AS former,
    if(last.ending.counted AND last.counts, last.ending.failed_at, NULL) AS failed_at,
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
        max_by(struct(kind, counts, claim_size, {_AUTHOR}, ending), place)
          FILTER (WHERE kind <> {_PURGE_PENDING}) AS last,
        min_by(struct(place, {_AUTHOR}), place)
          FILTER (WHERE kind = {_PURGE_PENDING}) AS pending,
        max_by(delivery_count + if(ending.counted AND counts, 1, 0), place)
          FILTER (WHERE kind = {_CLAIMED}) AS delivery_count
      FROM named LEFT JOIN ended USING (lane, sequence, {_MESSAGE})
      WHERE claim_sequence IS NULL
      GROUP BY {_MESSAGE})))"""
_RULES = f"""\
-- how long what failed waits, in milliseconds: as it was altered last, or as it was
rules AS (
  SELECT {{limit}} AS deliveries_max, 1000 * coalesce(altered.delay, {{delay}}D) AS delay,
    1000 * coalesce(altered.longest, {{longest}}D) AS longest
  FROM (
    SELECT max_by(struct(deliveries_max, coalesce(delay, 0D) AS delay, longest), place) AS altered
    FROM entries WHERE kind = {_ALTERED}))"""
"""The rules of redelivery; a queue is altered by a fact in its backlog."""
