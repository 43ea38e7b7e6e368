"""What ``format("txnqueue")`` gives to Spark, of a store that 0.1.0 wrote; its own calls alone."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
from pyspark.sql.types import StructType

import txnqueue
from txnqueue import QueueDataSource
from txnqueue.core.model import commit_seq
from txnqueue.errors import (
    FilesNotReadable,
    InvalidInput,
    OnlyLooking,
    PayloadRemoved,
    QueueNotFound,
    StoreNotFound,
    StoreSetBack,
)
from txnqueue.reports.postings import Posting, portions
from txnqueue.storage.payload import Part
from txnqueue.storage.payload.schemas import plain_schema


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("older")
    with tarfile.open(Path(__file__).parent / "0.1.0.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    return str(folder / "store")


def source(store: str, /, **options: str) -> QueueDataSource:
    return QueueDataSource({"path": store, "queue": "orders", **options})


def read(reader: Any, partitions: Any) -> list[dict[str, Any]]:
    return [row for one in partitions for batch in reader.read(one) for row in batch.to_pylist()]


def batch(store: str, /, schema: str = "", **options: str) -> list[dict[str, Any]]:
    made = source(store, **options)
    reader = made.reader(made.schema() if not schema else plain_schema(schema))
    return read(reader, reader.partitions())


def stream(root: str, **options: str) -> Any:
    made = source(root, **options)
    return made.streamReader(made.schema())


def remove_payload(store: Path, payload_id: str) -> None:
    """Remove the rows of a payload table as maintenance does: by a commit of Delta."""
    log = store / "payload" / payload_id / "_delta_log"
    files = [file for file in log.parent.rglob("*.parquet") if "_delta_log" not in file.parts]
    gone = [{"remove": {"path": str(f.relative_to(log.parent)), "dataChange": True}} for f in files]
    newest = max(int(file.stem) for file in log.glob("[0-9]*.json"))
    told = "\n".join(map(json.dumps, gone))
    (log / f"{newest + 1:020}.json").write_text(told, encoding="utf-8")


def test_a_batch_is_what_a_snapshot_says(root: str) -> None:
    kept = txnqueue.look(root).history
    for moment in (None, 10240, 18432, 28672):
        expected = kept.as_of(moment).messages("orders").rows()
        found = batch(root, **({} if moment is None else {"asOf": str(moment)}))
        assert len(found) == len(expected) > 0
        names = {row["_message"]["id"]: row for row in expected}
        for row in found:
            same = names[row["_message_id"]]
            assert (row["order_id"], row["customer"]) == (same["order_id"], same["customer"])
            assert row["_lane"] == same["_message"]["lane"]


def test_small_partitions_have_the_same_messages(root: str) -> None:
    made = source(root, messagesPerPartition="2")
    reader = made.reader(made.schema())
    portioned: Any = reader.partitions()
    assert [sum(map(len, one.found)) for one in portioned] == [2] * 6 + [1]
    key = lambda row: row["_message_id"]  # noqa: E731
    assert sorted(read(reader, portioned), key=key) == sorted(batch(root), key=key)


def test_a_stream_has_each_posted_message_once_commit_by_commit(root: str) -> None:
    reader = stream(root)
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    whole = read(reader, reader.partitions(start, end))
    entries = txnqueue.look(root).entries().to_pylist()
    queue_id = start["queue_id"]
    posted = [e for e in entries if e["kind"] == "posted" and e["queue_id"] == queue_id]
    assert len(whole) == sum(e["count"] for e in posted) > 13
    assert len({row["_message_id"] for row in whole}) == len(whole)
    assert {row["_commit_seq"] for row in whole} == {e["commit_seq"] for e in posted}
    pieces, at = [], start
    for seq in sorted({row["_commit_seq"] for row in whole}):
        upto = {"queue_id": queue_id, "commit_seq": seq}
        pieces += read(reader, reader.partitions(at, upto))
        at = upto
    assert pieces == whole
    assert reader.partitions(end, end) == reader.partitions(end, start) == []
    assert reader.latestOffset(end) == reader.latestOffset() == end


def test_a_checkpoint_that_is_ahead_of_the_store_is_refused(root: str) -> None:
    """An older copy was put back: its next commits would have numbers that were read before."""
    reader = stream(root)
    end = reader.latestOffset(reader.initialOffset())
    ahead = {**end, "commit_seq": end["commit_seq"] + (500 << 10)}
    for ask in (
        lambda: reader.latestOffset(ahead),
        lambda: reader.partitions(ahead, ahead),
        lambda: reader.partitions(ahead, end),
        lambda: reader.partitions(end, ahead),
    ):
        with pytest.raises(StoreSetBack, match=f"up to {ahead['commit_seq']}.*new checkpoint"):
            ask()


def test_a_checkpoint_of_a_store_that_went_on_from_an_older_copy_is_refused(root: str) -> None:
    """Commits that were made since the copy have numbers that the checkpoint has passed."""
    reader = stream(root)
    end = reader.latestOffset(reader.initialOffset())
    assert stream(root).partitions(end, end) == []
    before = {**end, "append_id": "0" * 32}  # by the store that was replaced
    between = {**before, "commit_seq": end["commit_seq"] + 1}  # there, not here
    for ask in (
        lambda: stream(root).latestOffset(before),
        lambda: reader.latestOffset(before),
        lambda: reader.partitions(before, end),
        lambda: reader.partitions(between, between),
    ):
        with pytest.raises(StoreSetBack, match=r"that commit is another one now.*new checkpoint"):
            ask()


def test_a_checkpoint_that_does_not_name_its_append_goes_on(root: str) -> None:
    reader = stream(root)
    end = reader.latestOffset(reader.initialOffset())
    former = {"queue_id": end["queue_id"], "commit_seq": end["commit_seq"]}
    assert reader.latestOffset(former) == former
    assert reader.partitions(former, end) == []


@pytest.mark.parametrize(
    "written",
    [
        {},
        [],
        7,
        {"queue_id": "q", "commit_seq": "7"},
        {"commit_seq": 7},
        {"queue_id": "q", "commit_seq": 7, "append_id": 7},
    ],
    ids=str,
)
def test_a_checkpoint_that_no_stream_of_messages_wrote_is_refused(root: str, written: Any) -> None:
    reader = stream(root)
    end = reader.latestOffset()
    for ask in (
        lambda: reader.latestOffset(written),
        lambda: reader.partitions(written, end),
        lambda: reader.partitions(end, written),
    ):
        with pytest.raises(
            InvalidInput, match=r"in this checkpoint .* begin with a new checkpoint"
        ):
            ask()


def test_a_wrong_option_is_called_as_it_was_given(root: str) -> None:
    with pytest.raises(InvalidInput, match="messagesPerPartition='abc'"):
        source(root, messagesPerPartition="abc").reader(source(root).schema())
    with pytest.raises(InvalidInput, match="two stores"):
        source(root, root=f"{root}/").schema()


def test_a_limit_never_tears_a_commit(root: str) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    reader = stream(root, maxMessagesPerTrigger="3")
    assert reader.getDefaultReadLimit() == ReadMaxRows(3)
    at, end = reader.initialOffset(), reader.latestOffset()
    sizes = []
    while at != end:
        upto = reader.latestOffset(at, ReadMaxRows(3))
        sizes.append(sum(len(a) for one in reader.partitions(at, upto) for a in one.found))
        at = upto
    assert len(sizes) > 2 and all(size >= 3 for size in sizes[:-1])
    assert sum(sizes) == len(read(reader, reader.partitions(reader.initialOffset(), end)))


def test_a_query_that_reads_what_there_is_ends_there(root: str) -> None:
    from pyspark.sql.streaming.datasource import ReadMaxRows

    reader = stream(root)
    begin, end = reader.initialOffset(), reader.latestOffset()
    first = reader.latestOffset(begin, ReadMaxRows(1))
    assert first["commit_seq"] < end["commit_seq"]
    reader.prepareForTriggerAvailableNow()
    assert reader._upto == end["commit_seq"]
    reader._upto = first["commit_seq"]  # as if all else had come since
    count = len(read(reader, reader.partitions(begin, first)))
    assert reader.latestOffset(begin, ReadMaxRows(count + 1)) == first
    assert reader.latestOffset(first, ReadMaxRows(1_000)) == first


def test_a_stream_begins_where_it_is_told_to(root: str) -> None:
    latest = stream(root, startingAfter="latest")
    assert latest.initialOffset() == latest.latestOffset()
    after = stream(root, startingAfter="10240")
    rows = read(after, after.partitions(after.initialOffset(), after.latestOffset()))
    assert rows and min(row["_commit_seq"] for row in rows) > 10240
    with pytest.raises(InvalidInput, match="newest commit"):
        stream(root, startingAfter=str(commit_seq(10_000))).initialOffset()


def test_a_checkpoint_of_a_queue_that_was_dropped_is_refused(root: str) -> None:
    reader = stream(root)
    other = {"queue_id": "orders-0", "commit_seq": -1}
    with pytest.raises(QueueNotFound, match="new checkpoint"):
        reader.latestOffset(other)
    with pytest.raises(QueueNotFound, match="new checkpoint"):
        reader.partitions(other, {**other, "commit_seq": 5})


def test_payload_that_is_gone_fails_and_leaves_nothing_out(root: str, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    shutil.copytree(root, copy)
    (payload,) = copy.glob("payload/orders-*/_delta_log")
    remove_payload(copy, payload.parent.name)
    for reader, found in (
        ((made := stream(str(copy))), made.partitions(made.initialOffset(), made.latestOffset())),
        ((held := source(str(copy)).reader(source(root).schema())), held.partitions()),
    ):
        with pytest.raises(PayloadRemoved, match=r"startingAfter \d+"):
            read(reader, found)


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"queue": "nothing"}, QueueNotFound, "'nothing'"),
        ({"asOf": "0"}, QueueNotFound, "give a later moment"),
        ({"asOf": "yesterday"}, InvalidInput, "asOf='yesterday'"),
        ({"asOf": "999999999"}, InvalidInput, "newest commit"),
        ({"path": "lake.messaging"}, FilesNotReadable, "catalog"),
        ({"path": "/nowhere/at/all"}, StoreNotFound, "/nowhere/at/all"),
        ({"path": "/a", "root": "/b"}, InvalidInput, "two stores"),
    ],
)
def test_options_that_cannot_be_used_are_named(
    root: str, options: dict[str, str], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        batch(root, **options)


def test_options_of_the_other_kind_are_refused(root: str) -> None:
    with pytest.raises(InvalidInput, match="no option 'startingafter'"):
        batch(root, startingAfter="latest")
    with pytest.raises(InvalidInput, match="no option 'asof'"):
        stream(root, asOf="10240")
    for text in ("0", "-1", "x", "9" * 5_000):
        with pytest.raises(txnqueue.errors.TxnQueueError, match="messagesPerPartition"):
            batch(root, messagesPerPartition=text)
    for text in ("soon", "9" * 5_000):
        with pytest.raises(InvalidInput, match=f"startingAfter='{text[:9]}"):
            stream(root, startingAfter=text)


def test_columns_that_the_queue_does_not_have_are_refused(root: str) -> None:
    """The user gave a schema, or the queue was dropped and created anew with other columns."""
    given = source(root).schema().add("more", "string")
    with pytest.raises(InvalidInput, match="no column 'more'"):
        source(root).reader(given).partitions()
    with pytest.raises(InvalidInput, match="no column 'more'"):
        made: Any = source(root).streamReader(given)
        made.partitions(made.initialOffset(), made.latestOffset())
    some = [field for field in source(root).schema() if field.name in ("customer", "_lane")]
    reader: Any = source(root).reader(StructType(some))
    assert {*read(reader, reader.partitions())[0]} == {"customer", "_lane"}


def test_a_type_that_the_values_do_not_fit_is_refused(root: str) -> None:
    for given in ("order_id string", "order_id tinyint"):
        assert len(batch(root, schema=given)) > 0
    for given in ("customer int", "customer binary, order_id date"):
        with pytest.raises(InvalidInput, match="without schema"):
            batch(root, schema=given)
    with pytest.raises(InvalidInput, match="makes it boolean"):
        batch(root, schema="order_id boolean")


def test_nothing_is_written(root: str) -> None:
    made = source(root)
    with pytest.raises(OnlyLooking, match=r"queue\.send"):
        made.writer(made.schema(), overwrite=False)
    with pytest.raises(OnlyLooking, match=r"queue\.sink\(\)"):
        made.streamWriter(made.schema(), overwrite=False)


def test_portions_have_all_and_not_more_than_they_may() -> None:
    def posting(seq: int, *ranges: tuple[int, int]) -> Posting:
        return Posting(seq, Part("p", 0, f"s{seq}", ranges, "q", 0, 0, 0, None, None))

    found = [posting(1, (0, 4), (10, 10)), posting(2, (7, 7)), posting(3, (0, 9))]
    for most in (1, 2, 3, 5, 7, 17, 100):
        cut = list(portions(found, most))
        sizes = [sum(map(len, portion)) for portion in cut]
        assert sizes[:-1] == [most] * (len(sizes) - 1) and 0 < sizes[-1] <= most
        told = [
            (one.commit_seq, offset)
            for portion in cut
            for one in portion
            for first, last in one.part.ranges
            for offset in range(first, last + 1)
        ]
        assert told == [
            (one.commit_seq, offset)
            for one in found
            for first, last in one.part.ranges
            for offset in range(first, last + 1)
        ]
    assert list(portions([], 5)) == []


def test_what_arrow_makes_of_the_columns_is_what_spark_expects(root: str) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    made = source(root)
    reader = made.reader(made.schema())
    (batch_read,) = [b for one in reader.partitions() for b in reader.read(one)]
    assert isinstance(batch_read, pa.RecordBatch)
    assert batch_read.schema.equals(to_arrow_schema(made.schema(), timezone="UTC"))
