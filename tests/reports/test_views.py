"""The views say in SQL what the fold says in Python, at every commit."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F

from tests.conftest import LONG
from tests.delta.counting import Cost
from tests.faults.pasts import everything
from tests.inside import client_of
from tests.reports.views_folding import (
    FAR_FUTURE_MS,
    STATES,
    per_state,
    plain_types,
    quick_session,
    replay,
    shown,
)
from txnqueue import QueueManager
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.planning import Plan
from txnqueue.core.settings import QueueInfo, QueueSettings
from txnqueue.core.state import catalog
from txnqueue.errors import InvalidInput, InvalidName, PlatformMissing, StoreNotFound
from txnqueue.reports import views
from txnqueue.storage.journal.tables import TableNames
from txnqueue.testing import Clock, memory_manager, runtime

# ---------------------------------------------------------------------------- a whole store


@pytest.fixture(scope="module")
def quick(spark: Any) -> Any:
    return quick_session(spark)


@pytest.fixture(scope="module")
def lake(quick: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A store in which everything happened that the core knows."""
    root = str(tmp_path_factory.mktemp("views") / "store's")
    clock = Clock()
    anna = QueueManager(quick, root, runtime=runtime(clock, "anna"))
    bert = QueueManager(quick, root, runtime=runtime(clock, "bert"))
    options: dict[str, Any] = {"lanes": 2, "deliveries_max": 2, "lease_seconds": 10.0}
    orders = anna.create_queue("orders", "order_id long, customer string", **options)
    invoices = anna.create_queue("in-voices.eu", "order_id long", dead_letter=False)
    lake = SimpleNamespace(anna=anna, bert=bert, orders=orders, clock=clock, marks=[])

    def mark() -> None:
        clock.advance(1)
        lake.marks.append(anna.history.as_of().commit_seq)

    orders.send([{"order_id": n, "customer": f"c{n}"} for n in range(12)])
    with pytest.raises(ZeroDivisionError), anna.transaction() as tx:
        invoices.send([{"order_id": 1000}], transaction=tx)  # staged, never committed
        orders.receive(1, transaction=tx)
        raise ZeroDivisionError
    _settle_in_parts(orders)
    mark()
    _lose_a_lease(orders, bert, clock)
    mark()
    _bind(orders, anna, clock)
    mark()
    _kill(orders, anna, clock)
    mark()
    _move_and_purge(orders, invoices, anna)
    mark()
    done = anna.maintain(transaction_seconds_max=0, vacuum=False)
    assert done.archived  # the views show the same, wherever the entries are
    lake.prepared = anna.transaction("undecided")
    invoices.send([{"order_id": 2000}], transaction=lake.prepared)
    orders.receive(1, transaction=lake.prepared)
    lake.prepared.prepare()
    sent = invoices.send([{"order_id": 1}, {"order_id": 2}])
    _post_again(anna, invoices.info, sent.send_id, {"available_at": FAR_FUTURE_MS})
    _post_again(anna, invoices.info, sent.send_id, {"expires_at": 1})
    mark()
    return lake


def _settle_in_parts(orders: Any) -> None:
    batch = orders.receive(6)
    ids = [message["_message"]["id"] for message in batch.messages()]
    batch.reject(matching=ids[:2], reason="it's $bad\n")
    batch.release(matching=ids[2:3])
    batch.accept(matching=ids[3:5])  # the last one stays in flight


def _lose_a_lease(orders: Any, bert: Any, clock: Any) -> None:
    orders.receive(3, transaction=None)
    clock.advance(60)
    assert len(bert.queue("orders").receive(2)) > 0


def _bind(orders: Any, anna: Any, clock: Any) -> None:
    clock.advance(60)
    batch = orders.receive(4)
    with pytest.raises(ZeroDivisionError), anna.transaction() as tx:
        batch.accept(transaction=tx)
        raise ZeroDivisionError
    clock.advance(60)
    batch = orders.receive(4)
    tx = anna.transaction()
    batch.accept(transaction=tx)
    tx.prepare()
    tx.rollback()  # the claim was bound, and stays with its lease
    clock.advance(60)
    batch = orders.receive(4)
    with anna.transaction() as tx:
        first = batch.messages()[0]["_message"]["id"]
        batch.reject(matching=[first], reason="negative", transaction=tx)
    orders.send([{"order_id": n, "customer": None} for n in range(100, 103)])
    batch = orders.receive(3)
    with anna.transaction() as tx:
        batch.accept(matching=batch.messages()[:1], transaction=tx)


def _kill(orders: Any, anna: Any, clock: Any) -> None:
    """Let every message fail until it is dead."""
    clock.advance(60)
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), anna.transaction() as tx:
            orders.receive(1, transaction=tx)
            raise ZeroDivisionError
    dead = anna.queue("orders.dead")
    dead.receive(1).accept()
    dead.receive(1)


def _move_and_purge(orders: Any, invoices: Any, anna: Any) -> None:
    orders.send([{"order_id": n, "customer": "moved"} for n in range(300, 303)])
    with anna.transaction() as tx:
        assert orders.move("orders.dead", "customer = 'moved'", limit=2, transaction=tx) == 2
    with pytest.raises(ZeroDivisionError), anna.transaction() as tx:
        orders.move("orders.dead", limit=1, transaction=tx)
        raise ZeroDivisionError
    invoices.send([{"order_id": n} for n in range(400, 406)])
    held, failed, kept = invoices.receive(1), invoices.receive(1), invoices.receive(1)
    assert invoices.purge(reason="wrong import") == 3
    held.release()
    failed.modify()
    assert len(kept) == 1  # its purge is pending


def _post_again(manager: Any, info: Any, send_id: Any, more: Any) -> None:
    body = {"v": 1, "payload": info.payload_id, "slice": 0, "send": send_id, **more}
    client = client_of(manager)

    def plan(lost: int) -> Plan:
        entry = Entry(
            model.backlog_shard(info.queue_id), model.lane_stream(0), model.POSTED,
            queue_id=info.queue_id, lane=0, ranges=((0, 0),), count=1, body=body,
            **client.stamp().columns(),
        )  # fmt: skip
        return Plan((entry,), (model.layout_unchanged(),))

    client.land(plan, "post again")


def entries_of(lake: Any, upto: int | None = None) -> list[Any]:
    entries = everything(client_of(lake.anna).store)
    return [entry for entry in entries if upto is None or entry.commit_seq <= upto]


QUEUES = {"orders": "orders", "orders.dead": "orders_dead", "in-voices.eu": "in_voices_eu"}


@pytest.mark.spark
@pytest.mark.slow
def test_queue_views_equal_the_fold(lake: Any, quick: Any) -> None:
    names = lake.anna.create_views("now_")
    assert names == [f"now_{name}" for name in (*views.STORE_VIEWS, *QUEUES.values())]
    make_live(lake.anna, quick, "live_")
    entries = entries_of(lake)
    now_ms = lake.clock.now_ms
    states: Counter[Any] = Counter()
    for name, view in QUEUES.items():
        info = lake.anna.queue(name).info
        expected, fold = replay(info, entries, now_ms)
        rows = shown(quick, f"now_{view}")
        assert rows == expected
        assert shown(quick, f"live_{view}") == expected  # nothing waits until today
        assert plain_types(quick.table(f"live_{view}")) == plain_types(quick.table(f"now_{view}"))
        counts = per_state(rows)
        states += counts
        in_flight = counts["in_flight"] + counts["purge_pending"]
        with client_of(lake.anna).lock:
            client_fold = client_of(lake.anna).states.fold(info)
            assert in_flight == client_fold.in_flight() == fold.in_flight()
            assert counts["available"] == client_fold.available(now_ms, info.redelivery)
        told = next(r for r in lake.anna.history.as_of().counts().rows() if r["queue"] == name)
        assert in_flight == told["in_flight"]
        for state in ("accepted", "rejected", "dead_lettered", "moved", "purged", "purge_pending"):
            assert counts[state] == told[state], (name, state)
    assert set(states) == STATES


@pytest.mark.spark
@pytest.mark.slow
def test_store_views_equal_the_snapshot(lake: Any, quick: Any) -> None:
    lake.anna.create_views("now_")
    snapshot = lake.anna.history.as_of()
    for name in views.STORE_VIEWS:
        view, report = quick.table(f"now_{name}"), getattr(snapshot, name)().df()
        assert plain_types(view) == plain_types(report), name
        if name != "bindings":  # maps cannot be sorted; test_views_exchanges compares them
            same(view, report)
    statuses = {row["status"] for row in snapshot.transactions().rows()}
    assert statuses == {"committed", "rolled_back", "prepared"}
    listed = {row["queue"]: row for row in quick.table("now_queues").collect()}
    infos = {name: lake.anna.queue(name).info for name in QUEUES}
    assert set(listed) == set(infos)
    for name, info in infos.items():
        row = listed[name]
        assert row["queue_id"] == info.queue_id
        assert row["dead_letter_id"] == info.dead_letter_id
        for setting in ("lanes", "group_by", "lease_seconds", "deliveries_max"):
            assert row[setting] == getattr(info.settings, setting)
        assert row["created_by"] == "anna"
        assert row["created_at"].timestamp() * 1000 == info.created_at_ms


@pytest.mark.spark
@pytest.mark.slow
def test_as_of_shows_the_state_after_a_commit(lake: Any, quick: Any) -> None:
    info = lake.orders.info
    marks = lake.marks[: 3 if LONG else 2]
    for commit_seq in marks:
        lake.anna.create_views("then_", as_of=commit_seq)
        snapshot = lake.anna.history.as_of(commit_seq)
        expected, _ = replay(info, entries_of(lake, commit_seq), snapshot.at_ms)
        assert shown(quick, "then_orders") == expected
        same(quick.table("then_transactions"), snapshot.transactions().df())
        if commit_seq == marks[-1]:  # what users see of it on either way
            alive = quick.table("then_orders").where("state IN ('available', 'in_flight')")
            columns = ["order_id", "customer", "message_id", "state"]
            told = snapshot.messages("orders").df().withColumn("message_id", F.col("_message.id"))
            same(alive.select(columns), told.select(columns))


@pytest.mark.spark
@pytest.mark.slow
def test_as_of_inside_a_commit_and_at_an_instant(lake: Any, quick: Any) -> None:
    """A commit_seq is a version and an ordinal; delays are judged at that instant."""
    lake.anna.create_views("inside_", as_of=lake.marks[0] + 1)
    assert quick.table("inside_transactions").count() == len(
        lake.anna.history.as_of(lake.marks[0]).transactions().rows()
    )
    instant = datetime.datetime(2023, 11, 14, 22, 13, 19, tzinfo=datetime.timezone.utc)
    assert lake.anna.create_views("before_", as_of=instant) == [
        f"before_{name}" for name in views.STORE_VIEWS
    ]  # no queue was there yet
    assert quick.table("before_transactions").count() == 0
    with pytest.raises(InvalidInput):
        lake.anna.create_views("later_", as_of=1 << 40)


@pytest.mark.spark
@pytest.mark.slow
def test_temporary_views_stand_still_and_statements_follow_the_store(lake: Any, quick: Any) -> None:
    invoices = lake.bert.queue("in-voices.eu")
    make_live(lake.anna, quick, "live_")
    lake.anna.create_views("still_")
    invoices.depth()  # reads: what was known before the maintenance is too old to begin at
    before = quick.table("live_in_voices_eu").where("state = 'available'").count()
    sent = invoices.send([{"order_id": 77}], headers={"correlation_id": "c-7", "tenant": "x"})
    of_sent = f"transaction_id = '{sent.transaction_id}'"
    for view in ("still_in_voices_eu", "live_in_voices_eu"):
        found = quick.table(view).where("order_id = 77").collect()
        if view.startswith("still_"):
            assert found == []
            assert quick.table("still_transactions").where(of_sent).count() == 0
            lake.anna.create_views("still_")
            found = quick.table(view).where("order_id = 77").collect()
        assert [(row["message_id"], row["state"]) for row in found] == [
            (f"{sent.send_id}:0", "available")
        ]
        assert found[0]["sent_in"] == sent.transaction_id
        assert found[0]["headers"] == {"correlation_id": "c-7", "tenant": "x"}
        assert (found[0]["correlation_id"], found[0]["reply_to"]) == ("c-7", None)
        assert quick.table(view).where("state = 'available'").count() == before + 1
    assert quick.table("still_transactions").where(of_sent).count() == 1


@pytest.mark.spark
@pytest.mark.slow
def test_a_temporary_view_outlives_new_columns_and_removed_payload(
    quick: Any, tmp_path: Path
) -> None:
    """Messages are never missing: what has no payload any more is shown without it."""
    manager = QueueManager(quick, str(tmp_path / "store"), runtime=runtime(Clock(), "dora"))
    boxes = manager.create_queue("boxes", "n long", dead_letter=False)
    boxes.send([{"n": n} for n in range(-1, 3)], headers={"a": "b"})
    assert manager.erase("boxes", "n = -1", reason="r").purged == 1  # the first one of its send
    assert manager.history.verify().ok
    manager.create_views("before_")
    boxes.alter("note string")
    manager.queue("boxes").send([{"n": 9, "note": "new"}])
    shown = [(row["n"], row["state"]) for row in quick.table("before_boxes").collect()]
    expected = [*((n, "available") for n in range(3)), (None, "purged")]
    assert sorted(shown, key=str) == sorted(expected, key=str)
    slices = client_of(manager).store.payload.slices(boxes.info.payload_id)
    client_of(manager).store.payload.drop(boxes.info.payload_id, slices)
    manager.create_views("after_")
    for view, count in (("before_boxes", 4), ("after_boxes", 5)):
        rows = quick.table(view).collect()
        assert [(row["n"], row["headers"]) for row in rows] == [(None, None)] * count
        states = Counter(row["state"] for row in rows)
        assert states == {"available": count - 1, "purged": 1}
        assert len({row["message_id"] for row in rows}) == count


def make_live(manager: QueueManager, session: Any, prefix: str) -> None:
    """Create temporary views that follow the store."""
    for statement in manager.view_statements(prefix).values():
        session.sql(statement)


@pytest.mark.spark
@pytest.mark.skipif(not LONG, reason="most of a minute: in the long run")
def test_other_queues_of_the_same_columns_cost_a_view_nothing(quick: Any, tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    manager = QueueManager(quick, root, runtime=runtime(Clock(), "anna"))
    columns = "n long, name string"
    orders = manager.create_queue("orders", columns, dead_letter=False)
    orders.send([{"n": n, "name": "x"} for n in range(20)])
    orders.receive(5).accept()
    orders.receive(5)

    def cost_of_a_query() -> tuple[int, list[int]]:
        manager.create_views()
        with Cost(quick, root) as cost:
            rows = quick.table("orders").groupBy("state", "name").count().collect()
        assert {row["state"]: row["count"] for row in rows} == {
            "accepted": 5, "in_flight": 5, "available": 10,
        }  # fmt: skip
        return cost.jobs, sorted(cost.tasks)  # some of the jobs run at the same time

    cost_of_a_query()
    alone = cost_of_a_query()
    for n in range(11 if LONG else 3):
        other = manager.create_queue(f"other{n}", columns, dead_letter=False)
        if n < 2:
            other.send([{"n": n, "name": "y"}])
    assert cost_of_a_query() == alone
    assert 0 < alone[0] <= 8
    make_live(manager, quick, "live_")
    assert manager.queue("other0").move("orders", limit=1) == 1  # its payload stays where it is
    manager.create_views()
    for view in ("orders", "live_orders"):
        moved = quick.table(view).where("name IS NOT NULL AND name <> 'x'").collect()
        assert [(row["n"], row["name"], row["state"]) for row in moved] == [(0, "y", "available")]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="in the long run only: it makes and drops four queues")
def test_views_follow_an_alter_and_a_drop(lake: Any, quick: Any) -> None:
    """New columns are shown, null in dead letters of a queue of former times that lacked them."""
    clock = Clock()
    clock.advance(10_000_000)
    manager = QueueManager(quick, lake.anna.root, runtime=runtime(clock, "carl"))
    parcels = manager.create_queue("parcels", "n long")
    parcels.send([{"n": n} for n in range(3)])
    parcels.receive(1).reject(reason="lost")
    before = manager.history.as_of().commit_seq
    make_live(manager, quick, "open_")
    parcels.receive(1)
    assert parcels.drop(reason="closed down").messages == 2
    found = quick.table("open_parcels").orderBy("n").collect()
    assert [(r["n"], r["state"], r["reason"], r["settled_by"]) for r in found] == [
        (0, "rejected", "lost", "carl"),
        (1, "dropped", "closed down", "carl"),
        (2, "dropped", "closed down", "carl"),
    ]
    assert found[1]["claimed_by"] == "carl"
    again = manager.create_queue("parcels", "n long")
    again.alter("weight double")
    again.send([{"n": 7, "weight": 1.5}])
    manager.create_views("now_")
    assert [tuple(r) for r in quick.table("now_parcels").select("n", "weight").collect()] == [
        (7, 1.5)
    ]
    dead = quick.table("now_parcels_dead").select("n", "weight", "state").collect()
    assert [tuple(r) for r in dead] == [(0, None, "available")]
    assert manager.queue("parcels.dead").peek().select("n", "weight").collect() == [(0, None)]
    manager.create_views("then_", as_of=before)
    assert quick.table("then_parcels").where("state = 'available'").count() == 2
    same(quick.table("now_dispatches"), manager.history.as_of().dispatches().df())
    for queue in ("parcels", "parcels.dead"):
        assert manager.drop_queue(queue).dropped
    assert "now_parcels" not in manager.create_views("now_")


@pytest.mark.spark
@pytest.mark.slow
def test_trace_finds_messages_by_a_predicate(lake: Any) -> None:
    steps = lake.anna.history.trace(
        queue="orders", where="order_id = 0 AND customer LIKE 'c%'"
    ).rows()
    assert steps[0]["step"] == "sent"
    assert len({step["message_id"] for step in steps}) == 1
    assert lake.anna.history.trace(queue="in-voices.eu", where="order_id = 1000").rows() == []
    for where in ("nowhere = 1", "order_id", "order_id =", "cast(customer AS int) = 1", 3):
        with pytest.raises(InvalidInput) as caught:
            lake.anna.history.trace(queue="orders", where=where).rows()
        assert repr(where) in str(caught.value)


def same(left: Any, right: Any) -> None:
    assert_df_equality(left, right, ignore_row_order=True, ignore_nullable=True)


# ------------------------------------------------------------------------ catalog schemas


@pytest.mark.spark
@pytest.mark.slow
def test_views_in_a_catalog_schema_are_permanent(spark: Any, tmp_path: Path) -> None:
    spark.sql(f"CREATE SCHEMA views_test LOCATION '{tmp_path}/schema'")
    try:
        clock = Clock()
        manager = QueueManager(spark, "views_test", runtime=runtime(clock))
        orders = manager.create_queue("orders", "order_id long, state string, reason string")
        orders.send([{"order_id": n, "state": "NY", "reason": "r"} for n in range(5)])
        batch = orders.receive(3)
        batch.reject(where="order_id = 1", reason="negative")
        assert manager.create_views() == [
            f"spark_catalog.views_test.{name}"
            for name in (*views.STORE_VIEWS, "orders", "orders_dead")
        ]
        elsewhere = spark.newSession()
        rows = elsewhere.table("views_test.orders").collect()
        states = {row["order_id"]: row["_state"] for row in rows}
        assert states == {0: "in_flight", 1: "rejected", 2: "in_flight"} | dict.fromkeys(
            (3, 4), "available"
        )
        assert {row["state"] for row in rows} == {"NY"}
        assert {row["_reason"] for row in rows} == {None, "negative"}
        dead = elsewhere.table("views_test.orders_dead").collect()
        assert [(r["order_id"], r["_state"], r["_reason"]) for r in dead] == [
            (1, "available", "negative")
        ]
        seq = manager.history.as_of().commit_seq
        batch.accept()
        then = manager.create_views("then_", as_of=seq)
        assert then[len(views.STORE_VIEWS)] == "spark_catalog.views_test.then_orders"
        assert elsewhere.table("views_test.then_orders").where("_state = 'accepted'").count() == 0
        assert elsewhere.table("views_test.orders").where("_state = 'accepted'").count() == 2
        steps = manager.history.trace(queue="orders", where="order_id = 1").rows()
        assert {step["step"] for step in steps} == {"sent", "claimed", "rejected", "moved"}
        with manager.transaction() as tx:
            assert len(orders.receive(10, transaction=tx)) == 2
        assert QueueManager(spark, "spark_catalog.Views_Test").queue("orders").depth() == 0
        spark.sql("CREATE TABLE views_test.my_orders (id int) USING delta")
        with pytest.raises(InvalidName):
            manager.create_views("my_")
        with pytest.raises(StoreNotFound):
            QueueManager(spark, "no_such_schema").create_queue("orders", "order_id long")
    finally:
        spark.sql("DROP SCHEMA views_test CASCADE")


# ------------------------------------------------------------------------- without Spark


def _info(name: str, payload_columns: Any = ("id",), dead_letter_id: Any = None) -> QueueInfo:
    fields = [{"name": column, "type": "string"} for column in payload_columns]
    schema = {"type": "struct", "fields": fields}
    queue_id = f"{name}-{len(name):08d}"
    return QueueInfo(name, queue_id, queue_id, schema, 1, QueueSettings(), dead_letter_id)


def test_a_store_in_memory_has_no_views() -> None:
    manager = memory_manager()
    manager.create_queue("orders", "order_id long")
    with pytest.raises(PlatformMissing):
        manager.create_views()
    with pytest.raises(PlatformMissing):
        manager.history.trace(queue="orders", where="order_id = 1")


def test_view_names_are_plain_and_never_meet() -> None:
    infos = {name: _info(name) for name in ("b.c", "b-c", "b_c", "queues", "Orders", "orders")}
    assert views.view_names(infos) == {
        "b.c": "b_c_00000003_",
        "b-c": "b_c_00000003",
        "b_c": "b_c",
        "queues": "queues_00000006",
        "Orders": "Orders",
        "orders": "orders_00000006",
    }


def test_a_prefix_begins_a_name() -> None:
    with pytest.raises(InvalidName):
        views.statements(TableNames.of("/root"), {}, "a`b")
    with pytest.raises(InvalidName):
        views.statements(TableNames.of("cat.s"), {"journal": _info("journal")}, "TxnQueue_")
    assert list(views.statements(TableNames.of("cat.s"), {}, "x_")) == [
        "cat.s.x_queues", "cat.s.x_transactions", "cat.s.x_dispatches",
        "cat.s.x_bindings",
    ]  # fmt: skip


def test_a_view_that_another_client_replaces_meanwhile_is_created() -> None:
    """Spark drops the old view before it creates the new one."""
    from pyspark.errors import AnalysisException

    said = [f"[TABLE_OR_VIEW_{what}] s.x" for what in ("NOT_FOUND", "ALREADY_EXISTS")]

    class Session:
        left: ClassVar[list[str]] = [*said]

        def sql(self, _text: str) -> None:
            if self.left:
                raise AnalysisException(self.left.pop())

    spark: Any = Session()
    views._create(spark, "s.x", "CREATE OR REPLACE VIEW")
    assert not Session.left
    for told, raised in ((said[0], AnalysisException), ("EXPECT_VIEW_NOT_TABLE", InvalidName)):
        Session.left = [told] * 9
        with pytest.raises(raised):
            views._create(spark, "s.x", "CREATE OR REPLACE VIEW")
        assert Session.left


def test_dead_letters_bring_the_payload_of_where_they_came_from() -> None:
    infos = {
        "a": _info("a", dead_letter_id="bb-00000002"),
        "bb": _info("bb", dead_letter_id="ccc-00000003"),
        "ccc": _info("ccc", dead_letter_id="a-00000001"),  # round and round
        "dddd": _info("dddd", ["other"]),
        "eeeee": _info("eeeee", ["other"]),  # messages can be moved from one to the other
    }
    texts = views.statements(TableNames.of("/root"), infos)
    for name in ("a", "bb", "ccc"):
        assert texts[name].count("/root/payload/") == 3
    assert texts["dddd"].count("/root/payload/") == 2


def test_what_was_moved_before_both_queues_grew_brings_its_payload() -> None:
    manager = memory_manager()
    orders, kept = manager.create_queue("orders", "n long"), manager.create_queue("kept", "n long")
    manager.create_queue("others", "m long")
    orders.send([{"n": 1}])
    assert orders.move("kept") == 1
    orders.alter("e string")
    kept.alter("e int, f int")
    entries = client_of(manager).cache.catalog_entries()
    text = views.statements(
        TableNames.of("/root"),
        catalog.queues(entries),
        schemas=catalog.every_schema(entries),
    )["kept"]
    assert f"/root/payload/{orders.info.payload_id}`" in text
    assert "/root/payload/others" not in text
    where = text[: text.index(f"/root/payload/{orders.info.payload_id}`")].rindex("struct(")
    own = text[where:].partition("content")[0]  # its column e is another one
    assert "CAST(NULL AS int) AS `e`" in own
