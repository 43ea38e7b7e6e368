"""Where a setting comes from, and what is said when it cannot be used."""

from __future__ import annotations

from typing import Any

import pytest

from txnqueue.core.configuration import OPTIONS, Configuration, Value
from txnqueue.core.settings import QueueSettings, RetryPolicy, check_metadata
from txnqueue.errors import InvalidInput, LimitExceeded
from txnqueue.manager import QueueManager
from txnqueue.storage.store import MemoryStore

CONF = {"spark.txnqueue.queue.lanes": "3", "spark.sql.ansi.enabled": "true"}
NOTHING: dict[str, str] = {}
ROOT = "a path with a '/', such as './store', or the name of a catalog schema"
ENVIRON = {"TXNQUEUE_QUEUE_LANES": "5", "TXNQUEUE_QUEUE_LEASE_SECONDS": " 12.5 ", "HOME": "/"}


def test_an_argument_comes_before_spark_before_the_environment_before_the_default() -> None:
    both = Configuration(CONF.get, ENVIRON)
    assert both.value("queue.lanes", 7) == Value("queue.lanes", 7, "argument")
    spark = Value("queue.lanes", 3, "spark.txnqueue.queue.lanes")
    assert both.value("queue.lanes") == spark
    variable = Value("queue.lanes", 5, "TXNQUEUE_QUEUE_LANES")
    assert Configuration(NOTHING.get, ENVIRON).value("queue.lanes") == variable
    assert Configuration(NOTHING.get, {}).value("queue.lanes") == Value("queue.lanes", 1, "default")
    assert both.value("queue.lease_seconds").value == 12.5
    assert [value.key for value in both.values()] == list(OPTIONS)


@pytest.mark.parametrize(
    ("key", "text", "error", "allowed"),
    [
        ("queue.lanes", "0", LimitExceeded, "a whole number from 1 to 256"),
        ("queue.lanes", "2.5", InvalidInput, "a whole number from 1 to 256"),
        ("queue.lease_seconds", "long", InvalidInput, "a number from 0.001 to 604800"),
        ("queue.lease_seconds", "nan", LimitExceeded, "a number from 0.001 to 604800"),
        ("queue.ordered", "yes", InvalidInput, "true or false"),
        ("actor", " ", InvalidInput, "text in UTF-8 that is not empty"),
        ("actor", "\udcff", InvalidInput, "text in UTF-8 that is not empty"),
        ("root", "lake.", InvalidInput, ROOT),
        ("root", "/lake/\udcff", InvalidInput, ROOT),
        ("queue.lanes", "1_0", InvalidInput, "a whole number from 1 to 256"),
        ("queue.lanes", "\u0661", InvalidInput, "a whole number from 1 to 256"),
        ("queue.lease_seconds", "1_0", InvalidInput, "a number from 0.001 to 604800"),
        ("retry.attempts_max", "10001", LimitExceeded, "a whole number from 1 to 10000"),
    ],
)
def test_a_wrong_value_is_told_with_its_key_its_range_and_its_source(
    key: str, text: str, error: Any, allowed: Any
) -> None:
    variable = OPTIONS[key].variable
    for said, source in (
        (Configuration(NOTHING.get, {variable: text}), variable),
        (Configuration({f"spark.txnqueue.{key}": text}.get, {}), f"spark.txnqueue.{key}"),
    ):
        with pytest.raises(error) as caught:
            said.value(key)
        assert str(caught.value) == f"{source}={text!r}: {key} is {allowed}."
        assert (caught.value.name, caught.value.source) == (key, source)


@pytest.mark.parametrize("key", [one.key for one in OPTIONS.values() if one.high])
def test_a_number_may_be_at_its_bounds_and_not_beyond(key: str) -> None:
    option = OPTIONS[key]
    for number, fits in (
        (option.low, True), (option.high, True), (option.low - 1, False), (option.high + 1, False)
    ):  # fmt: skip
        configuration = Configuration(NOTHING.get, {option.variable: f"{number:g}"})
        if fits:
            assert configuration.value(key).value == number
        else:
            with pytest.raises(LimitExceeded, match=option.variable):
                configuration.value(key)


@pytest.mark.parametrize(
    ("configured", "given", "sources"),
    [
        ({"redelivery_delay_seconds": "7200"}, {}, ["redelivery_delay_seconds"]),
        (
            {"redelivery_delay_seconds_max": "5", "lanes": "3"},
            {"redelivery_delay_seconds": 10},
            ["redelivery_delay_seconds_max"],
        ),
        ({"dead_letter_expired": "true"}, {"dead_letter": False}, ["dead_letter_expired"]),
        (
            {"dead_letter": "false", "dead_letter_expired": "true"},
            {},
            ["dead_letter", "dead_letter_expired"],
        ),
        ({"lease_seconds": "5"}, {"lanes": 0}, []),
        ({"redelivery_delay_seconds": "5"}, {"redelivery_delay_seconds_max": -1}, []),
    ],
)
def test_of_settings_that_contradict_each_other_it_is_told_which_are_configured(
    configured: dict[str, str], given: dict[str, Any], sources: list[str]
) -> None:
    conf = {f"spark.txnqueue.queue.{name}": text for name, text in configured.items()}
    with pytest.raises(InvalidInput) as caught:
        Configuration(conf.get, {}).declared_settings(given)
    told = [f"{name} is set by spark.txnqueue.queue.{name}." for name in sources]
    assert [one for one in told if one in str(caught.value)] == told
    assert str(caught.value).count(" is set by ") == len(told)
    first = f"spark.txnqueue.queue.{sources[0]}" if sources else None
    assert caught.value.source == first


def test_the_defaults_are_those_of_the_library() -> None:
    nothing = Configuration(NOTHING.get, {})
    assert nothing.retry() == RetryPolicy()
    assert nothing.queue_settings({}) == QueueSettings()
    settings = {name.removeprefix("queue."): None for name in OPTIONS if name[:6] == "queue."}
    assert nothing.queue_settings(settings) == QueueSettings()


def test_a_manager_takes_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXNQUEUE_ACTOR", "nightly")
    monkeypatch.setenv("TXNQUEUE_RETRY_ATTEMPTS_MAX", "3")
    monkeypatch.setenv("TXNQUEUE_QUEUE_DELIVERIES_MAX", "4")
    monkeypatch.setenv("TXNQUEUE_QUEUE_DEAD_LETTER", "False")
    manager = QueueManager(None, store=MemoryStore())
    queue = manager.create_queue("orders", "n long", lanes=2)
    settings = queue.info.settings
    assert (settings.lanes, settings.deliveries_max, settings.dead_letter) == (2, 4, False)
    assert manager.create_queue("other", "n long", deliveries_max=6).info.settings.lanes == 1
    queue.send([{"n": 1}])
    assert {row["actor"] for row in manager.history.changes().rows()} == {"nightly"}
    monkeypatch.setenv("TXNQUEUE_QUEUE_DELIVERIES_MAX", "many")
    with pytest.raises(InvalidInput, match="TXNQUEUE_QUEUE_DELIVERIES_MAX='many'"):
        QueueManager(None, store=MemoryStore()).create_queue("orders", "n long")
    monkeypatch.setenv("TXNQUEUE_RETRY_ATTEMPTS_MAX", "0")
    with pytest.raises(LimitExceeded, match="ATTEMPTS_MAX='0'"):
        QueueManager(None, store=MemoryStore())
    QueueManager(None, store=MemoryStore(), retry=RetryPolicy())  # the argument takes precedence


def test_what_a_decision_says_for_auditors_is_a_copy_of_what_json_knows() -> None:
    given = {"why": ["stock", 1], "by": None}
    said = check_metadata(given)
    assert said == given and said["why"] is not given["why"]
    assert check_metadata(None) == check_metadata({}) == {}
    deep: list[Any] = []
    for _ in range(97):
        deep = [deep]
    assert check_metadata({"a": [deep]}) == {"a": [deep]}
    endless = deep
    for _ in range(5_000):
        endless = [endless]
    for wrong in ({1: "a"}, {"a": object()}, ["a"], "a", {"a": [[deep]]}, {"a": endless}):
        with pytest.raises(InvalidInput, match="metadata="):
            check_metadata(wrong)
