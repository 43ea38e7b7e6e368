"""A digest that is kept elsewhere finds what was changed in the history."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.conftest import World, on_delta_when_long, rows
from tests.inside import client_of
from txnqueue import HistoryDigest
from txnqueue.core.model import Entry
from txnqueue.errors import HistoryRemoved, InvalidInput
from txnqueue.reports.digest import canonical
from txnqueue.storage.store import MemoryStore

DAY = 24 * 3600
KEPT: Any = {"transaction_seconds_max": 0, "payload_retention_days": 0, "vacuum": False}
Kept = dict[tuple[str, tuple[str, int]], Entry]


@pytest.fixture(params=["memory", pytest.param("delta", marks=pytest.mark.spark)])
def world(request: pytest.FixtureRequest, tmp_path: Any) -> World:
    """A store of its own, whose clock is turned by days."""
    if request.param == "memory":
        return World(MemoryStore())
    return World(None, request.getfixturevalue("spark"), str(tmp_path / "store"))


@pytest.fixture
def memory() -> World:
    """A store in memory of its own: its entries can be tampered with."""
    return World(MemoryStore())


def consume(queue: Any, *sent: int) -> None:
    """Send messages, and accept them outside and inside of a transaction."""
    queue.send(rows(*sent))
    queue.receive(1).accept(reason="zoë")
    queue.receive(len(sent)).accept()


def archived(world: World) -> tuple[Kept, HistoryDigest]:
    """Take a digest, archive what it covers, and return the archive."""
    queue, keeper = world.queue(lanes=1), world.manager("keeper")
    consume(queue, 1, 2, 3)
    kept = keeper.history.digest()
    keeper.maintain(**KEPT)
    archive: Kept = client_of(keeper).store.journal.archive.kept  # type: ignore[attr-defined]
    here = {e.entry_id for e in client_of(keeper).store.journal.read_all().entries}
    only = {name: entry for name, entry in archive.items() if name[1] not in here}
    assert len(only) > 3, "nothing left the journal: there is nothing to tamper with"
    assert keeper.history.verify(digest=kept).ok
    return archive, kept


@on_delta_when_long
def test_maintenance_does_not_change_it_and_it_continues(world: World) -> None:
    queue, keeper = world.queue(lanes=1), world.manager("keeper")
    consume(queue, 1, 2, 3)
    first = keeper.history.digest()
    before = keeper.history.digest()
    assert before == first
    assert keeper.maintain(**KEPT).archived
    consume(queue, 4, 5)
    history = world.manager("auditor").history
    assert history.digest(first.commit_seq) == first
    whole, later = history.digest(), history.digest(after=first)
    assert later.sha256 == whole.sha256 != first.sha256
    assert later.entries == whole.entries - first.entries > 0
    assert HistoryDigest.parse(str(later)) == later
    for kept in (first, str(first), whole, str(later)):
        assert history.verify(digest=kept).ok, history.verify(digest=kept)


def _changed(archive: Kept) -> None:
    name = next(name for name, entry in archive.items() if entry.actor)
    archive[name] = replace(archive[name], actor=(archive[name].actor or "") + "!")


def _removed(archive: Kept) -> None:
    del archive[sorted(archive)[0]]


def _inserted(archive: Kept) -> None:
    name = sorted(archive)[0]
    forged = replace(archive[name], append_id="forged")
    archive[name[0], forged.entry_id] = forged


def _exchanged(archive: Kept) -> None:
    first = min(archive, key=lambda name: archive[name].place)
    last = max(archive, key=lambda name: archive[name].place)
    one, two = archive[first].version, archive[last].version
    assert one != two
    swap = {one: two, two: one}
    for name, entry in list(archive.items()):
        archive[name] = replace(entry, version=swap.get(entry.version, entry.version))


@pytest.mark.parametrize("tamper", [_changed, _removed, _inserted, _exchanged])
def test_tampering_is_found(memory: World, tamper: Callable[[Kept], None]) -> None:
    archive, kept = archived(memory)
    tamper(archive)
    history = memory.manager("auditor").history
    found = history.verify(digest=kept)
    assert not found.ok
    assert not next(c for c in found.claims if c.claim == "digests that match").holds
    assert any("not those of the digest" in problem for problem in found.problems)
    assert history.digest(kept.commit_seq).sha256 != kept.sha256


@pytest.mark.spark
def test_a_merge_into_the_journal_is_found(spark: Any, tmp_path: Any) -> None:
    world = World(None, spark, str(tmp_path / "store"))
    consume(world.queue(lanes=1), 1, 2)
    kept = world.manager("auditor").history.digest()
    assert world.manager("auditor").history.verify(digest=kept).ok
    spark.sql(
        f"MERGE INTO delta.`{tmp_path}/store/journal` USING (SELECT 'zoë' AS name) "
        "ON reason = name WHEN MATCHED THEN UPDATE SET reason = 'eve'"
    )
    history = world.manager("asking").history
    found = history.verify(digest=kept)
    assert "digests that match" in {claim.claim for claim in found.claims if not claim.holds}
    assert history.digest(kept.commit_seq).sha256 != kept.sha256


def test_a_second_copy_that_says_something_else_is_found(memory: World) -> None:
    archive, _ = archived(memory)
    history = memory.manager("auditor").history
    journal = client_of(memory.manager("auditor")).store.journal
    entry = next(one for one in journal.read_all().entries if one.kind == "compacted")
    kept = history.digest()
    archive["2000-01-01", entry.entry_id] = entry  # as while it is being moved
    assert history.verify(digest=kept).ok and history.digest() == kept
    archive["2000-01-01", entry.entry_id] = replace(entry, actor="somebody")
    assert history.digest(kept.commit_seq).sha256 != kept.sha256
    assert not history.verify(digest=kept).ok


def test_a_second_copy_in_the_archive_that_says_something_else_is_found(memory: World) -> None:
    archive, kept = archived(memory)
    (_, name), entry = next(iter(archive.items()))
    archive["2000-01-01", name] = replace(entry, actor="somebody")
    history = memory.manager("auditor").history
    assert history.digest(kept.commit_seq).sha256 != kept.sha256
    assert not history.verify(digest=kept).ok


def test_a_store_that_ends_before_the_digest_is_told(memory: World) -> None:
    history = memory.manager("a").history
    consume(memory.queue(lanes=1), 1, 2)
    kept = history.digest()
    beyond = replace(kept, commit_seq=kept.commit_seq + (100 << 10))
    found = history.verify(digest=beyond)
    assert not found.ok
    assert "before the digest's commit" in found.problems[-1]


def test_a_digest_of_removed_history_is_refused_and_a_continued_one_is_not(memory: World) -> None:
    queue, keeper = memory.queue(lanes=1), memory.manager("keeper")
    for number in (1, 4):
        consume(queue, number, number + 1)
        keeper.maintain(**KEPT)
        memory.clock.advance(2 * DAY)
    history, old = keeper.history, keeper.history.digest()
    consume(queue, 7, 8)
    later = history.digest(after=old)
    assert keeper.maintain(**KEPT, history_retention_days=1).forgotten
    assert old.after < history.horizon() <= later.after + 1
    for refuse in (lambda: history.verify(digest=old), history.digest):
        with pytest.raises(HistoryRemoved) as refused:
            refuse()
        assert refused.value.commit_seq == history.horizon()
    assert history.verify(digest=later).ok
    fresh = history.digest(after=history.horizon() - 1)
    assert history.verify(digest=fresh).ok


def test_what_is_no_digest_is_refused(memory: World) -> None:
    history = memory.manager("a").history
    memory.queue(lanes=1)
    kept = history.digest()
    for wrong in ("", "txnqueue-1:", str(kept)[:-1], str(kept) + "0"):
        with pytest.raises(InvalidInput):
            history.verify(digest=wrong)
    for after in (True, -2, kept.commit_seq + 1, 1.5):
        with pytest.raises(InvalidInput):
            history.digest(after=after)  # type: ignore[arg-type]
    now = datetime.datetime.now(datetime.timezone.utc)
    for commit_seq in (kept.commit_seq + (1 << 20), True, 1.5, now):
        with pytest.raises(InvalidInput):
            history.digest(commit_seq)  # type: ignore[arg-type]


def test_every_value_of_an_entry_counts_and_absent_ones_do_not() -> None:
    entry = Entry("s", "t", "k", append_id="a", ranges=((0, 1),), body={"b": [1]}, version=3)
    others: list[dict[str, Any]] = [
        {"shard": "x"}, {"stream": "x"}, {"kind": "x"}, {"sequence": 0}, {"append_id": "x"},
        {"ordinal": 1}, {"index": 1}, {"transaction_key": ""}, {"attempt": "x"}, {"begun": 0},
        {"queue_id": "x"}, {"lane": 0}, {"claim_lane": 0}, {"claim_sequence": 0},
        {"ranges": ((0, 2),)}, {"count": 0}, {"reason": ""}, {"actor": "x"}, {"run_id": "x"},
        {"recorded_at_ms": 1}, {"body": {"b": [2]}}, {"version": 4},
    ]  # fmt: skip
    assert {name for other in others for name in other} == set(Entry.__dataclass_fields__)
    written = {canonical(replace(entry, **other)) for other in others}
    assert len(written | {canonical(entry)}) == len(others) + 1
