"""How a command ends whose output does not arrive, or whose handler ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("typer")

ROOT = Path(__file__).parents[2]
IN_MEMORY = """
import sys
from txnqueue.cli.main import app
from txnqueue.manager import QueueManager
from txnqueue.storage.store import MemoryStore

manager = QueueManager(None, store=MemoryStore())
orders = manager.create_queue("orders", "id long")
orders.send([{"id": 1}, {"id": 2}])
try:
    app(sys.argv[2:], obj=lambda _options: (manager, None))
finally:
    open(sys.argv[1], "w").write(str(orders.depth()))
"""
HANDLERS = """
import sys

def handle(batch, tx):
    batch.messages()

def leave(batch, tx):
    sys.exit(0)
"""
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no disk that is full")


class Process:
    """Runs commands as processes, each on a store in memory with two messages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "job.py").write_text(HANDLERS)
        (folder / "script.py").write_text(f"{HANDLERS}\nsys.exit(0)\n")

    def __call__(
        self, *words: str, code: int, to: str = "", unbuffered: str = ""
    ) -> tuple[str, str]:
        """Run a command with its output redirected as a shell writes that."""
        program = [sys.executable, "-c", IN_MEMORY, "depth", *words]
        done = subprocess.run(
            ["bash", "-c", f'set -o pipefail; "$@" {to}', "bash", *program],
            check=False,
            cwd=self.folder,
            env={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done
        return done.stdout, done.stderr

    @property
    def depth(self) -> int:
        """How many messages were available at the end."""
        return int((self.folder / "depth").read_text())


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


@needs_full
@pytest.mark.parametrize(("output", "unbuffered"), [("table", "1"), ("json", "")])
def test_a_full_disk_is_told_of_a_command_that_did_its_work(
    process: Process, output: str, unbuffered: str
) -> None:
    words = ("purge", "orders", "--yes", "--output", output)
    _, said = process(*words, code=1, to=f">{FULL}", unbuffered=unbuffered)
    assert said.startswith("txnqueue: The output cannot be written: [Errno 28]")
    assert said.endswith("What the command was to do is done.\n") and said.count("\n") == 1
    assert process.depth == 0


@needs_full
@pytest.mark.parametrize(
    ("words", "code", "output"),
    [
        (("depth", "orders", "--at-least", "9"), 7, "table"),
        (("consume", "orders", "--handler", "job:leave"), 4, "json"),
        (("depth", "nothing"), 3, "table"),
    ],
)
def test_a_full_disk_changes_no_exit_code(
    process: Process, words: tuple[str, ...], code: int, output: str
) -> None:
    process(*words, "--output", output, code=code, to=f">{FULL} 2>{FULL}")


@needs_full
@pytest.mark.parametrize("output", ["table", "json"])
def test_what_a_full_disk_does_not_take_is_given_back(process: Process, output: str) -> None:
    words = ("receive", "orders", "--accept", "--output", output)
    _, said = process(*words, code=1, to=f">{FULL}")
    assert "cannot be written" in said and said.count("\n") == 1
    assert process.depth == 2


@pytest.mark.parametrize(("output", "unbuffered"), [("table", "1"), ("json", "")])
@pytest.mark.parametrize("gone", [">&-", "| (exec <&-; sleep 3)"])
def test_a_reader_that_has_gone_is_no_error(
    process: Process, gone: str, output: str, unbuffered: str
) -> None:
    told = process("list", "--output", output, code=0, to=gone, unbuffered=unbuffered)
    assert told == ("", "")


@pytest.mark.parametrize("gone", [">&-", "| (exec <&-; sleep 3)"])
def test_a_reader_of_plain_text_that_has_gone_is_no_error(process: Process, gone: str) -> None:
    assert process("metrics", "--prometheus", code=0, to=gone) == ("", "")
    assert process("--version", code=0, to=gone) == ("", "")


@needs_full
@pytest.mark.parametrize("words", [("metrics", "--prometheus"), ("--version",)])
def test_plain_text_that_a_full_disk_does_not_take_is_told(
    process: Process, words: tuple[str, ...]
) -> None:
    _, said = process(*words, code=1, to=f">{FULL}")
    assert said.startswith("txnqueue: The output cannot be written: [Errno 28]")


@needs_full
@pytest.mark.parametrize("words", [("--help",), ("send", "--help"), ()])
def test_help_that_a_full_disk_does_not_take_is_told(words: tuple[str, ...]) -> None:
    with FULL.open("w") as full:
        program = [sys.executable, "-m", "txnqueue.cli.main", *words]
        done = subprocess.run(
            program, check=False, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.startswith("txnqueue: The output cannot be written: [Errno 28]")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("output", ["table", "json"])
def test_without_a_reader_nothing_is_accepted(process: Process, output: str) -> None:
    process("receive", "orders", "--accept", "--output", output, code=1, to=">&-")
    assert process.depth == 2


def test_without_stderr_a_command_works_and_says_only_its_result(process: Process) -> None:
    process("consume", "orders", "--handler", "job:handle", code=0, to="2>&-")
    assert process.depth == 0
    said, _ = process("receive", "orders", "--accept", "--output", "json", code=0, to="2>&-")
    assert [line[0] for line in said.splitlines()] == ["{", "{"]


def test_a_handler_that_ends_the_process_has_failed(process: Process) -> None:
    _, said = process("consume", "orders", "--handler", "job:leave", code=4)
    assert "'job:leave' called sys.exit(0)" in said
    assert process.depth == 2


def test_a_module_that_ends_the_process_has_no_handler(process: Process) -> None:
    _, said = process("consume", "orders", "--handler", "script:handle", code=2)
    assert "'script' calls sys.exit() as it is imported" in said
    assert process.depth == 2


JAVA_THAT_TALKS = """#!/bin/sh
if [ "$1" = --list-modules ]; then
  printf 'java.base@17.0.1\\njdk.incubator.vector@17.0.1\\n'
else
  echo ':: loading settings ::'
  exit 1
fi
"""


@pytest.mark.parametrize("to", ["", "2>&-"])
@pytest.mark.parametrize(
    "command", [("list", "--root", "./store", "--engine", "spark"), ("setup",)]
)
def test_what_java_prints_is_no_part_of_the_result(
    tmp_path: Path, command: tuple[str, ...], to: str
) -> None:
    """While it fetches jars it prints a page on stdout, where JSON is expected."""
    pytest.importorskip("delta")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(JAVA_THAT_TALKS)
    java.chmod(0o755)
    words = [*command, "--output", "json"]
    done = subprocess.run(
        ["bash", "-c", f'"$@" {to}', "bash", sys.executable, "-m", "txnqueue.cli.main", *words],
        check=False,
        cwd=tmp_path,
        env={
            **{"PYTHONPATH": str(ROOT), "JAVA_HOME": str(tmp_path), "HOME": str(tmp_path)},
            "PATH": os.environ["PATH"],
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (3, ""), done
    assert to or command[0] == "setup" or ":: loading settings ::" in done.stderr


def run_code(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python of its own, whose group of processes is not that of the tests."""
    return subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        start_new_session=True,
    )


OF_A_GROUP = """
import os, signal
from txnqueue.cli.console import start_spark
from txnqueue.cli.signals import on_sigterm

spark = start_spark(short_lived=True)
with on_sigterm(60) as stop:
    os.killpg(os.getpgid(0), signal.SIGTERM)
    while not stop():
        pass
    java = spark._jvm.java.lang.ProcessHandle.current().pid()
    print(spark.range(3).count(), java)
"""


OF_CHILDREN = """
import multiprocessing, signal
from txnqueue.cli.signals import on_sigterm

with on_sigterm(600) as stop:
    for _ in range(30):
        child = multiprocessing.get_context("fork").Process(target=signal.pause)
        child.start()
        child.terminate()
        child.join(20)
        if child.exitcode is None:
            child.kill()
            raise SystemExit("it goes on")
        print(child.exitcode, stop())
"""


def test_sigterm_ends_the_children_of_a_handler_however_young_they_are() -> None:
    """A ``multiprocessing.Pool`` ends its workers so, and waits for them."""
    done = run_code(OF_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "-15 False\n" * 30


OF_NESTED = """
import os, signal
from txnqueue.cli.signals import on_sigterm

def taken():
    return [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)]

def in_child(act):
    child = os.fork()
    if not child:
        act()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

def as_before():
    assert taken() == before

def leave():
    try:
        with on_sigterm(600):
            if not os.fork():
                raise ZeroDivisionError
            assert os.wait()[1] == 0
    except ZeroDivisionError:
        as_before()

before = taken()
with on_sigterm(600):
    outer = taken()
    with on_sigterm(600):
        in_child(as_before)
    assert taken() == outer
    in_child(as_before)
as_before()
in_child(leave)
"""


def test_blocks_in_blocks_and_their_children_take_signals_as_before() -> None:
    done = run_code(OF_NESTED)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.spark
def test_sigterm_for_all_processes_of_a_job_leaves_it_its_java_until_it_ends() -> None:
    """Airflow ends a task so; the batch in hand could not be finished without Java."""
    done = run_code(OF_A_GROUP)
    assert done.returncode == 0, done.stderr
    count, java = done.stdout.split()
    assert count == "3"
    until = time.monotonic() + 60
    while Path(f"/proc/{java}").exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert not Path(f"/proc/{java}").exists()
