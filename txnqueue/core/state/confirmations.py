"""What databases take part in, as names and entries: branches, and what is confirmed (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.planning import Stamp
from txnqueue.core.state import AttemptOwner

FORMAT_ID = 0x74786E71
"""Marks our branches among those of other transaction managers: "txnq"."""
_STORE_LENGTH = 12
_NAME = re.compile(r"([0-9a-f]+)\.([0-9a-f]{32})\.([0-9]+)\.([0-9]+)")


def branch_of(owner: AttemptOwner, store_id: str, number: int) -> str:
    """Name a branch: store, attempt, begun, and its number in the transaction."""
    return f"{store_id[:_STORE_LENGTH]}.{owner.attempt}.{owner.begun}.{number}"


def owner_of(xid: Any, store_id: str) -> AttemptOwner | None:
    """Read whose branch this is; None if it is no branch of this store."""
    format_id, key, branch = xid[0], xid[1], xid[2]
    found = _NAME.fullmatch(branch or "")
    if format_id != FORMAT_ID or found is None or found.group(1) != store_id[:_STORE_LENGTH]:
        return None
    return AttemptOwner(key, found.group(2), int(found.group(3)))


def confirmation(name: str, owner: AttemptOwner, stamp: Stamp) -> Entry:
    """Write the fact that a database has carried out a commit."""
    stream = participant_stream(name)
    return Entry(
        model.table_shard(stream),
        stream,
        model.BRANCH_CONFIRMED,
        body={"v": 1, "participant": name},
        **owner.columns(),
        **stamp.columns(),
    )


def participant_stream(name: str) -> str:
    """Name the stream of what a database confirms."""
    return f"participant/{name}"


def unconfirmed(decisions: Iterable[Entry], facts: Iterable[Entry]) -> list[tuple[str, Entry]]:
    """List which database has not confirmed which commit (pure)."""
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
    """Read which databases a decision named."""
    return list(body.get("participants", ()))
