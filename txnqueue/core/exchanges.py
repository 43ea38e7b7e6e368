"""Exchanges and bindings: which queues a message goes to (pure).

An exchange is where producers publish; bindings say which queues get what. Nothing here reads
or writes: what an exchange is and who is bound to it comes from the catalog.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from txnqueue.core.markup import Facts
from txnqueue.core.settings import check_choice, check_name, is_text, plain_text, shown
from txnqueue.errors import InvalidInput, LimitExceeded

DIRECT: Final = "direct"
TOPIC: Final = "topic"
FANOUT: Final = "fanout"
HEADERS: Final = "headers"
KINDS = (DIRECT, TOPIC, FANOUT, HEADERS)
RETURN: Final = "return"
DEAD_LETTER: Final = "dead_letter"
REFUSE: Final = "refuse"
UNROUTABLE = (RETURN, DEAD_LETTER, REFUSE)
"""What becomes of a message that no binding wants."""
DEFAULT_EXCHANGE = ""
X_MATCH, ALL, ANY = "x-match", "all", "any"
ROUTING_KEY = "routing_key"
"""The header in which a message carries the key that it was published with."""
KEY_LENGTH_MAX = 255
BINDINGS_MAX = 1_000
"""The bindings that an exchange may have."""
QUEUES_MAX = 100
"""The queues that may be bound to an exchange."""
ONE_WORD, ANY_WORDS = "*", "#"

Arguments = tuple[tuple[str, str | None], ...]
"""What a binding asks of headers, by name; None: that the header is there."""
Rule = Callable[[str, Mapping[str, str]], bool]
"""Says of a routing key and headers whether a message is wanted."""


@dataclass(frozen=True, slots=True)
class ExchangeInfo(Facts):
    """What the catalog says of one exchange.

    Attributes:
        name: Its name; empty for the default exchange.
        exchange_id: Tells it from another one that has its name later.
        kind: direct, topic, fanout or headers.
        payload_id: The owner of the payload that is published.
        schema: The payload's columns.
        schema_version: Counts how often they grew.
        unroutable: What becomes of a message that no binding wants.
        dead_letter_id: The queue that such messages go to.
        durable: As its creator gave it.
        arguments: Its further arguments, as its creator gave them.
        created_at_ms: When.
        closing: Whether it is being dropped.
    """

    name: str
    exchange_id: str
    kind: str
    payload_id: str
    schema: Mapping[str, Any]
    schema_version: int = 1
    unroutable: str = RETURN
    dead_letter_id: str | None = None
    durable: bool = True
    arguments: Mapping[str, Any] = field(default_factory=dict)
    created_at_ms: int = 0
    closing: bool = False


@dataclass(frozen=True, slots=True)
class Binding:
    """That a queue gets messages of an exchange: those with a key, or with headers."""

    queue_id: str
    routing_key: str = ""
    arguments: Arguments = ()
    match: str = ALL


@dataclass(frozen=True, slots=True)
class ExchangeAnswer:
    """What is known of an exchange.

    Attributes:
        type: Its kind; empty if there is none of that name.
        durable: Whether it is durable; None if there is none.
        not_found: There is none of that name.
        arguments: Its arguments, as its creator gave them; empty if there are none.
    """

    type: str = ""
    durable: bool | None = None
    not_found: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BindingAnswer:
    """What is known of the bindings of an exchange: the bits are independent.

    Attributes:
        exchange_not_found: There is no such exchange.
        queue_not_found: A queue was named that is not there.
        queue_not_matched: A queue was named that is not bound to the exchange.
        key_not_matched: A key was given that no binding of the exchange has.
        args_not_matched: Arguments were given that no binding of the exchange has.
    """

    exchange_not_found: bool = False
    queue_not_found: bool = False
    queue_not_matched: bool = False
    key_not_matched: bool = False
    args_not_matched: bool = False


# ------------------------------------------------------------------------------ matching


def words_of(key: str) -> tuple[str, ...]:
    """Split a routing key or pattern at its dots; the empty one has no words."""
    return tuple(key.split(".")) if key else ()


@lru_cache(maxsize=4096)
def pattern_words(pattern: str) -> tuple[str, ...]:
    """Split a pattern into words; "#" after "#" says nothing more."""
    words: list[str] = []
    for word in words_of(pattern):
        if word != ANY_WORDS or words[-1:] != [ANY_WORDS]:
            words.append(word)
    return tuple(words)


def topic_matches(pattern: str, key: str) -> bool:
    """Return whether a key matches a pattern: "*" is one word, "#" any number of words.

    Each "#" takes as few words as it can; only the last one met is tried again, which is
    enough: a later start of what precedes it leaves less for the rest.
    """
    wanted, words = pattern_words(pattern), words_of(key)
    at = back = here = 0
    hash_at = -1
    while here < len(words):
        if at < len(wanted) and wanted[at] == ANY_WORDS:
            hash_at, back = at, here
            at += 1
        elif at < len(wanted) and wanted[at] in (ONE_WORD, words[here]):
            at, here = at + 1, here + 1
        elif hash_at >= 0:
            back += 1
            at, here = hash_at + 1, back
        else:
            return False
    return all(word == ANY_WORDS for word in wanted[at:])


def headers_match(binding: Binding, headers: Mapping[str, str]) -> bool:
    """Return whether headers are what a binding asks for: all of it, or any."""
    found = (
        name in headers and (value is None or headers[name] == value)
        for name, value in binding.arguments
    )
    return any(found) if binding.match == ANY else all(found)


def rule_of(kind: str, bindings: Sequence[Binding]) -> Rule:
    """Make the rule that says which messages the bindings of one queue want.

    Args:
        kind: The exchange's kind.
        bindings: The queue's bindings to it; without any it wants nothing.
    """
    keys = frozenset(binding.routing_key for binding in bindings)
    if kind == DIRECT:
        return lambda key, _headers: key in keys
    if kind == TOPIC:
        return lambda key, _headers: any(topic_matches(pattern, key) for pattern in keys)
    if kind == HEADERS:
        return lambda _key, headers: any(headers_match(one, headers) for one in bindings)
    wanted = bool(bindings)
    return lambda _key, _headers: wanted


def by_queue(bindings: Iterable[Binding]) -> dict[str, list[Binding]]:
    """Group bindings by their queue: a message goes to a queue once, however often bound."""
    found: dict[str, list[Binding]] = {}
    for binding in bindings:
        found.setdefault(binding.queue_id, []).append(binding)
    return found


# --------------------------------------------------------------------------- checking


def check_exchange_name(name: object) -> str:
    """Check the name of an exchange to open; the default exchange's is empty.

    Raises:
        InvalidName: It is none.
    """
    default = isinstance(name, str) and name == DEFAULT_EXCHANGE
    return DEFAULT_EXCHANGE if default else check_name(name, "exchange")


def check_kind(kind: object) -> str:
    """Check the kind of an exchange.

    Raises:
        InvalidInput: There is no such kind.
    """
    return check_choice("kind", kind, KINDS)


def check_key(key: object) -> str:
    """Check a routing key, or the pattern of a binding.

    Raises:
        InvalidInput: It is no text.
        LimitExceeded: It is too long.
    """
    if not is_text(key):
        raise InvalidInput(f"routing_key={shown(key)}: give a string.", name="routing_key")
    if len(key) > KEY_LENGTH_MAX:
        raise LimitExceeded(
            f"routing_key has {len(key)} characters; at most {KEY_LENGTH_MAX} are allowed: use a "
            "shorter key.",
            name="routing_key",
        )
    return plain_text(key)


def check_keys(key: object, column: object) -> tuple[str, str | None]:
    """Check a routing key by value or by column.

    Raises:
        InvalidInput: Both are given, or one is no text.
        LimitExceeded: The key is too long.
    """
    if column is None:
        return check_key(key), None
    if key != "":
        raise InvalidInput("Give routing_key= or routing_key_column=, not both.")
    if not is_text(column):
        raise InvalidInput(
            f"routing_key_column={shown(column)}: give the name of a column.",
            name="routing_key_column",
        )
    return "", plain_text(column)


def argument_text(value: object) -> str:
    """Write the value of an argument as the text that a header has.

    Raises:
        InvalidInput: It is no string, whole number or boolean.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        with contextlib.suppress(ValueError):  # Python writes no number of thousands of digits
            return int.__repr__(value)  # an enum may be written differently
    if is_text(value):
        return plain_text(value)
    raise InvalidInput(
        f"arguments: {shown(value)}: give a string, whole number or boolean, or None for a header "
        "that only has to be present.",
        name="arguments",
    )


def read_arguments(arguments: object) -> tuple[Arguments, str]:
    """Read what a binding asks of headers; other names that begin with "x-" ask nothing.

    Returns:
        What it asks, by name, and whether of "all" or of "any".

    Raises:
        InvalidInput: Something of it cannot be used.
    """
    if not isinstance(arguments, Mapping) or not all(is_text(name) for name in arguments):
        raise InvalidInput(
            f"arguments={shown(arguments)}: give a dict of strings.", name="arguments"
        )
    match = arguments.get(X_MATCH, ALL)
    if match not in (ALL, ANY):
        raise InvalidInput(f"{X_MATCH}={shown(match)}: give 'all' or 'any'.", name=X_MATCH)
    asked = {
        plain_text(name): None if value is None else argument_text(value)
        for name, value in arguments.items()
        if not name.startswith("x-")
    }
    return tuple(sorted(asked.items())), plain_text(match)


def arguments_of(binding: Binding, kind: str) -> dict[str, str | None]:
    """Write a binding's arguments as they were given."""
    said: dict[str, str | None] = dict(binding.arguments)
    return {X_MATCH: binding.match, **said} if kind == HEADERS else said


# ----------------------------------------------------------------------------- queries


def exchange_query(
    exchanges: Mapping[str, ExchangeInfo], name: str | None = None
) -> ExchangeAnswer:
    """Return what is known of an exchange; nothing is raised.

    Args:
        exchanges: The exchanges by name, the default one included.
        name: The exchange; None for the default one.
    """
    info = exchanges.get(name or DEFAULT_EXCHANGE)
    if info is None:
        return ExchangeAnswer(not_found=True)
    return ExchangeAnswer(info.kind, info.durable, arguments=dict(info.arguments))


def binding_query(
    exchanges: Mapping[str, ExchangeInfo],
    bindings: Mapping[str, Sequence[Binding]],
    queue_ids: Mapping[str, str],
    exchange: str | None = None,
    queue: str | None = None,
    *,
    routing_key: str | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> BindingAnswer:
    """Return what is known of the bindings of an exchange; nothing is raised.

    Each field that is given is looked for on its own among all bindings of the exchange; a
    field that is not given asks nothing.

    Args:
        exchanges: The exchanges by name, the default one included.
        bindings: The bindings by the exchange's name.
        queue_ids: The queues' ids by name.
        exchange: The exchange; None for the default one.
        queue: Is this queue bound to it?
        routing_key: Has a binding of it exactly this key or pattern?
        arguments: Has a binding of it exactly these arguments?
    """
    name = exchange or DEFAULT_EXCHANGE
    found = bindings.get(name, ())
    try:
        asked = None if arguments is None else read_arguments(arguments)
        has_arguments = asked is None or any((b.arguments, b.match) == asked for b in found)
    except InvalidInput:  # no binding can have them
        has_arguments = False
    return BindingAnswer(
        exchange_not_found=name not in exchanges,
        queue_not_found=queue is not None and queue not in queue_ids,
        queue_not_matched=queue is not None
        and all(binding.queue_id != queue_ids.get(queue) for binding in found),
        key_not_matched=routing_key is not None
        and all(binding.routing_key != routing_key for binding in found),
        args_not_matched=not has_arguments,
    )
