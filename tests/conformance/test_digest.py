"""A digest that is kept elsewhere finds what was changed in the history."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance.conftest import BOTH_STORES, World, on_delta_when_long, own_world, rows
from tests.conftest import LONG
from tests.inside import client_of
from txnqueue import HistoryDigest
from txnqueue.core.model import Entry
from txnqueue.errors import HistoryRemoved, InvalidInput, StoreCorrupt
from txnqueue.reports.digest import canonical
from txnqueue.storage.store import MemoryStore

DAY = 24 * 3600
KEPT: Any = {"transaction_seconds_max": 0, "payload_retention_days": 0, "vacuum": False}
Kept = dict[tuple[str, tuple[str, int]], Entry]


@pytest.fixture(params=BOTH_STORES)
def world(request: pytest.FixtureRequest, tmp_path: Any) -> World:
    """A store of its own, whose clock is turned by days."""
    return own_world(request, tmp_path)


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
@pytest.mark.skipif(not LONG, reason="what is found does not depend on who changed it")
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


def journal_of(world: World) -> Any:
    return client_of(world.manager("auditor")).store.journal


def _copied(journal: Any) -> None:
    entry = next(one for one in journal.entries() if one.kind == "posted")
    journal._shards[entry.shard].append(entry)


def _before_the_first(journal: Any) -> None:
    entry = next(iter(journal.archive.kept.values()))
    early = replace(entry, append_id="forged", version=-2)
    journal.archive.kept["2000-01-01", early.entry_id] = early


def _by_another_number(journal: Any) -> None:
    last = max(entry.version for entry in journal.entries())
    for found in journal._shards.values():
        found[:] = [
            replace(entry, version=last - 1, ordinal=1024) if entry.version == last else entry
            for entry in found
        ]


def _in_doubt(journal: Any) -> None:
    """A transaction that nobody prepared, excused by history that nobody removed."""
    used = {entry.version for entry in (*journal.entries(), *journal.archive.kept.values())}
    free = next(n for n in range(1, journal.version()) if n not in used)
    told: Any = {"manifest": {"posted": {}, "settled": {}, "entries": []}}
    forged = Entry("transaction/0", "k", "prepared", append_id="f", version=free, body=told)
    journal.archive.kept["2000-01-01", forged.entry_id] = replace(forged, attempt="x")
    mark = Entry("fence", "history", "history_removed", append_id="g", begun=0)
    journal.commits.append(((), {}))
    journal._shards["fence"].append(replace(mark, version=journal.version()))


@pytest.mark.parametrize("tamper", [_copied, _before_the_first, _by_another_number, _in_doubt])
def test_what_only_some_queries_would_find_is_found(
    memory: World, tamper: Callable[[Any], None]
) -> None:
    _, kept = archived(memory)
    memory.open(memory.queue("more"), "b").send(rows(1))
    kept = memory.manager("auditor").history.digest()
    journal = journal_of(memory)
    tamper(journal)
    history = memory.manager("asking").history
    assert history.digest(kept.commit_seq).sha256 != kept.sha256
    assert not history.verify(digest=kept).ok
    if tamper is not _in_doubt:
        assert history.verify().problems


def test_a_copy_whose_body_only_compares_equal_is_an_entry_of_its_own(memory: World) -> None:
    archive, kept = archived(memory)
    (_, name), entry = next((n, e) for n, e in archive.items() if e.body.get("v") == 1)
    archive["2000-01-01", name] = replace(entry, body={**entry.body, "v": True})
    assert memory.manager("auditor").history.digest(kept.commit_seq).sha256 != kept.sha256


def test_an_archive_of_a_store_that_has_archived_nothing_is_told(memory: World) -> None:
    consume(memory.queue(lanes=1), 1, 2)
    history, journal = memory.manager("auditor").history, journal_of(memory)
    kept = history.digest()
    journal.archive.create()
    assert history.verify(digest=kept).ok
    forged = replace(max(journal.entries(), key=lambda one: one.place), append_id="forged")
    journal.archive.kept["2000-01-01", forged.entry_id] = forged
    (problem,) = history.verify(digest=kept).problems
    assert "nothing was archived" in problem
    with pytest.raises(StoreCorrupt):
        history.digest()


@pytest.mark.parametrize("call", ["verify", "digest"])
def test_the_first_archiving_may_come_while_it_is_looked_for(memory: World, call: str) -> None:
    consume(memory.queue(lanes=1), 1, 2)
    auditor, keeper = memory.manager("auditor"), memory.manager("keeper")
    archive: Any = client_of(auditor).store.journal.archive
    newest = archive.newest

    def too_early(wanted: Any) -> Any:
        archive.newest = newest
        try:
            return newest(wanted)
        finally:
            keeper.maintain(**KEPT)

    archive.newest = too_early
    found: Any = getattr(auditor.history, call)()
    assert archive.kept
    assert found.ok if call == "verify" else found == auditor.history.digest(found.commit_seq)


def test_entries_of_commits_that_are_to_come_are_told(memory: World) -> None:
    consume(memory.queue(lanes=1), 1, 2)
    history, journal = memory.manager("auditor").history, journal_of(memory)
    entry = next(one for one in journal.entries() if one.kind == "posted")
    far = replace(entry, append_id="forged", version=1_000_000)
    journal._shards[entry.shard].append(far)
    (problem,) = history.verify().problems
    assert f"the journal has commit {far.commit_seq}" in problem


def test_a_continued_digest_is_checked_from_where_it_begins(memory: World) -> None:
    archive, first = archived(memory)
    consume(memory.queue("more"), 4, 5)
    history = memory.manager("auditor").history
    later = history.digest(after=first)
    _changed(archive)
    assert history.verify(digest=later).ok
    assert not history.verify(digest=first).ok
    claims = [one.claim for one in history.verify(digest=later).claims]
    assert f"entries after {first.commit_seq} that the digest covers" in claims


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
    other_digits = str(kept).replace(f":{kept.entries}:", ":\N{ARABIC-INDIC DIGIT ONE}:")
    for wrong in ("", other_digits, "txnqueue-1:", str(kept)[:-1], str(kept) + "0"):
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
