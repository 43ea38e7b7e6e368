"""Changes of the user's Delta tables: with the messages, in commit order, once."""

from __future__ import annotations

import datetime
import itertools
import json
import re
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.delta.counting import Cost
from tests.faults.injection import Crash, Injector
from tests.faults.world import World
from tests.inside import attempt_of, client_of
from txnqueue.core import model
from txnqueue.errors import (
    ChangeNotFound,
    ChangeWaiting,
    InvalidInput,
    PlatformMissing,
    SchemaMismatch,
    StoreError,
    StoreNotFound,
    TableNotFound,
    TransactionAborted,
)
from txnqueue.manager import QueueManager
from txnqueue.storage.store import DeltaStore
from txnqueue.transactions.table_applier import Applier

pytestmark = pytest.mark.spark
_NUMBERS = itertools.count(1)


@dataclass
class Lake:
    """A store with a queue, and tables of the user's beside it."""

    spark: Any
    world: World
    root: str

    def manager(self, name: str = "A", injector: Injector | None = None) -> QueueManager:
        return self.world.manager(name, injector)

    def table(self, columns: str = "k string, total double", rows: str | None = None) -> str:
        """Make a table, and tell its path."""
        path = f"{self.root}/lake/t{next(_NUMBERS)}"
        self.spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta")
        if rows:
            self.sql(f"INSERT INTO {{t}} VALUES {rows}", path)
        return path

    def sql(self, text: str, path: str) -> list[tuple[Any, ...]]:
        """Run a statement of the user's; ``{t}`` is the table."""
        return [tuple(row) for row in self.spark.sql(text.format(t=f"delta.`{path}`")).collect()]

    def rows(self, path: str) -> list[tuple[Any, ...]]:
        return sorted(self.sql("SELECT * FROM {t}", path), key=str)

    def decided_only(self, change: Any, key: str | None = None) -> Any:
        """Commit a change by a process that dies between the decision and its application."""
        injector = Injector()
        dying = self.manager("dying", injector)
        tx = dying.transaction(key)
        change(tx)
        injector.stop_at = "apply"
        injector.arm()
        with pytest.raises(Crash):
            tx.commit()
        return tx


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    root = str(tmp_path_factory.mktemp("changes"))
    lake = Lake(spark, World(store=DeltaStore(spark, root)), root)
    for name in ("in", "out"):
        lake.world.create(name)
    return lake


TOTALS: dict[str, Any] = {"update": {"total": "target.total + source.total"}, "insert": "*"}


# ------------------------------------------------------------------------ what can be done


def test_messages_and_tables_change_together(lake: Lake) -> None:
    path = lake.table("i long")
    manager = lake.manager()
    manager.queue("in").send([{"i": 1}, {"i": 2}])
    with manager.transaction() as tx:
        batch = tx.queue("in").receive(10)
        tx.table(path).append(batch.df)
        assert lake.rows(path) == []
    assert tx.receipt is not None and tx.receipt.applied
    assert lake.rows(path) == [(1,), (2,)]
    assert manager.queue("in").depth() == 0


def test_rolled_back_nothing_changes(lake: Lake) -> None:
    path = lake.table()
    with pytest.raises(ZeroDivisionError), lake.manager().transaction() as tx:
        tx.table(path).append([{"k": "a", "total": 1.0}])
        raise ZeroDivisionError
    assert lake.rows(path) == []
    assert lake.manager().recover().waiting == ()


def test_merge_update_delete_and_append_in_their_order(lake: Lake) -> None:
    path = lake.table(rows="('a', 1.0), ('b', 2.0), ('c', 3.0)")
    with lake.manager().transaction() as tx:
        table = tx.table(path)
        table.merge([{"k": "a", "total": 10.0}, {"k": "z", "total": 26.0}], on="k", **TOTALS)
        table.update({"total": "total * 2"}, where="k IN ('a', 'b')")
        table.delete(where="k = 'c'")
        table.append([{"k": "c", "total": 0.5}])
    assert lake.rows(path) == [("a", 22.0), ("b", 4.0), ("c", 0.5), ("z", 26.0)]


def test_a_merge_may_delete_and_match_by_a_condition(lake: Lake) -> None:
    path = lake.table(rows="('a', 1.0), ('b', 2.0)")
    with lake.manager().transaction() as tx:
        gone = lake.spark.createDataFrame([("a", True), ("b", False)], "name string, gone boolean")
        tx.table(path).merge(gone, condition="target.k = source.name", delete="source.gone")
    assert lake.rows(path) == [("b", 2.0)]


def test_a_comment_in_the_users_sql_ends_with_it(lake: Lake) -> None:
    path = lake.table(
        "k string, total double, gone boolean", "('a', 1.0, false), ('b', 2.0, false)"
    )
    with lake.manager().transaction() as tx:
        table = tx.table(path)
        table.merge(
            [{"k": "a", "total": 5.0, "gone": True}, {"k": "c", "total": 3.0, "gone": False}],
            condition="target.k = source.k -- the key \\",
            update={"total": "source.total -- the newest", "gone": "source.gone /* too */"},
            insert={"k": "source.k -- the key", "total": "source.total"},
        )
        table.update({"total": "total * 2 -- twice", "gone": "NOT gone"}, where="k = 'b'")
    assert lake.rows(path) == [("a", 5.0, True), ("b", 4.0, True), ("c", 3.0, None)]


def test_what_finds_nothing_is_applied_all_the_same(lake: Lake) -> None:
    path = lake.table(rows="('a', 1.0)")
    with lake.manager().transaction() as tx:
        tx.table(path).delete(where="k = 'nobody'")
        tx.table(path).update({"total": "0"}, where="k = 'nobody'")
    assert tx.receipt is not None and tx.receipt.applied
    assert lake.rows(path) == [("a", 1.0)]


def test_lineage_joins_rows_with_their_transaction(lake: Lake) -> None:
    path = lake.table("k string, total double, _transaction_id string", "('a', 1.0, NULL)")
    with lake.manager().transaction() as tx:
        table = tx.table(path, lineage=True)
        table.merge([{"k": "a", "total": 1.0}, {"k": "b", "total": 2.0}], on="k", **TOTALS)
        table.append([{"k": "c", "total": 3.0}])
    assert lake.rows(path) == [("a", 2.0, tx.id), ("b", 2.0, tx.id), ("c", 3.0, tx.id)]
    plain = lake.table()
    with pytest.raises(SchemaMismatch, match="_transaction_id"):
        lake.manager().transaction().table(plain, lineage=True).append([{"k": "a"}])


def test_odd_names_and_a_catalog_table(lake: Lake) -> None:
    name = f"default.odd_{next(_NUMBERS)}"
    columns = "`select` string, `a``b` double, headers string, send_id long"
    lake.spark.sql(f"CREATE TABLE {name} ({columns}) USING delta")
    row = {"select": "x'; DROP", "a`b": 1.5, "headers": "h", "send_id": 7}
    with lake.manager().transaction() as tx:
        tx.table(name).append([row])
        tx.table(name).merge([{**row, "a`b": 2.5}], on=["select", "send_id"], update="*")
    assert [r.asDict() for r in lake.spark.table(name).collect()] == [{**row, "a`b": 2.5}]


def test_a_name_means_the_table_that_it_means_in_the_users_session(lake: Lake) -> None:
    """Also for whoever applies the change later, in a session with another current schema."""
    schema, name = f"schema{next(_NUMBERS)}", f"named{next(_NUMBERS)}"
    lake.spark.sql(f"CREATE SCHEMA {schema}")
    for where in ("default", schema):
        lake.spark.sql(f"CREATE TABLE {where}.{name} (k string, total double) USING delta")
    lake.spark.sql(f"USE {schema}")
    try:
        lake.decided_only(lambda tx: tx.table(name).append([{"k": "a"}]))
        with lake.manager().transaction() as tx:
            tx.table(name).append([{"k": "b"}])
            tx.table(f"{schema}.{name}").update({"total": "1"}, where="true")
    finally:
        lake.spark.sql("USE default")
    lake.decided_only(lambda tx: tx.table(f"{schema}.{name}").delete(where="k = 'a'"))
    assert lake.manager("B").recover().waiting == ()
    found = [tuple(row) for row in lake.spark.table(f"{schema}.{name}").collect()]
    assert found == [("b", 1.0)] and not lake.spark.table(f"default.{name}").collect()


def test_a_view_is_refused(lake: Lake) -> None:
    table, view = (f"default.{name}{next(_NUMBERS)}" for name in ("behind", "view"))
    hidden = table.removeprefix("default.")
    lake.spark.sql(f"CREATE TABLE {table} (k string) USING delta")
    lake.spark.sql(f"CREATE VIEW {view} AS SELECT * FROM {table}")
    lake.spark.sql(f"CREATE TEMPORARY VIEW {hidden} AS SELECT * FROM {table}")
    tx = lake.manager().transaction()
    for name in (view, hidden):
        with pytest.raises(InvalidInput, match=f"'{name}' is not a Delta table"):
            tx.table(name).append([{"k": "a"}])
    tx.table(table).append([{"k": "a"}])  # the temporary view hides only the short name


def test_a_prepared_transaction_changes_tables_when_it_is_committed(lake: Lake) -> None:
    path = lake.table()
    tx = lake.manager().transaction(f"prepared-{next(_NUMBERS)}")
    tx.table(path).append([{"k": "a", "total": 1.0}])
    tx.prepare()
    assert lake.rows(path) == []
    receipt = lake.manager("B").commit(tx.id)
    assert receipt.applied and lake.rows(path) == [("a", 1.0)]


def test_under_a_committed_id_nothing_changes_again(lake: Lake) -> None:
    path, key = lake.table(), f"once-{next(_NUMBERS)}"
    for _ in range(2):
        with lake.manager().transaction(key) as tx:
            tx.table(path).append([{"k": "a", "total": 1.0}])
            tx.table(path).delete(where="k = 'b'")
    assert tx.already_committed and tx.receipt is not None and tx.receipt.applied
    assert lake.rows(path) == [("a", 1.0)]


def test_the_history_of_the_table_names_who_and_why(lake: Lake) -> None:
    path = lake.table()
    with lake.manager().transaction() as tx:
        tx.table(path).append([{"k": "a", "total": 1.0}])
    history = lake.spark.sql(f"DESCRIBE HISTORY delta.`{path}` LIMIT 1").first()
    assert tx.id in history["userMetadata"]
    assert '"operation": "append"' in history["userMetadata"]


# ---------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda t: t.append([{"k": "a", "nope": 1}]), SchemaMismatch),
        (lambda t: t.append([{"k": 5}]), SchemaMismatch),
        (lambda t: t.append([{"k": "a", "total": -1.0}]), InvalidInput),
        (lambda t: t.append([{"k": "a"}]), InvalidInput),  # Delta takes unknown as broken
        (lambda t: t.append("rows"), InvalidInput),
        (lambda t: t.merge([{"k": "a"}], on="nope", update="*"), InvalidInput),
        (lambda t: t.merge([{"k": "a"}], on="k"), InvalidInput),
        (lambda t: t.merge([{"k": "a"}], update="*"), InvalidInput),
        (lambda t: t.merge([{"k": "a"}], on="k", update="all"), InvalidInput),
        (lambda t: t.merge([{"k": "a"}, {"k": "a"}], on="k", update="*"), InvalidInput),
        (lambda t: t.merge([{"k": "a"}], on="k", update={"total": "source.nope"}), InvalidInput),
        (lambda t: t.merge([{"k": "a"}], on="k", update={"nope": "1"}), InvalidInput),
        (lambda t: t.update({"total": "nope + 1"}, where="true"), InvalidInput),
        (lambda t: t.update({}, where="true"), InvalidInput),
        (lambda t: t.delete(where="not sql at all"), InvalidInput),
    ],
)
def test_what_the_table_would_refuse_is_refused_at_once(lake: Lake, wrong: Any, error: Any) -> None:
    if not hasattr(lake, "strict"):
        lake.strict = lake.table()  # type: ignore[attr-defined]
        lake.sql("ALTER TABLE {t} ADD CONSTRAINT positive CHECK (total >= 0)", lake.strict)  # type: ignore[attr-defined]
    tx = lake.manager().transaction()
    with pytest.raises(error):
        wrong(tx.table(lake.strict))  # type: ignore[attr-defined]
    assert attempt_of(tx).changes == []


DEMANDING = """
    k string NOT NULL, code varchar(3), mark char(2), tags array<varchar(2)>,
    `a b` struct<`x``y`:int NOT NULL>, s struct<t:map<string,varchar(2)>>, at timestamp,
    day date GENERATED ALWAYS AS (CAST(at AS DATE)), id bigint GENERATED ALWAYS AS IDENTITY,
    number bigint GENERATED BY DEFAULT AS IDENTITY, n int NOT NULL DEFAULT 7, total double
"""
DEFAULTS = "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported', "
DEFAULTS += "'delta.columnMapping.mode' = 'name')"
AT = datetime.datetime(2024, 2, 29, 23, 30, tzinfo=datetime.timezone.utc)
FULL: dict[str, Any] = {
    "k": "a",
    "code": "äöü",
    "tags": ["xy", None],
    "a b": {"x`y": 1},
    "s": {"t": {"long key": "ab", "other": None}},
    "at": AT,
    "total": 0.0,
}


@pytest.fixture(scope="module")
def demanding(lake: Lake) -> str:
    """Make a table with all that a table can demand of rows."""
    path = f"{lake.root}/lake/demanding"
    lake.spark.sql(f"CREATE TABLE delta.`{path}` ({DEMANDING}) USING delta {DEFAULTS}")
    lake.sql("ALTER TABLE {t} ADD CONSTRAINT few CHECK (total + n < 100)", path)
    return path


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"code": "abcd"}, "'code', varchar(3)"),
        ({"code": "ab  "}, "'code', varchar(3)"),
        ({"mark": "abc"}, "'mark', char(2)"),
        ({"tags": ["xyz"]}, "'tags', array<varchar(2)>"),
        ({"s": {"t": {"k": "abc"}}}, "'s', struct"),
        ({"a b": None}, "`a b`.`x``y`"),
        ({"day": datetime.date(2024, 3, 1)}, "generated column 'day', CAST(at AS DATE)"),
        ({"id": 5}, "'id'.*IDENTITY"),
        ({"total": 93.0}, "constraint 'few'"),
        ({"total": None}, "constraint 'few'"),
    ],
    ids=str,
)
def test_rows_that_the_table_would_refuse_are_refused_before_the_decision(
    lake: Lake, demanding: str, wrong: dict[str, Any], named: str
) -> None:
    tx = lake.manager().transaction()
    pattern = re.escape(named).replace(r"\.\*", ".*")
    with pytest.raises(InvalidInput, match=pattern):
        tx.table(demanding).append([FULL, {**FULL, **wrong}])
    assert attempt_of(tx).changes == []


def test_an_empty_text_is_null_in_a_partition(lake: Lake) -> None:
    path = f"{lake.root}/lake/t{next(_NUMBERS)}"
    columns = "k string, p string NOT NULL, q string"
    lake.spark.sql(f"CREATE TABLE delta.`{path}` ({columns}) USING delta PARTITIONED BY (p, q)")
    with lake.manager().transaction() as tx:
        with pytest.raises(InvalidInput, match="NOT NULL of column `p`"):
            tx.table(path).append([{"k": "a", "p": ""}])
        tx.table(path).append([{"k": "", "p": "x", "q": ""}])
    assert tx.receipt is not None and tx.receipt.applied
    assert lake.rows(path) == [("", "x", None)]


def test_keys_of_a_merge_are_compared_as_the_table_does(lake: Lake) -> None:
    path = lake.table("count int, day date, v string", "(1, DATE'2024-01-01', 'x')")
    same: list[dict[str, Any]] = [
        {"count": text, "day": "2024-01-01", "v": "y"} for text in ("1", "01")
    ]
    with lake.manager().transaction() as tx:
        with pytest.raises(InvalidInput, match=r"'count': 1.* 2 times"):
            tx.table(path).merge(same, on=["count", "day"], update={"v": "source.v"})
        with pytest.raises(InvalidInput, match=r"'count': 1.* 2 times"):  # both would be inserted
            tx.table(path).merge(same, on=["count", "day"], insert="*")
        rows = [same[0], {**same[0], "count": "2"}, {**same[0], "count": None}]
        tx.table(path).merge(rows, on=["count", "day"], update={"v": "source.v"})
    assert tx.receipt is not None and tx.receipt.applied
    assert lake.sql("SELECT count, v FROM {t}", path) == [(1, "y")]


@pytest.mark.parametrize("kind", ["BIGINT", "DECIMAL(20,0)"])
def test_keys_of_a_merge_are_compared_in_the_type_that_holds_both(lake: Lake, kind: str) -> None:
    """Two long numbers are one double: the merge would fail when it is applied."""
    path = lake.table("k double, v string", "(9007199254740992.0D, 'x')")
    numbers = f"CAST({2**53} + id AS {kind}) AS k"
    frame = lake.spark.range(2).selectExpr(numbers, "CAST(id AS STRING) AS v")
    with lake.manager().transaction() as tx:
        with pytest.raises(InvalidInput, match=r" 2 times"):
            tx.table(path).merge(frame, on="k", update={"v": "source.v"})
        tx.table(path).merge(frame.where("v = '1'"), on="k", update={"v": "source.v"})
    assert tx.receipt is not None and tx.receipt.applied
    assert lake.sql("SELECT v FROM {t}", path) == [("1",)]


def test_what_rows_lack_the_table_fills_in(lake: Lake, demanding: str) -> None:
    """Appends with different columns, and one that gives what the table would fill in."""
    short = {key: FULL[key] for key in ("k", "a b", "total")}
    given = {**FULL, "k": "c", "n": 1, "number": 50, "day": AT.date()}
    frame = lake.spark.createDataFrame([("b", 1, 0.5)], "k string, x int, total double").selectExpr(
        "k", "named_struct('x`y', x) AS `a b`", "total"
    )
    with lake.manager().transaction() as tx:
        for rows in ([short], frame, [FULL], [given]):
            tx.table(demanding).append(rows)
    assert tx.receipt is not None and tx.receipt.applied
    found = lake.sql("SELECT k, code, at, day, n, id, number, total FROM {t}", demanding)
    naive = AT.replace(tzinfo=None)
    plain = [(*row[:5], row[7]) for row in found]
    assert sorted(plain, key=str) == sorted(
        [
            ("a", None, None, None, 7, 0.0),
            ("b", None, None, None, 7, 0.5),
            ("a", "äöü", naive, AT.date(), 7, 0.0),
            ("c", "äöü", naive, AT.date(), 1, 0.0),
        ],
        key=str,
    )
    assert len({row[5] for row in found}) == 4 and ("c", 50) in {(r[0], r[6]) for r in found}
    # What gives columns that the table would fill in stays on its own.
    history = lake.sql("DESCRIBE HISTORY {t}", demanding)
    assert sum("WRITE" in row for row in history) == 2


def test_a_column_that_is_gone_by_the_commit_aborts_it(lake: Lake) -> None:
    path = mapped(lake)
    tx = lake.manager().transaction()
    tx.table(path).append([{"k": "a", "total": 1.0}])
    lake.sql("ALTER TABLE {t} DROP COLUMN total", path)
    with pytest.raises(TransactionAborted, match="'total' is not in the schema"):
        tx.commit()
    assert lake.manager().recover().waiting == () and lake.rows(path) == []


def mapped(lake: Lake) -> str:
    """Make a table whose columns can be dropped."""
    path = lake.table()
    properties = "'delta.columnMapping.mode' = 'name'"
    lake.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({properties})", path)
    return path


LATER = {
    "a column is gone": ("DROP COLUMN total", "ADD COLUMN total double", "metadata mismatch"),
    "a constraint is new": ("ADD CONSTRAINT n CHECK (k > 'b')", "DROP CONSTRAINT n", "k > 'b'"),
}


@pytest.mark.parametrize("what", LATER if LONG else ["a constraint is new"])
def test_what_the_table_refuses_since_the_decision_waits_for_an_operator(
    lake: Lake, what: str
) -> None:
    path, (break_it, mend_it, named) = mapped(lake), LATER[what]
    tx = lake.decided_only(lambda tx: tx.table(path).append([{"k": "a", "total": None}]))
    lake.sql(f"ALTER TABLE {{t}} {break_it}", path)
    manager = lake.manager()
    with manager.transaction() as later:
        later.table(path).append([{"k": "c"} if "gone" in what else {"k": "c", "total": 1.0}])
    assert later.receipt is not None and not later.receipt.applied
    first, second = manager.recover().waiting  # in the order of the decisions
    assert (first.transaction_id, second.transaction_id) == (tx.id, later.id)
    assert named in first.reason and "calling" not in first.reason
    assert f"waive_change({first.change_id!r}" in first.remedy
    lake.sql(f"ALTER TABLE {{t}} {mend_it}", path)
    assert manager.recover().waiting == ()
    assert lake.sql("SELECT k FROM {t} ORDER BY k", path) == [("a",), ("c",)]


APPEND_ONLY = "ALTER TABLE {t} SET TBLPROPERTIES ('delta.appendOnly' = 'true')"


def test_a_table_that_is_only_appended_to_takes_no_other_change(lake: Lake) -> None:
    path = lake.table(rows="('a', 1.0)")
    lake.sql(APPEND_ONLY, path)
    more = [{"k": "b", "total": 2.0}]
    with lake.manager().transaction() as tx:
        table = tx.table(path)
        for change in (
            lambda: table.update({"total": "0"}, where="k = 'a'"),
            lambda: table.delete(where="k = 'a'"),
            lambda: table.merge(more, on="k", **TOTALS),
            lambda: table.merge(more, on="k", delete="true"),
        ):
            with pytest.raises(InvalidInput, match=r"delta\.appendOnly"):
                change()
        assert attempt_of(tx).changes == []
        table.append(more)
        table.merge([{"k": "c", "total": 3.0}], on="k", insert="*")
    assert lake.rows(path) == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


def test_a_table_that_can_only_be_appended_to_by_the_commit_aborts_other_changes(
    lake: Lake,
) -> None:
    path = lake.table(rows="('a', 1.0)")
    with pytest.raises(TransactionAborted, match=r"delta\.appendOnly"):
        with lake.manager().transaction() as tx:
            tx.table(path).delete(where="k = 'a'")
            lake.sql(APPEND_ONLY, path)
    assert lake.manager().recover().waiting == ()
    assert lake.rows(path) == [("a", 1.0)]


def test_a_table_that_is_not_there_is_refused(lake: Lake) -> None:
    tx = lake.manager().transaction()
    for name in (f"{lake.root}/lake/nowhere", "default.nowhere", "nowhere.at.all"):
        with pytest.raises(TableNotFound):
            tx.table(name).append([{"k": "a"}])
    wrong: list[Any] = ["", None, 5]
    for name in wrong:
        with pytest.raises(InvalidInput):
            tx.table(name).append([{"k": "a"}])


MISNAMED = {
    "a.b.c.d": "at most three parts",
    "s3x://bucket/table": "No FileSystem for scheme",
    "http://example.org/table": "cannot hold tables",
}
NO_HOST = "hdfs://nowhere.invalid:1/table"


def test_a_name_that_leads_nowhere_is_refused_for_a_table_and_for_a_store(lake: Lake) -> None:
    """It ended in an error of Java, or of Spark's about a part of it."""
    tx = lake.manager().transaction()
    known = lake.table()
    for name, why in {**MISNAMED, f"{known}@v0": "DELTA_FILE_NOT_FOUND"}.items():
        for act in (
            lambda name=name: tx.table(name).append([{"k": "a"}]),
            lambda name=name: tx.table(name).schema,
        ):
            with pytest.raises(InvalidInput, match=why) as told:
                act()
            assert name in str(told.value) and "the name of a table" in str(told.value)
    with pytest.raises(StoreError, match="UnknownHostException"):
        _ = tx.table(NO_HOST).schema
    with pytest.raises(StoreError, match="UnknownHostException"):
        QueueManager(lake.spark, NO_HOST).list_queues()
    assert attempt_of(tx).changes == []
    for root, why in {**MISNAMED, "x`y": "no s", "no.schema": "REQUIRES"}.items():
        for call in ("list_queues", "create_queue"):
            with QueueManager(lake.spark, root) as manager:
                given = ("q", "n long") if call == "create_queue" else ()
                kind = StoreNotFound if root == "x`y" else InvalidInput
                with pytest.raises(kind, match=why) as refused:
                    getattr(manager, call)(*given)
                details: Any = refused.value
                assert root in str(details)
                assert details.root == root if kind is StoreNotFound else details.name == "root"


def test_a_change_that_is_refused_says_why(lake: Lake) -> None:
    """Spark explains it in a line of its own, which was not read."""
    table = lake.manager().transaction().table(lake.table())
    with pytest.raises(InvalidInput, match=r"cannot be done: .*nosuch"):
        table.delete(where="nosuch = 1")
    with pytest.raises(InvalidInput, match=r"cannot be done: .*nosuch"):
        table.update({"nosuch": "1"}, where="true")


def test_a_table_that_was_replaced_before_the_commit_aborts_it(lake: Lake) -> None:
    path = lake.table()
    tx = lake.manager().transaction()
    tx.table(path).append([{"k": "a", "total": 1.0}])
    lake.sql("CREATE OR REPLACE TABLE {t} USING delta AS SELECT 'b' AS k", path)
    with pytest.raises(TransactionAborted, match="replaced"):
        tx.commit()
    assert lake.rows(path) == [("b",)]


# --------------------------------------------------------------- decided, and not applied


def test_whoever_recovers_applies_what_a_dead_process_decided(lake: Lake) -> None:
    path, key = lake.table(), f"dead-{next(_NUMBERS)}"
    append = lambda tx: tx.table(path).append([{"k": "a", "total": 1.0}])  # noqa: E731
    lake.decided_only(append, key)
    receipt = lake.manager().outcome(key).receipt
    assert lake.rows(path) == [] and receipt is not None and not receipt.applied
    first, second = lake.manager("B"), lake.manager("C")
    assert first.recover().waiting == () == second.recover().waiting
    assert lake.rows(path) == [("a", 1.0)]
    receipt = lake.manager().outcome(key).receipt
    assert receipt is not None and receipt.applied


def test_a_later_commit_applies_the_older_changes_first(lake: Lake) -> None:
    path = lake.table(rows="('a', 1.0)")
    lake.decided_only(lambda tx: tx.table(path).update({"total": "total + 1"}, where="true"))
    with lake.manager().transaction() as tx:
        tx.table(path).update({"total": "total * 10"}, where="true")
    assert lake.rows(path) == [("a", 20.0)]


def test_a_change_whose_reply_was_lost_is_applied_once(lake: Lake) -> None:
    path = lake.table()
    injector = Injector()
    manager = lake.manager("A", injector)
    tx = manager.transaction()
    tx.table(path).append([{"k": "a", "total": 1.0}])
    real = client_of(manager).store.tables.apply

    def unheard(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        raise ConnectionError("no reply")

    client_of(manager).store.tables.apply = unheard
    assert tx.commit().applied
    lake.manager("B").recover()
    assert lake.rows(path) == [("a", 1.0)]


@pytest.mark.skipif(not LONG, reason="only older stores have such confirmations")
def test_a_confirmation_that_stands_twice_is_archived_once(spark: Any, tmp_path: Any) -> None:
    """In older stores a late try of it landed beside the next one."""
    lake = Lake(spark, World(store=DeltaStore(spark, str(tmp_path))), str(tmp_path))
    lake.world.create("in")
    path, journal = lake.table(), f"{tmp_path}/journal"
    append = lambda tx: tx.table(path).append([{"k": "a", "total": 1.0}])  # noqa: E731
    lake.decided_only(append, "dead")
    lake.manager("B").recover()
    confirmed = "kind = 'change_applied'"
    lake.sql(f"INSERT INTO {{t}} SELECT * FROM {{t}} WHERE {confirmed}", journal)
    standing = lake.sql(f"SELECT count(*) FROM {{t}} WHERE {confirmed}", journal)
    assert standing == [(2,)]
    keeper = lake.manager("keeper")
    proof = keeper.history.verify()
    assert [one.claim for one in proof.claims if not one.holds] == ["appends that landed once"]
    for _ in range(2):
        keeper.queue("in").send([{"i": 1}])
        keeper.maintain(transaction_seconds_max=0, vacuum=False)
    assert lake.sql(f"SELECT count(*) FROM {{t}} WHERE {confirmed}", journal) == [(0,)]
    told = [row["kind"] for row in keeper.history.changes().rows()]
    assert told.count("change_applied") == 1
    proof = keeper.history.verify()  # Delta's log knows of both, and an auditor is told
    wrong = {claim.claim: claim.expected - claim.found for claim in proof.claims if not claim.holds}
    assert wrong == {
        "appends that landed once": 1,
        "entries that Delta's log shows as inserted": 1,
    }
    assert not proof.problems
    receipt = lake.manager("C").outcome("dead").receipt
    assert receipt is not None and receipt.applied


def test_the_user_and_optimize_may_write_meanwhile(lake: Lake) -> None:
    path = lake.table(rows="('a', 1.0)")
    lake.decided_only(lambda tx: tx.table(path).merge([{"k": "a", "total": 1.0}], on="k", **TOTALS))
    lake.sql("INSERT INTO {t} VALUES ('b', 5.0)", path)
    lake.sql("OPTIMIZE {t}", path)
    lake.sql("UPDATE {t} SET total = total + 100 WHERE k = 'a'", path)
    lake.sql("ALTER TABLE {t} ADD COLUMN note string", path)
    assert lake.manager().recover().waiting == ()
    assert lake.rows(path) == [("a", 102.0, None), ("b", 5.0, None)]


SETBACKS = {
    "replaced": "CREATE OR REPLACE TABLE {t} USING delta AS SELECT 'x' AS k, 0.0D AS total",
    "restored": "RESTORE TABLE {t} TO VERSION AS OF 0",
    "overwritten": "INSERT OVERWRITE {t} VALUES ('x', 0.0)",
    "changed": "ALTER TABLE {t} ADD CONSTRAINT small CHECK (total < 10)",
}


@pytest.mark.parametrize("how", SETBACKS if LONG else ("restored",))
def test_a_table_that_was_set_back_waits_and_holds_up_no_other(lake: Lake, how: str) -> None:
    path, other = lake.table(rows="('a', 1.0)"), lake.table()

    def change(tx: Any) -> None:
        tx.table(path).append([{"k": "b", "total": 50.0}])
        tx.table(other).append([{"k": "b", "total": 50.0}])

    tx = lake.decided_only(change)
    lake.sql(SETBACKS[how], path)
    before = lake.rows(path)
    manager = lake.manager()
    waiting = manager.recover().waiting
    assert [(w.table, w.transaction_id) for w in waiting] == [(path, tx.id)]
    assert waiting[0].change_id in waiting[0].remedy and waiting[0].reason
    assert lake.rows(path) == before and lake.rows(other) == [("b", 50.0)]
    if how == "changed":
        lake.sql("ALTER TABLE {t} DROP CONSTRAINT small", path)
        assert manager.recover().waiting == ()
    else:
        manager.apply_change(waiting[0].change_id)
    assert set(lake.rows(path)) == {*before, ("b", 50.0)}
    assert lake.manager("B").recover().waiting == ()


def test_a_dropped_table_waits_until_the_change_is_waived(lake: Lake) -> None:
    name = f"default.dropped_{next(_NUMBERS)}"
    lake.spark.sql(f"CREATE TABLE {name} (k string, total double) USING delta")
    lake.decided_only(lambda tx: tx.table(name).append([{"k": "a", "total": 1.0}]))
    lake.spark.sql(f"DROP TABLE {name}")
    manager = lake.manager()
    (waiting,) = manager.recover().waiting
    assert "gone" in waiting.reason
    with pytest.raises(TableNotFound, match="table_gone=True"):
        manager.waive_change(waiting.change_id, "the table is no more")
    manager.waive_change(waiting.change_id, "the table is no more", table_gone=True)
    assert lake.manager("B").recover().waiting == ()
    waived = [e for e in lake.world.entries() if e.kind == model.CHANGE_WAIVED]
    assert waived[-1].reason == "the table is no more" and waived[-1].actor == "A"
    with pytest.raises(ChangeNotFound):
        manager.waive_change(waiting.change_id, "twice")


@pytest.mark.parametrize("by_path", [False, True] if LONG else [True])
def test_an_append_makes_no_table_anew_that_is_dropped_while_it_waits(
    lake: Lake, by_path: bool
) -> None:
    """Its table was there when the client looked, and is dropped before the append begins."""
    from pyspark.errors import AnalysisException

    name = lake.table() if by_path else f"default.dropped_{next(_NUMBERS)}"
    if not by_path:
        lake.spark.sql(f"CREATE TABLE {name} (k string, total double) USING delta")
    lake.decided_only(lambda tx: tx.table(name).append([{"k": "a", "total": 1.0}]))
    client = client_of(lake.manager())
    (one,) = [c for cs in Applier(client)._unapplied(None).values() for c in cs]
    if by_path:
        shutil.rmtree(name)
    else:
        lake.spark.sql(f"DROP TABLE {name}")
    with pytest.raises(AnalysisException):
        client.store.tables.apply(one.change, one.stamp(client.cache.store_id))
    assert client.store.tables.describe(name) is None
    lake.manager().waive_change(one.change_id, "the table is no more", table_gone=True)


@pytest.mark.parametrize("merges", [False, True] if LONG else [False])
def test_a_change_waits_while_some_of_its_staged_rows_are_missing(lake: Lake, merges: bool) -> None:
    """Its payload was set back: a statement would find fewer rows, or none, and use its number."""
    path, rows = lake.table(), [{"k": "b", "total": 1.0}, {"k": "c", "total": 2.0}]

    def change(tx: Any) -> None:
        if merges:
            tx.table(path).merge(rows, on="k", **TOTALS)
        else:
            tx.table(path).append(rows)

    lake.decided_only(change)
    client = client_of(lake.manager())
    (one,) = [c for cs in Applier(client)._unapplied(None).values() for c in cs]
    assert one.change.source is not None
    payload = f"delta.`{lake.root}/payload/{one.change.source.payload_id}`"
    newest = lake.spark.sql(f"DESCRIBE HISTORY {payload} LIMIT 1").first()["version"]
    before = lake.rows(path)
    lake.spark.sql(f"RESTORE {payload} TO VERSION AS OF 0")
    (waiting,) = lake.manager().recover().waiting
    assert "PayloadRemoved: 0 of the 2 rows" in waiting.reason
    assert lake.rows(path) == before
    lake.spark.sql(f"RESTORE {payload} TO VERSION AS OF {newest}")
    assert not lake.manager().recover().waiting
    assert len(lake.rows(path)) == len(before) + 2


def test_a_clone_is_another_table(lake: Lake) -> None:
    path = lake.table()
    lake.decided_only(lambda tx: tx.table(path).append([{"k": "a", "total": 1.0}]))
    clone = f"{path}-clone"
    lake.spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{path}`")
    assert lake.manager().recover().waiting == ()
    assert lake.rows(path) == [("a", 1.0)] and lake.rows(clone) == []


def test_waiving_holds_off_an_applier_on_its_way(lake: Lake) -> None:
    path = lake.table()
    lake.decided_only(lambda tx: tx.table(path).append([{"k": "a", "total": 1.0}]))
    late = lake.manager("late")
    on_its_way = Applier(client_of(late))
    (one,) = [c for cs in on_its_way._unapplied(None).values() for c in cs]
    lake.manager().waive_change(one.change_id, "given up")
    stamp = one.stamp(client_of(late).cache.store_id)
    assert client_of(late).store.tables.apply(one.change, stamp) is None
    assert lake.rows(path) == []


def test_it_costs_a_staging_before_and_a_commit_after_the_decision(lake: Lake) -> None:
    path, manager = lake.table(), lake.manager()
    rows = [{"k": "a", "total": 1.0}]
    manager.queue("out").send([{"i": 1}])  # everything is warm
    with manager.transaction() as tx:
        tx.table(path).append(rows)
    with manager.transaction() as tx, Cost(lake.spark, lake.root) as staging:
        tx.table(path).append(rows)
    assert staging.commits == 1
    with Cost(lake.spark, lake.root) as whole, manager.transaction() as tx:
        tx.table(path).merge(rows, on="k", update="*")
        tx.queue("out").send([{"i": 2}])
    assert whole.commits == 4  # two stagings, the decision, the table
    facts = [e for e in lake.world.entries() if e.kind == model.CHANGE_APPLIED]
    with Cost(lake.spark, lake.root) as riding:
        manager.queue("out").send([{"i": 3}])
    assert riding.commits == 2  # the confirmation rides on the next append
    confirmed = [e for e in lake.world.entries() if e.kind == model.CHANGE_APPLIED]
    assert len(confirmed) == len(facts) + 1
    with Cost(lake.spark, lake.root) as several, manager.transaction() as tx:
        for number in range(4):
            tx.table(path).append([{"k": f"several {number}", "total": 1.0}])
    assert several.commits == 6  # four stagings, the decision, the table
    assert len([row for row in lake.rows(path) if row[0].startswith("several")]) == 4
    assert manager.recover().waiting == () and manager.history.verify().ok


def test_drivers_users_and_recoveries_may_all_write_at_once(lake: Lake) -> None:
    path = lake.table(rows="('a', 0.0)")
    rounds, failed = 4 if LONG else 2, []

    def repeat(act: Any) -> threading.Thread:
        def run() -> None:
            try:
                for _ in range(rounds):
                    act()
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def merging(name: str) -> Any:
        manager = lake.manager(name)

        def act() -> None:
            with manager.transaction() as tx:
                tx.table(path).merge([{"k": "a", "total": 1.0}], on="k", **TOTALS)

        return act

    session = lake.spark.newSession()
    user = lambda: session.sql(f"INSERT INTO delta.`{path}` VALUES ('u', 1.0)")  # noqa: E731
    recovering = lake.manager("R")
    threads = [repeat(merging("A")), repeat(merging("B")), repeat(user), repeat(recovering.recover)]
    for thread in threads:
        thread.join()
    assert not failed
    assert lake.manager().recover().waiting == ()
    rows = lake.rows(path)
    assert rows.count(("u", 1.0)) == rounds
    assert [row for row in rows if row[0] == "a"] == [("a", 2.0 * rounds)]


def test_older_changes_end_first(lake: Lake) -> None:
    path = lake.table()
    lake.decided_only(lambda tx: tx.table(path).append([{"k": "a", "total": 1.0}]))
    lake.decided_only(lambda tx: tx.table(path).append([{"k": "b", "total": 1.0}]))
    lake.sql("INSERT OVERWRITE {t} VALUES ('x', 0.0)", path)
    manager = lake.manager()
    first, second = manager.recover().waiting
    assert "older change" in second.reason
    with pytest.raises(ChangeWaiting, match="older"):
        manager.apply_change(second.change_id)
    manager.waive_change(first.change_id, "not wanted")
    manager.apply_change(second.change_id)
    assert lake.rows(path) == [("b", 1.0), ("x", 0.0)]


def test_tables_in_memory_can_only_be_appended_to() -> None:
    from txnqueue.testing import MemoryStore, memory_manager, plain_schema

    store = MemoryStore()
    manager = memory_manager(store)
    manager.create_queue("q", "i long")
    store.tables.create("gold", plain_schema("i long"))
    with pytest.raises(PlatformMissing):
        manager.transaction().table("gold").delete(where="true")


# ------------------------------------------------------------- tables that others have made


def test_a_field_of_a_column_named_like_the_alias_is_not_taken_for_another_column(
    lake: Lake,
) -> None:
    """``target.id`` was the column ``id``, and the wrong row was deleted."""
    path = lake.table("id long, target struct<id: long>", "(5, named_struct('id', 1L))")
    lake.sql("INSERT INTO {t} VALUES (1, named_struct('id', 5L))", path)
    comment = "id = 1 AND target/* the column */ . id = 5 -- target.x"
    for where in ("target.id = 5", "`Target` . `ID` = 5", "id = 0 OR target.id = 5", comment):
        with pytest.raises(InvalidInput, match=r"target\.target\.id"):
            with lake.manager().transaction() as tx:
                tx.table(path).delete(where=where)
    with lake.manager().transaction() as tx:
        tx.table(path).delete(where="target . target . id = 5 AND 'target.id' <> '' -- target.id")
    assert lake.sql("SELECT id FROM {t}", path) == [(5,)]


def test_a_table_by_path_that_others_have_named_is_that_of_its_path(lake: Lake) -> None:
    """As delta-rs writes a name: the table was looked for in the catalog under it."""
    path = lake.table("n long")
    log = Path(path) / "_delta_log"
    first = log / "00000000000000000000.json"
    lines = [json.loads(line) for line in first.read_text("utf-8").splitlines()]
    for line in lines:
        line.get("metaData", {})["name"] = "totals"
    copied = Path(f"{path}-named") / "_delta_log"
    copied.mkdir(parents=True)
    (copied / first.name).write_text("\n".join(map(json.dumps, lines)), "utf-8")
    named = str(copied.parent)
    with lake.manager().transaction() as tx:
        tx.table(named).append([{"n": 1}])
    with lake.manager().transaction() as tx:
        tx.table(named).merge([{"n": 1}, {"n": 2}], on="n", insert="*")
    assert lake.rows(named) == [(1,), (2,)]


@pytest.mark.parametrize("said", ["TRUE", "True", "true"] if LONG else ["TRUE"])
def test_append_only_is_read_as_delta_reads_it(lake: Lake, said: str) -> None:
    path = lake.table("n long", "(1)")
    lake.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('delta.appendOnly' = '{said}')", path)
    with pytest.raises(InvalidInput, match="appendOnly"):
        with lake.manager().transaction() as tx:
            tx.table(path).delete(where="n = 1")
    assert lake.rows(path) == [(1,)]


def test_a_value_that_reads_another_table_is_refused(lake: Lake) -> None:
    """Who applies it later may find other rows there, or another table of that name."""
    path, rates = lake.table("n long, said string", "(0, 'x')"), lake.table("r long", "(7)")
    lake.spark.sql("CREATE TABLE IF NOT EXISTS default.rates_of (r long) USING delta")
    value = f"(SELECT max(r) FROM delta.`{rates}`)"
    with pytest.raises(InvalidInput, match="reads a table"):
        with lake.manager().transaction() as tx:
            tx.table(path).update({"n": value}, where="true")
    with pytest.raises(InvalidInput, match="reads a table"):
        with lake.manager().transaction() as tx:
            insert = {"n": value, "said": "source.said"}
            tx.table(path).merge([{"said": "y"}], on="said", insert=insert)
    other = f"coalesce(source.said, (SELECT max(said) FROM delta.`{path}`))"
    for insert in ({"n": "(TABLE default.rates_of)"}, {"n": "1", "said": other}):
        with pytest.raises(InvalidInput, match="reads a table"):
            with lake.manager().transaction() as tx:
                tx.table(path).merge([{"said": "y"}], on="said", insert=insert)
    with lake.manager().transaction() as tx:
        tx.table(path).update({"said": "'select max(r) from rates'"}, where="n = 0")
    assert lake.rows(path) == [(0, "select max(r) from rates")]
    lake.spark.sql("DROP TABLE default.rates_of")


def test_a_condition_may_quote_what_spark_says(lake: Lake) -> None:
    path = lake.table("said string", "('Error occurred during query planning: x'), ('b')")
    with lake.manager().transaction() as tx:
        tx.table(path).delete(where="said LIKE 'Error occurred during query planning:%'")
    assert lake.rows(path) == [("b",)]


def test_a_change_of_a_table_that_is_a_view_now_is_waived_by_who_says_so(lake: Lake) -> None:
    name = f"default.viewed_{next(_NUMBERS)}"
    lake.spark.sql(f"CREATE TABLE {name} (k string, total double) USING delta")
    lake.decided_only(lambda tx: tx.table(name).append([{"k": "a", "total": 1.0}]))
    lake.spark.sql(f"ALTER TABLE {name} RENAME TO {name}_old")
    lake.spark.sql(f"CREATE VIEW {name} AS SELECT * FROM {name}_old")
    manager = lake.manager()
    (waiting,) = manager.recover().waiting
    with pytest.raises(InvalidInput, match="not a Delta table"):
        manager.waive_change(waiting.change_id, "a view now")
    manager.waive_change(waiting.change_id, "a view now", table_gone=True)
    assert lake.manager("B").recover().waiting == ()
    lake.spark.sql(f"DROP VIEW {name}")
    lake.spark.sql(f"DROP TABLE {name}_old")


def test_what_waits_of_a_replaced_table_and_the_changes_of_the_new_one_do_not_meet(
    lake: Lake,
) -> None:
    """CREATE OR REPLACE keeps the numbers that the table has taken."""
    path = lake.table("k string, total double")
    lake.decided_only(lambda tx: tx.table(path).append([{"k": "a", "total": 1.0}]), "old")
    replacing = "SELECT 'z' AS k, 0.0D AS total"
    lake.sql(f"CREATE OR REPLACE TABLE {{t}} USING delta AS {replacing}", path)
    with lake.manager().transaction() as tx:
        tx.table(path).append([{"k": "b", "total": 2.0}])
    assert tx.receipt is not None and tx.receipt.applied
    manager = lake.manager("C")
    (waiting,) = manager.recover().waiting
    manager.apply_change(waiting.change_id)
    with lake.manager().transaction() as tx:
        tx.table(path).append([{"k": "c", "total": 3.0}])
    assert lake.rows(path) == [("a", 1.0), ("b", 2.0), ("c", 3.0), ("z", 0.0)]
    assert lake.manager("B").recover().waiting == ()


def test_a_table_that_forgets_the_numbers_of_changes_is_known(lake: Lake) -> None:
    path = lake.table("n long")
    tables = client_of(lake.manager()).store.tables
    found = tables.describe(path)
    assert found is not None and not found.forgets_numbers
    kept = "'delta.setTransactionRetentionDuration' = 'interval 1 day'"
    lake.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({kept})", path)
    found = tables.describe(path)
    assert found is not None and found.forgets_numbers
