"""``txnqueue consume``: the job that a scheduler runs, and repeats."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
from tests.faults.injection import Crash
from tests.shell.test_cli import SCHEMA, Shell
from txnqueue.cli import handlers, signals
from txnqueue.cli.consume import showing
from txnqueue.cli.signals import on_sigterm
from txnqueue.core import model
from txnqueue.errors import HandlerFailed, InvalidInput
from txnqueue.queue import Queue
from txnqueue.testing import memory_manager, plain_schema

SEEN: list[list[int]] = []
"""What the handlers of this module were handed."""
ASKING = {"with": signal.SIGTERM}
"""The signal with which they ask to stop."""


def refuse_three(batch: Any, tx: Any) -> None:
    if 3 in [row["id"] for row in batch.messages()]:
        raise ValueError("three")


def send_to_nowhere(batch: Any, tx: Any) -> None:
    tx.queue("nowhere").send(batch.messages())


def remember(batch: Any, tx: Any) -> None:
    SEEN.append([row["id"] for row in batch.messages()])


def fail(batch: Any, tx: Any) -> None:
    raise ZeroDivisionError("no")


def send_on(batch: Any, tx: Any) -> None:
    tx.queue("done").send(batch.messages())


def change_table(batch: Any, tx: Any) -> None:
    tx.table("gold").append(batch.to_arrow())


def die_at_the_fourth(batch: Any, tx: Any) -> None:
    if len(SEEN) == 3:
        raise Crash("killed")
    remember(batch, tx)
    send_on(batch, tx)


def terminate_in_the_second(batch: Any, tx: Any) -> None:
    if len(SEEN) == 1:
        os.kill(os.getpid(), ASKING["with"])
    remember(batch, tx)


def terminate_and_hang(batch: Any, tx: Any) -> None:
    remember(batch, tx)
    os.kill(os.getpid(), ASKING["with"])
    signal.pause()


def hang_in_the_third(batch: Any, tx: Any) -> None:
    if len(SEEN) == 2:
        terminate_and_hang(batch, tx)
    remember(batch, tx)


@pytest.fixture
def shell() -> Shell:
    SEEN.clear()
    made = Shell()
    made("create", "orders", "--schema", SCHEMA)
    made("create", "done", "--schema", SCHEMA)
    manager = memory_manager(made.store, made.clock, "sender")
    manager.queue("orders").send([{"id": i} for i in range(10)])
    return made


def consume(shell: Shell, handler: str, *options: Any, code: int = 0) -> dict[str, Any]:
    name = f"tests.shell.test_consume:{handler}"
    lines = shell.json("consume", "orders", "--handler", name, *options, code=code)
    return lines[0] if lines else {}


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_queue_is_drained(shell: Shell, ahead: int) -> None:
    said = consume(shell, "remember", "--batch-size", 4, "--run-id", "night", "--ahead", ahead)
    assert SEEN == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert said == {
        "queue": "orders",
        "run_id": "night",
        "messages": 10,
        "batches": 3,
        "errors": 0,
        "dead_lettered": 0,
        "finished": True,
        "already_finished": False,
        "applied": True,
        "stopped": False,
    }


def test_a_finished_run_and_an_empty_queue_are_nothing_to_do(shell: Shell) -> None:
    consume(shell, "remember", "--run-id", "night")
    again = consume(shell, "remember", "--run-id", "night", "--nothing-exit-code", 99, code=99)
    assert again["already_finished"] and len(SEEN) == 1
    assert consume(shell, "remember")["messages"] == 0


def test_a_run_that_is_stopped_before_its_first_batch_did_not_find_nothing_to_do(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth = Queue.depth

    def meanwhile(queue: Queue) -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        return depth(queue)

    monkeypatch.setattr(Queue, "depth", meanwhile)
    ended = consume(shell, "remember", "--run-id", "night", "--nothing-exit-code", 99, code=0)
    assert (ended["messages"], ended["stopped"], ended["finished"]) == (0, True, False)


@pytest.mark.parametrize(
    ("bound", "left"),
    [("--max-batches=2", 4), ("--max-messages=4", 6), ("--max-seconds=0", 10)],
)
def test_a_run_has_bounds(shell: Shell, bound: str, left: int) -> None:
    said = consume(shell, "remember", "--batch-size", 3, bound)
    assert not said["finished"] and said["messages"] == 10 - left
    assert shell.json("depth", "orders")[0] == {
        "queue": "orders",
        "available": left,
        "in_flight": 0,
    }


def test_the_id_of_another_queues_run_is_a_mistake_of_the_call(shell: Shell) -> None:
    consume(shell, "remember", "--run-id", "night")
    words = ["consume", "orders.dead", "--handler", f"{__name__}:remember", "--run-id", "night"]
    assert "another queue" in shell(*words, code=2).stderr


def test_a_failing_handler_has_its_own_code(shell: Shell) -> None:
    result = shell(
        "consume", "orders", "--handler", "tests.shell.test_consume:fail", "--errors-max", 2, code=4
    )
    assert "ZeroDivisionError" in result.stderr
    assert shell.json("depth", "orders")[0]["available"] == 10


def test_dead_letters_have_their_own_code_and_tell_the_last_error(shell: Shell) -> None:
    said = consume(shell, "refuse_three", "--run-id", "night", code=6)
    assert (said["messages"], said["dead_lettered"], said["finished"]) == (9, 1, True)
    (letters,) = shell.json("dead-letters", "orders")
    assert (letters["waiting"], letters["reason"]) == (1, "deliveries_max")
    assert letters["error"] == "ValueError: three"
    assert "ValueError: three" in shell("peek", "orders.dead").stdout
    assert consume(shell, "refuse_three", "--run-id", "night")["already_finished"]


def test_who_does_not_mind_dead_letters_says_so(shell: Shell) -> None:
    assert consume(shell, "refuse_three", "--dead-letters-exit-code", 0)["dead_lettered"] == 1


def test_a_run_that_consumed_nothing_and_failed_is_no_success(shell: Shell) -> None:
    manager = memory_manager(shell.store, shell.clock, "reader")
    shell("create", "one", "--schema", SCHEMA, "--deliveries-max", 1)
    manager.queue("one").send([{"id": 3}])
    name = "tests.shell.test_consume:refuse_three"
    result = shell("consume", "one", "--handler", name, "--output", "json", code=4)
    said = json.loads(result.stdout)
    assert (said["messages"], said["errors"], said["dead_lettered"]) == (0, 1, 1)
    assert "ValueError: three" in result.stderr


def test_a_mistake_of_the_job_ends_the_run_and_says_what_it_did(shell: Shell) -> None:
    said = consume(shell, "send_to_nowhere", code=4)
    assert (said["messages"], said["errors"], said["dead_lettered"]) == (0, 1, 0)
    waiting = memory_manager(shell.store, shell.clock, "reader").queue("orders").peek_messages()
    assert {row["_message"]["delivery_count"] for row in waiting} == {0}


@pytest.mark.parametrize("given", [(), ("--handler", "a:b", "--sql", "job.sql")])
def test_one_of_a_handler_and_a_sql_file_is_given(shell: Shell, given: tuple[str, ...]) -> None:
    said = shell("consume", "orders", *given, code=2).stderr
    assert "Give one of --handler and --sql, not both or neither." in said


@pytest.mark.parametrize(
    "target", ["-- send: nowhere", "-- append: /no/table", "-- merge: t on id"]
)
def test_a_sql_files_targets_are_looked_up_before_anything_is_claimed(
    shell: Shell, tmp_path: Path, target: str
) -> None:
    file = tmp_path / "job.sql"
    file.write_text(f"-- reject: gone\nSELECT * FROM batch;\n{target}\nSELECT * FROM batch")
    before = len(shell.store.journal.commits)
    result = shell("consume", "orders", "--sql", file, code=2)
    assert target in result.stderr and len(result.stderr.splitlines()) == 1
    assert len(shell.store.journal.commits) == before


@pytest.mark.parametrize(
    "text",
    [
        *("def handle(:", "import there_is_none", "no_such_name = misspelt", "size = len(5)"),
        *("import json; json.lods('{}')", "import os; os.environ['NO_SUCH_NAME']"),
        *("batches = int('many')", "rate = 1 / 0", "assert 1 > 2"),
    ],
)
def test_a_handler_that_cannot_be_imported_is_a_mistake_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    name = f"broken_{len(text)}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInput, match="cannot be imported"):
        handlers.load(f"{name}:handle")


@pytest.mark.parametrize("text", ["raise TimeoutError('no answer')", "raise RuntimeError('away')"])
def test_a_module_that_a_service_fails_may_be_imported_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    name = f"waiting_{len(text)}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises((TimeoutError, RuntimeError)):
        handlers.load(f"{name}:handle")


@pytest.mark.parametrize("name", ["", "job", ":handle", "job:", ".job:handle", "..job:handle"])
def test_a_handler_is_named_by_its_module_and_function(name: str) -> None:
    with pytest.raises(InvalidInput, match="write module:function"):
        handlers.load(name)


def test_remarks_behind_a_query_are_no_part_of_it() -> None:
    (step, other) = handlers.parse(
        "-- send: a\nSELECT * FROM batch;\n-- the rest is kept\n\n-- send: b\nSELECT 1 AS x\n"
    )
    assert (step.query, other.query) == ("SELECT * FROM batch", "SELECT 1 AS x")


def test_killed_after_three_batches_and_repeated_twice_everything_happens_once(
    shell: Shell,
) -> None:
    options = ("--batch-size", 1, "--run-id", "night", "--consumer", "job")
    with pytest.raises(Crash):
        result = shell.factory
        from typer.testing import CliRunner

        from txnqueue.cli.main import app

        arguments = ["consume", "orders", "--handler", "tests.shell.test_consume:die_at_the_fourth"]
        CliRunner().invoke(
            app, [*arguments, *map(str, options)], obj=result, catch_exceptions=False
        )
    assert SEEN == [[0], [1], [2]]
    first = consume(shell, "send_on", *options)
    assert (first["messages"], first["finished"]) == (7, True)
    second = consume(shell, "send_on", *options)
    assert (second["messages"], second["already_finished"]) == (0, True)
    manager = memory_manager(shell.store, shell.clock, "reader")
    done = sorted(row["id"] for row in manager.queue("done").peek_messages(100))
    assert done == list(range(10))
    committed = [e.stream for c, _ in shell.store.journal.commits for e in c if e.attempt]
    assert {f"night/{n}" for n in range(10)} <= set(committed)


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
def asked_with(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(ASKING, "with", request.param)
    return str(request.param.name)


@pytest.mark.usefixtures("asked_with")
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_signal_lets_the_batch_finish_and_gives_the_rest_back(shell: Shell, ahead: int) -> None:
    said = consume(shell, "terminate_in_the_second", "--batch-size", 3, "--ahead", ahead)
    assert SEEN == [[0, 1, 2], [3, 4, 5]]
    assert said["stopped"] and not said["finished"] and said["messages"] == 6
    assert shell.json("depth", "orders")[0] == {"queue": "orders", "available": 4, "in_flight": 0}


def test_a_batch_that_goes_on_too_long_after_a_signal_is_rolled_back(
    shell: Shell, asked_with: str
) -> None:
    name = "tests.shell.test_consume:terminate_and_hang"
    said = shell("consume", "orders", "--handler", name, "--grace-seconds", 0.1, code=130).stderr
    assert said.endswith(f"txnqueue: interrupted: not finished 0.1 seconds after {asked_with}\n")
    assert len(SEEN) == 1
    assert shell.json("depth", "orders")[0] == {"queue": "orders", "available": 10, "in_flight": 0}


def test_what_is_claimed_ahead_goes_back_with_a_batch_that_goes_on_too_long(shell: Shell) -> None:
    name = "tests.shell.test_consume:hang_in_the_third"
    options = ("--grace-seconds", 0.1, "--batch-size", 2, "--ahead", 1)
    shell("consume", "orders", "--handler", name, *options, code=130)
    assert SEEN == [[0, 1], [2, 3], [4, 5]]
    assert shell.json("depth", "orders")[0] == {"queue": "orders", "available": 6, "in_flight": 0}


def test_the_signals_are_put_back() -> None:
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
    before = [signal.getsignal(number) for number in numbers]
    with on_sigterm(5) as stop:
        assert not stop()
    assert [signal.getsignal(number) for number in numbers] == before


class Terminal(io.StringIO):
    """A terminal that can be closed from outside."""

    gone = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.gone:
            raise OSError(errno.EIO, "it is closed")
        return super().write(text)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_progress_bar_ends_without_an_error_when_its_terminal_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with showing(10, json_lines=False) as advance:
        advance(1)
        terminal.gone = True
    assert "consuming" in terminal.getvalue() and sys.stderr is terminal


def test_a_handler_that_python_did_not_install_is_not_put_back() -> None:
    """Python knows it as None, and cannot install it."""
    before = signal.getsignal(signal.SIGTERM)
    signals._put_back({signal.SIGTERM: None})
    assert signal.getsignal(signal.SIGTERM) == before


def test_after_nohup_a_closed_terminal_stops_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with on_sigterm(5) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_sigterm_at_the_very_end_leaves_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would end the process with SIGALRM."""
    heard, set_timer = [], signal.setitimer

    def terminated_then(which: int, seconds: float) -> None:
        set_timer(which, seconds)
        if not seconds:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("outside"))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(signal, "setitimer", terminated_then)
            with on_sigterm(5) as stop:
                pass
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
        assert heard == ["outside"] and not stop()
    finally:
        set_timer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, before)


def test_what_a_job_prints_is_no_part_of_the_result(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "print('once')\n\ndef handle(batch, tx):\n    print('something')\n"
    (tmp_path / "loud_job.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    said = shell("consume", "orders", "--handler", "loud_job:handle", "--output", "json")
    assert json.loads(said.stdout)["messages"] == 10
    assert {"once", "something"} <= {*said.stderr.splitlines()}


def test_what_a_program_of_a_job_prints_is_no_part_of_the_result_either(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    text = "import os\nos.system('echo once')\n\ndef handle(batch, tx):\n    os.write(1, b'all ')\n"
    (tmp_path / "job_with_programs.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    shell("consume", "orders", "--handler", "job_with_programs:handle")
    os.write(1, b"the result")
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("the result", "once\nall ")
    with monkeypatch.context() as patch:  # the descriptor may be another file's by now
        patch.setattr(sys, "stdout", None)
        with handlers._printing_on_stderr():
            os.write(1, b"not ours")
    assert capfd.readouterr().out == "not ours"


def test_the_log_is_json_lines(shell: Shell) -> None:
    name = "tests.shell.test_consume:remember"
    result = shell("consume", "orders", "--handler", name, "--batch-size", 4, "--run-id", "r")
    lines = [json.loads(line) for line in result.stderr.splitlines() if line.startswith("{")]
    batches = [line for line in lines if line["event"] == "batch committed"]
    assert [b["messages"] for b in batches] == [4, 4, 2]
    assert [b["transaction_id"] for b in batches] == ["r/0", "r/1", "r/2"]
    assert lines[-1]["event"] == "drain ended" and lines[-1]["finished"]


def test_unapplied_changes_have_their_own_code(shell: Shell) -> None:
    tables = shell.store.tables
    tables.create("gold", plain_schema(SCHEMA))
    apply = tables.apply

    def refuses(*_: Any, **__: Any) -> None:
        raise ConnectionError("the table's storage is away")

    tables.apply = refuses
    said = consume(shell, "change_table", "--run-id", "r", code=77)
    assert said["messages"] == 10 and not said["applied"]
    waiting = shell.json("recover", code=77)[0]["waiting"]
    assert "away" in waiting[0]["reason"] and waiting[0]["table"] == "gold"
    told, name = shell("recover", code=77).stdout, waiting[0]["change_id"]
    assert waiting[0]["remedy"] in told and "recover()" not in told
    for typed in ("recover", f"apply-change {name}", f"waive-change {name} --reason WHY"):
        assert f"txnqueue {typed}" in told
    tables.apply = apply
    assert shell.json("recover")[0]["waiting"] == []
    assert tables.rows("gold").num_rows == 10


def test_the_last_change_of_a_table_is_confirmed_by_the_end_of_the_command(shell: Shell) -> None:
    shell.store.tables.create("gold", plain_schema(SCHEMA))
    consume(shell, "change_table", "--batch-size", 4)
    kinds = Counter(entry.kind for entry in shell.store.journal.entries())
    assert kinds[model.CHANGE_DECIDED] == kinds[model.CHANGE_APPLIED] == 3


def test_what_cannot_be_closed_changes_no_exit_code(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> None:
        raise OSError("the session is gone")

    monkeypatch.setattr(shell.store, "close", gone)
    assert consume(shell, "remember")["messages"] == 10


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--handler", "nowhere.at.all:handle"),
        ("--handler", "tests.shell.test_consume:nothing"),
        ("--handler", "tests.shell.test_consume"),
        ("--sql", "no/such/file.sql"),
        ("--handler", "a:b", "--sql", "c"),
        ("--handler", "tests.shell.test_consume:remember", "--until", "never"),
        ("--handler", "tests.shell.test_consume:remember", "--ahead", "2"),
        ("--handler", "tests.shell.test_consume:remember", "--grace-seconds", "inf"),
        ("--handler", "tests.shell.test_consume:remember", "--grace-seconds", "nan"),
    ],
)
def test_what_cannot_be_run_is_refused(shell: Shell, options: tuple[str, ...]) -> None:
    shell("consume", "orders", *options, code=2)
    assert shell.json("depth", "orders")[0]["available"] == 10


def test_a_sql_file_that_changes_tables_is_not_run_ahead(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "job.sql"
    file.write_text("-- append: gold\nSELECT id FROM batch")
    shell.store.tables.create("gold", plain_schema(SCHEMA))
    result = shell("consume", "orders", "--sql", file, "--ahead", 1, code=2)
    assert "--ahead" in result.stderr
    assert shell.json("depth", "orders")[0]["available"] == 10


def test_a_sql_file_says_what_becomes_of_rows() -> None:
    steps = handlers.parse(
        """-- nightly
        -- reject: cancelled
        SELECT * FROM batch WHERE gone;
        -- merge: gold.totals on a, b
        SELECT a, b, count(*) AS n
        FROM batch GROUP BY a, b
        """
    )
    assert [(s.verb, s.target, s.keys) for s in steps] == [
        ("reject", "cancelled", ()),
        ("merge", "gold.totals", ("a", "b")),
    ]
    assert steps[0].query == "SELECT * FROM batch WHERE gone"
    assert [s.line for s in steps] == [3, 5]


def test_spark_counts_the_lines_of_a_query_as_the_file_does() -> None:
    (_, step) = handlers.parse("-- send: a\nSELECT 1;\n-- send: b\n\n-- why\nSELECT 2\n+ x\n")
    assert step.placed.split("\n")[step.line - 1 :] == step.query.split("\n")
    assert step.placed.split("\n").index("+ x") == 6  # the seventh line


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("SELECT 1; -- all", "SELECT 1"),
        ("SELECT 1 ;-- all; or none\n-- next", "SELECT 1"),
        ("SELECT ';' AS a; -- it's all", "SELECT ';' AS a"),
        ("SELECT 1 AS `a;--b`", "SELECT 1 AS `a;--b`"),
        ("SELECT 'a; -- b'", "SELECT 'a; -- b'"),
        ("SELECT 1 -- all", "SELECT 1 -- all"),
    ],
)
def test_a_query_may_end_with_a_semicolon_and_a_remark(text: str, query: str) -> None:
    (step,) = handlers.parse(f"-- send: a\n{text}\n")
    assert step.query == query


def test_a_sql_file_may_begin_with_a_mark_and_its_texts_stay_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "of_windows.sql"
    query = "SELECT * FROM batch WHERE note = 'a\x0b\x85\u2028b'"
    file.write_bytes(f"\ufeff-- reject: gone\r\n{query};\r\n".encode())
    (step,) = handlers.parse(file.read_text(encoding="utf-8-sig"))
    assert step.query == query
    assert not handlers.read_sql(str(file)).changes_tables


@pytest.mark.parametrize(
    "text", ["", "SELECT 1", "-- send: q", "-- merge: t\nSELECT 1", "-- a comment"]
)
def test_a_sql_file_that_says_it_not_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        handlers.parse(text)


def test_a_handler_is_found_beside_the_job(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "my_job.py").write_text("def handle(batch, tx):\n    return 5\n")
    monkeypatch.chdir(tmp_path)
    assert handlers.load("my_job:handle")(None, None) == 5  # type: ignore[arg-type]
    sys.modules.pop("my_job")


@pytest.mark.spark
def test_a_sql_file_routes_a_batch_on_delta(spark: Any, tmp_path: Path) -> None:
    from txnqueue.manager import QueueManager

    root, totals = str(tmp_path / "store"), str(tmp_path / "totals")
    manager = QueueManager(spark, root)
    for name in ("orders", "done"):
        manager.create_queue(name, SCHEMA)
    spark.sql(f"CREATE TABLE delta.`{totals}` (name string, n long) USING delta")
    rows = [{"id": i, "name": "ab"[i % 2]} for i in range(5)] + [{"id": 9, "name": None}]
    manager.queue("orders").send(rows)
    file = tmp_path / "job.sql"
    file.write_text(
        "-- reject: nameless\nSELECT * FROM batch WHERE name IS NULL;\n"
        "-- send: done\nSELECT * FROM batch WHERE name = 'a';\n"
        f"-- merge: {totals} on name\n"
        "SELECT name, count(*) AS n FROM batch WHERE name IS NOT NULL GROUP BY name"
    )
    job = handlers.read_sql(str(file))
    _cannot_run(manager, spark, tmp_path, totals)
    job.check(manager, manager.queue("orders"), spark)
    assert manager.queue("orders").depth() == 6
    result = manager.queue("orders").drain(job)
    assert (result.messages, result.applied) == (6, True)
    assert sorted(r["id"] for r in manager.queue("done").peek_messages()) == [0, 2, 4]
    assert manager.queue("orders.dead").depth() == 1
    assert sorted(map(tuple, spark.read.format("delta").load(totals).collect())) == [
        ("a", 3),
        ("b", 2),
    ]


WRONG = {
    "-- send: done\nSELECT id, nmae AS name FROM batch": "nmae",
    "-- send: done\nSELECT id, name AS title FROM batch": "'title' is not in the schema",
    "-- send: done\nSELECT name AS id FROM batch": "takes bigint, not string",
    "-- send: done\nSELEKT id FROM batch": "SYNTAX",
    "-- send: done\nDROP TABLE delta.`{totals}`": "SYNTAX",
    "-- send: done\nSELECT * FROM no_such_table": "no_such_table",
    "-- reject: bad\nSELECT id FROM batch": "_message",
    "-- append: {totals}\nSELECT name, id AS m FROM batch": "'m'",
    "-- merge: {totals} on id\nSELECT name, id AS n FROM batch": "'id' must be in the rows",
    "-- merge: {totals} on name\nSELECT name, id FROM batch": "'id' must be in the rows",
    "-- append: {totals}-gone\nSELECT name, id AS n FROM batch": "no table",
}


def _cannot_run(manager: Any, spark: Any, folder: Path, totals: str) -> None:
    """What cannot run is refused by one line that says where and why."""
    for number, (text, why) in enumerate(WRONG.items()):
        file = folder / f"wrong{number}.sql"
        file.write_text("-- reject: nameless\nSELECT * FROM batch WHERE name IS NULL;\n")
        with file.open("a") as more:
            more.write(text.replace("{totals}", totals))
        with pytest.raises(InvalidInput) as caught:
            handlers.read_sql(str(file)).check(manager, manager.queue("orders"), spark)
        said = str(caught.value)
        assert why in said and f"wrong{number}.sql" in said and "\n" not in said, said
    assert spark.read.format("delta").load(totals).count() == 0  # it was not dropped


@pytest.mark.spark
def test_what_spark_cannot_plan_is_the_jobs_fault_and_what_it_cannot_compute_may_be_a_messages(
    spark: Any, tmp_path: Path
) -> None:
    from txnqueue.manager import QueueManager

    orders = QueueManager(spark, str(tmp_path / "store")).create_queue("orders", "id long")
    orders.send([{"id": 0}])

    def misspelt(batch: Any, tx: Any) -> None:
        batch.df.select("amout").count()

    def misspelt_predicate(batch: Any, tx: Any) -> None:
        batch.reject(where="amout < 0")

    def wrong_column(batch: Any, tx: Any) -> None:
        tx.queue("orders").send(batch.df.selectExpr("id AS amount"))

    def divides(batch: Any, tx: Any) -> None:
        tx.queue("orders").send(batch.df.selectExpr("CAST(100 DIV id AS long) AS id"))

    for handler, count in ((misspelt, 0), (misspelt_predicate, 0), (wrong_column, 0), (divides, 1)):
        with pytest.raises(HandlerFailed) as caught:
            orders.drain(handler, errors_max=1 if handler is divides else 20)
        assert caught.value.result.errors == 1
        (row,) = orders.peek_messages()
        assert row["_message"]["delivery_count"] == count, handler
