"""The examples of the command line's page run as they are, on a store in memory.

What a clock or the store numbers is compared by its shape; every other character as it is.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
from typer.main import get_command
from typer.testing import CliRunner

from tests.shell.test_cli import Shell
from txnqueue.cli import handlers
from txnqueue.cli.console import Options
from txnqueue.cli.main import app

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NUMBERED = [
    (re.compile(r'(commit_seq"?:? )\d+'), r"\1N"),
    (re.compile(r'(journal_version"?: )\d+'), r"\1N"),
    (re.compile(r'"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)"'), '"TIME"'),
    (re.compile(r"'(memory|/lake/messaging)'"), "'ROOT'"),
]


def blocks(language: str) -> list[str]:
    """Read the page's blocks of one language."""
    return [text for kind, text in _BLOCK.findall(PAGE.read_text()) if kind == language]


def commands() -> dict[str, set[str]]:
    """Find every command with its options."""
    group: Any = get_command(app)
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        inside = getattr(command, "commands", None)
        found |= (
            {name: command} if inside is None else {f"{name} {n}": c for n, c in inside.items()}
        )
    return {
        name: {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        for name, command in found.items()
    }


def command_of(text: str) -> str:
    """Find which command a text begins with: its name has one word, or two."""
    words = text.split()
    two = " ".join(words[:2])
    return two if two in commands() else words[0]


def said_of_commands() -> list[tuple[str, str]]:
    """Read what the page says of each command: in the table, and below its heading."""
    page = PAGE.read_text().split("\n## Exit codes")[0]
    page = re.sub(r"`spark-submit [^`]*`", "", page)
    table = page.split("\n## Commands\n")[1].split("\n### ")[0]
    rows = [
        (command_of(text), row)
        for row, text in re.findall(r"^(\| `([^`]+)`.*)", table, re.MULTILINE)
    ]
    parts = re.split(r"^### (.+)\n", page, flags=re.MULTILINE)
    return [*rows, *zip(parts[1::2], parts[2::2], strict=True)]


def shape(text: str) -> str:
    """Leave out what a clock says, and what a store numbers."""
    for pattern, instead in _NUMBERED:
        text = pattern.sub(instead, text)
    return text


class Terminal:
    """A shell that knows ``txnqueue`` on a store in memory, ``export``, ``echo $?`` and ``>``."""

    def __init__(self) -> None:
        self.shell, self.code = Shell(), 0

    def txnqueue(self, *arguments: str) -> Any:
        """Run a command, whatever its exit code."""
        result = CliRunner().invoke(app, arguments, obj=self.shell.factory)
        self.code = result.exit_code
        return result

    def __call__(self, line: str) -> str:
        """Run a line, and return what a person sees of it."""
        if line == "echo $?":
            return f"{self.code}\n"
        if line.startswith("export "):
            return ""
        line, _, file = line.partition(" > ")
        program, *arguments = shlex.split(line)
        assert program == "txnqueue", line
        result = self.txnqueue(*arguments)
        if not file:
            return str(result.stdout + result.stderr)
        Path(file).write_text(result.stdout)
        return str(result.stderr)


def test_every_example_prints_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, count in (("monday.csv", 1204), ("tuesday.csv", 981)):
        rows = "".join(f"{n},ada,{n}.5\n" for n in range(count))
        Path(file).write_text("order_id,customer,amount\n" + rows)
    terminal, wrong, ran = Terminal(), [], 0
    for block in blocks("console"):
        for example in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, shown = example.partition("\n")
            said, ran = terminal(line), ran + 1
            if shape(said) != shape(shown):
                wrong.append((line, said, shown))
    assert not wrong
    assert ran >= 9
    assert len(Path("batch.jsonl").read_text().splitlines()) == 100


def keep(batch: Any, tx: Any) -> None:
    """Accept all of a batch."""


def test_the_log_has_the_keys_that_the_page_shows() -> None:
    (shown,) = [json.loads(block) for block in blocks("console") if block.startswith("{")]
    terminal = Terminal()
    terminal("txnqueue create orders --schema 'n long'")
    terminal.shell.factory(Options())[0].queue("orders").send([{"n": 1}])
    handler = ("--handler", f"{__name__}:keep", "--run-id", "night", "--output", "json")
    result = terminal.txnqueue("consume", "orders", *handler)
    logged = [json.loads(line) for line in result.stderr.splitlines()]
    assert [list(line) for line in logged if line["event"] == shown["event"]] == [list(shown)]


def test_the_queues_of_the_page_can_be_declared(tmp_path: Path) -> None:
    (declared,) = blocks("yaml")
    file = tmp_path / "queues.yaml"
    file.write_text(declared)
    terminal = Terminal()
    terminal("txnqueue create orders-2024 --schema 'n long' --no-dead-letter")
    terminal(f"txnqueue declare {file} --drop")
    assert terminal.code == 0
    assert "orders-2024" not in terminal("txnqueue list --output json")
    terminal(f"txnqueue declare {file} --drop --dry-run")
    assert terminal.code == 0, "a second time nothing is changed"


@pytest.mark.spark
def test_the_queries_of_the_page_route_a_batch(spark: Any, tmp_path: Path) -> None:
    from txnqueue.manager import QueueManager

    (queries,) = blocks("sql")
    flights = str(tmp_path / "flights")
    (tmp_path / "job.sql").write_text(queries.replace("/lake/gold/flights", flights))
    spark.sql(f"CREATE TABLE delta.`{flights}` (carrier string, flight int) USING delta")
    spark.sql("CREATE SCHEMA gold")
    spark.sql("CREATE TABLE gold.totals (carrier string, flights long) USING delta")
    manager = QueueManager(spark, str(tmp_path / "store"))
    columns = "carrier string, flight int, dep_time int, dep_delay double"
    departures = manager.create_queue("departures", columns)
    rebooking = manager.create_queue("rebooking", columns)
    times = [(517, 2.0), (533, 90.0), (None, None)]
    departures.send(
        [
            {"carrier": "UA", "flight": n, "dep_time": time, "dep_delay": delay}
            for n, (time, delay) in enumerate(times)
        ]
    )
    try:
        result = departures.drain(handlers.read_sql(str(tmp_path / "job.sql")))
        assert (result.messages, result.applied) == (3, True)
        assert [row["flight"] for row in rebooking.peek_messages()] == [1]
        assert [row["flight"] for row in manager.queue("departures.dead").peek_messages()] == [2]
        assert spark.read.format("delta").load(flights).count() == 2
        assert [tuple(row) for row in spark.table("gold.totals").collect()] == [("UA", 3)]
    finally:
        spark.sql("DROP SCHEMA gold CASCADE")


@pytest.mark.parametrize(("sent", "step"), [(0, 0), (75, 75), (76, 75), (2, 1), (130, 1)])
def test_the_step_of_a_scheduler_is_done_only_if_the_file_is_sent(
    tmp_path: Path, sent: int, step: int
) -> None:
    """Whatever other commands answer: an earlier attempt may be the one that was rolled back."""
    (script,) = blocks("bash")
    stub = tmp_path / "txnqueue"
    stub.write_text(f'#!/bin/bash\n[ "$1" = send ] && exit {sent}\nexit 0\n')
    stub.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"

    def ended(**given: str) -> int:
        env = {"PATH": path, **given}
        return subprocess.run(["bash"], check=False, input=script, text=True, env=env).returncode

    assert ended(RUN_ID="monday", FILE="orders.csv") == step
    assert ended(FILE="orders.csv") not in (0, 75)


def test_every_command_is_on_the_page_and_no_other() -> None:
    table = PAGE.read_text().split("\n## Commands\n")[1].split("\n### ")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    named = [command_of(text) for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    assert sorted(named) == sorted(commands())


def test_every_option_on_the_page_is_one_of_its_command() -> None:
    known = commands()
    everywhere = set.intersection(*known.values()) | {"--help"}
    wrong = [
        (name, option)
        for name, text in said_of_commands()
        for option in set(re.findall(r"`?(--[a-z][a-z-]+)", text)) - everywhere
        if option not in known[name]
    ]
    assert not wrong
    assert len(said_of_commands()) > len(known)
