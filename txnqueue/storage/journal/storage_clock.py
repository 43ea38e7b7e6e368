"""The clock of a table's storage, beside that of Spark's Java.

A VACUUM that lists a table's folder deletes what no retained version names if it is older than the
table keeps deleted files: by the dates that the storage gives to files, and by Java's clock. What
an append has just written, and no commit names yet, must not look as old as that.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any, cast

from txnqueue.storage.journal.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger("txnqueue")
_NAME = "txnqueue-clock"  # not hidden: VACUUM leaves hidden files alone
AHEAD_SECONDS_MAX = 600.0
"""How far Java's clock may be ahead where a folder is listed.

Deleted files are kept for an hour at least, and a statement takes twenty minutes at most
(``removed_files``), so that forty would be too many. Clocks that are set by a network are apart by
less than a second, and ten minutes are no accident.
"""


def seconds_ahead(session: SparkSession, location: str) -> float | None:
    """Return by how much Java's clock is ahead of that of a table's storage; below 0: behind.

    The storage dates a file that is written for this beside the data, and removed. If the driver
    dies before it removes it, a later VACUUM that lists the folder does: no version names it.

    Args:
        session: A session of the library.
        location: The table's folder.

    Returns:
        The seconds; None if that is unknown: over Spark Connect, or if no file can be written.
    """
    if is_connect(session):
        return None
    try:
        return _measured(session, f"{location}/{_NAME}-{uuid.uuid4().hex}")
    except Exception as error:
        logger.info("clocks not compared location=%s error=%s", location, error)
        return None


def too_far_ahead(name: str, seconds: float | None) -> str | None:
    """Return why a table's folder must not be listed in order to delete files; None if it may be.

    Args:
        name: The table, quoted for SQL.
        seconds: By how much Java's clock is ahead; None if that is unknown.
    """
    if seconds is None or seconds <= AHEAD_SECONDS_MAX:
        return None
    return (
        f"the clock of Spark's driver is {seconds:.0f} s ahead of that of the storage of {name}, "
        "where files that have just been written could be taken for old ones: set the clock right"
    )


def _measured(session: SparkSession, name: str) -> float:
    """Write a file, compare its date with the moment before, and remove it."""
    java: Any = cast("Any", session)._jvm
    path, recursively = java.org.apache.hadoop.fs.Path(name), False
    files = path.getFileSystem(cast("Any", session)._jsparkSession.sessionState().newHadoopConf())
    before_ms = int(java.java.lang.System.currentTimeMillis())
    try:
        files.create(path).close()
        written_ms = int(files.getFileStatus(path).getModificationTime())
    finally:
        files.delete(path, recursively)
    return (before_ms - written_ms) / 1000
