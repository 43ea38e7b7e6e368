"""The commands that only look, beside those of ``test_cli``: sensor, exporter, engine."""

from __future__ import annotations

import errno
import re
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

typer = pytest.importorskip("typer")
from typer.testing import CliRunner  # noqa: E402

import txnqueue  # noqa: E402
from tests.shell.test_cli import Shell  # noqa: E402
from txnqueue.cli import console  # noqa: E402
from txnqueue.cli.main import app  # noqa: E402
from txnqueue.reports.metrics import GAUGES  # noqa: E402
from txnqueue.storage.files.delta_log import DeltaLog  # noqa: E402
from txnqueue.storage.files.integrity import reaching  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path: Path) -> str:
    with tarfile.open(ROOT / "tests" / "stores" / "0.1.0.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    return str(tmp_path / "store")


def run(store: str, *words: str) -> Any:
    return CliRunner().invoke(app, [*words, "--root", store])


# ---------------------------------------------------------------------------- the page


def test_a_page_for_auditors_is_written_without_spark(store: str, tmp_path: Path) -> None:
    page = tmp_path / "audit.html"
    written = run(store, "report", "--no-verify", "--payload", "--html", str(page))
    assert written.exit_code == 0, written.output
    assert "orders" in page.read_text(encoding="utf-8") and "orders" in written.stdout
    asked = txnqueue.look(store).history.digest()
    assert run(store, "history", "--digest").stdout.strip() == str(asked)


def test_a_root_that_leads_nowhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for root in ("~no-such-user/store", f"{tmp_path}/circle/store", "./store"):
        refused = run(root, "list")
        assert refused.exit_code in (2, 3) and "unexpected" not in refused.stderr


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_store_that_this_user_must_not_read_is_said_to_be_one(
    store: str, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """Spark found no store there, and advised to make a new one."""

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(DeltaLog, "_list", lambda log: _reaching(log.folder, denied))
    monkeypatch.setattr(console, "start_spark", lambda **_: pytest.fail("Spark cannot read it"))
    refused = run(scheme + store, "list")
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert "cannot be read" in refused.stderr and "let this user read it" in refused.stderr


def _reaching(folder: str, ask: Any) -> None:
    with reaching(folder):
        ask()


def test_a_root_that_is_a_file_is_refused(store: str) -> None:
    """It was advised to make a new store there."""
    file = next(Path(store, "journal", "_delta_log").glob("*.json"))
    refused = run(str(file), "list")
    assert refused.exit_code == 2 and "is that of a file" in refused.stderr


# ---------------------------------------------------------------------------- the sensor


def test_depth_says_by_its_code_whether_there_is_enough(store: str) -> None:
    assert run(store, "depth", "orders", "--at-least", "7").exit_code == 0
    held = run(store, "depth", "orders", "--at-least", "8")
    assert held.exit_code == 0, "what is held longer than its lease can be received as well"
    few = run(store, "depth", "orders", "--at-least", "13", "--output", "json")
    assert (few.exit_code, few.stdout) == (
        7,
        '{"queue": "orders", "available": 7, "in_flight": 5}\n',
    )
    began = time.monotonic()
    waited = run(
        store,
        *["depth", "orders", "--at-least", "13", "--wait", "--timeout-seconds", "0.6"],
        *["--poll-seconds", "0.2"],
    )
    assert waited.exit_code == 7 and time.monotonic() - began >= 0.6


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["--wait"], "--at-least"),
        (["--at-least", "1", "--timeout-seconds", "1"], "--wait"),
    ],
)
def test_a_sensor_says_what_it_waits_for(store: str, words: list[str], needed: str) -> None:
    refused = run(store, "depth", "orders", *words)
    assert refused.exit_code == 2 and needed in refused.output


@pytest.mark.parametrize("seconds", ["1e10", "inf", "nan"])
def test_a_sensor_looks_at_least_once_a_week(store: str, seconds: str) -> None:
    """No system sleeps for longer than it can count."""
    words = ["depth", "orders", "--at-least", "99", "--wait", "--poll-seconds", seconds]
    assert run(store, *words).exit_code == 2


def test_a_sensor_sees_what_comes_while_it_waits(store: str) -> None:
    """The last commits come into the journal's folder while it waits."""
    log = Path(store, "journal", "_delta_log")
    versions = [one.stem for one in sorted(log.glob("[0-9]*.json"))[12:]]
    # A commit first, and then what is written after it.
    held = [*(log / f"{v}.json" for v in versions), *(log / f"{v}.crc" for v in versions)]
    for one in held:
        one.rename(f"{one}.held")
        Path(log, f".{one.name}.crc").unlink()
    before = txnqueue.look(store).queue("orders").depth()
    assert before < 7

    def arrive() -> None:
        for one in held:
            Path(f"{one}.held").rename(one)

    timer = threading.Timer(0.7, arrive)
    timer.start()
    words = ["depth", "orders.dead", "--at-least", "2", "--wait", "--poll-seconds", "0.2"]
    done = run(store, *words, "--timeout-seconds", "60")
    timer.join()
    assert done.exit_code == 0 and "2 available" in done.stdout


@pytest.mark.parametrize(
    ("failing", "code"), [(range(2, 4), 0), (range(1, 2), 3), (range(2, 1_000), 3)]
)
def test_a_sensor_asks_a_storage_again_that_answered_before(
    store: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failing: range,
    code: int,
) -> None:
    looks = 0

    def depth(self: Any, *, lapsed: bool = False) -> int:
        nonlocal looks
        looks += 1
        if looks in failing:
            raise txnqueue.errors.FilesNotReadable("The network is away.")
        return looks

    monkeypatch.setattr(txnqueue.QueueReader, "depth", depth)
    words = ["depth", "orders", "--at-least", "4", "--wait", "--poll-seconds", "0.1"]
    done = run(store, *words, "--timeout-seconds", "2")
    assert done.exit_code == code and "The network is away." in done.stderr + caplog.text


def test_a_sensor_works_with_a_manager_too() -> None:
    shell = Shell()
    shell("create", "orders", "--schema", "id long")
    shell("depth", "orders", "--at-least", 1, code=7)
    shell("depth", "orders", "--at-least", 1, "--wait", "--timeout-seconds", 0.2, code=7)


# -------------------------------------------------------------------------- the exporter


@pytest.fixture(params=["127.0.0.1"])
def served(
    store: str, request: pytest.FixtureRequest
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    pytest.importorskip("prometheus_client")
    words = ["metrics", "--serve", "--address", request.param, "--port", "0", "--root", store]
    process = subprocess.Popen(
        [sys.executable, "-m", "txnqueue.cli.main", *words],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stderr is not None
    found = re.search(r"http://(127\.0\.0\.1|\[::1\]):\d+/metrics", process.stderr.readline())
    try:
        assert found
        yield process, found[0]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def asked(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return str(answer.read().decode())


def test_prometheus_gets_the_numbers_of_now(served: Any, store: str) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    process, address = served
    families = {one.name: one for one in text_string_to_metric_families(asked(address))}
    shown = GAUGES.keys() - {"conflicts"}  # which are those of a client that writes
    assert set(families) == {"txnqueue_up", *(f"txnqueue_{name}" for name in shown)}
    available = {s.labels["queue"]: s.value for s in families["txnqueue_available"].samples}
    rows = txnqueue.look(store).metrics().rows()
    assert available == {row["queue"]: row["available"] for row in rows}
    Path(store, "journal").rename(Path(store, "gone"))
    assert "txnqueue_up 0.0" in asked(address)
    Path(store, "gone").rename(Path(store, "journal"))
    assert "txnqueue_up 1.0" in asked(address)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
@pytest.mark.parametrize("served", ["::1"], indirect=True)
def test_an_address_of_ipv6_can_be_asked_as_it_is_told(served: Any) -> None:
    assert "txnqueue_up 1.0" in asked(served[1])


def test_a_port_that_is_taken_is_refused(served: Any, store: str) -> None:
    port = served[1].rpartition(":")[2].partition("/")[0]
    refused = run(store, "metrics", "--serve", "--port", port)
    assert refused.exit_code == 2 and "cannot be listened on" in refused.stderr


@pytest.mark.parametrize("name", ["a..b", "x" * 64, ""])
def test_a_name_that_no_host_can_have_is_refused(store: str, name: str) -> None:
    pytest.importorskip("prometheus_client")
    refused = run(store, "metrics", "--serve", "--port", "0", "--address", name)
    assert refused.exit_code == 2 and "cannot be listened on" in refused.stderr
