"""What a selector looks at and how much of it: as much as is asked for, each message once."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import Row

from tests.conformance.conftest import World, in_memory, numbers, on_delta_when_long, rows
from tests.conformance.working import FRESH, REDELIVERED, understand_divisors
from tests.inside import client_of
from txnqueue.core import ranges
from txnqueue.errors import InvalidInput, LimitExceeded
from txnqueue.messages import claim, removal
from txnqueue.messages import selector as matching
from txnqueue.messages import selector as selecting
from txnqueue.storage.payload import islands, keys

EVENS = "n % 2 = 0"
RANGES_MAX = 4


@pytest.fixture
def looked(world: World, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers that selectors have looked at; they begin with ten."""
    monkeypatch.setattr(selecting, "LOOK_MIN", 10)
    return understand_divisors(world, monkeypatch)


@pytest.fixture
def few_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call names at most four ranges."""
    for module in (selecting, islands, claim):
        monkeypatch.setattr(module, "RANGES_PER_CALL_MAX", RANGES_MAX)


@in_memory
def test_a_receive_looks_at_as_many_messages_as_it_takes(world: World, looked: list[int]) -> None:
    queue = world.queue()
    queue.send(rows(*range(2_000)))
    assert numbers(queue.receive(3, where=EVENS)) == [0, 2, 4]
    assert looked == list(range(10))
    looked.clear()
    assert numbers(queue.peek_messages(5, EVENS)) == [6, 8, 10, 12, 14]
    assert looked == [1, 3, 5, *range(6, 113)]
    assert queue.depth() == 1_997


@in_memory
def test_what_is_seldom_is_looked_for_in_growing_pieces(world: World, looked: list[int]) -> None:
    queue, looks = world.queue(lanes=2), []
    queue.send(rows(*range(2_000)))
    whole = selecting.Selector._ranges

    def counted(selector: Any, parts: Any) -> Any:
        looks.append(ranges.count(one for part in parts for one in part.ranges))
        return whole(selector, parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selecting.Selector, "_ranges", counted)
        assert sorted(numbers(queue.receive(5, where="n % 1999 = 0"))) == [0, 1999]
    assert looks == [10, 100, 890, 1_000]
    assert sorted(looked) == list(range(2_000)), "each message is looked at once"


@on_delta_when_long
def test_a_message_is_looked_at_again_when_a_delivery_has_failed(
    world: World, looked: list[int]
) -> None:
    """Of a receive that waits, and of a drain: a predicate may ask for failed deliveries."""
    manager, queue = world.manager("waits"), world.queue()
    queue.send(rows(*range(4)))
    runtime = client_of(manager).runtime

    def fail(seconds: float) -> None:
        world.clock.advance(seconds)
        if not queue.in_flight():
            queue.receive(2).modify(delivery_failed=True)

    runtime.sleep = fail
    waiting = manager.queue(queue.name)
    assert numbers(waiting.receive(where=REDELIVERED, wait_seconds=5)) == [0, 1]
    seen: list[list[int]] = []

    def handler(batch: Any, tx: Any) -> None:
        seen.append(numbers(batch))
        raise ValueError

    result = queue.drain(handler, where=FRESH)
    assert (seen, result.errors, result.finished) == ([[2, 3]], 1, False)


@in_memory
def test_a_drain_forgets_what_has_left_the_queue(
    world: World, looked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that runs until the queue is empty may run for years."""
    monkeypatch.setattr(selecting, "NOTED_MIN", 10)
    monkeypatch.setattr(selecting, "LOOK_MAX", 500)
    made = list[Any]()
    begin = selecting.Selector.__init__

    def noted(self: Any, *given: Any, **named: Any) -> None:
        made.append(self)
        begin(self, *given, **named)

    monkeypatch.setattr(selecting.Selector, "__init__", noted)
    queue, others = world.queue(), iter(range(2, 200, 2))
    queue.send(rows(0))

    def handler(batch: Any, tx: Any) -> None:
        n = next(others, None)
        if n is not None:
            tx.queue(queue.name).send(rows(n))

    assert queue.drain(handler, where=EVENS, until="empty").messages == 100
    notes = [one for selector in made for one in selector._notes.values()]
    assert max(len(one.seen) for one in notes) < 20
    assert max(one._look_max for one in made) <= 500


@pytest.fixture
def forgetful(looked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Selectors forget early; one that looks again and again is ended."""
    monkeypatch.setattr(selecting, "NOTED_MIN", 10)
    monkeypatch.setattr(selecting, "LOOK_MIN", 1_000)
    examine, looks = selecting.Selector._ranges, iter(range(20))

    def counted(selector: Any, parts: Any) -> Any:
        assert next(looks, None) is not None, "it looks without end"
        return examine(selector, parts)

    monkeypatch.setattr(selecting.Selector, "_ranges", counted)


@in_memory
def test_a_purge_knows_what_is_in_flight_when_it_looks_at_what_waits(
    world: World, looked: list[int], forgetful: None
) -> None:
    queue = world.queue()
    for n in range(40):
        queue.send(rows(n))
    held = queue.receive(30)
    assert queue.purge(where=EVENS) == 5
    assert sorted(looked) == list(range(40))
    held.release()
    assert numbers(queue.receive(100)) == list(range(1, 40, 2))


@in_memory
def test_what_is_taken_over_after_a_close_look_was_looked_at_once(
    world: World, looked: list[int], forgetful: None
) -> None:
    queue, other = world.queue(lease_seconds=10), world.queue("other", lease_seconds=1e5)
    queue.send(rows(100))
    for n in range(30):
        other.send(rows(n))
    tx = world.manager("z").transaction()
    tx.queue(queue.name).receive(1)
    world.clock.advance(11)
    mine = world.manager("x")
    assert numbers(mine.queue(queue.name).receive(1)) == [100]  # the transaction is aborted
    assert len(tx.queue(other.name).receive(100)) == 30  # which it does not know
    assert numbers(mine.queue(other.name).receive(100, where=EVENS)) == list(range(0, 30, 2))
    assert sorted(looked) == list(range(30))


@in_memory
def test_a_move_takes_its_limit_and_looks_no_further(
    world: World, looked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "REMOVALS_MAX", 2)
    queue, other = world.queue(), world.queue("other")
    queue.send(rows(*range(2_000)))
    assert queue.move(other, EVENS, limit=5) == 5
    assert len(looked) == len(set(looked)) == 10
    with world.manager("b").transaction() as tx:
        assert tx.queue(queue.name).move(other, EVENS, limit=4) == 4
    assert numbers(other.peek_messages()) == [0, 2, 4, 6, 8, 10, 12, 14, 16]
    assert len(looked) < 200


@in_memory
def test_a_batch_is_smaller_than_asked_for_rather_than_in_too_many_ranges(
    world: World, looked: list[int], few_ranges: None
) -> None:
    queue = world.queue()
    queue.send(rows(*range(100)))
    assert numbers(queue.receive(50, where=EVENS)) == [0, 2, 4, 6]
    found: list[int] = []
    result = queue.drain(lambda batch, tx: found.extend(numbers(batch)), where=EVENS)
    assert found == list(range(8, 100, 2))
    assert (result.batches, result.finished) == (12, False)
    assert queue.depth() == 50


@in_memory
def test_a_claim_names_few_ranges_whatever_was_asked_for(
    world: World, few_ranges: None, looked: list[int]
) -> None:
    queue, other = world.queue(), world.queue("other")
    queue.send(rows(*range(20)))
    assert queue.move(other, "n % 2 = 0", limit=10) == 10
    assert numbers(queue.receive()) == [1, 3, 5, 7]
    assert numbers(queue.receive()) == [9, 11, 13, 15]


@in_memory
@pytest.mark.parametrize("act", ["purge", "move", "move inside", "redrive"])
def test_what_takes_all_says_that_they_lie_in_too_many_ranges_and_changes_nothing(
    world: World, looked: list[int], few_ranges: None, act: str
) -> None:
    queue, other = world.queue(), world.queue("other")
    queue.send(rows(*range(40)))
    entries = len(world.store.journal.read_all().entries)
    with pytest.raises(LimitExceeded, match=r"where= .* 4 ranges .* limit=") as told:
        if act == "purge":
            queue.purge(EVENS)
        elif act == "move":
            queue.move(other, EVENS)
        elif act == "redrive":
            queue.move(other)
            other.redrive(EVENS)
        else:
            with world.manager("b").transaction() as tx:
                tx.queue(queue.name).move(other, EVENS)
    assert told.value.name == "where"
    if act != "redrive":
        assert len(world.store.journal.read_all().entries) == entries
    assert queue.depth() + other.depth() == 40


@in_memory
@pytest.mark.parametrize("act", ["purge", "move", "move inside"])
def test_too_many_ranges_are_found_before_the_first_are_taken(
    world: World,
    looked: list[int],
    few_ranges: None,
    monkeypatch: pytest.MonkeyPatch,
    act: str,
) -> None:
    """Of many small sends: more than one query examines, and more than one append takes."""
    monkeypatch.setattr(selecting, "_PIECES_MAX", 2)
    monkeypatch.setattr(removal, "REMOVALS_MAX", 1)
    queue, other, tx = world.queue(lanes=2), world.queue("other"), world.manager("b").transaction()
    for n in range(12):
        queue.send(rows(2 * n, key=str(n)))
    with tx, pytest.raises(LimitExceeded):
        if act == "purge":
            queue.purge(EVENS)
        elif act == "move":
            queue.move(other, EVENS)
        else:
            tx.queue(queue.name).move(other, EVENS)
    assert (queue.depth(), other.depth()) == (12, 0)
    assert sorted(looked) == sorted(set(looked))


@in_memory
def test_a_move_to_lanes_by_a_key_reads_the_key_and_nothing_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = world.queue(lanes=2)
    grouped = world.queue("grouped", lanes=4, group_by="key")
    queue.send([{"n": n, "key": f"k{n // 10}"} for n in range(100)])
    payload, read = client_of(queue).store.payload, []
    monkeypatch.setattr(payload, "table", None)
    lanes = payload.lanes
    monkeypatch.setattr(payload, "lanes", lambda *asked: read.append(asked[:2]) or lanes(*asked))
    assert queue.move(grouped, limit=60) == 60
    held = queue.receive()
    assert held.move(grouped) == 40
    assert set(read) == {("key", 4)}
    monkeypatch.undo()
    by_key: dict[str, set[int]] = {}
    for row in grouped.peek_messages(100):
        by_key.setdefault(row["key"], set()).add(row["_message"]["lane"])
    assert len(by_key) == 10 and all(len(lanes) == 1 for lanes in by_key.values())


@in_memory
def test_a_drain_that_finds_nothing_ends_though_others_send_without_end(
    world: World, looked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked at what had come meanwhile, and at what had come while it did so."""
    queue, sends = world.queue(), iter(range(1, 61, 2))
    queue.send(rows(1))
    client: Any = type(client_of(queue))
    read = client.read_missing

    def beside_a_producer(self: Any, missing: Any) -> None:
        n = next(sends, None)
        assert n is not None, "it looks without end"
        world.manager("producer").queue(queue.name).send(rows(n))
        read(self, missing)

    monkeypatch.setattr(client, "read_missing", beside_a_producer)
    assert queue.drain(lambda batch, tx: None, where=EVENS, until="empty").messages == 0


@in_memory
@pytest.mark.parametrize("inside", [True, False])
def test_a_move_to_lanes_by_a_key_reads_no_key_again_though_others_receive(
    world: World, monkeypatch: pytest.MonkeyPatch, *, inside: bool
) -> None:
    """A message that a consumer took while the keys were read had them all read again."""
    queue = world.queue(lanes=2)
    grouped = world.queue("grouped", lanes=4, group_by="key")
    for half in range(2):
        queue.send([{"n": n, "key": f"k{n // 10}"} for n in range(50 * half, 50 * half + 50)])
    payload, read = client_of(queue).store.payload, []
    consumer, lanes = world.manager("consumer").queue(queue.name), payload.lanes

    def beside_a_consumer(key: Any, count: Any, parts: Any) -> Any:
        read.append(sum(ranges.count(part.ranges) for part in parts))
        assert len(read) < 20, "it reads without end"
        assert len(consumer.receive(1)) == 1
        return lanes(key, count, parts)

    monkeypatch.setattr(payload, "lanes", beside_a_consumer)
    if inside:
        with world.manager().transaction() as tx:
            moved = tx.queue(queue.name).move(grouped)
    else:
        moved = queue.move(grouped)
    assert moved == grouped.depth() == 100 - len(read) and len(read) <= 2 and sum(read) <= 100
    assert len({row["n"] for row in grouped.peek_messages(100)}) == moved


@in_memory
def test_a_move_that_lanes_would_tear_into_too_many_ranges_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "RANGES_PER_CALL_MAX", RANGES_MAX)
    queue = world.queue()
    grouped = world.queue("grouped", lanes=4, group_by="key")
    queue.send([{"n": n, "key": f"k{n}"} for n in range(40)])
    with pytest.raises(LimitExceeded, match="receive them and send them to the other queue"):
        queue.move(grouped)
    batch = queue.receive(30)
    with pytest.raises(LimitExceeded, match="limit="):
        batch.move(grouped)
    assert (queue.in_flight(), queue.depth(), grouped.depth()) == (30, 10, 0)
    batch.release()
    assert queue.move(grouped, limit=2) == 2


@in_memory
def test_a_settlement_of_too_many_ranges_is_refused_and_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching, "RANGES_PER_CALL_MAX", RANGES_MAX)
    queue = world.queue(dead_letter=True)
    queue.send(rows(*range(20)))
    batch = queue.receive()
    table = batch.to_arrow()
    evens = [row for row in batch.messages() if row["n"] % 2 == 0]
    for meant in (
        evens,
        [row["_message"]["id"] for row in evens],
        table.take(list(range(0, 20, 2))),
    ):
        with pytest.raises(LimitExceeded, match=r"matching= .* smaller batches") as told:
            batch.reject(matching=meant)
        assert told.value.name == "matching"
    assert batch.accept(matching=evens[:4]) == 4
    assert batch.reject(matching=table.slice(10, 10)) == 10
    assert batch.release() == 6
    assert (queue.depth(), world.manager().queue(f"{queue.name}.dead").depth()) == (6, 10)


@in_memory
def test_of_an_arrow_table_only_the_ids_are_read(world: World) -> None:
    queue = world.queue(dead_letter=True)
    queue.send(rows(*range(5), key="a"))
    batch = queue.receive()
    table = batch.to_arrow()
    assert batch.reject(matching=table.slice(0, 2), reason_column="key") == 2
    assert batch.accept(matching=table.column("_message").combine_chunks().field("id")[2:]) == 3
    with pytest.raises(InvalidInput, match="nor a message with _message"):
        batch.accept(matching=table.drop_columns("_message"))
    dead = world.manager().queue(f"{queue.name}.dead").peek_messages()
    assert {row["_message"]["origin"]["reason"] for row in dead} == {"a"}


@in_memory
def test_rows_of_pandas_name_messages(world: World) -> None:
    pandas = pytest.importorskip("pandas")
    queue = world.queue(dead_letter=True)
    queue.send(rows(*range(6)))
    batch = queue.receive()
    frame = batch.to_arrow().to_pandas().iloc[::-1].reset_index(drop=True)  # of n: 5 to 0
    frame["why"] = pandas.Series(["odd", None, "odd", float("nan"), "odd", "even"])
    assert batch.reject(matching=frame[frame.n > 3], reason_column="why") == 2
    with_rows = frame[frame.n == 3].assign(_message=[Row(**frame["_message"][2])])
    assert batch.reject(matching=with_rows, reason_column="why") == 1  # as toPandas() makes them
    with pytest.raises(InvalidInput, match="keep this column of df"):
        batch.accept(matching=frame[["n"]])
    with pytest.raises(InvalidInput, match="'whither' is not a column"):
        batch.reject(matching=frame, reason_column="whither")
    assert batch.accept(matching=frame["_message"][frame.n < 2].map(lambda one: one["id"])) == 2
    assert batch.accept(matching=frame[frame.n > 9]) == 0
    assert batch.accept() == 1
    dead = world.manager().queue(f"{queue.name}.dead").peek_messages()
    found = {row["n"]: row["_message"]["origin"]["reason"] for row in dead}
    assert found == {3: "odd", 4: None, 5: "odd"}


@in_memory
@pytest.mark.parametrize("where", ["", 3, b"n > 1"])
def test_a_predicate_that_is_none_selects_nothing(world: World, where: Any) -> None:
    queue = world.queue()
    queue.send(rows(1, 2))
    for act in (queue.receive, queue.peek):
        with pytest.raises(InvalidInput) as told:
            act(where=where)
        assert told.value.name == "where"
    with pytest.raises(InvalidInput):
        queue.purge(where)
    assert (queue.depth(), queue.in_flight()) == (2, 0)
