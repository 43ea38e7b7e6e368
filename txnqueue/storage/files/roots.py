"""Where a store's files are: a root as a file system of Arrow's, and a folder there."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

from txnqueue.errors import FilesNotReadable, InvalidInput
from txnqueue.storage.journal.locks import canonical_root

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_HADOOP_S3 = re.compile(r"s3[an]://")
_PLACE = re.compile(r"([^:/]+://[^/]*)([^?]*)(.*)")
_BUCKET = re.compile(r"(?:s3[an]?|gs|gcs|az|abfss?|oss|obs|cosn)://(?=[^@/]+(?:/|$))")
_CONTAINER = re.compile(r"(?:abfss?|wasbs?|oci)://([^@/]+)@[^/]+")
_NAME_NODE = re.compile(r"(?:hdfs|viewfs|file)://[^/]*(?=/)")


def located(root: str, filesystem: object = None) -> tuple[FileSystem, str]:
    """Find a root's file system, and its folder there.

    Args:
        root: A path or a URI; on a file system that is given, a folder of it, or the URI that
            Spark has for that.
        filesystem: Where the store is.

    Raises:
        FilesNotReadable: It is in a catalog, or Arrow knows no such file system.
        InvalidInput: What is given is no file system.
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
    """Write a URI as the file system of its scheme knows it; a path stays as it is (pure)."""
    for uri, folder in ((_BUCKET, ""), (_CONTAINER, r"\1"), (_NAME_NODE, "")):
        if uri.match(root):
            return uri.sub(folder, root, count=1)
    return root


def _for_arrow(root: str) -> str:
    """Write a root, each letter of which counts for Hadoop, as a URI of Arrow (pure).

    Keys may stand before its bucket, and options after its folder.
    """
    found = _PLACE.fullmatch(_HADOOP_S3.sub("s3://", root))
    return f"{found[1]}{quote(found[2])}{found[3]}" if found else root


def is_by_path(root: str) -> bool:
    """Return whether a root is a path or a URI, and not a catalog's schema."""
    return "/" in root


def _of_arrow(given: object) -> FileSystem:
    """Take a file system of Arrow, or of fsspec.

    Raises:
        InvalidInput: It is neither.
    """
    from pyarrow.fs import FileSystem

    if isinstance(given, FileSystem):
        return given
    fsspec = sys.modules.get("fsspec")  # whoever has made one has imported it
    if fsspec is None or not isinstance(given, fsspec.AbstractFileSystem):
        raise InvalidInput(
            f"filesystem={given!r}: give a file system of pyarrow.fs or of fsspec.",
            name="filesystem",
        )
    from txnqueue.storage.files.fsspec_files import of_arrow

    return of_arrow(given)
