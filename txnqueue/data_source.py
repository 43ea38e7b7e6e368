"""Queues as a Spark data source: ``format("txnqueue")``, in batches and in streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn, cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from txnqueue.client.archive import Past
from txnqueue.client.client import Client
from txnqueue.client.runtime import Runtime
from txnqueue.core import model
from txnqueue.core.settings import QueueInfo, check_name, check_number, is_whole, shown
from txnqueue.core.state import catalog
from txnqueue.errors import (
    FilesNotReadable,
    InvalidInput,
    OnlyLooking,
    PayloadRemoved,
    PlatformMissing,
    QueueNotFound,
    StoreSetBack,
)
from txnqueue.platform.package import carried, written
from txnqueue.reports.moments import cut, moment_of
from txnqueue.reports.postings import Posting, append_at, last_posting, portions, postings
from txnqueue.reports.snapshot import Snapshot, standing
from txnqueue.storage.files.store import FilesStore
from txnqueue.storage.journal.sessions import is_connect
from txnqueue.storage.payload.column_names import folded
from txnqueue.storage.payload.described import Described
from txnqueue.storage.payload.rows import check_instants
from txnqueue.storage.payload.types import IN_UTC, stored_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    from pyspark.sql.types import DataType, StructType

    from txnqueue.storage.store import Store
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # before Spark 4.2, which has no limits either
        SupportsTriggerAvailableNow = object

_BOTH = {"path", "root", "queue", "messagesperpartition"}
_BATCH = _BOTH | {"asof"}
_STREAM = _BOTH | {"startingafter", "maxmessagespertrigger"}
_ADDED = ("_commit_seq", "_lane", "_message_id")
_PER_PARTITION, _PER_BATCH = 100_000, 10_000


class QueueDataSource(DataSource):
    """Read a queue with ``spark.read`` and ``spark.readStream``, without consuming anything.

    Register it once per session. Driver and executors read the store's files with Arrow, so they
    need txnqueue, which ``register`` sends to a Connect server, and a store with a path.

    A batch has the messages that were in the queue after a commit. A stream has all messages that
    are posted to it, once for each time, whatever consumers do with them: a message that was moved
    away and back, or redriven, has two rows with one _message_id. Its offset is a commit_seq, and
    a commit is never split. Columns: the payload's as of the start of the query, and
    _commit_seq long (the commit that posted the message), _lane int, _message_id string.

    Options:
        root: The store's path or URI; or ``load(path)``.
        queue: The queue's name.
        asOf: For a batch: a commit_seq, or an instant with its time zone; now when omitted.
        startingAfter: For a stream: ``earliest`` (the default: all that the history holds),
            ``latest``, or a commit_seq. A checkpoint overrides it.
        maxMessagesPerTrigger: For a stream: commits are added to a batch until it has this many
            messages. Needs Spark 4.2.
        messagesPerPartition: The most messages that one task reads; 100,000 when omitted.

    Raises:
        InvalidInput: An option is unknown, missing or invalid.
        StoreNotFound: There is no store at the root.
        QueueNotFound: There is no such queue.
        FilesNotReadable: The store is in a catalog, or only Spark can read its files.
        PayloadRemoved: Maintenance removed payload that is to be read; no message is skipped.
        HistoryRemoved: A stream is behind the history's beginning: messages may be missing.
        StoreSetBack: A stream has read later commits than the store has: an older copy has taken
            the store's place.

    Example::

        txnqueue.QueueDataSource.register(spark)
        source = spark.readStream.format("txnqueue").option("queue", "orders")
        query = (
            source.load("/lake/messaging")
            .writeStream.option("checkpointLocation", "/lake/checkpoints/orders")
            .toTable("orders_log")
        )
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Hold the options; Spark creates the source."""
        super().__init__(options)
        self._given = {name.lower(): text for name, text in options.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Tell Spark how to send the source to another Python."""
        return carried(self)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "txnqueue"

    @classmethod
    def register(cls, spark: SparkSession) -> None:
        """Register the format in a session.

        Over Spark Connect this package is sent along: the server need not have installed it. In a
        classic session it is the same as ``spark.dataSource.register(QueueDataSource)``.

        Args:
            spark: The session.
        """
        if is_connect(spark):
            with written() as package:
                spark.addArtifacts(str(package), pyfile=True)
        spark.dataSource.register(cls)

    def schema(self) -> StructType:
        """Read the columns of the queue, at the moment that the options name."""
        described = _Looked(self._given).described
        from pyspark.sql.types import IntegerType, LongType, StringType, StructType

        taken = set(map(folded, described.names)) & set(map(folded, _ADDED))
        if taken:
            raise InvalidInput(
                f"The queue has a column {min(taken)!r}, a name that format('txnqueue') uses "
                "itself: read this queue with history.as_of(...).messages().",
                name=min(taken),
            )
        columns = StructType()
        for field in StructType.fromJson(dict(described.described)).fields:
            # Arrow takes no null struct whose fields must not be null: it looks at these alone.
            columns.add(field.name, stored_type(field.dataType), metadata=field.metadata)
        added = zip(_ADDED, (LongType(), IntegerType(), StringType()), strict=True)
        for name, kind in added:
            columns = columns.add(name, kind)
        return columns

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        _check_options(self._given, _BATCH, "spark.read")
        return _BatchReader(self._given, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        _check_options(self._given, _STREAM, "spark.readStream")
        return _StreamReader(self._given, schema)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: FBT001 - as Spark calls it
        """Refuse to write.

        Raises:
            OnlyLooking: Always.
        """
        raise OnlyLooking("format('txnqueue') only reads: queue.send(df) sends a DataFrame.")

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: FBT001 - as Spark calls it
        """Refuse to write.

        Raises:
            OnlyLooking: Always.
        """
        raise OnlyLooking(
            "format('txnqueue') only reads: writeStream.foreachBatch(queue.sink()) sends a stream."
        )


@dataclass
class _Portion(InputPartition):
    """Some messages of a queue, for one task."""

    root: str
    described: Mapping[str, Any]
    found: Sequence[Posting]


class _Looked:
    """The queue that the options name, at the moment of the first query."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Look at the store.

        Raises:
            InvalidInput: The root or the queue is missing, or both root and path are given.
        """
        roots = {options[name] for name in ("root", "path") if name in options}
        if len(roots) > 1:
            raise InvalidInput(
                f"format('txnqueue') was given two stores, {' and '.join(sorted(roots))}: give "
                "the option root or load(path), not both.",
                name="root",
            )
        if not roots or "queue" not in options:
            raise InvalidInput(
                "format('txnqueue') needs the store and the queue: "
                ".option('queue', 'orders').load('/lake/messaging').",
                name="root",
            )
        (self.root,) = roots
        self.queue = check_name(options["queue"])
        self._as_of = options.get("asof")
        self.store = FilesStore(self.root)
        # The reading half of both kinds of stores is the same.
        self.client = Client(cast("Store", self.store), Runtime())
        self.client.open()

    @cached_property
    def past(self) -> Past:
        """The history up to the requested moment."""
        return self._cut[0]

    @cached_property
    def info(self) -> QueueInfo:
        """The queue as of the requested moment.

        Raises:
            QueueNotFound: There was no such queue.
        """
        found = catalog.queues(self.past.catalog())
        if self.queue not in found:
            there = f"There is no queue {self.queue!r} in {self.root!r}: "
            if self._as_of is not None:
                there = f"There was no queue {self.queue!r} in {self.root!r} asOf {self._as_of}: "
                there += "give a later moment, or omit asOf; "
            raise QueueNotFound(
                f"{there}txnqueue list shows the queues of the store.", name=self.queue
            )
        return found[self.queue]

    @property
    def described(self) -> Described:
        """The queue's columns.

        Raises:
            FilesNotReadable: A column has a type that only Spark reads.
        """
        described = Described(self.info.schema)
        try:
            described.arrow()
        except KeyError as error:
            raise FilesNotReadable(
                f"A column of {self.queue!r} has the type {error.args[0]}, which Arrow cannot "
                "read: use history.as_of(...).messages(...).df().",
                feature=str(error.args[0]),
            ) from error
        return described

    def has(self, commit_seq: int, append_id: str) -> bool:
        """Return whether a commit is still that of an append, or may have been removed since."""
        removed = commit_seq < model.commit_seq(max(self.past.beginning, 0))
        return removed or append_at(self.past, self.info, commit_seq) == append_id

    def standing(self) -> list[Posting]:
        """List the messages that were in the queue."""
        past, at_ms = self._cut
        _ = self.info
        return standing(Snapshot(self.client, past, at_ms), self.queue)

    @cached_property
    def _cut(self) -> tuple[Past, int | None]:
        return cut(
            self.client.cache,
            None if self._as_of is None else moment_of(self._as_of, "asOf"),
            name="asOf",
        )


class _Reader:
    """The common part of batch and stream readers: how a task reads its messages."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check the options; nothing is read yet."""
        self._options = options
        self._schema = schema
        self._most = _number(options, "messagesPerPartition", _PER_PARTITION)

    def __reduce__(self) -> tuple[Any, ...]:
        """Tell Spark how to send the reader to its tasks."""
        return carried(self)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of a partition, in a task.

        Raises:
            PayloadRemoved: Some messages are gone.
            InvalidInput: The user gave a column a type that its values do not fit.
        """
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        mine = cast("_Portion", partition)
        columns = Described(mine.described).arrow()
        wanted = to_arrow_schema(self._schema, **IN_UTC)
        pieces = FilesStore(mine.root).payload.pieces(columns, [one.part for one in mine.found])
        try:
            tables = [
                _fitted(_shown(one, rows).select(wanted.names), wanted)
                for one, rows in zip(mine.found, pieces, strict=True)
            ]
        except PayloadRemoved as error:
            first, last = mine.found[0].commit_seq, mine.found[-1].commit_seq
            raise PayloadRemoved(
                f"Payload posted by commits {first} to {last} was removed or erased: read a batch "
                "asOf another moment, or start a stream with a new checkpoint and startingAfter "
                f"{last}."
            ) from error
        whole = pa.concat_tables([wanted.empty_table(), *tables]).combine_chunks()
        yield from whole.to_batches(max_chunksize=_PER_BATCH)

    def _partitions(self, looked: _Looked, found: Sequence[Posting]) -> list[_Portion]:
        """Divide messages among tasks.

        Raises:
            InvalidInput: The DataFrame has a column, or a field in one, that the queue does not
                have, or instants of another kind.
        """
        from pyspark.sql.types import StructType

        described = looked.described.described
        there = StructType.fromJson(dict(described))
        for name in _ADDED:  # they are as the schema says, unless the user gave it another type
            if name in self._schema.names:
                there = there.add(self._schema[name])
        for name, given, stored in _compared(self._schema, there, ""):
            if stored is None:  # Arrow would make it null
                raise InvalidInput(
                    f"The queue {looked.queue!r} has no column {name!r}: load the DataFrame "
                    "again, without schema().",  # the user gave one, or it is another queue by now
                    name=name,
                )
            if _changes_values(given, stored):
                raise InvalidInput(
                    f"The column {name!r} of the queue {looked.queue!r} is "
                    f"{stored.simpleString()}, and schema() makes it {given.simpleString()}, which "
                    "would change its values: give it as it is, and cast it.",
                    name=name,
                )
        for column in self._schema.fields:
            check_instants(column, there, looked.queue)
        return [
            _Portion(looked.root, described, portion) for portion in portions(found, self._most)
        ]


class _BatchReader(_Reader, DataSourceReader):
    """The messages that were in a queue."""

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the messages among tasks."""
        looked = _Looked(self._options)
        return self._partitions(looked, looked.standing()) or [
            _Portion(looked.root, looked.described.described, [])
        ]


class _StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The messages posted to a queue, commit by commit."""

    _upto: int | None = None
    """Where a query ends that reads what there is at its start, in batches; None: it goes on."""
    _checked: tuple[int, str] = (-1, "")
    """The commit, and its append, up to which the query has read: the store still has it."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Check the options; nothing is read yet."""
        super().__init__(options, schema)
        self._start = options.get("startingafter", "earliest")
        if self._start not in ("earliest", "latest") and not is_whole(self._start):
            raise InvalidInput(
                f"startingAfter={self._start!r}: give earliest, latest or a commit_seq.",
                name="startingAfter",
            )
        self._messages_max = (
            _number(options, "maxMessagesPerTrigger", 0)
            if "maxmessagespertrigger" in options
            else None
        )
        if self._messages_max is not None:
            _read_limits()

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset at which a query without a checkpoint begins."""
        looked = _Looked(self._options)
        last = last_posting(looked.past, looked.info)
        if self._start == "latest":
            return _offset(looked, last)
        if self._start == "earliest":
            beginning = looked.past.beginning
            return _offset(looked, -1 if beginning < 0 else model.commit_seq(beginning) - 1)
        after = int(self._start)
        if after > looked.past.upto:
            raise InvalidInput(
                f"startingAfter={after}: give at most {looked.past.upto}, the newest commit of "
                "this store.",
                name="startingAfter",
            )
        return _offset(looked, after)

    # Spark before 4.2 passes neither argument; it never asks for less than it has had.
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return the last commit up to which there is something to read."""
        looked = _Looked(self._options)
        last = last_posting(looked.past, looked.info)
        if self._upto is not None:
            last = min(last, self._upto)
        if start is None:
            return _offset(looked, last)
        self._check_offset(looked, start)
        begun = start["commit_seq"]
        if last <= begun:
            return start
        rows_max = getattr(limit, "max_rows", None)
        if rows_max is None:
            return _offset(looked, last)
        found = [one for one in postings(looked.past, looked.info, begun) if one.commit_seq <= last]
        return _offset(looked, _filled(found, rows_max, last))

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where the query ends: without that, Spark reads everything in one batch."""
        looked = _Looked(self._options)
        self._upto = last_posting(looked.past, looked.info)

    def getDefaultReadLimit(self) -> Any:
        """Return the most messages that a batch has."""
        read_all, read_max_rows = _read_limits()
        return read_all() if self._messages_max is None else read_max_rows(self._messages_max)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide the messages after one commit and up to another among tasks.

        Raises:
            HistoryRemoved: Some of them may have been removed.
            QueueNotFound: The offset belongs to another queue.
            StoreSetBack: The store is older than an offset.
        """
        looked = _Looked(self._options)
        for offset in (start, end):
            self._check_offset(looked, offset)
        if end["commit_seq"] <= start["commit_seq"]:
            return []
        found = postings(looked.past, looked.info, start["commit_seq"])
        upto = [one for one in found if one.commit_seq <= end["commit_seq"]]
        return self._partitions(looked, upto)

    def _check_offset(self, looked: _Looked, offset: object) -> None:
        """Check that an offset belongs to this queue, and to this store as it is.

        Raises:
            InvalidInput: This source writes no such offset.
            QueueNotFound: The offset belongs to another queue of the same name.
            StoreSetBack: The offset's commit is later than the store's last one, or is another one.
        """
        given: dict[str, Any] = offset if isinstance(offset, dict) else {}
        commit_seq, mine = given.get("commit_seq"), given.get("append_id", "")
        texts = isinstance(given.get("queue_id"), str) and isinstance(mine, str)
        if not texts or type(commit_seq) is not int:
            raise InvalidInput(
                f"{shown(offset)} in this checkpoint is not how far a stream of messages has read: "
                "begin with a new checkpoint.",
                name="checkpointLocation",
            )
        if given["queue_id"] != looked.info.queue_id:
            raise QueueNotFound(
                f"The queue {looked.queue!r} of this checkpoint was dropped, and another one has "
                "its name now: begin with a new checkpoint.",
                name=looked.queue,
            )
        if commit_seq > looked.past.upto:
            found = f"the newest commit is {looked.past.upto}"
        elif not mine or (commit_seq, mine) == self._checked or looked.has(commit_seq, mine):
            self._checked = commit_seq, mine
            return
        else:
            found = "that commit is another one now"
        raise StoreSetBack(
            f"This checkpoint has read {looked.root!r} up to {commit_seq}, and {found}: an older "
            "copy has taken its place, and commits since then would be skipped as already read. "
            "Begin with a new checkpoint.",
            root=looked.root,
            version=looked.store.journal.version(),
        )


def _shown(posting: Posting, rows: pa.Table) -> pa.Table:
    """Add to the rows of messages the columns that tell where they come from (pure)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = rows["send_offset"].cast(pa.string())
    added = (
        pa.repeat(pa.scalar(posting.commit_seq, pa.int64()), rows.num_rows),
        pa.repeat(pa.scalar(posting.part.lane, pa.int32()), rows.num_rows),
        pc.binary_join_element_wise(rows["send_id"], offsets, ":"),
    )
    for name, values in zip(_ADDED, added, strict=True):
        rows = rows.append_column(name, values)
    return rows


def _fitted(rows: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Convert messages to the types of the DataFrame, which differ if the user gave a schema.

    Raises:
        InvalidInput: A value does not fit its type.
    """
    import pyarrow as pa

    try:
        return rows.cast(wanted)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidInput(
            f"The messages do not fit the columns that schema() gave: {error}. Load the DataFrame "
            "without schema()."
        ) from error


def _compared(
    given: DataType, there: DataType, path: str
) -> Iterator[tuple[str, DataType, DataType | None]]:
    """List the columns and fields of a type, with their types there; None if there are none (pure).

    Elements, keys and values are listed under the name of what holds them.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(given, StructType) and isinstance(there, StructType):
        known = {field.name: field.dataType for field in there.fields}
        for field in given.fields:
            name = f"{path}.{field.name}" if path else field.name
            if field.name in known:
                yield from _compared(field.dataType, known[field.name], name)
            else:
                yield name, field.dataType, None
    elif isinstance(given, ArrayType) and isinstance(there, ArrayType):
        yield from _compared(given.elementType, there.elementType, path)
    elif isinstance(given, MapType) and isinstance(there, MapType):
        yield from _compared(given.keyType, there.keyType, path)
        yield from _compared(given.valueType, there.valueType, path)
    else:
        yield path, given, there


def _changes_values(given: DataType, there: DataType) -> bool:
    """Return whether Arrow would round, cut or otherwise change values without an error (pure)."""
    from pyspark.sql import types

    coarser: dict[type[DataType], tuple[type[DataType], ...]] = {
        types.DecimalType: (types.FloatType, types.DoubleType),
        types.DoubleType: (types.FloatType, types.DecimalType),
        types.FloatType: (types.DecimalType,),
        types.TimestampType: (types.DateType,),
        types.TimestampNTZType: (types.DateType,),
    }
    is_truth = isinstance(given, types.BooleanType) and isinstance(there, types.NumericType)
    return is_truth or isinstance(given, coarser.get(type(there), ()))


def _filled(found: Sequence[Posting], rows_max: int, last: int) -> int:
    """Find the commit at which a batch has enough messages; the last one if none (pure)."""
    count = 0
    for posting in found:
        count += len(posting)
        if count >= rows_max:
            return posting.commit_seq
    return last


def _offset(looked: _Looked, commit_seq: int) -> dict[str, Any]:
    """Return how far a query has read; the append tells whether the store was replaced since."""
    offset = {"queue_id": looked.info.queue_id, "commit_seq": commit_seq}
    made_by = append_at(looked.past, looked.info, commit_seq)
    return offset if made_by is None else {**offset, "append_id": made_by}


def _read_limits() -> tuple[Any, Any]:
    """Import the classes that limit a batch of a stream.

    Raises:
        PlatformMissing: This version of Spark has no such limits.
    """
    try:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
    except ImportError as error:
        raise PlatformMissing(
            "maxMessagesPerTrigger needs Spark 4.2: omit it.", missing="pyspark"
        ) from error
    return ReadAllAvailable, ReadMaxRows


def _check_options(options: Mapping[str, str], known: set[str], what: str) -> None:
    unknown = sorted(options.keys() - known)
    if unknown:
        raise InvalidInput(
            f"{what} with format('txnqueue') has no option {unknown[0]!r}: it has "
            f"{', '.join(sorted(known - {'path'}))}.",
            name=unknown[0],
        )


def _number(options: Mapping[str, str], name: str, otherwise: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return otherwise
    if not is_whole(text):
        raise InvalidInput(f"{name}={text!r}: give a whole number of at least 1.", name=name)
    value = int(text)
    check_number(name, value, 1, 100_000_000)
    return value
