"""An inter-process lock for each Delta table on local disks.

Delta's commit on ``file:`` is a check and a rename, which is not atomic between processes. The
lock file names the Python and the JVM process that hold it: if a Python process was killed, its
JVM may still be committing, and the next holder waits until that JVM has ended.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from txnqueue.errors import PlatformMissing, StoreBusy, StoreError

WAIT_SECONDS = 600.0
POLL_SECONDS = 0.05
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class TableLock:
    """The lock of one Delta table, held around each of its Delta commits."""

    def __init__(self, path: Path, jvm_pid: Callable[[], int | None]) -> None:
        """Name the lock file.

        Args:
            path: The path of the lock file.
            jvm_pid: Returns the process id of this driver's JVM; None if that is refused.

        Raises:
            PlatformMissing: filelock or psutil is not installed.
            StoreError: This user must not write to the store.
        """
        try:
            import filelock
            import psutil
        except ImportError as error:
            raise PlatformMissing(
                "A store on a local disk needs the packages filelock and psutil: "
                "pip install 'txnqueue[spark]'."
            ) from error
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._psutil = psutil
        self._timeout = filelock.Timeout
        self._path = path
        self._lock = filelock.FileLock(str(path), timeout=WAIT_SECONDS)
        self._owner = path.with_suffix(".owner")
        self._jvm_pid = jvm_pid
        self._me: dict[str, Any] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            StoreBusy: Another process held it for too long, or died and left a JVM that may
                still be committing.
            StoreError: This user must not write to the store.
        """
        me = self._myself()
        try:
            with _writing(self._path):
                self._lock.acquire()
        except self._timeout as error:
            raise StoreBusy(
                f"Another process has held {self._path} for {WAIT_SECONDS:.0f} seconds: "
                f"{self._read_owner()}. Try again when it has finished, or end it.",
                owner=self._read_owner(),
            ) from error
        try:
            self._wait_for_jvm_of(self._read_owner())
            with _writing(self._path):
                self._owner.write_text(json.dumps(me))
            try:
                yield
            except ConnectionError:
                raise  # the JVM did not reply, and may still be committing
            except BaseException:
                self._owner.unlink(missing_ok=True)  # the statement has returned: it failed
                raise
            self._owner.unlink(missing_ok=True)
        finally:
            self._lock.release()

    def _myself(self) -> dict[str, Any]:
        if self._me is None:
            self._me = {"python": self._process(os.getpid()), "jvm": self._process(self._jvm_pid())}
        return self._me

    def _process(self, pid: int | None) -> list[Any] | None:
        if pid is None:
            return None
        try:
            return [pid, self._psutil.Process(pid).create_time(), _started(pid)]
        except self._psutil.NoSuchProcess:
            return None

    def _read_owner(self) -> dict[str, Any] | None:
        try:
            owner: dict[str, Any] = json.loads(self._owner.read_text())
        except (FileNotFoundError, ValueError):  # released, or killed while writing it
            return None
        return owner

    def _wait_for_jvm_of(self, owner: dict[str, Any] | None) -> None:
        """Wait until the JVM of a holder that ended without releasing the lock has ended."""
        me = self._myself()
        if owner is None or _is_same(owner["jvm"], me["jvm"]):
            return
        if owner["jvm"] is None:
            if me["jvm"] is None and _is_same(owner["python"], me["python"]):
                return
            raise StoreBusy(
                f"Process {owner['python'][0]} left {self._owner} behind, and its JVM is unknown "
                "here: make sure that it has ended, then delete that file.",
                owner=owner,
            )
        deadline = time.monotonic() + WAIT_SECONDS
        while self._alive(owner["jvm"]):
            if time.monotonic() > deadline:
                raise StoreBusy(
                    f"JVM {owner['jvm'][0]} is still running although its Python process has "
                    "ended: end it, then try again.",
                    owner=owner,
                )
            time.sleep(POLL_SECONDS)

    def _alive(self, process: list[Any]) -> bool:
        pid = int(process[0])
        try:
            zombie = self._psutil.Process(pid).status() == self._psutil.STATUS_ZOMBIE
        except self._psutil.NoSuchProcess:
            return False
        return not zombie and _is_same(process, self._process(pid))


def _started(pid: int) -> str | None:
    """Return when a process started, in a form that setting the clock does not change.

    Returns:
        The boot, and the clock ticks since it; None except on Linux.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    ticks = stat.rpartition(b")")[2].split()[19]  # the name before it may contain anything
    return f"{boot} {ticks.decode()}"


def _is_same(one: list[Any] | None, other: list[Any] | None) -> bool:
    """Return whether two descriptions are of one process.

    The time at which it was created follows the clock, which may have been set meanwhile. Earlier
    versions wrote nothing else.
    """
    if one is None or other is None or one[0] != other[0]:
        return False
    starts = [described[2] for described in (one, other) if len(described) > 2 and described[2]]
    if len(starts) == 2:
        return bool(starts[0] == starts[1])
    return abs(float(one[1]) - float(other[1])) < 1


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn the refusal of a write, before which nothing was done, into the library's own error."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        raise StoreError(
            f"The store cannot be written: {error}. Let this user write below "
            f"{str(path.parent.parent)!r}."
        ) from error


class NoLock:
    """The lock of stores whose commits are atomic by themselves."""

    def held(self) -> AbstractContextManager[None]:
        """Hold nothing."""
        return nullcontext()
