"""The location of a store's files: a root as an Arrow file system and a folder."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

from txnqueue.core.settings import shown
from txnqueue.errors import FilesNotReadable, InvalidInput
from txnqueue.storage.journal.location import canonical_root

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_HADOOP_S3 = re.compile(r"s3[an]://")
_PLACE = re.compile(r"([^:/]+://[^/]*)([^?]*)(.*)")
_BUCKET = re.compile(r"(?:s3[an]?|gs|gcs|az|abfss?|oss|obs|cosn)://(?=[^@/]+(?:/|$))")
_CONTAINER = re.compile(r"(?:abfss?|wasbs?|oci)://([^@/]+)@[^/]+")
_NAME_NODE = re.compile(r"(?:hdfs|viewfs|file)://[^/]*(?=/)")


def located(root: str, filesystem: object = None) -> tuple[FileSystem, str]:
    """Find the file system and the folder of a root.

    Args:
        root: A path or a URI; with a given file system, a folder of it, or Spark's URI for that.
        filesystem: The file system of the store, if it is not given by the root.

    Raises:
        FilesNotReadable: The root is in a catalog, or Arrow has no such file system.
        InvalidInput: ``filesystem`` is not a file system.
    """
    if filesystem is not None:
        return _of_arrow(filesystem), without_scheme(root).rstrip("/")
    if not is_by_path(root):
        raise FilesNotReadable(
            f"The store {root!r} is in a catalog, whose tables only Spark can find: use "
            "QueueManager (on the command line --engine spark), or give the folder as a path with "
            "a '/'.",
            path=root,
        )
    from pyarrow.fs import FileSystem, LocalFileSystem

    where = canonical_root(root)
    if where.startswith("/"):
        return LocalFileSystem(), where
    try:
        found, folder = FileSystem.from_uri(_for_arrow(where))
    except (OSError, ValueError) as error:  # pa.ArrowInvalid is a ValueError
        raise FilesNotReadable(
            f"Arrow cannot open {root!r} ({error}): give look() a filesystem=, or use Spark.",
            path=root,
        ) from error
    return found, folder.rstrip("/")


def without_scheme(root: str) -> str:
    """Return a URI in the form that its file system uses; a path is not changed (pure)."""
    for uri, folder in ((_BUCKET, ""), (_CONTAINER, r"\1"), (_NAME_NODE, "")):
        if uri.match(root):
            return uri.sub(folder, root, count=1)
    return root


def _for_arrow(root: str) -> str:
    """Convert a root, in which Hadoop takes each character literally, to a URI for Arrow (pure).

    It may have keys before its bucket, and options after its folder.
    """
    found = _PLACE.fullmatch(_HADOOP_S3.sub("s3://", root))
    return f"{found[1]}{quote(found[2])}{found[3]}" if found else root


def is_by_path(root: str) -> bool:
    """Return whether a root is a path or a URI, not a catalog schema."""
    return "/" in root


def _of_arrow(given: object) -> FileSystem:
    """Accept a file system of Arrow or fsspec.

    Raises:
        InvalidInput: It is neither.
    """
    from pyarrow.fs import FileSystem

    if isinstance(given, FileSystem):
        return given
    fsspec = sys.modules.get("fsspec")  # imported if the user has such a file system
    if fsspec is None or not isinstance(given, fsspec.AbstractFileSystem):
        raise InvalidInput(
            f"filesystem={shown(given)}: give a file system of pyarrow.fs or of fsspec.",
            name="filesystem",
        )
    from txnqueue.storage.files.fsspec_files import of_arrow

    return of_arrow(given)
