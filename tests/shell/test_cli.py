"""The command line: exit codes, output, and that repeating a command is harmless."""

from __future__ import annotations

import datetime
import json
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

typer = pytest.importorskip("typer")
from pyspark.sql.types import (  # noqa: E402
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)
from typer.testing import CliRunner  # noqa: E402

from tests.conformance.test_answers import Doubt  # noqa: E402
from txnqueue import errors  # noqa: E402
from txnqueue.cli.console import Options, exit_code  # noqa: E402
from txnqueue.cli.files import read_file, read_yaml, spelled_out  # noqa: E402
from txnqueue.cli.main import app  # noqa: E402
from txnqueue.cli.presentation import (  # noqa: E402
    Output,
    Printer,
    in_the_shell,
    json_for,
)
from txnqueue.client.append import in_doubt  # noqa: E402
from txnqueue.core.markup import printable  # noqa: E402
from txnqueue.core.model import attempt_id  # noqa: E402
from txnqueue.manager import QueueManager  # noqa: E402
from txnqueue.protocols.dtx import Connection, Xid  # noqa: E402
from txnqueue.reports.report import plain  # noqa: E402
from txnqueue.storage.payload import StagedPlace  # noqa: E402
from txnqueue.storage.payload.maps import MapItems  # noqa: E402
from txnqueue.storage.payload.memory import MemoryPayload  # noqa: E402
from txnqueue.testing import Clock, MemoryStore, memory_manager, runtime  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = "id long, name string"


class Shell:
    """Runs commands on a store in memory, each with a manager of its own."""

    def __init__(self) -> None:
        self.store, self.clock = MemoryStore(), Clock()
        self.runs = 0

    def factory(self, options: Options) -> Any:
        self.runs += 1
        made = runtime(self.clock, f"client{self.runs}")
        manager = QueueManager(
            None,
            store=self.store,
            runtime=made,
            actor=options.actor,
            run_id=options.run_id,
            consumer=options.consumer,
        )
        return manager, None

    def __call__(self, *arguments: Any, code: int = 0) -> Any:
        result = CliRunner().invoke(app, [str(a) for a in arguments], obj=self.factory)
        assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
        return result

    def json(self, *arguments: Any, code: int = 0) -> list[Any]:
        result = self(*arguments, "--output", "json", code=code)
        return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def shell() -> Any:
    made = Shell()
    made("create", "orders", "--schema", SCHEMA)
    return made


@pytest.fixture
def three(tmp_path: Path) -> Any:
    path = tmp_path / "three.csv"
    path.write_text('id,name\n1,a\n2,"b, ""quoted"""\n3,\n', encoding="utf-8")
    return path


# ----------------------------------------------------------------------------- the codes


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.TransactionUnknown, 76),
        (errors.TransactionIdReused, 2),
        (errors.TransactionAborted, 75),
        (errors.Busy, 75),
        (errors.StoreBusy, 75),
        (errors.LeaseLost, 75),
        (errors.SchemaMismatch, 2),
        (errors.TransactionNotFound, 2),
        (errors.TransactionNotPrepared, 2),
        (errors.SettlementPending, 75),
        (errors.ChangeNotFound, 2),
        (errors.DatabaseUnavailable, 3),
        (errors.LimitExceeded, 2),
        (errors.StoreNotFound, 3),
        (errors.StoreCorrupt, 3),
        (errors.QueueNotFound, 3),
        (errors.QueueExists, 3),
        (errors.PlatformMissing, 3),
        (errors.PayloadRemoved, 3),
        (errors.HistoryRemoved, 3),
        (errors.HandlerFailed, 4),
        (ValueError, 1),
    ],
)
def test_every_error_has_its_exit_code(kind: Callable[[], Exception], code: int) -> None:
    assert exit_code(kind()) == code


def test_the_codes_stand_in_the_help() -> None:
    shown = CliRunner().invoke(app, ["send", "--help"])
    assert shown.exit_code == 0
    said = " ".join(shown.stdout.split())
    assert "75 conflicts" in said and "77 committed" in said


def test_the_version_is_shown() -> None:
    from txnqueue import __version__

    assert CliRunner().invoke(app, ["--version"]).stdout.strip() == __version__


def test_usage_errors_are_2(shell: Any, three: str) -> None:
    shell("send", "orders", code=2)
    shell("receive", "orders", "--accept", "--hold", code=2)
    shell("history", "--where", "id = 1", code=2)
    shell("history", "--queue", "orders", "--as-of", "1", "--message", "x:1", code=2)
    shell("receive", "orders", "--limit", "0", code=2)
    shell("create", "no/name", "--schema", SCHEMA, code=2)
    shell("create", "typed", "--schema", "id nonsense", code=2)


def test_an_error_is_one_line_with_the_remedy_and_no_traceback(shell: Any) -> None:
    result = shell("depth", "nothing", code=3)
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "orders" in result.stderr
    assert "Traceback" in shell("depth", "nothing", "--verbose", code=3).stderr


@pytest.mark.parametrize(("verbose", "level"), [(False, "OFF"), (True, None)])
def test_a_spark_of_our_own_logs_nothing_that_comes_as_an_error(
    monkeypatch: pytest.MonkeyPatch, verbose: Any, level: Any
) -> None:
    pytest.importorskip("pyspark")
    from txnqueue.cli.console import start_spark
    from txnqueue.platform import local_spark as environment

    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    asked = []
    monkeypatch.setattr(environment, "local_spark", lambda *_, **given: asked.append(given))
    start_spark(short_lived=True, verbose=verbose)
    assert asked[0]["settings"].get("spark.log.level") == level


def test_a_rollback_of_what_is_not_there_is_a_mistake_of_the_call(
    shell: Shell, three: Path
) -> None:
    shell("send", "orders", three, "--transaction-id", "load/1")
    for key in ("unknown", "load/1"):
        shell("rollback", key, "--reason", "why", code=2)
    shell("maintain", "--no-vacuum", "--full-vacuum", code=2)


def test_an_operator_ends_the_leases_of_a_consumer(shell: Any, three: str) -> None:
    shell("send", "orders", three)
    shell("receive", "orders", "--hold", "--consumer", "gone")
    said = shell.json("release", "orders", "--consumer", "gone", "--reason", "it hangs")
    assert said[0]["released"] == 3
    assert shell.json("depth", "orders")[0]["available"] == 3


def test_an_operator_takes_a_store_over_on_record(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    nothing = shell("take-over", "--reason", "its machine is gone").stdout
    assert nothing == "There is nothing to take over: any driver may write here.\n"
    monkeypatch.setattr(MemoryStore, "take_over", lambda self, about: not said.append(about))
    taken = shell("take-over", "--reason", "its machine is gone").stdout
    assert taken == "Taken over.\n" and said[0]["reason"] == "its machine is gone"
    shell("take-over", code=2)


def test_the_path_of_an_unknown_message_is_no_answer(shell: Any) -> None:
    result = shell("history", "--message", "nobody:17", code=3)
    assert "No such message" in result.stderr
    assert shell.json("history", "--message", "nobody:17", code=3) == []


def test_a_missing_root_is_said_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TXNQUEUE_ROOT", raising=False)
    result = CliRunner().invoke(app, ["list"])
    assert result.exit_code == 2
    assert "--root" in result.stderr


@pytest.mark.parametrize("submitted", [False, True])
@pytest.mark.parametrize("command", ["list", "recover"])
def test_the_root_is_the_option_then_that_of_a_running_session_then_that_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, submitted: bool
) -> None:
    pytest.importorskip("pyspark")
    conf: dict[str, str] = {}
    running = SimpleNamespace(conf=conf)
    builder = SimpleNamespace(getOrCreate=lambda: running)
    active = None if submitted else running
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: active)
    monkeypatch.setattr("pyspark.sql.SparkSession.builder", builder)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("TXNQUEUE_ROOT", raising=False)
    if submitted:
        monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "25333")

    def taken(*words: str) -> str:
        return CliRunner().invoke(app, [command, *words]).stderr

    def opened(spark: object, root: str | None, **_: object) -> None:
        raise errors.StoreNotFound(f"There is no store at {root!r}", root="")

    monkeypatch.setattr("txnqueue.manager.QueueManager", opened)
    assert "spark.txnqueue.root" in taken()
    conf["spark.txnqueue.root"] = f"{tmp_path}/alone"
    assert f"no store at '{tmp_path}/alone'" in taken()
    if submitted and command == "list":
        assert "store is not given" in taken("--engine", "files")
    del conf["spark.txnqueue.root"]
    monkeypatch.setenv("TXNQUEUE_ROOT", f"{tmp_path}/environment")
    assert f"no store at '{tmp_path}/environment'" in taken()
    conf["spark.txnqueue.root"] = f"{tmp_path}/session"
    starts_none = submitted and command == "list"  # where another session may run in that JVM
    found = "environment" if starts_none else "session"
    assert f"no store at '{tmp_path}/{found}'" in taken()
    assert f"no store at '{tmp_path}/option'" in taken("--root", f"{tmp_path}/option")


def test_an_unexpected_error_is_1_and_names_itself(shell: Any) -> None:
    def broken(options: object) -> None:
        raise RuntimeError("first line\nsecond line")

    result = CliRunner().invoke(app, ["list"], obj=broken)
    assert result.exit_code == 1
    assert "unexpected RuntimeError: first line" in result.stderr
    assert "second" not in result.stderr


def test_errors_say_what_to_type_and_not_what_to_call(shell: Any, tmp_path: Path) -> None:
    said = shell("create", "orders", "--schema", SCHEMA, code=3).stderr
    assert "pass --exist-ok" in said and "exist_ok" not in said
    said = CliRunner().invoke(app, ["list", "--root", str(tmp_path)]).stderr
    assert "; txnqueue create makes a new store." in said


TRIES = f"append:{','.join(f'{n:032x}' for n in range(12))}@lane/orders-1/0,lane/orders-1/1"


@pytest.mark.parametrize("key", ["load-7", "it's (7)", "\"'", "C:\\new", TRIES])
@pytest.mark.parametrize("attempt", [None, attempt_id("0f", 7)])
def test_an_error_in_doubt_says_what_to_type(key: str, attempt: str | None) -> None:
    said = in_the_shell(str(in_doubt(key, attempt, None)))
    typed = said.partition(": ask ")[2].removesuffix(" before trying again.")
    named = [] if attempt is None else ["--attempt", attempt]
    assert shlex.split(typed) == ["txnqueue", "outcome", *named, "--", key]


def test_what_an_error_in_doubt_says_to_type_asks_for_that_attempt() -> None:
    """Another one of the same id was rolled back, and this one lands later."""
    doubt, shell = Doubt(), Shell()
    shell.store, shell.clock = doubt.store, doubt.clock
    typed = in_the_shell(str(doubt.error)).partition(": ask ")[2]
    asked = shlex.split(typed.removesuffix(" before trying again."))[1:]
    asked.insert(1, "--output=json")
    assert shell("outcome", "job").stdout.startswith("job: rolled_back")
    assert json.loads(shell(*asked, code=76).stdout)["status"] == "undecided"
    doubt.injector.flush()
    assert json.loads(shell(*asked).stdout)["status"] == "committed"


def test_an_attempt_in_doubt_is_rolled_back_by_its_name() -> None:
    doubt, shell = Doubt(), Shell()
    shell.store, shell.clock = doubt.store, doubt.clock
    named = ["--attempt", doubt.error.attempt]
    shell("rollback", "job", "--reason", "it must not land", *named)
    doubt.injector.flush()
    assert shell.json("outcome", "job", *named)[0]["status"] == "rolled_back"


@pytest.mark.parametrize("key", ["-x", "--reason"])
def test_an_id_may_begin_with_a_dash(shell: Any, key: str) -> None:
    typed = in_the_shell(str(in_doubt(key, None, None))).partition(": ask ")[2]
    said = shell(*shlex.split(typed.removesuffix(" before trying again."))[1:], code=76)
    assert "undecided" in said.stdout


def test_an_unexpected_error_of_java_is_said_in_javas_words(shell: Any) -> None:
    def broken(options: object) -> None:
        raise OSError(
            "An error occurred while calling o65.sql.\n: java.io.IOException: torn\n\tat x"
        )

    result = CliRunner().invoke(app, ["list"], obj=broken)
    assert "unexpected OSError: java.io.IOException: torn (" in result.stderr


@pytest.mark.parametrize("kind", [errors.Busy, errors.TransactionAborted, errors.StoreBusy])
def test_conflicts_ask_the_scheduler_to_try_again(kind: Callable[[], Exception]) -> None:
    def busy(options: object) -> None:
        raise kind()

    assert CliRunner().invoke(app, ["list"], obj=busy).exit_code == 75


def test_without_typer_there_is_one_clear_sentence() -> None:
    code = "import sys; sys.modules['typer'] = None; import txnqueue.cli.main"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 3
    assert done.stderr.strip() == (
        "txnqueue: the command line needs typer: pip install 'txnqueue[cli]'"
    )


# --------------------------------------------------------------------------------- queues


def test_create_says_what_there_is_and_repeats_only_if_allowed(shell: Any) -> None:
    shell("create", "orders", "--schema", SCHEMA, code=3)
    found = shell.json("create", "orders", "--schema", SCHEMA, "--exist-ok")
    assert found[0]["queue"] == "orders"
    shell("create", "orders", "--schema", "id string", "--exist-ok", code=2)


def test_list_shows_every_queue_once(shell: Any) -> None:
    assert [row["queue"] for row in shell.json("list")] == ["orders", "orders.dead"]
    assert "orders.dead" in shell("list").stdout


def test_a_store_that_was_never_made_is_3() -> None:
    Shell()("list", code=3)


# -------------------------------------------------------------------------------- sending


def test_a_csv_file_is_sent_as_typed_messages(shell: Any, three: str) -> None:
    sent = shell.json("send", "orders", three)
    assert sent[0]["count"] == 3
    assert not sent[0]["already_committed"]
    rows = shell.json("peek", "orders")
    assert [(row["id"], row["name"]) for row in rows] == [
        (1, "a"),
        (2, 'b, "quoted"'),
        (3, None),
    ]


def test_json_lines_and_parquet_are_sent_too(shell: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"id": 1, "name": "a"}\n{"id": 2}\n', encoding="utf-8")
    parquet.write_table(pa.table({"id": [3], "name": ["c"]}), tmp_path / "more.parquet")
    assert shell.json("send", "orders", lines)[0]["count"] == 2
    assert shell.json("send", "orders", tmp_path / "more.parquet")[0]["count"] == 1
    assert [row["id"] for row in shell.json("peek", "orders")] == [1, 2, 3]


def test_a_second_send_of_an_id_answers_with_the_first_receipt(shell: Any, three: Path) -> None:
    first = shell.json("send", "orders", three, "--transaction-id", "load-7")[0]
    again = shell.json("send", "orders", three, "--transaction-id", "load-7")[0]
    assert again["already_committed"]
    assert again["count"] == 0
    assert again["commit_seq"] == first["commit_seq"]
    assert shell.json("depth", "orders")[0]["available"] == 3
    other = shell("send", "orders.dead", three, "--transaction-id", "load-7", code=2)
    assert "send to orders" in other.stderr, "the other queue would never get its file"
    spoken = shell("send", "orders", three, "--transaction-id", "load-7").stdout
    assert spoken.startswith("Already committed")
    three.unlink()
    moved_away = shell.json("send", "orders", three, "--transaction-id", "load-7")[0]
    assert moved_away == again
    shell("send", "orders", three, "--transaction-id", "load-8", code=2)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("wrong.csv", "id,name\nx,a\n"),
        ("unknown.csv", "id,nam\n1,a\n"),
        ("unknown.json", '{"id": 1, "nam": "a"}\n'),
        ("wrong.json", '{"id": "x"}\n'),
        ("no.json", "not json\n"),
        ("file.txt", "id\n1\n"),
        ("no.parquet", "x"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_as_a_whole(
    shell: Any, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    result = shell("send", "orders", tmp_path / name, code=2)
    assert result.stderr.count("\n") == 1
    assert shell.json("depth", "orders")[0]["available"] == 0


def test_a_missing_file_is_2(shell: Any, tmp_path: Path) -> None:
    assert "no file" in shell("send", "orders", tmp_path / "gone.csv", code=2).stderr


# ------------------------------------------------------------------------------ receiving


def test_a_file_that_this_user_must_not_read_is_told_from_a_missing_one(
    shell: Any, three: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    result = shell("send", "orders", three, code=2)
    assert "cannot be read: let this user read it" in result.stderr


def test_what_java_says_of_a_file_is_said_in_javas_words() -> None:
    error = OSError("An error occurred while calling o9.text.\n: : torn\n\tat x")
    with (
        pytest.raises(errors.InvalidInput, match=r"'a\.csv' cannot be read: torn$"),
        spelled_out("a.csv"),
    ):
        raise error


def test_receive_prints_and_gives_back(shell: Any, three: str) -> None:
    shell("send", "orders", three)
    assert [row["id"] for row in shell.json("receive", "orders", "--limit", "2")] == [1, 2]
    assert shell.json("depth", "orders")[0] == {"queue": "orders", "available": 3, "in_flight": 0}
    assert shell.json("peek", "orders")[0]["_message"]["delivery_count"] == 0


def test_replay_shows_what_was_accepted_and_changes_nothing(shell: Any, three: str) -> None:
    shell("send", "orders", three)
    assert "No messages of orders were accepted then." in shell("replay", "orders").stderr
    shell("receive", "orders", "--limit", "2", "--accept")
    assert [row["id"] for row in shell.json("replay", "orders")] == [1, 2]
    assert [row["id"] for row in shell.json("replay", "orders", "--limit", "1")] == [1]
    assert [row["id"] for row in shell.json("replay", "orders", "--partial")] == [1, 2]
    (event,) = [row for row in shell.json("history") if row["kind"] == "accepted"]
    seq = str(event["commit_seq"])
    assert [row["id"] for row in shell.json("replay", "orders", "--upto", seq)] == [1, 2]
    assert shell.json("replay", "orders", "--after", seq) == []
    assert shell.json("depth", "orders")[0]["available"] == 1
    shell("replay", "orders", "--after", "999999999", code=2)
    shell("replay", "none", code=3)


def test_receive_accept_consumes(shell: Any, three: str) -> None:
    shell("send", "orders", three)
    shell("receive", "orders", "--limit", "2", "--accept")
    assert [row["id"] for row in shell.json("receive", "orders", "--accept")] == [3]
    result = shell("receive", "orders", "--accept")
    assert result.stdout == ""
    assert "nothing to receive" in result.stderr


def test_receive_hold_keeps_until_the_lease_ends(shell: Any, three: str) -> None:
    shell("send", "orders", three)
    shell("receive", "orders", "--limit", "2", "--hold", "--lease-seconds", "60")
    assert shell.json("depth", "orders")[0]["in_flight"] == 2
    assert [row["id"] for row in shell.json("receive", "orders")] == [3]
    shell.clock.advance(61)
    assert shell.json("receive", "orders")[0]["id"] == 1


def test_the_same_consumer_takes_over_at_once(shell: Any, three: str) -> None:
    shell("send", "orders", three)
    shell("receive", "orders", "--hold", "--consumer", "me")
    assert shell.json("receive", "orders") == []
    assert shell.json("receive", "orders", "--consumer", "me")[0]["id"] == 1


def test_messages_that_could_not_be_printed_are_given_back(
    shell: Any, three: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txnqueue.cli.presentation import Printer

    def broken(*arguments: Any) -> None:
        raise BrokenPipeError

    shell("send", "orders", three)
    monkeypatch.setattr(Printer, "messages", broken)
    shell("receive", "orders", "--accept", code=1)
    monkeypatch.undo()
    assert shell.json("depth", "orders")[0] == {"queue": "orders", "available": 3, "in_flight": 0}


# ----------------------------------------------------------------- transactions, history


def test_outcome_knows_what_was_committed(shell: Any, three: str) -> None:
    sent = shell.json("send", "orders", three, "--transaction-id", "load-7")[0]
    found = shell.json("outcome", "load-7")[0]
    assert (found["status"], found["commit_seq"]) == ("committed", sent["commit_seq"])
    assert shell.json("outcome", "never", code=76)[0]["status"] == "undecided"


def test_outcome_of_no_id_is_refused(shell: Any) -> None:
    """Code 76 would let a script with an unset variable ask again for ever."""
    assert "give the id" in shell("outcome", "", code=2).stderr


def test_outcome_of_a_branch_that_goes_on_is_no_success(shell: Any) -> None:
    channel = Connection(memory_manager(shell.store, shell.clock, "dtx")).channel()
    channel.select()
    xid = Xid.of(1, b"order-17", b"queues")
    channel.start(xid)
    channel.queue("orders").send([{"id": 1}])
    channel.end(xid)
    assert shell.json("outcome", xid.transaction_id, code=76)[0]["status"] == "active"
    channel.prepare(xid)
    assert shell.json("outcome", xid.transaction_id)[0]["status"] == "prepared"


def test_recover_names_what_it_aborted_and_what_waits(shell: Any, three: str) -> None:
    shell("send", "orders", three)
    manager = memory_manager(shell.store, shell.clock, "dead")
    waiting = manager.transaction("waiting")
    manager.queue("orders").receive(1, transaction=waiting)
    waiting.prepare()
    lost = manager.transaction("lost")
    manager.queue("orders").receive(1, transaction=lost)
    shell.clock.advance(1_000)
    found = shell.json("recover")[0]
    assert found == {
        "aborted": ["lost"],
        "released": 1,
        "prepared": ["waiting"],
        "heuristic": [],
        "waiting": [],
        "databases": [],
        "drops": [],
        "exchange_drops": [],
        "erasing": {},
    }
    assert shell.json("recover")[0]["aborted"] == []
    assert "waiting for a decision: waiting" in shell("recover").stdout
    manager.decide_heuristically("waiting", commit=True, reason="its coordinator is gone")
    assert shell.json("recover")[0]["heuristic"] == ["waiting"]
    assert "decided by an operator, not forgotten: waiting" in shell("recover").stdout


def test_report_counts_what_came_and_went_and_writes_a_page(
    shell: Any, three: str, tmp_path: Path
) -> None:
    first = shell.json("send", "orders", three)[0]["commit_seq"]
    shell("receive", "orders", "--accept")
    page = tmp_path / "audit.html"
    rows = shell.json("report", "--from", str(first), "--html", str(page))
    (orders,) = [row for row in rows if row["queue"] == "orders"]
    assert (orders["messages_before"], orders["accepted"], orders["messages_after"]) == (3, 3, 0)
    assert "Audit of" in page.read_text(encoding="utf-8")
    then = datetime.datetime.fromtimestamp(shell.clock.now_ms / 1000, datetime.timezone.utc)
    until = then.isoformat().replace("+00:00", "Z")
    assert shell.json("report", "--to", until, "--no-verify")[0]["posted"] == 3
    begins = shell.json("report", "--from", "-1", "--no-verify")[0]
    assert (begins["messages_before"], begins["posted"]) == (0, 3)
    shell("report", "--from", "-2", code=2)
    shell("report", "--from", "yesterday", code=2)
    shell("report", "--from", "2026-01-01T00:00:00", code=2)


def test_a_report_that_cannot_be_made_is_refused_before_the_store_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(_: object) -> None:
        raise AssertionError("the store was opened")

    def code(*words: str) -> int:
        return CliRunner().invoke(app, ["report", "--root", "x/y", *words], obj=opened).exit_code

    assert code("--from", "2026-01-01T00:00:00") == 2
    assert code("--html", str(tmp_path / "missing" / "audit.html")) == 2
    assert code("--html", str(tmp_path)) == 2
    if os.access(tmp_path, os.W_OK):
        monkeypatch.setitem(sys.modules, "jinja2", None)
        assert code("--html", str(tmp_path / "audit.html")) == 3


def test_history_shows_events_states_and_paths(shell: Any, three: str) -> None:
    sent = shell.json("send", "orders", three, "--actor", "ann", "--run-id", "r1")[0]
    message = shell.json("receive", "orders", "--limit", "1", "--accept")[0]["_message"]["id"]
    events = shell.json("history")
    assert {event["kind"] for event in events} >= {"posted", "committed", "claimed", "accepted"}
    posted = next(event for event in events if event["kind"] == "posted")
    assert (posted["actor"], posted["run_id"]) == ("ann", "r1")
    assert len(shell.json("history", "--limit", "1")) == 1
    dead = shell.json("history", "--queue", "orders.dead")
    assert [event["kind"] for event in dead] == ["queue_created"]
    assert "nosuch" in shell("history", "--queue", "nosuch", code=3).stderr

    then = shell.json("history", "--as-of", sent["commit_seq"])
    assert next(row for row in then if row["queue"] == "orders")["available"] == 3
    rows = shell.json("history", "--as-of", sent["commit_seq"], "--queue", "orders")
    assert [row["id"] for row in rows] == [1, 2, 3]
    rows = shell.json("history", "--as-of", sent["commit_seq"], "--queue", "orders", "--limit", "2")
    assert [row["id"] for row in rows] == [1, 2]

    steps = [row["step"] for row in shell.json("history", "--message", message)]
    assert steps == ["sent", "claimed", "accepted"]
    shell("history", "--as-of", "999999999", code=2)
    none = shell("history", "--as-of", sent["commit_seq"], "--queue", "nosuch", code=3).stderr
    assert "txnqueue history --as-of lists those that existed" in none


def test_attempts_that_ended_with_their_clients_hide_no_events(shell: Any, three: str) -> None:
    """They were the last ones for ever, however old they were."""
    manager = memory_manager(shell.store, shell.clock, "killed")
    manager.queue("orders").send([{"id": number} for number in range(30)])
    for number in range(25):
        lost = manager.transaction(f"lost/{number}")
        manager.queue("orders").receive(1, transaction=lost)
    pending = [row for row in shell.json("history") if row["kind"] == "pending"]
    assert len(pending) == 20
    assert pending[-1]["transaction_id"] == "lost/24"
    shell.clock.advance(1_000)
    memory_manager(shell.store, shell.clock, "keeper").maintain(
        transaction_seconds_max=0, vacuum=False
    )
    waiting = memory_manager(shell.store, shell.clock, "waits").transaction("waiting")
    waiting.queue("orders").receive(1)
    waiting.prepare()
    attempts = memory_manager(shell.store, shell.clock, "a").history.as_of().transactions().rows()
    ended = [row for row in attempts if row["commit_seq"] is None]
    assert len([row for row in ended if row["status"] == "rolled_back"]) >= 20, "vacuous"
    shell("send", "orders", three, "--transaction-id", "newest")
    events = shell.json("history", "--limit", "2")
    assert [event["kind"] for event in events] == ["posted", "committed", "prepared"]
    assert events[1]["transaction_id"] == "newest"
    mine = shell.json("history", "--limit", "1", "--queue", "orders")
    assert mine[-1]["transaction_id"] == "waiting"


def test_history_shows_who_declared_and_who_erased(
    shell: Any, three: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So say the errors about payload that was erased."""
    shell("send", "orders", three)
    shell("create-exchange", "news", "--schema", SCHEMA)
    shell("bind", "news", "orders")
    manager, _ = shell.factory(Options())
    manager.queue("orders").alter(lease_seconds=99.0)
    ((_, send_id), slice_), *_ = vars(shell.store.payload)["_slices"].items()
    monkeypatch.setattr(MemoryPayload, "matching", lambda *_: [(slice_, send_id, ((0, 1),))])
    shell("erase", "orders", "--where", "id < 3", "--reason", "request 7", "--yes")
    for words in ((), ("--queue", "orders")):
        events = shell.json("history", *words)
        kinds = [event["kind"] for event in events]
        assert {"queue_created", "queue_bound", "payload_erasing", "payload_erased"} <= set(kinds)
        assert ("exchange_created" in kinds) is not bool(words)
        assert kinds.count("queue_altered") == 1
        erased = next(event for event in events if event["kind"] == "payload_erasing")
        assert (erased["reason"], erased["queue"]) == ("request 7", "orders")
        places = [event["commit_seq"] for event in events]
        assert places == sorted(places)
    shown = shell("history", "--queue", "orders").stdout
    assert "request 7" in shown
    assert "payload_erased" in shown


def test_history_of_a_queue_that_was_dropped_is_still_there(shell: Any, three: str) -> None:
    shell("send", "orders", three)
    shell("drop", "orders", "--yes")
    assert "posted" in [row["kind"] for row in shell.json("history", "--queue", "orders")]


@pytest.mark.parametrize(
    "options",
    [
        ("history", "--message", "x:0", "--queue", "orders"),
        ("history", "--partial"),
        ("history", "--queue", "orders", "--partial"),
        ("history", "--digest", "--partial"),
        ("history", "--limit", "1", "--as-of", "0"),
        ("history", "--limit", "1", "--message", "x:0"),
        ("history", "--limit", "1", "--digest"),
        ("history", "--limit", "1", "--verify"),
        ("report", "--payload", "--no-verify"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(shell: Any, options: list[str]) -> None:
    shell(*options, code=2)


def test_a_digest_is_printed_continued_and_compared(shell: Any, three: str) -> None:
    sent = shell.json("send", "orders", three)[0]
    first = shell.json("history", "--digest", "--as-of", sent["commit_seq"])[0]["digest"]
    shell("receive", "orders", "--limit", "1", "--accept")
    whole = shell("history", "--digest").stdout.strip()
    continued = shell.json("history", "--digest", "--after", first)[0]["digest"]
    assert continued.rpartition(":")[2] == whole.rpartition(":")[2]
    for kept in (first, whole, continued):
        assert "digests that match" in shell("history", "--verify", "--against", kept).stdout
    wrong = whole[:-4] + ("0000" if whole[-4:] != "0000" else "1111")
    shell("history", "--verify", "--against", wrong, code=1)
    shell("history", "--verify", "--against", "no digest", code=2)
    for refused in (["--after", first], ["--against", first], ["--digest", "--verify"]):
        shell("history", *refused, code=2)
    shell("history", "--digest", "--queue", "orders", code=2)


def test_tables_are_for_people(shell: Any, three: str) -> None:
    shell("send", "orders", three)
    for command in (["list"], ["peek", "orders"], ["history"], ["receive", "orders"]):
        assert "─" in shell(*command).stdout or "━" in shell(*command).stdout
    assert shell("depth", "orders").stdout == "orders: 3 available, 0 in flight\n"


def test_a_table_of_messages_hides_no_column_of_the_payload(
    shell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[tuple[list[dict[str, Any]], list[str]]] = []
    monkeypatch.setattr(
        Printer, "rows", lambda _, rows, columns, none: printed.append((list(rows), list(columns)))
    )
    schema = "id long, Lane string, deliveries long, enqueued_at string, reason string, error long"
    row = {"id": 7, "Lane": "b", "deliveries": 5, "enqueued_at": "c", "reason": "d", "error": 3}
    manager = memory_manager(shell.store, shell.clock, name="user")
    queue = manager.create_queue("odd", schema)
    queue.send([row])
    shell("peek", "odd")
    batch = queue.receive()
    batch.reject(reason="bad row")
    shell("peek", "odd.dead")
    (waiting, columns), (dead, dead_columns) = printed
    assert columns == ["_id", "_lane", "_deliveries", "_enqueued_at", *row]
    assert row.items() <= waiting[0].items() and waiting[0]["_id"].endswith(":0")
    assert dead_columns == [*columns, "_reason"]
    assert row.items() <= dead[0].items() and dead[0]["_reason"] == "bad row"
    queue.send([{**row, "reason": None}])
    shell("peek", "odd")
    assert printed[-1][1] == columns, "also a column without values is one of the payload"


def test_doctor_answers_without_a_store() -> None:
    result = CliRunner().invoke(app, ["doctor", "--output", "json"])
    assert result.exit_code in (0, 3)
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {"name", "found", "verdict", "meaning"} == set(rows[0])


# ------------------------------------------------------------------------------ presenting


def test_values_become_json() -> None:
    import datetime
    from decimal import Decimal

    day = datetime.date(2026, 1, 2)
    found = plain({"a": float("nan"), "b": b"\x00", "c": Decimal("1.10"), "d": day, "e": [1]})
    assert found == {"a": "nan", "b": "AA==", "c": "1.10", "d": "2026-01-02", "e": [1]}
    assert plain({"m": MapItems([("k", 1), ("l", None)])}) == {"m": {"k": 1, "l": None}}
    assert plain({day: 1, b"\x00": 2}) == {"2026-01-02": 1, "AA==": 2}


@pytest.mark.parametrize("lost", ["the race", "the reply"])
def test_of_two_sends_at_once_under_one_id_the_loser_says_that_it_sent_nothing(
    shell: Any, three: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    shell("create-exchange", "events", "--schema", SCHEMA)
    shell("bind", "events", "orders")
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": 9, "name": "z"}\n', encoding="utf-8")
    journal = shell.store.journal
    for command in (("send", "orders"), ("publish", "events")):
        append = journal.append

        def meanwhile(units: Any, about: Any, command: Any = command, append: Any = append) -> Any:
            monkeypatch.setattr(journal, "append", append)
            if lost == "the race":
                shell.json(*command, other, "--transaction-id", command[0])
                return append(units, about)
            append(units, about)
            raise OSError("the reply was lost")

        with monkeypatch.context() as patched:
            patched.setattr(journal, "append", meanwhile)
            told = shell.json(*command, three, "--transaction-id", command[0])[0]
        has_sent = lost == "the reply"
        assert (told["count"], told["already_committed"]) == (3 * has_sent, not has_sent)
    manager = memory_manager(shell.store, shell.clock, name="user")
    assert manager.queue("orders").depth() == (6 if lost == "the reply" else 2)


def test_maps_become_objects_by_the_type_of_their_column(shell: Any) -> None:
    manager = memory_manager(shell.store, shell.clock, name="user")
    text, binary = StringType(), BinaryType()
    maps = StructType(
        [
            StructField("m", MapType(text, LongType())),
            StructField("b", MapType(binary, binary)),
            StructField("inside", ArrayType(StructType([StructField("m", MapType(text, text))]))),
            StructField("no_map", ArrayType(LongType())),
        ]
    )
    queue = manager.create_queue("odd", maps)
    empty = {"m": {}, "b": {}, "inside": [{"m": {}}, {"m": None}], "no_map": []}
    full = {"m": {"k": 1}, "b": {b"\x00": b"\x01"}, "inside": [{"m": {"k": "v"}}], "no_map": [1]}
    told = {**full, "b": {"AA==": "AQ=="}}
    sent = manager.run_transaction(lambda tx: tx.queue("odd").send([empty, full]))
    assert queue.peek_messages()[0]["m"] == [], "in Python a list of pairs, as Arrow has it"
    then = ("history", "--as-of", sent.commit_seq, "--queue", "odd")
    for command in (("peek", "odd"), ("receive", "odd"), then):
        rows = shell.json(*command)
        assert [{name: row[name] for name in told} for row in rows] == [empty, told], command
    past = json.loads(manager.history.as_of(sent.commit_seq).messages("odd").json())
    assert [{name: row[name] for name in told} for row in past] == [empty, told]


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[31mb") == "a\\x1b[31mb"


@pytest.mark.parametrize("terminal", [True, False])
def test_what_other_programs_run_is_printed_exactly_unless_a_person_looks(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """A statement with another letter in a name would be one about another column."""
    text, shown = "SELECT `montant\xa0total\x1b`;\n\n", StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stdout", shown)
    Printer(Output.TABLE).script({"statement": text}, text)
    assert ("\x1b" in shown.getvalue()) is not terminal
    assert terminal or shown.getvalue() == text


def test_a_line_of_json_has_no_control_characters_and_stays_one_line(shell: Any) -> None:
    name = "\x9b31m\x7f\x85\u2028\u202e\U000e0041\ud800\xe9\u4e16\U0001f600"
    values = {"name": name}
    line = json_for(StringIO(), values)
    assert line.isprintable() and json.loads(line) == values
    assert "\xe9\u4e16\U0001f600" in line, "letters are readable"
    manager = memory_manager(shell.store, shell.clock, name="user")
    manager.queue("orders").send([{"id": 1, "name": name.replace("\ud800", "")}])
    assert shell.json("peek", "orders")[0]["name"] == name.replace("\ud800", "")


def test_a_traceback_has_no_control_characters_either() -> None:
    def broken(options: object) -> None:
        raise RuntimeError("\x1b[31mred\n\tat java.lang")

    told = CliRunner().invoke(app, ["list", "--verbose"], obj=broken).stderr
    assert "Traceback" in told and "RuntimeError: \\x1b[31mred\n        at java" in told
    assert "\x1b" not in told


def test_the_log_has_no_control_characters_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    def broken(options: object) -> None:
        logging.getLogger("txnqueue").warning("not read error=%s", "\x1b[31mred")
        raise errors.Busy

    told = CliRunner().invoke(app, ["list"], obj=broken).stderr
    assert told.startswith("WARNING:txnqueue:not read error=\\x1b[31mred\n")


# ---------------------------------------------------------------------------------- spark


@pytest.mark.spark
def test_files_are_read_by_the_queues_schema_with_spark(
    spark: Any, tmp_path: Path, three: str
) -> None:
    root = str(tmp_path / "store")

    def run(*arguments: Any, code: int = 0) -> Any:
        def factory(options: Any) -> Any:
            return QueueManager(spark, options.root, consumer=options.consumer), spark

        words = [*map(str, arguments), "--root", root, "--output", "json"]
        result = CliRunner().invoke(app, words, obj=factory)
        assert result.exit_code == code, (result.stdout, result.stderr)
        return [json.loads(line) for line in result.stdout.splitlines()], result.stderr

    run("depth", "orders", code=3)
    run("create", "orders", "--schema", SCHEMA)
    assert run("send", "orders", three, "--transaction-id", "a")[0][0]["count"] == 3
    assert run("send", "orders", three, "--transaction-id", "a")[0][0]["already_committed"]
    bad = {
        "wrong.csv": "id,name\nx,a\n",
        "unknown.csv": "id,nam\n1,a\n",
        "wrong.json": '{"id": "x"}\n',
        "unknown.json": '{"id": 1, "nam": "a"}\n',
        "no.json": "not json\n",
        "no.parquet": "x",
    }
    for name, text in bad.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        _, said = run("send", "orders", tmp_path / name, code=2)
        assert said.count("\n") == 1, said
    (tmp_path / "more.jsonl").write_text('{"name": "d", "id": 4}\n', encoding="utf-8")
    assert run("send", "orders", tmp_path / "more.jsonl")[0][0]["count"] == 1
    rows = run("receive", "orders", "--accept")[0]
    assert [(row["id"], row["name"]) for row in rows] == [
        (1, "a"),
        (2, 'b, "quoted"'),
        (3, None),
        (4, "d"),
    ]
    assert run("depth", "orders")[0][0]["available"] == 0
    traced = run("history", "--queue", "orders", "--where", "id = 4")[0]
    assert [row["step"] for row in traced] == ["sent", "claimed", "accepted"]


@pytest.mark.spark
def test_spark_reads_the_file_of_that_name_and_no_other(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = StructType([StructField("id", LongType())])
    for meant, others in {
        "orders[1].csv": ["orders1.csv"],
        "day{1,2}.csv": ["day1.csv", "day2.csv"],
        "all*.csv": ["all of them.csv"],
        "what?.csv": ["what!.csv"],
        "back\\slash.csv": [],
        "50%20 #1.csv": ["50 .csv"],
    }.items():
        for name in [meant, *others]:
            (tmp_path / name).write_text(f"id\n{int(name == meant)}\n", encoding="utf-8")
        path = str(tmp_path / meant)
        assert [row["id"] for row in read_file(spark, schema, path).collect()] == [1], meant
    monkeypatch.chdir(tmp_path)
    for name in ("load:2026.csv", f"{'x' * 300}.csv"):  # Hadoop reads no such names
        with suppress(OSError):
            Path(name).write_text("id\n1\n", encoding="utf-8")
        with pytest.raises(errors.InvalidInput, match="cannot be read"), spelled_out(name):
            read_file(spark, schema, name).collect()


DIGITS = StructType(
    [
        StructField("id", LongType()),
        StructField("name", StringType()),
        StructField("day", DateType()),
        StructField("price", DecimalType(5, 2)),
        StructField("parts", ArrayType(StructType([StructField("x", DecimalType(3, 1))]))),
        StructField("by name", MapType(StringType(), DecimalType(3, 1))),
    ]
)


@pytest.mark.spark
def test_spark_passes_over_nothing_in_a_file(spark: Any, tmp_path: Path) -> None:
    def read(name: str, text: str, encoding: str = "utf-8") -> list[Any]:
        (tmp_path / name).write_text(text, encoding)
        with spelled_out(name):
            return list(read_file(spark, DIGITS, str(tmp_path / name)).collect())

    whole = (
        '{"id": 1, "price": 1.250, "parts": [{"x": 0.5}, null], "by name": {"a": 1, "b": 2.5}}\n'
    )
    (row,) = read("whole.jsonl", f"\ufeff{whole}\n")
    assert row.asDict(recursive=True) == {
        "id": 1,
        "price": Decimal("1.25"),
        "parts": [{"x": Decimal("0.5")}, None],
        "by name": {"a": Decimal("1.0"), "b": Decimal("2.5")},
    }
    (row,) = read("whole.csv", "id,name,day,price\n1,é\ufffd,2026-11-26,-1E2\n")
    assert tuple(row) == (1, "é\ufffd", datetime.date(2026, 11, 26), Decimal("-100.00"))
    for name, text in {
        "two on one line.jsonl": '{"id": 1}{"id": 2}\n',
        "a comma between.jsonl": '{"id": 1},{"id": 2}\n',
        "something behind.jsonl": '{"id": 1} 2\n',
        "a field too many.jsonl": '{"parts": [{"x": 1, "y": 2}]}\n',
        "an object for a text.jsonl": '{"name": {"first": "a"}}\n',
        "a name twice.jsonl": '{"id": 1, "id": 2}\n',
        "no object.jsonl": "5\n",
        "a digit too many.jsonl": '{"price": 1.255}\n',
        "one in a list.jsonl": '{"parts": [{"x": 0.25}]}\n',
        "one in a map.jsonl": '{"by name": {"a": 0.25}}\n',
        "a digit too many.csv": "price\n1.255\n",
        "one that would carry.csv": "price\n999.999\n",
        "a year.csv": "day\n2026\n",
        "a time.csv": "day\n2026-11-26 23:00:00\n",
        "a time.jsonl": '{"day": "2026-11-26 23:00:00"}\n',
        "a name twice.csv": "id,id\n1,2\n",
        "nothing.csv": "",
    }.items():
        with pytest.raises(errors.InvalidInput):
            pytest.fail(f"{name}: {read(name, text)}")
    with pytest.raises(errors.InvalidInput, match="UTF-8"):
        read("another encoding.csv", "name\ncafé\n", "latin-1")
    assert read("nothing.jsonl", "") == []


@pytest.mark.spark
def test_spark_reads_all_columns_of_a_folder_of_parquet_files(spark: Any, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    def read(name: str, *tables: pa.Table) -> list[Any]:
        (tmp_path / name).mkdir()
        for number, table in enumerate(tables):
            parquet.write_table(table, tmp_path / name / f"{number}.parquet")
        with spelled_out(name):
            return list(read_file(spark, DIGITS, str(tmp_path / name)).collect())

    first, second = pa.table({"id": [1]}), pa.table({"id": [2], "name": ["b"]})
    found = read("grown.parquet", first, second)
    assert sorted((row["id"], row["name"]) for row in found) == [(1, None), (2, "b")]
    noon = pa.array([datetime.datetime(2026, 11, 26, 12)], pa.timestamp("ns"))
    for name, tables in {
        "other types.parquet": [first, pa.table({"id": ["x"]})],
        "nanoseconds.parquet": [pa.table({"at": noon})],  # as pandas writes them
        "times.parquet": [pa.table({"at": pa.array([datetime.time(12)])})],
    }.items():
        with pytest.raises(errors.InvalidInput, match="cannot be read"):
            read(name, *tables)


@pytest.mark.parametrize("nested", ["sub", "id=1/sub"])
def test_a_folder_is_read_as_a_whole_or_not_at_all(shell: Any, tmp_path: Path, nested: str) -> None:
    (tmp_path / "all.csv" / nested).mkdir(parents=True)
    (tmp_path / "all.csv" / "_temporary").mkdir()
    (tmp_path / "all.csv" / "a.csv").write_text("id\n1\n", encoding="utf-8")
    assert "would not be read" in shell("send", "orders", tmp_path / "all.csv", code=2).stderr
    assert shell.json("depth", "orders")[0]["available"] == 0


def test_what_waits_is_purged_moved_and_sent_back(shell: Any, three: str) -> None:
    shell("create", "others", "--schema", SCHEMA)
    shell("send", "orders", three, "--priority", 9)
    assert shell.json("move", "orders", "others") == [
        {"queue": "orders", "to": "others", "moved": 3}
    ]
    manager = QueueManager(None, store=shell.store, runtime=runtime(shell.clock, "test"))
    manager.queue("others").receive().reject(reason="bad")
    (found,) = shell.json("dead-letters", "others")
    assert (found["queue"], found["reason"], found["waiting"]) == ("others", "bad", 3)
    assert shell.json("redrive", "others.dead")[0]["redriven"] == 3
    assert shell.json("dead-letters", "others") == []
    assert shell("purge", "others", code=2).stdout == ""
    assert shell.json("purge", "others", "--yes")[0]["purged"] == 3
    shell("send", "orders", three, "--delay-seconds", 60)
    row = next(r for r in shell.json("metrics") if r["queue"] == "orders")
    assert (row["delayed"], row["available"]) == (3, 0)
    assert 'txnqueue_delayed{queue="orders"} 3' in shell("metrics", "--prometheus").stdout
    shell.clock.advance(61)
    shell("send", "orders", three, "--ttl-seconds", 5)
    shell.clock.advance(5)
    assert shell.json("depth", "orders")[0]["available"] == 3


def test_the_payload_of_messages_is_erased(
    shell: Any, three: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell("send", "orders", three)
    (staged,) = vars(shell.store.payload)["_slices"].items()
    (_, send_id), slice_ = staged

    def matching(*given: object) -> list[StagedPlace]:
        assert given[-1] == "id < 3"
        return [(slice_, send_id, ((0, 1),))]

    monkeypatch.setattr(MemoryPayload, "matching", matching)  # a store in memory has no Spark
    asked = ("erase", "orders", "--where", "id < 3", "--reason", "request 7")
    assert shell(*asked, code=2).stdout == ""
    (done,) = shell.json(*asked, "--yes")
    assert (done["erased"], done["purged"], done["undecided"]) == (2, 2, 0)
    assert done["readable_until"]
    assert shell.json("depth", "orders")[0]["available"] == 1
    shell("send", "orders", three)
    manager = QueueManager(None, store=shell.store, runtime=runtime(shell.clock, "test"))
    held = manager.queue("orders").receive()
    monkeypatch.setattr(MemoryPayload, "matching", lambda *_: [(slice_, send_id, ((0, 2),))])
    assert "in flight" in shell(*asked, "--yes", code=75).stderr
    held.accept()


def test_a_queue_is_dropped_unless_something_prepared_holds_it_back(shell: Any, three: str) -> None:
    shell("send", "orders", three)
    manager = QueueManager(None, store=shell.store, runtime=runtime(shell.clock, "test"))
    tx = manager.transaction("T")
    tx.queue("orders").receive(1)
    tx.prepare()
    assert shell("drop", "orders", code=2).stdout == ""
    assert "T" in shell("drop", "orders", "--yes", code=75).stdout
    assert shell.json("recover")[0]["drops"][0]["held_by"] == ["T"]
    shell("send", "orders", three, code=3)
    manager.rollback("T")
    result = shell.json("drop", "orders", "--yes", "--reason", "replaced")
    assert result == [
        {"queue": "orders", "dropped": True, "held_by": [], "messages": 3, "existed": True}
    ]
    assert [row["queue"] for row in shell.json("list")] == ["orders.dead"]
    shell("drop", "orders", "--yes", code=3)
    shell("drop", "orders", "--yes", "--missing-ok")
    assert "queue_dropped" in [row["kind"] for row in shell.json("history", "--queue", "orders")]


@pytest.mark.parametrize("what", [("drop", "queue"), ("drop-exchange", "exchange")])
def test_what_was_not_there_is_not_said_to_be_dropped(shell: Any, what: tuple[str, str]) -> None:
    words = (what[0], "nope", "--yes", "--missing-ok")
    (said,) = shell.json(*words)
    assert (said[what[1]], said["dropped"], said["existed"]) == ("nope", True, False)
    assert shell(*words).stdout == f"{what[1].capitalize()} nope does not exist.\n"


@pytest.mark.parametrize(
    "words", [("drop", "orders"), ("purge", "orders"), ("drop-exchange", "events")]
)
def test_an_empty_reason_is_no_reason(shell: Any, words: tuple[str, str]) -> None:
    for reason in ("", " "):
        assert "give the reason" in shell(*words, "--yes", "--reason", reason, code=2).stderr


def test_who_sends_back_from_the_queue_itself_is_told_where_its_dead_letters_are(
    shell: Any,
) -> None:
    assert "are in orders.dead." in shell("redrive", "orders").stderr
    assert shell("redrive", "orders.dead").stderr == ""


def test_declared_queues_are_applied_once(shell: Any, tmp_path: Path) -> None:
    file = tmp_path / "queues.yaml"
    file.write_text("queues:\n  bills:\n    schema: n long\n    lanes: 2\ndrop: [orders]\n")
    created = [{"action": "create", "queue": "bills", "changes": ""}]
    assert shell.json("declare", file, "--dry-run", code=5) == created
    assert shell.json("declare", file) == created
    assert shell.json("declare", file) == [] == shell.json("declare", file, "--dry-run")
    file.write_text("queues:\n  bills:\n    schema: n long, note string\n    lease_seconds: 9\n")
    altered = shell.json("declare", file)[0]
    assert altered["changes"] == "lease_seconds: 300.0 -> 9, column note: none -> string"
    file.write_text("drop: [orders]\n")
    assert shell.json("declare", file, "--drop")[0]["action"] == "drop"
    for text in ("queues: [", "- bills", "queus: {}"):
        file.write_text(text)
        assert "queue" in shell("declare", file, code=2).stderr
    shell("declare", tmp_path / "nowhere.yaml", code=2)


@pytest.mark.parametrize(
    "text",
    [
        "queues: {a: {schema: n long}}\nqueues: {b: {schema: n long}}\n",
        "queues:\n  bills: {schema: n long}\n  bills: {schema: n int}\n",
        "queues:\n  bills: {schema: n long, lanes: 2, 'lanes': 3}\n",
    ],
)
def test_a_name_that_a_yaml_file_gives_twice_is_refused(tmp_path: Path, text: str) -> None:
    """PyYAML would keep the last value: whatever stands below the first one would be lost."""
    file = tmp_path / "twice.yaml"
    file.write_text(text)
    with pytest.raises(errors.InvalidInput, match="is given twice"):
        read_yaml(str(file))


def test_what_yaml_merges_may_be_given_again(tmp_path: Path) -> None:
    file = tmp_path / "merged.yaml"
    file.write_text("base: &base {schema: n long, lanes: 2}\nbills: {<<: *base, lanes: 3}\n")
    assert read_yaml(str(file))["bills"] == {"schema": "n long", "lanes": 3}


def test_a_file_of_declarations_is_read_before_the_store_is_opened(tmp_path: Path) -> None:
    """Opening a store starts Spark, which takes some seconds."""
    opened: list[Options] = []
    said = CliRunner().invoke(app, ["declare", str(tmp_path / "none.yaml")], obj=opened.append)
    assert (said.exit_code, opened) == (2, [])


def test_the_doctor_shows_what_the_environment_sets(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXNQUEUE_ACTOR", "nightly")
    monkeypatch.setenv("TXNQUEUE_QUEUE_LANES", "none")
    rows = {row["name"]: row for row in shell.json("doctor", code=3)}
    assert (rows["actor"]["found"], rows["actor"]["verdict"]) == ("nightly", "ok")
    assert rows["queue.lanes"]["verdict"] == "error"
    assert "a whole number from 1 to 256" in rows["queue.lanes"]["meaning"]
    assert "run_id" not in rows
    monkeypatch.delenv("TXNQUEUE_QUEUE_LANES")
    monkeypatch.setenv("TXNQUEUE_QUEUE_REDELIVERY_DELAY_SECONDS", "7200")
    rows = {row["name"]: row for row in shell.json("doctor", code=3)}
    assert "longer than redelivery_delay_seconds_max" in rows["queue"]["meaning"]


def test_a_setting_that_cannot_be_used_is_a_mistake_of_the_configuration(
    shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TXNQUEUE_QUEUE_LANES", "none")
    assert "TXNQUEUE_QUEUE_LANES" in shell("create", "new", "--schema", SCHEMA, code=3).stderr
    shell("create", "new", "--schema", SCHEMA, "--lanes", 0, code=2)


def test_what_is_published_goes_to_the_queues_that_are_bound(shell: Any, three: Path) -> None:
    shell("create", "audit", "--schema", SCHEMA)
    shell("create-exchange", "events", "--schema", SCHEMA, "--kind", "headers")
    assert shell.json("bind", "events", "audit", "--argument", "kind=late")[0]["changed"]
    assert not shell.json("bind", "events", "audit", "--argument", "kind=late")[0]["changed"]
    shell("bind", "events", "orders", "--argument", "kind", "--argument", "x-match=any")
    told = shell.json("publish", "events", three, "--header", "kind=late", "--transaction-id", "p")
    assert told[0]["queues"] == {"audit": 3, "orders": 3}
    again = shell.json("publish", "events", three, "--header", "kind=late", "--transaction-id", "p")
    assert (again[0]["count"], again[0]["already_committed"]) == (0, True)
    gone = three.with_name("gone.csv")
    assert shell.json("publish", "events", gone, "--transaction-id", "p")[0] == again[0]
    shell("publish", "events", gone, code=2)
    assert shell.json("publish", "events", three)[0]["unroutable"] == 3
    assert "No queue gets the 3 unroutable messages" in shell("publish", "events", three).stderr
    assert shell.json("unbind", "events", "audit", "--argument", "kind=late")[0]["changed"]
    assert [row["queue"] for row in shell.json("bindings", "events")] == ["orders"]
    kinds = [row["kind"] for row in shell.json("bindings", "events", "--history")]
    assert kinds == ["bound", "bound", "unbound"]
    listed = shell.json("exchanges")
    assert [(row["name"], row["type"], row["bindings"]) for row in listed] == [
        ("events", "headers", 1)
    ]
    shell("bind", "nobody", "orders", code=3)
    shell("bind", "events", "orders", "--argument", "=x", code=2)
    for words in (
        ("bind", "events", "orders", "--argument"),
        ("publish", "events", three, "--header"),
    ):
        assert "given twice" in shell(*words, "k=1", words[-1], "k=2", code=2).stderr


def test_nobody_has_to_publish_again_what_the_dead_letters_got(shell: Any, three: Path) -> None:
    kept = ("--unroutable", "dead_letter", "--dead-letter-queue", "orders.dead")
    shell("create-exchange", "kept", "--schema", SCHEMA, *kept)
    result = shell("publish", "kept", three)
    assert "3 of them unroutable" in result.stdout and result.stderr == ""


def test_an_exchange_grows_and_is_dropped(shell: Any, three: str) -> None:
    manager = memory_manager(shell.store, shell.clock, name="user")
    shell("create-exchange", "events", "--schema", SCHEMA, "--kind", "fanout")
    shell("bind", "events", "orders")
    refused = shell("alter-exchange", "events", "--add", "note string", code=2)
    assert "orders" in refused.output
    manager.queue("orders").alter(add="note string")
    told = shell.json("alter-exchange", "events", "--add", "note string")
    assert told == [{"exchange": "events", "changes": {"column note": "string"}}]
    assert "nothing" in shell("alter-exchange", "events", "--add", "note string").output
    tx = manager.transaction("t")
    tx.exchange("events").publish([{"id": 1}])
    tx.prepare()
    shell("drop-exchange", "events", code=2)
    held = shell.json("drop-exchange", "events", "--yes", code=75)
    assert held == [{"exchange": "events", "dropped": False, "held_by": ["t"], "existed": True}]
    assert shell.json("exchanges")[0]["closing"]
    shell("publish", "events", three, code=3)
    assert shell.json("recover")[0]["exchange_drops"] == held
    assert "held back" in shell("recover").output
    manager.commit("t")
    assert "is dropped" in shell("drop-exchange", "events", "--yes", "--reason", "old").output
    shell("drop-exchange", "events", "--yes", code=3)
    shell("drop-exchange", "events", "--yes", "--missing-ok")
    assert manager.queue("orders").depth() == 1
