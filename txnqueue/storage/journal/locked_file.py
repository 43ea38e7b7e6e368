"""A file that a driver's Java keeps locked for as long as it lives.

Process ids say nothing between containers that share a disk: each counts its own. The system keeps
the lock of a file for all of them, and lets go of it when the process has ended, however it ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import uuid
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

if sys.platform != "win32":  # where nobody shares a disk like this
    import fcntl

logger = logging.getLogger("txnqueue")
SUFFIX = ".alive"
_TRIES = 3
_Key = tuple[str, int]


class LockedFile:
    """A file that Java keeps locked until it ends, or until nobody has this any more."""

    def __init__(self, path: Path, opened: list[Any]) -> None:
        """Keep what Java has opened: what nobody refers to it closes."""
        self._path = path
        self._opened = opened
        weakref.finalize(self, _remove, path, os.getpid()).atexit = False

    @property
    def name(self) -> str:
        """Return its name in its folder."""
        return self._path.name

    def exists(self) -> bool:
        """Return whether it is still there: somebody may have removed the folder of locks."""
        return self._path.exists()


def _remove(path: Path, made_in: int) -> None:
    if os.getpid() == made_in:  # a fork has a copy of what its parent goes on with
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


_making = threading.Lock()
_files: weakref.WeakValueDictionary[_Key, LockedFile] = weakref.WeakValueDictionary()
"""By folder and process id of Java."""
_failures: Counter[_Key] = Counter()
FAILURES_MAX = 3


def locked_by(java: Callable[[], Any], pid: int, folder: Path) -> LockedFile | None:
    """Let a Java lock a file of its own in a folder, if it has not.

    Args:
        java: Returns a session's view of its Java.
        pid: Its process id, here.
        folder: That of the locks.

    Returns:
        The file; None where files are locked in another way, or Java or the disk refuses it.
    """
    if sys.platform == "win32":
        return None
    key = str(folder), pid
    with _making:
        known = _files.get(key)
        if known is not None and known.exists():
            return known
        if _failures[key] >= FAILURES_MAX:
            return None
        try:
            _tidy(folder)
            made = _files[key] = _locked(java(), folder)
        except Exception as error:  # a platform, or a disk, that has no such thing
            logger.info("no file locked by Java folder=%s error=%s", folder, type(error).__name__)
            _failures[key] += 1
            return None
        return made


def _locked(jvm: Any, folder: Path) -> LockedFile:
    """Make a file that this Java has locked.

    Raises:
        OSError: Others were always faster.
        Py4JError: Java refuses it.
    """
    for _ in range(_TRIES):
        path = folder / f"{uuid.uuid4().hex}{SUFFIX}"
        file = jvm.java.io.RandomAccessFile(str(path), "rw")
        try:
            channel = file.getChannel()
            lock = channel.tryLock()
            if lock is not None and path.exists():  # nobody tidied up at this moment
                return LockedFile(path, [file, channel, lock])
        except BaseException:
            _remove(path, os.getpid())
            raise
        file.close()
        _remove(path, os.getpid())
    raise OSError(f"No file could be locked in {folder}.")


def is_alive(path: Path) -> bool:
    """Return whether the Java that has locked a file may still live.

    A file that is gone was removed because its Java had ended, or waits for nothing any more. Of
    one that cannot be opened or locked nothing is known: its Java is waited for.
    """
    if sys.platform == "win32":
        return False
    try:
        with path.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # closing lets go of it
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _tidy(folder: Path) -> None:
    """Remove the files of those that have ended: under their lock, so that nobody takes it."""
    if sys.platform == "win32":
        return
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError), path.open("rb+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
