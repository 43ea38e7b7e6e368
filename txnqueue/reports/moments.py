"""Moments of the history: commits and instants, and the history up to them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from itertools import groupby

from txnqueue.client.archive import Past
from txnqueue.client.cache import Cache
from txnqueue.client.client import Client
from txnqueue.core import model
from txnqueue.core.instants import FIRST_MS, LAST_MS, by_then_ms, is_instant
from txnqueue.core.model import Entry
from txnqueue.core.redelivery import CLOCKS_APART_MS
from txnqueue.core.settings import is_whole, shown
from txnqueue.errors import InvalidInput
from txnqueue.storage.journal import EntryFilter, Newest, Order

_OR_INSTANT = ", or a datetime with a time zone"
_COMMIT_SEQ_MAX = 2**63 - 1
"""The greatest number that the column of a table holds."""


def moment_of(text: str, name: str) -> int | datetime.datetime:
    """Read a moment that is written as text: a commit_seq, or an ISO 8601 instant.

    Args:
        text: The moment.
        name: The argument that it was given as.

    Raises:
        InvalidInput: The text is neither, or the time zone is missing.
    """
    if is_whole(text.removeprefix("-")):
        return int(text)
    try:
        instant = datetime.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", text))
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise InvalidInput(
            f"{name}={shown(text)}: give a commit_seq, or a time with its time zone, such as "
            "2026-09-30T22:00:00+00:00.",
            name=name,
        )
    return instant


def cut(
    cache: Cache,
    commit_seq: int | datetime.datetime | None = None,
    timestamp: datetime.datetime | None = None,
    *,
    name: str = "commit_seq",
) -> tuple[Past, int | None]:
    """Find the history up to a moment, as ``History.as_of`` takes it.

    Args:
        cache: The cache of the store.
        commit_seq: The commit, or an instant; now when omitted.
        timestamp: Instead, the instant.
        name: The argument that the commit was given as.

    Returns:
        The history, and the instant that was asked for.

    Raises:
        InvalidInput: There is no such commit yet, or the instant has no time zone.
        HistoryRemoved: The moment lies before the history's beginning.
    """
    if commit_seq is not None and timestamp is not None:
        raise InvalidInput("Give commit_seq or timestamp=, not both.")
    if isinstance(commit_seq, datetime.datetime):
        commit_seq, timestamp = None, commit_seq
    if timestamp is not None:
        return _by_then(cache, timestamp)
    if commit_seq is None:
        return cache.past(), None
    newest = cache.store.journal.version()
    check_commit(name, commit_seq, _OR_INSTANT)
    if model.version_of(commit_seq) > newest:
        raise _to_come(name, commit_seq, newest)
    return _known(cache.past(commit_seq)), None


def state_at(
    client: Client,
    commit_seq: int | datetime.datetime | None = None,
    timestamp: datetime.datetime | None = None,
    *,
    name: str = "commit_seq",
) -> tuple[Past, int | None]:
    """Find the history up to a moment as ``cut`` does, and now by the clock if none is given.

    Delays and times to live end without a commit: the clock of the newest one may be hours old.
    """
    past, at_ms = cut(client.cache, commit_seq, timestamp, name=name)
    is_now = commit_seq is None and timestamp is None
    return past, client.runtime.now_ms() if is_now else at_ms


def commits_between(client: Client, after: int, upto: int | None) -> Past:
    """Find the history after one commit and up to another.

    Raises:
        InvalidInput: A value is no commit_seq or no commit yet, or they are out of order.
        HistoryRemoved: Some entries after the first commit were removed.
    """
    client.open()
    check_commits(after, upto)
    past, _ = cut(client.cache, upto, name="upto")
    if after > past.upto:
        if upto is None:
            raise _to_come("after", after, past.version)
        raise reversed_commits(after, upto)
    if after >= 0:
        past.check_known(after + 1)
    return past


def check_moment(name: str, moment: object) -> None:
    """Check that a moment can be one: a commit_seq, an instant with a time zone, or None for now.

    Args:
        name: The argument that it was given as.
        moment: The moment.

    Raises:
        InvalidInput: It is something else.
    """
    if isinstance(moment, datetime.datetime):
        _check_instant(name, moment)
    elif moment is not None:
        check_commit(name, moment, _OR_INSTANT)


def _check_instant(name: str, instant: object) -> None:
    if not is_instant(instant):
        raise InvalidInput(f"{name}={shown(instant)}: give a datetime with a time zone.", name=name)


def check_commits(after: int, upto: int | None) -> None:
    """Check that two values can be commits; the second is None for the newest.

    Raises:
        InvalidInput: One of them is no commit_seq.
    """
    for name, value in (("after", after), ("upto", upto)):
        if value is None and name == "upto":
            continue
        check_commit(name, value)


def check_commit(name: str, value: object, also: str = "") -> None:
    """Check that a value can be a commit_seq.

    Args:
        name: The argument that it was given as.
        value: The value.
        also: The words that say what else the argument may be.

    Raises:
        InvalidInput: It cannot.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        said = f"{name}={shown(value)}: give a commit_seq, which is an int{also}."
        raise InvalidInput(said, name=name)
    if not -1 <= value <= _COMMIT_SEQ_MAX:
        raise InvalidInput(
            f"{name}={shown(value)}: give a commit_seq, which is at least 0 and has at most 63 "
            "bits, or -1 for the state before the first commit.",
            name=name,
        )


def _to_come(name: str, commit_seq: int, newest: int) -> InvalidInput:
    return InvalidInput(
        f"{name}={shown(commit_seq)}: give at most {model.commit_seq(newest)}, the newest commit "
        "of this store.",
        name=name,
    )


def reversed_commits(after: int, upto: int) -> InvalidInput:
    """Make the error of two commits that are out of order."""
    return InvalidInput(
        f"upto={shown(upto)} comes before after={shown(after)}: give the earlier commit first.",
        name="upto",
    )


def _by_then(cache: Cache, timestamp: datetime.datetime) -> tuple[Past, int]:
    _check_instant("timestamp", timestamp)
    at_ms = min(max(by_then_ms(timestamp), FIRST_MS), LAST_MS)
    past, newest = _recorded_by(cache, at_ms)
    if newest.latest_ms > at_ms + CLOCKS_APART_MS:  # clocks contradict each other
        past = _known(cache.past(_last_by(past.stream(Order.COMMIT), at_ms)))
    return past, at_ms


def _recorded_by(cache: Cache, at_ms: int) -> tuple[Past, Newest]:
    """Find the history up to the last commit that was recorded by an instant, and its newest.

    A confirmation that waited for the next append was recorded before the rest of its commit.
    """
    upto, wanted = None, EntryFilter(recorded_upto_ms=at_ms)
    while True:
        commit_seq = cache.past(upto).newest(wanted).commit_seq
        past = _known(cache.past(commit_seq))
        newest = past.newest()
        if commit_seq < 0 or newest.recorded_at_ms <= at_ms:
            return past, newest
        upto = commit_seq - 1


def _last_by(entries: Iterable[Entry], at_ms: int) -> int:
    """Find the last commit by an instant that fewest clocks contradict (pure).

    A commit that was recorded later by a clock that is behind, or by a client that slept before
    its append, would otherwise move the end of every earlier day to today; one by a clock that is
    ahead moves nothing.

    Args:
        entries: The entries in commit order.
        at_ms: The instant.

    Returns:
        The commit_seq; -1 if the instant precedes the first commit.
    """
    best, contradicted = (0, 1), 0
    for commit_seq, found in groupby(entries, key=lambda entry: entry.commit_seq):
        recorded_at_ms = max(entry.recorded_at_ms for entry in found)
        if recorded_at_ms <= at_ms:
            contradicted -= 1
            best = min(best, (contradicted, -commit_seq))
        elif recorded_at_ms > at_ms + CLOCKS_APART_MS:
            contradicted += 1
    return -best[1]


def is_later(first: tuple[Past, int | None], last: tuple[Past, int | None]) -> bool:
    """Return whether one moment follows another; of two instants even without a commit between."""
    (begins, begins_ms), (ends, ends_ms) = first, last
    if begins_ms is not None and ends_ms is not None and begins_ms > ends_ms:
        return True
    return begins.upto > ends.upto


def is_to_come(first: tuple[Past, int | None], now: tuple[Past, int | None]) -> bool:
    """Return whether an instant is later than now, by more than clocks are apart."""
    (_, begins_ms), (_, now_ms) = first, now
    if begins_ms is None or now_ms is None:
        return False
    return begins_ms > now_ms + CLOCKS_APART_MS


def _known(past: Past) -> Past:
    past.check_known(past.upto)
    return past
