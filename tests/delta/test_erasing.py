"""What was erased is shown by no reader, and in no file once Delta has let go of the old ones."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow.parquet as pq
import pytest

import txnqueue
from tests.conftest import LONG
from tests.inside import client_of
from tests.reports.views_folding import quick_session
from txnqueue import QueueManager
from txnqueue.errors import InvalidInput, PayloadRemoved, StoreCorrupt
from txnqueue.storage.journal.tables import identifier
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, runtime

pytestmark = pytest.mark.spark
when_long = pytest.mark.skipif(not LONG, reason="what it needs of Delta is slow: TXNQUEUE_LONG=1")
SECRET = "Annegret-Kramp-4711"
DAY = 86_400


def tells(root: Path, text: str) -> dict[str, int]:
    """Count the files that tell a text: in their octets, or in what Parquet decodes of them."""
    found: dict[str, int] = {}
    for file in sorted(root.rglob("*")):
        if not file.is_file():
            continue
        inside = text.encode() in file.read_bytes()
        if file.suffix == ".parquet" and not inside:
            inside = text in str(pq.ParquetFile(file).read().to_pydict())
        if inside:
            kind = "log" if "_delta_log" in file.parts else "files"
            table = file.relative_to(root).parts[0]
            found[f"{table}: {kind}"] = found.get(f"{table}: {kind}", 0) + 1
    return found


def told(session: Any, view: str) -> list[tuple[Any, ...]]:
    """Read what a view says of each message."""
    rows = session.table(view).select("name", "n", "state", "message_id").collect()
    assert len({row["message_id"] for row in rows}) == len(rows)
    return sorted(((row["name"], row["n"], row["state"]) for row in rows), key=str)


@when_long
def test_every_reader_agrees_on_what_was_erased(spark: Any, tmp_path: Path) -> None:
    quick, root = quick_session(spark), str(tmp_path / "store")
    with QueueManager(quick, root) as manager:
        news = manager.create_exchange("news", "fanout", "name string, n long")
        done, waits = (
            manager.create_queue(name, "name string, n long", dead_letter=False)
            for name in ("done", "waits")
        )
        news.bind(done)
        news.bind(waits)
        people = [SECRET, "bert", SECRET, "carl"]
        sent = news.publish([{"name": name, "n": n} for n, name in enumerate(people)]).receipt
        done.receive(9).accept()
        manager.create_views("before_")
        erased = manager.erase("done", f"name = '{SECRET}'", reason="r")
        assert (erased.erased, erased.purged) == (2, 2)

        with pytest.raises(Exception, match="PayloadRemoved: payload was erased since"):
            quick.table("before_done").collect()
        manager.create_views("now_")
        manager.create_views("then_", as_of=sent.commit_seq)
        for statement in manager.view_statements("live_").values():
            quick.sql(statement)
        gone, left = [(None, None)] * 2, [("bert", 1), ("carl", 3)]
        for view in ("now_done", "live_done"):
            assert told(quick, view) == sorted(
                [(*row, "accepted") for row in (*gone, *left)], key=str
            ), view
        for view, state in (("now_waits", "purged"), ("live_waits", "purged"), ("then_done", None)):
            assert told(quick, view) == sorted(
                [
                    *((*row, state or "available") for row in gone),
                    *((*row, "available") for row in left),
                ],
                key=str,
            ), view

        store = txnqueue.look(root)
        assert [m["n"] for m in store.queue("waits").peek_messages()] == [1, 3]
        for then in (manager.history.as_of(sent.commit_seq), store.history.as_of(sent.commit_seq)):
            with pytest.raises(PayloadRemoved):
                then.messages("done").rows()
        verified = manager.history.verify()
        assert verified.ok, verified


def test_a_rehearsal_on_what_is_left_selects_among_it(spark: Any) -> None:
    manager = QueueManager(spark, "memory", store=MemoryStore(spark))
    queue = manager.create_queue("people", "name string, n long", dead_letter=False)
    people = [SECRET, "bert", SECRET, "carl"]
    sent = queue.send([{"name": name, "n": n} for n, name in enumerate(people)]).receipt
    queue.receive(9).accept()
    assert manager.erase("people", f"name = '{SECRET}'", reason="r").erased == 2
    seen: list[int] = []

    def handler(batch: Any, tx: Any) -> None:
        seen.extend(message["n"] for message in batch.messages())

    tried = manager.rehearse(handler, queue, sent.commit_seq, where="n > 1", partial=True)
    assert (tried.error, tried.messages, seen) == (None, 1, [3])


def test_headers_tell_what_is_meant_in_memory_too(spark: Any) -> None:
    manager = QueueManager(spark, "memory", store=MemoryStore(spark))
    queue = manager.create_queue("people", "n long", dead_letter=False)
    said: list[dict[str, str] | None] = [{"of": SECRET}, {"of": "bert"}, None]
    for n, headers in enumerate(said):
        queue.send([{"n": n}], headers=headers)
    done = manager.erase("people", f"_message.headers['of'] = '{SECRET}' OR n = 2", reason="r")
    assert (done.erased, done.purged) == (2, 2)
    assert [m["n"] for m in queue.receive(9).messages()] == [1]


@when_long
def test_nothing_is_left_in_the_files_after_the_vacuum(spark: Any, tmp_path: Path) -> None:
    root = tmp_path / "store"
    with QueueManager(spark, str(root), actor="clerk") as manager:
        queue = manager.create_queue("people", "name string, n long", message_id="name")
        others = manager.create_queue("others", "name string, n long", dead_letter=False)
        queue.send([{"name": SECRET, "n": 1}, {"name": "bert", "n": 2}])
        others.send([{"name": SECRET, "n": 1}, {"name": "carl", "n": 2}])
        kept = others.send([{"name": "dora", "n": 3}])
        others.receive(3).accept()
        (table,) = (root / "payload").glob("others*")
        before = {file.name for file in table.rglob("slice=*/*.parquet")}
        assert tells(root, SECRET) == {"payload: files": 2}
        done = manager.erase("others", f"name = '{SECRET}'", reason="request 7")
        assert (done.erased, done.purged, done.undecided) == (1, 0, 0)
        assert done.readable_until is not None
        after = {file.name for file in table.rglob("slice=*/*.parquet")}
        assert before < after  # the old file stays for now
        assert len(after - before) == 1
        assert tells(root, SECRET) == {"payload: files": 2}
        spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        try:
            spark.sql(f"VACUUM delta.{identifier(str(table))} RETAIN 0 HOURS").collect()
        finally:
            spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
        assert tells(table, SECRET) == {}
        assert tells(root, SECRET) == {"payload: files": 1}  # the other queue's
        assert manager.history.verify().ok
        steps = manager.history.trace(f"{kept.send_id}:0").rows()
        assert [step["step"] for step in steps] == ["sent", "claimed", "accepted"]


def test_no_file_of_the_newest_version_has_what_was_erased_though_its_user_wants_vectors(
    spark: Any, tmp_path: Path
) -> None:
    """A deletion vector would leave the rows in a file that stays for ever."""
    root = tmp_path / "store"
    with QueueManager(quick_session(spark), str(root)) as manager:
        queue = manager.create_queue("people", "name string, n long", dead_letter=False)
        (table,) = (root / "payload").iterdir()
        path = f"delta.{identifier(str(table))}"
        wanted = "'delta.enableDeletionVectors' = 'true'"
        spark.sql(f"ALTER TABLE {path} SET TBLPROPERTIES ({wanted})").collect()
        queue.send([{"name": SECRET, "n": 1}, {"name": "bert", "n": 2}])
        queue.receive(2).accept()
        payload: Any = client_of(manager).store.payload
        assert payload.removed_files(queue.info.payload_id) == 0
        assert manager.erase("people", f"name = '{SECRET}'", reason="r").erased == 1
        for file in spark.table(path).inputFiles():
            names = pq.ParquetFile(urlsplit(file).path).read()["name"].to_pylist()
            assert names == ["bert"], file
        assert payload.removed_files(queue.info.payload_id) == 1


@pytest.mark.parametrize("where", ["memory", *(["delta"] if LONG else [])])
def test_rows_of_queues_of_one_name_with_other_columns_are_found(
    spark: Any, tmp_path: Path, where: str
) -> None:
    quick = quick_session(spark)
    store: Any = MemoryStore(quick) if where == "memory" else None
    with QueueManager(quick, str(tmp_path / "store"), store=store) as manager:
        news = manager.create_exchange("news", "fanout", "name string, n long")
        old = manager.create_queue("people", "name string, n long", dead_letter=False)
        news.bind(old)
        for send in (old.send, news.publish):
            send([{"name": SECRET, "n": 1}, {"name": "bert", "n": 2}])
        manager.drop_queue("people")
        new = manager.create_queue("people", "person string, n long", dead_letter=False)
        new.send([{"person": SECRET, "n": 3}, {"person": "carl", "n": 4}])
        new.alter("note string")

        def traced(predicate: str) -> int:
            steps = manager.history.trace(queue="people", where=predicate).rows()
            return len({step["message_id"] for step in steps})

        either = f"name = '{SECRET}' OR person = '{SECRET}' OR note = '{SECRET}'"
        assert (traced(f"person = '{SECRET}'"), traced("n > 0"), traced(either)) == (1, 6, 3)
        for call in (traced, lambda predicate: manager.erase("people", predicate, reason="r")):
            for unknown in ("nowhere", "_send_offset", "_send_id", "_slice"):
                with pytest.raises(InvalidInput, match=unknown) as caught:
                    call(f"{unknown} = 1")
                assert "`_s" not in str(caught.value).partition("Did you mean")[2]
        assert manager.erase("people", f"person = '{SECRET}'", reason="r").erased == 1
        assert manager.erase("people", either, reason="r").erased == 2
        assert manager.history.verify().ok


class Everywhere:
    """A store with a word of its own in each place that may hold one."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.clock = Clock()
        self.root = folder / "store"
        self.totals = str(folder / "totals")
        self.words: dict[str, str] = {}
        self._spark = spark
        self._said = runtime(self.clock, "clerk")

    def word(self, place: str) -> str:
        """Make the word of a place."""
        return self.words.setdefault(place, f"secret-{len(self.words):02}-of-{place}")

    def manager(self) -> QueueManager:
        """Start a client."""
        return QueueManager(self._spark, str(self.root), runtime=self._said)

    def fill(self) -> None:
        """Send, publish, reject, move, copy, and change a table."""
        spark, word = self._spark, self.word
        spark.sql(f"CREATE TABLE delta.`{self.totals}` (name string, n long) USING delta")
        columns = "id string, name string, n long, about struct<city:string>, tags array<string>"
        row = {
            **{"id": word("message id"), "name": word("column"), "n": 0},
            **{"about": {"city": word("struct")}, "tags": [word("array")]},
            **{"h": word("header"), "k": word("routing key")},
        }
        frame = spark.createDataFrame([row], f"{columns}, h string, k string")
        options: dict[str, Any] = {"lease_seconds": 1.0, "lanes": 2}
        with self.manager() as manager:
            queue = manager.create_queue(
                "people", columns, message_id="id", group_by="name", **options
            )
            other = manager.create_queue("other", columns, dead_letter=False, **options)
            news = manager.create_exchange("news", "topic", columns)
            news.bind(other, "#")
            self._alter("'delta.checkpointInterval' = '2'")
            queue.send([{"id": "i1", "name": "c1", "n": 1}])
            queue.send(frame.drop("k"), header_columns={"h": "h"}, order_by="name")
            news.publish(frame, routing_key_column="k", header_columns={"h": "h"})
            with manager.transaction(word("transaction id")) as tx:
                batch = tx.queue("people").receive(1, where=f"name = '{word('column')}'")
                tx.table(self.totals).append([{"name": word("row of a table"), "n": 1}])
                tx.table(self.totals).delete(f"name = '{word('condition of a table')}'")
                batch.reject(reason=word("reason"))
            dead = manager.queue("people.dead")
            assert dead.redrive() == 1
            queue.receive(20).accept()
            other.receive(20).accept()
            other.resend(other.replay())

    def _alter(self, properties: str) -> None:
        for table in (self.root / "payload").iterdir():
            self._spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ({properties})")

    def leave(self) -> Path:
        """Leave a file behind as a driver does that is killed before its commit."""
        word = self.word("column")
        for file in (self.root / "payload").glob("people-*/slice=*/*.parquet"):
            if word in str(pq.ParquetFile(file).read().to_pydict()):
                left = file.with_name("part-00000-of-a-driver-that-was-killed.snappy.parquet")
                left.write_bytes(file.read_bytes())
                return left
        raise AssertionError("no file has it")

    def erase(self) -> None:
        """Erase, and let the files go that Delta keeps for those who read older versions."""
        with self.manager() as manager:
            wheres = {
                "people": f"name = '{self.word('column')}'",
                "other": f"_message.headers['h'] = '{self.word('header')}'",
            }
            for name, where in wheres.items():
                assert manager.erase(name, where, reason="r").undecided == 0
            self._alter("'delta.deletedFileRetentionDuration' = 'interval 1 seconds'")
            for _ in range(3):
                time.sleep(2)
                self.clock.advance(8 * DAY)
                done = manager.maintain(transaction_seconds_max=0, payload_retention_days=7)
                assert not [said for said in done.skipped if "payload" in said], done
            assert manager.history.verify().ok

    def found(self) -> dict[str, set[str]]:
        """Find where each word is: the table, and whether in its log or its files."""
        found: dict[str, set[str]] = defaultdict(set)
        for place, word in self.words.items():
            for where in tells(self.root, word):
                found[place].add(where)
        return found


ERASED = {"column", "struct", "array", "header", "message id", "routing key"}
STAYS = {"reason", "transaction id", "condition of a table"}
"""What the journal says for ever: docs/how-to/operator.md tells it."""


@when_long
def test_maintain_removes_what_was_erased_from_every_file_of_the_store(
    spark: Any, tmp_path: Path
) -> None:
    store = Everywhere(quick_session(spark), tmp_path)
    store.fill()
    before = store.found()
    print(dict(before))
    assert before.keys() == ERASED | STAYS | {"row of a table"}
    for place in ERASED - {"routing key"}:
        assert before[place] == {"payload: files"}, place
    assert any((store.root / "payload").glob("people-*/_delta_log/*.checkpoint*.parquet"))
    left = store.leave()
    store.erase()
    assert not left.exists()
    after = store.found()
    print(dict(after))
    # What was staged for a table goes with its slice: a thousand versions of the journal later.
    assert after.keys() == STAYS | {"row of a table"}
    assert after["row of a table"] == {"payload: files"}
    stays = {where for place in STAYS for where in after[place]}
    assert {where for where in stays if where.split(":")[0] not in ("journal", "archive")} <= {
        "payload: log"  # each commit names its transaction
    }


def test_a_damaged_file_that_a_predicate_meets_is_named(spark: Any, tmp_path: Path) -> None:
    """It was an error of Java, as that of a predicate that fails on the rows."""
    root = tmp_path / "a store"
    manager = QueueManager(spark, str(root))
    queue = manager.create_queue("people", "name string, n long")
    queue.send([{"name": SECRET, "n": n} for n in range(3)])
    held = queue.receive(1)
    calls: dict[str, Any] = {
        "erase": lambda where: manager.erase("people", where=where, reason="asked"),
        "trace": lambda where: manager.history.trace(queue="people", where=where),
        "receive": lambda where: queue.receive(1, where=where),
        "accept": lambda where: held.accept(where=where),
    }
    for call in calls.values():
        with pytest.raises(InvalidInput, match="SCALAR_SUBQUERY_TOO_MANY_ROWS"):
            call("n = (SELECT 1 UNION SELECT 2)")
    (file,) = (root / "payload" / queue.info.payload_id).rglob("part-*.parquet")
    file.with_name(f".{file.name}.crc").unlink()
    file.write_bytes(file.read_bytes()[:-8])
    for call in calls.values():
        with pytest.raises(StoreCorrupt, match=f"{file.name}.*put the file back"):
            call("n = 2")
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(b"no file of the store")
    with pytest.raises(Exception, match=r"bad\.parquet") as told:
        held.accept(where=f"n IN (SELECT n FROM parquet.`{bad}`)")
    assert not isinstance(told.value, StoreCorrupt)
