"""An archive of Java's classes, with which a local session starts in about half the time.

Spark and Delta load some 30,000 classes before the first message, and every Java process reads,
checks and links each of them again. Java can store them in their in-memory form (application
class-data sharing): ``make`` lets a session work once and writes what it loaded to a file of about
200 MB, which ``local_spark`` passes to later sessions. The file is for one Java version and one
list of jars, from which its name is derived. Java compares both again, and continues without the
archive if they differ.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

from txnqueue.errors import PlatformMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_EXIT_SECONDS_MAX = 600.0  # Java writes the archive when it ends


def archive_file(java: str, jars: Sequence[Path]) -> Path:
    """Name the archive that belongs to a Java and to Delta's jars.

    Args:
        java: The program that Spark starts.
        jars: Delta's jar files, in the order of the class path.

    Returns:
        The file, whether or not it is there.
    """
    key = hashlib.sha256(os.path.realpath(java).encode())
    for file in [Path(java), *jars, *_jars_of_spark()]:
        found = file.stat()
        key.update(f"\0{file}\0{found.st_size}\0{found.st_mtime_ns}".encode())
    return _folder() / f"classes-{key.hexdigest()[:16]}.jsa"


def class_path(jars: Sequence[Path]) -> str | None:
    """Write the jars as a class path: classes of ``spark.jars`` do not go into an archive.

    Args:
        jars: Delta's jar files.

    Returns:
        The class path; None if it cannot be written, because a jar's path has the separator in it.
    """
    paths = [str(jar) for jar in jars]
    return None if any(os.pathsep in path for path in paths) else os.pathsep.join(paths)


def use_option(archive: Path) -> str:
    """Write the option by which Java uses an archive, and goes on without one that is stale."""
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto {_QUIET}"


def make(archive: Path, start: Callable[[str], SparkSession], work: Callable[..., object]) -> None:
    """Make an archive of the classes that a session loads while it works.

    The session's Java ends with it: call this in a process that does nothing else.

    Args:
        archive: The file to be made; it appears whole or not at all.
        start: Starts a session with an option of Java's.
        work: What the session is to do, so that it loads what a user's session will.

    Raises:
        PlatformMissing: The folder cannot be made, or the session's Java was not started by this
            process, or wrote no archive.
    """
    if any(character.isspace() for character in str(archive)):
        raise PlatformMissing(
            f"Java's options cannot name {archive}, because the path contains a space: use "
            "another path."
        )
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlatformMissing(
            f"{archive.parent} cannot be made ({error}): sessions start without a class archive, "
            "more slowly."
        ) from error
    fresh = archive.with_suffix(f".{os.getpid()}")
    try:
        _work_and_end(start(f"-XX:ArchiveClassesAtExit={fresh} {_QUIET}"), work)
        if not fresh.is_file():
            raise PlatformMissing(
                "Java wrote no class archive: sessions start without it, more slowly."
            )
        fresh.replace(archive)
    finally:
        fresh.unlink(missing_ok=True)


def _work_and_end(spark: SparkSession, work: Callable[..., object]) -> None:
    """Let a session work, and wait for the end of its Java, which is when the archive is there."""
    from pyspark import SparkContext

    java = getattr(getattr(SparkContext, "_gateway", None), "proc", None)
    if java is None:
        raise PlatformMissing("A class archive needs a new session: run this in a new process.")
    try:
        work(spark)
    finally:
        spark.stop()
        java.stdin.close()
        java.wait(_EXIT_SECONDS_MAX)


def _folder() -> Path:
    """Name the folder: a virtual environment's own, which its archive goes with, or the user's."""
    if sys.prefix != sys.base_prefix:
        return Path(sys.prefix, "share", "txnqueue")
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "txnqueue"


def _jars_of_spark() -> list[Path]:
    home = os.environ.get("SPARK_HOME")
    if home is None:
        found = util.find_spec("pyspark")
        if found is None or found.origin is None:
            return []
        home = str(Path(found.origin).parent)
    return sorted(Path(home, "jars").glob("*.jar"))
