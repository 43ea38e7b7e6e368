"""On storage that does not create files atomically one driver writes, and another is refused."""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filelock
import psutil
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("delta")

from txnqueue.errors import SecondDriver, StoreBusy, StoreError, StoreNotFound
from txnqueue.platform.log_store import CONDITIONAL_PUT, scheme_of
from txnqueue.storage.journal import AppendConflict, delta, locked_file
from txnqueue.storage.journal import lock as lock_module
from txnqueue.storage.journal.admission import (
    EVERY_DRIVER,
    KEEP_APART,
    LOOK_SECONDS,
    SETTLE_SECONDS,
    SEVERAL_DRIVERS,
    SILENCE_SECONDS,
    SINGLE_DRIVER,
    Admission,
    Registration,
    Writers,
    log_store,
    writers_at,
)
from txnqueue.storage.journal.delta import DeltaJournal
from txnqueue.storage.journal.lock import TableLock
from txnqueue.storage.journal.locked_file import LockedFile
from txnqueue.storage.journal.tables import TableNames


class Bucket:
    """A journal on storage where a put replaces: its commits, each with its writer and time."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.commits: list[Any] = [(None, {}, 0)]

    def commit(self, clock: Any = None) -> None:
        """Somebody appends entries."""
        said = self.commits[-1][:2]
        self.commits.append((*said, self.clock_ms() if clock is None else clock))

    def clock_ms(self) -> Any:
        return round(self.now * 1000)


class Register:
    """What one driver sees of a bucket: Delta keeps what it has read and written itself."""

    def __init__(self, bucket: Any) -> None:
        self.bucket = bucket
        self.kept: dict[Any, Any] = {}
        self.before_put: Callable[[], Any] = lambda: None
        self.exists = True
        self.reads = 0

    def read(self) -> Registration | None:
        if not self.exists:
            return None
        self.reads += 1
        for version, commit in enumerate(self.bucket.commits):
            self.kept.setdefault(version, commit)
        driver, about, at = self.kept[max(self.kept)]
        return Registration(driver, at, about)

    def write(self, driver: Any, about: Any) -> Any:
        self.read()
        version = len(self.bucket.commits)
        self.before_put()
        if len(self.bucket.commits) > version and not self.overwrites:
            raise AppendConflict("there is a file of that name")
        self.bucket.commits[version:] = [(driver, about, self.bucket.clock_ms())]
        self.kept[version] = self.bucket.commits[version]
        return version

    overwrites = False

    def written_by(self, version: int) -> Any:
        return self.bucket.commits[version][0]


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def driver(
    bucket: Any,
    name: str,
    writers: Writers = Writers.ONE,
    *,
    ahead: float = 0.0,
    passes: bool = True,
    alone: bool = True,
) -> Admission:
    def sleep(seconds: float) -> None:
        if passes:
            bucket.now += seconds

    register: Any = Register(bucket)
    return Admission(
        register,
        lambda: name,
        f"s3a://lake/{id(bucket)}",
        writers,
        alone=alone,
        now_ms=lambda: bucket.clock_ms() + round(ahead * 1000),
        monotonic=lambda: bucket.now,
        sleep=sleep,
    )


def register_of(one: Admission) -> Any:
    return one._register


def append(one: Any, bucket: Any) -> None:
    with one.held():
        bucket.commit()


def test_a_second_driver_is_refused_as_long_as_the_first_is_heard_of(bucket: Any) -> None:
    first, second = driver(bucket, "a"), driver(bucket, "b")
    append(first, bucket)
    for _ in range(3):
        bucket.now += SILENCE_SECONDS - 1
        before = list(bucket.commits)
        with pytest.raises(SecondDriver, match="S3DynamoDBLogStore") as refused:
            append(second, bucket)
        assert bucket.commits == before
        append(first, bucket)
    assert refused.value.driver == "a"
    assert refused.value.setting == "spark.delta.logStore.s3a.impl"
    assert refused.value.owner["driver"] == "a"


def test_a_driver_that_is_not_heard_of_any_more_is_followed(bucket: Any) -> None:
    first, second = driver(bucket, "a"), driver(bucket, "b")
    append(first, bucket)
    bucket.now += SILENCE_SECONDS + 1
    append(second, bucket)
    with pytest.raises(SecondDriver) as refused:  # it was not dead, and looks again
        append(first, bucket)
    assert refused.value.driver == "b"


def test_a_driver_whose_machine_slept_looks_again(bucket: Any) -> None:
    """Linux's monotonic clock stands still meanwhile: it took itself for the only driver."""
    first, second = driver(bucket, "a"), driver(bucket, "b")
    stood_still_at = bucket.now
    vars(first)["_monotonic"] = lambda: stood_still_at
    append(first, bucket)
    bucket.now += SILENCE_SECONDS + 1
    append(second, bucket)
    before = list(bucket.commits)
    with pytest.raises(SecondDriver) as refused:
        append(first, bucket)
    assert refused.value.driver == "b"
    assert bucket.commits == before


def test_a_driver_that_works_without_appending_is_heard_of(bucket: Any) -> None:
    first, second = driver(bucket, "a"), driver(bucket, "b")
    append(first, bucket)
    for _ in range(10):
        bucket.now += LOOK_SECONDS + 1
        with first.held():
            pass  # it writes to another table
    with pytest.raises(SecondDriver):
        append(second, bucket)


def test_a_driver_looks_once_a_minute(bucket: Any) -> None:
    first = driver(bucket, "a")
    for _ in range(100):
        append(first, bucket)
    assert register_of(first).reads == 2  # what it found, and before it wrote
    bucket.now += LOOK_SECONDS + 1
    append(first, bucket)
    assert register_of(first).reads == 4


def test_managers_of_one_driver_work_side_by_side(bucket: Any) -> None:
    one, other = driver(bucket, "a"), driver(bucket, "a")
    for _ in range(5):
        append(one, bucket)
        append(other, bucket)
        bucket.now += LOOK_SECONDS + 1


def test_the_last_manager_of_a_driver_leaves_for_all_of_them(bucket: Any) -> None:
    one, other, idle = driver(bucket, "a"), driver(bucket, "a"), driver(bucket, "a")
    second = driver(bucket, "b")
    append(one, bucket)
    append(other, bucket)
    one.leave()
    idle.leave()  # it never wrote
    with pytest.raises(SecondDriver):
        append(second, bucket)
    append(other, bucket)  # it is as sure as it was
    other.leave()
    append(second, bucket)


def test_a_manager_that_is_forgotten_keeps_nobody_away(bucket: Any) -> None:
    one, other, second = driver(bucket, "a"), driver(bucket, "a"), driver(bucket, "b")
    append(one, bucket)
    append(other, bucket)
    del one
    other.leave()
    append(second, bucket)


def test_where_others_may_have_the_same_driver_it_is_not_left(bucket: Any) -> None:
    first, second = driver(bucket, "a", alone=False), driver(bucket, "b")
    append(first, bucket)
    first.leave()
    with pytest.raises(SecondDriver):
        append(second, bucket)
    bucket.now += SILENCE_SECONDS + 1
    append(second, bucket)


def test_a_driver_that_left_is_followed_at_once(bucket: Any) -> None:
    first, second = driver(bucket, "a"), driver(bucket, "b")
    append(first, bucket)
    first.leave()
    append(second, bucket)
    first.leave()  # again, and by now the store is another's
    assert bucket.commits[-1][0] == "b"
    with pytest.raises(SecondDriver):
        append(first, bucket)


def test_who_only_read_does_not_leave_for_others(bucket: Any) -> None:
    first, second = driver(bucket, "a"), driver(bucket, "b")
    append(first, bucket)
    second.leave()
    assert bucket.commits[-1][0] == "a"


def test_an_operator_takes_over_on_record(bucket: Any) -> None:
    first, second = driver(bucket, "a"), driver(bucket, "b")
    append(first, bucket)
    second.take_over({"actor": "ops", "reason": "its machine is gone"})
    name, about, _ = bucket.commits[-1]
    assert (name, about["taken_from"], about["reason"]) == ("b", "a", "its machine is gone")
    append(second, bucket)
    bucket.now += LOOK_SECONDS + 1
    with pytest.raises(SecondDriver):
        append(first, bucket)


def test_of_two_that_come_at_once_one_at_most_goes_on(bucket: Any) -> None:
    """The one's commit replaces the other's, which has seen its own and keeps it in memory."""
    first, second = driver(bucket, "a", passes=False), driver(bucket, "b", passes=False)
    register_of(first).overwrites = register_of(second).overwrites = True
    looked, wrote = threading.Barrier(2), threading.Barrier(2)
    outcome: dict[str, Any] = {}

    def come(name: str, one: Any) -> None:
        register_of(one).before_put = lambda: looked.wait(20)
        one._sleep = lambda seconds: wrote.wait(20)
        try:
            with one.held():
                outcome[name] = "writes"
        except SecondDriver as refused:
            outcome[name] = refused.driver

    threads = [threading.Thread(target=come, args=each) for each in (("a", first), ("b", second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner = bucket.commits[-1][0]
    assert outcome == {winner: "writes", ({"a", "b"} - {winner}).pop(): winner}


def test_who_is_a_moment_later_is_told_by_the_conflict(bucket: Any) -> None:
    first, second = driver(bucket, "a"), driver(bucket, "b")
    register_of(second).before_put = lambda: append(first, bucket)
    with pytest.raises(SecondDriver) as refused:
        append(second, bucket)
    assert refused.value.driver == "a"


def test_a_conflict_with_an_append_of_our_own_is_tried_again(bucket: Any) -> None:
    first, lost = driver(bucket, "a"), list[Any]()

    def race() -> None:
        if not lost:
            lost.append(1)
            bucket.commit()

    register_of(first).before_put = race
    append(first, bucket)
    assert bucket.commits[-1][0] == "a" and lost


def test_a_clock_that_is_ahead_keeps_a_dead_driver_alive_for_one_silence_only(bucket: Any) -> None:
    first, second = driver(bucket, "a", ahead=86_400 * 365), driver(bucket, "b")
    with first.held():
        bucket.commit(bucket.clock_ms() + 86_400_000 * 365)
    with pytest.raises(SecondDriver):
        append(second, bucket)
    bucket.now += SILENCE_SECONDS + 1  # by the second's own watch nothing has come since
    append(second, bucket)


def test_before_there_is_a_journal_nothing_is_said(bucket: Any) -> None:
    first = driver(bucket, "a")
    register_of(first).exists = False
    with first.held():
        pass
    first.take_over({"reason": "x"})
    first.leave()
    assert bucket.commits == [(None, {}, 0)]
    register_of(first).exists = True
    append(first, bucket)
    assert bucket.commits[-1][0] == "a"


def test_a_put_that_settles_is_waited_for_once(bucket: Any) -> None:
    first, began = driver(bucket, "a"), bucket.now
    append(first, bucket)
    append(first, bucket)
    assert bucket.now - began == SETTLE_SECONDS


def test_drivers_that_put_conditionally_share_a_store_and_say_so_once(bucket: Any) -> None:
    first, second = (
        driver(bucket, "a", Writers.SHARING),
        driver(bucket, "b", Writers.SHARING),
    )
    for _ in range(3):
        append(first, bucket)
        append(second, bucket)
        bucket.now += SILENCE_SECONDS + 1
    assert [commit[0] for commit in bucket.commits[:2]] == [None, EVERY_DRIVER]
    assert len(bucket.commits) == 2 + 6  # nothing is repeated to be heard of
    first.leave()
    assert bucket.commits[-1][0] == EVERY_DRIVER


def test_two_of_them_that_say_so_in_the_same_moment_agree(bucket: Any) -> None:
    first, second = (
        driver(bucket, "a", Writers.SHARING),
        driver(bucket, "b", Writers.SHARING),
    )
    register_of(first).before_put = lambda: append(second, bucket)
    append(first, bucket)
    said = [commit[0] for commit in bucket.commits]
    assert said == [None, EVERY_DRIVER, EVERY_DRIVER, EVERY_DRIVER]  # once, and two appends


def test_whoever_puts_otherwise_is_refused_however_silent_they_are(bucket: Any) -> None:
    shared, other = driver(bucket, "a", Writers.SHARING), driver(bucket, "b")
    append(shared, bucket)
    for silence in (0, SILENCE_SECONDS * 2, SILENCE_SECONDS * 100):
        bucket.now += silence
        before = list(bucket.commits)
        with pytest.raises(SecondDriver, match=f"logStore.s3a.impl={CONDITIONAL_PUT}"):
            append(other, bucket)
        assert bucket.commits == before
    other.take_over({"reason": "they have ended"})
    append(other, bucket)
    with pytest.raises(SecondDriver, match="'b'"):
        bucket.now += LOOK_SECONDS + 1
        append(shared, bucket)


def test_whom_something_else_keeps_apart_is_refused_beside_them_too(bucket: Any) -> None:
    other, shared = (
        driver(bucket, "b", Writers.APART),
        driver(bucket, "a", Writers.SHARING),
    )
    append(other, bucket)
    assert [commit[0] for commit in bucket.commits] == [None, None]  # it registers nothing
    append(shared, bucket)
    bucket.now += LOOK_SECONDS + 1
    with pytest.raises(SecondDriver, match=CONDITIONAL_PUT):
        append(other, bucket)
    other.take_over({"reason": "they have ended"})
    append(other, bucket)
    assert bucket.commits[-1][0] is None


def test_whom_something_else_keeps_apart_waits_for_one_that_nothing_does(bucket: Any) -> None:
    one, other = driver(bucket, "a"), driver(bucket, "b", Writers.APART)
    append(one, bucket)
    with pytest.raises(SecondDriver, match="'a'"):
        append(other, bucket)
    one.leave()
    append(other, bucket)
    assert bucket.commits[-1][0] is None


def test_whom_something_else_keeps_apart_goes_on_after_a_driver_that_died(bucket: Any) -> None:
    one, other = driver(bucket, "a"), driver(bucket, "b", Writers.APART)
    append(one, bucket)
    bucket.now += SILENCE_SECONDS + 1
    for _ in range(10):  # its own commits are none of the dead one's
        append(other, bucket)
        bucket.now += LOOK_SECONDS + 1


def test_a_driver_whose_last_look_failed_still_leaves(bucket: Any) -> None:
    first, second = driver(bucket, "a"), driver(bucket, "b")
    append(first, bucket)
    bucket.now += LOOK_SECONDS + 1
    read = register_of(first).read

    def fails() -> Any:
        raise OSError("503")

    register_of(first).read = fails
    with pytest.raises(OSError, match="503"):
        append(first, bucket)
    register_of(first).read = read
    first.leave()
    append(second, bucket)


def test_who_takes_over_is_not_undone_by_another_manager_that_leaves(bucket: Any) -> None:
    one, other, second = driver(bucket, "a"), driver(bucket, "a"), driver(bucket, "b")
    append(one, bucket)
    taking = threading.Thread(target=other.take_over, args=({"reason": "x"},))
    register_of(one).before_put = taking.start  # the one has looked, and is about to write
    one.leave()
    taking.join()
    with pytest.raises(SecondDriver):
        append(second, bucket)


def test_drivers_that_put_conditionally_wait_for_one_that_does_not(bucket: Any) -> None:
    other, shared = driver(bucket, "b"), driver(bucket, "a", Writers.SHARING)
    append(other, bucket)
    with pytest.raises(SecondDriver, match="'b'"):
        append(shared, bucket)
    other.leave()
    append(shared, bucket)
    with pytest.raises(SecondDriver, match="write their commits conditionally"):
        append(other, bucket)


@pytest.mark.parametrize(
    ("conf", "found"),
    [
        ({}, SINGLE_DRIVER),
        ({"spark.delta.logStore.s3a.impl": SEVERAL_DRIVERS}, SEVERAL_DRIVERS),
        ({"delta.logStore.s3a.impl": SEVERAL_DRIVERS}, SEVERAL_DRIVERS),
        ({"spark.delta.logStore.s3.impl": SEVERAL_DRIVERS}, SINGLE_DRIVER),
        ({"spark.delta.logStore.class": SEVERAL_DRIVERS}, SEVERAL_DRIVERS),
        ({"delta.logStore.class": SEVERAL_DRIVERS}, SEVERAL_DRIVERS),
        ({"spark.delta.logStore.class": "a.Vendors"}, "a.Vendors"),
        ({"spark.delta.logStore.s3a.impl": CONDITIONAL_PUT}, CONDITIONAL_PUT),
        ({"spark.delta.logStore.class": CONDITIONAL_PUT}, CONDITIONAL_PUT),
        (
            {"spark.delta.logStore.class": "io.delta.storage.IBMCOSLogStore"},
            "io.delta.storage.IBMCOSLogStore",
        ),
    ],
)
def test_a_log_store_is_found_as_delta_finds_it(conf: Any, found: Any) -> None:
    assert log_store("s3a", conf.get) == found
    kinds = {**dict.fromkeys(KEEP_APART, Writers.APART), CONDITIONAL_PUT: Writers.SHARING}
    s3 = "s3a://lake/messages"
    assert writers_at(s3, conf.get) is kinds.get(found, Writers.ONE)
    assert writers_at(s3, conf.get, several_drivers=True) is Writers.APART
    assert writers_at("hdfs://name/messages", conf.get) is None


@pytest.mark.parametrize(
    ("location", "one"),
    [
        ("s3a://lake/messages", True),
        ("S3://lake/messages", True),
        ("s3n://lake/messages", True),
        ("oss://lake/messages", True),
        ("cosn://lake/messages", True),
        ("oci://lake@name/messages", True),
        ("abfss://c@a.dfs.core.windows.net/messages", False),
        ("wasbs://c@a.blob.core.windows.net/messages", False),
        ("gs://lake/messages", False),
        ("hdfs://name/messages", False),
        ("file:/lake/s3:x", False),
        ("/lake/s3://messages", False),
        ("", False),
    ],
)
def test_what_is_not_known_to_be_atomic_bears_one_driver(location: Any, one: Any) -> None:
    assert writers_at(location, dict[str, str]().get) is (Writers.ONE if one else None)
    assert scheme_of("S3A://x") == "s3a"


# ------------------------------------------------------------------ the lock on a local disk


REMEDIES = {
    errno.EACCES: "Let this user write below",
    errno.EROFS: "Let this user write below",
    errno.ENOSPC: "Make room on the disk of",
    errno.EDQUOT: "Make room on the disk of",
    errno.EIO: "Check the disk of",
}


@pytest.mark.parametrize(
    ("where", "refused"),
    [
        (Path, "mkdir"),
        (Path, "read_text"),
        (Path, "write_text"),
        (filelock.FileLock, "_acquire"),
    ],
)
@pytest.mark.parametrize("code", REMEDIES)
def test_a_store_that_cannot_be_written_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, refused: str, code: int
) -> None:
    """On a full disk it was a bare OSError, after which an append was tried again and in doubt."""

    def refuse(*_given: Any, **_named: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(where, refused, refuse)
    with pytest.raises(StoreError, match=f"{os.strerror(code)}.*{REMEDIES[code]}") as told:
        with TableLock(tmp_path / ".locks" / "journal.lock", lambda: None).held():
            raise AssertionError
    assert repr(str(tmp_path)) in str(told.value)
    monkeypatch.undo()
    with TableLock(tmp_path / ".locks" / "journal.lock", lambda: None).held():
        pass  # the lock was let go


def test_a_commit_is_no_failure_because_its_lock_cannot_be_tidied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: Any, **_named: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    lock = TableLock(tmp_path / ".locks" / "journal.lock", os.getpid)
    monkeypatch.setattr(Path, "unlink", refuse)
    with lock.held():
        pass
    with pytest.raises(LookupError), lock.held():
        raise LookupError  # the statement's own error
    monkeypatch.undo()
    with lock.held():
        pass


@pytest.mark.parametrize("begins", [True, False])
def test_a_lock_does_not_bring_back_the_folder_of_a_store_that_was_removed(
    tmp_path: Path, begins: bool
) -> None:
    store = tmp_path / "store"
    proof = store if begins else store / "journal" / "_delta_log"
    if not begins:
        proof.mkdir(parents=True)
    path = store / ".locks" / "a.lock"
    lock = TableLock(path, lambda: None, proof, begins=begins)
    with lock.held():
        pass
    shutil.rmtree(path.parent)
    with lock.held():  # this folder is only the locks'
        pass
    shutil.rmtree(store)
    with pytest.raises(StoreNotFound, match="put it back"), lock.held():
        raise AssertionError
    if not begins:
        with pytest.raises(StoreNotFound, match="put it back"):
            TableLock(path, lambda: None, proof)
    assert not store.exists()


def test_a_store_that_this_user_must_not_read_is_not_called_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hadoop does, and a new store would be made in its place."""

    def denied(path: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    there: Any = SimpleNamespace(
        _statements=SimpleNamespace(names=TableNames.of("/lake")),
        _log=SimpleNamespace(is_absent=lambda _: True),
    )
    assert not DeltaJournal.exists(there)
    monkeypatch.setattr(delta, "os", SimpleNamespace(stat=denied))
    with pytest.raises(StoreError, match="Let this user read below '/lake'"):
        DeltaJournal.exists(there)


def test_locks_beside_a_catalog_have_a_folder_of_their_own(tmp_path: Path) -> None:
    """A copy of the tables lacks it."""
    lock = TableLock(tmp_path / ".txnqueue-lake" / ".locks" / "a.lock", lambda: None)
    shutil.rmtree(tmp_path / ".txnqueue-lake")
    with lock.held():
        pass


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs on; nobody waits long for its end."""
    monkeypatch.setattr(lock_module, "WAIT_SECONDS", 0.2)
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def left_behind(folder: Path, java: int) -> TableLock:
    """Leave a lock as a driver does that is killed while its Java commits."""
    lock = TableLock(folder / ".locks" / "journal.lock", lambda: java)
    with pytest.raises(ConnectionError), lock.held():
        raise ConnectionError
    return TableLock(folder / ".locks" / "journal.lock", lambda: None)


def set_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the clock an hour ahead, which moves the times at which processes were created."""
    known = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: known(process) + 3_600)


LOCKS = """
import fcntl, os, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print(os.getpid(), flush=True)
sys.stdin.read()
"""
IN_A_CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc")


@pytest.mark.skipif(sys.platform == "win32", reason="nobody shares a disk like this")
@pytest.mark.parametrize("there", [(), IN_A_CONTAINER])
def test_a_java_in_another_container_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...]
) -> None:
    """Its process id is nobody's here, or another process's: two drivers wrote one commit."""
    if there and subprocess.run([*there, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user must not begin a container")
    monkeypatch.setattr(lock_module, "WAIT_SECONDS", 0.2)
    folder = tmp_path / ".locks"
    folder.mkdir()
    file = folder / f"1{locked_file.SUFFIX}"
    with subprocess.Popen(
        [*there, sys.executable, "-c", LOCKS, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as java:
        assert java.stdin is not None and java.stdout is not None
        pid = int(java.stdout.readline())
        owner = {"python": [pid, 1.0, "boot 1"], "jvm": [pid, 2.0, "boot 2"], "locked": file.name}
        (folder / "journal.owner").write_text(json.dumps(owner))
        lock = TableLock(folder / "journal.lock", lambda: None)
        with pytest.raises(StoreBusy, match=f"JVM {pid} of another container is still running"):
            with lock.held():
                raise AssertionError
        java.stdin.close()
        java.wait()
        with lock.held():
            pass
    assert not (folder / "journal.owner").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="nobody shares a disk like this")
def test_the_file_of_a_java_that_did_not_reply_stays_when_its_manager_is_gone(
    tmp_path: Path,
) -> None:
    """It may still commit: in another container only the file tells."""
    folder = tmp_path / ".locks"
    folder.mkdir()
    for name in ("doubtful", "over"):
        (folder / f"{name}{locked_file.SUFFIX}").touch()

    def use(name: str) -> None:
        file = LockedFile(folder / f"{name}{locked_file.SUFFIX}", [])
        lock = TableLock(folder / f"{name}.lock", os.getpid, locked_by_jvm=lambda _: file)
        with contextlib.suppress(ConnectionError, LookupError), lock.held():
            said = json.loads((folder / f"{name}.owner").read_text())
            assert said["locked"] == file.name
            raise ConnectionError if name == "doubtful" else LookupError

    for name in ("doubtful", "over"):
        use(name)
    gc.collect()
    assert [one.stem for one in folder.glob(f"*{locked_file.SUFFIX}")] == ["doubtful"]


def test_a_java_that_must_not_lock_is_asked_seldom_and_leaves_nothing(tmp_path: Path) -> None:
    """As on a disk that has no locks of this kind."""
    asked = list[str]()

    class Opened:
        def getChannel(self) -> Any:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    def opened(path: str, _mode: str) -> Opened:
        asked.append(path)
        Path(path).touch()
        return Opened()

    java = SimpleNamespace(java=SimpleNamespace(io=SimpleNamespace(RandomAccessFile=opened)))
    for _ in range(2 * locked_file.FAILURES_MAX):
        assert locked_file.locked_by(lambda: java, os.getpid(), tmp_path) is None
    assert len(asked) == locked_file.FAILURES_MAX and not list(tmp_path.iterdir())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the clock tells")
def test_a_java_that_still_commits_is_waited_for_though_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java: subprocess.Popen[bytes]
) -> None:
    """It was taken for another process, and two drivers wrote the same commit."""
    lock = left_behind(tmp_path, java.pid)
    set_clock(monkeypatch)
    with pytest.raises(StoreBusy, match="still running"), lock.held():
        pass
    java.kill()
    java.wait()
    with lock.held():
        pass


def test_a_lock_that_an_earlier_version_left_is_understood(
    tmp_path: Path, java: subprocess.Popen[bytes]
) -> None:
    lock = left_behind(tmp_path, java.pid)
    owner = tmp_path / ".locks" / "journal.owner"
    said = json.loads(owner.read_text())
    owner.write_text(json.dumps({name: one[:2] for name, one in said.items()}))
    with pytest.raises(StoreBusy, match="still running"), lock.held():
        pass
    said["jvm"] = [java.pid, said["jvm"][1] - 3_600]  # another process of that number
    owner.write_text(json.dumps(said))
    with lock.held():
        pass


def test_the_own_java_is_not_waited_for_though_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_behind(tmp_path, os.getpid())
    set_clock(monkeypatch)
    with TableLock(tmp_path / ".locks" / "journal.lock", os.getpid).held():
        pass
