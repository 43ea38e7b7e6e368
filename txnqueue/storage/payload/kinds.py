"""Reading of durable and transient messages together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from txnqueue.core.model import is_in_memory
from txnqueue.errors import PlatformMissing
from txnqueue.storage.payload import Part, PayloadStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class BothKinds:
    """The payload of a store together with that of its transient part."""

    def __init__(
        self, durable: PayloadStore, transient: PayloadStore, spark: SparkSession | None
    ) -> None:
        """Combine two payload stores, with a session for DataFrames."""
        self._durable = durable
        self._transient = transient
        self._spark = spark

    @property
    def folder(self) -> str:
        """What the path of each file of durable payload contains."""
        return self._durable.folder

    def table(self, schema: StructType, parts: Sequence[Part]) -> pa.Table:
        """Read messages into memory, in the order of the parts and of their offsets."""
        if not any(map(_in_memory, parts)):
            return self._durable.table(schema, parts)
        import pyarrow as pa

        empty = self._transient.table(schema, ())
        pieces = [
            (self._transient if in_memory else self._durable).table(schema, list(found))
            for in_memory, found in groupby(parts, key=_in_memory)
        ]
        return pa.concat_tables([empty, *pieces])

    def frame(self, schema: StructType, parts: Sequence[Part]) -> DataFrame:
        """Make a DataFrame that always shows the same messages, whenever it is evaluated.

        Raises:
            PlatformMissing: There is no session.
        """
        here = [part for part in parts if _in_memory(part)]
        there = [part for part in parts if not _in_memory(part)]
        if not here:
            return self._durable.frame(schema, there)
        if self._spark is None:
            raise PlatformMissing("DataFrames need a Spark session: use messages() or to_arrow().")
        from txnqueue.storage.payload.types import frame_of

        frame = frame_of(self._spark, self._transient.table(schema, here))
        return self._durable.frame(schema, there).unionByName(frame) if there else frame


def _in_memory(part: Part) -> bool:
    return is_in_memory(part.payload_id)
