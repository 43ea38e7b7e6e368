"""What verifying counts, of entries that no store of today would have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.inside import client_of
from txnqueue.client.archive import Past
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.settings import QueueInfo, QueueSettings
from txnqueue.core.state import compaction
from txnqueue.reports.consistency import Landings, Manifests, Named, Numbers, Problems
from txnqueue.storage.journal import EntryFilter
from txnqueue.testing import Clock, MemoryStore, memory_manager

DAY = 24 * 3_600


def test_an_append_that_landed_twice_is_counted_once() -> None:
    landings, entry = Landings(), Entry("table/0", "t", "change_applied")
    for version, append_id in enumerate("abca"):
        for index in range(2):
            landings.see(replace(entry, append_id=append_id, version=version, index=index))
    (claim,) = landings.claims()
    assert (claim.found, claim.expected, claim.holds) == (3, 4, False)


def test_of_an_empty_history_nothing_landed_twice() -> None:
    assert all(claim.holds for claim in Landings().claims())


@pytest.mark.parametrize("gone", [0, 7, 63, 99])
def test_the_first_message_is_named_whose_row_is_missing(gone: int) -> None:
    manager = memory_manager()
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    for first in range(0, 100, 20):  # five sends
        queue.send([{"n": n} for n in range(first, first + 20)])
    ids = {message["n"]: message["_message"]["id"] for message in queue.peek_messages(100)}
    payload = client_of(manager).store.payload
    (number,) = payload.slices(queue.info.payload_id)
    send_id, _, offset = ids[gone].rpartition(":")
    payload.erase(queue.info.payload_id, [(number, send_id, ((int(offset), int(offset)),))])
    (problem,) = manager.history.verify().problems
    said = f"99 rows of payload are there in slice {number}, of 100"
    assert problem == f"queue orders: {said}; the first that is not there once is {ids[gone]}"


def test_a_compaction_holds_in_whatever_order_it_says_what_is_purged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Older versions had one in each process."""
    clock = Clock()
    manager = memory_manager(clock=clock)
    queue = manager.create_queue("orders", "n long", dead_letter=False, lease_seconds=7 * DAY)
    for n in range(3):
        queue.send([{"n": n}])
    assert len(queue.receive(3)) == 3
    assert queue.purge() == 0
    written = compaction._claim_to_json

    def otherwise(claim: Any) -> dict[str, Any]:
        said = written(claim)
        return {**said, "purging": said["purging"][::-1]}

    clock.advance(DAY)
    with monkeypatch.context() as older:
        older.setattr(compaction, "_claim_to_json", otherwise)
        manager.maintain(transaction_seconds_max=0)
    (entry,) = client_of(manager).store.journal.find(EntryFilter(kinds=[model.COMPACTED]))
    (said,) = entry.body["in_flight"]
    assert said["purging"] == said["items"][::-1]
    proof = manager.history.verify()
    assert proof.ok, str(proof)


def _decided(kind: str, append_id: str, **body: Any) -> Entry:
    return Entry("transaction/0", "k", kind, append_id=append_id, attempt="a", version=1, body=body)


SENT = {"posted": {"q": 2}, "settled": {}}
NOTHING: dict[str, Any] = {"posted": {}, "settled": {}}
POSTED = Entry("backlog/q", "lane/0", "posted", append_id="d", attempt="a", queue_id="q", count=2)


@pytest.mark.parametrize(
    ("entries", "is_right"),
    [
        ([_decided("committed", "d", manifest=SENT), POSTED], True),
        ([_decided("committed", "d", manifest=NOTHING)], True),
        ([_decided("committed", "d")], False),  # it was a rollback, which records no counts
        ([_decided("committed", "d", manifest=NOTHING), POSTED], False),
    ],
)
@pytest.mark.parametrize("prepared", [None, SENT, NOTHING])
def test_a_commit_did_what_it_says_and_what_was_prepared(
    entries: list[Entry], is_right: bool, prepared: Any
) -> None:
    problems = Problems()
    manifests = Manifests(-1, problems)
    for entry in [_decided("prepared", "p", manifest=prepared)] if prepared else []:
        manifests.see(entry)
    for entry in entries:
        manifests.see(entry)
    (claim,) = manifests.claims(0)
    is_right = is_right and prepared in (None, entries[0].body["manifest"])
    assert (claim.holds, bool(problems.told)) == (is_right, not is_right)


def lose(store: MemoryStore, *, shard: str, sequences: set[int]) -> int:
    """Take entries out of the journal and of Delta's log, which reaches back for some days only."""
    journal: Any = store.journal
    gone = {
        entry.entry_id
        for entry in journal.entries()
        if entry.shard.startswith(shard) and entry.sequence in sequences
    }
    for name, entries in list(journal._shards.items()):
        journal._shards[name] = [entry for entry in entries if entry.entry_id not in gone]
    journal.commits = [
        (tuple(entry for entry in entries if entry.entry_id not in gone), about)
        for entries, about in journal.commits
    ]
    return len(gone)


@pytest.mark.parametrize("sequences", [{1, 2}, {2}, {2, 3}])
def test_numbers_that_are_missing_are_found(sequences: set[int]) -> None:
    """A claim and its settlement were: their message was delivered a second time."""
    store, clock = MemoryStore(), Clock()
    queue = memory_manager(store, clock, "a").create_queue("orders", "n long")
    queue.send([{"n": 1}, {"n": 2}])
    for _ in range(2):
        queue.receive(1).accept()
    assert memory_manager(store, clock, "b").history.verify().ok
    assert lose(store, shard="lane/", sequences=sequences) == len(sequences)
    proof = memory_manager(store, clock, "c").history.verify()
    missing = f"{len(sequences)} numbers of the stream"
    assert any(missing in one and "missing before" in one for one in proof.problems), proof
    assert not proof.ok


@pytest.mark.parametrize(
    ("shard", "stream", "kind", "missed"),
    [
        (model.CATALOG, "name/orders", model.QUEUE_ALTERED, True),
        (model.CATALOG, "erased/orders", model.PAYLOAD_ERASED, True),
        (model.FENCE, "queue/orders", model.QUEUE_DROPPED, True),
        (model.FENCE, "layout", model.LAYOUT_CHANGED, False),  # a new store begins with the second
        (model.FENCE, "horizon", model.HORIZON_ADVANCED, False),
        (model.FENCE, "history", model.HISTORY_REMOVED, False),
        (model.CATALOG, "inventory", model.PAYLOAD_LISTED, False),
        ("lane/orders/0", "lane/0", model.CLAIMED, False),
    ],
)
def test_the_first_number_of_what_never_leaves_is_missed(
    shard: str, stream: str, kind: str, *, missed: bool
) -> None:
    problems = Problems()
    numbers = Numbers(9, problems)
    numbers.see(Entry(shard, stream, kind, sequence=2, version=5))
    assert bool(problems.told) == missed


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("lost", [None, "named", "claimed"])
def test_positions_that_the_log_of_a_lane_names_are_missed(
    lost: str | None, *, dropped: bool
) -> None:
    """They were posted, and are named, before what is known of the history."""

    def posted(name: str) -> Entry:
        return Entry.in_backlog("q", 0, model.POSTED, append_id=name, ranges=((0, 9),), version=1)

    def claimed(name: str, number: int, version: int) -> Entry:
        items = model.pack_items([((name, 0), ((0, 0),))])
        body = {"items": items[0]}
        return Entry.in_lane(
            "q", 0, model.CLAIMED, sequence=number, ranges=items[1], body=body, version=version
        )

    waiting = {"waiting": [["named", 0, [[0, 9, 0, 0]]]], "in_flight": []}
    problems = Problems()
    named = Named(9, problems)
    log = [
        claimed("gone", 1, 2),  # the compaction stands for it
        Entry.in_lane("q", 0, model.COMPACTED, sequence=2, body=waiting, version=3),
        claimed("claimed", 3, 4),
        claimed("new", 4, 9),  # this one is replayed
    ]
    if dropped:
        log.append(Entry(model.FENCE, "queue/q", model.QUEUE_DROPPED, queue_id="q", version=5))
    for entry in log:
        named.note(entry)
    for entry in [*(posted(name) for name in ("named", "claimed") if name != lost), *log]:
        named.see(entry)
    info = QueueInfo("orders", "q", "q", {}, 1, QueueSettings())
    named.end({"q": info}, [])
    told = f"lane 0 of q cannot be read: it names the position {(lost, 0)}, whose entry is lost"
    assert problems.told == ([told] if lost and not dropped else [])


def test_an_exchange_that_is_lost_is_a_finding_where_queues_are_bound_to_it() -> None:
    store = MemoryStore()
    manager = memory_manager(store)
    manager.create_queue("orders", "n long", dead_letter=False)
    events = manager.create_exchange("events", "fanout", "n long")
    events.bind("orders")
    events.publish([{"n": 1}])
    catalog = store.journal._shards[model.CATALOG]
    catalog[:] = [entry for entry in catalog if entry.kind != model.EXCHANGE_CREATED]
    proof = memory_manager(store).history.verify()
    assert any("'events'" in problem for problem in proof.problems), str(proof)


CLAIMS = EntryFilter(kinds={model.CLAIMED})


def test_numbers_of_history_that_was_removed_are_not_missed() -> None:
    store, clock = MemoryStore(), Clock()
    manager = memory_manager(store, clock, "a")
    queue = manager.create_queue("orders", "n long")
    for day in range(30):
        queue.send([{"n": day}])
        queue.receive(1).accept()
        clock.advance(DAY)
        manager.maintain(
            transaction_seconds_max=0, payload_retention_days=0, history_retention_days=3
        )
    auditor = memory_manager(store, clock, "b")
    proof = auditor.history.verify()
    assert proof.ok, proof
    first = min(entry.sequence or 0 for entry in Past(client_of(auditor).store).find(CLAIMS))
    assert first > 10, "no history was removed"
