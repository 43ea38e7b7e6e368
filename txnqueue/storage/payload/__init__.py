"""The payload of messages: staged once, never changed, read by slice, send and offsets.

``delta`` keeps it in one Delta table per owner, and ``memory`` in Arrow tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from txnqueue.core.exchanges import Binding
from txnqueue.core.model import Range
from txnqueue.errors import InvalidInput
from txnqueue.storage.journal.exceptions import damage_below, objection
from txnqueue.storage.payload.places import Place
from txnqueue.types import Message

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

CORRELATION_ID, REPLY_TO = "correlation_id", "reply_to"
"""Headers with their own column in received messages."""
STAGING, STAGING_DIGITS = "change-", 12
"""What the owners of the rows of table changes are called, before so many hexadecimal digits."""
PRIORITY_DEFAULT = 4
PRIORITY_MAX = 9
StagedPlace = tuple[int, str, tuple[Range, ...]]
"""The place of rows: the slice, the send id and the offsets."""
OFFSETS_PER_TASK = 1 << 40
"""A send offset is the task's index times this, plus the row's number in the task."""


@dataclass(frozen=True, slots=True)
class Placing:
    """The priority, delay and expiry of messages: each a value for all, or a column.

    A string names a column of the rows, which need not be a column of the queue; a null in it
    means the default.

    Attributes:
        priority: 0 to 9; 9 is delivered first.
        available_at: Milliseconds since 1970, or a column of timestamps.
        delay_seconds: A column of seconds, as an alternative.
        expires_at: Milliseconds since 1970.
        ttl_seconds: A column of seconds, as an alternative.
        step_ms: The width, in milliseconds, of the steps to which columns are rounded up.
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
        """The columns that it names, with the purpose of each."""
        named = {
            "priority": self.priority,
            "available_at": self.available_at,
            "delay_seconds": self.delay_seconds,
            "ttl_seconds": self.ttl_seconds,
        }
        return {use: name for use, name in named.items() if isinstance(name, str)}


@dataclass(frozen=True, slots=True)
class Destination:
    """A queue that may get published rows: its bindings, and the lanes of the rows there."""

    bindings: tuple[Binding, ...]
    lanes: int = 1
    group_by: str | None = None


@dataclass(frozen=True, slots=True)
class Routes:
    """The destinations of the rows of a publish.

    Attributes:
        kind: The exchange's kind.
        destinations: The queues bound to it.
        otherwise: The queue that gets rows without a match; None: there is none.
        refuse: Whether one row without a match makes the publish fail.
        key: The routing key of all rows.
        key_column: The column of the routing key, as an alternative; null means the empty key.
        keep_order: Whether the offsets keep the order of the rows, in more ranges. If not, rows
            for the same queues are stored together.
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
        """The destinations by number: the bound queues, then the queue for the rest."""
        return (*self.destinations, *([self.otherwise] if self.otherwise else ()))


@dataclass(frozen=True, slots=True)
class Send:
    """The target and the arrangement of the rows of one call of send.

    Attributes:
        payload_id: The owner of the payload table.
        slice: The slice with which the payload will be removed.
        send_id: The send's id, which at most one statement ever writes.
        schema: The columns of the payload.
        lanes: The number of lanes of the queue.
        group_by: The column whose equal values share a lane; None spreads rows evenly.
        order_by: Columns that order the rows; empty keeps their order.
        placing: Their priority, delay and expiry.
        headers: Headers of all rows.
        header_columns: Columns with values of headers, by the names of the headers.
        message_id: The column whose values' digests are kept; None: there is none.
        note: Further details for the table's own history.
        routes: The destinations of published rows; None: the one queue with these lanes.
        in_order: Whether rows with different delays and times to live keep their order.
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
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """A run of staged rows in one place, with contiguous offsets of one task.

    Steps count from 1970, with the width in the send's placing; None means at once, or never.
    The route of published rows lists the number of each queue that gets them and the lane there,
    such as "0:3,2:0"; it is empty if no queue does.
    ``ids`` are the digests of the message ids, if they were requested and are few.
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
    def place(self) -> Place:
        """The place that its rows share."""
        return (self.lane, self.priority, self.available_step, self.expires_step)

    @property
    def range(self) -> Range:
        """The run as a range of send offsets."""
        return (self.first, self.first + self.count - 1)


@dataclass(frozen=True, slots=True)
class Part:
    """Messages to read, and the values that they have in common.

    Attributes:
        payload_id: The owner of the payload table.
        slice: The slice into which the send was staged.
        send_id: The send.
        ranges: The offsets.
        queue: Their queue.
        lane: Their lane.
        delivery_count: The number of their earlier deliveries that failed and counted.
        enqueued_at_ms: When they were posted to this queue.
        transaction_id: The transaction that posted them; None for the system.
        origin: Where they were moved from, with the reason; None if they were sent here.
        message_id: The column with their ids; None: the ids are made of send and offset.
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
    """The interface of payload tables."""

    @property
    def folder(self) -> str:
        """What the path of each of its files contains; empty in memory."""
        ...

    def create(self, payload_id: str, schema: StructType, *, routed: bool = False) -> None:
        """Create an owner's payload table if it does not exist.

        Args:
            payload_id: The owner.
            schema: The payload's columns.
            routed: Whether it is an exchange, whose rows go to several queues.
        """
        ...

    def add_columns(self, payload_id: str, columns: StructType) -> None:
        """Add columns to an owner's payload table; existing ones are not changed.

        Raises:
            SchemaMismatch: One exists with another type.
        """
        ...

    def stage(self, send: Send, rows: object) -> list[Run]:
        """Write the rows of one send, which are invisible until a decision names them.

        Returns:
            The runs of rows in one place each.

        Raises:
            SchemaMismatch: The rows do not fit; nothing was written.
            AppendConflict: The table was altered meanwhile; write again with a new send id.
            Unroutable: Some rows match no binding, and the exchange refuses such a publish.
        """
        ...

    def schema(self, *described: Mapping[str, Any]) -> StructType:
        """Read columns from their description in the catalog.

        Args:
            described: The description of a table, and of others whose columns are added to it.
        """
        ...

    def table(self, schema: StructType, parts: Sequence[Part]) -> pa.Table:
        """Read messages into memory, in the order of the parts and of their offsets.

        A column that an owner's table lacks is null, because it was added to the queue later.

        Raises:
            PayloadRemoved: Their payload is past its retention.
        """
        ...

    def frame(self, schema: StructType, parts: Sequence[Part]) -> DataFrame:
        """Make a DataFrame that always shows the same messages, whenever it is evaluated."""
        ...

    def texts(self, column: str, parts: Sequence[Part]) -> list[Iterator[str | None]]:
        """Read one column as text: the values of each part, in the order of its ranges.

        The values become objects one by one. A part whose payload was removed has fewer.
        """
        ...

    def lanes(
        self, column: str, lanes: int, parts: Sequence[Part]
    ) -> list[dict[int, tuple[Range, ...]]]:
        """Find the lane of each message by a grouping column, for each part by lane.

        Args:
            column: The column; nothing else is read.
            lanes: The number of lanes.
            parts: The messages.

        Raises:
            PayloadRemoved: Their payload is past its retention.
            LimitExceeded: They are in more than ``RANGES_PER_CALL_MAX`` ranges.
        """
        ...

    def rows(self, payload_id: str, places: Sequence[StagedPlace]) -> int:
        """Count the rows that exist at some places."""
        ...

    def slices(self, payload_id: str) -> set[int]:
        """List the slices of an owner that have rows."""
        ...

    def drop(self, payload_id: str, slices: Collection[int]) -> None:
        """Delete all rows of some slices for good; no error if there are none."""
        ...

    def erase(self, payload_id: str, places: Sequence[StagedPlace]) -> None:
        """Delete the rows at some places for good; no error if they no longer exist.

        Only the files that contain them are rewritten.

        Raises:
            AppendConflict: Others wrote to the table meanwhile; some rows may be deleted.
        """
        ...

    def vacuum(self, payload_id: str, seconds_min: float, *, full: bool = False) -> str | None:
        """Remove the files of an owner's table that no retained version names.

        Args:
            payload_id: The owner.
            seconds_min: Files are removed only if deleted files are kept at least this long.
            full: Whether to remove also files that no version ever named.

        Returns:
            Why nothing was removed; None if files were removed.
        """
        ...

    def files_kept_seconds(self, payload_id: str) -> float:
        """Return how long, in seconds, an owner's table keeps the files of deleted rows."""
        ...

    def removed_files(self, payload_id: str) -> int | None:
        """Count the files on disk that the newest version of an owner's table does not name.

        Returns:
            How many; None if the table's folder cannot be listed.
        """
        ...

    def orphans(self, known: Collection[str]) -> dict[str, int]:
        """List the payload tables of unknown owners, by owner.

        Returns:
            When each was created, in milliseconds since 1970.
        """
        ...

    def matching(self, schema: StructType, payload_id: str, where: str) -> list[StagedPlace]:
        """Find all rows that match a predicate, whatever happened to them.

        Args:
            schema: The columns of the payload; those that the table lacks are null.
            payload_id: The owner of the payload table.
            where: A SQL predicate over these columns.

        Raises:
            InvalidInput: The predicate cannot be evaluated.
            LimitExceeded: They are in too many ranges.
            PlatformMissing: There is no session to evaluate it.
        """
        ...


@contextmanager
def evaluating(name: str, value: object, folder: str) -> Iterator[None]:
    """Report errors of evaluating a user's argument as errors of the user, not of the store.

    Args:
        name: The name of the argument.
        value: Its value.
        folder: What the paths of the payload's files contain.

    Raises:
        InvalidInput: It cannot be evaluated.
        StoreCorrupt: A file of the payload is damaged.
    """
    from pyspark import errors

    try:
        yield
    except Exception as error:
        corrupt = damage_below(folder, error)
        if corrupt is not None:
            raise corrupt from error
        known = (
            errors.AnalysisException,  # unknown columns, wrong types, not SQL at all
            errors.ArithmeticException,
            errors.ArrayIndexOutOfBoundsException,
            errors.DateTimeException,
            errors.IllegalArgumentException,
            errors.NumberFormatException,
            errors.SparkRuntimeException,
        )
        said = str(error).strip().partition("\n")[0]
        cause = said if isinstance(error, known) else objection(error)
        if cause is None:
            raise
        planned = not isinstance(error, errors.AnalysisException)
        raise InvalidInput(
            f"{name}={value!r} cannot be evaluated: {cause}", name=name, in_rows=planned
        ) from error


def messages_of(table: pa.Table) -> list[Message]:
    """Return the messages of a table as dicts, with their headers as dicts by name.

    Raises:
        InvalidInput: Python cannot hold a value, which Spark can: text that is not UTF-8, or a day
            outside of the years 1 to 9999.
    """
    from txnqueue.storage.payload.maps import mark_maps

    try:
        rows: list[Message] = table.to_pylist()
    except (ValueError, OverflowError) as error:
        column = next(name for name in table.column_names if not _can_be_read(table.column(name)))
        raise InvalidInput(
            f"Column {column!r} has a value that cannot be read in Python ({error}): read the "
            "messages as a DataFrame (df), or as an Arrow table (to_arrow).",
            column=column,
            in_rows=True,
        ) from error
    payload = table.schema.remove(table.schema.get_field_index("_message"))
    mark_maps(rows, payload)
    for row in rows:
        headers = row["_message"]["headers"]
        row["_message"]["headers"] = None if headers is None else dict(headers)
    return rows


def _can_be_read(column: pa.ChunkedArray) -> bool:
    try:
        column.to_pylist()
    except (ValueError, OverflowError):
        return False
    return True
