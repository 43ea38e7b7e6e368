"""Entries, conditions, units and shards: the vocabulary of the journal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnqueue.core import model
from txnqueue.core.model import Condition, Entry, Unit

PART = st.sets(st.integers(0, 60), min_size=1, max_size=8).map(
    lambda wanted: tuple((offset, offset) for offset in sorted(wanted))
)
ITEMS = st.lists(st.tuples(st.tuples(st.text("abc", min_size=1), st.integers(0, 9)), PART))


def decided(
    attempt: str = "a1", kind: str = model.COMMITTED, key: str = "k", begun: int = 5
) -> Entry:
    shard = model.transaction_shard(key)
    return Entry(shard, key, kind, transaction_key=key, attempt=attempt, begun=begun)


# ------------------------------------------------------------------------------- items


@given(ITEMS)
def test_items_unpacked_are_the_items_packed(items: Any) -> None:
    listed, parts, count = model.pack_items(items)
    entry = Entry("s", "t", model.CLAIMED, ranges=parts, count=count, body={"items": listed})
    assert model.unpack_items(entry) == items


@given(ITEMS)
def test_the_packed_count_is_the_number_of_messages(items: Any) -> None:
    _, _, count = model.pack_items(items)
    assert count == sum(last - first + 1 for _, part in items for first, last in part)


def test_an_entry_without_items_unpacks_to_none() -> None:
    assert model.unpack_items(Entry("s", "t", model.CLAIMED)) == []


# -------------------------------------------------------------------------- commit order


@given(st.integers(0, 1 << 40), st.integers(0, 1023), st.integers(0, 1 << 40))
def test_commits_are_numbered_by_version_then_ordinal(
    version: int, ordinal: Any, later: Any
) -> None:
    number = model.commit_seq(version, ordinal)
    assert (number >> 10, number & 1023) == (version, ordinal)
    assert number < model.commit_seq(version + later + 1)


def test_an_entry_knows_its_place_and_its_name() -> None:
    entry = Entry("s", "t", model.POSTED, append_id="a", ordinal=2, index=3, version=7)
    assert entry.place == (7, 2, 3)
    assert entry.entry_id == ("a", 3)
    assert entry.commit_seq == 7 * 1024 + 2


# -------------------------------------------------------------------------------- shards


@given(st.text(min_size=1, max_size=30))
def test_every_key_lies_in_one_of_the_transaction_shards(key: str) -> None:
    prefix, _, number = model.transaction_shard(key).partition("/")
    assert prefix == "transaction"
    assert 0 <= int(number) < model.TRANSACTION_SHARDS


@given(st.integers(0, 15), st.uuids())
def test_a_generated_key_carries_its_drivers_shard(shard: Any, unique: Any) -> None:
    key = model.generated_key(shard, unique.hex)
    assert model.transaction_shard(key) == f"transaction/{shard}"
    assert model.is_generated_key(key)


@given(st.text(min_size=1, max_size=20).filter(str.isprintable), st.integers(0, 10_000))
def test_the_keys_of_one_run_share_a_shard(run_id: str, number: Any) -> None:
    """One read of one shard must find how far a run came."""
    shards = {model.transaction_shard(f"{run_id}/{n}") for n in (0, number, "end")}
    assert len(shards) == 1


def test_the_keys_of_a_run_with_a_line_break_share_a_shard() -> None:
    assert len({model.transaction_shard(f"week\n7/{n}") for n in range(8)}) == 1


def test_what_was_never_said_is_before_every_version() -> None:
    assert model.horizon([]) == model.beginning([]) == model.decisions_beginning([]) == -1
    assert model.newest_day([]) == (0, "", -1)
    unnumbered = Entry("backlog/q", "lane/0", model.POSTED)
    for found in ([], [unnumbered]):
        assert (model.newest_sequence(found), model.messages(found)) == (0, 0)


def test_the_newest_that_was_said_counts_whatever_the_order_of_reading() -> None:
    said = [
        Entry(model.FENCE, kind, kind, begun=begun)
        for kind in (model.HORIZON_ADVANCED, model.HISTORY_REMOVED)
        for begun in (3, 9, 5)
    ]
    assert model.horizon(said) == model.beginning(said) == model.decisions_beginning(said) == 9
    older = replace(said[4], body={"decisions_from": 2})
    assert model.decisions_beginning([said[3], older, said[5]]) == 2


def test_what_was_said_of_version_0_is_not_said_of_none() -> None:
    said = [
        Entry(model.FENCE, kind, kind, begun=0)
        for kind in (model.HORIZON_ADVANCED, model.HISTORY_REMOVED)
    ]
    assert model.horizon(said) == model.beginning(said) == model.decisions_beginning(said) == 0


def test_an_entry_belongs_to_the_run_that_it_says_or_that_its_key_names() -> None:
    named = Entry("transaction/0", "week/7", model.COMMITTED, transaction_key="week/7")
    assert model.run_of(named) == "week"
    assert model.run_of(replace(named, transaction_key="week/2/end")) == "week/2"
    assert model.run_of(replace(named, run_id="said")) == "said"
    assert model.run_of(replace(named, transaction_key="week")) is None
    assert model.run_of(replace(named, transaction_key=None)) is None


@pytest.mark.parametrize("key", ["t1-short", "tg-" + "0" * 32, "T0-" + "0" * 32, "", "nightly"])
def test_a_clients_own_key_is_not_taken_for_a_generated_one(key: str) -> None:
    assert not model.is_generated_key(key)


def test_the_stored_layout_of_shards_never_changes() -> None:
    """Stores that exist were written with these names: another one would need a migration."""
    assert model.transaction_shard("nightly-2024-01-01") == "transaction/9"
    assert model.lane_shard("orders-1", 3) == "lane/orders-1/3"
    assert model.backlog_shard("orders-1") == "backlog/orders-1"
    assert (model.lane_stream(3), model.queue_stream("orders-1")) == ("lane/3", "queue/orders-1")


# ---------------------------------------------------------------------------- conditions


def test_a_next_sequence_is_refused_once_it_or_a_later_one_is_taken() -> None:
    """At least, not equal: a log whose newest entry is 9 has no room for a 7 either."""
    expected = model.next_sequence("lane/q/0", "lane/0", 7)
    log = Entry("lane/q/0", "lane/0", model.CLAIMED, sequence=6)
    assert expected.holds([log])
    assert not expected.holds([replace(log, sequence=7)])
    assert not expected.holds([replace(log, sequence=9)])


def test_a_next_sequence_looks_at_its_own_stream_only() -> None:
    expected = model.next_sequence("lane/q/0", "lane/0", 1)
    assert expected.holds([Entry("lane/q/1", "lane/1", model.CLAIMED, sequence=1)])
    assert expected.holds([Entry("lane/q/0", "other", model.CLAIMED, sequence=1)])
    assert expected.holds([Entry("lane/q/0", "lane/0", model.POSTED)])


@pytest.mark.parametrize("kind", [model.COMMITTED, model.ROLLED_BACK, model.PREPARED])
def test_an_unprepared_attempt_is_undecided_until_anything_is_said_of_it(kind: str) -> None:
    expected = model.undecided("k", "a1", unprepared=True)
    assert expected.holds([decided("a2", kind)])
    assert not expected.holds([decided("a1", kind)])


def test_a_prepared_attempt_is_still_undecided() -> None:
    assert model.undecided("k", "a1", unprepared=False).holds([decided("a1", model.PREPARED)])


@pytest.mark.parametrize("kind", [model.COMMITTED, model.PREPARED])
def test_a_key_is_taken_by_another_attempt_that_committed_or_prepared(kind: str) -> None:
    expected = model.key_free("k", "a1")
    assert not expected.holds([decided("a2", kind)])
    assert expected.holds([decided("a1", kind)])


def test_a_key_is_free_after_a_rollback() -> None:
    assert model.key_free("k", "a1").holds([decided("a2", model.ROLLED_BACK)])


def test_a_prepared_attempt_that_was_rolled_back_stands_in_nobodys_way() -> None:
    history = [decided("a2", model.PREPARED), decided("a2", model.ROLLED_BACK)]
    assert not model.key_free("k", "a1").holds(history)
    assert model.key_free("k", "a1", ["a2"]).holds(history)


def test_being_prepared_is_a_condition_that_must_be_present() -> None:
    expected = model.is_prepared("k", "a1")
    assert not expected.holds([])
    assert expected.holds([decided("a1", model.PREPARED)])


@pytest.mark.parametrize("kind", [model.QUEUE_CLOSING, model.QUEUE_DROPPED])
def test_a_queue_is_open_until_it_closes(kind: str) -> None:
    expected = model.queue_open("q1")
    assert expected.holds([Entry(model.FENCE, model.queue_stream("q2"), kind)])
    assert not expected.holds([Entry(model.FENCE, model.queue_stream("q1"), kind)])


@pytest.mark.parametrize(("begun", "holds"), [(4, False), (5, True), (6, True)])
def test_work_that_began_below_the_horizon_is_refused(begun: Any, holds: Any) -> None:
    horizon = Entry(model.FENCE, "horizon", model.HORIZON_ADVANCED, begun=5)
    assert model.horizon_at_most(begun).holds([horizon]) is holds


def test_a_newer_layout_refuses_every_append() -> None:
    known = Entry(model.FENCE, "layout", model.LAYOUT_CHANGED, sequence=model.LAYOUT)
    assert model.layout_unchanged().holds([known])
    assert not model.layout_unchanged().holds([replace(known, sequence=model.LAYOUT + 1)])


# --------------------------------------------------------------------------------- units


def test_a_unit_reads_the_shards_of_its_conditions_and_no_others() -> None:
    entries = [Entry("backlog/q", "lane/0", model.POSTED), Entry("lane/q/0", "lane/0", "x")]
    conditions = [Condition("fence", "layout"), Condition("lane/q/0", "lane/0")]
    unit = Unit.of("a", entries, conditions)
    assert unit.reads == {"fence", "lane/q/0"}


def test_a_unit_reads_where_one_of_its_entries_would_stand() -> None:
    entries = [Entry("table/2", "t", "x"), Entry("table/1", "t", "x")]
    assert Unit.of("a", entries, [Condition("fence", "layout")]).reads == {"fence", "table/1"}
    assert Unit.of("a", entries, []).reads == {"table/1"}


def test_of_an_entry_that_stands_twice_the_first_counts() -> None:
    first = replace(Entry("s", "t", "x", append_id="a"), version=6)
    later, other = replace(first, version=7), replace(first, append_id="b", version=5)
    assert model.each_once([later, other, first, first]) == (first, other)


def test_a_unit_stamps_its_entries_with_its_id_and_their_index() -> None:
    unit = Unit.of("a", [Entry("s", "t", "x"), Entry("s", "t", "y")], [])
    assert [entry.entry_id for entry in unit.entries] == [("a", 0), ("a", 1)]


def test_a_unit_says_each_condition_once() -> None:
    unit = Unit.of("a", [], [Condition("s", "t"), Condition("s", "t")])
    assert unit.conditions == (Condition("s", "t"),)


def test_content_is_the_same_whatever_its_append_id_and_its_hour() -> None:
    one = Unit.of("a", [Entry("s", "t", "x", recorded_at_ms=1)], [Condition("s", "t")])
    two = Unit.of("b", [Entry("s", "t", "x", recorded_at_ms=2)], [Condition("s", "t")])
    assert one.same_content(two)


@pytest.mark.parametrize("change", [{"count": 2}, {"body": {"deadline": 2}}, {"attempt": "a2"}])
def test_content_differs_with_anything_that_an_entry_says(change: Any) -> None:
    entry = Entry("s", "t", "x", count=1, body={"deadline": 1}, attempt="a1")
    one = Unit.of("a", [entry], [])
    assert not one.same_content(Unit.of("b", [replace(entry, **change)], []))


def test_content_differs_with_what_it_expects() -> None:
    one = Unit.of("a", [Entry("s", "t", "x")], [Condition("s", "t", sequence_from=1)])
    two = Unit.of("b", [Entry("s", "t", "x")], [Condition("s", "t", sequence_from=2)])
    assert not one.same_content(two)


def test_a_protocols_stream_lies_in_one_of_its_shards() -> None:
    found = {model.protocol_shard(f"stream {n}") for n in range(1_000)}
    assert found == {f"protocol/{n}" for n in range(model.PROTOCOL_SHARDS)}
