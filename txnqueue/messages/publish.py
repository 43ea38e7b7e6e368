"""Publish: route the rows of one staging to the queues whose bindings match.

The payload is staged once, and belongs to the exchange. Each queue's rows become positions of the
queue when the transaction commits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from txnqueue.client.client import Client
from txnqueue.core import exchanges, model, ranges
from txnqueue.core.exchanges import ExchangeInfo
from txnqueue.core.markup import Facts
from txnqueue.core.model import Range
from txnqueue.core.receipt import Receipt
from txnqueue.core.settings import POSITIONS_PER_SEND_MAX, QueueInfo, QueueSettings
from txnqueue.core.state.topology import Topology
from txnqueue.errors import InvalidInput, LimitExceeded
from txnqueue.messages.acquirer import Acquirer
from txnqueue.messages.placement import SendOptions
from txnqueue.messages.send import is_kept, stage, staged_runs
from txnqueue.messages.staged import Publication, StagedSend
from txnqueue.storage.payload import Destination, Part, Placing, Routes, Run, Send, messages_of
from txnqueue.storage.payload.frames import is_frame
from txnqueue.storage.payload.routes import places_of
from txnqueue.types import Message, Rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from txnqueue.storage.transient import TransientRows

RANGES_PER_PUBLISH_MAX = 100_000
REASON = "unroutable"


@dataclass(frozen=True)
class PublishResult(Facts):
    """The result of a publish.

    Attributes:
        count: The number of messages published, routable or not.
        queues: The number of messages that each queue gets, by queue name.
        unroutable: The number that no binding matches: returned, or sent to the dead letters.
        send_id: The send's id; message ids are ``<send id>:<offset>``.
        transaction_id: The transaction that publishes them.
        receipt: The receipt of the commit, if the publish was a transaction by itself.
    """

    count: int
    queues: Mapping[str, int]
    unroutable: int
    send_id: str
    transaction_id: str
    receipt: Receipt | None
    _back: Returned = field(default_factory=lambda: Returned(None), repr=False, compare=False)

    def returned(self) -> DataFrame:
        """Return the messages that no binding matches, if the exchange returns them.

        Returns:
            A DataFrame with the columns of ``Batch.df``. It reads the staged payload, so it works
            whatever the transaction's outcome, for as long as payload is kept; not in a copy that
            was pickled.
        """
        return self._back.df()

    def returned_messages(self) -> list[Message]:
        """Read the messages that no binding matches as dicts; meant for small numbers."""
        return self._back.messages()


class Returned:
    """The messages that an exchange returned, and how this process reads them.

    Copies of a result share it. A pickled one leaves the way to the store behind: that belongs to
    this process.
    """

    def __init__(
        self,
        source: tuple[Client, StructType] | None,
        parts: tuple[Part, ...] = (),
        carried: TransientRows | None = None,
    ) -> None:
        """Hold messages; nothing is read yet.

        Args:
            source: The client that reads them, and their columns; None in another process.
            parts: The messages, if there are any.
            carried: Keeps transient rows in memory as long as the result lives.
        """
        self._source = source
        self._parts = parts
        self._carried = carried

    def df(self) -> DataFrame:
        """Return the messages as a DataFrame."""
        client, schema = self._there()
        return client.payload.frame(schema, self._parts)

    def messages(self) -> list[Message]:
        """Read the messages as dicts."""
        if not self._parts:
            return []
        client, schema = self._there()
        return messages_of(client.payload.table(schema, self._parts))

    def __deepcopy__(self, memo: dict[int, object]) -> Returned:
        """Return this one: it never changes."""
        return self

    def __reduce__(self) -> tuple[type[Returned], tuple[None, tuple[Part, ...]]]:
        """Tell pickle what to take along."""
        return Returned, (None, self._parts)

    def _there(self) -> tuple[Client, StructType]:
        if self._source is None:
            raise InvalidInput(
                "This result was copied from another process: read the returned messages in the "
                "process that has published them."
            )
        return self._source


def published(
    client: Client,
    tx: Acquirer,
    topology: Topology,
    rows: Rows,
    options: SendOptions,
    *,
    info: ExchangeInfo,
    schema: StructType,
    key: str,
    key_column: str | None,
    keep_order: bool | None,
) -> PublishResult:
    """Stage the rows of a publish, and record in the transaction which queues get them.

    Args:
        client: The client of the store.
        tx: The transaction that publishes.
        topology: The exchanges and bindings that were read.
        rows: The rows that a user publishes.
        options: How they are placed and ordered, and their headers.
        info: The exchange.
        schema: The payload's columns.
        key: The routing key of all rows.
        key_column: Instead, the column that holds it.
        keep_order: Whether every lane gets its messages in the order of the rows; when omitted,
            yes, if they have one.

    Raises:
        Unroutable: Some rows match no binding, and the exchange refuses that.
        InvalidInput: An option cannot be used.
        SchemaMismatch: The rows do not fit the columns.
        LimitExceeded: The rows lie in too many places, or there is no room for them in memory.
        TransactionFinished: Another thread has decided the transaction.
    """
    kept = is_kept(options.durable, tx, info.name, otherwise=True)
    placing = options.placing(QueueSettings(), client.runtime.now_ms())
    fixed, by_column = options.all_headers()
    ordering = options.ordering(schema, info.name)
    if keep_order is None:
        keep_order = bool(ordering) or not is_frame(rows)
    routes, targets = routes_of(topology, info, key, key_column, keep_order=keep_order)
    if not kept:
        info, targets = in_memory(info), [target.in_memory() for target in targets]
    about = (client, info, schema, routes)
    send = send_of(
        *about,
        placing,
        order_by=ordering,
        headers=fixed,
        header_columns=by_column,
        slice_=tx.slice,
        transaction_id=tx.id,
        in_order=any(target.settings.ordered for target in targets),
    )

    def note(side: Client, here: object) -> PublishResult:
        put, runs = staged_runs(side, send, here)
        sends = staged_sends(info, routes, targets, put, runs)
        result = answer(*about, put, runs=runs, sends=sends, transaction_id=tx.id)
        tx.add_sends(sends)
        return result

    return stage(client, tx, rows, info.name, note, kept=kept)


def in_memory(info: ExchangeInfo) -> ExchangeInfo:
    """Return an exchange's description as the owner of transient payload."""
    return replace(info, payload_id=model.in_memory(info.payload_id))


def routes_of(
    topology: Topology, info: ExchangeInfo, key: str, key_column: str | None, *, keep_order: bool
) -> tuple[Routes, list[QueueInfo]]:
    """Make the routes of a publish from the bindings that were read.

    Returns:
        The routes, and the queues in the order of the numbers that the routes use.
    """
    grouped = exchanges.by_queue(topology.bindings(info))
    queues = [topology.queues[queue_id] for queue_id in grouped]
    destinations = [
        Destination(tuple(mine), one.settings.lanes, one.settings.lanes_by)
        for one, mine in zip(queues, grouped.values(), strict=True)
    ]
    otherwise, refuse = None, info.unroutable == exchanges.REFUSE
    if info.unroutable == exchanges.DEAD_LETTER:
        target = topology.queues.get(info.dead_letter_id or "")
        refuse = target is None  # the dead-letter queue was dropped
        if target is not None:
            otherwise = Destination((), target.settings.lanes, target.settings.lanes_by)
            queues.append(target)
    return (
        Routes(
            info.kind,
            tuple(destinations),
            otherwise,
            refuse,
            key,
            key_column,
            keep_order,
        ),
        queues,
    )


def staged_sends(
    info: ExchangeInfo, routes: Routes, queues: Sequence[QueueInfo], send: Send, runs: list[Run]
) -> list[StagedSend]:
    """Split the staged rows of a publish by queue.

    Raises:
        LimitExceeded: The rows lie in too many positions or ranges.
    """
    standing: dict[int, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda one: one.first):
        for number, lane in places_of(run.route):
            _add(standing[number], run, lane)
    found = []
    for number, mine in sorted(standing.items()):
        origin = None
        if number == len(routes.destinations):
            origin = {
                "queue": info.name,
                "exchange": info.exchange_id,
                "reason": REASON,
                "delivery_count": 0,
            }
        said = Publication(info.payload_id, info.schema_version, info.exchange_id, origin)
        staged = StagedSend(
            queues[number], send.slice, send.send_id, tuple(mine), send.placing, said
        )
        found.append(staged)
    _check_limits(info, found)
    return found


def _add(runs: list[Run], run: Run, lane: int) -> None:
    """Add a run to a queue's runs, or lengthen the last one if the run continues it."""
    last = runs[-1] if runs else None
    goes_on = last is not None and replace(
        run, lane=lane, route="", first=last.first, count=last.count
    )
    if last is not None and goes_on == last and last.first + last.count == run.first:
        runs[-1] = replace(last, count=last.count + run.count)
    else:
        runs.append(replace(run, lane=lane, route=""))


def _check_limits(info: ExchangeInfo, sends: Iterable[StagedSend]) -> None:
    positions = pieces = 0
    for staged in sends:
        positions += len(staged.places)
        pieces += len(staged.runs)
    if positions > POSITIONS_PER_SEND_MAX:
        raise LimitExceeded(
            f"{positions} different lanes, priorities, delays and times to live in one publish to "
            f"{info.name!r}; at most {POSITIONS_PER_SEND_MAX} are allowed: publish in parts.",
            name=info.name,
        )
    if pieces > RANGES_PER_PUBLISH_MAX:
        raise LimitExceeded(
            f"The messages of one publish to {info.name!r} lie in {pieces} ranges; at most "
            f"{RANGES_PER_PUBLISH_MAX} are allowed: publish in parts, or with keep_order=False.",
            name=info.name,
        )


def answer(
    client: Client,
    info: ExchangeInfo,
    schema: StructType,
    routes: Routes,
    send: Send,
    *,
    runs: Sequence[Run],
    sends: Iterable[StagedSend],
    transaction_id: str,
) -> PublishResult:
    """Make the result of a publish from its staged rows."""
    rest = len(routes.destinations)
    spans: list[Range] = sorted(run.range for run in runs if not run.route)
    dead = sum(run.count for run in runs if rest in dict(places_of(run.route)))
    memory, carried = client.store.transient.payload, None
    if spans and model.is_in_memory(info.payload_id):  # keeps the rows as long as the result
        carried = memory.carried(info.payload_id, send.send_id)
    counts: Counter[str] = Counter()
    for staged in sends:
        counts[staged.info.name] += sum(run.count for run in staged.runs)
    returned = Part(
        info.payload_id,
        send.slice,
        send.send_id,
        ranges.normalised(spans),
        info.name,
        0,
        0,
        send.placing.now_ms,
        transaction_id,
        {"queue": info.name, "reason": REASON, "delivery_count": 0},
    )
    return PublishResult(
        count=sum(run.count for run in runs),
        queues=dict(counts),
        unroutable=ranges.count(spans) + dead,
        send_id=send.send_id,
        transaction_id=transaction_id,
        receipt=None,
        _back=Returned((client, schema), (returned,) if spans else (), carried),
    )


def send_of(
    client: Client,
    info: ExchangeInfo,
    schema: StructType,
    routes: Routes,
    placing: Placing,
    *,
    order_by: tuple[str, ...],
    headers: Mapping[str, str],
    header_columns: Mapping[str, str],
    slice_: int,
    transaction_id: str,
    in_order: bool,
) -> Send:
    """Describe how the rows of a publish are staged, with the routing key as a header.

    Raises:
        InvalidInput: The caller gave a header with the name of the routing key's header.
    """
    if exchanges.ROUTING_KEY in headers or exchanges.ROUTING_KEY in header_columns:
        raise InvalidInput(
            f"The header {exchanges.ROUTING_KEY!r} is set by publish itself: give routing_key= or "
            "routing_key_column=.",
            name="headers",
        )
    if routes.key_column is not None:
        header_columns = {**header_columns, exchanges.ROUTING_KEY: routes.key_column}
    elif routes.key:
        headers = {**headers, exchanges.ROUTING_KEY: routes.key}
    return Send(
        payload_id=info.payload_id,
        slice=slice_,
        send_id=client.runtime.new_id(),
        schema=schema,
        lanes=1,
        group_by=None,
        order_by=order_by,
        placing=placing,
        headers=headers,
        header_columns=header_columns,
        note={"transaction_id": transaction_id, "exchange": info.name, **client.author()},
        routes=routes,
        in_order=in_order,
    )
