"""Settings and limits: their names, defaults and permitted values (pure)."""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from txnqueue.core.markup import Facts
from txnqueue.core.model import in_memory, is_in_memory
from txnqueue.core.redelivery import Redelivery
from txnqueue.errors import InvalidInput, InvalidName, LimitExceeded

if TYPE_CHECKING:
    from typing import TypeGuard

NAME_LENGTH_MAX = 100
LANES_MAX = 256
LEASE_SECONDS_MAX = 7 * 24 * 3600
DELIVERIES_MAX_MAX = 1_000
DELAY_SECONDS_MAX = 10 * 366 * 24 * 3600
REDELIVERY_DELAY_SECONDS_MAX = 7 * 24 * 3600
DUPLICATE_WINDOW_SECONDS_MAX = 7 * 24 * 3600
MESSAGES_PER_RECEIVE_MAX = 100_000_000
POSITIONS_PER_SEND_MAX = 10_000
RANGES_PER_SEND_MAX = 100_000
RUNS_PER_SEND_MAX = 2 * RANGES_PER_SEND_MAX + 1
"""The maximum number of ranges of staged rows, cut where a range of a queue ends or begins."""
RANGES_PER_CALL_MAX = 100_000
"""The maximum number of ranges of consecutive offsets of the messages of one call."""
TRANSACTION_ID_LENGTH_MAX = 200
REASON_LENGTH_MAX = 500
RETRY_ATTEMPTS_MAX = 10_000
RETRY_SECONDS_MAX = 24 * 3600
RETRY_WAIT_SECONDS_MAX = 3_600
"""The characters kept of an error that becomes a reason, and of a dead letter's reason."""
JSON_LEVELS_MAX = 100
"""How deep lists and dicts may lie in one another in what the journal records as JSON."""
APPEND_PREFIX = "append:"
"""The prefix of the name that an error gives to an append outside a transaction."""
BRANCH_PREFIX = "xid:"
"""The prefix of the keys of branches; the ids of other transactions may not begin with it."""
BRANCH_SECONDS_DEFAULT = 300.0
BRANCH_SECONDS_MAX = 366 * 24 * 3600
TRANSIENT_BYTES_MAX = 1 << 30
"""The memory that the transient messages of one store may use in a process."""
TRANSIENT_KEYS_MAX = 10_000
"""The committed transaction ids without durable work that a process remembers."""
SLICE_WIDTH = 100
"""The versions of the journal that share a slice of the payload, as a new store records it."""
SLICE_WIDTH_UNSAID = 1_000
"""The same for a store that does not record its slice width."""

MESSAGE_COLUMN = "_message"
"""The column with a message's properties beside its payload."""
RESERVED_COLUMNS = frozenset(
    {"slice", "send_id", "send_offset", "headers", "arrangement", MESSAGE_COLUMN}
)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_QUEUE_ID = re.compile(rf"{_NAME.pattern}-[0-9a-f]{{8}}")
_DIGITS_MAX = 640
"""Python reads a number of so many digits, however its limit is set."""
_CUT_URI = re.compile(r"(?!file:)[A-Za-z][A-Za-z0-9+.-]+:/")
"""A URI that a path object has damaged: one slash instead of two."""


def shown(value: object) -> str:
    """Write a value for an error: shortened, and by its type if it cannot be written."""
    try:
        said = repr(value)
    except Exception:  # such as of a number with thousands of digits
        return f"<{type(value).__name__}>"
    return said if len(said) <= REASON_LENGTH_MAX else f"{said[: REASON_LENGTH_MAX - 2]} …"


def check_name(name: object, what: str = "queue") -> str:
    """Check a name, and return it as a plain string that is safe in paths and statements.

    Raises:
        InvalidName: The name is not a string, is too long, or has characters not allowed.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
        article = "an" if what[0] in "aeiou" else "a"
        raise InvalidName(
            f"{shown(name)} cannot be the name of {article} {what}: use 1 to {NAME_LENGTH_MAX} "
            "letters, digits, '.', '_' or '-', beginning with a letter.",
            name=name if isinstance(name, str) else shown(name),
        )
    return plain_text(name)


def is_queue_id(said: object) -> bool:
    """Return whether something has the form of a queue's id: a name, and what tells equal ones."""
    return isinstance(said, str) and _QUEUE_ID.fullmatch(said) is not None


def check_transaction_id(
    key: object, name: str = "transaction_id", length_max: int = TRANSACTION_ID_LENGTH_MAX
) -> str:
    """Check a transaction id given by a client, or the beginning of some, as a plain string.

    Args:
        key: The id.
        name: The argument that it was given as.
        length_max: The most characters.

    Raises:
        InvalidInput: The id is empty, too long or not a string, or begins like a branch's.
    """
    if isinstance(key, str) and key.startswith(BRANCH_PREFIX):
        raise InvalidInput(
            f"{name}={shown(key)}: ids that begin with {BRANCH_PREFIX!r} are reserved for "
            "branches (txnqueue.protocols.dtx); use another id.",
            name=name,
        )
    if not is_text(key) or not 0 < len(key) <= length_max:
        raise InvalidInput(f"{name}={shown(key)}: give 1 to {length_max} characters.", name=name)
    return plain_text(key)


def check_reason(reason: object) -> str:
    """Check the reason of an operation that requires one, and return it as a plain string.

    Raises:
        InvalidInput: The reason is empty or not a string.
    """
    said = check_text("reason", reason) or ""
    if not said.strip():
        raise InvalidInput(
            f"reason={shown(reason)}: give the reason; it is recorded in the journal.",
            name="reason",
        )
    return said


def check_text(name: str, value: object) -> str | None:
    """Check a text that the journal records unchanged; None stays None.

    Raises:
        InvalidInput: The value is not a text that can be written.
    """
    if value is None:
        return None
    if is_text(value):
        return plain_text(value)
    raise InvalidInput(f"{name}={shown(value)}: give text, or omit it.", name=name)


def check_texts(name: str, value: object, wanted: str) -> tuple[str, ...]:
    """Check a list of texts, and return it as a tuple, which nobody changes afterwards.

    A single text is none: as Python has it, it would be a list of its letters.

    Args:
        name: The argument that it was given as.
        value: The list.
        wanted: What should be given.

    Raises:
        InvalidInput: It is no list, or something in it is no text.
    """
    if isinstance(value, Collection) and not isinstance(value, (str, bytes, Mapping)):
        texts = [plain_text(one) for one in value if is_text(one)]
        if len(texts) == len(value):
            return tuple(texts)
    raise InvalidInput(f"{name}={shown(value)}: give {wanted}.", name=name)


def check_column_names(name: str, value: object) -> tuple[str, ...]:
    """Check the name of a column, or a list of them, and return it as a tuple.

    Raises:
        InvalidInput: It names no columns.
    """
    wanted = "one column name, or a list of them"
    names = check_texts(name, (value,) if isinstance(value, str) else value, wanted)
    if not names:
        raise InvalidInput(f"{name}={shown(value)}: give {wanted}.", name=name)
    return names


def check_predicate(where: object, name: str = "where") -> str:
    """Check that a SQL predicate is text that says something, and return it as a plain string.

    Raises:
        InvalidInput: It is no text that can be written, or blank.
    """
    if not is_text(where) or not where.strip():
        raise InvalidInput(f"{name}={shown(where)}: give a SQL predicate as a string.", name=name)
    return plain_text(where)


def check_root(root: object) -> str:
    """Check the root of a store, and return it as text; a path object needs no "/".

    Raises:
        InvalidInput: The root is neither a path nor the name of a catalog schema.
    """
    said = os.fspath(root) if isinstance(root, os.PathLike) else root
    if isinstance(said, str) and said is not root:
        if _CUT_URI.match(said):
            raise InvalidInput(
                f"root={shown(root)}: a path object turns the two slashes of a URI into one, which "
                "names another place; give the URI as text.",
                name="root",
            )
        if "/" not in said:
            return f"./{said}"
    if is_text(said) and ("/" in said or all(map(str.strip, said.split(".")))):
        return said
    raise InvalidInput(
        f"root={shown(root)}: give a path with a '/', such as './store', or the name of a catalog "
        "schema.",
        name="root",
    )


def check_checkpoint(checkpoint: object) -> str | None:
    """Check the checkpoint of a stream, and return it as text; None stays None.

    Raises:
        InvalidInput: It is empty, or neither text nor a path object.
    """
    said = check_text(
        "checkpoint", os.fspath(checkpoint) if isinstance(checkpoint, os.PathLike) else checkpoint
    )
    if said is not None and not said.strip():
        raise InvalidInput(
            f"checkpoint={shown(checkpoint)}: give a name or a path, or omit it.", name="checkpoint"
        )
    return said


def check_flag(name: str, value: object) -> bool:
    """Check that a value is True or False, and return it.

    Raises:
        InvalidInput: The value is neither.
    """
    if not isinstance(value, bool):
        raise InvalidInput(f"{name}={shown(value)}: give True or False.", name=name)
    return value


def check_choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Check that a value is one of a few texts, and return it as a plain string.

    Raises:
        InvalidInput: It is none of them.
    """
    if not isinstance(value, str) or value not in choices:  # an array would compare item by item
        *others, last = map(repr, choices)
        raise InvalidInput(f"{name}={shown(value)}: give {', '.join(others)} or {last}.", name=name)
    return plain_text(value)


def check_metadata(metadata: object) -> dict[str, Any]:
    """Check the metadata that a transaction's decision records for auditors, as a JSON dict.

    Raises:
        InvalidInput: The metadata is not a dict that can be written as JSON.
    """
    if metadata is None:
        return {}
    try:
        if isinstance(metadata, Mapping) and all(isinstance(name, str) for name in metadata):
            return dict(as_json(dict(metadata)))
    except (TypeError, ValueError):  # the error below says so
        pass
    raise InvalidInput(
        f"metadata={shown(metadata)}: give a dict with strings as keys and JSON values, of at most "
        f"{JSON_LEVELS_MAX} levels.",
        name="metadata",
    )


def check_id(key: object, name: str = "transaction_id") -> str:
    """Check an id that a caller looks up, whether or not the store knows it.

    Raises:
        InvalidInput: The id is not text.
    """
    said = check_text(name, key)
    if said is None:
        raise InvalidInput(f"{name}=None: give a value.", name=name)
    return said


def text_of(error: BaseException) -> str:
    """Return what an error says; nobody knows what a user's class does when it is asked."""
    try:
        return str(error)
    except Exception as unwritable:
        return f"its text cannot be written ({type(unwritable).__name__})"


def describe_error(error: BaseException) -> str:
    """Write an error as a reason of bounded length, whatever characters it has.

    A long error keeps its beginning and its end: an error of Spark begins with the cause, one of
    Python in a Spark worker ends with it.
    """
    said = f"{type(error).__name__}: {text_of(error)}".encode("utf-8", "backslashreplace").decode()
    if len(said) <= REASON_LENGTH_MAX:
        return said
    half = (REASON_LENGTH_MAX - 3) // 2
    return f"{said[:half]} … {said[-half:]}"


def as_json(value: object) -> Any:
    """Return a value as it comes back from standard JSON.

    Raises:
        TypeError: Something in the value has no form in JSON.
        ValueError: The value has NaN or an infinity, text that no table can hold, or too many
            levels: who writes or reads it deep in a stack of calls could not do so.
    """
    try:
        written = json.dumps(value, ensure_ascii=False, allow_nan=False)
        found = json.loads(written)
    except RecursionError as error:
        raise ValueError("too many levels") from error
    written.encode()  # a lone surrogate: see ``is_text``
    level = [found]
    for _ in range(JSON_LEVELS_MAX):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return found
    raise ValueError("too many levels")


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def plain_text(text: str) -> str:
    """Return a text as a plain ``str``: a subclass, such as an enum, may be written differently."""
    return str.__str__(text)


def is_text(value: object) -> TypeGuard[str]:
    """Return whether a value is text that a table can hold."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate: no table can hold it
        return False
    return True


def is_whole(text: str) -> bool:
    """Return whether a text is a whole number in ASCII digits that Python does not refuse as long.

    Spark reads no others, so that every way to give a number takes the same ones.
    """
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX


def place_of_message(message_id: str) -> tuple[str, int] | None:
    """Read the send and the offset that a message's id names; None if it is no message id."""
    send_id, _, offset = message_id.rpartition(":")
    if not send_id or not is_whole(offset) or int(offset) >= 1 << 63:
        return None
    return send_id, int(offset)


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Suggest the known name nearest to a mistyped one, or list all known names."""
    names = sorted(map(str, known))
    near = difflib.get_close_matches(str(name), names, 1, 0.5)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}."


def check_number(name: str, value: object, low: float, high: float) -> None:
    """Check that a number is in its range, ends included.

    Raises:
        InvalidInput: The value is not a number.
        LimitExceeded: The number is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        reach = f"of at least {low}" if math.isinf(high) else f"from {low} to {high}"
        raise InvalidInput(f"{name}={shown(value)}: give a number {reach}.", name=name)
    if not low <= value <= high:
        reach = f"give at least {low}" if math.isinf(high) else f"the range is {low} to {high}"
        raise LimitExceeded(f"{name}={shown(value)}: {reach}.", name=name)


def check_retry(retry: object) -> RetryPolicy:
    """Check that a value is a retry policy, and return it.

    Raises:
        InvalidInput: The value is not a ``RetryPolicy``.
    """
    if not isinstance(retry, RetryPolicy):
        raise InvalidInput(f"retry={shown(retry)}: give a RetryPolicy.", name="retry")
    return retry


def check_count(name: str, value: object, low: float, high: float) -> None:
    """Check that a count is a whole number in its range, the ends included.

    Raises:
        InvalidInput: The value is not a whole number.
        LimitExceeded: The number is out of range.
    """
    if not isinstance(value, int):
        raise InvalidInput(
            f"{name}={shown(value)}: give a whole number of at least {low}.", name=name
        )
    check_number(name, value, low, high)


@dataclass(frozen=True, slots=True)
class QueueSettings(Facts):
    """The settings with which a queue is created.

    Attributes:
        lanes: The number of lanes, the units of order and of parallel consumption.
        group_by: The column of the group key: rows with equal values stay in order, in one lane.
        lease_seconds: How long received messages are held before others may receive them.
        deliveries_max: The number of failed deliveries after which a message is dead-lettered,
            the last of them on its own.
        redelivery_delay_seconds: How long a message waits after its first failed delivery; the
            wait doubles with each further failure.
        redelivery_delay_seconds_max: The longest wait for a redelivery.
        dead_letter: Whether rejected and undeliverable messages go to the queue ``<name>.dead``.
        dead_letter_expired: Whether expired messages go there too.
        delay_step_seconds: The step to which delays and times to live that differ by row are
            rounded up.
        ordered: Whether only one consumer at a time has messages of a lane in flight.
        durable: Whether messages are kept in the store unless a send says otherwise.
        message_id: A column that names the messages; it may not be null.
        duplicate_window_seconds: How long after the first message of an id, in commit order,
            others with that id are duplicates; None delivers all.
    """

    lanes: int = 1
    group_by: str | None = None
    lease_seconds: float = 300.0
    deliveries_max: int = 10
    dead_letter: bool = True
    dead_letter_expired: bool = False
    delay_step_seconds: float = 1.0
    ordered: bool = False
    durable: bool = True
    message_id: str | None = None
    duplicate_window_seconds: float | None = None
    redelivery_delay_seconds: float = 0.0
    redelivery_delay_seconds_max: float = 3_600.0

    def __post_init__(self) -> None:
        """Check every value."""
        for name in ("dead_letter", "dead_letter_expired", "ordered", "durable"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInput(
                    f"{name}={shown(getattr(self, name))}: give true or false.", name=name
                )
        for name in ("group_by", "message_id"):
            check_text(name, getattr(self, name))
        check_count("lanes", self.lanes, 1, LANES_MAX)
        check_number("lease_seconds", self.lease_seconds, 0.001, LEASE_SECONDS_MAX)
        check_count("deliveries_max", self.deliveries_max, 1, DELIVERIES_MAX_MAX)
        check_number("delay_step_seconds", self.delay_step_seconds, 0.001, LEASE_SECONDS_MAX)
        if self.dead_letter_expired and not self.dead_letter:
            raise InvalidInput(
                "dead_letter_expired=True needs dead_letter=True: set both or neither."
            )
        self._check_window()
        self._check_delay()

    def _check_window(self) -> None:
        window = self.duplicate_window_seconds
        if window is None:
            return
        if self.message_id is None:
            raise InvalidInput(
                f"duplicate_window_seconds={shown(window)} needs message_id=: name the column that "
                "identifies a message, or omit the window.",
                name="duplicate_window_seconds",
            )
        check_number("duplicate_window_seconds", window, 0.001, DUPLICATE_WINDOW_SECONDS_MAX)

    def _check_delay(self) -> None:
        delay, longest = self.redelivery_delay_seconds, self.redelivery_delay_seconds_max
        check_number("redelivery_delay_seconds", delay, 0, REDELIVERY_DELAY_SECONDS_MAX)
        check_number("redelivery_delay_seconds_max", longest, 0, REDELIVERY_DELAY_SECONDS_MAX)
        if delay > longest:
            raise InvalidInput(
                f"redelivery_delay_seconds={shown(delay)} is longer than "
                f"redelivery_delay_seconds_max={shown(longest)}: raise that limit too.",
                name="redelivery_delay_seconds",
            )

    @property
    def detects_by(self) -> str | None:
        """The column by which duplicates are detected; None if they are delivered."""
        return None if self.duplicate_window_seconds is None else self.message_id

    @property
    def lanes_by(self) -> str | None:
        """The column that determines a message's lane; None spreads messages evenly.

        Duplicates are detected across lanes; within one lane, the first row of a send that has
        an id is the one delivered.
        """
        return self.group_by or self.detects_by

    @property
    def duplicate_window_ms(self) -> int | None:
        """The duplicate window in milliseconds; None if duplicates are delivered."""
        window = self.duplicate_window_seconds
        return None if window is None else round(window * 1000)


@dataclass(frozen=True, slots=True)
class RetryPolicy(Facts):
    """How often and how long conflicts are retried: bounded, with full jitter.

    Attributes:
        attempts_max: The most tries in all.
        seconds_max: The seconds after which no further try begins.
        wait_seconds_first: The upper bound of the first wait, which is drawn from 0 on.
        wait_seconds_max: The highest upper bound of any wait; the bound doubles with each try.
    """

    attempts_max: int = 12
    seconds_max: float = 120.0
    wait_seconds_first: float = 0.05
    wait_seconds_max: float = 5.0

    def __post_init__(self) -> None:
        """Check every value."""
        check_count("attempts_max", self.attempts_max, 1, RETRY_ATTEMPTS_MAX)
        check_number("seconds_max", self.seconds_max, 0, RETRY_SECONDS_MAX)
        check_number("wait_seconds_first", self.wait_seconds_first, 0, RETRY_WAIT_SECONDS_MAX)
        check_number("wait_seconds_max", self.wait_seconds_max, 0, RETRY_WAIT_SECONDS_MAX)

    def wait_seconds(self, tries: int, jitter: float) -> float:
        """Draw the wait in seconds after a number of tries; ``jitter`` is uniform in 0 to 1."""
        widest = min(self.wait_seconds_max, self.wait_seconds_first * 2.0 ** min(tries - 1, 30))
        return widest * jitter


@dataclass(frozen=True, slots=True)
class QueueInfo(Facts):
    """The description of one queue in the catalog.

    ``sequence`` numbers the catalog entries of its name, over all queues that had the name; a
    ``closing`` queue is being dropped and takes no more work.
    """

    name: str
    queue_id: str
    payload_id: str
    schema: Mapping[str, Any]
    schema_version: int
    settings: QueueSettings
    dead_letter_id: str | None = None
    created_at_ms: int = 0
    sequence: int = 1
    closing: bool = False

    @property
    def redelivery(self) -> Redelivery:
        """The rules by which the queue's messages are redelivered."""
        settings = self.settings
        return Redelivery(
            settings.deliveries_max if self.dead_letter_id else None,
            round(settings.redelivery_delay_seconds * 1000),
            round(settings.redelivery_delay_seconds_max * 1000),
        )

    @property
    def transient(self) -> bool:
        """Whether this is the transient part of a queue, in the memory of this process."""
        return is_in_memory(self.queue_id)

    def in_memory(self) -> QueueInfo:
        """Return the transient part's description; its dead letters are transient as well."""
        dead = self.dead_letter_id
        return replace(
            self,
            queue_id=in_memory(self.queue_id),
            payload_id=in_memory(self.payload_id),
            dead_letter_id=in_memory(dead) if dead is not None else None,
        )
