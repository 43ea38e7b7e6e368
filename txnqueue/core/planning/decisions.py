"""Plan the decisions of transactions: seals, rollbacks, decisions of prepared ones (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan, Stamp
from txnqueue.core.state import AttemptOwner


def decision(
    kind: str,
    owner: AttemptOwner,
    stamp: Stamp,
    *,
    body: dict[str, Any],
    reason: str | None = None,
    sequence: int | None = None,
) -> Entry:
    """Make the entry of an attempt's decision, or of a branch's step, which has a sequence."""
    return Entry(
        model.transaction_shard(owner.key),
        owner.key,
        kind,
        sequence=sequence,
        reason=reason,
        body={"v": 1, **body},
        **owner.columns(),
        **stamp.columns(),
    )


def seal(
    kind: str,
    owner: AttemptOwner,
    facts: Sequence[Entry],
    queue_ids: Iterable[str],
    rolled_back: Iterable[str],
    *,
    stamp: Stamp,
    body: dict[str, Any],
) -> Plan:
    """Plan the one append that commits or prepares an attempt.

    Args:
        kind: ``committed`` or ``prepared``.
        owner: The attempt.
        facts: The entries that it posts, settles and changes; a prepared attempt keeps them in
            its manifest, a commit writes them.
        queue_ids: Every queue that it posts to or settles in; all must be open.
        rolled_back: Other attempts of the key that were read as rolled back.
        stamp: The author and the instant.
        body: Further fields of the decision.
    """
    key, attempt = owner.key, owner.attempt
    manifest: dict[str, Any] = {"posted": _counts(facts, (model.POSTED,))}
    manifest["settled"] = _counts(facts, tuple(model.SETTLEMENTS))  # facts contain no removals
    tables = sorted({entry.stream for entry in facts if entry.kind == model.CHANGE_DECIDED})
    if tables:
        manifest["tables"] = tables
    if kind == model.PREPARED:
        manifest["entries"] = [entry_to_json(entry) for entry in facts]
    decided = decision(kind, owner, stamp, body={**body, "manifest": manifest})
    conditions = (
        model.undecided(key, attempt, unprepared=True),
        model.key_free(key, attempt, rolled_back),
        model.horizon_at_most(owner.begun),
        model.layout_unchanged(),
        *(model.queue_open(queue_id) for queue_id in sorted(set(queue_ids))),
        *(model.exchange_open(exchange_id) for exchange_id in sorted(_exchanges_of(facts))),
    )
    return Plan((decided, *(_now(facts, stamp) if kind == model.COMMITTED else ())), conditions)


def rollback(
    owner: AttemptOwner,
    facts: Sequence[Entry],
    stamp: Stamp,
    reason: str,
    said: Mapping[str, Any] | None = None,
) -> Plan:
    """Plan the append that rolls an attempt back: by its owner, or by a tombstone.

    Args:
        owner: The attempt.
        facts: The entries that return its messages.
        stamp: The author and the instant.
        reason: The reason.
        said: Further fields of the decision.
    """
    body = dict(said or {})
    decided = decision(model.ROLLED_BACK, owner, stamp, body=body, reason=reason)
    return Plan(
        (decided, *_now(facts, stamp)),
        (
            model.undecided(owner.key, owner.attempt, unprepared=True),
            model.horizon_at_most(owner.begun),
            model.layout_unchanged(),
        ),
    )


def decide_prepared(
    prepared: Entry,
    *,
    commit: bool,
    stamp: Stamp,
    reason: str | None,
    said: Mapping[str, Any] | None = None,
    heuristic: bool = False,
    counted: bool = True,
) -> Plan:
    """Plan the append that commits or rolls back a prepared attempt.

    It expects only that the attempt is prepared and undecided: neither the horizon nor a closing
    queue can prevent it.

    Args:
        prepared: The entry that prepared the attempt.
        commit: Whether to commit; else it is rolled back.
        stamp: The author and the instant.
        reason: The reason.
        said: Further fields of the decision.
        heuristic: Whether an operator decides instead of the coordinator, which stays on record
            until it is forgotten.
        counted: Whether a rollback counts as a delivery of the returned messages.
    """
    owner = AttemptOwner.of(prepared)
    sealed = [entry_from_json(data) for data in prepared.body["manifest"]["entries"]]
    kind = model.COMMITTED if commit else model.ROLLED_BACK
    if commit:
        facts = _now(sealed, stamp)
        body = {k: v for k, v in prepared.body.items() if k not in ("v", "claims", "manifest")}
        body["manifest"] = {k: v for k, v in prepared.body["manifest"].items() if k != "entries"}
    else:
        inside = prepared.body.get("claims", ())
        why = reason or "rolled back"
        body = {} if counted else {"counted": False}
        facts = [
            replace(f, reason=why, body={**f.body, **body})
            for f in _now(map(entry_from_json, inside), stamp)
        ]
    body.update({"asked": True} if heuristic else {}, **(said or {}))
    decided = [decision(kind, owner, stamp, body=body, reason=reason)]
    if heuristic:
        how = {"decision": kind}
        decided.append(decision(model.HEURISTIC, owner, stamp, body=how, reason=reason))
    conditions = (
        model.is_prepared(owner.key, owner.attempt),
        model.undecided(owner.key, owner.attempt, unprepared=False),
    )
    return Plan((*decided, *facts), conditions)


def _now(facts: Iterable[Entry], stamp: Stamp) -> list[Entry]:
    """Date sealed entries to now: ages, windows, delays and leases begin with the decision."""
    return [_dated(fact, stamp.now_ms) for fact in facts]


def _dated(fact: Entry, now_ms: int) -> Entry:
    body = fact.body
    if fact.kind == model.KEPT:
        body = {**body, "deadline": body["deadline"] + now_ms - fact.recorded_at_ms}
    return replace(fact, recorded_at_ms=now_ms, body=body)


def _exchanges_of(facts: Iterable[Entry]) -> set[str]:
    """Find the exchanges that an attempt publishes to; all must be open."""
    found = (model.published_to(entry.kind, entry.body) for entry in facts)
    return {exchange_id for exchange_id in found if exchange_id is not None}


def _counts(entries: Iterable[Entry], kinds: tuple[str, ...]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for entry in entries:
        if entry.kind in kinds and entry.queue_id:
            totals[entry.queue_id] = totals.get(entry.queue_id, 0) + (entry.count or 0)
    return totals


_JSON_COLUMNS = (
    "shard",
    "stream",
    "kind",
    "sequence",
    "transaction_key",
    "attempt",
    "begun",
    "queue_id",
    "lane",
    "claim_lane",
    "claim_sequence",
    "count",
    "reason",
    "actor",
    "run_id",
    "recorded_at_ms",
)


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """Write an entry for a manifest, without the columns that an append sets."""
    data = {name: getattr(entry, name) for name in _JSON_COLUMNS}
    return {**data, "ranges": [list(part) for part in entry.ranges], "body": dict(entry.body)}


def entry_from_json(data: dict[str, Any]) -> Entry:
    """Read an entry back from a manifest."""
    columns = {name: data[name] for name in _JSON_COLUMNS}
    parts = tuple((first, last) for first, last in data["ranges"])
    return Entry(**columns, ranges=parts, body=data["body"])
