"""The types that users meet in signatures: what is sent, what is read, what takes part.

What a message carries beside its columns, and a step of a trace, are dicts whose keys a type
checker and an editor know.
"""

from __future__ import annotations

import datetime
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypedDict, Union

if TYPE_CHECKING:
    from typing import overload

    from pyspark.sql import DataFrame

# ----------------------------------------------------------------------------------- rows


class ArrowTable(Protocol):
    """A table of Arrow, as pyarrow has it."""

    def to_pylist(self) -> list[dict[str, Any]]:
        """List the rows as dicts."""
        ...


class PandasFrame(Protocol):
    """A table of pandas."""

    def iterrows(self) -> Iterable[tuple[Any, Any]]:
        """Go through the rows."""
        ...


Tabular = Union["DataFrame", ArrowTable, PandasFrame]
"""A table: a Spark DataFrame, a pandas or an Arrow table."""
Rows = Union["DataFrame", ArrowTable, PandasFrame, Sequence[Mapping[str, Any]]]
"""What can be sent, published or written to a table: a table, or a list of dicts."""
Matching = Union["DataFrame", ArrowTable, Iterable[str | Mapping[str, Any]]]
"""Messages of a batch: a table with ``_message``, dicts from ``messages()``, or message ids."""

# ------------------------------------------------------------------------------- messages


class Origin(TypedDict):
    """Where a message was before it was moved.

    Attributes:
        queue: The queue, or the exchange of an unroutable message.
        reason: Why it was moved.
        delivery_count: How often it had been delivered there.
        error: What its last delivery failed with, of a dead letter by count.
    """

    queue: str
    reason: str | None
    delivery_count: int | None
    error: str | None


class MessageInfo(TypedDict):
    """What ``_message`` says of a message.

    Attributes:
        id: Names it, in every queue that it comes to: ``<send id>:<offset>``.
        message_id: The column that the queue was given to name its messages, else the id.
        queue: The queue.
        lane: The lane.
        delivery_count: How many deliveries of it have failed.
        redelivered: Whether it was delivered before.
        enqueued_at: When it came into the queue.
        transaction_id: The transaction that sent it.
        headers: Its headers by name; None if it has none.
        correlation_id: The header of this name.
        reply_to: The header of this name.
        origin: Where it was before it was moved; None if it was sent here.
        send_id: The send that it was part of.
        send_offset: Its place there.
    """

    id: str
    message_id: str
    queue: str
    lane: int
    delivery_count: int
    redelivered: bool
    enqueued_at: datetime.datetime
    transaction_id: str | None
    headers: dict[str, str] | None
    correlation_id: str | None
    reply_to: str | None
    origin: Origin | None
    send_id: str
    send_offset: int


if TYPE_CHECKING:

    class Message(dict[str, Any]):
        """A message as a dict: the payload's columns, and ``_message``."""

        @overload
        def __getitem__(self, key: Literal["_message"]) -> MessageInfo: ...
        @overload
        def __getitem__(self, key: str) -> Any: ...
        def __getitem__(self, key: str) -> Any:
            """Read a column, or what is known of the message beside them."""

else:
    Message = dict

# -------------------------------------------------------------------------------- history


class Author(TypedDict):
    """Who wrote an entry of the journal, when and why.

    Attributes:
        reason: Why, as the author said.
        actor: The author.
        run_id: The run of a job that the work belonged to.
        recorded_at: When, by the author's clock.
    """

    reason: str | None
    actor: str | None
    run_id: str | None
    recorded_at: datetime.datetime


class TraceStep(Author):
    """One step of a message's way through the store.

    Attributes:
        message_id: The message.
        step: What happened to it; ``History.trace`` lists what there is.
        queue: The queue that it happened in.
        lane: The lane.
        target: The queue that it was moved to, or the table that was changed.
        exchange: The exchange that it was published to.
        rows: How many rows of the table's change were staged.
        transaction_id: The transaction that did it.
        attempt: The attempt of that transaction.
        decision: What became of the attempt; None also if that was removed from the history.
        commit_seq: Its place in commit order.
    """

    message_id: str
    step: str
    queue: str | None
    lane: int | None
    target: str | None
    exchange: str | None
    rows: int | None
    transaction_id: str | None
    attempt: str | None
    decision: str | None
    commit_seq: int


class ChangeRow(Author):
    """One entry of the journal, as ``History.changes`` shows it."""

    commit_seq: int
    kind: str
    queue: str | None
    table: str | None
    lane: int | None
    sequence: int | None
    claim_sequence: int | None
    count: int | None
    transaction_id: str | None
    attempt: str | None


class RehearsalRow(TypedDict):
    """What a rehearsed handler would have done to a queue or a table, beside what was done."""

    what: str
    queue: str | None
    table: str | None
    would: int
    really: int


class ChangedRow(TypedDict):
    """A row that a rehearsed handler would have changed a table with, beside what was done.

    ``how`` is what a merge, an update or a delete says, ``row`` the row: both are JSON.
    """

    operation: str
    how: str | None
    row: str | None
    would: int
    really: int


class TransactionRow(Author):
    """One attempt of a transaction, as ``Snapshot.transactions`` shows it."""

    transaction_id: str | None
    attempt: str
    status: str
    commit_seq: int | None


class DispatchRow(Author):
    """One claim, settlement or move, as ``Snapshot.dispatches`` shows it."""

    kind: str
    queue: str | None
    lane: int | None
    sequence: int | None
    claim_sequence: int | None
    transaction_id: str | None
    attempt: str | None
    count: int | None
    commit_seq: int


class BindingRow(Author):
    """One binding of a queue to an exchange, as ``Snapshot.bindings`` shows it."""

    kind: str
    exchange: str
    queue: str
    routing_key: str
    arguments: dict[str, str | None]
    commit_seq: int


class QueueRow(TypedDict):
    """One queue and its settings, as ``Snapshot.queues`` and the view ``queues`` show it."""

    queue: str
    queue_id: str
    lanes: int
    group_by: str | None
    lease_seconds: float
    deliveries_max: int
    dead_letter_id: str | None
    created_at: datetime.datetime
    created_by: str | None
    closing: bool


class ExchangeRow(TypedDict):
    """One exchange, as ``Snapshot.exchanges`` shows it."""

    exchange: str
    exchange_id: str
    type: str
    unroutable: str
    dead_letter_id: str | None
    bindings: int
    created_at: datetime.datetime
    created_by: str | None
    closing: bool


class QueueCounts(TypedDict):
    """What became of a queue's messages, as ``Snapshot.counts`` shows it."""

    queue: str
    lanes: int
    posted: int
    available: int
    delayed: int
    in_flight: int
    purge_pending: int
    accepted: int
    rejected: int
    dead_lettered: int
    expired: int
    purged: int
    moved: int
    duplicates: int


# ---------------------------------------------------------------------- what is there now


class QueueMetrics(TypedDict):
    """What is measured of a queue; ``txnqueue.reports.metrics.GAUGES`` says what each number is."""

    queue: str
    messages: int
    available: int
    in_flight: int
    purge_pending: int
    delayed: int
    expired: int
    redelivered: int
    dead: int
    duplicates: int
    oldest_age_seconds: float | None
    newest_age_seconds: float | None
    conflicts: int


class DeadLetterCount(TypedDict):
    """The dead letters of one origin and reason, as ``Queue.dead_letters`` shows them."""

    queue: str
    reason: str | None
    waiting: int
    in_flight: int
    oldest_at: datetime.datetime
    newest_at: datetime.datetime
    error: str | None


class ExchangeDescription(TypedDict):
    """What ``Exchange.describe`` tells."""

    name: str
    type: str
    arguments: dict[str, Any]
    unroutable: str
    dead_letter: str | None
    columns: dict[str, str]
    bindings: int
    closing: bool


# ------------------------------------------------------------------------------- settings

ExchangeKind = Literal["direct", "topic", "fanout", "headers"]
"""By what an exchange knows which queue wants a message."""
Unwanted = Literal["return", "dead_letter", "refuse"]
"""What becomes of messages that no binding wants."""
Until = Literal["snapshot", "empty"]
"""Where a drain ends: after what was there at its start, or when nothing is left."""


class ChangeableSettings(TypedDict, total=False):
    """The settings of a queue that can be changed later."""

    lease_seconds: float
    deliveries_max: int
    redelivery_delay_seconds: float
    redelivery_delay_seconds_max: float
    dead_letter_expired: bool
    delay_step_seconds: float


# ------------------------------------------------------------------------------ databases


class Database(Protocol):
    """A DB-API 2.0 connection."""

    def cursor(self) -> Any:
        """Open a cursor."""
        ...

    def commit(self) -> object:
        """Commit what was done on the connection."""
        ...

    def rollback(self) -> object:
        """Roll back what was done on the connection."""
        ...


class TwoPhaseDatabase(Protocol):
    """A DB-API 2.0 connection with two-phase commit (PEP 249's optional extension)."""

    def xid(self, format_id: int, gtrid: str, bqual: str, /) -> Any:
        """Name a branch."""
        ...

    def tpc_begin(self, xid: Any, /) -> object:
        """Begin a branch."""
        ...

    def tpc_prepare(self) -> object:
        """Prepare the branch."""
        ...

    def tpc_commit(self, xid: Any = ..., /) -> object:
        """Commit a branch."""
        ...

    def tpc_rollback(self, xid: Any = ..., /) -> object:
        """Roll a branch back."""
        ...

    def tpc_recover(self) -> Iterable[Any]:
        """List the branches that are prepared."""
        ...


class NotGiven(enum.Enum):
    """The type of an argument that was left out."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        """Show up readably in signatures."""
        return "NOT_GIVEN"


NOT_GIVEN: Final = NotGiven.NOT_GIVEN
