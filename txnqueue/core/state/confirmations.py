"""The branches of participating databases, and their confirmations of commits (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from txnqueue.core import model
from txnqueue.core.model import Entry, PositionId
from txnqueue.core.planning import Stamp
from txnqueue.core.state import AttemptOwner

FORMAT_ID = 0x74786E71
"""The format id, "txnq", that tells our branches from those of other transaction managers."""
_STORE_LENGTH = 12
_NAME = re.compile(r"([0-9a-f]+)\.([0-9a-f]{32})\.([0-9]+)\.([0-9]+)")


def branch_of(owner: AttemptOwner, store_id: str, number: int) -> str:
    """Name a branch by store, attempt, beginning, and its number in the transaction."""
    return f"{store_id[:_STORE_LENGTH]}.{owner.attempt}.{owner.begun}.{number}"


def owner_of(xid: Any, store_id: str) -> AttemptOwner | None:
    """Read the attempt of a branch from its xid; None if the branch is not of this store."""
    format_id, key, branch = xid[0], xid[1], xid[2]
    found = _NAME.fullmatch(branch or "")
    if format_id != FORMAT_ID or found is None or found.group(1) != store_id[:_STORE_LENGTH]:
        return None
    return AttemptOwner(key, found.group(2), int(found.group(3)))


def confirmation(name: str, owner: AttemptOwner, stamp: Stamp) -> Entry:
    """Make the entry that records that a database has carried out a commit."""
    stream = participant_stream(name)
    return Entry(
        model.table_shard(stream),
        stream,
        model.BRANCH_CONFIRMED,
        body={"v": 1, "participant": name},
        **owner.columns(),
        **stamp.columns(),
    )


def name_of(fact: Entry) -> tuple[str, str, str | None, PositionId | None]:
    """Name what an entry confirms: a change of a table, or a commit by a database."""
    return (fact.stream, fact.kind, fact.attempt, fact.ended_change)


def participant_stream(name: str) -> str:
    """Name the stream of a database's confirmations."""
    return f"participant/{name}"


def unconfirmed(decisions: Iterable[Entry], facts: Iterable[Entry]) -> list[tuple[str, Entry]]:
    """List the missing confirmations: each a database and the commit that it owes one for."""
    confirmed = {
        (entry.body["participant"], entry.attempt)
        for entry in facts
        if entry.kind == model.BRANCH_CONFIRMED
    }
    return [
        (name, entry)
        for entry in decisions
        if entry.kind == model.COMMITTED
        for name in manifest_participants(entry.body)
        if (name, entry.attempt) not in confirmed
    ]


def manifest_participants(body: Mapping[str, Any]) -> list[str]:
    """Read the names of the databases that take part in a decision."""
    return list(body.get("participants", ()))
