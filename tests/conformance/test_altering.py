"""A queue grows by columns, and its settings change, while others work on it."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from tests.conformance.conftest import SCHEMA, World, in_memory, numbers, on_delta_when_long, rows
from tests.inside import claims_of
from txnqueue.errors import (
    Busy,
    InvalidInput,
    LimitExceeded,
    QueueClosed,
    QueueInUse,
    QueueNotFound,
    SchemaMismatch,
    TransactionNotGiven,
)
from txnqueue.storage.journal import AppendConflict


def seen(queue: Any, column: str) -> dict[int, Any]:
    """Read a column of what can be received, by the messages' numbers."""
    return {row["n"]: row[column] for row in queue.peek_messages(100)}


@on_delta_when_long
def test_a_queue_grows_beside_open_transactions(world: World) -> None:
    queue = world.queue(dead_letter=True)
    queue.send(rows(1, 2, 3))
    queue.receive(1).reject(reason="old")
    sender, consumer = world.open(queue, "sender"), world.open(queue, "consumer")
    staged = world.manager("s").transaction()
    early = staged.queue(queue.name)
    early.send(rows(4))
    preparing = world.manager("p").transaction(world.name("tx"))
    preparing.queue(queue.name).send(rows(5))
    preparing.prepare()
    held = consumer.receive(1)

    altered = world.open(queue, "b").alter("note string")
    assert altered == {"column note": (None, "string")}
    staged.commit()
    world.manager().commit(preparing.id)
    sender.send([{"n": 6, "key": None, "note": "new"}])
    queue.send(rows(7))
    held.accept()
    assert seen(consumer, "note") == {3: None, 4: None, 5: None, 6: "new", 7: None}
    batch = consumer.receive(10)
    assert [row["note"] for row in batch.messages()] == [None, None, None, "new", None]
    if world.has_frames:
        assert batch.df.where("note = 'new'").count() == 1
    batch.reject()
    dead = world.manager().queue(f"{queue.name}.dead")
    assert seen(dead, "note") == {1: None, 3: None, 4: None, 5: None, 6: "new", 7: None}
    again = world.manager().create_queue(queue.name, SCHEMA, exist_ok=True)
    assert again.schema.names == ["n", "key", "note"]
    assert world.open(queue, "c").alter("note string") == {}
    assert world.manager().history.verify().ok


@in_memory
def test_moved_messages_have_null_in_columns_that_their_own_queue_never_had(world: World) -> None:
    queue, other = world.queue(), world.queue("other")
    queue.send(rows(1, 2))
    queue.move(other)
    other.alter("note string, more array<int>" if world.has_frames else "note string, more long")
    other.send([{"n": 3, "key": None, "note": "x"}])
    assert seen(other, "note") == {1: None, 2: None, 3: "x"}
    with pytest.raises(SchemaMismatch):
        queue.move(other)


@in_memory
def test_changed_settings_hold_for_everybody_at_the_next_receive(world: World) -> None:
    queue = world.queue(dead_letter=True, lease_seconds=300)
    queue.send(rows(1, 2, 3))
    other = world.open(queue, "b")
    other.receive(1)
    changes = queue.alter(lease_seconds=20, deliveries_max=1)
    assert changes == {"lease_seconds": (300, 20), "deliveries_max": (10, 1)}
    held = other.receive(1)
    assert other.info.settings.deliveries_max == 1
    assert claims_of(held)[0].claim.deadline_ms - world.clock.now_ms == 300_000, "read before it"
    assert claims_of(other.receive(1))[0].claim.deadline_ms - world.clock.now_ms == 20_000
    world.lease_over()
    third = world.open(queue, "c")
    assert len(third.receive(10)) == 0, "each came back alone, once"
    assert numbers(world.manager().queue(f"{queue.name}.dead").peek_messages()) == [1, 2, 3]
    fresh = world.manager("d").queue(queue.name).info
    assert fresh.settings == queue.info.settings and fresh.created_at_ms > 0


@in_memory
def test_what_cannot_be_altered_is_refused_and_changes_nothing(world: World) -> None:
    queue = world.queue(dead_letter=True)
    other = world.queue("other")
    before = world.manager().queue(queue.name).info
    dead = world.manager().queue(f"{queue.name}.dead")
    required = StructType([StructField("must", LongType(), False)])
    refused = [
        (InvalidInput, "lanes", lambda: queue.alter(lanes=4)),
        (InvalidInput, "fixed", lambda: queue.alter(group_by="key")),
        (InvalidInput, "did you mean 'lease_seconds'", lambda: queue.alter(laese_seconds=4)),
        (LimitExceeded, "lease_seconds", lambda: queue.alter(lease_seconds=-1)),
        (InvalidInput, "dead_letter", lambda: other.alter(dead_letter_expired=True)),
        (SchemaMismatch, "must", lambda: queue.alter(required)),
        (SchemaMismatch, "key", lambda: queue.alter("key long")),
        (SchemaMismatch, "'key'", lambda: queue.alter("KEY string")),
        (SchemaMismatch, "reserved", lambda: queue.alter("slice long")),
        (QueueInUse, queue.name, lambda: dead.alter("note string")),
    ]
    for error, named, call in refused:
        with pytest.raises(error, match=named):
            call()
    manager = world.manager("b")
    with manager.transaction(), pytest.raises(TransactionNotGiven):
        manager.queue(queue.name).alter("note string")
    assert world.manager().queue(queue.name).info == before
    late = world.open(other, "late")
    tx = world.manager("p").transaction()
    tx.queue(other.name).send(rows(1))
    tx.prepare()
    other.drop()
    with pytest.raises(QueueClosed):
        late.alter("note string")
    world.manager().rollback(tx.id)
    other.drop()
    with pytest.raises(QueueNotFound):
        late.alter("note string")


@in_memory
def test_two_alters_at_once_both_count(world: World) -> None:
    queue = world.queue()
    append, met = world.store.journal.append, list[Any]()
    other = world.open(queue, "b")

    def crossed(units: Any, metadata: Any) -> Any:
        if metadata["operation"] == "alter queue" and not met:
            met.append(1)
            other.alter("second string", lease_seconds=50)
        return append(units, metadata)

    world.store.journal.append = crossed
    queue.alter("first string", deliveries_max=3)
    info = world.manager().queue(queue.name).info
    assert [column["name"] for column in info.schema["fields"]][2:] == ["second", "first"]
    assert (info.settings.lease_seconds, info.settings.deliveries_max) == (50, 3)
    assert info.schema_version == 3
    with pytest.raises(SchemaMismatch, match="columns can be added"):
        queue.alter("second long")


@in_memory
@pytest.mark.parametrize(("mine", "made"), [(30, {"lease_seconds": (50, 30)}), (50, {})])
def test_an_alter_tells_what_it_changed_not_what_another_one_changed_meanwhile(
    world: World, mine: int, made: dict[str, tuple[object, object]]
) -> None:
    queue = world.queue()
    append, other = world.store.journal.append, world.open(queue, "b")

    def crossed(units: Any, metadata: Any) -> Any:
        world.store.journal.append = append
        assert other.alter(lease_seconds=50) == {"lease_seconds": (300, 50)}
        return append(units, metadata)

    world.store.journal.append = crossed
    assert queue.alter(lease_seconds=mine) == made


@in_memory
def test_a_producer_that_does_not_know_of_a_column_learns_of_it(world: World) -> None:
    queue = world.queue()
    producer = world.open(queue, "producer")
    queue.alter("note string")
    assert producer.schema.names == ["n", "key"]
    producer.send([{"n": 1, "key": None, "note": "x"}])
    assert producer.schema.names == ["n", "key", "note"]
    with pytest.raises(SchemaMismatch, match="other"):
        producer.send([{"n": 1, "key": None, "other": "x"}])


@in_memory
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("inside", [False, True], ids=["at once", "in a transaction"])
def test_messages_with_a_new_column_do_not_move_to_where_nobody_could_read_it(
    world: World, inside: bool, durable: bool
) -> None:
    """Whoever moves them does not know yet that there is such a column."""
    queue, other = world.queue("one"), world.queue("other")
    queue.send(rows(1), durable=durable)
    mover = world.manager("mover")
    assert (mover.queue(queue.name).depth(), mover.queue(other.name).depth()) == (1, 0)
    queue.alter("note string")
    queue.send([{"n": 2, "note": "kept"}], durable=durable)

    def move() -> int:
        if not inside:
            return int(mover.queue(queue.name).move(other.name))
        with mover.transaction() as tx:
            return int(tx.queue(queue.name).move(other.name))

    with pytest.raises(SchemaMismatch):
        move()
    assert seen(queue, "note") == {1: None, 2: "kept"}
    other.alter("note string")
    assert move() == 2
    assert seen(other, "note") == {1: None, 2: "kept"}


@in_memory
@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("received", [False, True], ids=["waiting", "received"])
@pytest.mark.parametrize("came", ["moved", "published"])
def test_nor_do_messages_that_came_from_elsewhere(
    world: World, came: str, received: bool, durable: bool
) -> None:
    """Their payload is not the queue's own, so that the number of its schema tells nothing."""
    first, queue, other = (world.queue(word) for word in ("first", "one", "other"))
    events = world.manager().create_exchange(world.name("events"), "fanout", SCHEMA)
    events.bind(queue.name)
    queue.send(rows(1), durable=durable)
    mover = world.manager("mover")
    assert (mover.queue(queue.name).depth(), mover.queue(other.name).depth()) == (1, 0)
    for one in (first, queue):
        one.alter("note string")
    if came == "moved":
        first.send([{"n": 2, "note": "kept"}], durable=durable)
        first.move(queue.name)
    else:
        events.alter("note string")
        events.publish([{"n": 2, "note": "kept"}], durable=durable)

    def move() -> int:
        if not received:
            return int(mover.queue(queue.name).move(other.name))
        batch = mover.queue(queue.name).receive(10)
        try:
            return int(batch.move(other.name))
        except SchemaMismatch:
            batch.release()
            raise

    with pytest.raises(SchemaMismatch):
        move()
    assert seen(queue, "note") == {1: None, 2: "kept"}
    other.alter("note string")
    assert move() == 2
    assert seen(other, "note") == {1: None, 2: "kept"}


@in_memory
def test_a_queue_takes_the_dead_letter_queue_that_was_created_meanwhile(world: World) -> None:
    """The call was refused because of a queue that it did not name, and repeated it succeeded."""
    name, creator, other = world.name("orders"), world.manager("creator"), world.manager("other")
    payload = world.store.payload
    create = payload.create

    def crossed(*given: Any, **said: Any) -> None:
        payload.create = create
        other.create_queue(name, SCHEMA).drop()  # its dead-letter queue stays
        create(*given, **said)

    payload.create = crossed
    made = creator.create_queue(name, SCHEMA)
    assert made.info.dead_letter_id == other.queue(f"{name}.dead").info.queue_id


@in_memory
def test_a_queue_takes_no_dead_letter_queue_that_got_a_column_meanwhile(world: World) -> None:
    """Their columns would differ for ever: each could get the other's column with another type."""
    name, creator = world.name("orders"), world.manager("creator")
    dead = world.manager().create_queue(f"{name}.dead", SCHEMA, dead_letter=False)
    payload = world.store.payload
    create = payload.create

    def crossed(*given: Any, **said: Any) -> None:
        payload.create = create
        dead.alter("note long")
        create(*given, **said)

    payload.create = crossed
    with pytest.raises(SchemaMismatch, match="note"):
        creator.create_queue(name, SCHEMA)
    assert creator.list_queues() == [dead.name]
    made = creator.create_queue(name, f"{SCHEMA}, note long")
    assert made.info.dead_letter_id == dead.info.queue_id


@in_memory
@pytest.mark.parametrize("who", ["queue", "exchange"])
def test_columns_that_others_kept_from_being_recorded_are_told(
    world: World, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    manager = world.manager()
    made: Any = (
        world.queue() if who == "queue" else manager.create_exchange("events", "fanout", SCHEMA)
    )

    def lose(*_: Any) -> Any:
        raise AppendConflict("others were faster")

    with monkeypatch.context() as patch:
        patch.setattr(world.store.journal, "append", lose)
        with pytest.raises(Busy, match=r"has the columns note.* alter it again") as raised:
            made.alter("note string")
        assert raised.value.tries > 0
        if who == "queue":
            with pytest.raises(Busy, match="nothing was changed"):
                made.alter(lease_seconds=60)
    with pytest.raises(SchemaMismatch, match="unfinished alter"):
        made.alter("note long")
    assert made.alter("note string") == {"column note": (None, "string")}
