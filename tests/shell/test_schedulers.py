"""The page about schedulers: its code runs up to the schedulers' own calls, its commands are ours.

What platforms would call is called as they are told to: a job of Databricks and a step of EMR name
options of ours, and the cell of a notebook gets a session. Airflow and Dagster stand in by modules
of a few lines; ``txnqueue`` is a program that records how it is called and ends with the code that
it is told.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("typer")
import yaml
from typer.main import get_command

from txnqueue.cli.main import app
from txnqueue.testing import memory_manager

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "schedulers.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PROGRAM = """#!/bin/sh
echo "$@" >> {calls}
[ "$1" = consume ] || exit 0
[ "$(cat {code})" != killed ] || kill -9 $$
[ "$(cat {code})" = waits ] || exit $(cat {code})
trap 'echo finished >> {calls}; kill $!; exit 0' TERM
sleep 60 &
echo waiting >> {calls}
wait
"""


class AirflowFailException(Exception):
    """What Airflow does not retry."""


class RetryRequested(Exception):
    """What Dagster retries."""

    def __init__(self, max_retries: int, seconds_to_wait: float) -> None:
        super().__init__(max_retries, seconds_to_wait)


class Failure(Exception):
    """What Dagster does not retry, if it says so."""

    def __init__(self, description: str, *, allow_retries: bool = True) -> None:
        assert not allow_retries
        super().__init__(description)


def decorator(*given: Any, **_: object) -> Any:
    """Decorate nothing, with or without arguments."""
    return given[0] if given else lambda function: function


def task(**_: object) -> Any:
    """Decorate nothing, and refuse what Airflow refuses when it reads a file."""

    def checked(function: Any) -> Any:
        given = inspect.signature(function).parameters["run_id"].default
        # "Context key parameter run_id can't have a default other than None"
        assert given in (None, inspect.Parameter.empty), given
        # A call within a DAG only plans the task; a run gives it the id.
        return lambda **run: function(**run) if run else None

    return checked


class Scene:
    """The page's code in a namespace, and the program that it calls."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._calls, self._code = folder / "calls", folder / "code"
        program = folder / "txnqueue"
        program.write_text(_PROGRAM.format(calls=self._calls, code=self._code))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        stands_in: dict[str, dict[str, Any]] = {
            "airflow": {},
            "airflow.exceptions": {"AirflowFailException": AirflowFailException},
            "airflow.sdk": {"dag": decorator, "task": task},
            "dagster": {
                "Failure": Failure,
                "RetryRequested": RetryRequested,
                "job": decorator,
                "op": decorator,
            },
        }
        for name, members in stands_in.items():
            module = ModuleType(name)
            vars(module).update(members)
            monkeypatch.setitem(sys.modules, name, module)
        self.names: dict[str, Any] = {}
        self._code.write_text("0")
        for language, text in _BLOCK.findall(PAGE.read_text()):
            if language == "python":
                exec(text, self.names)
        self._calls.write_text("")

    def calls(self) -> list[str]:
        """List the first words of what was called, and of what the program said."""
        return [line.split()[0] for line in self._calls.read_text().splitlines()]

    def end(
        self, code: int | str, call: Callable[[], object]
    ) -> tuple[type[BaseException] | None, Any]:
        """Let a run end with a code: what the scheduler hears, and what was called."""
        self._code.write_text(str(code))
        self._calls.write_text("")
        heard: type[BaseException] | None = None
        try:
            call()
        except Exception as error:
            heard = type(error)
        return heard, self.calls()


CODES: dict[int | str, str] = {
    0: "done", 1: "retry", 2: "stop", 3: "stop", 4: "stop", 6: "stop", 75: "retry", 76: "retry",
    77: "done", 130: "retry", "killed": "retry",
}  # fmt: skip
RECOVERED = {76, 77}


@pytest.mark.parametrize("code", CODES)
def test_schedulers_hear_what_may_be_repeated(
    code: int | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, monkeypatch)
    calls = ["consume", *(["recover"] if code in RECOVERED else [])]
    airflow = {"done": None, "retry": RuntimeError, "stop": AirflowFailException}
    heard = scene.end(code, lambda: scene.names["consume_orders"](run_id="manual/1"))
    assert heard == (airflow[CODES[code]], calls)

    class Context:
        run_id = "r-1"

    dagster = {"done": None, "retry": RetryRequested, "stop": Failure}
    heard = scene.end(code, lambda: scene.names["consume_orders_op"](Context))
    assert heard == (dagster[CODES[code]], calls)


def test_a_task_that_is_ended_lets_its_run_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path, monkeypatch)

    class Terminated(BaseException):
        """What schedulers raise in a task that gets SIGTERM."""

    def terminate() -> None:
        while "waiting" not in scene.calls():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    def terminated(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminated)
    scheduler = threading.Thread(target=terminate)
    try:
        scheduler.start()
        with pytest.raises(Terminated):
            scene.end("waits", lambda: scene.names["consume"]("night"))
    finally:
        scheduler.join()
        signal.signal(signal.SIGTERM, before)
    assert scene.calls() == ["consume", "waiting", "finished"]


def test_the_page_names_every_exit_code() -> None:
    (cli,) = re.findall(
        r"\n## Exit codes\n(.*?)\n```", (PAGE.parents[1] / "cli.md").read_text(), re.DOTALL
    )
    known = {int(code) for code in re.findall(r"^\| (\d+) \|", cli, re.MULTILINE)}
    rows = re.findall(r"^\| ([\d, *]+) \| (?:no|yes|\*\*no)", PAGE.read_text(), re.MULTILINE)
    assert {int(code) for row in rows for code in row.split(",")} == known
    assert known - {5, 7} == CODES.keys() - {"killed"}  # which are of declare and of depth


def test_a_run_that_waits_for_messages_asks_the_sensor() -> None:
    (waiting,) = re.findall(r"\n## Wait for messages\n(.*?)\n## ", PAGE.read_text(), re.DOTALL)
    (line,) = re.findall(r"^txnqueue depth .*", waiting, re.MULTILINE)
    group: Any = get_command(app)
    context = group.commands["depth"].make_context("depth", shlex.split(line)[2:])
    assert (context.params["at_least"], context.params["wait"]) == (100, True)
    declared = {one.name: one.default for one in group.commands["depth"].params}
    assert f"every {declared['poll_seconds']:g} seconds" in waiting


def block(language: str) -> str:
    """Read the only block of a language."""
    (text,) = (text for kind, text in _BLOCK.findall(PAGE.read_text()) if kind == language)
    return str(text)


def consumption(arguments: list[str]) -> dict[str, Any]:
    """Read the options of a job as the job itself does."""
    group: Any = get_command(app)
    found: dict[str, Any] = group.commands["consume"].make_context("consume", arguments).params
    return found


def test_a_job_of_databricks_names_options_of_ours() -> None:
    (job,) = yaml.safe_load(block("yaml"))["resources"]["jobs"].values()
    (task,) = job["tasks"]
    called = task["spark_python_task"]
    assert (PAGE.parents[2] / called["python_file"]).is_file()
    given = consumption(called["parameters"])
    assert (given["queue"], given["run_id"]) == ("orders", "orders/{{job.run_id}}")
    assert task["max_retries"] and given["dead_letters_exit_code"] == 0, "or it tries in vain"
    assert task["libraries"] == [{"pypi": {"package": "txnqueue[cli]"}}], "or it has no commands"
    assert given["handler"]


def test_a_step_of_emr_names_options_of_ours() -> None:
    (step,) = json.loads(block("json"))
    (at,) = (n for n, word in enumerate(step["Args"]) if word.endswith("consume_queue.py"))
    given = consumption(step["Args"][at + 1 :])
    assert (given["queue"], step["ActionOnFailure"]) == ("orders", "CONTINUE")
    module, _, _ = given["handler"].partition(":")
    assert given["run_id"] and f"/{module}.py" in step["Args"][at - 1], "it is not shipped"


def test_a_notebook_consumes_each_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, manager = Scene(tmp_path, monkeypatch).names, memory_manager()
    for name in ("orders", "bills"):
        manager.create_queue(name, "n long")
    manager.queue("orders").send([{"n": 1}, {"n": 2}])
    opened = []
    names["QueueManager"] = lambda *given: opened.append(given) or manager
    names["bill"] = lambda batch, tx: tx.queue("bills").send(batch.messages())  # without Spark
    first, again = (names["consume_with"]("the session", "r-1") for _ in range(2))
    assert opened == 2 * [("the session", names["ROOT"])]
    assert (first.messages, again.messages, manager.queue("bills").depth()) == (2, 0, 2)


def test_the_commands_are_commands_of_ours() -> None:
    blocks = _BLOCK.findall(PAGE.read_text())
    lines = [line for kind, text in blocks if kind == "console" for line in text.splitlines()]
    group: Any = get_command(app)
    for line in lines:
        program, name, *arguments = shlex.split(line)
        assert program == "txnqueue"
        group.commands[name].make_context(name, arguments, resilient_parsing=False)
    assert len(lines) >= 3
