"""What the user's SQL may contain beside what the library writes around it."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.errors import InvalidInput
from txnqueue.storage.tables import DELETE, MERGE, Change, TableCommit, TableInfo
from txnqueue.storage.tables.constraints import check_names, rules
from txnqueue.storage.tables.statements import merge
from txnqueue.testing import plain_schema
from txnqueue.transactions.table_applier import Decided, obstacle

STRUCT = StructType([StructField("id", LongType()), StructField("other", LongType())])
COMMENTS = ["", " -- why", " -- why\\", " -- why\n -- and why"]


def without_comments(statement: str) -> str:
    """Leave out what Spark takes for comments, which a backslash continues on the next line."""
    return " ".join(re.sub(r"--(\\\n|[^\r\n])*", "", statement).split())


def test_a_comment_in_the_sql_of_a_change_ends_with_it() -> None:
    def statement(said: str) -> str:
        change = Change(
            0,
            "gold",
            "id",
            0,
            MERGE,
            None,
            condition=f"target.n = source.n{said}",
            update={"n": f"source.n{said}", "m": f"1{said}"},
            insert={"n": f"source.n{said}", "m": f"2{said}"},
            delete=f"source.n = 0{said}",
            lineage=True,
        )
        return without_comments(merge(change, "rows", "t-1"))

    assert {statement(said) for said in COMMENTS} == {statement("")}
    assert statement("").count("t-1") == 2 and "THEN DELETE WHEN MATCHED" in statement("")


def test_a_comment_in_a_constraint_ends_with_it() -> None:
    def checked(said: str) -> list[str]:
        info = TableInfo("gold", "id", 0, plain_schema("n long"), {"positive": f"n > 0{said}"})
        return [without_comments(one) for one in rules(info, ["n"]).values()]

    assert [checked(said) for said in COMMENTS] == [checked("")] * len(COMMENTS)
    assert checked("") == ["coalesce((n > 0 ), false)"]


@pytest.mark.parametrize(
    ("kind", "where", "refused"),
    [
        (STRUCT, "target.id = 5", True),
        (STRUCT, "target.other = 5", False),  # only the field has that name
        (STRUCT, "target.target.id = 5", False),
        (STRUCT, "target . target . id = 5", False),
        (STRUCT, "id = 5 AND said = 'target.id'", False),
        (STRUCT, 'said = "target.id" -- target.id', False),
        (STRUCT, "/* target.id */ my_target.id = 5", False),
        (STRUCT, "target/* of it */.`ID` = 5", True),
        (ArrayType(STRUCT), "array_contains(target.id, 5)", True),
        (MapType(StringType(), LongType()), "target.said = 5", True),
        (MapType(StringType(), LongType()), "target['said'] = 5", False),
        (LongType(), "target.id = 5", False),
    ],
)
def test_a_name_that_spark_takes_for_another_column_is_refused(
    kind: DataType, where: str, refused: bool
) -> None:
    columns = {"id": LongType(), "said": StringType(), "target": kind}
    schema = StructType([StructField(name, of) for name, of in columns.items()])
    info = TableInfo("gold", "id", 0, schema)
    change = Change(0, "gold", "id", 0, DELETE, condition=where, delete="true")
    with pytest.raises(InvalidInput, match=r"target\.target\.") if refused else nullcontext():
        check_names(info, change)
    check_names(info, replace(change, operation=MERGE))


def test_columns_that_are_replaced_do_not_set_a_table_back() -> None:
    entry = Entry("table/id", "id", model.CHANGE_DECIDED, append_id="a", index=0, version=7)
    one = Decided(entry, Change(0, "gold", "id", 3, MERGE))
    info = TableInfo("gold", "id", 4, StructType([]))

    def found(operation: str) -> str | None:
        return obstacle(one, info, [TableCommit(4, operation, None, {})], "store")

    assert found("REPLACE COLUMNS") is None
    for operation in ("REPLACE TABLE", "CREATE OR REPLACE TABLE AS SELECT", "RESTORE", "CLONE"):
        assert "set back meanwhile" in (found(operation) or "")
