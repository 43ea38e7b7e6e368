"""The data files that contain the rows of sends, from the log of their table on this disk.

A row is identified by its send and its offset, and never changes. So a frame can read data files
by name: each is written once, and either has all its rows or cannot be read. Their statistics show
whether they contain every message before anything is read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path

from pyarrow.fs import LocalFileSystem

from txnqueue.core import ranges
from txnqueue.core.model import Range
from txnqueue.errors import FilesNotReadable
from txnqueue.storage.files.delta_log import DataFile, DeltaLog, TableVersion
from txnqueue.storage.files.entries import path_of
from txnqueue.storage.payload.commits import StagedFile

logger = logging.getLogger("txnqueue")
LOG_BYTES_MAX = 8 << 20
"""A log with a larger file is not read here, but by Delta, which reads it in parallel."""
FILES_MAX = 20_000
"""The maximum number of data files of a table that are remembered."""
REST_SECONDS = 600.0
"""How long a table that is too large is not checked again."""
_PATTERN = frozenset("{}[]*?\\")
"""Characters that Hadoop interprets as a pattern in a path."""
SendPlace = tuple[int, str]
"""The slice and the id of a send."""


@dataclass(frozen=True, slots=True)
class Held:
    """The files that contain some rows, each row once.

    Attributes:
        lie: The offsets of the rows, by send.
        paths: The paths of the files.
        only: Whether the files contain no other rows.
    """

    lie: Mapping[SendPlace, Sequence[Range]]
    paths: list[str]
    only: bool


class DataFiles:
    """The data files of one payload table, by send; thread-safe."""

    def __init__(self, folder: str) -> None:
        """Read nothing yet.

        Args:
            folder: The table's folder on this disk.
        """
        self._log = DeltaLog(LocalFileSystem(), folder)
        self._folder = folder
        self._lock = threading.Lock()
        self._rests_until = inf if _PATTERN.intersection(folder) else -inf
        self._known: TableVersion | None = None
        self._files: dict[str, tuple[DataFile, SendPlace | None]] = {}
        self._sends: defaultdict[SendPlace, dict[str, StagedFile]] = defaultdict(dict)

    def holding(self, lie: Mapping[SendPlace, Sequence[Range]]) -> Held | None:
        """Return the files that contain some rows, in the newest version of the table.

        Args:
            lie: The offsets of each send, normalised.

        Returns:
            The files; None if it is not certain that they contain each row once.
        """
        with self._lock:
            try:
                self._refresh()
            except Exception as error:  # reading with Delta will report what is wrong
                logger.info("log not read folder=%s error=%s", self._folder, error)
                stays = isinstance(error, FilesNotReadable)
                stays = stays and not isinstance(error.__cause__, OSError)  # storage may recover
                self._give_up(inf if stays else 0.0)
                return None
            except BaseException:  # interrupted during an update
                self._forget()
                raise
            found: list[StagedFile] = []
            for place, wanted in lie.items():
                chosen = covering(self._sends.get(place, {}).values(), wanted)
                if chosen is None or not all(map(_is_whole, chosen)):
                    return None
                found += chosen
        rows = sum(map(ranges.count, lie.values()))
        return Held(lie, [file.path for file in found], sum(file.rows for file in found) == rows)

    def _refresh(self) -> None:
        """Read the commits since the last version, or everything if none is known."""
        if time.monotonic() < self._rests_until:
            return
        known = self._known and self._log.followed(self._known)
        if known is None:
            log = Path(self._folder, "_delta_log")
            if max((one.stat().st_size for one in log.iterdir()), default=0) > LOG_BYTES_MAX:
                self._give_up(REST_SECONDS)
                return
            known = self._log.newest()
        if len(known.files) > FILES_MAX:
            self._give_up(REST_SECONDS)
        elif known is not self._known:
            self._learn(known.files)
            self._known = known

    def _give_up(self, rest_seconds: float) -> None:
        """Forget everything, and do not read for a while."""
        self._rests_until = time.monotonic() + rest_seconds
        self._forget()

    def _forget(self) -> None:
        self._known = None
        self._files.clear()
        self._sends.clear()

    def _learn(self, files: Mapping[str, DataFile]) -> None:
        """Update the files of each send with those added or removed since."""
        for name in [name for name, (one, _) in self._files.items() if files.get(name) is not one]:
            _, place = self._files.pop(name)
            if place is not None:
                del self._sends[place][name]
                if not self._sends[place]:
                    del self._sends[place]
        for name, one in files.items():
            if name in self._files:
                continue
            place, staged = _described(one, self._folder)
            self._files[name] = (one, place)
            if place is not None and staged is not None:
                self._sends[place][name] = staged


def _described(one: DataFile, folder: str) -> tuple[SendPlace | None, StagedFile | None]:
    """Return the send and the rows of a file; None for several sends or unknown rows."""
    staged = StagedFile.of(path_of(folder, one), one.stats, one.size)
    slice_ = one.partition.get("slice")
    if staged is None or staged.send_id is None or slice_ is None:
        return None, None
    if _PATTERN.intersection(staged.path):
        return None, None
    return (int(slice_), staged.send_id), staged


def _is_whole(file: StagedFile) -> bool:
    """Return whether a file exists and has its original length."""
    try:
        return Path(file.path).stat().st_size == file.size
    except OSError:
        return False


def covering(files: Iterable[StagedFile], wanted: Sequence[Range]) -> list[StagedFile] | None:
    """Select the files of a send that contain some offsets (pure).

    Args:
        files: The files that have only rows of this send.
        wanted: The offsets, normalised.

    Returns:
        The files in the order of their offsets; None if an offset may be missing or repeated.
    """
    chosen = sorted(
        (file for file in files if any(ranges.within(wanted, file.first, file.last))),
        key=lambda file: file.first,
    )
    if not all(file.is_dense for file in chosen):
        return None
    if any(two.first <= one.last for one, two in pairwise(chosen)):
        return None
    held = ranges.normalised((file.first, file.last) for file in chosen)
    return None if ranges.difference(wanted, held) else chosen
