"""What ``look(root).entries()`` gives to the tools that read Arrow."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

import txnqueue


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(Path(__file__).parent / "0.1.0.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    return txnqueue.look(str(folder / "store")).entries()


def expected(entries: pa.Table) -> dict[str, tuple[int, int]]:
    """Count, and take the last commit of, each kind."""
    found: dict[str, tuple[int, int]] = {}
    for row in entries.select(["kind", "commit_seq"]).to_pylist():
        count, last = found.get(row["kind"], (0, -1))
        found[row["kind"]] = count + 1, max(last, row["commit_seq"])
    return found


def test_duckdb_reads_the_entries(entries: pa.Table) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register("entries", entries)
        query = "SELECT kind, count(*), max(commit_seq) FROM entries GROUP BY kind"
        rows = connection.execute(query).fetchall()
        (sent,) = connection.execute(
            "SELECT sum(r.last - r.first + 1) FROM "
            "(SELECT unnest(ranges) AS r FROM entries WHERE kind = 'posted')"
        ).fetchone()
    assert {kind: (count, last) for kind, count, last in rows} == expected(entries)
    assert sent > 0


def test_polars_reads_the_entries(entries: pa.Table) -> None:
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(entries)
    grouped = frame.group_by("kind").agg(
        polars.len().alias("count"), polars.col("commit_seq").max().alias("last")
    )
    assert {row[0]: (row[1], row[2]) for row in grouped.rows()} == expected(entries)
    assert frame.schema["recorded_at"] == polars.Datetime("us", "UTC")


def test_pandas_reads_the_entries(entries: pa.Table) -> None:
    pytest.importorskip("pandas")
    frame = entries.to_pandas()
    grouped = frame.groupby("kind")["commit_seq"].agg(["size", "max"])
    assert {
        kind: (int(row["size"]), int(row["max"])) for kind, row in grouped.iterrows()
    } == expected(entries)
    assert str(frame["recorded_at"].dtype) == "datetime64[us, UTC]"
