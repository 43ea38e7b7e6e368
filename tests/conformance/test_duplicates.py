"""Duplicate detection: the first message of an id in commit order, and no other, on both stores."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from tests.conformance.conftest import (
    SCHEMA,
    World,
    in_memory,
    numbers,
    on_delta_when_long,
    rows,
)
from tests.conformance.test_removing import state_of
from tests.inside import client_of
from txnqueue.core import ranges
from txnqueue.core.planning import claims
from txnqueue.core.state import compaction, duplicates
from txnqueue.errors import InvalidInput, LimitExceeded, PayloadRemoved, SchemaMismatch
from txnqueue.queue import Queue
from txnqueue.storage.payload import arrangement

WINDOW = 60.0
WHERE = ["beside the position", "in the payload"]


@pytest.fixture(params=WHERE)
def ids(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the ids are read: beside their position, or in the payload."""
    if request.param == "in the payload":
        monkeypatch.setattr(arrangement, "IDS_IN_ENTRY_MAX", 0)
    return str(request.param)


def queue_of(world: World, word: str = "orders", **settings: Any) -> Any:
    """Create a queue whose messages are named by ``key``."""
    said = {"message_id": "key", "duplicate_window_seconds": WINDOW, **settings}
    return world.queue(word, **said)


def send(queue: Queue, *sent: tuple[int, str], **said: Any) -> Any:
    """Send messages with a number and an id."""
    return queue.send([{"n": n, "key": key} for n, key in sent], **said)


def all_of(queue: Queue) -> list[int]:
    """Receive everything, and accept it."""
    batch = queue.receive(1_000)
    found = numbers(batch)
    if found:
        batch.accept()
    return found


def duplicates_of(world: World, queue: Queue) -> tuple[int, int]:
    """Count the duplicates as the history and as the metrics have them."""
    measured = next(r for r in world.manager().metrics().rows() if r["queue"] == queue.name)
    return state_of(world, queue)["duplicates"], measured["duplicates"]


@on_delta_when_long
def test_only_the_first_message_of_an_id_is_delivered(world: World) -> None:
    queue = queue_of(world, lanes=3)
    send(queue, (1, "a"), (2, "b"), (3, "a"))
    assert sorted(all_of(queue)) == [1, 2]
    sent = send(queue, (4, "b"))
    send(queue, (5, "c"), (6, "d"))
    listed = [(7, "c"), (8, "e"), (9, "e"), (10, "a")]
    if world.has_frames:
        queue.send(world.spark.createDataFrame(listed, SCHEMA).coalesce(1))
    else:
        send(queue, *listed)
    messages = world.open(queue, "cold").receive().messages()
    assert {row["_message"]["message_id"]: row["n"] for row in messages} == {"c": 5, "d": 6, "e": 8}
    assert queue.depth() == 0
    assert duplicates_of(world, queue) == (5, 5)
    steps = world.manager().history.trace(f"{sent.send_id}:0").rows()
    assert [step["step"] for step in steps] == ["sent", "duplicate"]
    assert world.manager().history.verify().ok


@on_delta_when_long
def test_the_first_commit_decides_between_two_transactions(world: World) -> None:
    queue = queue_of(world, lanes=2)
    early, late = world.open(queue, "early"), world.open(queue, "late")
    one, two = (client_of(q) for q in (early, late))
    with world.manager("x").transaction() as first, world.manager("y").transaction() as second:
        send(first.queue(queue.name), (1, "a"), transaction=first)
        send(second.queue(queue.name), (2, "a"), (3, "b"), transaction=second)
        second.commit()
        first.commit()
        assert second.receipt.commit_seq < first.receipt.commit_seq
    assert one.conflicts == two.conflicts == {}
    assert sorted(all_of(early)) == [2, 3]
    assert all_of(late) == []
    assert duplicates_of(world, queue) == (1, 1)


@on_delta_when_long
def test_the_window_ends_where_it_says(world: World, ids: str) -> None:
    queue = queue_of(world)
    send(queue, (1, "a"))
    world.clock.advance(WINDOW - 0.001)
    send(queue, (2, "a"))
    world.clock.advance(0.001)
    send(queue, (3, "a"))
    world.clock.advance(WINDOW - 0.001)
    send(queue, (4, "a"))
    world.clock.advance(0.001)
    send(queue, (5, "a"))
    assert all_of(queue) == [1, 3, 5]  # what is left out does not make the window longer
    assert all_of(world.open(queue, "cold")) == []


@in_memory
@pytest.mark.parametrize("looked", ["at each send", "at the end", "by a cold client"])
def test_when_it_is_looked_at_makes_no_difference(world: World, ids: str, looked: str) -> None:
    queue = queue_of(world, lanes=2)
    found = []
    for n in range(1, 30):
        send(queue, (n, "a"), (100 + n, f"b{n % 4}"))
        world.clock.advance(7)
        if looked == "at each send":
            found += all_of(queue)
        elif looked == "by a cold client":
            found += all_of(world.open(queue, f"cold {n}"))
    found += all_of(queue)
    assert sorted(n for n in found if n < 100) == [1, 10, 19, 28]
    assert sorted(n for n in found if n > 100) == [
        *(n + k for n in (101, 113, 125) for k in range(4))
    ]


@in_memory
def test_a_clock_that_goes_behind_does_not_hide_a_duplicate(world: World) -> None:
    queue = queue_of(world)
    send(queue, (1, "a"))
    behind = world.open(queue, "behind")
    now_ms = client_of(behind).runtime.now_ms
    client_of(behind).runtime.now_ms = lambda: now_ms() - 600_000
    send(behind, (2, "a"))
    assert all_of(queue) == [1]
    world.clock.advance(WINDOW + 599)
    send(behind, (3, "a"))  # by its clock it is within the window of the first one
    assert all_of(queue) == []
    world.clock.advance(1)
    send(behind, (4, "a"))
    assert all_of(queue) == [4]


@on_delta_when_long
def test_what_became_of_the_first_one_does_not_matter(world: World, ids: str) -> None:
    queue = queue_of(world, dead_letter=True, dead_letter_expired=True)
    other = world.queue("other")
    send(queue, (1, "accepted"), (2, "rejected"), (3, "released"))
    batch = queue.receive()
    batch.accept(matching=[m for m in batch.messages() if m["n"] == 1])
    batch.reject(matching=[m for m in batch.messages() if m["n"] == 2])
    batch.release()
    send(queue, (4, "accepted"), (5, "rejected"), (6, "released"))
    assert all_of(queue) == [3]  # released, and no duplicate of itself
    send(queue, (7, "moved"))
    assert queue.move(other) == 1
    send(queue, (8, "purged"))
    assert queue.purge() == 1
    send(queue, (9, "expired"), ttl_seconds=1)
    world.clock.advance(2)
    send(queue, (10, "moved"), (11, "purged"), (12, "expired"))
    assert all_of(queue) == []
    assert duplicates_of(world, queue) == (6, 6)
    dead = world.manager().queue(f"{queue.name}.dead")
    named = {m["_message"]["message_id"]: m["n"] for m in dead.peek_messages()}
    assert named == {"rejected": 2, "expired": 9}
    assert [m["_message"]["message_id"] for m in other.peek_messages()] == ["moved"]
    assert world.manager().history.verify().ok


@on_delta_when_long
def test_what_is_brought_back_stays_and_is_known(world: World, ids: str) -> None:
    queue = queue_of(world, dead_letter=True)
    other = world.queue("other")
    send(queue, (1, "a"))
    queue.receive().reject()
    send(queue, (2, "a"))
    assert world.manager().queue(f"{queue.name}.dead").redrive() == 1
    world.clock.advance(WINDOW - 1)
    send(queue, (3, "a"))
    assert all_of(queue) == [1]
    send(other, (4, "a"), (5, "b"))
    assert other.move(queue) == 2  # somebody wants these here
    send(queue, (6, "b"))
    assert all_of(queue) == [4, 5]
    world.clock.advance(WINDOW)
    send(queue, (7, "b"))
    assert all_of(queue) == [7]


@on_delta_when_long
def test_duplicates_do_not_leave_by_a_move_or_a_purge(world: World, ids: str) -> None:
    queue, other = queue_of(world), world.queue("other")
    send(queue, (1, "a"), (2, "a"), (3, "b"))
    assert queue.move(other) == 2
    assert numbers(other.peek_messages()) == [1, 3]
    send(queue, (4, "b"), (5, "c"), (6, "c"))
    assert queue.purge() == 1
    assert queue.depth() == 0
    row = state_of(world, queue)
    assert (row["moved"], row["purged"], row["duplicates"]) == (2, 1, 3)


@in_memory
def test_a_purged_duplicate_does_not_make_the_window_longer(world: World, ids: str) -> None:
    queue = queue_of(world)
    send(queue, (1, "a"))
    assert all_of(queue) == [1]
    world.clock.advance(WINDOW - 1)
    send(queue, (2, "a"))
    assert queue.purge() == 0
    world.clock.advance(WINDOW - 1)
    send(queue, (3, "a"))
    assert all_of(world.open(queue, "cold")) == [3]


@in_memory
def test_an_expired_duplicate_leaves_as_a_duplicate(world: World) -> None:
    queue = queue_of(world, dead_letter=True, dead_letter_expired=True)
    send(queue, (1, "a"), (2, "a"), ttl_seconds=1)
    world.clock.advance(2)
    assert all_of(queue) == []
    row = state_of(world, queue)
    assert (row["expired"], row["duplicates"]) == (1, 1)
    assert numbers(world.manager().queue(f"{queue.name}.dead").peek_messages()) == [1]


@in_memory
def test_depth_and_peek_count_duplicates_until_a_claim_finds_them(world: World) -> None:
    queue = queue_of(world)
    send(queue, (1, "a"), (2, "a"), (3, "b"))
    assert queue.depth() == 3
    assert numbers(queue.peek_messages()) == [1, 2, 3]
    batch = queue.receive(2)
    assert numbers(batch) == [1, 3]
    assert (queue.depth(), queue.in_flight()) == (0, 2)


@in_memory
def test_a_claim_looks_no_further_than_it_takes(world: World, ids: str) -> None:
    queue = queue_of(world)
    send(queue, (1, "a"))
    send(queue, (2, "b"), (3, "a"))
    reads = counted_reads(queue)
    assert numbers(queue.receive(1)) == [1]
    assert reads == ([] if ids == WHERE[0] else [3])  # read ahead, once for all
    assert numbers(queue.receive(5)) == [2]
    assert len(reads) == (ids == WHERE[1])
    batch = queue.receive()
    assert len(batch) == 0
    assert queue.depth() == 0


def counted_reads(queue: Queue) -> list[int]:
    """Note how many ids each reading of the payload is about."""
    payload, found = client_of(queue).store.payload, []
    real = payload.texts

    def counting(column: str, parts: Any) -> Any:
        found.append(sum(ranges.count(part.ranges) for part in parts))
        return real(column, parts)

    payload.texts = counting
    return found


@in_memory
def test_without_a_window_nothing_is_looked_at(world: World) -> None:
    queue = world.queue(message_id="key")
    send(queue, (1, "a"), (2, "a"))
    reads = counted_reads(queue)
    messages = queue.receive().messages()
    assert [m["_message"]["message_id"] for m in messages] == ["a", "a"]
    assert reads == []
    posted = [e for e in world.store.journal.read_all().entries if e.kind == "posted"]
    assert "ids" not in posted[0].body


@in_memory
def test_very_many_duplicates_leave_in_several_appends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "DUPLICATES_MAX", 3)
    queue = queue_of(world)
    send(queue, *((n, "ab"[n % 2]) for n in range(2)))
    assert all_of(queue) == [0, 1]
    send(queue, *((n, "a" if n % 2 else f"c{n}") for n in range(10, 20)))
    send(queue, (99, "b"), (100, "z"))
    found = []
    while queue.depth():
        found += all_of(queue)
    assert found == [10, 12, 14, 16, 18, 100]
    for n in range(20):
        send(queue, (n, "b"))
    send(queue, (77, "y"))
    assert all_of(queue) == [77]  # one call, several appends


@in_memory
def test_a_lane_with_very_many_duplicates_is_compacted_once_the_window_has_passed(
    world: World, ids: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a compaction lets them go: if they kept it off, its log would grow for ever."""
    monkeypatch.setattr(compaction, "RUNS_MAX", 5)
    monkeypatch.setattr(compaction, "DUPLICATES_MAX", 5)
    queue = queue_of(world, lanes=1)
    for n in [*range(8), *range(8)]:
        send(queue, (n, f"k{n}"))
    assert all_of(queue) == list(range(8))
    keeper = world.manager("keeper")
    world.clock.advance(WINDOW)
    assert keeper.maintain(transaction_seconds_max=1.0).compacted == 0
    world.clock.advance(2 * 3_600)
    assert keeper.maintain(transaction_seconds_max=1.0).compacted == 1
    send(queue, (20, "k1"))
    assert all_of(world.open(queue, "cold")) == [20]


@in_memory
def test_a_drain_consumes_each_id_once(world: World, ids: str) -> None:
    queue = queue_of(world, lanes=2)
    for n in range(5):
        send(queue, *((10 * n + k, f"k{k}") for k in range(4)))
    found: list[int] = []
    result = queue.drain(lambda batch, tx: found.extend(numbers(batch)), batch_size=3)
    assert (sorted(found), result.messages, result.finished) == ([0, 1, 2, 3], 4, True)
    for n in range(5):
        send(queue, (n, "k1"))
    assert queue.drain(lambda batch, tx: None, until="empty").finished
    assert (queue.depth(), duplicates_of(world, queue)) == (0, (21, 21))


@in_memory
def test_priorities_and_delays_do_not_change_who_is_first(world: World) -> None:
    queue = queue_of(world)
    send(queue, (1, "a"), delay_seconds=30)
    send(queue, (2, "a"), priority=9)
    assert all_of(queue) == []
    world.clock.advance(30)
    assert all_of(queue) == [1]


@in_memory
def test_what_was_prepared_counts_from_its_commit(world: World) -> None:
    queue = queue_of(world)
    manager = world.manager("x")
    tx = manager.transaction("T")
    send(manager.queue(queue.name), (1, "a"), transaction=tx)
    tx.prepare()
    world.clock.advance(WINDOW)
    send(queue, (2, "b"))
    manager.commit("T")
    world.clock.advance(WINDOW - 1)
    send(queue, (3, "a"))
    assert all_of(queue) == [2, 1]
    assert queue.receive().messages() == []


@in_memory
def test_old_ids_are_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "LOOK_AHEAD", 10)
    queue = queue_of(world)
    for n in range(40):
        send(queue, (n, f"k{n}"))
        assert all_of(queue) == [n]
        world.clock.advance(600)
    known = client_of(queue).states.fold(queue.info).duplicates
    assert len(known._known) < 30
    cold = world.open(queue, "cold")
    send(queue, (99, "k0"))
    assert all_of(cold) == [99]
    assert (
        len(client_of(cold).states.fold(cold.info).duplicates._known) == 7
    )  # an hour and a window


@on_delta_when_long
def test_a_selector_meets_no_duplicates(world: World) -> None:
    if not world.has_frames:
        pytest.skip("a store without a session has no predicates")
    queue = queue_of(world)
    send(queue, (1, "a"), (2, "a"), (3, "b"))
    assert numbers(queue.receive(where="n > 1")) == [3]
    assert queue.purge("_message.message_id = 'a'") == 1


@in_memory
def test_payload_that_is_gone_is_said_to_be_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrangement, "IDS_IN_ENTRY_MAX", 0)
    queue = queue_of(world)
    sent = send(queue, (1, "a"))
    assert all_of(queue) == [1]
    del world.store.payload._sends[queue.info.payload_id, sent.send_id]
    send(queue, (2, "b"))
    with pytest.raises(PayloadRemoved, match="window"):
        world.open(queue, "cold").receive()


@in_memory
def test_a_message_without_an_id_is_refused(world: World) -> None:
    queue = queue_of(world)
    for wrong in ([{"n": 1, "key": None}], [{"n": 1}]):
        with pytest.raises(SchemaMismatch, match=r"'key'.*may not be null"):
            queue.send(wrong)
    other = world.queue("other")
    other.send(rows(1, 2))
    assert other.move(queue) == 2  # they were sent without one, and are no duplicates
    messages = queue.receive().messages()
    assert [m["_message"]["message_id"] for m in messages] == [
        m["_message"]["id"] for m in messages
    ]


@in_memory
@pytest.mark.parametrize(
    ("said", "error", "match"),
    [
        ({"message_id": "nobody"}, SchemaMismatch, "message_id='nobody' is not a column"),
        (
            {"message_id": "amount"},
            SchemaMismatch,
            "not of double",
        ),
        ({"duplicate_window_seconds": 60}, InvalidInput, "needs message_id="),
        ({"message_id": "n", "duplicate_window_seconds": 0}, LimitExceeded, "0.001 to 604800"),
        ({"message_id": "n", "duplicate_window_seconds": 604_801}, LimitExceeded, "604800"),
        ({"message_id": "n", "duplicate_window_seconds": "1h"}, InvalidInput, "give a number"),
    ],
)
def test_what_cannot_be_is_refused(world: World, said: Any, error: Any, match: str) -> None:
    manager = world.manager()
    world.queue("there")
    before = manager.list_queues()
    with pytest.raises(error, match=match):
        manager.create_queue(world.name("new"), f"{SCHEMA}, amount double", **said)
    assert manager.list_queues() == before


@in_memory
def test_transient_duplicates_are_left_out_too(world: World) -> None:
    queue = queue_of(world, durable=False)
    send(queue, (1, "a"), (2, "a"))
    assert all_of(queue) == [1]
    world.store.transient.tidy()
    send(queue, *((n, f"k{n}") for n in range(1_000)), (3, "a"))
    assert sorted(all_of(queue)) == list(range(1_000))
    for n in range(5):
        send(queue, (n, "a"))
    send(queue, (6, "durable"), durable=True)
    assert all_of(queue) == [6]
    world.clock.advance(WINDOW)
    send(queue, (7, "a"))
    assert all_of(world.open(queue, "b")) == [7]
    measured = next(r for r in world.manager().metrics().rows() if r["queue"] == queue.name)
    assert measured["duplicates"] == 7


@in_memory
def test_a_commit_does_not_wait_for_a_claim_that_cannot_be_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch's ids are in the payload, which does not answer."""
    queue, manager = queue_of(world), world.manager("b")
    handled: list[list[int]] = []
    send(queue, *((n, str(n)) for n in range(2)))
    send(queue, *((n, str(n)) for n in range(2, 892)))
    payload = client_of(manager).store.payload

    def no_answer(*_: Any) -> NoReturn:
        raise OSError("503")

    def handle(batch: Any, tx: Any) -> None:
        handled.append(numbers(batch))
        monkeypatch.setattr(payload, "texts", no_answer)

    with pytest.raises(OSError, match="503"):
        manager.queue(queue.name).drain(handle, batch_size=2)
    monkeypatch.undo()
    assert handled == [[0, 1]]
    assert queue.depth() == 890


@in_memory
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("keep_order", [True, False])
def test_of_two_published_rows_with_one_id_the_upper_one_is_delivered(
    world: World, durable: bool, keep_order: bool
) -> None:
    queue = queue_of(world, lanes=4)
    schema = "n long, key string not null"
    exchange = world.manager().create_exchange(world.name("events"), "fanout", schema)
    exchange.bind(queue.name)
    twice = [{"n": n, "key": f"k{n % 9}"} for n in range(18)]
    exchange.publish(twice, durable=durable, keep_order=keep_order)
    assert sorted(all_of(queue)) == list(range(9))
