"""What came into a queue after a commit, beside maintenance that removes what is old."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import World, rows
from tests.inside import client_of
from txnqueue import Queue
from txnqueue.client.archive import Past
from txnqueue.errors import HistoryRemoved
from txnqueue.reports.postings import last_posting, postings
from txnqueue.storage.store import MemoryStore

DAY = 24 * 3600


@pytest.fixture
def world() -> World:
    return World(MemoryStore())


def known(world: World, queue: Queue) -> Past:
    return Past(client_of(world.manager("reader")).store)


def came(world: World, queue: Queue, after: int) -> list[tuple[int, int]]:
    found = postings(known(world, queue), queue.info, after)
    return [(one.commit_seq, len(one)) for one in found]


def maintain(world: World, **days: Any) -> Any:
    return world.manager("keeper").maintain(
        transaction_seconds_max=60, payload_retention_days=1, vacuum=False, **days
    )


def test_each_commit_is_told_once_whatever_became_of_its_messages(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    first = queue.send(rows(1, 2)).receipt
    queue.receive(1).accept()
    second = queue.send(rows(3)).receipt
    other.send(rows(9))
    assert first is not None and second is not None
    whole = [(first.commit_seq, 2), (second.commit_seq, 1)]
    assert came(world, queue, -1) == whole
    assert came(world, queue, first.commit_seq) == whole[1:]
    assert came(world, queue, second.commit_seq) == []
    assert last_posting(known(world, queue), queue.info) == second.commit_seq
    queue.receive().accept()
    for _ in range(3):
        world.clock.advance(DAY)
        maintain(world)
    assert came(world, queue, -1) == whole  # they are in the archive


def test_what_was_removed_from_the_history_is_never_a_silent_gap(world: World) -> None:
    queue = world.queue()
    queue.send(rows(1))
    behind = last_posting(known(world, queue), queue.info)
    queue.send(rows(2))
    queue.receive().accept()
    seen = [last_posting(known(world, queue), queue.info)]
    for _ in range(5):
        world.clock.advance(DAY)
        maintain(world, history_retention_days=2)
        seen.append(last_posting(known(world, queue), queue.info))
    assert seen == sorted(seen) and seen[-1] > seen[0]
    assert world.manager("reader").history.horizon() > behind
    with pytest.raises(HistoryRemoved):
        came(world, queue, behind)
    assert came(world, queue, seen[-1]) == []  # who asked now and then is not behind
    sent = queue.send(rows(3)).receipt
    assert sent is not None
    assert came(world, queue, seen[-1]) == [(sent.commit_seq, 1)]
