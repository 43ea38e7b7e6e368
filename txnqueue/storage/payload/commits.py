"""The Delta commit of a send in the log of its table, which shows the offsets in each file.

Delta writes statistics of each file into the commit that adds it. So a few lines of text show
where the rows of a send are, and what was written need not be read. If anything is not as
expected, that is not an error: the rows themselves are queried.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txnqueue.core.model import Range
from txnqueue.platform.log_store import scheme_of
from txnqueue.storage.journal.tables import TableNames, verbatim
from txnqueue.storage.payload import OFFSETS_PER_TASK, Send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("txnqueue")
NEWEST = 8
"""How many of the newest commits are searched for that of a send: others may have written since."""
_UNEXPECTED = ("remove", "cdc", "metaData", "protocol")
"""Actions that a blind append does not have."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of a send, according to its statistics.

    Attributes:
        rows: Its number of rows.
        first: Its smallest offset.
        last: Its largest offset.
        send_id: The send of all its rows; None if that is unknown.
        path: Its path.
        size: Its length in bytes.
    """

    rows: int
    first: int
    last: int
    send_id: str | None = None
    path: str = ""
    size: int = 0

    @classmethod
    def of(cls, path: str, stats: str | None, size: int = 0) -> StagedFile | None:
        """Read the statistics of a file; None if they do not determine its offsets.

        Args:
            path: Its path.
            stats: The log's statistics of its values, as JSON.
            size: Its length in bytes.
        """
        said = json.loads(stats or "{}")
        try:
            least, most = said["minValues"], said["maxValues"]
            numbers = said["numRecords"], least["send_offset"], most["send_offset"]
        except KeyError:
            return None
        if not all(isinstance(number, int) for number in numbers):
            return None
        send_id = least.get("send_id")
        alone = send_id is not None and send_id == most.get("send_id")
        return cls(*numbers, send_id=send_id if alone else None, path=path, size=size)

    @property
    def is_dense(self) -> bool:
        """Whether it contains every offset between the first and the last."""
        return self.rows == self.last - self.first + 1

    @property
    def is_full(self) -> bool:
        """Whether it is dense, and one task wrote it."""
        same_task = self.first // OFFSETS_PER_TASK == self.last // OFFSETS_PER_TASK
        return self.is_dense and same_task


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """The Delta commit of a send.

    Attributes:
        version: The version of the table that it created.
        rows: The number of rows that the tasks counted while writing.
        files: Its files; None if their statistics do not determine where the rows are.
    """

    version: int
    rows: int
    files: tuple[StagedFile, ...] | None

    @property
    def spans(self) -> list[Range] | None:
        """The ranges of offsets, one for each task; None if they are not certain.

        The number of committed rows must equal the number that the tasks wrote.
        """
        files = sorted(self.files or (), key=lambda file: file.first)
        if self.files is None or sum(file.rows for file in files) != self.rows:
            return None
        if not all(file.is_full for file in files):
            return None
        found: list[Range] = []
        for file in files:
            first, last = found[-1] if found else (0, -1)
            if not found or file.first // OFFSETS_PER_TASK != last // OFFSETS_PER_TASK:
                found.append((file.first, file.last))
            elif file.first == last + 1:  # the task wrote more than one file
                found[-1] = (first, file.last)
            else:
                return None
        return found


def find_commit(
    send: Send, said: str | None, reader: SparkSession, names: TableNames
) -> StagedCommit | None:
    """Find the commit that a send has just made; None if it cannot be read.

    A session knows the version of its last commit to any table. That commit may be by another
    thread, so a commit is recognised by the send's unique id; on a local disk, where that is
    cheap, it is also searched among the newest commits of the table.

    Args:
        send: The send.
        said: The version of the last commit of the session that wrote it.
        reader: A session for reading files that are not on this disk.
        names: The names of the store's tables; a catalog does not show their logs.
    """
    if not names.by_path or said is None:
        return None
    log = f"{names.root}/payload/{send.payload_id}/_delta_log"
    try:
        for version in _versions(log, int(said)):
            found = _read(version, _lines(f"{log}/{version:020}.json", reader), send)
            if found is not None:
                return found
    except Exception as error:
        logger.info("commit not read send=%s error=%s", send.send_id, error)
    return None


def _versions(log: str, said: int) -> Iterator[int]:
    """Yield the versions that may be the send's: the session's, then the newest on this disk."""
    here = Path(log)
    if scheme_of(log) or not here.is_dir():
        yield said
        return
    if (here / f"{said:020}.json").is_file():
        yield said
    there = [int(file.stem) for file in here.glob("*.json") if file.stem.isdecimal()]
    yield from sorted(there, reverse=True)[:NEWEST]


def _lines(path: str, reader: SparkSession) -> Iterable[str]:
    """Read a text file, on this disk without Spark, which would need a job."""
    if not scheme_of(path) and Path(path).is_file():
        return Path(path).read_text(encoding="utf-8").splitlines()
    return [row[0] for row in reader.read.text(verbatim(path)).collect()]


def _read(version: int, lines: Iterable[str], send: Send) -> StagedCommit | None:
    """Read a commit; None if it is not the send's, or not a blind append."""
    actions: list[Mapping[str, Any]] = [json.loads(line) for line in lines if line]
    infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
    if len(infos) != 1:
        return None
    said = json.loads(infos[0].get("userMetadata") or "{}")
    if said.get("send_id") != send.send_id or said.get("operation") != "stage":
        return None
    if any(name in action for action in actions for name in _UNEXPECTED):
        return None
    rows = int(infos[0]["operationMetrics"]["numOutputRows"])
    added = [action["add"] for action in actions if "add" in action]
    return StagedCommit(version, rows, _files(added, send))


def _files(added: Sequence[Mapping[str, Any]], send: Send) -> tuple[StagedFile, ...] | None:
    """Read the statistics of files; None if those of one are insufficient or it is elsewhere."""
    found = []
    for add in added:
        if add.get("deletionVector") or add.get("partitionValues") != {"slice": str(send.slice)}:
            return None
        file = StagedFile.of(add.get("path", ""), add.get("stats"))
        if file is None:
            return None
        found.append(file)
    return tuple(found)
