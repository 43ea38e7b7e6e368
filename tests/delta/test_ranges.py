"""What selectors, settlements and moves bring to the driver: as many rows as there are ranges.

A million messages, ten million in the long run; what is counted are rows that Spark hands to
Python, messages that a predicate is asked of, jobs, and what Python allocates.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import INTERPRETED, LONG
from tests.delta.counting import Cost
from txnqueue import QueueManager
from txnqueue.core import ranges
from txnqueue.core.settings import RANGES_PER_CALL_MAX
from txnqueue.errors import InvalidInput, LimitExceeded
from txnqueue.messages.selector import LOOK_MIN, Selector

pytestmark = pytest.mark.spark
COUNT = 10_000_000 if LONG else 1_000_000
PYTHON_BYTES_MAX = 25_000_000
"""So much Python may have allocated at any time: 25 bytes for each of a million messages."""
ROWS_MAX = 500
"""So many rows an operation may bring, those of the journal included."""
LOOK_JOBS_MAX = 5
"""A look counts what is there, finds it, and each of Delta's tables is opened for that."""
TOLD = ("rows", "looks", "looked_at", "jobs", "peak")


class Brought:
    """What came to the driver between ``with Brought(...)`` and its end."""

    def __init__(self, spark: Any, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cost, self._monkeypatch = Cost(spark, root), monkeypatch
        self.rows = self.looked_at = self.looks = self.peak = self.jobs = 0

    def __enter__(self) -> Brought:
        from pyspark.sql.classic.dataframe import DataFrame

        def counted(real: Any) -> Any:
            def call(frame: Any) -> Any:
                found = real(frame)
                self.rows += len(found)
                return found

            return call

        for name in ("collect", "toArrow"):
            self._monkeypatch.setattr(DataFrame, name, counted(getattr(DataFrame, name)))
        found_ranges = Selector._ranges

        def looking(selector: Selector, parts: Any) -> Any:
            self.looks += 1
            self.looked_at += sum(ranges.count(part.ranges) for part in parts)
            return found_ranges(selector, parts)

        self._monkeypatch.setattr(Selector, "_ranges", looking)
        self._cost.__enter__()
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self._cost.__exit__()
        self.jobs = self._cost.jobs
        self._monkeypatch.undo()
        told = {name: getattr(self, name) for name in TOLD}
        print(f"\n    {told}")  # of use in the long run, with -s
        assert self.peak < PYTHON_BYTES_MAX


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("ranges"))


@pytest.fixture(scope="module")
def manager(spark: Any, root: str) -> Iterator[QueueManager]:
    """A client whose session compiles queries, as users' do: a million rows are worth it."""
    settings = [name for name in INTERPRETED if name.startswith("spark.sql.codegen")]
    for name in settings:
        spark.conf.unset(name)
    yield QueueManager(spark, root, actor="ranges")
    for name in settings if not LONG else ():
        spark.conf.set(name, INTERPRETED[name])


def rows(spark: Any, count: int = COUNT) -> Any:
    """Rows whose keys are the same for a tenth of them."""
    key = f"CAST(id * 10 DIV {count} AS string) AS key"
    return spark.range(0, count, 1, 4).selectExpr("id AS n", key, "repeat('x', 20) AS rest")


@pytest.fixture(scope="module")
def queue(spark: Any, manager: QueueManager) -> Any:
    """A queue of a million messages; the tests take few of them, or give them back."""
    queue = manager.create_queue("events", "n long, key string, rest string")
    queue.send(rows(spark))
    return queue


@pytest.fixture
def brought(spark: Any, root: str, monkeypatch: pytest.MonkeyPatch) -> Brought:
    return Brought(spark, root, monkeypatch)


@pytest.mark.timeout(900)
def test_few_of_a_million_are_found_by_looking_at_the_first(queue: Any, brought: Brought) -> None:
    with brought:
        batch = queue.receive(20, where="n >= 0")
    assert (len(batch), brought.looks, brought.looked_at) == (20, 1, LOOK_MIN)
    assert brought.rows < ROWS_MAX
    batch.release()


@pytest.mark.timeout(900)
def test_every_second_of_a_million_is_not_brought_for_twenty(queue: Any, brought: Brought) -> None:
    with brought:
        found = queue.peek_messages(20, "n % 2 = 0")
    assert [row["n"] % 2 for row in found] == [0] * 20
    assert (brought.looks, brought.looked_at) == (1, LOOK_MIN)
    assert brought.jobs <= 3 * LOOK_JOBS_MAX, "a look, and reading what was found"


@pytest.mark.timeout(900)
def test_what_is_seldom_costs_few_looks_and_each_message_one(queue: Any, brought: Brought) -> None:
    wanted = [5, COUNT // 2, COUNT - 1]
    with brought:
        batch = queue.receive(20, where=f"n IN ({', '.join(map(str, wanted))})")
    assert sorted(row["n"] for row in batch.messages()) == wanted
    assert brought.looked_at == COUNT
    assert brought.looks == (3 if LONG else 2)
    assert brought.rows < ROWS_MAX
    batch.release()


@pytest.mark.timeout(900)
def test_a_settlement_brings_a_row_for_each_range(
    spark: Any, manager: QueueManager, queue: Any, brought: Brought
) -> None:
    batch = queue.receive(COUNT)
    assert len(batch) == COUNT
    few, stretch = COUNT // 1_000, COUNT // 100
    bad = batch.df.where(f"n > {few} AND n % {stretch} BETWEEN 2 AND 9")
    why = f"concat('tenth ', n * 10 DIV {COUNT}) AS why"
    bad = bad.selectExpr("_message", why, "explode(array(1, 2))")  # each of them twice
    with brought:
        assert batch.reject(where=f"n BETWEEN 7 AND {few}", reason="low") == few - 6
        assert batch.reject(matching=bad, reason_column="why") == 99 * 8
        with pytest.raises(LimitExceeded, match="smaller batches"):
            batch.accept(where="n % 2 = 0")
    assert brought.rows < RANGES_PER_CALL_MAX + 1 + ROWS_MAX
    batch.release()
    dead = manager.queue("events.dead").peek(COUNT)
    counts = dead.groupBy("_message.origin.reason").count().collect()
    assert {row[0]: row[1] for row in counts} == {
        "low": few - 6,
        "tenth 0": 9 * 8,
        **{f"tenth {n}": 10 * 8 for n in range(1, 10)},
    }


def test_a_frame_that_names_no_messages_is_refused(
    spark: Any, manager: QueueManager, queue: Any
) -> None:
    batch = queue.receive(3)
    named = batch.df.select("_message.id")
    wrong = {"'x'": "x", "':3'": ":3", "'a:'": "a:", "NULL": "None", "'a:-1'": "a:-1"}
    wrong["concat('a:', repeat('9', 19))"] = "a:9999"
    for written, shown in wrong.items():
        ids = named.union(spark.sql(f"SELECT {written} AS id")).selectExpr("struct(id) AS _message")
        with pytest.raises(InvalidInput, match=f"'{shown}.*is not a message id"):
            batch.accept(matching=ids)
    assert batch.release(matching=batch.df.toPandas().iloc[:1]) == 1
    assert batch.release() == 2


@pytest.mark.timeout(900)
def test_what_takes_all_names_few_ranges_or_says_that_it_cannot(
    manager: QueueManager, queue: Any, brought: Brought
) -> None:
    other = manager.create_queue("other", queue.schema, dead_letter=False)
    before = queue.depth()
    with brought:
        with pytest.raises(LimitExceeded, match="where="):
            queue.purge("n % 2 = 1")
        assert queue.move(other, f"n >= {COUNT // 2}") > 0
    assert brought.rows < RANGES_PER_CALL_MAX + 1 + ROWS_MAX
    assert queue.depth() < before


@pytest.mark.timeout(900)
def test_a_move_to_a_grouped_queue_brings_a_row_for_each_range(
    manager: QueueManager, queue: Any, brought: Brought
) -> None:
    grouped = manager.create_queue(
        "grouped", queue.schema, group_by="key", lanes=4, dead_letter=False
    )
    scattered = manager.create_queue(
        "scattered", queue.schema, group_by="n", lanes=4, dead_letter=False
    )
    with pytest.raises(LimitExceeded, match="receive them and send them"):
        queue.move(scattered)
    with brought:
        moved = queue.move(grouped)
    assert moved == grouped.depth() > COUNT // 10
    assert brought.rows < ROWS_MAX
    lanes = grouped.peek(moved).selectExpr("key", "_message.lane").distinct().collect()
    assert len(lanes) == len({key for key, _ in lanes})
