"""The log of a Delta table, read from its files to find the data files of a version."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from txnqueue.errors import FilesNotReadable, StoreCorrupt
from txnqueue.storage.files import parquet
from txnqueue.storage.files.integrity import content_of, damaged, reaching, understanding
from txnqueue.storage.setbacks import LoggedCommit

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

Found = TypeVar("Found")
_COMMIT = re.compile(r"(\d{20})\.json")
_TRACE = re.compile(r"(?:(\d{20})\.crc|\.(\d{20})\.json\.crc)")
"""Files written after a commit, which prove that it existed."""
_CHECKPOINT = re.compile(
    r"(?P<version>\d{20})\.checkpoint"
    r"(?:\.(?P<part>\d{10})\.(?P<parts>\d{10})|\.(?P<v2>[0-9a-f-]{36}))?\.(?P<form>parquet|json)"
)
_READABLE = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Reader features that do not change how rows are stored in the data files."""
_ELSEWHERE = ("catalogManaged", "coordinatedCommits")
"""Prefixes of features with which commits are not, or not immediately, in the folder."""
_TRIES = 3
"""How often a log is listed if its files are cleaned up while they are read."""
_CHECKPOINT_COLUMNS = [
    *(f"add.{name}" for name in ("path", "partitionValues", "size", "stats")),
    *("add.defaultRowCommitVersion", "add.deletionVector", "metaData", "protocol", "sidecar"),
]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a table.

    Attributes:
        path: Its path, below the table's folder or complete.
        partition: The values of its partition, as Delta writes them.
        row_commit_version: The version of its rows that do not carry one themselves.
        stats: The log's statistics of its values, as JSON.
        size: Its length in bytes.
    """

    path: str
    partition: Mapping[str, str | None]
    row_commit_version: int | None
    stats: str | None = None
    size: int = 0


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of a table, according to the log.

    Attributes:
        version: The version.
        files: Its data files, by their paths in the log.
        properties: The table's properties.
        table_id: The id that distinguishes the table from another one in its place.
        columns: The types of its columns, by their names, as Spark's JSON.
        mark: The length and the time of the commit's file, which identify the commit.
        commits: The commits that were read last, as described in the log.
    """

    version: int = -1
    files: Mapping[str, DataFile] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    table_id: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    mark: tuple[int, int] | None = None
    commits: tuple[LoggedCommit, ...] = ()


class DeltaLog:
    """The log of one table, read-only."""

    def __init__(self, filesystem: FileSystem, folder: str) -> None:
        """Name the table; nothing is read yet.

        Args:
            filesystem: The file system of the table.
            folder: The table's folder.
        """
        self.filesystem = filesystem
        self.folder = folder
        self._log = f"{folder}/_delta_log"

    def exists(self) -> bool:
        """Return whether there is a table: a log with at least one commit or checkpoint."""
        return any(_COMMIT.fullmatch(name) or _CHECKPOINT.fullmatch(name) for name in self._list())

    def newest(self, known: TableVersion | None = None) -> TableVersion:
        """Read the newest version of the table.

        Args:
            known: The version read before; if given, only later commits are read.

        Raises:
            FileNotFoundError: There is no table.
            FilesNotReadable: The table is of a kind that only Spark can read.
            StoreCorrupt: A file of the log is damaged or missing.
        """
        if known is not None and not self._stands(known):
            known = None
        if known is not None and self._mark(known.version + 1) is None:
            return known
        return repeated(lambda last: self._read(known, last=last))

    def followed(self, known: TableVersion) -> TableVersion | None:
        """Read the commits that follow a version, one by one, without listing the folder.

        Args:
            known: The version read before.

        Returns:
            The newest version; None if the log was cleaned up beyond ``known``, or replaced.

        Raises:
            FileNotFoundError: A commit was removed while it was read.
            FilesNotReadable: The table is of a kind that only Spark can read.
            StoreCorrupt: A commit is damaged.
        """
        if not self._stands(known):
            return None
        commits, mark = [], known.mark
        version = known.version + 1
        while (found := self._mark(version)) is not None:
            with understanding(self.filesystem, self._commit(version)):
                commits.append(self._actions(version))
            version, mark = version + 1, found
        if not commits:
            return known
        with understanding(self.filesystem, self._commit(version - 1)):
            return replace(_applied(known, commits), mark=mark)

    def commits(self, since: int) -> tuple[LoggedCommit, ...]:
        """Read the descriptions of the commits from a version on, or from the first in the log."""
        return repeated(lambda _: self._listed(since))

    def _listed(self, since: int) -> tuple[LoggedCommit, ...]:
        names = map(_COMMIT.fullmatch, self._list())
        found: tuple[LoggedCommit, ...] = ()
        for version in sorted(int(m[1]) for m in names if m and int(m[1]) >= since):
            with understanding(self.filesystem, self._commit(version)):
                found += _applied(TableVersion(), [self._actions(version)]).commits
        return found

    def _read(self, known: TableVersion | None, *, last: bool) -> TableVersion:
        names = self._list()
        commits = sorted(int(m[1]) for m in map(_COMMIT.fullmatch, names) if m)
        self._check_newest(commits, names, last=last)
        found = known
        if found is None or found.version + 1 not in commits:
            found = self._checkpoint(names)
        wanted = [version for version in commits if version > found.version]
        if found.version < 0 and not wanted:
            raise FileNotFoundError(self._log)
        named: list[LoggedCommit] = []
        before = found
        for version in wanted:
            if version != found.version + 1:
                raise self._gap(found.version + 1, version, last=last)
            with understanding(self.filesystem, self._commit(version)):
                found = _applied(found, [self._actions(version)])
            named += found.commits
        if not self._fits_sum(found, names):
            raise self._unfitting(before, wanted, names)
        return replace(found, mark=self._mark(found.version), commits=tuple(named))

    def _check_newest(self, commits: Sequence[int], names: Sequence[str], *, last: bool) -> None:
        """Check that no commit is missing of which there is a trace.

        Raises:
            FileNotFoundError: One seems to be missing, but the folder may have changed meanwhile.
            StoreCorrupt: One is missing, even after several attempts.
        """
        traces = (int(m[1] or m[2]) for m in map(_TRACE.fullmatch, names) if m)
        newest = max(traces, default=-1)
        if commits and newest > commits[-1]:
            if not last:
                raise FileNotFoundError(self._commit(newest))
            raise damaged(self._commit(newest), "it is missing, but files written with it exist")

    def _gap(self, missing: int, later: int, *, last: bool) -> Exception:
        """Build the error for a commit that is missing before a later one.

        Delta puts commits into the folder in their order. Where they may be elsewhere, the commits
        before this one have said so, and the table was refused.
        """
        if not last:  # the folder may have changed while it was listed
            return FileNotFoundError(self._commit(missing))
        if missing == 0:
            how = f"its commits begin with {later}, and there is no checkpoint of those before"
            return damaged(self._log, how)
        return damaged(self._commit(missing), "it is missing, but later commits exist")

    def _fits_sum(self, found: TableVersion, names: Sequence[str]) -> bool:
        """Return whether a version has the files that Delta's checksum file of it lists.

        True also if there is no such file, or it cannot be read: nothing depends on it.
        """
        name = _sum_of(found.version)
        if name not in names:
            return True
        try:
            said = json.loads(content_of(self.filesystem, f"{self._log}/{name}"))
            files, size = int(said["numFiles"]), int(said["tableSizeBytes"])
        except (StoreCorrupt, OSError, ValueError, KeyError, TypeError):
            return True
        return (files, size) == (len(found.files), sum(one.size for one in found.files.values()))

    def _unfitting(
        self, before: TableVersion, wanted: Sequence[int], names: Sequence[str]
    ) -> StoreCorrupt:
        """Build the error that names the first commit whose version has other files than it should.

        Args:
            before: The version before the commits.
            wanted: The versions of the commits.
            names: The names of the files of the log.
        """
        how = "the files of the table are not those that {} lists"
        if not self._fits_sum(before, names):
            return damaged(self._log, how.format(_sum_of(before.version)))
        for version in wanted:
            before = _applied(before, [self._actions(version)])
            if not self._fits_sum(before, names):
                return damaged(self._commit(version), how.format(_sum_of(version)))
        raise FileNotFoundError(self._log)  # the log was changed meanwhile

    def _checkpoint(self, names: Sequence[str]) -> TableVersion:
        """Read the newest complete checkpoint."""
        found = [m for m in map(_CHECKPOINT.fullmatch, names) if m]
        for version in sorted({int(m["version"]) for m in found}, reverse=True):
            files = _whole([m for m in found if int(m["version"]) == version])
            if not files:
                continue
            actions = [a for name in files for a in self._checkpointed(f"{self._log}/{name}")]
            sidecars = [a["sidecar"]["path"] for a in actions if a.get("sidecar")]
            for name in sidecars:
                path = unquote(name) if "/" in name else f"{self._log}/_sidecars/{unquote(name)}"
                actions += self._checkpointed(path)
            with understanding(self.filesystem, f"{self._log}/{files[0]}"):
                return replace(_applied(TableVersion(), [(version, actions)]), version=version)
        return TableVersion()

    def _checkpointed(self, path: str) -> list[dict[str, Any]]:
        with understanding(self.filesystem, path):
            content = content_of(self.filesystem, path)
            if path.endswith(".json"):
                return _parsed(content)
            import pyarrow as pa

            file = parquet.opened(pa.BufferReader(content))
            rows: list[dict[str, Any]] = parquet.read(file, _CHECKPOINT_COLUMNS).to_pylist()
            return rows

    def _actions(self, version: int) -> tuple[int, list[dict[str, Any]]]:
        actions = _parsed(content_of(self.filesystem, self._commit(version)))
        if not actions:
            raise ValueError("it is empty")
        return version, actions

    def _commit(self, version: int) -> str:
        return f"{self._log}/{version:020d}.json"

    def _stands(self, known: TableVersion) -> bool:
        """Return whether the log was neither cleaned up beyond a version nor replaced."""
        return known.mark is not None and self._mark(known.version) == known.mark

    def _mark(self, version: int) -> tuple[int, int] | None:
        """Return the mark of a commit's file; None if there is no such file."""
        with reaching(self.folder):
            info = self.filesystem.get_file_info(self._commit(version))
        return (info.size, info.mtime_ns or 0) if info.is_file else None

    def _list(self) -> list[str]:
        from pyarrow.fs import FileSelector

        with reaching(self.folder):
            found = self.filesystem.get_file_info(FileSelector(self._log, allow_not_found=True))
        return [info.base_name for info in found if info.is_file]


def repeated(read: Callable[[bool], Found]) -> Found:
    """List and read files, again if some are removed in between; ``read`` is told the last try.

    Raises:
        FileNotFoundError: At each try some were.
    """
    for last in (False,) * (_TRIES - 1) + (True,):
        try:
            return read(last)
        except FileNotFoundError:
            if last:
                raise
    raise AssertionError


def _sum_of(version: int) -> str:
    """Return the name of Delta's checksum file of a version (pure)."""
    return f"{version:020d}.crc"


def _whole(found: Sequence[re.Match[str]]) -> list[str]:
    """List the files of a checkpoint without missing parts; empty if there is none."""
    for one in found:
        if one["part"] is None:
            return [one[0]]
    for number in sorted({str(one["parts"]) for one in found}):
        parts = sorted(one[0] for one in found if one["parts"] == number)
        if len(parts) == int(number):
            return parts
    return []


def _parsed(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def _applied(
    before: TableVersion, commits: Iterable[tuple[int, Iterable[Mapping[str, Any]]]]
) -> TableVersion:
    """Apply commits to the version before them."""
    version, files = before.version, dict(before.files)
    properties, table_id, columns = before.properties, before.table_id, before.columns
    named: list[LoggedCommit] = []
    for reached, actions in commits:
        version = reached
        for kind, action in _each(actions):
            if kind == "remove":
                files.pop(action["path"], None)
            elif kind == "add":
                files[action["path"]] = _data_file(action)
            elif kind == "metaData":
                properties, table_id = dict(action.get("configuration") or ()), str(action["id"])
                fields = json.loads(action.get("schemaString") or '{"fields": []}')["fields"]
                columns = {field["name"]: field["type"] for field in fields}
                _check_mapping(properties)
            elif kind == "protocol":
                _check_protocol(action)
            elif kind == "commitInfo":
                what, said = str(action.get("operation")), action.get("operationParameters")
                named.append(LoggedCommit.of(version, what, said))
    return TableVersion(version, files, properties, table_id, columns, commits=tuple(named))


def _each(actions: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """List actions with their kinds; the removal of a file before its addition."""
    said = [(kind, action) for one in actions for kind, action in one.items() if action is not None]
    yield from sorted(said, key=lambda one: one[0] != "remove")


def _data_file(action: Mapping[str, Any]) -> DataFile:
    vector = action.get("deletionVector")
    if vector is not None and vector.get("storageType") is not None:
        raise FilesNotReadable(
            "A table of the store has deletion vectors, which cannot be read without Spark: use "
            "Spark.",
            feature="deletionVectors",
        )
    version = action.get("defaultRowCommitVersion")
    return DataFile(
        unquote(action["path"]),
        dict(action.get("partitionValues") or ()),
        None if version is None else int(version),
        action.get("stats"),
        int(action.get("size") or 0),
    )


def _check_protocol(action: Mapping[str, Any]) -> None:
    features = {*(action.get("readerFeatures") or ()), *(action.get("writerFeatures") or ())}
    elsewhere = {name for name in features if name.startswith(_ELSEWHERE)}
    unknown = (set(action.get("readerFeatures") or ()) - _READABLE) | elsewhere
    # Old tables name no features: version 2 means column mapping, version 3 names features.
    if action.get("minReaderVersion", 1) > 3:
        unknown.add(f"reader version {action['minReaderVersion']}")
    unknown -= {"deletionVectors", "columnMapping"}  # their actual use is checked elsewhere
    if unknown:
        raise FilesNotReadable(
            f"A table of the store has {', '.join(sorted(unknown))}, which cannot be read without "
            "Spark: use Spark.",
            feature=sorted(unknown)[0],
        )


def _check_mapping(properties: Mapping[str, str]) -> None:
    if properties.get("delta.columnMapping.mode", "none") != "none":
        raise FilesNotReadable(
            "A table of the store uses column mapping, which cannot be read without Spark: use "
            "Spark.",
            feature="columnMapping",
        )
