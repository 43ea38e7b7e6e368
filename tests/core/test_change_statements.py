"""What the user's SQL may contain beside what the library writes around it."""

from __future__ import annotations

import re

from txnqueue.storage.tables import MERGE, Change, TableInfo
from txnqueue.storage.tables.constraints import rules
from txnqueue.storage.tables.statements import merge
from txnqueue.testing import plain_schema

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
