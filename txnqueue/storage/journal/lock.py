"""An inter-process lock for each Delta table on local disks.

Delta's commit on ``file:`` is a check and a rename, which is not atomic between processes. The
lock file names the Python and the JVM process that hold it: if a Python process was killed, its
JVM may still be committing, and the next holder waits until that JVM has ended. Whether it has, its
process id tells in the same container, and the file that it keeps locked tells everywhere.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from txnqueue.errors import PlatformMissing, StoreBusy, StoreError
from txnqueue.storage.journal import locked_file
from txnqueue.storage.journal.exceptions import is_unanswered
from txnqueue.storage.journal.locked_file import LockedFile
from txnqueue.storage.setbacks import gone

logger = logging.getLogger("txnqueue")
WAIT_SECONDS = 600.0
POLL_SECONDS = 0.05
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)

_in_doubt: set[LockedFile] = set()
"""The files of JVMs that did not reply: others look at them after their manager is gone, too."""


class TableLock:
    """The lock of one Delta table, held around each of its Delta commits."""

    def __init__(
        self,
        path: Path,
        jvm_pid: Callable[[], int | None],
        proof: Path | None = None,
        *,
        begins: bool = False,
        locked_by_jvm: Callable[[int], LockedFile | None] = lambda _: None,
    ) -> None:
        """Name the lock file.

        Args:
            path: The path of the lock file, two levels below the folder of the store.
            jvm_pid: Returns the process id of this driver's JVM; None if that is refused.
            proof: A folder that exists as long as the store does; None if there is none.
            begins: Whether the lock is that of the table with which the store begins.
            locked_by_jvm: Returns the file beside the lock file that this driver's JVM, which has
                this process id, keeps locked; None if there is none.

        Raises:
            PlatformMissing: filelock or psutil is not installed.
            StoreError: The lock file's folder cannot be created.
            StoreNotFound: The store was removed.
        """
        try:
            import filelock
            import psutil
        except ImportError as error:
            raise PlatformMissing(
                "A store on a local disk needs the packages filelock and psutil: "
                "pip install 'txnqueue[spark]'."
            ) from error
        self._psutil = psutil
        self._timeout = filelock.Timeout
        self._path = path
        self._folder = path.parent.parent
        self._proof = proof
        if not begins:
            self._check_there()
        with writing(self._folder):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = filelock.FileLock(str(path), timeout=WAIT_SECONDS)
        self._owner = path.with_suffix(".owner")
        self._jvm_pid = jvm_pid
        self._locked_by_jvm = locked_by_jvm
        self._me: dict[str, Any] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock.

        Raises:
            StoreBusy: Another process held it for too long, or died and left a JVM that may
                still be committing.
            StoreError: The lock cannot be written, because of a full disk, for example.
            StoreNotFound: The store was removed.
        """
        me = self._myself()
        self._check_there()
        try:
            with writing(self._folder):
                self._lock.acquire()
        except self._timeout as error:
            raise StoreBusy(
                f"Another process has held {self._path} for {WAIT_SECONDS:.0f} seconds: "
                f"{self._read_owner()}. Try again when it has finished, or end it.",
                owner=self._read_owner(),
            ) from error
        try:
            with writing(self._folder):
                owner = self._read_owner()
            self._wait_for_jvm_of(owner)
            with writing(self._folder):
                locked = None if me["jvm"] is None else self._locked_by_jvm(int(me["jvm"][0]))
                said = {} if locked is None else {"locked": locked.name}
                self._owner.write_text(json.dumps(me | said))
            try:
                yield
            except BaseException as error:
                if is_unanswered(error):  # the JVM may still be committing
                    _in_doubt.update([] if locked is None else [locked])
                else:  # the statement has returned: it failed
                    self._disown()
                raise
            self._disown()
        finally:
            self._lock.release()

    def _check_there(self) -> None:
        """Check that the store was not removed: a lock would create its folder anew.

        Raises:
            StoreNotFound: It was; nothing was done.
        """
        if self._proof is not None and not self._proof.is_dir():
            raise gone(str(self._folder))

    def _disown(self) -> None:
        """Remove the names of the holder; the statement has its outcome, whatever comes of this."""
        try:
            self._owner.unlink(missing_ok=True)
        except OSError as error:  # others wait until this driver's JVM has ended
            logger.warning("holder of a lock not removed path=%s error=%s", self._owner, error)

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
        while (here := self._lives_here(owner["jvm"])) or self._lives_elsewhere(owner):
            if time.monotonic() > deadline:
                raise StoreBusy(_still_running(owner, self._path.parent, here=here), owner=owner)
            time.sleep(POLL_SECONDS)

    def _lives_elsewhere(self, owner: dict[str, Any]) -> bool:
        """Return whether the JVM of an owner in another container still lives."""
        locked = owner.get("locked")  # a server's has none, nor have those of earlier versions
        return locked is not None and locked_file.is_alive(self._path.with_name(Path(locked).name))

    def _lives_here(self, process: list[Any]) -> bool:
        pid = int(process[0])
        try:
            zombie = self._psutil.Process(pid).status() == self._psutil.STATUS_ZOMBIE
        except self._psutil.NoSuchProcess:
            return False
        return not zombie and _is_same(process, self._process(pid))


def _still_running(owner: dict[str, Any], folder: Path, *, here: bool) -> str:
    where = "" if here else " of another container"
    said = (
        f"JVM {owner['jvm'][0]}{where} is still running although its Python process has ended: end "
        "it, then try again."
    )
    if here:
        return said
    file = folder / owner["locked"]
    return f"{said} If it has ended, {file} cannot be read or locked here: delete it."


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
def writing(folder: Path) -> Iterator[None]:
    """Turn a failed access to a store's folder, before which nothing was done, into a typed error.

    Raises:
        StoreError: The system refuses it; the message gives the remedy.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # not the system's: the wait for a lock is over
            raise
        raise StoreError(
            f"The store cannot be written: {error}. {_remedy(error.errno, str(folder))}"
        ) from error


def _remedy(code: int, folder: str) -> str:
    """Return what to do about a refused write (pure)."""
    if code in _REFUSED:
        return f"Let this user write below {folder!r}."
    if code in _FULL:
        return f"Make room on the disk of {folder!r}, then try again."
    return f"Check the disk of {folder!r}, then try again."


class NoLock:
    """The lock of stores whose commits are atomic by themselves."""

    def held(self) -> AbstractContextManager[None]:
        """Hold nothing."""
        return nullcontext()
