"""``txnqueue amqp``: the listener as a process, ended by SIGTERM and by SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("proton", reason="python-qpid-proton is not installed: it needs a compiler")
import typer
from typer.testing import CliRunner

from tests.conftest import LONG
from tests.shell.test_cli import Shell
from tests.specifications.amqp_listener import ProtonClient, Refusal
from tests.specifications.qpid_jms import JmsClient
from txnqueue.cli.main import app
from txnqueue.protocols.amqp import AccessRules

ROOT = Path(__file__).parents[2]
IN_MEMORY = """
import sys
from txnqueue.cli.main import app
from txnqueue.manager import QueueManager
from txnqueue.storage.store import MemoryStore

manager = QueueManager(None, store=MemoryStore())
manager.create_queue("orders", "n long")
app(sys.argv[1:], obj=lambda _options: (manager, None))
"""
SLOW = IN_MEMORY.replace(
    "app(",
    """
import time
from txnqueue.storage.journal.memory import MemoryJournal
append = MemoryJournal.append
MemoryJournal.append = lambda *given: time.sleep(2) or append(*given)
app(""",
)


@contextmanager
def serving(*options: str, code: str = "") -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command, and give its process and its address."""
    program = ["-c", code] if code else ["-m", "txnqueue.cli.main"]
    words = ["amqp", "serve", "--listen", "127.0.0.1:0", "--output", "json", *options]
    process = subprocess.Popen(
        [sys.executable, *program, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        said = json.loads(process.stdout.readline())
        yield process, f"amqp://{said['host']}:{said['port']}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def client() -> Iterator[ProtonClient]:
    made = ProtonClient()
    yield made
    made.end()


def test_sigterm_ends_the_server_cleanly(client: ProtonClient) -> None:
    with serving("--consumer", "amqp-1", code=IN_MEMORY) as (process, url):
        client("connect", url)
        client("sender", "s", "orders")
        assert client("send", "s", {"n": 1}) == "accepted"
        client("receiver", "r", "orders", credit=1)
        assert client("receive", "r")[0]["body"] == {"n": 1}
        client.ask("sleep", 20.0)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(Refusal, match="amqp:connection:forced"):
            client.answer()
        client.end()
        assert process.wait(20) == 0


def test_what_outlasts_the_grace_is_finished_and_no_failure(client: ProtonClient) -> None:
    with serving("--grace-seconds", "0.2", code=SLOW) as (process, url):
        client("connect", url)
        client("sender", "s", "orders")
        client.ask("send", "s", {"n": 1})
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        client.kill()


def test_rules_and_a_password_of_a_file_let_a_user_in(tmp_path: Path, client: ProtonClient) -> None:
    asked = CliRunner().invoke(app, ["amqp", "password", "--output", "json"], input="secret\n")
    stored = json.loads(asked.stdout.strip().splitlines()[-1])["hash"]
    file = tmp_path / "rules.yaml"
    file.write_text(f"users: {{shop: '{stored}'}}\nrules: [{{users: [shop], send: [orders]}}]\n")
    with serving("--rules", str(file), code=IN_MEMORY) as (_, url):
        client("connect", url, user="shop", password="secret", allow_insecure_mechs=True)
        client("sender", "s", "orders")
        assert client("send", "s", {"n": 1}) == "accepted"
        with pytest.raises(Refusal, match="amqp:unauthorized-access"):
            client("receiver", "r", "orders")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--listen", "127.0.0.1"], "HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "HOST:PORT"),
        (["--listen", "0.0.0.0:0"], "only over TLS"),
        (["--tls-key", "key.pem"], "need --tls-cert"),
        (["--tls-cert", "/nothing.pem"], "--tls-cert /nothing.pem cannot be used"),
        (["--tls-cert", "/no.pem", "--tls-key", "/n.pem"], "--tls-cert /no.pem, --tls-key /n.pem"),
        (["--rules", "/nothing.yaml"], "nothing.yaml"),
        (["--grace-seconds", "inf", "--listen", "127.0.0.1"], "grace_seconds"),
    ],
)
def test_what_cannot_be_served_is_a_usage_error(options: list[str], why: str) -> None:
    shell: Any = Shell()
    result = CliRunner().invoke(app, ["amqp", "serve", *options], obj=shell.factory)
    assert result.exit_code == 2 and why in result.stderr


def test_rules_that_are_refused_are_named_with_their_file(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("user: {}\n")
    shell: Any = Shell()
    result = CliRunner().invoke(app, ["amqp", "serve", "--rules", str(rules)], obj=shell.factory)
    assert result.exit_code == 2 and str(rules) in result.stderr


def test_a_password_that_nobody_gives_is_a_usage_error() -> None:
    asked = CliRunner().invoke(app, ["amqp", "password"], input="")
    assert asked.exit_code == 2 and "give it on stdin" in asked.stderr


def test_a_prompt_that_is_interrupted_ends_as_an_interrupted_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:  # as typer does
            raise typer.Abort from None

    monkeypatch.setattr(typer, "prompt", interrupted)
    asked = CliRunner().invoke(app, ["amqp", "password"])
    assert asked.exit_code == 130 and "interrupted" in asked.stderr


@pytest.mark.parametrize("command", ["password", "serve"])
def test_without_spark_the_listener_says_what_is_missing(command: str) -> None:
    code = "import sys; sys.modules['pyspark'] = None; from txnqueue.cli.main import main; main()"
    words = [sys.executable, "-c", code, "amqp", command, "--root", "/lake/messaging"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "pip install 'txnqueue[spark]'" in done.stderr


@pytest.mark.parametrize(
    "said",
    [
        {"user": {}},
        {"users": ["shop"]},
        {"users": {"shop": "secret"}},
        {"users": {"shop": "scrypt:x:y"}},
        {"rules": {"users": ["shop"]}},
        {"rules": ["shop"]},
        {"rules": [{"user": "shop"}]},
        {"rules": [{"users": "shop"}]},
    ],
)
def test_rules_that_say_something_else_are_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"users|rules|not a key of"):
        AccessRules.read(said)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="starts Spark three times")
def test_a_killed_server_leaves_nothing_of_open_transactions(
    tmp_path: Path, client: ProtonClient
) -> None:
    root = str(tmp_path / "store")
    words = ["create", "orders", "--schema", "n long", "--root", root]
    subprocess.run(
        [sys.executable, "-m", "txnqueue.cli.main", *words], cwd=ROOT, check=True, timeout=120
    )
    named = ("--root", root, "--consumer", "amqp-1")
    with serving(*named) as (process, url):
        client("connect", url, timeout=60)
        client("sender", "s", "orders")
        client("declare")
        client("post", "s", {"n": 1}, {"n": 2})
        assert client("discharge", "commit") == "committed"
        client("receiver", "r", "orders", credit=2)
        client("receive", "r", timeout=60)
        client("declare")
        client("post", "s", {"n": 3})
        client("retire", "r")
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        client.kill()
    again = ProtonClient()
    try:
        with serving(*named) as (process, url):
            again("connect", url, timeout=60)
            again("receiver", "r", "orders", credit=5)
            found = again("receive", "r", 2, timeout=60)
            assert [one["body"]["n"] for one in found] == [1, 2]
            with pytest.raises(Refusal, match="Timeout"):
                again("receive", "r", timeout=3)
            again("close")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    finally:
        again.end()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="starts Spark three times")
def test_a_killed_server_leaves_nothing_of_a_jms_transaction(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    words = ["create", "letters", "--schema", "body string", "--root", root]
    subprocess.run(
        [sys.executable, "-m", "txnqueue.cli.main", *words], cwd=ROOT, check=True, timeout=120
    )
    named = ("--root", root, "--consumer", "amqp-1")
    jms = JmsClient()
    try:
        with serving(*named) as (process, url):
            jms("connect", url)
            jms("session", "transacted")
            jms("send", "letters", "one")
            jms("send", "letters", "two")
            jms("commit")
            assert jms("receive", "letters", 60_000) == "one"
            jms("send", "letters", "three")
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            with pytest.raises(Refusal, match="JMS"):
                jms("commit")
        with serving(*named) as (process, url):
            jms("connect", url)
            jms("session", "transacted")
            assert {jms("receive", "letters", 60_000) for _ in range(2)} == {"one", "two"}
            assert jms("receive", "letters", 3_000) == "none"
            jms("commit")
            jms("close")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
    finally:
        jms.end()
