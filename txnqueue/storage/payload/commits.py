"""The Delta commit of a send, as the log of its table shows it: which offsets lie in which file.

Delta writes statistics of each file into the commit that adds it. So where the rows of a send lie
is known from a few lines of text, and nothing that was written has to be read. Whatever is not as
expected is no error: then the rows themselves are asked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txnqueue.core.model import Range
from txnqueue.storage.journal.storage import scheme_of
from txnqueue.storage.journal.tables import TableNames
from txnqueue.storage.payload import OFFSETS_PER_TASK, Send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("txnqueue")
NEWEST = 8
"""Among so many commits that of a send is looked for: others may have written since."""
_UNEXPECTED = ("remove", "cdc", "metaData", "protocol")
"""What a blind append does not do."""


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of a send, as its statistics describe it.

    Attributes:
        rows: How many rows it has.
        first: Its smallest offset.
        last: Its greatest offset.
        send_id: The send that all of its rows are of; None if that is not said.
        path: Where it is.
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
        """Read the statistics of a file; None if they do not tell which offsets it has.

        Args:
            path: Where it is.
            stats: What the log says of the values in it, as JSON.
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
        """Whether it holds every offset between the first and the last."""
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
        version: The version of the table that it made.
        rows: How many rows the tasks counted when they wrote them.
        files: Its files; None if their statistics do not tell where the rows are.
    """

    version: int
    rows: int
    files: tuple[StagedFile, ...] | None

    @property
    def spans(self) -> list[Range] | None:
        """The ranges of offsets, one for each task; None if they are not known for certain.

        As many rows must have been committed as the tasks have written.
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
            elif file.first == last + 1:  # the task has written more than one file
                found[-1] = (first, file.last)
            else:
                return None
        return found


def find_commit(
    send: Send, said: str | None, reader: SparkSession, names: TableNames
) -> StagedCommit | None:
    """Find the commit that was just made of a send; None if it cannot be read.

    A session knows the version of its last commit, to whatever table. Another thread may have
    made that one, so a commit is believed by the send's id, which no other one carries; and on
    this disk, where looking costs next to nothing, it is looked for among the newest of the table.

    Args:
        send: The send.
        said: What the session that wrote it knows as the version of its last commit.
        reader: A session that reads files of other disks.
        names: How the store's tables are called; a catalog does not show their logs.
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
    """Give the versions that may be the send's: the one that was said, then the newest here."""
    here = Path(log)
    if scheme_of(log) or not here.is_dir():
        yield said
        return
    if (here / f"{said:020}.json").is_file():
        yield said
    there = [int(file.stem) for file in here.glob("*.json") if file.stem.isdecimal()]
    yield from sorted(there, reverse=True)[:NEWEST]


def _lines(path: str, reader: SparkSession) -> Iterable[str]:
    """Read a file of text: this disk's without Spark, which needs a job for it."""
    if not scheme_of(path) and Path(path).is_file():
        return Path(path).read_text(encoding="utf-8").splitlines()
    return [row[0] for row in reader.read.text(path).collect()]


def _read(version: int, lines: Iterable[str], send: Send) -> StagedCommit | None:
    """Read a commit; None if it is another one's, or not as blind appends are."""
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
    """Read the statistics of files; None if one of them says too little, or lies elsewhere."""
    found = []
    for add in added:
        if add.get("deletionVector") or add.get("partitionValues") != {"slice": str(send.slice)}:
            return None
        file = StagedFile.of(add.get("path", ""), add.get("stats"))
        if file is None:
            return None
        found.append(file)
    return tuple(found)
