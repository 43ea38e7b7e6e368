"""Sessions of Spark Connect, but for what is done by a server in another process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.delta.connect_server import CORE, modules
from txnqueue.errors import PlatformMissing, StoreBusy
from txnqueue.storage.journal import statements as statements_module
from txnqueue.storage.journal.admission import TableRegister
from txnqueue.storage.journal.exceptions import is_session_ended, is_unanswered
from txnqueue.storage.journal.lock import NoLock, TableLock
from txnqueue.storage.journal.sessions import close_session, is_connect
from txnqueue.storage.journal.statements import Statements
from txnqueue.storage.journal.tables import TableNames

grpc: Any = pytest.importorskip("grpc")
CLOSES_SECONDS = 10


def test_a_session_of_a_server_that_is_gone_is_closed_at_once() -> None:
    from pyspark.sql.connect.client import SparkConnectClient

    client = SparkConnectClient("sc://127.0.0.1:9")
    session: Any = SimpleNamespace(client=client)
    assert is_connect(session)
    began = time.monotonic()
    close_session(session)
    assert time.monotonic() - began < CLOSES_SECONDS
    assert client.is_closed


CLOSED = "[INVALID_HANDLE.SESSION_CLOSED] The handle 1 is invalid. Session was closed."


def _ended() -> Exception:
    from pyspark.errors.exceptions.connect import UnknownException

    return UnknownException(CLOSED)


class Remote:
    """As much of a session of Connect as statements need: its server may have ended it."""

    def __init__(self, asked: list[Remote]) -> None:
        self.ended, self.is_stopped, self.asked = False, False, asked
        self.client = SimpleNamespace(is_closed=True, set_retry_policies=lambda _: None)
        self.conf = SimpleNamespace(get=self.get, set=lambda *_: None, unset=lambda _: None)

    def get(self, key: str, default: Any) -> Any:
        self.asked.append(self)
        self.check()
        return default

    def check(self) -> None:
        if self.ended:
            raise _ended()

    def cloneSession(self) -> Remote:
        if self.ended:  # pyspark passes this one on as it comes
            raise grpc.RpcError(CLOSED)
        return Remote(self.asked)


class Place:
    """Statements on sessions of Connect, and a clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.asked, self.monkeypatch = 1e9, list[Any](), monkeypatch
        monkeypatch.setattr(statements_module, "time", SimpleNamespace(time=lambda: self.now))
        self.user = Remote(self.asked)
        self.statements = Statements(cast("Any", self.user), TableNames.of(str(folder)))

    def later(self) -> None:
        self.now += statements_module.ASKED_SECONDS


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def test_a_server_is_asked_now_and_then_which_keeps_the_users_session_too(place: Place) -> None:
    mine = place.statements.session
    for _ in range(3):
        assert place.statements.session is place.statements.session is mine
        assert place.asked == []
        place.later()
        assert place.statements.session is mine
        assert place.asked == [mine, place.user]
        place.asked.clear()
    place.now -= 1e6  # the clock was set
    assert place.statements.session is mine and place.asked == [mine, place.user]


def test_a_session_that_the_server_has_ended_is_replaced_once(place: Place) -> None:
    for name in ("session", "appending", "compiling"):
        mine = getattr(place.statements, name)
        mine.ended = True
        place.later()
        with ThreadPoolExecutor(4) as threads:
            found = set(threads.map(partial(getattr, place.statements), [name] * 4))
        assert found == {getattr(place.statements, name)} != {mine}


def test_what_read_on_a_session_that_had_ended_reads_again(place: Place) -> None:
    mine: Any = place.statements.session
    mine.ended = True
    place.statements.run(lambda: cast("Any", place.statements.session).check())
    assert place.statements.session is not mine
    with pytest.raises(StoreBusy, match="ended the session while"):
        place.statements.run(mine.check, repeatable=False)


def test_a_session_that_ended_or_did_not_answer_is_lent_to_nobody_again(place: Place) -> None:
    from pyspark.errors.exceptions.connect import AnalysisException, SparkConnectGrpcException

    place.statements._locks._locks["t"] = NoLock()
    lent = list[Any]()

    def fails(error: Exception) -> Callable[[Any], None]:
        def statement(session: Any) -> None:
            lent.append(session)
            raise error

        return statement

    for error in (_ended(), SparkConnectGrpcException("unavailable"), AnalysisException("no")):
        with pytest.raises(type(error)):
            place.statements.committing("t", fails(error))
    with pytest.raises(ValueError, match="x"):
        place.statements.committing("t", fails(ValueError("x")))
    first, second, third, fourth = lent
    assert len({first, second, third}) == 3 and third is fourth
    fourth.ended = True
    place.later()
    place.statements.committing("t", lent.append)
    assert lent[-1] not in lent[:-1]


def test_an_append_without_an_answer_leaves_its_session_without_waiting(place: Place) -> None:
    """Its late commit was told as that of the next append, by the setting that both share."""
    from pyspark.errors.exceptions.connect import AnalysisException, SparkConnectGrpcException

    place.statements._locks._locks["journal"] = NoLock()
    lent, released, go_on = list[Any](), threading.Event(), threading.Event()

    def release() -> None:
        released.set()
        assert go_on.wait(CLOSES_SECONDS)

    def fails(error: Exception, session: Any) -> None:
        lent.append(session)
        session.client.is_closed = False
        session.client.release_session = release
        session.client.close = lambda: None
        raise error

    for error in (AnalysisException("no"), SparkConnectGrpcException("unavailable"), _ended()):
        with pytest.raises(type(error)):
            place.statements.append(partial(fails, error))
    place.statements.append(lent.append)
    assert released.wait(CLOSES_SECONDS) and not go_on.is_set()
    go_on.set()
    first, second, third, fourth = lent
    assert first is second and len({second, third, fourth}) == 3


def test_a_registration_without_an_answer_leaves_its_session(place: Place) -> None:
    """The version of the next one was read from it, by which drivers that met were told apart."""
    lent = list[Any]()
    register = TableRegister(place.statements._naming, "journal")

    def sql(session: Remote, statement: str) -> Any:
        lent.append(session)
        if len(lent) == 1:
            raise ConnectionError(statement)
        return SimpleNamespace(collect=list)

    place.monkeypatch.setattr(Remote, "sql", sql, raising=False)
    with pytest.raises(ConnectionError):
        register.write("me", {})
    assert register.write("me", {}) == register.write("me", {}) == -1
    assert lent[0] is not lent[1] is lent[2]


def test_where_the_users_session_has_ended_there_is_none(place: Place) -> None:
    mine: Any = place.statements.session
    mine.ended = place.user.ended = True
    place.later()
    with pytest.raises(PlatformMissing, match="has ended this manager's session"):
        place.statements.run(lambda: place.statements.session)


def test_as_a_manager_closes_nothing_is_asked_or_made_anew(place: Place) -> None:
    mine: Any = place.statements.session
    mine.ended = True
    place.later()
    place.statements.close()
    assert place.statements.session is mine and place.asked == []


def test_what_a_session_that_ended_is_told_by() -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors.exceptions.connect import (
        AnalysisException,
        SparkConnectGrpcException,
        UnknownException,
    )

    ended = [
        *(UnknownException(f"[INVALID_HANDLE.SESSION_{n}] x") for n in ("CHANGED", "NOT_FOUND")),
        _ended(),
        grpc.RpcError(CLOSED),
    ]
    assert all(is_session_ended(one) and is_unanswered(one) for one in ended)
    unanswered = [
        ConnectionError(),
        SparkConnectGrpcException("unavailable"),
        UnknownException("[INVALID_CURSOR.DISCONNECTED] x"),
        Py4JError("An error occurred while calling o1.sql"),
    ]
    assert all(is_unanswered(one) and not is_session_ended(one) for one in unanswered)
    answers = [
        ValueError(CLOSED),  # a message of a handler
        AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] x"),
        UnknownException("[DELTA_CONCURRENT_APPEND] x"),
        Py4JError("An error occurred while calling o1.sql. Trace:\npy4j.Py4JException: no"),
    ]
    assert not any(is_unanswered(one) or is_session_ended(one) for one in answers)


def test_a_commit_without_an_answer_leaves_its_holder_named(tmp_path: Path) -> None:
    from pyspark.errors.exceptions.connect import AnalysisException

    lock = TableLock(tmp_path / "store" / ".locks" / "journal.lock", lambda: None)
    owner = tmp_path / "store" / ".locks" / "journal.owner"
    for error, is_left in ((_ended(), True), (AnalysisException("no"), False)):
        with pytest.raises(type(error)), lock.held():
            raise error
        assert owner.exists() == is_left


def test_every_module_of_the_suite_has_a_number() -> None:
    named = modules()
    assert len(named) == len(set(named)) > len(CORE)
    assert set(CORE) < set(named)


@pytest.mark.spark
def test_a_local_session_may_be_one_of_connect() -> None:
    code = (
        "from txnqueue import local_spark\n"
        "spark = local_spark(settings={'spark.api.mode': 'connect'}, short_lived=True)\n"
        "print(type(spark).__module__, spark.range(3).count(), flush=True)\n"
        "spark.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert "pyspark.sql.connect.session 3" in done.stdout, done.stderr
