"""On which thread and session a statement runs, and what waits for it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("filelock")
pytest.importorskip("delta")

from filelock import FileLock, Timeout

from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.core.state import compaction
from txnqueue.errors import (
    Busy,
    InvalidInput,
    PlatformMissing,
    SchemaMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreNotFound,
)
from txnqueue.storage import transient
from txnqueue.storage.journal import sessions
from txnqueue.storage.journal import statements as statements_module
from txnqueue.storage.journal.exceptions import surely_not_begun
from txnqueue.storage.journal.log import CommitLog, _Begun
from txnqueue.storage.journal.sessions import APPLICATION, in_current_catalog
from txnqueue.storage.journal.statements import THREADS_MAX, TRIES_MAX, Statements, seconds_of
from txnqueue.storage.journal.storage_clock import seconds_ahead, too_far_ahead
from txnqueue.storage.journal.tables import TableNames
from txnqueue.storage.payload import Send
from txnqueue.storage.payload.delta import DeltaPayload
from txnqueue.storage.payload.staging import write
from txnqueue.storage.store import MemoryStore
from txnqueue.storage.tables import UPDATE, TableConflict
from txnqueue.storage.tables.delta import DeltaTables
from txnqueue.storage.tables.statements import is_whole, table_name
from txnqueue.testing import plain_schema

WAIT_SECONDS = 20
RIVALS = (
    "[DELTA_CONCURRENT_WRITE]",
    "[DELTA_METADATA_CHANGED] over Connect, without a class of its own",
    "[DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION]",
    "[DELTA_MISSING_DELTA_TABLE] its folder is there, and no commit",
)


class Session:
    """As much of a Spark session as statements need; it does nothing."""

    def __init__(self) -> None:
        self.settings = {APPLICATION: "a cluster's"}
        unset = self.settings.pop
        self.conf = SimpleNamespace(
            set=self.settings.__setitem__,
            get=self.settings.get,
            unset=lambda key: unset(key, None),
        )
        context = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
        self.sparkContext = SimpleNamespace(_jsc=context, setLocalProperty=lambda *_: None)

    def newSession(self) -> Session:
        return Session()

    def sql(self, statement: Any) -> SimpleNamespace:
        assert statement.startswith(("SET fs.defaultFS", "SELECT reflect"))
        value = str(os.getpid()) if "reflect" in statement else ("", "file:///")
        return SimpleNamespace(collect=lambda: [value if isinstance(value, tuple) else (value,)])


@pytest.fixture
def statements(tmp_path: Path) -> Statements:
    session: Any = Session()
    (tmp_path / "journal" / "_delta_log").mkdir(parents=True)
    return Statements(session, TableNames.of(str(tmp_path)))


class Slow:
    """A statement that returns when it is told to."""

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, *_: Any) -> str:
        self.begun.set()
        assert self.go_on.wait(WAIT_SECONDS)
        return "done"


def in_background(act: Any) -> Any:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def interrupted(act: Any, once: threading.Event) -> None:
    """Do something and press Ctrl-C as soon as something has happened and its result is waited for.

    Before it waits, Python is not done with the thread. A signal's handler sees where it is. So
    would another thread by ``sys._current_frames()``, which locks up if it collects garbage with a
    ``threading.local`` in it.
    """
    main, pressed = threading.main_thread().ident, threading.Event()
    assert main is not None

    def look(_: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not Future.result.__code__:
            frame = frame.f_back
        if frame is not None and once.is_set() and not pressed.is_set():
            pressed.set()
            raise KeyboardInterrupt

    def press() -> None:
        until = time.monotonic() + WAIT_SECONDS
        while not pressed.wait(0.001) and time.monotonic() < until:
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, look)
    pressing = in_background(press)
    try:
        with pytest.raises(KeyboardInterrupt):
            act()
    finally:
        pressed.set()
        pressing.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("what", ["committing", "staging", "reading", "of its own"])
def test_what_takes_long_keeps_nobody_from_appending_or_reading(
    statements: Statements, what: Any
) -> None:
    slow = Slow()
    long = {
        "committing": lambda: statements.committing("archive", slow),
        "staging": lambda: statements.staging("payload-q", statements.session, slow),
        "reading": lambda: statements.run(slow),
        "of its own": lambda: statements.alone(slow),
    }
    thread = in_background(long[what])
    assert slow.begun.wait(WAIT_SECONDS)
    assert statements.append(lambda session: "landed") == "landed"
    assert statements.run(lambda: "read") == "read"
    assert statements.committing("table-t", lambda session: "changed") == "changed"
    assert not slow.go_on.is_set()
    slow.go_on.set()
    thread.join()


def in_a_fork(child: Callable[[], int]) -> int:
    """Do something in a forked process, and return what it returns; 99 if it fails."""
    forked = os.fork()
    if not forked:
        signal.alarm(WAIT_SECONDS)
        code = 99
        try:
            code = child()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="where no process is forked")


@pytest.mark.parametrize("there", [True, False])
def test_a_server_that_may_be_gone_is_asked_once(there: bool) -> None:
    """Spark would try again for ten minutes, and a manager could not be closed."""
    asked: list[object] = []

    def get(*given: object) -> str:
        assert policies == [[]]
        asked.append(given)
        if not there:
            raise ConnectionError("gone")
        return ""

    policies: list[object] = []
    client, conf = SimpleNamespace(set_retry_policies=policies.append), SimpleNamespace(get=get)
    session: Any = SimpleNamespace(client=client, conf=conf)
    assert sessions.answers(session) == there
    assert len(asked) == 1


def test_closed_statements_do_not_answer(
    statements: Statements,
) -> None:
    assert statements.answers()
    statements.close()
    with pytest.raises(PlatformMissing, match="closed"):
        statements.answers()


def test_a_close_waits_for_statements_in_progress_and_not_for_their_calls(
    statements: Statements,
) -> None:
    begun, closing, told = threading.Event(), threading.Event(), list[str]()

    def statement() -> str:
        begun.set()
        assert closing.wait(20)
        return "read"

    def call() -> None:
        told.append(statements.run(statement))
        with pytest.raises(PlatformMissing, match="closed"):
            statements.run(never)
        told.append("refused")

    calling = threading.Thread(target=call)
    calling.start()
    assert begun.wait(20)
    closer = threading.Thread(target=statements.close)
    closer.start()
    while not statements._closed:
        time.sleep(0.001)
    closer.join(0.2)
    assert closer.is_alive()
    closing.set()
    calling.join(20)
    closer.join(20)
    assert told == ["read", "refused"] and not closer.is_alive()


@forks
def test_a_forked_process_is_refused_and_leaves_its_parents_things_alone(
    statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has none of the threads, whose answers it would wait for."""
    left: list[Any] = []
    ways: list[Any] = [statements.run, statements.append]
    register = SimpleNamespace(leave=lambda: left.append("left"))
    statements._locks._admission.append(register)  # type: ignore[arg-type]
    assert statements.run(lambda: "read") == "read"
    monkeypatch.setattr(statements_module, "close_session", left.append)

    def child() -> int:
        for way in ways:
            with pytest.raises(PlatformMissing, match="'spawn'"):
                way(lambda *_: None)
        with pytest.raises(PlatformMissing, match="'spawn'"):
            statements.result_of_append(Future(), lambda: None)
        with pytest.raises(PlatformMissing, match="'spawn'"):
            statements.answers()
        statements.close()
        statements._locks.leave()
        return len(left)

    assert in_a_fork(child) == 0
    statements.close()
    assert left[0] == "left" and len(left) > 1


@forks
def test_a_forked_process_does_not_wait_for_locks_of_threads_that_it_lacks() -> None:
    """Such as a stream's, which reads: nobody releases them there, and it waited for ever."""
    manager = QueueManager(None, "memory", store=MemoryStore())
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    client, held, done = client_of(manager), threading.Event(), threading.Event()

    def hold() -> None:
        with client.lock, vars(client.cache)["_shards"]._lock:
            held.set()
            done.wait(WAIT_SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(WAIT_SECONDS)
    found = in_a_fork(lambda: queue.depth() + len(manager.recover().prepared))
    done.set()
    thread.join()
    assert found == 1


@forks
def test_a_forked_process_does_not_find_what_a_thread_had_half_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its lock is free there, and the thread that would have read on does not exist."""
    manager = QueueManager(None, "memory", store=MemoryStore())
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    queue.send([{"n": 1}])
    assert queue.depth() == 1
    QueueManager(None, "memory", store=client_of(manager).store).queue("orders").send([{"n": 2}])
    half, done, advance = threading.Event(), threading.Event(), compaction.advance

    def slowly(fold: Any, entries: Any, version: int) -> None:
        if threading.current_thread() is not thread:
            advance(fold, entries, version)
            return
        advance(fold, entries, fold.version)
        half.set()
        done.wait(WAIT_SECONDS)
        advance(fold, (), version)

    monkeypatch.setattr(compaction, "advance", slowly)
    thread = threading.Thread(target=queue.depth)
    thread.start()
    assert half.wait(WAIT_SECONDS)
    found = in_a_fork(queue.depth)
    done.set()
    thread.join()
    assert found == queue.depth() == 2


@forks
def test_a_forked_process_has_no_messages_in_memory() -> None:
    """It received those of its parent, too, and what it sent was lost at its end."""
    manager = QueueManager(None, "memory", store=MemoryStore())
    queue = manager.create_queue("fast", "n long", durable=False)
    queue.send([{"n": 1}])
    kept = transient.of_root("/forked")

    def child() -> int:
        for way in (queue.receive, queue.depth, lambda: queue.send([{"n": 2}])):
            with pytest.raises(PlatformMissing, match="'spawn'"):
                way()
        return int(transient.of_root("/forked") is kept)

    assert in_a_fork(child) == 0
    assert [row["n"] for row in queue.receive().messages()] == [1]


def test_appends_have_a_session_and_a_thread_for_themselves(statements: Statements) -> None:
    def where(*sessions: Any) -> Any:
        return (threading.current_thread().name, *sessions)

    appends = {statements.append(where) for _ in range(3)}
    assert len(appends) == 1
    thread, session = appends.pop()
    others = {statements.alone(where), statements.committing("archive", where)}
    assert session not in {found for _, found in others} | {statements.session}
    assert thread not in {name for name, _ in others} | {statements.run(where)[0]}


def test_of_two_statements_at_once_each_has_a_session_of_its_own(statements: Statements) -> None:
    both, seen = threading.Barrier(2), []

    def together(session: Any) -> None:
        both.wait(WAIT_SECONDS)
        seen.append(session)

    threads = [in_background(lambda t=t: statements.committing(t, together)) for t in "ab"]
    for thread in threads:
        thread.join()
    assert len({id(session) for session in seen}) == 2


def test_a_table_is_changed_by_one_statement_at_a_time(
    statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements._locks, "of", lambda table: SimpleNamespace(held=Nothing))
    slow, order = Slow(), []

    def one(session: Any) -> None:
        slow()
        order.append("first")

    first = in_background(lambda: statements.committing("a", one))
    assert slow.begun.wait(WAIT_SECONDS)
    second = in_background(lambda: statements.committing("a", lambda s: order.append("second")))
    time.sleep(0.05)
    assert order == []
    slow.go_on.set()
    first.join()
    second.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("said", RIVALS)
@pytest.mark.parametrize("what", ["statement", "log", "payload"])
def test_a_table_that_another_driver_creates_at_the_same_time_is_there(
    statements: Statements, monkeypatch: pytest.MonkeyPatch, what: str, said: str
) -> None:
    """The slower one failed with an error of the library's own inside, or with one of Spark's."""
    tried: list[Any] = []

    def create(_session: Any) -> str:
        tried.append(1)
        if len(tried) == 1:
            raise RuntimeError(said)
        return "there"

    def by_sql(session: Any, statement: str) -> Any:
        is_asked = statement.startswith("DESCRIBE")
        return SimpleNamespace(collect=lambda: None if is_asked else create(session))

    monkeypatch.setattr(statements._locks, "of", lambda table: SimpleNamespace(held=Nothing))
    monkeypatch.setattr(statements_module, "TRIES_WAIT_SECONDS", 0)
    monkeypatch.setattr(CommitLog, "_is_written", lambda *_: False)
    monkeypatch.setattr(Session, "sql", by_sql)
    ways: dict[str, Callable[[], object]] = {
        "statement": lambda: statements.ensuring("a", create),
        "log": lambda: CommitLog(statements, "archive").created("archive", create),
        "payload": lambda: DeltaPayload(statements).create("q-1", plain_schema("n long")),
    }
    ways[what]()
    assert len(tried) == 2


def test_only_what_others_may_be_at_is_tried_again_and_not_for_ever(
    statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements._locks, "of", lambda table: SimpleNamespace(held=Nothing))
    monkeypatch.setattr(statements_module, "TRIES_WAIT_SECONDS", 0)
    tried: list[Any] = []

    def create(error: Exception) -> Any:
        tried.append(1)
        raise error

    for error in (PermissionError("not here"), StoreCorrupt(RIVALS[1])):
        with pytest.raises(type(error), match=re.escape(str(error))):
            statements.ensuring("a", lambda _, error=error: create(error))  # type: ignore[misc]
    assert len(tried) == 2
    for said in RIVALS:
        tried.clear()
        with pytest.raises(Busy, match="'a'") as told:
            statements.ensuring("a", lambda _, said=said: create(RuntimeError(said)))  # type: ignore[misc]
        assert len(tried) == told.value.tries == TRIES_MAX


def test_what_goes_on_after_an_error_is_not_taken_for_the_end(statements: Statements) -> None:
    """An iterator that has raised an error has no next element: it was read as the end."""

    def rows() -> Iterator[int]:
        yield 1
        raise RuntimeError("[FAILED_READ_FILE.FILE_NOT_EXIST] part-0")

    piece = rows()
    assert statements.run(lambda: list(islice(piece, 1)), repeatable=False) == [1]
    with pytest.raises(StoreBusy, match="ask again"):
        statements.run(lambda: list(islice(piece, 1)), repeatable=False)


@pytest.mark.parametrize(
    "said",
    ["[FIELD_ALREADY_EXISTS]", "[DELTA_DUPLICATE_COLUMNS_FOUND]", "[DELTA_METADATA_CHANGED]"],
)
@pytest.mark.parametrize("added", [2, 1, 0])
def test_columns_that_another_driver_adds_meanwhile_are_there(
    statements: Statements, monkeypatch: pytest.MonkeyPatch, said: str, added: int
) -> None:
    """Of two columns it has added both, one, or none; then the error is about these columns."""
    monkeypatch.setattr(statements._locks, "of", lambda table: SimpleNamespace(held=Nothing))
    monkeypatch.setattr(statements_module, "TRIES_WAIT_SECONDS", 0)
    wanted, there, tried = plain_schema("a long, b long").fields, list[Any](), list[str]()

    def by_sql(_session: Any, statement: str) -> Any:
        if "ADD COLUMNS" not in statement:
            return SimpleNamespace(schema=SimpleNamespace(fields=[*there]))
        tried.append(statement)
        if len(tried) > 1 and added:
            there[:] = wanted
            return SimpleNamespace(collect=lambda: None)
        there.extend(wanted[:added])
        raise RuntimeError(said)

    monkeypatch.setattr(Session, "sql", by_sql)
    columns = plain_schema("a long, b long")
    add = partial(DeltaPayload(statements).add_columns, "q-1", columns)
    if added:
        add()
        assert there == wanted and len(tried) == 3 - added
    else:
        refused = {"[FIELD": RuntimeError, "[DELTA_D": SchemaMismatch, "[DELTA_M": Busy}
        with pytest.raises(next(kind for sign, kind in refused.items() if said.startswith(sign))):
            add()
        assert len(tried) == (TRIES_MAX if "METADATA" in said else 1)


def test_only_a_table_that_is_changed_conflicts_with_its_alteration(
    statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark says the same of a table that a user's DataFrame reads, which no repetition helps."""
    said = "[DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS] redefine your DataFrame"

    def fail(*_: Any) -> Any:
        raise RuntimeError(said)

    monkeypatch.setattr(statements._locks, "of", lambda table: SimpleNamespace(held=Nothing))
    with pytest.raises(RuntimeError, match="redefine"):
        statements.staging("payload-q-1", statements.session, fail)
    tables: Any = DeltaTables(statements, DeltaPayload(statements))
    monkeypatch.setattr(tables, "_is_large", lambda _: False)
    monkeypatch.setattr(Session, "sql", fail)
    monkeypatch.setattr("txnqueue.storage.tables.delta.nothing", str)
    stamp = SimpleNamespace(application_id="a", number=1, note={})
    with pytest.raises(TableConflict, match="redefine"):
        tables.apply(SimpleNamespace(table_id="t"), stamp, empty=True)


@pytest.mark.parametrize("call", ["describe", "history", "check"])
def test_a_table_of_the_users_that_is_damaged_is_named_and_the_store_is_not(
    statements: Statements, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """It was StoreCorrupt, with the advice to stop writing to the store."""
    damaged = RuntimeError("[DELTA_TRUNCATED_TRANSACTION_LOG] file:/lake/totals: no version 7")
    tables: Any = DeltaTables(statements, DeltaPayload(statements))
    monkeypatch.setattr(tables, "_is_large", lambda _: False)
    monkeypatch.setattr(Session, "sql", fails_with(damaged))
    monkeypatch.setattr("txnqueue.storage.tables.delta.merge", lambda *_: "MERGE")
    change: Any = SimpleNamespace(operation=UPDATE, source=None, update={}, insert={}, keys=())
    info: Any = SimpleNamespace(
        name="/lake/totals", append_only=False, schema=plain_schema("n int")
    )
    calls: dict[str, Callable[[], object]] = {
        "describe": lambda: tables.describe("/lake/totals"),
        "history": lambda: tables.history("/lake/totals", 3),
        "check": lambda: tables.check(info, change, "t-1"),
    }
    with pytest.raises(InvalidInput, match=r"'/lake/totals' is damaged: .DELTA_TR") as caught:
        calls[call]()
    assert caught.value.__cause__ is damaged and caught.value.table == "/lake/totals"


def fails_with(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def test_what_another_driver_has_just_begun_is_not_taken_for_left() -> None:
    seen = _Begun()
    assert not seen.is_left({"_staged_commits": 1}, 0.05)
    assert not seen.is_left({"_staged_commits": 1, ".0.json.tmp": 2}, 0.05)
    time.sleep(0.06)
    assert not seen.is_left({"_staged_commits": 1}, 0.05)  # it goes on
    time.sleep(0.06)
    assert seen.is_left({"_staged_commits": 1}, 0.05)
    assert _Begun().is_left({}, 0.0)


class Nothing:
    """No lock."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        return None


@pytest.mark.parametrize("gone", ["", "journal", "payload"])
def test_nothing_is_staged_into_a_store_whose_tables_were_removed(
    statements: Statements, tmp_path: Path, gone: str
) -> None:
    """Delta made a folder for the rows, and a table in it, at the place of the old one."""
    columns = plain_schema("n long")
    send = Send("q-1", 0, "s", columns, 1, None)
    log = tmp_path / "payload" / "q-1" / "_delta_log"
    log.mkdir(parents=True)
    (log / f"{0:020}.json").touch()
    written: list[str] = []
    frame: Any = SimpleNamespace(sparkSession=statements.session)
    writer = SimpleNamespace(save=written.append)
    frame.write = SimpleNamespace(
        format=lambda _: SimpleNamespace(mode=lambda _: SimpleNamespace(options=lambda **_: writer))
    )
    write(statements, send, frame, {})
    assert written == [str(log.parent)]
    shutil.rmtree(tmp_path / gone)
    told = StoreCorrupt if gone == "payload" else StoreNotFound
    with pytest.raises(told, match="put it back"):
        write(statements, send, frame, {})
    assert len(written) == 1
    assert not (log if gone == "payload" else tmp_path / gone).exists()


@pytest.mark.parametrize("after", ["an append", "a reading", "another commit", "a staging"])
def test_an_interrupted_append_ends_before_anything_else_begins(
    statements: Statements, tmp_path: Path, after: Any
) -> None:
    slow, order = Slow(), []

    def append(session: Any) -> None:
        slow()
        order.append("append")

    interrupted(lambda: statements.append(append), slow.begun)
    follow = {
        "an append": lambda: statements.append(lambda session: order.append("after")),
        "a reading": lambda: statements.run(lambda: order.append("after")),
        "another commit": lambda: statements.committing("x", lambda s: order.append("after")),
        "a staging": lambda: statements.staging(
            "p", statements.session, lambda: order.append("after")
        ),
    }
    thread = in_background(follow[after])
    other = FileLock(tmp_path / ".locks" / "journal.lock")
    with pytest.raises(Timeout):
        other.acquire(timeout=0.05)  # another process gets nowhere
    assert order == []
    slow.go_on.set()
    thread.join()
    assert order == ["append", "after"]
    other.acquire(timeout=WAIT_SECONDS)
    other.release()


def test_a_lock_is_held_until_an_interrupted_statement_has_returned(
    statements: Statements, tmp_path: Path
) -> None:
    slow = Slow()
    interrupted(lambda: statements.committing("archive", slow), slow.begun)
    other = FileLock(tmp_path / ".locks" / "archive.lock")
    with pytest.raises(Timeout):
        other.acquire(timeout=0.05)
    slow.go_on.set()
    other.acquire(timeout=WAIT_SECONDS)
    other.release()


def test_what_numbers_writes_is_unset_in_every_session_of_ours(statements: Statements) -> None:
    sessions: list[Any] = [statements.session, statements.appending, statements.compiling]
    sessions += [statements.alone(lambda session: session)]
    assert all(APPLICATION not in session.settings for session in sessions)


def test_the_librarys_sessions_begin_in_sparks_own_catalog(statements: Statements) -> None:
    """A cluster's default may be one of another format, in which no path names a table."""
    sessions: list[Any] = [statements.session, statements.appending, statements.compiling]
    sessions += [statements.alone(lambda session: session, compiled=one) for one in (False, True)]
    assert {one.settings["spark.sql.defaultCatalog"] for one in sessions} == {"spark_catalog"}
    settings: dict[str, str] = vars(statements.user)["settings"]
    assert "spark.sql.defaultCatalog" not in settings


@pytest.mark.parametrize(
    ("name", "told", "whole"),
    [
        ("totals", "spark_catalog.sales.totals", "spark_catalog.sales.totals"),
        ("totals", "sales.totals", "prod.sales.totals"),
        ("sales.totals", "sales.totals", "prod.sales.totals"),
        ("dev.sales.totals", "sales.totals", "dev.sales.totals"),
        ("dev.sales.Totals", "dev.sales.totals", "dev.sales.totals"),
        ("/lake/totals", "sales.totals", "/lake/totals"),
    ],
)
def test_a_short_name_is_completed_as_the_users_session_means_it(
    statements: Statements, monkeypatch: pytest.MonkeyPatch, name: str, told: str, whole: str
) -> None:
    """It is looked for in other sessions, and later, by others, whose current catalog differs."""
    row = {"id": "t", "name": told, "sizeInBytes": 1, "properties": {}, "version": 3}
    row |= {"tableFeatures": [], "partitionColumns": []}
    asked: list[tuple[bool, str]] = []

    def by_sql(session: Any, statement: str) -> Any:
        if statement.startswith("SET"):
            return SimpleNamespace(collect=lambda: [("", "file:///")])
        asked.append((session is statements.user, statement))
        return SimpleNamespace(collect=lambda: [row])

    monkeypatch.setattr(Session, "sql", by_sql)
    table: Any = lambda *_: SimpleNamespace(schema=plain_schema("n int"))  # noqa: E731
    monkeypatch.setattr(Session, "table", table, raising=False)
    catalog = SimpleNamespace(currentCatalog=lambda: "prod")
    monkeypatch.setattr(statements.user, "catalog", catalog, raising=False)
    info = DeltaTables(statements, DeltaPayload(statements)).describe(name)
    assert info is not None and info.name == whole
    mine = {said.partition(" LIMIT")[0].split()[-1] for of_user, said in asked if not of_user}
    assert mine == {table_name(name if is_whole(name) else whole)}


@pytest.mark.parametrize(
    "said",
    [
        ("file:///", False, "{folder}/link", "{folder}/real"),
        ("file:///", False, "file:{folder}/link/", "{folder}/real"),
        ("hdfs://lake", False, "{folder}/link/", "{folder}/link"),
        ("hdfs://lake", False, "file:{folder}/link", "file:{folder}/link"),
        ("file:///", True, "{folder}/link", "{folder}/link"),
        ("file:///", True, "s3a://lake/t/", "s3a://lake/t"),
        ("hdfs://lake", False, "./link", None),
        ("file:///", True, "~/link", None),
    ],
)
def test_a_path_is_looked_at_here_only_where_spark_has_the_same_disk(
    statements: Statements, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: Any
) -> None:
    """A link of this machine's was followed in a path of another file system, or of a server."""
    default, connect, name, told = said
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    asked: list[str] = []

    def by_sql(_: Any, statement: str) -> Any:
        if statement.startswith("SET"):
            return SimpleNamespace(collect=lambda: [("", default)])
        asked.append(statement)
        raise AnalysisException("[PATH_NOT_EXIST] x")

    from pyspark.errors import AnalysisException

    monkeypatch.setattr(Session, "sql", by_sql)
    monkeypatch.setattr("txnqueue.storage.tables.delta.is_connect", lambda _: connect)
    tables, given = DeltaTables(statements, DeltaPayload(statements)), name.format(folder=tmp_path)
    if told is None:
        with pytest.raises(InvalidInput, match="from the root on"):
            tables.describe(given)
    else:
        assert tables.describe(given) is None
        assert asked == [f"DESCRIBE DETAIL delta.`{told.format(folder=tmp_path)}`"]


class Vacuumed:
    """A table whose vacuums are written down, and the clocks of Java and of its storage."""

    def __init__(self, ahead_ms: int, refusal: Exception | None) -> None:
        self.ahead_ms, self.refusal = ahead_ms, refusal
        self.done, self.written, self.left = list[str](), list[str](), set[str]()
        context = SimpleNamespace(newHadoopConf=dict)
        self.state = SimpleNamespace(sessionState=lambda: context)
        clock = SimpleNamespace(currentTimeMillis=lambda: 1_000_000_000 + ahead_ms)
        hadoop = SimpleNamespace(apache=SimpleNamespace(hadoop=self))
        self.jvm = SimpleNamespace(
            org=hadoop, java=SimpleNamespace(lang=SimpleNamespace(System=clock))
        )
        self.fs = SimpleNamespace(Path=self.path)

    def path(self, name: str) -> Any:
        def create(_: Any) -> Any:
            self.written.append(name)
            self.left.add(name)
            return SimpleNamespace(close=lambda: None)

        status = SimpleNamespace(getModificationTime=lambda: 1_000_000_000)
        files = SimpleNamespace(
            create=create,
            getFileStatus=lambda _: status,
            delete=lambda *_: self.left.discard(name),
        )
        return SimpleNamespace(getFileSystem=lambda _: files)

    def sql(self, statement: str) -> Any:
        if statement.startswith("VACUUM"):
            self.done.append(statement.partition(" t")[2].strip() or "lists")
            if self.refusal is not None and statement.endswith("LITE"):
                raise self.refusal
        rows = [{"location": "s3a://lake/t", "key": "a", "value": "b"}]
        found = SimpleNamespace(collect=lambda: rows)
        found.select = lambda _: found
        return found


LITE_REFUSED = RuntimeError("[DELTA_CANNOT_VACUUM_LITE] VACUUM LITE cannot delete all files")


@pytest.mark.parametrize(
    ("full", "table", "done"),
    [
        (False, Vacuumed(3_600_000, None), ["LITE"]),
        (False, Vacuumed(599_000, LITE_REFUSED), ["LITE", "lists"]),
        (False, Vacuumed(601_000, LITE_REFUSED), ["LITE", "refused"]),
        (True, Vacuumed(-3_600_000, None), ["lists"]),
        (True, Vacuumed(601_000, None), ["refused"]),
    ],
)
def test_a_folder_is_not_listed_for_old_files_by_a_clock_that_is_ahead(
    statements: Statements,
    monkeypatch: pytest.MonkeyPatch,
    full: bool,
    table: Vacuumed,
    done: list[str],
) -> None:
    """What an append had just written was old by that clock, and was deleted before its commit."""
    monkeypatch.setattr(statements._locks, "of", lambda table: SimpleNamespace(held=Nothing))
    monkeypatch.setattr(Session, "sql", table.sql)
    monkeypatch.setattr(Session, "_jvm", table.jvm, raising=False)
    monkeypatch.setattr(Session, "_jsparkSession", table.state, raising=False)
    reason = statements.vacuum("table-t", "t", 0.0, full=full)
    if reason is not None:
        assert "601 s ahead" in reason and "set the clock right" in reason
        table.done.append("refused")
    assert table.done == done and not table.left
    assert all(name.startswith("s3a://lake/t/txnqueue-clock-") for name in table.written)
    assert len(table.written) == (done != ["LITE"])


@pytest.mark.parametrize("refusal", [ConnectionError("away"), RuntimeError("[DELTA_TRUNCATED] x")])
def test_a_vacuum_by_the_log_that_fails_otherwise_lists_nothing(
    statements: Statements, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    """It may still be at work; and listing a folder takes long."""
    table = Vacuumed(0, refusal)
    monkeypatch.setattr(statements._locks, "of", lambda table: SimpleNamespace(held=Nothing))
    monkeypatch.setattr(Session, "sql", table.sql)
    with pytest.raises(type(refusal), match=re.escape(str(refusal))):
        statements.vacuum("table-t", "t", 0.0, full=False)
    assert table.done == ["LITE"]


def test_where_no_file_can_be_written_clocks_are_not_compared(
    statements: Statements, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = statements.session
    assert seconds_ahead(session, "/lake/t") is None
    monkeypatch.setattr("txnqueue.storage.journal.storage_clock.is_connect", lambda _: True)
    assert seconds_ahead(session, "/lake/t") is None
    assert too_far_ahead("t", None) is None


def test_commits_that_wait_for_a_table_keep_nobody_from_reading(statements: Statements) -> None:
    """Nor do they take a session while they wait."""
    slow, made = Slow(), []
    new = statements.user.newSession
    statements.user.newSession = lambda: made.append(1) or new()
    first = in_background(lambda: statements.committing("a", slow))
    assert slow.begun.wait(WAIT_SECONDS)
    waiting = [
        in_background(lambda: statements.committing("a", lambda session: None))
        for _ in range(THREADS_MAX)
    ]
    assert statements.run(lambda: "read") == "read"
    assert statements.append(lambda session: "landed") == "landed"
    assert len(made) == 2  # the slow one's, and that of appends
    slow.go_on.set()
    for thread in (first, *waiting):
        thread.join()


@pytest.mark.parametrize("what", ["append", "run", "alone", "committing", "staging"])
def test_a_call_that_a_close_overtakes_is_told_so(
    statements: Statements, monkeypatch: pytest.MonkeyPatch, what: Any
) -> None:
    look = statements.check_running
    looks_left = [1 if what == "append" else 2]  # the last one is right before the threads

    def check_running() -> None:
        look()
        looks_left[0] -= 1
        if looks_left[0] == 0:
            statements.close()

    monkeypatch.setattr(statements, "check_running", check_running)
    calls = {
        "append": lambda: statements.append(never),
        "run": lambda: statements.run(never),
        "alone": lambda: statements.alone(never),
        "committing": lambda: statements.committing("a", never),
        "staging": lambda: statements.staging("a", statements.session, never),
    }
    with pytest.raises(PlatformMissing, match="closed"):
        calls[what]()


def never(*_: Any) -> None:
    pytest.fail("it was asked")


def test_a_session_is_made_once_whichever_thread_wants_it_first(statements: Statements) -> None:
    made, new, both = [], statements.user.newSession, threading.Barrier(2)

    def slowly() -> Any:
        made.append(1)
        time.sleep(0.05)
        return new()

    statements.user.newSession = slowly
    found = []

    def want() -> None:
        both.wait(WAIT_SECONDS)
        found.append(statements.compiling)

    for thread in [in_background(want) for _ in range(2)]:
        thread.join()
    assert len(made) == 1 and found[0] is found[1]


def test_without_delta_there_is_no_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = Session()
    monkeypatch.setitem(sys.modules, "delta.exceptions", None)
    with pytest.raises(PlatformMissing) as caught:
        Statements(session, TableNames.of(str(tmp_path)))
    assert caught.value.missing == "delta-spark"


class Remote:
    """As much of a Spark Connect session as a look at its server's disk needs."""

    def __init__(self, disk: Any) -> None:
        self.conf = SimpleNamespace(set=lambda *_: None, unset=lambda _: None)
        self.is_stopped, self.client = False, SimpleNamespace(is_closed=True)
        self.read = SimpleNamespace(text=self.text)
        self.disk = disk

    def cloneSession(self) -> Remote:
        return Remote(self.disk)

    def sql(self, statement: Any) -> SimpleNamespace:
        return SimpleNamespace(collect=lambda: [("", "file:///")])

    def text(self, path: Any) -> SimpleNamespace:
        lines = self.disk(path.removeprefix("file:"))
        return SimpleNamespace(collect=lambda: [(line,) for line in lines])


def missing(path: Any) -> None:
    from pyspark.errors import AnalysisException

    raise AnalysisException(f"[PATH_NOT_FOUND] Path does not exist: {path}")


@pytest.mark.parametrize("disk", [missing, lambda path: [], lambda path: ["another's"]])
def test_a_disk_that_the_connect_server_does_not_share_is_no_place_for_a_store(
    tmp_path: Path, disk: Any
) -> None:
    remote: Any = Remote(disk)
    statements = Statements(remote, TableNames.of(str(tmp_path / "store")))
    with pytest.raises(InvalidInput, match="does not share"):
        statements.append(never)
    assert list(tmp_path.iterdir()) == []  # nothing was left behind, nor locked


@pytest.mark.parametrize("name", ["lake", "lake [new] {a,b} *?"])
def test_a_disk_that_the_connect_server_shares_is_one(tmp_path: Path, name: str) -> None:
    """Spark takes brackets and the like for wildcards, unless they are escaped."""

    def read(path: str) -> list[str]:
        plain = re.sub(r"\\(.)", "", path)
        if set(plain) & set("[]{}*?"):
            missing(path)
        return Path(re.sub(r"\\(.)", r"\1", path)).read_text().splitlines()

    (tmp_path / name).mkdir()
    shared: Any = Remote(read)
    statements = Statements(shared, TableNames.of(str(tmp_path / name / "store")))
    assert statements._locks.folder() == tmp_path / name / "store"
    assert list((tmp_path / name).iterdir()) == []


def test_a_server_that_cannot_read_now_is_not_said_to_have_another_disk(tmp_path: Path) -> None:
    """Whoever moved the store for that would not have been helped."""

    def away(_path: str) -> list[str]:
        raise ConnectionError("unavailable")

    remote: Any = Remote(away)
    statements = Statements(remote, TableNames.of(str(tmp_path / "store")))
    with pytest.raises(ConnectionError, match="unavailable"):
        statements.append(never)
    assert list(tmp_path.iterdir()) == []


def test_only_what_surely_did_not_begin_is_refused() -> None:
    from pyspark.errors import AnalysisException, ParseException

    def fails(error: Any) -> Any:
        def analyse() -> None:
            raise error

        return analyse

    unreadable = AnalysisException("[UNRESOLVED_COLUMN] x")
    assert surely_not_begun(ParseException("near ')'"), never)
    assert surely_not_begun(unreadable, fails(unreadable))
    assert not surely_not_begun(unreadable, lambda: None)  # it came up later
    assert not surely_not_begun(unreadable, fails(ConnectionError()))
    assert not surely_not_begun(ConnectionError(), never)


def test_of_a_stopped_session_nothing_is_asked(statements: Statements) -> None:
    statements.user.sparkContext._jsc = None
    for act in (statements.append, statements.alone, statements.run):
        with pytest.raises(PlatformMissing, match="stopped"):
            act(lambda *_: pytest.fail("it was asked"))


@pytest.mark.parametrize(
    ("root", "current", "meant"),
    [
        ("sales", "spark_catalog", "sales"),
        ("sales", "prod", "prod.sales"),
        ("Spark_Catalog.sales", "prod", "sales"),
        ("spark_catalog.a.b", "prod", "spark_catalog.a.b"),
        ("dev.sales", "prod", "dev.sales"),
        ("./sales", "prod", "./sales"),
        (".", "prod", "."),
        ("spark_catalog.", "prod", "spark_catalog."),
    ],
)
def test_a_schema_without_a_catalog_is_in_the_current_one(
    root: str, current: str, meant: str
) -> None:
    spark: Any = SimpleNamespace(catalog=SimpleNamespace(currentCatalog=lambda: current))
    assert in_current_catalog(spark, root) == meant


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [
        ("interval 7 days", 604_800),
        ("1 week 1 day", 691_200),
        ("INTERVAL 14 days  12 hours", 1_252_800),
        ("interval 90 minutes 30 second", 5_430),
        ("interval 1 milliseconds", 0.001),
        ("interval 1 month", None),
        ("interval 7 daysish", None),
        ("interval -1 days", None),
        ("for ever", None),
    ],
)
def test_an_interval_of_delta_is_read(interval: str, seconds: float | None) -> None:
    """One that is not would keep what is deleted on the disk for ever."""
    assert seconds_of(interval) == seconds
