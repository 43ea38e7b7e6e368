"""The location of a store: the canonical form of its root, and on which disk it is."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from txnqueue.core.settings import shown
from txnqueue.errors import InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_URI = re.compile(r"file:(?://[^/]*)?", re.IGNORECASE)
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://?")


def canonical_root(root: str) -> str:
    """Return the canonical form of a root.

    A path without a scheme is on the local disk, unless Spark's default file system is another
    one; symbolic links are followed, so different spellings are one store.

    Raises:
        InvalidInput: The path leads nowhere: no such user's home, a circle of links, a folder of
            this process that is gone, or a character that no path has. Or it is that of a file.
    """
    if "/" not in root:
        return root
    if FILE_URI.match(root):
        root = path_of(root)
    if SCHEME.match(root):
        return root.rstrip("/")
    try:
        path = str(Path(root).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidInput(f"The path {shown(root)} leads nowhere: {error}") from error
    if os.path.isfile(path):
        raise InvalidInput(f"The path {shown(root)} is that of a file: give a folder.")
    return path


def path_of(uri: str) -> str:
    """Return the path of a file URI; "#" and "?" are part of it, as for Spark (pure)."""
    return unquote(FILE_URI.sub("", uri, count=1))


def default_elsewhere(session: SparkSession) -> str | None:
    """Return Spark's default file system for paths without a scheme; None if it is this disk."""
    default = str(session.sql("SET fs.defaultFS").collect()[0][1])
    return None if default.startswith(("file:", "<undefined>")) else default
