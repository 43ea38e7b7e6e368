"""What messages carry: staged once, never changed, read by (slice, send, offsets).

``delta`` keeps it in one Delta table per owner, ``memory`` keeps it in Arrow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from txnqueue.core.exchanges import Binding
from txnqueue.core.model import Range
from txnqueue.errors import InvalidInput
from txnqueue.types import Message

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

CORRELATION_ID, REPLY_TO = "correlation_id", "reply_to"
"""Headers that have a column of their own in what is received."""
PRIORITY_DEFAULT = 4
PRIORITY_MAX = 9
StagedPlace = tuple[int, str, tuple[Range, ...]]
"""Where rows lie: the slice, the send id and the offsets."""
OFFSETS_PER_TASK = 1 << 40
"""A send offset is the task's index times this, plus the row's place in the task."""


@dataclass(frozen=True, slots=True)
class Placing:
    """Which messages go first, and when each may be delivered: a value for all, or a column.

    A string names a column of the rows, which need not be one of the queue's; a null there
    is the default.

    Attributes:
        priority: 0 to 9, 9 first.
        available_at: Milliseconds since 1970, or a column of timestamps.
        delay_seconds: A column of seconds, instead.
        expires_at: Milliseconds since 1970.
        ttl_seconds: A column of seconds, instead.
        step_ms: What columns say of instants is rounded up to steps of this width.
        now_ms: The instant from which delays and times to live count.
    """

    priority: int | str = PRIORITY_DEFAULT
    available_at: int | str | None = None
    delay_seconds: str | None = None
    expires_at: int | None = None
    ttl_seconds: str | None = None
    step_ms: int = 1_000
    now_ms: int = 0

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the rows that it speaks of, with what each is for."""
        named = {
            "priority": self.priority,
            "available_at": self.available_at,
            "delay_seconds": self.delay_seconds,
            "ttl_seconds": self.ttl_seconds,
        }
        return {use: name for use, name in named.items() if isinstance(name, str)}


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue that published rows may go to: which of them it wants, and their lanes there."""

    bindings: tuple[Binding, ...]
    lanes: int = 1
    group_by: str | None = None


@dataclass(frozen=True, slots=True)
class Routes:
    """Which rows of a publish go where.

    Attributes:
        kind: The exchange's kind.
        destinations: The queues that are bound to it.
        otherwise: What gets the rows that match none of them; None: nothing.
        refuse: Whether a row that matches no binding refuses them all.
        key: The routing key of all rows.
        key_column: The column that says it instead; null is the empty key.
        keep_order: Whether the offsets keep the order of the rows, in more ranges. If not,
            rows for the same queues lie together.
    """

    kind: str
    destinations: tuple[Destination, ...]
    otherwise: Destination | None = None
    refuse: bool = False
    key: str = ""
    key_column: str | None = None
    keep_order: bool = True

    @property
    def all(self) -> tuple[Destination, ...]:
        """The destinations by their numbers: the bound queues, then what gets the rest."""
        return (*self.destinations, *([self.otherwise] if self.otherwise else ()))


@dataclass(frozen=True, slots=True)
class Send:
    """Where one call of send writes, and how it arranges the rows.

    Attributes:
        payload_id: The owner of the payload table.
        slice: The slice that the payload goes with when it is removed.
        send_id: Written by at most one statement ever.
        schema: The columns of the payload.
        lanes: How many lanes the queue has.
        group_by: The column whose equal values share a lane; None spreads rows evenly.
        order_by: Columns that order the rows; empty keeps the order in which they come.
        placing: Which go first, and when.
        headers: Headers that all rows get.
        header_columns: Columns of the rows that headers are taken from, by the headers' names.
        message_id: The column whose values are to be known by their digests; None: none.
        note: What the table's own history says of it besides.
        routes: Where rows go that are published; None: to the one queue whose lanes these are.
    """

    payload_id: str
    slice: int
    send_id: str
    schema: StructType
    lanes: int
    group_by: str | None
    order_by: tuple[str, ...] = ()
    placing: Placing = field(default_factory=Placing)
    headers: Mapping[str, str] = field(default_factory=dict)
    header_columns: Mapping[str, str] = field(default_factory=dict)
    message_id: str | None = None
    note: Mapping[str, object] = field(default_factory=dict)
    routes: Routes | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A run of staged rows that stand in one place: contiguous offsets of one task.

    Steps count from 1970, each as wide as the send's placing says; None: at once, for ever.
    The route of published rows names each queue that gets them by its number, with the lane
    there, as "0:3,2:0"; it is empty if no queue does.
    ``ids`` are the digests of the message ids, if they were asked for and are few.
    """

    lane: int
    first: int
    count: int
    priority: int = PRIORITY_DEFAULT
    available_step: int | None = None
    expires_step: int | None = None
    route: str = ""
    ids: tuple[bytes, ...] | None = None

    @property
    def range(self) -> Range:
        """The run as a range of send offsets."""
        return (self.first, self.first + self.count - 1)


@dataclass(frozen=True, slots=True)
class Part:
    """Some messages to read, and what is the same for all of them.

    Attributes:
        payload_id: The owner of the payload table.
        slice: The slice that the send was staged into.
        send_id: The send.
        ranges: The offsets.
        queue: The queue that they stand in.
        lane: The lane that they stand in.
        delivery_count: Their failed deliveries that counted, before this one.
        enqueued_at_ms: When they were posted to this queue.
        transaction_id: The transaction that posted them; None for the system.
        origin: Where they were moved from, with the reason; None if they were sent here.
        message_id: The column that names them; None: they are called by send and offset.
    """

    payload_id: str
    slice: int
    send_id: str
    ranges: tuple[Range, ...]
    queue: str
    lane: int
    delivery_count: int
    enqueued_at_ms: int
    transaction_id: str | None
    origin: Mapping[str, Any] | None
    message_id: str | None = None


class PayloadStore(Protocol):
    """Payload tables behind a few calls."""

    def create(self, payload_id: str, schema: StructType, *, routed: bool = False) -> None:
        """Create an owner's payload table; no error if it is there.

        Args:
            payload_id: The owner.
            schema: The payload's columns.
            routed: Whether it is an exchange, whose rows go to several queues.
        """
        ...

    def add_columns(self, payload_id: str, columns: StructType) -> None:
        """Add columns to an owner's payload table; those that are there are left alone.

        Raises:
            SchemaMismatch: One is there with another type.
        """
        ...

    def stage(self, send: Send, rows: object) -> list[Run]:
        """Write the rows of one send; they stay invisible until a decision names them.

        Returns:
            The runs of rows that stand in one place.

        Raises:
            SchemaMismatch: The rows do not fit; nothing was written.
            AppendConflict: The table was altered meanwhile; write it under a fresh send id.
            Unroutable: No binding matches some of them, and the exchange refuses such a publish.
        """
        ...

    def schema(self, described: Mapping[str, Any]) -> StructType:
        """Read columns as the catalog describes them."""
        ...

    def table(self, schema: StructType, parts: Sequence[Part]) -> pa.Table:
        """Read messages into memory, in the order of the parts and of their offsets.

        A column that an owner's table does not have is null: the queue got it later.

        Raises:
            PayloadRemoved: Their payload is past its retention.
        """
        ...

    def frame(self, schema: StructType, parts: Sequence[Part]) -> DataFrame:
        """Make a DataFrame of messages, pinned: evaluated later it shows the same ones."""
        ...

    def texts(self, column: str, parts: Sequence[Part]) -> list[Iterator[str | None]]:
        """Read one column as text: for each part its values, in the order of its ranges.

        They become objects one by one. A part whose payload is gone has fewer.
        """
        ...

    def lanes(
        self, column: str, lanes: int, parts: Sequence[Part]
    ) -> list[dict[int, tuple[Range, ...]]]:
        """Find the lane of each message by a column that groups them: each part's by lane.

        Args:
            column: The column; nothing else is read.
            lanes: How many lanes there are.
            parts: The messages.

        Raises:
            PayloadRemoved: Their payload is past its retention.
            LimitExceeded: They lie in more than ``RANGES_PER_CALL_MAX`` ranges.
        """
        ...

    def rows(self, payload_id: str, places: Sequence[StagedPlace]) -> int:
        """Count the rows that there are at some places: slice, send id and offsets."""
        ...

    def slices(self, payload_id: str) -> set[int]:
        """List the slices of an owner that have rows."""
        ...

    def drop(self, payload_id: str, slices: Collection[int]) -> None:
        """Delete all rows of some slices, for ever; no error if there are none."""
        ...

    def erase(self, payload_id: str, places: Sequence[StagedPlace]) -> None:
        """Delete the rows at some places, for ever; no error if they are gone.

        Only the files that hold them are written again.

        Raises:
            AppendConflict: Others wrote to the table meanwhile; some of the rows may be gone.
        """
        ...

    def vacuum(self, payload_id: str, seconds_min: float, *, full: bool = False) -> str | None:
        """Remove the files of an owner's table that no retained version names.

        Args:
            payload_id: The owner.
            seconds_min: Only if deleted files are kept for so long.
            full: Whether files are removed too that no version ever named.

        Returns:
            Why nothing was removed; None if it was.
        """
        ...

    def files_kept_seconds(self, payload_id: str) -> float:
        """Return how long an owner's table keeps the files of deleted rows."""
        ...

    def files(self, payload_id: str) -> int:
        """Count the files of an owner's rows, deleted ones too, where that can be seen."""
        ...

    def orphans(self, known: Collection[str]) -> dict[str, int]:
        """List the payload tables whose owners are not known, by owner.

        Returns:
            When each was made, in milliseconds since 1970.
        """
        ...

    def matching(self, schema: StructType, payload_id: str, where: str) -> list[StagedPlace]:
        """Find all rows that match a predicate, whatever became of them.

        Args:
            schema: The columns of the payload; one that the table lacks is null.
            payload_id: The owner of the payload table.
            where: A SQL predicate over these columns.

        Raises:
            InvalidInput: The predicate cannot be evaluated.
            LimitExceeded: They lie in too many ranges.
            PlatformMissing: There is no session that could.
        """
        ...

    def find(
        self, schema: StructType, payload_id: str, where: str, limit: int
    ) -> list[tuple[str, int]]:
        """Find where rows lie that match a predicate, whatever became of them.

        Rows of undecided and rolled back sends are found too: only the journal knows.

        Args:
            schema: The columns of the payload.
            payload_id: The owner of the payload table.
            where: A SQL predicate over these columns.
            limit: The maximum number.

        Returns:
            Send ids and offsets, in an order that is the same at every call.

        Raises:
            InvalidInput: The predicate cannot be evaluated.
            PlatformMissing: There is no session that could.
        """
        ...


def check_predicate(where: object) -> str:
    """Check that a predicate is text; Spark evaluates it.

    Raises:
        InvalidInput: It is not.
    """
    if not isinstance(where, str) or not where.strip():
        raise InvalidInput(f"where={where!r}: give a SQL predicate as a string.", name="where")
    return where


def places_where(
    frame: DataFrame, where: str, limit: int, order: Sequence[str]
) -> list[tuple[str, int]]:
    """Find the first messages that fulfil a user's predicate on payload with its places.

    Args:
        frame: The payload's columns and ``_send_id``, ``_send_offset``.
        where: A SQL predicate.
        limit: The maximum number.
        order: The columns that order the places.

    Returns:
        Send ids and offsets.

    Raises:
        InvalidInput: The predicate cannot be evaluated.
    """
    check_predicate(where)
    with evaluating("where", where):
        found = frame.where(where).orderBy(*order).limit(limit)
        rows = found.select("_send_id", "_send_offset").collect()
    return [(row[0], row[1]) for row in rows]


@contextmanager
def evaluating(name: str, value: object) -> Iterator[None]:
    """Evaluate what a user gave; if it cannot be, that is his error and not the store's.

    Args:
        name: What the argument is called.
        value: What was given.

    Raises:
        InvalidInput: It cannot be evaluated.
    """
    from pyspark import errors

    try:
        yield
    except (
        errors.AnalysisException,  # unknown columns, other types, no SQL at all
        errors.ArithmeticException,
        errors.ArrayIndexOutOfBoundsException,
        errors.DateTimeException,
        errors.IllegalArgumentException,
        errors.NumberFormatException,
        errors.SparkRuntimeException,
    ) as error:
        cause = str(error).strip().partition("\n")[0]
        planned = not isinstance(error, errors.AnalysisException)
        raise InvalidInput(
            f"{name}={value!r} cannot be evaluated: {cause}", name=name, in_rows=planned
        ) from error


def messages_of(table: pa.Table) -> list[Message]:
    """Read a table of messages as dicts; their headers are dicts too, by name."""
    from txnqueue.storage.payload.maps import mark_maps

    rows: list[Message] = table.to_pylist()
    payload = table.schema.remove(table.schema.get_field_index("_message"))
    mark_maps(rows, payload)
    for row in rows:
        headers = row["_message"]["headers"]
        row["_message"]["headers"] = None if headers is None else dict(headers)
    return rows
