"""The sources of settings: argument, Spark's configuration, environment, default (pure).

For example, ``retry.attempts_max`` is ``spark.txnqueue.retry.attempts_max`` in Spark's
configuration and ``TXNQUEUE_RETRY_ATTEMPTS_MAX`` in the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from txnqueue.core.settings import (
    DELIVERIES_MAX_MAX,
    LANES_MAX,
    LEASE_SECONDS_MAX,
    REDELIVERY_DELAY_SECONDS_MAX,
    RETRY_ATTEMPTS_MAX,
    RETRY_SECONDS_MAX,
    RETRY_WAIT_SECONDS_MAX,
    QueueSettings,
    RetryPolicy,
    check_root,
    is_text,
    shown,
)
from txnqueue.errors import InvalidInput, LimitExceeded

SPARK_PREFIX = "spark.txnqueue."
VARIABLE_PREFIX = "TXNQUEUE_"


def _check_said(text: str) -> None:
    """Check that a text says something, and can be recorded.

    Raises:
        InvalidInput: It is empty, or no table can hold it.
    """
    if not text or not is_text(text):
        raise InvalidInput(f"{shown(text)}: give text in UTF-8 that is not empty.")


@dataclass(frozen=True, slots=True)
class Option:
    """A setting that can be configured.

    Attributes:
        key: The setting's name.
        kind: The type of its values.
        default: The value if no source sets it; None lets the library determine it.
        low: The least number permitted.
        high: The greatest number permitted.
        texts: The permitted texts, in words.
        check: Raises ``InvalidInput`` for other texts.
    """

    key: str
    kind: type
    default: object = None
    low: float = 0
    high: float = 0
    texts: str = "text in UTF-8 that is not empty"
    check: Callable[[str], object] = _check_said

    @property
    def variable(self) -> str:
        """The name of the environment variable."""
        return VARIABLE_PREFIX + self.key.upper().replace(".", "_")

    @property
    def allowed(self) -> str:
        """The permitted values, in words."""
        if self.kind is bool:
            return "true or false"
        if self.kind is str:
            return self.texts
        whole = "a whole number" if self.kind is int else "a number"
        return f"{whole} from {self.low:g} to {self.high:g}"


_QUEUE, _RETRY = QueueSettings(), RetryPolicy()
OPTIONS = {
    option.key: option
    for option in (
        Option(
            "root",
            str,
            texts="a path with a '/', such as './store', or the name of a catalog schema",
            check=check_root,
        ),
        Option("actor", str),
        Option("run_id", str),
        Option("consumer", str),
        Option("storage.several_drivers", bool, default=False),
        Option("retry.attempts_max", int, _RETRY.attempts_max, 1, RETRY_ATTEMPTS_MAX),
        Option("retry.seconds_max", float, _RETRY.seconds_max, 0, RETRY_SECONDS_MAX),
        Option(
            "retry.wait_seconds_first", float, _RETRY.wait_seconds_first, 0, RETRY_WAIT_SECONDS_MAX
        ),
        Option("retry.wait_seconds_max", float, _RETRY.wait_seconds_max, 0, RETRY_WAIT_SECONDS_MAX),
        Option("queue.lanes", int, _QUEUE.lanes, 1, LANES_MAX),
        Option("queue.lease_seconds", float, _QUEUE.lease_seconds, 0.001, LEASE_SECONDS_MAX),
        Option("queue.deliveries_max", int, _QUEUE.deliveries_max, 1, DELIVERIES_MAX_MAX),
        Option(
            "queue.redelivery_delay_seconds",
            float,
            _QUEUE.redelivery_delay_seconds,
            0,
            REDELIVERY_DELAY_SECONDS_MAX,
        ),
        Option(
            "queue.redelivery_delay_seconds_max",
            float,
            _QUEUE.redelivery_delay_seconds_max,
            0,
            REDELIVERY_DELAY_SECONDS_MAX,
        ),
        Option("queue.dead_letter", bool, _QUEUE.dead_letter),
        Option("queue.dead_letter_expired", bool, _QUEUE.dead_letter_expired),
        Option(
            "queue.delay_step_seconds", float, _QUEUE.delay_step_seconds, 0.001, LEASE_SECONDS_MAX
        ),
        Option("queue.ordered", bool, _QUEUE.ordered),
        Option("queue.durable", bool, _QUEUE.durable),
    )
}


@dataclass(frozen=True, slots=True)
class Value:
    """The effective value of a setting, and its source.

    Attributes:
        key: The setting's name.
        value: The value; None lets the library determine it.
        source: ``argument``, the key in Spark's configuration, the name of the environment
            variable, or ``default``.
    """

    key: str
    value: Any
    source: str


class Configuration:
    """The settings in Spark's configuration and in the environment."""

    def __init__(self, conf: Callable[[str], str | None], environ: Mapping[str, str]) -> None:
        """Keep both sources; a setting is read and checked only when it is requested.

        Args:
            conf: Looks up a key of Spark's configuration.
            environ: The environment variables.
        """
        self._conf = conf
        self._environ = environ

    def value(self, key: str, given: object = None) -> Value:
        """Return the value of a setting from the first source that sets it.

        Raises:
            InvalidInput: The configured value cannot be used.
            LimitExceeded: The configured number is out of range.
        """
        option = OPTIONS[key]
        if given is not None:
            return Value(key, given, "argument")
        for source, found in (
            (SPARK_PREFIX + key, self._conf(SPARK_PREFIX + key)),
            (option.variable, self._environ.get(option.variable)),
        ):
            if found is not None:
                return Value(key, _read(option, found, source), source)
        return Value(key, option.default, "default")

    def values(self) -> list[Value]:
        """List the effective values of all settings."""
        return [self.value(key) for key in OPTIONS]

    def retry(self) -> RetryPolicy:
        """Make the configured retry policy."""
        values: Any = {key[6:]: self.value(key).value for key in OPTIONS if key[:6] == "retry."}
        return RetryPolicy(**values)

    def queue_settings(self, given: Mapping[str, object]) -> QueueSettings:
        """Make the settings of a new queue; a given None means that it was left out."""
        found = {
            name: self.value(f"queue.{name}", value)
            for name, value in given.items()
            if f"queue.{name}" in OPTIONS
        }
        values: Any = {**given, **{name: one.value for name, one in found.items()}}
        try:
            return QueueSettings(**values)
        except InvalidInput as error:
            raise _with_sources(error, found) from None

    def declared_settings(self, given: Mapping[str, object]) -> QueueSettings:
        """Make the settings of a new queue from some of them."""
        names = (one.name for one in fields(QueueSettings))
        return self.queue_settings({**dict.fromkeys(names), **given})


def _with_sources(error: InvalidInput, found: Mapping[str, Value]) -> InvalidInput:
    """Name in the error about settings that contradict each other those that are configured.

    Other errors are about an argument: what is configured was checked when it was read.
    """
    configured = {
        name: one.source
        for name, one in found.items()
        if one.source not in ("argument", "default") and name in error.message
    }
    if not configured or isinstance(error, LimitExceeded):
        return error
    told = (f"{name} is set by {source}." for name, source in configured.items())
    said = " ".join((error.message, *told))
    return InvalidInput(said, name=error.name, source=next(iter(configured.values())))


def _read(option: Option, text: str, source: str) -> object:
    """Read a value from text.

    Raises:
        InvalidInput: The text is not a value of the option's type.
        LimitExceeded: The number is out of range.
    """
    wrong = f"{source}={shown(text)}: {option.key} is {option.allowed}."
    stripped = text.strip()
    if option.kind is str:
        try:
            option.check(stripped)
        except InvalidInput as error:
            raise InvalidInput(wrong, name=option.key, source=source) from error
        return stripped
    if option.kind is bool:
        if stripped.lower() not in ("true", "false"):
            raise InvalidInput(wrong, name=option.key, source=source)
        return stripped.lower() == "true"
    try:
        number = option.kind(_as_written(stripped))
    except ValueError as error:
        raise InvalidInput(wrong, name=option.key, source=source) from error
    if not option.low <= number <= option.high:
        raise LimitExceeded(wrong, name=option.key, source=source)
    return number


def _as_written(number: str) -> str:
    """Return the text of a number as others than Python write them.

    Raises:
        ValueError: Only Python reads it: it has underscores, or digits of another script.
    """
    if not number.isascii() or "_" in number:
        raise ValueError(number)
    return number
