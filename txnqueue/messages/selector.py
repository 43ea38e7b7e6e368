"""Select messages by a SQL predicate, by rows to match, by messages or by message ids."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnqueue.client.client import Client
from txnqueue.core import ranges
from txnqueue.core.custody import NotRead
from txnqueue.core.model import PositionId, Range
from txnqueue.core.settings import (
    MESSAGE_COLUMN,
    RANGES_PER_CALL_MAX,
    check_column_names,
    check_predicate,
    check_text,
    place_of_message,
)
from txnqueue.core.state import LaneState, Segment
from txnqueue.errors import InvalidInput
from txnqueue.messages.parts import part_of
from txnqueue.storage.journal.tables import identifier
from txnqueue.storage.payload import Part, evaluating
from txnqueue.storage.payload.frames import check_not_streaming, is_frame, is_of_pandas
from txnqueue.storage.payload.islands import by_send, islands, places_of, too_many
from txnqueue.types import Matching

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Reasons = Mapping[str | None, Mapping[str, tuple[Range, ...]]]
"""Ranges of send offsets by reason and send id."""


_IN_A_BATCH = "settle smaller batches (receive and drain say how large), or the whole batch"
_NAMED = "The messages that matching= names"
_EACH_BATCH = "lambda df, batch_id: ..."
_ROWS = 10_000
"""The rows of an Arrow table that are read at a time."""


def fulfilling(messages: DataFrame, where: str, folder: str) -> Reasons:
    """Find the messages of a DataFrame that fulfil a SQL predicate.

    Args:
        messages: The messages.
        where: The predicate.
        folder: What the paths of the payload's files contain.
    """
    with evaluating("where", where, folder):
        found = islands(places_of(messages.where(where)))
    if found is None:
        raise too_many("The messages that where= selects", _IN_A_BATCH, "where")
    return {None: by_send(found)}


def ranges_of(matching: Matching, reason_column: str | None, folder: str) -> Reasons:
    """Read the messages that a caller names, by reason and send.

    Args:
        matching: The messages.
        reason_column: The column with their reasons.
        folder: What the paths of the payload's files contain.
    """
    check_not_streaming(matching, "matching=", _EACH_BATCH, "matching")
    if is_frame(matching):
        return _of_frame(matching, reason_column, folder)
    rows: Iterable[object]
    if isinstance(matching, (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray)):
        rows = _rows_of(matching, reason_column)
    elif is_of_pandas(matching):
        rows = _rows_of_pandas(matching, reason_column)
    elif isinstance(matching, Iterable) and not isinstance(matching, (str, bytes, Mapping)):
        rows = matching
    else:
        raise InvalidInput(
            f"matching={type(matching).__name__}: give a DataFrame with {MESSAGE_COLUMN}, "
            "messages, or message ids."
        )
    reasons: dict[str, dict[int, str | None]] = defaultdict(dict)
    for row in rows:
        said, reason = _row(row, reason_column)
        place = place_of_message(str(said))
        if place is None:
            raise _no_id(said)
        send_id, offset = place
        reasons[send_id].setdefault(offset, reason)  # named twice: the first reason counts
    found: dict[str | None, dict[str, list[int]]] = {}
    for send_id, offsets in reasons.items():
        for one, why in offsets.items():
            found.setdefault(why, {}).setdefault(send_id, []).append(one)
    lie = {
        reason: {send_id: ranges.of_offsets(offsets) for send_id, offsets in named.items()}
        for reason, named in found.items()
    }
    if sum(len(part) for named in lie.values() for part in named.values()) > RANGES_PER_CALL_MAX:
        raise too_many(_NAMED, _IN_A_BATCH, "matching")
    return lie


def _of_frame(matching: DataFrame, reason_column: str | None, folder: str) -> Reasons:
    """Let Spark find the ranges of each reason; a message with several gets the smallest."""
    from pyspark.sql import functions as F

    said, send_id = "coalesce(id, 'None')", "left(id, length(id) - length(offset) - 1)"
    with evaluating("matching", matching, folder):
        reason = F.lit(None) if reason_column is None else F.col(identifier(reason_column))
        named = matching.select(
            F.col(f"{MESSAGE_COLUMN}.id").cast("string").alias("id"),
            reason.cast("string").alias("reason"),
        )
        split = named.selectExpr("*", "substring_index(id, ':', -1) AS offset")
        right = f"({send_id}) != '' AND rlike(offset, '^[0-9]+$')"
        right = f"coalesce({right} AND try_cast(offset AS bigint) IS NOT NULL, false)"
        places = split.selectExpr(
            f"if({right}, {send_id}, NULL) AS send_id",
            f"if({right}, try_cast(offset AS bigint), NULL) AS send_offset",
            f"if({right}, NULL, {said}) AS wrong",
            "reason",
        )
        once = places.groupBy("send_id", "send_offset").agg(
            F.min("wrong").alias("wrong"), F.min("reason").alias("reason")
        )
        found = islands(once, ("wrong", "reason"))
    if found is None:
        raise too_many(_NAMED, _IN_A_BATCH, "matching")
    reasons: dict[str | None, list[tuple[str, int, int]]] = defaultdict(list)
    for wrong, why, *place in found:
        if wrong is not None:
            raise _no_id(wrong)
        reasons[check_text("reason_column", why)].append((place[0], place[1], place[2]))
    return {why: by_send(places) for why, places in reasons.items()}


def _rows_of(matching: Any, reason_column: str | None) -> Iterator[object]:
    """Yield the rows of Arrow data, converted in small slices, with only the needed columns."""
    names = matching.schema.names if isinstance(matching, (pa.Table, pa.RecordBatch)) else []
    if MESSAGE_COLUMN in names:
        needed = (MESSAGE_COLUMN, reason_column)
        matching = matching.select([nth for nth, name in enumerate(names) if name in needed])
    for start in range(0, len(matching), _ROWS):
        yield from matching.slice(start, _ROWS).to_pylist()


def _rows_of_pandas(matching: Any, reason_column: str | None) -> Iterator[object]:
    """Yield the rows of a pandas DataFrame, or the values of a Series; what is missing is null."""
    if not hasattr(matching, "columns"):
        yield from matching.tolist()
        return
    names = list(matching.columns)
    needed = [name for name in (MESSAGE_COLUMN, reason_column) if name in names]
    if MESSAGE_COLUMN not in needed:
        raise InvalidInput(
            f"matching= is a pandas DataFrame without {MESSAGE_COLUMN}: keep this column of df, or "
            "give messages, or message ids.",
            name="matching",
        )
    columns = [matching.iloc[:, names.index(name)] for name in needed]
    values = [column.astype(object).where(column.notna(), None).tolist() for column in columns]
    for each in zip(*values, strict=True):
        row = dict(zip(needed, each, strict=True))
        message = row[MESSAGE_COLUMN]
        yield {**row, MESSAGE_COLUMN: message.asDict() if hasattr(message, "asDict") else message}


def _row(row: object, reason_column: str | None) -> tuple[object, str | None]:
    """Read the message id and the reason of a row."""
    if isinstance(row, str) and reason_column is None:
        return row, None
    message = row.get(MESSAGE_COLUMN) if isinstance(row, Mapping) else None
    if isinstance(row, Mapping) and isinstance(message, Mapping) and "id" in message:
        if reason_column is not None and reason_column not in row:
            raise InvalidInput(
                f"reason_column={reason_column!r} is not a column of matching=: name one of its "
                "columns.",
                name="reason_column",
            )
        why = None if reason_column is None else row[reason_column]
        return message["id"], None if why is None else check_text("reason_column", str(why))
    if isinstance(row, str):
        raise InvalidInput(
            "reason_column= names a column of matching=, but ids have no columns: give messages "
            "or rows, or omit it."
        )
    raise InvalidInput(
        f"{row!r} is neither a message id nor a message with {MESSAGE_COLUMN}: give what "
        "batch.messages() or queue.peek_messages() returned, or its _message.id."
    )


def _no_id(said: object) -> InvalidInput:
    return InvalidInput(
        f"{said!r} is not a message id: use _message.id of a message.", name="matching"
    )


_Same = tuple[PositionId, int]
"""A position, and the failed deliveries of some messages of it: a predicate may ask for both."""
_Due = tuple[Segment, tuple[Range, ...]]
"""A segment, and which of its messages are to be examined."""
Wanted = dict[_Same, tuple[Range, ...]]
"""The selected offsets, by position and failed deliveries."""


LOOK_MIN = 100_000
"""The messages examined by the first query, if few are wanted."""


LOOK_GROWTH = 10
"""The factor by which the next query examines more messages, if the last found too few."""
LOOK_MAX = 100_000_000
"""The most messages that one query examines."""
NOTED_MIN = 1_000
"""The least number of positions of a lane that are noted before those that have left are
forgotten: a stream selects for as long as it runs."""
_PIECES_MAX = 10_000
"""The most pieces of sends that one query names and examines."""
_IN_A_QUEUE = (
    "take them in parts (receive and move have limit=), drain the queue and choose in the handler, "
    "or send the rows in an order in which what is asked for lies together"
)


@dataclass(slots=True)
class _Notes:
    """What is known of the messages of a lane, durable or transient ones.

    Attributes:
        seen: The messages that were examined.
        wanted: Those of them that are selected.
        left: How many positions were left when the notes were tidied last.
    """

    seen: Wanted = field(default_factory=dict)
    wanted: Wanted = field(default_factory=dict)
    left: int = 0

    def note(self, same: _Same, seen: Sequence[Range], wanted: Sequence[Range]) -> None:
        """Note messages that were examined, and which of them are selected."""
        for known, more in ((self.seen, seen), (self.wanted, wanted)):
            known[same] = ranges.added(known.get(same, ()), more)

    def tidy(self, lane: LaneState, segments: Iterable[Segment]) -> None:
        """Forget positions of which nothing is in the lane any more, once they may be many.

        What is in flight stays known: a purge, or who takes it over, looks at it in the same plan
        as at what waits.
        """
        if len(self.seen) > 2 * self.left + NOTED_MIN:
            here = {one.position.position_id for one in chain(lane.available, segments)}
            here.update(*(claim.items for claim in lane.claims.values()))
            self.seen = {same: seen for same, seen in self.seen.items() if same[0] in here}
            self.wanted = {same: self.wanted[same] for same in self.seen}
            self.left = len(self.seen)


class Selector:
    """Selects messages of a queue; each is examined once in a call, and anew after a delivery."""

    def __init__(
        self,
        client: Client,
        queue: str,
        schema: StructType,
        where: str | None = None,
        matching: DataFrame | None = None,
        *,
        on: str | Sequence[str] | None = None,
        few: bool = False,
    ) -> None:
        """Describe the selection.

        Args:
            client: Reads the payload.
            queue: The queue's name.
            schema: The payload's columns.
            where: A SQL predicate over the columns of ``Batch.df``, ``_message`` included.
            matching: Instead, a DataFrame that selects the messages with a match in it.
            on: The columns to match on.
            few: Whether the first messages may suffice; else all selected ones are needed.

        Raises:
            InvalidInput: Neither or both are given, or ``on`` names a column that a side lacks.
        """
        if (matching is None) != (on is None):
            raise InvalidInput("matching= and on= go together: name the columns to match in on=.")
        if (where is None) == (matching is None):
            raise InvalidInput("Give either where= or matching=.")
        if where is not None:
            where = check_predicate(where)
        check_not_streaming(matching, "matching=", _EACH_BATCH, "matching")
        self._client = client
        self._queue = queue
        self._schema = schema
        self._where = where
        self._name = "where" if matching is None else "matching"
        self._matching = matching
        self._on = [] if on is None else list(check_column_names("on", on))
        columns = getattr(matching, "columns", ())
        for name in self._on:
            if name not in schema.names or list(columns).count(name) != 1:
                raise InvalidInput(
                    f"on={name!r} is not a column of both sides: name columns that occur exactly "
                    "once in the queue and in matching=.",
                    name=name,
                )
        self._look_max = LOOK_MIN if few else None
        self._growth = LOOK_GROWTH
        self._notes: dict[tuple[str, int], _Notes] = defaultdict(_Notes)
        self._count = 0

    def of_lane(self, lane: LaneState, segments: Sequence[Segment]) -> Iterator[Segment]:
        """Cut the selected messages out of some segments of a lane, in the same order.

        Once the caller has enough and stops, later messages are not examined.

        Raises:
            NotRead: The next messages must be examined first, which takes a query.
        """
        if not segments:
            return
        notes = self._notes[segments[0].position.queue_id, lane.lane]
        notes.tidy(lane, segments)
        for nth, segment in enumerate(segments):
            new = _new(segment, notes)
            last = new[0][0] - 1 if new else segment.last
            wanted = notes.wanted.get(_same(segment), ())
            for part in ranges.within(wanted, segment.first, last):
                yield segment.cut(*part)
            if new:
                raise NotRead(partial(self._look, segments[nth:], lane.lane, notes))

    # -------------------------------------------------------------------------- helpers

    def _look(self, segments: Sequence[Segment], lane: int, notes: _Notes) -> None:
        """Examine the next messages by one query, or all of the lane if all selected are needed.

        Whether these are too many is then known before the first of them are taken.

        Raises:
            LimitExceeded: All selected messages are needed, and they lie in too many ranges.
        """
        due = self._due(segments, notes)
        while some := list(islice(due, _PIECES_MAX)):
            for apart in _rounds(some):
                self._examine(apart, lane, notes)
            if self._look_max is not None:
                return

    def _examine(self, due: Sequence[_Due], lane: int, notes: _Notes) -> None:
        """Examine messages by one query.

        Raises:
            LimitExceeded: As in ``_look``.
        """
        parts: list[Part] = []
        asked: dict[str, list[tuple[_Same, tuple[Range, ...]]]] = defaultdict(list)
        count = 0
        for segment, new in due:
            position = segment.position
            parts.append(part_of(position, new, self._queue, lane, segment.delivery_count))
            asked[position.send_id].append((_same(segment), new))
            count += ranges.count(new)
        found = self._ranges(parts)
        if found is None and self._look_max is not None:
            self._look_max, self._growth = RANGES_PER_CALL_MAX, 1  # which cannot lie in more
            return
        self._count += len(found or ())
        if found is None or (self._look_max is None and self._count > RANGES_PER_CALL_MAX):
            what = f"The messages of {self._queue!r} that {self._name}= selects"
            raise too_many(what, _IN_A_QUEUE, self._name)
        if self._look_max is not None:
            self._look_max = min(self._look_max * self._growth, LOOK_MAX)
        wanted = by_send(found)
        for send_id, looked_at in asked.items():
            there = wanted.get(send_id, ())
            for same, new in looked_at:
                mine = [one for part in new for one in ranges.within(there, *part)]
                notes.note(same, new, mine)

    def _due(self, segments: Sequence[Segment], notes: _Notes) -> Iterator[_Due]:
        """Yield the messages to examine next, by segment."""
        left = self._look_max
        for segment in segments:
            new = _new(segment, notes)
            if left is not None:
                new = ranges.take(new, left)
                left -= ranges.count(new)
            if new:
                yield segment, new
            if left == 0:
                return

    def _ranges(self, parts: Sequence[Part]) -> list[tuple[Any, ...]] | None:
        """Let Spark find the ranges of selected messages by send; None if they are too many."""
        payload = self._client.payload
        frame: Any = payload.frame(self._schema, parts)
        value = self._matching if self._where is None else self._where
        with evaluating(self._name, value, payload.folder):
            if self._matching is not None:
                columns = self._matching.select(*map(identifier, self._on))
                frame = frame.join(columns, self._on, "left_semi")
            else:
                frame = frame.where(self._where)
                if sum(ranges.count(part.ranges) for part in parts) <= LOOK_MIN:
                    frame = frame.coalesce(1)  # few are sorted where they are read
            return islands(places_of(frame))


def _new(segment: Segment, notes: _Notes) -> tuple[Range, ...]:
    """Find the messages of a segment that were not examined yet."""
    seen = notes.seen.get(_same(segment), ())
    known = tuple(ranges.within(seen, segment.first, segment.last))
    return ranges.difference(((segment.first, segment.last),), known)


def _rounds(due: Iterable[_Due]) -> list[list[_Due]]:
    """Divide what is to be examined, so that no message is in one query twice.

    A message that is in the queue twice has one payload, but its copies may have come from
    different queues, for different reasons: a predicate may select one of them. Nearly always
    there is one round.
    """
    rounds: list[list[_Due]] = []
    ends: dict[str, list[int]] = defaultdict(list)
    for one in sorted(due, key=lambda each: each[0].first):
        segment, taken = one[0], ends[one[0].position.send_id]
        nth = next((n for n, end in enumerate(taken) if end < segment.first), len(taken))
        taken[nth : nth + 1] = [segment.last]
        if nth == len(rounds):
            rounds.append([])
        rounds[nth].append(one)
    return rounds


def _same(segment: Segment) -> _Same:
    return segment.position.position_id, segment.delivery_count
