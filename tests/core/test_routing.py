"""Which queues a message goes to: by definition, slowly, and as the library finds out."""

from __future__ import annotations

import re
import sys
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.matching import matched
from txnqueue.core import exchanges
from txnqueue.core.exchanges import (
    Binding,
    BindingAnswer,
    ExchangeAnswer,
    ExchangeInfo,
    topic_matches,
)
from txnqueue.errors import InvalidInput, LimitExceeded
from txnqueue.storage.payload.routes import expression_of, places_of

WORDS = st.sampled_from(["", "a", "b", "ab", "a+b", "ä"])
KEYS = st.lists(WORDS, max_size=7).map(".".join)
PATTERNS = st.lists(WORDS | st.sampled_from("*#"), max_size=7).map(".".join)


def fits(wanted: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Say by trying everything whether words fit a pattern."""
    if not wanted:
        return not words
    first, rest = wanted[0], wanted[1:]
    if first == "#":
        return any(fits(rest, words[n:]) for n in range(len(words) + 1))
    return bool(words) and first in ("*", words[0]) and fits(rest, words[1:])


@given(PATTERNS, KEYS)
def test_a_topic_matches_by_its_definition(pattern: str, key: str) -> None:
    expected = fits(exchanges.words_of(pattern), exchanges.words_of(key))
    assert topic_matches(pattern, key) == expected


@given(PATTERNS, KEYS)
def test_the_expression_of_a_pattern_says_the_same(pattern: str, key: str) -> None:
    expression = expression_of(pattern).replace("\\z", "\\Z")
    if sys.version_info < (3, 11):  # it has no groups that give nothing back: slower, no other
        expression = expression.replace("(?>", "(?:")
    words = f".{key}" if key else ""
    assert bool(re.search(expression, words)) == topic_matches(pattern, key)


def test_every_short_topic_matches_by_its_definition() -> None:
    for length, many in product(range(5), range(5)):
        for pattern, key in product(product("ab*#", repeat=length), product("ab", repeat=many)):
            assert topic_matches(".".join(pattern), ".".join(key)) == fits(pattern, key)


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("stock.*.nyse", "stock.usd.nyse", True),
        ("stock.#", "stock", True),
        ("stock.*", "stock", False),
        ("#", "", True),
        ("*", "", False),
        ("", "", True),
        ("#.#", "a.b", True),
        ("*.", "a.", True),
        ("A", "a", False),
        ("#.a.#.b.#", "x.a.a.b", True),
        ("#.b.#.a", "x.a.a.b", False),
    ],
)
def test_topics_as_people_write_them(pattern: str, key: str, expected: bool) -> None:
    assert topic_matches(pattern, key) == expected


def test_one_hash_stands_for_those_behind_each_other() -> None:
    assert exchanges.pattern_words("#.#.a.#.#.#.b.#") == ("#", "a", "#", "b", "#")
    assert exchanges.pattern_words("a.a.*.*") == ("a", "a", "*", "*")


def test_many_hashes_take_no_longer_than_their_number_times_the_words() -> None:
    pattern = ".".join(["#", "a"] * 60 + ["b"])
    assert not topic_matches(pattern, ".".join("a" * 127))


# ------------------------------------------------------------------------- other kinds

HEADERS = st.dictionaries(st.sampled_from("xyz"), st.sampled_from(["1", "2"]))
ASKED = st.dictionaries(st.sampled_from("xyz"), st.sampled_from(["1", "2", None]))


@given(ASKED, st.sampled_from(["all", "any"]), HEADERS)
def test_headers_match_by_their_definition(asked: Any, match: str, headers: Any) -> None:
    arguments, said = exchanges.read_arguments({**asked, "x-match": match, "x-other": 7})
    found = [n in headers and v in (None, headers[n]) for n, v in asked.items()]
    expected = all(found) if match == "all" else any(found)
    binding = Binding("q", "", arguments, said)
    assert matched("headers", [binding], "ignored", headers) == (["q"] if expected else [])


def test_a_queue_gets_a_message_once_however_often_it_is_bound() -> None:
    bindings = [Binding("q", "a.#"), Binding("r", "b"), Binding("q", "#.a")]
    assert matched("topic", bindings, "a", {}) == ["q"]
    assert matched("topic", bindings, "b", {}) == ["r"]
    assert matched("direct", bindings, "b", {}) == ["r"]
    assert matched("direct", bindings, "a", {}) == []
    assert matched("fanout", bindings, "anything", {}) == ["q", "r"]
    assert matched("fanout", [], "anything", {}) == []


def test_routes_are_read_as_they_are_written() -> None:
    assert places_of("") == []
    assert places_of("0:3,12:0") == [(0, 3), (12, 0)]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: exchanges.check_kind("queue"), InvalidInput),
        (lambda: exchanges.check_key(5), InvalidInput),
        (lambda: exchanges.check_key("x" * 256), LimitExceeded),
        (lambda: exchanges.read_arguments({"x-match": "some"}), InvalidInput),
        (lambda: exchanges.read_arguments({"a": 1.5}), InvalidInput),
        (lambda: exchanges.read_arguments([]), InvalidInput),
        (lambda: exchanges.read_arguments({1: "a"}), InvalidInput),
    ],
)
def test_what_cannot_be_said_is_refused(call: Any, error: Any) -> None:
    with pytest.raises(error):
        call()


def test_a_key_may_be_as_long_as_the_protocols_allow() -> None:
    assert exchanges.check_key("x" * 255) == "x" * 255


def test_values_of_arguments_are_compared_as_text() -> None:
    said = exchanges.read_arguments({"n": 5, "yes": True, "there": None})
    assert said == ((("n", "5"), ("there", None), ("yes", "true")), "all")


# -------------------------------------------------------------------------- the queries

EXCHANGES = {
    "": ExchangeInfo("", "", "direct", "", {}),
    "e": ExchangeInfo("e", "e-1", "headers", "p", {}, durable=False, arguments={"a": 1}),
}
BINDINGS = {
    "": [Binding("q-1", "q"), Binding("r-1", "r")],
    "e": [Binding("q-1", "k", (("h", "1"),), "any")],
}
QUEUES = {"q": "q-1", "r": "r-1"}


def asked(*args: Any, **said: Any) -> set[str]:
    """Ask about bindings, and name the bits that are set."""
    answer = exchanges.binding_query(EXCHANGES, BINDINGS, QUEUES, *args, **said)
    names = BindingAnswer.__dataclass_fields__
    return {name for name in names if getattr(answer, name)}


def test_an_exchange_is_told_or_said_not_to_be_there() -> None:
    query = exchanges.exchange_query
    assert query(EXCHANGES) == ExchangeAnswer("direct", True, False, {})
    assert query(EXCHANGES, "e") == ExchangeAnswer("headers", False, False, {"a": 1})
    assert query(EXCHANGES, "f") == ExchangeAnswer("", None, True, {})


def test_every_bit_of_a_binding_query_stands_for_itself() -> None:
    bits = {
        "queue": ("q", "r", "queue_not_matched"),
        "routing_key": ("k", "l", "key_not_matched"),
        "arguments": ({"h": 1, "x-match": "any"}, {"h": 1}, "args_not_matched"),
    }
    for chosen in product((None, 0, 1), repeat=3):
        said = {
            name: bits[name][which]
            for name, which in zip(bits, chosen, strict=True)
            if which is not None
        }
        expected = {bits[name][2] for name, which in zip(bits, chosen, strict=True) if which == 1}
        assert asked("e", **said) == expected


def test_what_is_not_there_sets_its_bit_and_raises_nothing() -> None:
    assert asked() == set()
    assert asked(queue="q", routing_key="q") == set()  # the default exchange
    assert asked(queue="q", routing_key="r") == set()  # each looked for on its own
    assert asked("f") == {"exchange_not_found"}
    assert asked("e", queue="s") == {"queue_not_found", "queue_not_matched"}
    assert asked("f", queue="q", routing_key="k", arguments={}) == {
        "exchange_not_found",
        "queue_not_matched",
        "key_not_matched",
        "args_not_matched",
    }
    assert asked("e", arguments={"h": object()}) == {"args_not_matched"}
