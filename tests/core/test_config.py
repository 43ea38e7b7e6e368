"""Settings: names, limits, and how long a retry waits."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnqueue.core.bounds import Bounds
from txnqueue.core.redelivery import Redelivery
from txnqueue.core.settings import (
    LANES_MAX,
    LEASE_SECONDS_MAX,
    REASON_LENGTH_MAX,
    QueueInfo,
    QueueSettings,
    RetryPolicy,
    check_name,
    check_number,
    check_root,
    check_transaction_id,
    describe_error,
    is_whole,
    place_of_message,
    shown,
)
from txnqueue.errors import InvalidInput, InvalidName, LimitExceeded, TxnQueueError


@pytest.mark.parametrize("name", ["a", "Orders", "orders.dead", "a-b_c.9", "x" * 100])
def test_a_name_may_have_letters_digits_dots_dashes_and_underscores(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "1a", ".a", "_a", "a b", "a/b", "a`b", "a'b", "a\n", "ä", "../x", "x" * 101, None, 7],
)
def test_any_other_name_is_refused_and_named(name: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name(name)
    assert repr(name) in str(caught.value)
    assert caught.value.name == (name if isinstance(name, str) else repr(name))
    with pytest.raises(InvalidName, match="the name of an exchange"):
        check_name(name, "exchange")


@pytest.mark.parametrize("key", ["", None, 7, b"x", "x" * 201])
def test_a_transaction_id_has_1_to_200_characters(key: str) -> None:
    with pytest.raises(InvalidInput, match="transaction_id"):
        check_transaction_id(key)
    assert check_transaction_id("x" * 200) == "x" * 200


@pytest.mark.parametrize("root", ["/lake", "./store", "s3a://lake/x", "../", "lake", "main.lake"])
def test_a_root_is_a_path_or_the_name_of_a_schema(root: str) -> None:
    assert check_root(root) == root
    if ":" not in root:
        assert "/" in check_root(Path(root))  # who gives a path object means a path


@pytest.mark.parametrize("uri", ["s3a://lake/x", "hdfs://node:8020/lake", "abfss:/x"])
def test_a_path_object_of_a_uri_is_refused_because_it_is_another_place(uri: str) -> None:
    assert str(Path(uri)) == uri.replace("//", "/")
    with pytest.raises(InvalidInput, match="give the URI as text"):
        check_root(Path(uri))
    assert check_root(Path("file:/lake/x")) == "file:/lake/x"


@pytest.mark.parametrize("root", [".", "..", "", " ", "lake. ", ".lake", "l.", None, 5, b"/lake"])
def test_any_other_root_is_refused_and_named(root: object) -> None:
    with pytest.raises(InvalidInput, match="root="):
        check_root(root)


@pytest.mark.parametrize("value", ["5", None, True, [1]])
def test_what_is_no_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        check_number("limit", value, 1, 10)


@pytest.mark.parametrize("value", [0, 11, -1, math.inf, math.nan])
def test_a_number_out_of_range_exceeds_a_limit(value: Any) -> None:
    with pytest.raises(LimitExceeded, match="limit"):
        check_number("limit", value, 1, 10)


@pytest.mark.parametrize(
    "settings",
    [
        {"lanes": 0},
        {"lanes": LANES_MAX + 1},
        {"lanes": 1.5},
        {"lanes": "2"},
        {"lanes": True},
        {"deliveries_max": 0},
        {"deliveries_max": 2.0},
        {"lease_seconds": 0},
        {"lease_seconds": -5},
        {"lease_seconds": LEASE_SECONDS_MAX + 1},
        {"lease_seconds": "60"},
        {"group_by": 5},
        {"message_id": 5},
        {"redelivery_delay_seconds_max": -0.5},
    ],
)
def test_a_queue_setting_that_cannot_be_is_refused_by_name(settings: Any) -> None:
    with pytest.raises(InvalidInput, match=next(iter(settings))):
        QueueSettings(**settings)


@pytest.mark.parametrize(
    ("message_id", "place"),
    [
        ("a:3", ("a", 3)),
        ("a:b:0", ("a:b", 0)),
        (f"a:{2**63 - 1}", ("a", 2**63 - 1)),
        *((text, None) for text in ("", "a", "a:", ":3", "a:-1", "a:1.5", f"a:{2**63}")),
        ("a:" + "9" * 5_000, None),
    ],
)
def test_a_message_id_names_a_send_and_an_offset_of_63_bits(
    message_id: str, place: tuple[str, int] | None
) -> None:
    assert place_of_message(message_id) == place


def test_what_an_error_shows_is_shortened() -> None:
    assert shown("x" * (REASON_LENGTH_MAX - 2)) == repr("x" * (REASON_LENGTH_MAX - 2))
    cut = shown("x" * (REASON_LENGTH_MAX - 1))
    assert (len(cut), cut[-3:]) == (REASON_LENGTH_MAX, "x …")


@pytest.mark.parametrize(
    "policy",
    [
        {"attempts_max": 0},
        {"seconds_max": -1},
        {"wait_seconds_first": -1},
        {"wait_seconds_max": "x"},
    ],
)
def test_a_retry_policy_that_cannot_be_is_refused_by_name(policy: Any) -> None:
    with pytest.raises(InvalidInput, match=next(iter(policy))):
        RetryPolicy(**policy)


@pytest.mark.parametrize(
    ("made", "name", "low", "high", "beyond"),
    [
        (QueueSettings, "lanes", 1, LANES_MAX, 1),
        (QueueSettings, "lease_seconds", 0.001, LEASE_SECONDS_MAX, 0.0001),
        (QueueSettings, "deliveries_max", 1, 1_000, 1),
        (QueueSettings, "delay_step_seconds", 0.001, LEASE_SECONDS_MAX, 0.0001),
        (RetryPolicy, "attempts_max", 1, 10_000, 1),
        (RetryPolicy, "seconds_max", 0, 86_400, 0.5),
        (RetryPolicy, "wait_seconds_first", 0, 3_600, 0.5),
        (RetryPolicy, "wait_seconds_max", 0, 3_600, 0.5),
    ],
)
def test_a_setting_may_be_at_its_bounds_and_not_beyond(
    made: Any, name: str, low: float, high: float, beyond: float
) -> None:
    for value in (low, high):
        assert getattr(made(**{name: value}), name) == value
    for value in (low - beyond, high + beyond):
        with pytest.raises(LimitExceeded, match=name):
            made(**{name: value})


@pytest.mark.parametrize(
    ("name", "low", "beyond"),
    [("max_seconds", 0, 0.5), ("max_messages", 1, 1), ("max_batches", 1, 1)],
)
def test_what_ends_a_drain_has_a_least_value_and_no_greatest(
    name: str, low: Any, beyond: Any
) -> None:
    def bounds(value: Any) -> Bounds:
        given: dict[str, Any] = {name: value}
        return Bounds(**given)

    for value in (low, 10**12):
        assert getattr(bounds(value), name) == value
    with pytest.raises(LimitExceeded, match=name):
        bounds(low - beyond)


def test_a_drain_is_over_when_its_time_or_its_number_is_reached() -> None:
    bounds = Bounds(max_seconds=30, max_messages=10, max_batches=2)
    assert [bounds.over(seconds) for seconds in (0, 29.9, 30, 31)] == [False, False, True, True]
    assert [bounds.room(4, 0, held, 1) for held in (0, 6, 8, 10)] == [4, 4, 2, 0]
    assert [bounds.room(4, 0, 0, batches) for batches in (1, 2, 3)] == [4, 0, 0]
    assert [bounds.room(4, seconds, 0, 0) for seconds in (29.9, 30)] == [4, 0]
    assert Bounds(stopped=lambda: True).room(4, 0, 0, 0) == 0
    assert Bounds().room(4, 10**9, 10**9, 10**9) == 4


@pytest.mark.parametrize("text", ["short", "x" * 480, "b" * 300 + "e" * 300, "ü" * 2_000])
def test_an_error_is_described_in_500_characters_by_its_beginning_and_its_end(text: str) -> None:
    said = describe_error(ValueError(text))
    assert said.startswith("ValueError: " + text[:200]) and said.endswith(text[-200:])
    assert len(said) == len(text) + 12 if len(text) <= 488 else 498 < len(said) <= 500


def test_an_error_is_described_whole_as_long_as_it_fits() -> None:
    whole = "ValueError: " + "x" * 488
    assert describe_error(ValueError("x" * 488)) == whole
    assert describe_error(ValueError("x" * 489)) != whole + "x"


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_a_wait_is_never_negative_and_never_above_its_maximum(tries: Any, jitter: Any) -> None:
    policy = RetryPolicy(wait_seconds_first=0.5, wait_seconds_max=4.0)
    assert 0 <= policy.wait_seconds(tries, jitter) <= 4.0


def test_the_widest_wait_doubles_thirty_times_at_most() -> None:
    policy = RetryPolicy(wait_seconds_first=2.0**-20, wait_seconds_max=3_600)
    assert [policy.wait_seconds(n, 1.0) for n in (1, 30, 31, 32, 10_000)] == [
        2.0**-20, 2.0**9, 2.0**10, 2.0**10, 2.0**10
    ]  # fmt: skip


def test_the_widest_wait_doubles_until_its_maximum() -> None:
    policy = RetryPolicy(wait_seconds_first=1.0, wait_seconds_max=5.0)
    assert [policy.wait_seconds(tries, 1.0) for tries in (1, 2, 3, 4, 5)] == [1, 2, 4, 5, 5]


def test_jitter_is_full() -> None:
    """Drawn from 0 to the widest, so that rivals that met once do not meet again."""
    policy = RetryPolicy(wait_seconds_first=2.0)
    assert [policy.wait_seconds(1, dice) for dice in (0.0, 0.25, 1.0)] == [0, 0.5, 2]


def test_every_error_of_ours_can_be_caught_as_one() -> None:
    assert issubclass(LimitExceeded, InvalidInput)
    assert issubclass(InvalidName, ValueError)
    assert issubclass(InvalidInput, TxnQueueError)


def test_an_errors_docstring_is_its_message_and_its_details_are_attributes() -> None:
    error = InvalidName(name="x y")
    assert str(error).startswith("A name is 1 to 100 letters")
    assert error.name == "x y"


def test_the_rules_of_redelivery_are_told_in_milliseconds_and_by_where_the_dead_go() -> None:
    settings = QueueSettings(
        deliveries_max=4, redelivery_delay_seconds=1.5, redelivery_delay_seconds_max=90
    )
    info = QueueInfo("q", "q-1", "q-1", {}, 1, settings, dead_letter_id="dead")
    assert info.redelivery == Redelivery(4, 1_500, 90_000)
    assert replace(info, dead_letter_id=None).redelivery == Redelivery(None, 1_500, 90_000)
    unique = QueueSettings(message_id="key", duplicate_window_seconds=2.5)
    assert (unique.duplicate_window_ms, settings.duplicate_window_ms) == (2_500, None)


def test_a_text_is_a_whole_number_only_if_python_reads_it() -> None:
    assert all(map(is_whole, ("0", "9" * 640)))
    assert not any(map(is_whole, ("", "-1", "1.5", "\u00b2", "\u0663", "9" * 5_000)))
