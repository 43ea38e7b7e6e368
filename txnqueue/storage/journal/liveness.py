"""A file that a driver's Java keeps locked for as long as it lives.

Process ids say nothing between containers that share a disk: each counts its own. The system keeps
the lock of a file for all of them, and lets go of it when the process has ended, however it ends.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

if sys.platform != "win32":  # where nobody shares a disk like this
    import fcntl

logger = logging.getLogger("txnqueue")
SUFFIX = ".alive"
_TRIES = 3
_making = threading.Lock()
_kept: dict[tuple[str, int], tuple[Path, list[Any]]] = {}
"""By folder and Java: the file, and what Java must not throw away, or it lets go of the lock."""


def file_of(java: Callable[[], Any], pid: int, folder: Path) -> str | None:
    """Let a Java lock a file of its own in a folder, if it has not.

    Args:
        java: Returns a session's view of its Java.
        pid: Its process id, here.
        folder: That of the locks.

    Returns:
        The name of the file; None where files are locked in another way, or Java refuses it.
    """
    if sys.platform == "win32":
        return None
    with _making:
        known = _kept.get((str(folder), pid))
        if known is None or not known[0].exists():  # a folder of locks may be removed
            try:
                known = _locked(java(), folder)
            except Exception as error:  # a platform that does not let Java be called
                logger.info("no file locked by Java error=%s", type(error).__name__)
                return None
            _kept[str(folder), pid] = known
        return known[0].name


def _locked(jvm: Any, folder: Path) -> tuple[Path, list[Any]]:
    """Make a file that this Java has locked.

    Raises:
        OSError: It cannot be made.
    """
    _tidy(folder)
    for _ in range(_TRIES):
        path = folder / f"{uuid.uuid4().hex}{SUFFIX}"
        file = jvm.java.io.RandomAccessFile(str(path), "rw")
        channel = file.getChannel()
        lock = channel.tryLock()
        # Who tidies at this moment may have it, or have removed it before it was locked.
        if lock is not None and path.exists():
            return path, [file, channel, lock]
        file.close()
        path.unlink(missing_ok=True)
    raise OSError(f"No file could be locked in {folder}.")


def is_alive(path: Path) -> bool:
    """Return whether the Java that has locked a file still lives.

    A file that is gone was removed because its Java had ended. One that must not be opened is
    another user's, of whom nothing is known: he is waited for.
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
    """Remove the files of those that have ended."""
    for path in folder.glob(f"*{SUFFIX}"):
        with contextlib.suppress(OSError):
            if not is_alive(path):
                path.unlink(missing_ok=True)
