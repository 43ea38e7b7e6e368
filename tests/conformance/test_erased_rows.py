"""What was erased is gone from other queues too, and missed in the past, in copies and in runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.conftest import SCHEMA, World, in_memory, numbers, on_delta_when_long, rows
from tests.conformance.test_erasing import (
    ANNA,
    DAY,
    GONE,
    keys_without_spark,  # noqa: F401
    proved,
)
from tests.conformance.test_exchanges import exchange
from tests.inside import client_of
from txnqueue.errors import NotErasable, PayloadRemoved
from txnqueue.storage.payload.memory import MemoryPayload

PEOPLE = [*rows(1, 2, key="anna"), *rows(3, key="bert")]


def published(world: World, *words: str) -> tuple[Any, ...]:
    """Publish three rows to queues: each row is stored once for all of them."""
    events = exchange(world, "fanout")
    queues = tuple(world.queue(word, dead_letter=True) for word in words)
    for queue in queues:
        events.bind(queue)
    assert events.publish(PEOPLE).count == 3
    return queues


# ------------------------------------------------------------------------------ other queues


@on_delta_when_long
def test_a_published_row_goes_in_every_queue_that_it_was_published_to(world: World) -> None:
    done, waits, dead = published(world, "done", "waits", "dead")
    done.receive(9).accept()
    dead.receive(9).reject(reason="no")
    manager = world.manager("clerk")
    erased = manager.erase(done.name, ANNA, reason="r")
    assert (erased.erased, erased.purged) == (2, 4)  # of two rows, four messages waited
    assert numbers(world.open(waits, "c").receive(9)) == [3]
    letters = manager.queue(f"{dead.name}.dead")
    assert letters.depth() == 1
    assert letters.redrive() == 1
    assert numbers(world.open(dead, "c").receive(9)) == [3]
    assert proved(manager)[GONE] == (2, 2)
    again = manager.erase(waits.name, ANNA, reason="r")
    assert (again.erased, again.purged) == (0, 0)


@in_memory
@pytest.mark.parametrize("where", ["done", "held"])
def test_a_published_row_that_is_in_flight_anywhere_refuses(world: World, where: str) -> None:
    done, held, waits = published(world, "done", "held", "waits")
    done.receive(9).accept()
    batch = held.receive(2)
    manager = world.manager("clerk")
    asked = {"done": done, "held": held}[where]
    with pytest.raises(NotErasable) as refused:
        manager.erase(asked.name, ANNA, reason="r")
    assert (refused.value.queue, refused.value.in_flight) == (held.name, 2)
    assert (waits.depth(), len(batch.messages())) == (3, 2)  # nothing was purged or deleted
    batch.accept()
    assert manager.erase(asked.name, ANNA, reason="r").erased == 2
    assert waits.depth() == 1
    proved(manager)


@in_memory
def test_a_published_row_stays_while_one_of_the_queues_tells_duplicates_by_it(world: World) -> None:
    keyed = "n long, key string NOT NULL"
    events = world.manager().create_exchange(world.name("events"), "fanout", keyed)
    plain = world.queue("plain")
    once = world.manager().create_queue(
        world.name("once"), SCHEMA, dead_letter=False, message_id="key", duplicate_window_seconds=60
    )
    for queue in (plain, once):
        events.bind(queue)
    events.publish([*rows(1, key="anna"), *rows(3, key="bert")])
    for queue in (plain, once):
        queue.receive(9).accept()
    manager = world.manager("clerk")
    with pytest.raises(NotErasable, match="duplicates") as refused:
        manager.erase(plain.name, ANNA, reason="r")
    assert refused.value.queue == once.name
    world.clock.advance(DAY)
    assert manager.erase(plain.name, ANNA, reason="r").erased == 1
    proved(manager)


@in_memory
def test_rows_are_found_by_queues_that_were_dropped_and_in_those_that_they_moved_to(
    world: World,
) -> None:
    (gone,) = published(world, "gone")
    other = world.queue("other")
    gone.move(other)
    manager = world.manager("clerk")
    manager.drop_queue(gone.name)
    erased = manager.erase(gone.name, ANNA, reason="r")
    assert (erased.erased, erased.purged) == (2, 2)
    assert numbers(other.receive(9)) == [3]
    proved(manager)


@in_memory
def test_each_table_is_searched_with_the_columns_of_all_queues_of_the_name(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, name = world.manager("clerk"), world.name("people")
    other = world.queue("other")
    events = exchange(world, "fanout")
    old = manager.create_queue(name, SCHEMA, dead_letter=False)
    events.bind(old)
    other.send(PEOPLE)
    other.move(old)
    manager.drop_queue(name)
    new = manager.create_queue(name, "n long, person string", dead_letter=False)
    asked: dict[str, list[str]] = {}

    def search(_: object, schema: Any, owner: str, *__: object) -> list[Any]:
        asked[owner] = schema.names
        return []

    monkeypatch.setattr(MemoryPayload, "matching", search)
    manager.erase(name, "person = 'anna'", reason="r")
    inherited = ["n", "key", "person"]
    tables = {one.info.payload_id: inherited for one in (old, events, other)}
    assert asked == {**tables, new.info.payload_id: ["n", "person", "key"]}
    asked.clear()
    manager.history.trace(queue=name, where="person = 'anna'").rows()
    del tables[other.info.payload_id]  # what was moved is traced by the queue that it was sent to
    assert asked == {**tables, new.info.payload_id: ["n", "person", "key"]}


@in_memory
def test_letters_that_were_driven_back_are_erased_by_either_queue(world: World) -> None:
    queue = world.queue(dead_letter=True)
    queue.send(PEOPLE)
    queue.receive(9).reject(reason="no")
    manager = world.manager("clerk")
    letters = manager.queue(f"{queue.name}.dead")
    assert letters.redrive(limit=1) == 1
    erased = manager.erase(letters.name, ANNA, reason="r")
    assert (erased.erased, erased.purged) == (2, 2)
    assert (queue.depth(), letters.depth()) == (0, 1)
    proved(manager)


@in_memory
def test_copies_are_messages_of_their_own_and_go_with_the_same_predicate(world: World) -> None:
    queue = world.queue()
    queue.send(PEOPLE)
    queue.receive(9).accept()
    assert queue.resend(queue.replay()).count == 3
    manager = world.manager("clerk")
    erased = manager.erase(queue.name, ANNA, reason="r")
    assert (erased.erased, erased.purged) == (4, 2)
    assert numbers(world.open(queue, "c").receive(9)) == [3]
    proved(manager)


# ------------------------------------------------------------------------------------ the past


@on_delta_when_long
def test_a_past_state_counts_what_was_erased_and_cannot_show_it(world: World) -> None:
    queue = world.queue()
    sent = queue.send(PEOPLE).receipt
    manager = world.manager("clerk")
    before = manager.history.as_of(sent.commit_seq).counts().rows()
    queue.receive(9).accept()
    manager.erase(queue.name, ANNA, reason="r")
    then = manager.history.as_of(sent.commit_seq)
    assert then.counts().rows() == before
    with pytest.raises(PayloadRemoved):
        then.messages(queue.name).rows()
    now = manager.history.as_of()
    assert now.messages(queue.name).rows() == []
    if world.has_frames:
        with pytest.raises(Exception, match="PayloadRemoved"):
            then.messages(queue.name).df().collect()


@in_memory
def test_a_rehearsal_on_the_past_fails_where_its_handler_reads_what_was_erased(
    world: World,
) -> None:
    queue, other = world.queue(), world.queue("other")
    sent = queue.send(PEOPLE).receipt

    def forward(batch: Any, tx: Any) -> None:
        tx.queue(other.name).send([{"n": m["n"], "key": m["key"]} for m in batch.messages()])

    queue.drain(forward)
    manager = world.manager("clerk")
    first = manager.rehearse(forward, queue.name, as_of=sent.commit_seq)
    assert numbers(first.sent(other.name).rows()) == numbers(first.was_sent(other.name).rows())
    assert manager.erase(queue.name, ANNA, reason="r").erased == 2
    assert numbers(first.was_sent(other.name).rows()) == [1, 2, 3]  # a queue of its own
    erased = manager.erase(other.name, ANNA, reason="r")
    assert (erased.erased, erased.purged) == (2, 2)
    with pytest.raises(PayloadRemoved):
        first.was_sent(other.name).rows()
    late = manager.rehearse(forward, queue.name, as_of=sent.commit_seq)
    assert isinstance(late.error, PayloadRemoved) and late.rolled_back
    blind = manager.rehearse(lambda batch, tx: batch.accept(), queue.name, as_of=sent.commit_seq)
    assert (blind.error, blind.messages) == (None, 3)
    for batch_size in (None, 1):
        left = manager.rehearse(
            forward, queue.name, as_of=sent.commit_seq, batch_size=batch_size, partial=True
        )
        assert (left.error, left.messages, numbers(left.sent(other.name).rows())) == (None, 1, [3])
    proved(manager)


@in_memory
def test_a_batch_of_a_replay_cannot_be_sent_again(world: World) -> None:
    queue = world.queue()
    queue.send(PEOPLE)
    queue.receive(9).accept()
    begun = queue.replay()
    manager = world.manager("clerk")
    manager.erase(queue.name, ANNA, reason="r")
    with pytest.raises(PayloadRemoved):
        queue.resend(begun)
    assert queue.depth() == 0
    proved(manager)


@in_memory
def test_maintenance_goes_on_as_if_nothing_was_erased(world: World) -> None:
    waits, done = published(world, "waits", "done")
    done.receive(9).accept()
    manager = world.manager("clerk")
    manager.erase(done.name, ANNA, reason="r")
    for _ in range(3):
        world.clock.advance(10 * DAY)
        found = manager.maintain(
            transaction_seconds_max=0, payload_retention_days=7, history_retention_days=7
        )
        assert not found.skipped
        proved(manager)
        assert numbers(waits.peek_messages()) == [3]
    waits.receive(9).accept()
    for _ in range(3):
        world.clock.advance(10 * DAY)
        done.send(rows(9, key="carl"))
        manager.maintain(transaction_seconds_max=0, payload_retention_days=7)
    assert all(not name.startswith("anna") for name in kept_keys(world))
    proved(manager)
    manager.history.digest(after=manager.history.horizon())


@in_memory
def test_what_a_restored_table_brings_back_is_erased_once_more(world: World) -> None:
    queue, manager = world.queue(), world.manager("clerk")
    queue.send(PEOPLE)
    queue.receive(9).accept()
    inside = vars(world.store.payload)
    before = {name: dict(inside[name]) for name in ("_sends", "_headers", "_slices", "_erased")}
    assert manager.erase(queue.name, ANNA, reason="r").erased == 2
    for name, rows_of in before.items():
        inside[name].update(rows_of)
        if not rows_of:
            inside[name].clear()
    found = manager.history.verify()
    assert found.problems == (
        f"queue {queue.name}: 2 erased rows are there again: erase them again",
    )
    again = manager.erase(queue.name, ANNA, reason="restored")
    assert (again.erased, again.readable_until is not None) == (2, True)
    assert "anna" not in kept_keys(world)
    assert proved(manager)[GONE] == (2, 2)
    assert manager.erase(queue.name, ANNA, reason="r").erased == 0


@in_memory
def test_after_an_erasure_files_go_that_no_version_names(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = world.queue()
    other = world.queue("other")
    for one in (queue, other):
        one.send(PEOPLE)
        one.receive(9).accept()
    manager = world.manager("clerk")
    manager.erase(queue.name, ANNA, reason="r")
    asked: list[tuple[str, bool]] = []

    def vacuum(_: object, owner: str, __: float, *, full: bool = False) -> None:
        asked.append((owner, full))

    monkeypatch.setattr(MemoryPayload, "vacuum", vacuum)
    found: list[list[tuple[str, bool]]] = []
    for _ in range(5):
        manager.maintain(transaction_seconds_max=0, payload_retention_days=8)
        found.append(sorted(asked))
        asked.clear()
        world.clock.advance(9 * DAY)
        queue.send(rows(9, key="carl"))
        queue.receive(9).accept()
    mine, others = queue.info.payload_id, other.info.payload_id
    assert found[0] == []  # the files are still kept for those who read older versions
    assert [whole for one in found for owner, whole in one if owner == mine] == [True]  # once
    assert not any(whole for one in found for owner, whole in one if owner == others)


def kept_keys(world: World) -> list[str]:
    """List the keys of all rows that the payload has."""
    inside: dict[str, Any] = vars(client_of(world.manager("x")).store.payload)
    return [k for t in inside["_sends"].values() for k in t.column("key").to_pylist() if k]
