"""The types in public signatures: rows, messages, history rows, settings and databases.

The rows of results are typed dicts, so that type checkers and editors know their keys.
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
    """An Arrow table, such as ``pyarrow.Table``."""

    def to_pylist(self) -> list[dict[str, Any]]:
        """List the rows as dicts."""
        ...


class PandasFrame(Protocol):
    """A pandas DataFrame."""

    def iterrows(self) -> Iterable[tuple[Any, Any]]:
        """Iterate over the rows."""
        ...


Tabular = Union["DataFrame", ArrowTable, PandasFrame]
"""A Spark DataFrame, a pandas DataFrame or an Arrow table."""
Rows = Union["DataFrame", ArrowTable, PandasFrame, Sequence[Mapping[str, Any]]]
"""Rows that can be sent, published or written to a table: a table, or a list of dicts."""
Matching = Union["DataFrame", ArrowTable, PandasFrame, Iterable[str | Mapping[str, Any]]]
"""Messages of a batch: a table with ``_message``, dicts from ``messages()``, or message ids."""

# ------------------------------------------------------------------------------- messages


class Origin(TypedDict):
    """Where a message was before it was moved.

    Attributes:
        queue: The queue, or for an unroutable message the exchange.
        reason: Why the message was moved.
        delivery_count: Its delivery count there.
        error: The error of the last delivery, if the message was dead-lettered by its count.
    """

    queue: str
    reason: str | None
    delivery_count: int | None
    error: str | None


class MessageInfo(TypedDict):
    """The fields of ``_message``: a message's identity, place, deliveries and headers.

    Attributes:
        id: The id of the message in every queue that it comes to: ``<send id>:<offset>``.
        message_id: The value of the queue's ``message_id`` column; the id if it has none.
        queue: The queue.
        lane: The lane.
        delivery_count: The number of failed deliveries.
        redelivered: Whether an earlier delivery failed, so that ``delivery_count`` is not 0.
        enqueued_at: When the message came into the queue.
        transaction_id: The transaction that put it into the queue; None if no transaction did, as
            after a move or a dead-lettering outside of one.
        headers: The headers by name; None if there are none.
        correlation_id: The header of this name.
        reply_to: The header of this name.
        origin: Where the message was before it was moved; None if it was sent here.
        send_id: The send that it was part of.
        send_offset: Its offset in that send.
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
        """A message as a dict with the payload's columns and ``_message``."""

        @overload
        def __getitem__(self, key: Literal["_message"]) -> MessageInfo: ...
        @overload
        def __getitem__(self, key: str) -> Any: ...
        def __getitem__(self, key: str) -> Any:
            """Read a column, or the message's fields under ``_message``."""

else:
    Message = dict

# -------------------------------------------------------------------------------- history


class Author(TypedDict):
    """Who wrote an entry of the journal, when and why.

    Attributes:
        reason: The reason that the author gave.
        actor: The author.
        run_id: The job run that the work belonged to.
        recorded_at: The instant of writing, by the author's clock.
    """

    reason: str | None
    actor: str | None
    run_id: str | None
    recorded_at: datetime.datetime


class TraceStep(Author):
    """One step of a message's way through the store.

    Attributes:
        message_id: The message.
        step: What happened to the message; ``History.trace`` lists the steps.
        queue: The queue in which the step happened.
        lane: The lane.
        target: The queue that the message was moved to, or the table that was changed.
        exchange: The exchange that the message was published to.
        rows: The number of rows staged for the change of the table.
        transaction_id: The transaction that did it.
        attempt: The attempt of that transaction.
        decision: The outcome of the attempt; None also if it was removed from the history.
        commit_seq: The step's place in commit order.
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
    """What a rehearsed handler would have done to a queue or table, and what was really done."""

    what: str
    queue: str | None
    table: str | None
    would: int
    really: int


class ChangedRow(TypedDict):
    """A row of a rehearsed handler's change of a table, compared with what was really done.

    ``how`` holds the options of a merge, an update or a delete, ``row`` the row; both as JSON.
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
    """One queue and some of its settings, as in ``Snapshot.queues`` and the view ``queues``.

    ``Queue.info.settings`` has all of them.
    """

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
    """The number of a queue's messages by state, as ``Snapshot.counts`` shows it."""

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


# -------------------------------------------------------------------------- present state


class QueueMetrics(TypedDict):
    """The metrics of a queue at one moment.

    Attributes:
        queue: The queue.
        messages: The messages in the queue: available, delayed, expired or in flight.
        available: The messages that can be received now.
        in_flight: The messages that are received and not settled.
        purge_pending: The messages in flight that were purged: they go instead of coming back.
        delayed: The messages whose time has not come, or that wait because their delivery failed.
        expired: The messages whose time to live is over and that are still to be taken out.
        redelivered: The waiting messages that had a failed delivery.
        dead: The messages that wait in the dead-letter queue.
        duplicates: The messages that were found to be duplicates, and not delivered.
        oldest_age_seconds: The age of the oldest available message; None if there is none.
        newest_age_seconds: The age of the newest available message; None if there is none.
        conflicts: The appends of this client on the queue that lost a race.
    """

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
    """The description of an exchange that ``Exchange.describe`` returns."""

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
"""The type of an exchange: how it matches messages with bindings."""
Unwanted = Literal["return", "dead_letter", "refuse"]
"""How an exchange treats messages that no binding matches."""
Until = Literal["snapshot", "empty"]
"""When a drain ends: after the messages present at its start, or when none are left."""


class ChangeableSettings(TypedDict, total=False):
    """The settings of a queue that ``Queue.alter`` can change."""

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
        """Commit the connection's transaction."""
        ...

    def rollback(self) -> object:
        """Roll back the connection's transaction."""
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
        """Roll back a branch."""
        ...

    def tpc_recover(self) -> Iterable[Any]:
        """List the prepared branches."""
        ...


class NotGiven(enum.Enum):
    """The type of an argument that was left out."""

    NOT_GIVEN = "not given"

    def __repr__(self) -> str:
        """Show a readable default in signatures."""
        return "NOT_GIVEN"


NOT_GIVEN: Final = NotGiven.NOT_GIVEN
