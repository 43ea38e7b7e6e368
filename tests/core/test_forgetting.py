"""What may be removed of the history, and what is left of entries that named more."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest

from tests.faults.pasts import Told
from txnqueue.admin.retention import Retention
from txnqueue.client import archive
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.state import retention
from txnqueue.errors import HistoryRemoved, InvalidInput


def advanced(version: int, day: str | None, **said: Any) -> Entry:
    """An entry that advanced the horizon, and said a day."""
    body = {"v": 1, "staging": [], **({} if day is None else {"day": day}), **said}
    return Entry(
        model.FENCE, "horizon", model.HORIZON_ADVANCED, begun=version - 1, body=body,
        append_id=f"h{version}", version=version,
    )  # fmt: skip


def posted(name: str, version: int, queue_id: str = "q") -> Entry:
    """A position of three messages."""
    return Entry(
        model.backlog_shard(queue_id), "lane/0", model.POSTED, queue_id=queue_id, lane=0,
        append_id=name, ranges=((0, 2),), count=3, version=version,
    )  # fmt: skip


def naming(kind: str, version: int, *names: str, **body: Any) -> Entry:
    """An entry of a lane that names one message of each of some positions."""
    items, ranges, count = model.pack_items(((name, 0), ((1, 1),)) for name in names)
    return Entry(
        model.lane_shard("q", 0), "lane/0", kind, sequence=version, queue_id="q", lane=0,
        append_id=f"e{version}", ranges=ranges, count=count, body={"items": items, **body},
        version=version,
    )  # fmt: skip


def milliseconds(day: str) -> int:
    """When a day begins."""
    midnight = datetime.datetime.fromisoformat(day).replace(tzinfo=datetime.timezone.utc)
    return round(midnight.timestamp() * 1000)


def recorded(version: int, day: str) -> Entry:
    """An entry of a client whose clock says a day."""
    return dataclasses.replace(posted(f"r{version}", version), recorded_at_ms=milliseconds(day))


NOW_MS = milliseconds("2027-01-01")
DAYS = [advanced(5, "2026-01-01"), advanced(9, "2026-01-03"), advanced(12, "2026-01-03")]


@pytest.mark.parametrize(
    ("last_day", "found"),
    [
        ("2025-12-31", None),
        ("2026-01-01", (5, "2026-01-01")),
        ("2026-01-02", (5, "2026-01-01")),  # the next day was said too late to reach back to this
        ("2026-01-03", (9, "2026-01-03")),  # where it was said first
        ("2026-09-09", (9, "2026-01-03")),
    ],
)
def test_the_history_begins_where_the_last_day_was_said_that_is_old_enough(
    last_day: str, found: Any
) -> None:
    other = Entry(model.FENCE, "history", model.HISTORY_REMOVED, body={"day": "2026-01-02"})
    assert retention.beginning([*reversed(DAYS), other], last_day, NOW_MS) == found


@pytest.mark.parametrize(
    ("last_day", "found"),
    [
        ("2026-01-03", None),
        ("2026-01-04", (30, "2026-01-04")),
        ("2026-01-05", (32, "2026-01-05")),
    ],
)
def test_a_day_may_have_been_over_for_long_when_it_was_said(last_day: str, found: Any) -> None:
    said = [
        recorded(18, "2026-01-04"),
        advanced(20, "2025-12-20", corrections=1),  # by a clock that was behind
        advanced(22, "2025-12-20", corrections=1),
        advanced(24, "2025-12-21", corrections=1),
        advanced(30, "2026-01-04", corrections=1),
        recorded(31, "2026-01-05"),
        advanced(32, "2026-01-05", corrections=1),
    ]
    assert retention.beginning([*DAYS, *said], last_day, NOW_MS) == found


def test_what_was_recorded_in_the_future_proves_nothing() -> None:
    ahead = recorded(1, "2031-01-01")
    assert retention.beginning([ahead, *DAYS], "2026-01-03", NOW_MS) == (9, "2026-01-03")


def test_what_said_no_day_begins_nothing() -> None:
    assert retention.beginning([advanced(5, None)], "2026-09-09", NOW_MS) is None
    assert model.archive_day([advanced(5, None)]) == ""
    assert model.archive_day([*DAYS, advanced(14, None)]) == "2026-01-03"


def test_what_concerns_positions_that_are_known_stays() -> None:
    entries = [posted("a", 4), posted("b", 7), posted("c", 3, "other"), posted("d", 8, "late")]
    known = retention.standing([*entries, *DAYS], 8)
    assert known == entries[:3]
    assert retention.oldest(known) == {"q": 4, "other": 3}
    settled: dict[str, Any] = {"claim_lane": 0, "queue_id": "q", "lane": 0}
    later = [
        naming(model.CLAIMED, 9, "a", "gone"),
        naming(model.CLAIMED, 10, "gone"),
        naming(model.CLAIMED, 11, "gone", supersedes=[9]),
        naming(model.PURGED, 12, "gone"),
        *(
            Entry("backlog/q", "lane/0", model.ACCEPTED, append_id=f"s{n}", claim_sequence=n,
                  version=20, **settled)
            for n in (9, 10, 11)
        ),
    ]  # fmt: skip
    found = retention.concerning(later, known)
    assert {name for name, _ in found} == {"a", "b", "c", "e9", "e11", "s9", "s11"}


def test_messages_were_in_the_positions_that_they_were_moved_from() -> None:
    """What was published has an origin, too: the exchange."""
    origins: list[Any] = [None, {"position": ["old", 3], "reason": None}, {"reason": "unroutable"}]
    moved = [dataclasses.replace(posted("a", 4), body={"v": 1, "origin": one}) for one in origins]
    assert retention.former([posted("b", 7), *moved]) == {("old", 3)}


def test_older_entries_speak_only_of_what_is_known() -> None:
    whole = (
        posted("known", 4),
        naming(model.CLAIMED, 5, "known", "gone"),
        naming(model.CLAIMED, 6, "gone"),
        naming(model.CLAIMED, 7, "gone", supersedes=[5]),
        naming(model.PURGED, 8, "gone", "known"),
        naming(model.CLAIMED, 20, "gone"),
    )
    found = list(archive.known(whole, 10))
    assert [entry.version for entry in found] == [4, 5, 7, 8, 20]
    named = {e.version: model.unpack_items(e) for e in found}
    only = [(("known", 0), ((1, 1),))]
    assert (named[5], named[7], named[8]) == (only, [], only)
    assert found[1].count == 2, "how large a claim was stays true"
    assert found[-1] is whole[-1], "what is new is all there, or something is wrong"
    assert tuple(archive.known(whole, -1)) == whole


def test_what_was_prepared_and_lost_its_decision_is_not_open() -> None:
    prepared = Entry("transaction/0", "x", model.PREPARED, attempt="1", append_id="p")
    committed = Entry("transaction/0", "x", model.COMMITTED, attempt="1", append_id="c")
    assert archive.decided([prepared], []) == []
    assert archive.decided([prepared, committed], []) == [prepared, committed]
    assert archive.decided([prepared], [committed]) == [prepared]


def test_an_older_beginning_leaves_for_the_archive() -> None:
    said = [
        Entry(model.FENCE, "history", model.HISTORY_REMOVED, begun=begun, version=begun + 10)
        for begun in (5, 9)
    ]
    assert model.beginning(said) == 9
    assert retention.finished([*said, advanced(30, "2026-01-05")], 29) == said[:1]


def test_a_commit_before_the_beginning_is_refused_with_the_oldest_one() -> None:
    past = Told((), 9)
    past.check_known(model.commit_seq(9))
    with pytest.raises(HistoryRemoved) as refused:
        past.check_known(model.commit_seq(9) - 1)
    assert refused.value.details["commit_seq"] == model.commit_seq(9)
    Told(()).check_known(0)


def test_the_history_is_kept_as_long_as_payload_or_longer() -> None:
    assert Retention(history_days=7).history_days == 7
    with pytest.raises(InvalidInput, match=r"history_retention_days=6.*payload_retention_days=7"):
        Retention(history_days=6)


MIDNIGHT_MS = 1_767_571_200_000
"""2026-01-05."""


@pytest.mark.parametrize(
    ("today", "recorded_at_ms", "version", "told"),
    [
        ("2026-01-03", MIDNIGHT_MS - 86_400_001, 13, True),
        ("2026-01-03", MIDNIGHT_MS - 86_400_000, 13, False),  # it may be that day's eve there
        ("2026-01-03", 1, 13, True),
        ("2026-01-03", 0, 13, False),  # no clock was recorded
        ("2026-01-03", 1, 12, False),  # with the day
        ("2026-01-03", 1, 11, False),  # before the day was said: time may have gone by
        ("2026-01-04", 1, 13, False),  # clocks may be a day apart
        ("2026-01-05", 1, 13, False),
    ],
)
def test_a_day_is_ahead_if_a_clock_denies_it_after_it_was_said(
    today: str, recorded_at_ms: int, version: int, told: bool
) -> None:
    other = Entry("lane/q/0", "lane/0", model.CLAIMED, version=version)
    other = dataclasses.replace(other, recorded_at_ms=recorded_at_ms)
    entries = [advanced(12, "2026-01-05"), other]
    assert retention.day_ahead(entries, today) == ((0, "2026-01-05", 12) if told else None)


def test_where_no_day_was_said_none_is_ahead() -> None:
    assert retention.day_ahead([advanced(12, None)], "2026-01-03") is None


def test_no_day_is_ahead_of_the_last_one() -> None:
    entries = [advanced(12, "9999-12-31"), recorded(13, "2026-01-03")]
    assert retention.day_ahead(entries, "9999-12-31") is None
    assert retention.day_ahead(entries, "9999-12-30") is None
    assert retention.day_ahead(entries, "9999-12-29") == (0, "9999-12-31", 12)


def test_who_owns_rows_staged_for_tables_is_known_after_the_changes_have_left() -> None:
    source = {"payload_id": "staged", "slice": 3}
    change = Entry(
        "table/1", "t", model.CHANGE_DECIDED, append_id="c", body={"change": {"source": source}}
    )
    sent = Entry("backlog/q", "lane/0", model.POSTED, body={"payload": "orders", "slice": 3})
    by_key = dataclasses.replace(change, append_id="k", body={"change": {"delete": "id = 1"}})
    assert retention.staging_owners([change, sent, by_key]) == {"staged"}
    before = dataclasses.replace(advanced(5, None), body={"staging": ["older"]})
    assert retention.staging_owners([before, sent, change]) == {"older", "staged"}
    assert retention.named_slices([change, sent, by_key]) == {"staged": {3}, "orders": {3}}


@pytest.mark.parametrize("decided", [None, model.COMMITTED, model.ROLLED_BACK])
def test_a_manifest_names_payload_until_it_is_decided(decided: str | None) -> None:
    posted = {"kind": model.POSTED, "body": {"payload": "orders", "slice": 3}}
    body = {"manifest": {"entries": [posted]}}
    found = [Entry("transaction/0", "x", model.PREPARED, attempt="a", body=body)]
    found += [Entry("transaction/0", "x", decided, attempt="a")] if decided else []
    other = Entry("transaction/0", "x", model.COMMITTED, attempt="b")
    for order in ([*found, other], [other, *reversed(found)]):
        assert retention.named_slices(order) == ({} if decided else {"orders": {3}})
