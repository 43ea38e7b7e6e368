"""The figures of an audit report are those of snapshots, metrics and lists at the same commits."""

from __future__ import annotations

import datetime
import errno
import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from txnqueue.errors import InvalidInput, QueueError
from txnqueue.manager import QueueManager
from txnqueue.reports.audit.figures import Moment
from txnqueue.reports.audit.work import EVENTS_MAX
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, memory_manager, plain_schema

FLOWS = ["posted", "accepted", "rejected", "dead_lettered", "purged", "moved", "duplicates"]


class Shop:
    """A store that much has happened in, by chance."""

    def __init__(self, seed: int, steps: int = 60) -> None:
        self.chance = random.Random(seed)
        self.clock, self.store = Clock(), MemoryStore()
        self.store.tables.create("gold", plain_schema("n long"))
        self.manager = self.client("a")
        self.others = [self.client("b"), self.client("c")]
        for name in ("orders", "payments"):
            self.manager.create_queue(
                name,
                "n long",
                lanes=2,
                deliveries_max=2,
                lease_seconds=30,
                redelivery_delay_seconds=20,
                dead_letter_expired=True,
            )
        for _ in range(steps):
            self.clock.advance(self.chance.choice([0, 1, 7, 40]))
            self.act()

    def client(self, name: str) -> QueueManager:
        """Start a client."""
        return memory_manager(self.store, self.clock, name)

    def act(self) -> None:
        """Do something to one of the queues."""
        client = self.chance.choice([self.manager, *self.others])
        queue: Any = client.queue(self.chance.choice(["orders", "payments"]))
        what = self.chance.choice(["send", "send", "delay", "ttl", "take", "take", "fail", "mixed"])
        rows = [{"n": n} for n in range(self.chance.randrange(1, 6))]
        if what == "send":
            queue.send(rows)
        elif what == "delay":
            queue.send(rows, delay_seconds=60)
        elif what == "ttl":
            queue.send(rows, ttl_seconds=30)
        elif what == "take":
            queue.receive(4).accept()
        elif what == "fail":
            queue.receive(3).modify()
        else:
            self.mixed(client, queue)

    def mixed(self, client: QueueManager, queue: Any) -> None:
        """Work in a transaction, or do what is rare."""
        rare = self.chance.randrange(6)
        if rare == 0:
            queue.purge(reason="closing down")
        elif rare == 1:
            queue.receive(2)  # and never come back
        elif rare == 2:
            queue.move("payments" if queue.name == "orders" else "orders", limit=2)
        else:
            with client.transaction() as tx:
                batch = queue.receive(5, transaction=tx)
                if len(batch):
                    batch.reject(matching=batch.messages()[:1], reason="negative", transaction=tx)
                tx.table("gold").append([{"n": 1}])
                if rare == 3:
                    tx.rollback("changed my mind")

    def commits(self) -> list[int]:
        """List every commit."""
        return sorted({row["commit_seq"] for row in self.manager.history.changes().rows()})


def counts(manager: QueueManager, commit_seq: int) -> dict[str, Any]:
    """Read what a snapshot counts, by queue."""
    snapshot = manager.history.as_of(commit_seq)
    return {row["queue"]: row for row in snapshot.counts().rows()}


@pytest.mark.parametrize("seed", range(6))
def test_a_point_of_a_queue_is_what_a_snapshot_says_of_that_commit(seed: int) -> None:
    shop = Shop(seed)
    report = shop.manager.history.report()
    looked = shop.chance.sample(report.figures.depths, 40)
    for point in looked:
        row = counts(shop.manager, point.commit_seq)[point.queue]
        names = ("available", "delayed", "in_flight", "purge_pending")
        assert {name: getattr(point, name) for name in names} == {n: row[n] for n in names}, point
        held = row["available"] + row["delayed"] + row["in_flight"] + point.expired
        assert point.messages == held
    assert len({point.commit_seq for point in looked}) > 10


@pytest.mark.parametrize("seed", range(6))
def test_the_difference_of_two_moments_is_that_of_their_snapshots(seed: int) -> None:
    shop = Shop(seed)
    commits = shop.commits()
    for _ in range(4):
        after, upto = sorted(shop.chance.sample(commits[5:], 2))
        report = shop.manager.history.report(after, upto, verify=False)
        before, then = counts(shop.manager, after), counts(shop.manager, upto)
        differences = {one.queue: one for one in report.figures.differences}
        assert differences.keys() == then.keys()
        for name, one in differences.items():
            wanted = {flow: then[name][flow] - before[name][flow] for flow in FLOWS}
            assert {flow: getattr(one, flow) for flow in FLOWS} == wanted
            came_and_went = one.posted - one.accepted - one.rejected - one.dead_lettered
            gone = one.expired + one.purged + one.moved + one.duplicates + one.dropped
            assert one.messages_before + came_and_went - gone == one.messages_after
        inside = {row["commit_seq"] for row in shop.manager.history.changes(after, upto).rows()}
        assert {event.commit_seq for event in report.figures.events} == inside


@pytest.mark.parametrize("seed", range(3))
def test_the_end_of_a_report_is_what_is_measured_now(seed: int) -> None:
    shop = Shop(seed)
    report = shop.manager.history.report(upto=datetime.datetime.now(datetime.timezone.utc))
    assert report.figures.last.commit_seq == shop.commits()[-1]
    shop.clock.now_ms = round(report.figures.last.at.timestamp() * 1000)
    newest = {point.queue: point for point in report.figures.depths}
    for row in shop.manager.metrics().rows():
        point = newest[row["queue"]]
        for name in ("messages", "available", "in_flight", "delayed", "expired"):
            assert getattr(point, name) == row[name]
        assert point.oldest_age_seconds == row["oldest_age_seconds"]
        lanes = [lane for lane in report.figures.lanes if lane.queue == row["queue"]]
        assert sum(lane.available for lane in lanes) == row["available"]
        assert sum(lane.delayed for lane in lanes) == row["delayed"]
    for queue in ("orders", "payments"):
        said = shop.manager.queue(f"{queue}.dead").dead_letters().rows()
        mine = [
            dict(one.count)
            for one in report.figures.dead_letters
            if one.dead_letter_queue == f"{queue}.dead"
        ]
        assert mine == said


def test_a_report_up_to_now_goes_by_the_clock_and_not_by_the_last_commit() -> None:
    clock = Clock()
    manager = memory_manager(MemoryStore(), clock)
    queue = manager.create_queue("q", "n long", dead_letter=False)
    queue.send([{"n": 1}], delay_seconds=60)
    last = queue.send([{"n": 2}], ttl_seconds=60).receipt
    assert last is not None
    clock.advance(61)
    (lane,) = manager.history.report(verify=False).figures.lanes
    assert (lane.available, lane.delayed, lane.oldest_age_seconds) == (1, 0, 61)
    (lane,) = manager.history.report(upto=last.commit_seq, verify=False).figures.lanes
    assert (lane.available, lane.delayed, lane.oldest_age_seconds) == (1, 1, 0)


@pytest.mark.parametrize("seed", range(3))
def test_events_and_attempts_are_those_of_the_lists(seed: int) -> None:
    shop = Shop(seed)
    history = shop.manager.history
    figures = history.report(verify=False).figures
    listed = [
        (row["commit_seq"], row["kind"], row["queue"], row["count"], row["table"])
        for row in history.changes().rows()
    ]
    assert [(e.commit_seq, e.kind, e.queue, e.count, e.table) for e in figures.events] == listed
    known = {row["attempt"]: row for row in history.as_of().transactions().rows()}
    assert {one.attempt for one in figures.attempts} == known.keys()
    for one in figures.attempts:
        row = known[one.attempt]
        assert (one.status, one.commit_seq) == (row["status"], row["commit_seq"])
    assert {one.actor for one in figures.runs} >= {"a", "b", "c"}
    consumed = sum(one.accepted for one in figures.differences)
    assert sum(run.accepted for run in figures.runs) == consumed


def test_a_change_of_a_table_is_followed_to_its_end() -> None:
    shop = Shop(0, steps=0)
    before = shop.commits()[-1]
    with shop.manager.transaction("close/9") as tx:
        tx.table("gold").append([{"n": 1}, {"n": 2}])
    applied = shop.manager.history.report(before, verify=False).figures.changes
    (change,) = applied
    assert (change.table, change.operation, change.rows) == ("gold", "append", 2)
    assert change.transaction_id == "close/9"
    assert (change.status, change.lag_seconds) == ("unconfirmed", None)
    shop.clock.advance(5)
    shop.manager.queue("orders").send(
        [{"n": 1}]
    )  # what is applied is recorded with what comes next
    figures = shop.manager.history.report(before, verify=False).figures
    assert [one.status for one in figures.changes] == ["applied"]
    assert figures.changes[0].lag_seconds == 0.0
    (table,) = figures.tables
    assert (table.decided, table.applied, table.unconfirmed) == (1, 1, 0)


def test_what_a_drain_did_is_told_by_its_run() -> None:
    shop = Shop(0, steps=0)
    orders = shop.manager.queue("orders")
    orders.send([{"n": n} for n in range(5)])
    orders.drain(lambda batch, tx: None, batch_size=3, run_id="night-7")
    figures = shop.manager.history.report(verify=False).figures
    (night,) = [run for run in figures.runs if run.run_id == "night-7"]
    assert (night.accepted, night.queues) == (5, ("orders",))
    assert {one.run_id for one in figures.attempts if "night" in one.transaction_id} == {"night-7"}
    job = shop.client("a")
    job._client.runtime.run_id = "job 8"
    job.queue("orders").send([{"n": 1}])
    (said,) = [
        run for run in job.history.report(verify=False).figures.runs if run.run_id == "job 8"
    ]
    assert said.sent == 1


def test_what_is_moved_in_a_transaction_is_not_received() -> None:
    shop = Shop(0, steps=0)
    job = shop.client("a")
    job._client.runtime.run_id = "tidy"
    job.queue("orders").send([{"n": n} for n in range(3)])
    with job.transaction() as tx:
        job.queue("orders").receive(1, transaction=tx)
        assert job.queue("orders").move("payments", transaction=tx) == 2
    figures = job.history.report(verify=False).figures
    (tidy,) = [run for run in figures.runs if run.run_id == "tidy"]
    assert (tidy.received, tidy.accepted) == (1, 1)


def test_what_an_operator_decided_is_on_record_until_it_is_forgotten() -> None:
    shop = Shop(0, steps=0)
    tx = shop.manager.transaction("bank/1")
    shop.manager.queue("orders").send([{"n": 1}], transaction=tx)
    tx.prepare()
    shop.client("boss").decide_heuristically("bank/1", commit=False, reason="the bank is gone")
    decided = shop.commits()[-1]
    (one,) = shop.manager.history.report(verify=False).figures.heuristics
    assert (one.transaction_id, one.decision, one.actor) == ("bank/1", "rolled_back", "boss")
    assert (one.reason, one.forgotten_at) == ("the bank is gone", None)
    shop.client("boss").forget("bank/1")
    (one,) = shop.manager.history.report(decided, verify=False).figures.heuristics
    assert one.forgotten_by == "boss"
    forgotten = shop.commits()[-1]
    shop.manager.queue("orders").send([{"n": 1}])
    assert shop.manager.history.report(forgotten, verify=False).figures.heuristics == ()


def test_a_dropped_queue_took_its_messages_with_it() -> None:
    shop = Shop(0, steps=0)
    queue = shop.manager.queue("orders")
    queue.send([{"n": n} for n in range(7)])
    before = shop.commits()[-1]
    queue.drop(reason="not needed")
    figures = shop.manager.history.report(before, verify=False).figures
    (one,) = [line for line in figures.differences if line.queue == "orders"]
    assert (one.messages_before, one.dropped, one.messages_after) == (7, 7, 0)
    assert (one.posted, one.accepted, one.there) == (0, 0, False)


def test_dead_letters_are_told_whatever_became_of_where_they_came_from() -> None:
    manager = memory_manager()
    orders = manager.create_queue("orders", "n long")
    orders.send([{"n": 1}, {"n": 2}])
    orders.receive(2).reject(reason="negative")
    manager.create_queue("lost", "n long", dead_letter=False)
    news = manager.create_exchange(
        "news", "direct", "n long", unroutable="dead_letter", dead_letter_queue="lost"
    )
    news.publish([{"n": 3}], routing_key="nobody")

    def told() -> list[tuple[str, int]]:
        found = manager.history.report(verify=False).figures.dead_letters
        return [(one.dead_letter_queue, one.count["waiting"]) for one in found]

    assert told() == [("orders.dead", 2), ("lost", 1)]
    orders.drop()
    news.drop()
    assert told() == [("orders.dead", 2), ("lost", 1)]


def test_why_messages_in_flight_were_purged_is_among_the_causes() -> None:
    manager = memory_manager()
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}, {"n": 2}, {"n": 3}])
    held = queue.receive(2)
    queue.purge(reason="recalled")
    held.release()
    figures = manager.history.report(verify=False).figures
    assert [line.purged for line in figures.differences] == [3]
    assert {(one.kind, one.reason, one.messages) for one in figures.causes} == {
        ("purged", "recalled", 1),
        ("purge_pending", "recalled", 2),
    }


def test_payload_is_shown_only_if_it_is_asked_for() -> None:
    shop = Shop(0, steps=0)
    shop.manager.queue("orders").send([{"n": 4_711_000 + n} for n in range(9)])
    batch = shop.manager.queue("orders").receive(9)
    batch.reject(reason="negative")
    without = shop.manager.history.report(verify=False)
    assert "4711" not in without.json()
    asked = shop.manager.history.report(verify=False, payload=True)
    (cause,) = asked.figures.dead_letters
    dead = {one["_message"]["id"] for one in shop.manager.queue("orders.dead").peek_messages(9)}
    assert len(cause.message_ids) == len(cause.payload) == 5
    assert {*cause.message_ids} <= dead
    assert [row["_message"]["id"] for row in cause.payload] == [*cause.message_ids]
    assert all(row["n"] >= 4_711_000 for row in cause.payload)


def test_moments_that_cannot_be_are_refused() -> None:
    shop = Shop(1, steps=10)
    commits = shop.commits()
    history = shop.manager.history
    with pytest.raises(InvalidInput, match="earlier moment first"):
        history.report(commits[-1], commits[0])
    with pytest.raises(InvalidInput, match="newest commit"):
        history.report(upto=commits[-1] + 10_000)
    with pytest.raises(InvalidInput, match="time zone"):
        history.report(datetime.datetime(2026, 1, 1))
    now = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=36_500)
    later = now + datetime.timedelta(hours=4)
    with pytest.raises(InvalidInput, match="earlier moment first"):
        history.report(later, now, verify=False)  # also when no commit lies between
    assert history.report(now, later, verify=False).figures.events == ()
    with pytest.raises(InvalidInput, match="still to come") as told:
        history.report(later, verify=False)  # of a mistyped year it said that nothing happened
    assert told.value.name == "after"
    moment = history.report(verify=False).made_at
    ahead = history.report(moment + datetime.timedelta(minutes=59), verify=False)
    assert ahead.figures.events == ()  # as far as that it may be the clock of another client
    empty = history.report(commits[-1], commits[-1], verify=False).figures
    assert (empty.events, empty.runs, empty.attempts) == ((), (), ())
    assert all(one.messages_before == one.messages_after for one in empty.differences)


def test_a_report_is_json_and_holds_the_proof() -> None:
    shop = Shop(2)
    report = shop.manager.history.report()
    assert report.proof is not None and report.proof.ok
    said = json.loads(report.json())
    assert said["figures"]["last"]["commit_seq"] == shop.commits()[-1]
    assert "Nothing was removed from the history" in report.html()
    assert repr(report) == f"<AuditReport of memory after commit -1 up to {shop.commits()[-1]}>"


def test_a_page_replaces_another_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Shop(1, steps=5).manager.history.report(verify=False)
    page, link = tmp_path / "audit.html", tmp_path / "newest.html"
    page.write_text("the page of yesterday")
    page.chmod(0o640)
    link.symlink_to(page)
    write = Path.write_bytes

    def fill_the_disk(file: Path, content: bytes) -> int:
        write(file, content[:100])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", fill_the_disk)
        with pytest.raises(InvalidInput, match="No space left"):
            report.save(page)
    assert page.read_text() == "the page of yesterday"
    assert {*tmp_path.iterdir()} == {page, link}
    assert report.save(link) == link
    assert page.read_text(encoding="utf-8") == report.html()
    assert link.is_symlink() and page.stat().st_mode & 0o777 == 0o640
    assert {*tmp_path.iterdir()} == {page, link}


def test_what_is_no_regular_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    report = Shop(1, steps=5).manager.history.report(verify=False)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(pipe.read_text, encoding="utf-8")
        report.save(pipe)
        assert read.result() == report.html()
    assert pipe.is_fifo() and {*tmp_path.iterdir()} == {pipe}


@pytest.mark.parametrize("path", ["", "missing/audit.html", "audit\0.html", "a" * 300, 5, None])
def test_a_page_that_cannot_be_written_is_refused(
    path: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    report = Shop(1, steps=5).manager.history.report(verify=False)
    with pytest.raises(InvalidInput, match=r"^path="):
        report.save(path)
    assert not [*tmp_path.iterdir()]


def test_what_was_removed_from_the_history_is_the_first_moment() -> None:
    shop = Shop(3)
    for _ in range(12):
        shop.clock.advance(86_400)
        for _ in range(4):
            shop.act()
        shop.manager.maintain(
            transaction_seconds_max=60, payload_retention_days=1, history_retention_days=2
        )
    horizon = shop.manager.history.horizon()
    assert horizon > 1 << 10
    report = shop.manager.history.report()
    assert report.figures.first == Moment(horizon - 1, None)
    assert report.figures.beginning == horizon
    assert f"What was before commit {horizon} was removed" in report.html()
    assert shop.manager.history.report(horizon, verify=False).figures.first.at is not None
    assert min(point.commit_seq for point in report.figures.depths) >= horizon
    then = counts(shop.manager, report.figures.last.commit_seq)
    for one in report.figures.differences:
        assert one.accepted == then[one.queue]["accepted"]
        assert one.messages_before + one.posted == then[one.queue]["posted"]
    with pytest.raises(QueueError):
        shop.manager.queue("nothing")


@pytest.mark.skipif(not LONG, reason="two minutes: in the long run")
def test_a_hundred_thousand_events_are_figures_in_a_minute(busy: QueueManager) -> None:
    started = time.monotonic()
    figures = busy.history.report(verify=False).figures
    seconds = time.monotonic() - started
    assert seconds < 60
    assert len(figures.events) == EVENTS_MAX
    assert figures.events_left_out == len(busy.history.changes().rows()) - EVENTS_MAX > 0
    (one,) = [line for line in figures.differences if line.queue == "orders"]
    assert one.posted == one.messages_after == 100_000
    assert figures.depth_every_versions == 5
    assert len([point for point in figures.depths if point.queue == "orders"]) <= 252
    exact = figures.depths[len(figures.depths) // 2]
    assert counts(busy, exact.commit_seq)[exact.queue]["available"] == exact.available


@pytest.mark.spark
@pytest.mark.skipif(not LONG, reason="the auditor's page of the documentation makes one on Delta")
def test_on_delta_the_figures_are_those_of_the_snapshot(spark: Any, tmp_path: Path) -> None:
    manager = QueueManager(spark, str(tmp_path / "store"), actor="night")
    orders = manager.create_queue("orders", "n long")
    orders.send([{"n": n} for n in range(5)])
    closed = manager.history.as_of().commit_seq
    with manager.transaction("close/1") as tx:
        batch = orders.receive(4, transaction=tx)
        batch.reject(matching=batch.messages()[:1], reason="negative", transaction=tx)
    report = manager.history.report(closed, payload=True)
    assert report.proof is not None and report.proof.ok
    then = counts(manager, report.figures.last.commit_seq)
    for one in report.figures.differences:
        held = then[one.queue]
        assert one.messages_after == held["available"] + held["delayed"] + held["in_flight"]
        assert one.accepted == held["accepted"] and one.rejected == held["rejected"]
    (cause,) = report.figures.dead_letters
    assert [row["n"] for row in cause.payload] == [0] and cause.count["reason"] == "negative"
    assert [one.transaction_id for one in report.figures.attempts] == ["close/1"]
    assert "close/1" in report.html()
