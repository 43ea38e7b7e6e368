"""Journals that their users restored, cloned or replaced, and copies in a store's place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import txnqueue
from tests.conftest import LONG
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.errors import StoreCorrupt, StoreSetBack

pytestmark = pytest.mark.spark
AT_ONCE: Any = {"transaction_seconds_max": 0, "payload_retention_days": 0, "vacuum": False}


class Kept:
    """A store with a client that knows it."""

    def __init__(self, spark: Any, root: Path) -> None:
        self.spark, self.root, self.table = spark, root, f"delta.`{root}/journal`"
        self.manager = QueueManager(spark, str(root), actor="warm")
        self.queue = self.manager.create_queue("q", "i long", dead_letter=False)

    def send(self, *numbers: int) -> None:
        for number in numbers:
            self.queue.send([{"i": number}])

    def version(self) -> int:
        rows = self.spark.sql(f"DESCRIBE HISTORY {self.table} LIMIT 1").collect()
        return int(rows[0]["version"])

    def restore(self, version: int) -> None:
        self.spark.sql(f"RESTORE TABLE {self.table} TO VERSION AS OF {version}").collect()

    def fresh(self) -> QueueManager:
        return QueueManager(self.spark, str(self.root), actor="fresh")

    def numbers(self) -> list[int]:
        return [message["i"] for message in self.fresh().queue("q").peek_messages()]

    def refused(self, told: str, *calls: Callable[[], object]) -> None:
        for call in calls:
            with pytest.raises(StoreSetBack, match=told):
                call()


@pytest.fixture
def kept(spark: Any, tmp_path: Path) -> Kept:
    return Kept(spark, tmp_path / "store")


def test_a_restored_journal_is_refused_until_the_restore_is_undone(kept: Kept) -> None:
    kept.send(1)
    then = kept.version()
    kept.send(2)
    assert kept.queue.receive(1)
    newest = kept.version()
    kept.restore(then)
    root = str(kept.root)
    kept.refused(
        rf"RESTORE made version {newest + 1} .* TO VERSION AS OF {newest} makes it whole again",
        kept.queue.depth,
        lambda: kept.fresh().queue("q"),
        kept.fresh().history.verify,
        lambda: txnqueue.look(root).list_queues(),
    )
    kept.restore(newest)
    kept.refused("what was read before does not fit it", kept.queue.depth)
    assert kept.numbers() == [2] == [m["i"] for m in txnqueue.look(root).queue("q").peek_messages()]
    assert kept.fresh().queue("q").in_flight() == 1


def test_a_clone_of_the_journal_is_no_store(kept: Kept) -> None:
    clone = f"{kept.root}-clone"
    kept.spark.sql(f"CREATE TABLE delta.`{clone}/journal` SHALLOW CLONE {kept.table}").collect()
    kept.refused(
        "a clone has lost in which order entries came: copy the files instead",
        lambda: QueueManager(kept.spark, clone).list_queues(),
        lambda: txnqueue.look(clone).list_queues(),
    )


def test_an_older_copy_in_the_place_of_a_store_is_told(kept: Kept) -> None:
    """Without asking Spark, whose Delta remembers the table as it was."""
    older = kept.root.with_name("older")
    shutil.copytree(kept.root, older)
    kept.send(1, 2)
    known = kept.version()
    shutil.rmtree(kept.root)
    older.rename(kept.root)
    told = rf"ends at version \d, but was at {known} before"
    kept.refused(told, kept.queue.depth, lambda: kept.queue.receive(1))
    assert txnqueue.look(str(kept.root)).queue("q").depth() == 0


@pytest.mark.parametrize("more", [2, 3] if LONG else [2])
def test_an_older_copy_that_others_went_on_from_is_told(kept: Kept, more: int) -> None:
    """Its versions are as many as those that the driver knows, or more, and are others."""
    older = kept.root.with_name("older")
    shutil.copytree(kept.root, older)
    kept.send(1, 2)
    kept.queue.depth()
    other = QueueManager(kept.spark, str(older), actor="somebody else").queue("q")
    for number in range(more):
        other.send([{"i": number}])
    shutil.rmtree(kept.root)
    older.rename(kept.root)
    kept.refused("is another one than before", kept.queue.depth, lambda: kept.queue.receive(1))
    assert txnqueue.look(str(kept.root)).queue("q").depth() == more


@pytest.mark.skipif(not LONG, reason="twenty commits: in the long run")
def test_verify_names_what_was_taken_away_long_ago(kept: Kept) -> None:
    kept.send(1)
    then = kept.version()
    kept.send(2)
    kept.restore(then)
    kept.send(*range(10, 21))  # nobody who only sends reads what others wrote
    proof = kept.fresh().history.verify()
    told = f"RESTORE made version {then + 2} of the journal, which lacks what was committed since"
    assert any(problem.startswith(told) for problem in proof.problems), proof
    assert not proof.ok


@pytest.mark.skipif(not LONG, reason="a minute: in the long run")
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM {t} WHERE kind = 'claimed'",
        "UPDATE {t} SET reason = 'other' WHERE kind = 'posted'",
        "TRUNCATE TABLE {t}",
        "INSERT OVERWRITE {t} SELECT * FROM {t} WHERE kind != 'claimed'",
    ],
)
def test_entries_that_others_change_are_told(kept: Kept, statement: str) -> None:
    kept.send(1)
    kept.queue.receive(1)
    whole = kept.version()
    kept.spark.sql(statement.format(t=kept.table)).collect()
    kept.refused(
        f"TO VERSION AS OF {whole} makes it whole again",
        kept.queue.depth,
        lambda: kept.fresh().list_queues(),
        lambda: txnqueue.look(str(kept.root)).list_queues(),
    )
    kept.restore(whole)
    assert kept.fresh().queue("q").in_flight() == 1


@pytest.mark.skipif(not LONG, reason="a minute: in the long run")
def test_an_archive_that_was_taken_back_is_told_by_verify(kept: Kept) -> None:
    kept.send(1)
    kept.queue.receive(1).accept()
    kept.manager.maintain(**AT_ONCE)
    archive = f"delta.`{kept.root}/archive`"
    assert kept.fresh().history.verify().ok
    kept.spark.sql(f"RESTORE TABLE {archive} TO VERSION AS OF 0").collect()
    proof = kept.fresh().history.verify()
    assert not proof.ok
    wrong = {claim.claim for claim in proof.claims if not claim.holds}
    assert "entries deleted that the archive holds" in wrong


def told(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def test_a_schema_that_a_spoiled_file_tells_is_damage(kept: Kept) -> None:
    """Where a disk keeps no sums of its files, the first to stumble over it is Spark's parser."""
    kept.send(1)
    tables = {path.parent for path in kept.root.rglob("*.crc") if "send_offset" in told(path)}
    assert tables
    for log in tables:
        newest = max(path for path in log.glob("0*.crc"))
        newest.write_text(told(newest).replace('\\"type\\":\\"long\\"', '\\"type\\":\\"lonw\\"'))
        (log / f".{newest.name}.crc").unlink(missing_ok=True)
    kept.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    for call in (kept.fresh().history.verify, lambda: kept.fresh().queue("q").peek(1).collect()):
        with pytest.raises(StoreCorrupt, match="lonw"):
            call()


def test_an_append_while_the_version_is_asked_for_is_no_set_back(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another driver has written, so that the history is read; then this process writes, too."""
    journal: Any = client_of(kept.manager).store.journal
    kept.send(1)
    monkeypatch.setattr(journal._log, "is_newest", lambda version: False)
    read = journal._history.newest

    def newest(count: int) -> Any:
        found = read(count)
        kept.send(2)
        return found

    monkeypatch.setattr(journal._history, "newest", newest)
    told = journal.version()
    monkeypatch.undo()
    assert told < journal.version() and kept.numbers() == [1, 2]
