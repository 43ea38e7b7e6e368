"""The library over a Spark Connect server that runs in another process."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import INTERPRETED, LONG, OPTIMIZES_LATE, REMEMBERS_LITTLE
from tests.delta.test_cluster import Daemon
from txnqueue.platform.local_spark import (
    DELTA_CATALOG,
    DELTA_EXTENSION,
    cached_jars,
    delta_coordinate,
)

pytest.importorskip("grpc")
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

CORE = (
    *("sending", "reading", "settling", "leases", "transactions", "prepared", "drain"),
    *("dead_letters", "duplicates", "exchanges", "history"),
)
"""The modules of the conformance suite that a server elsewhere is tried with."""
ENDS_SECONDS = 30
"""A process that has said its last word and has not ended after so long hangs."""


class Server(Daemon):
    """A server on loopback, with Delta and nothing of the library."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.extraJavaOptions": f"-Duser.timezone=UTC {OPTIMIZES_LATE}",
            "spark.driver.memory": "3g",
            "spark.jars": ",".join(jar.as_uri() for jar in cached_jars(delta_coordinate())),
            "spark.master": "local[2]",
            "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
            "spark.sql.extensions": DELTA_EXTENSION,
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
            **REMEMBERS_LITTLE,
            **({} if LONG else INTERPRETED),
        }
        options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        self.address = f"sc://127.0.0.1:{port}"
        super().__init__(
            "Spark Connect server started", "org.apache.spark.deploy.SparkSubmit", *options,
            "--class", SERVER, "spark-internal",
        )  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("connect"))
    yield started
    started.stop()


def run(*program: object, seconds: float, **environment: str) -> list[str]:
    """Run a Python program that works on the server; it ends soon after it has said ``done``."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", *map(str, program)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TZ": "UTC", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    patience = [threading.Timer(seconds, process.kill)]
    patience[0].start()
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            said.append(line)
            if line == "done\n":
                patience.append(threading.Timer(ENDS_SECONDS, process.kill))
                patience[-1].start()
        code = process.wait()
    finally:
        process.kill()
        for timer in patience:
            timer.cancel()
    assert code == 0, "".join(said[-50:])
    return said


@pytest.mark.timeout(1_200)
def test_everything_works_over_a_server_elsewhere(server: Server, tmp_path: Path) -> None:
    more = ["look"] if LONG else []
    program = ("tests.delta.connect_client", server.address, tmp_path / "store", *more)
    assert "done\n" in run(*program, seconds=1_100)


@pytest.mark.timeout(3_600)
@pytest.mark.skipif(not LONG, reason="the conformance suite's core on Delta, over a server")
def test_the_core_of_the_suite_holds_over_a_server_elsewhere(server: Server) -> None:
    modules = [f"tests/conformance/test_{name}.py" for name in CORE]
    program = ("pytest", "-v", "-p", "no:cacheprovider", "-m", "spark", *modules)
    said = run(*program, seconds=3_500, TXNQUEUE_LONG="0", TXNQUEUE_TESTS_REMOTE=server.address)
    assert any(re.search(r"\d{2} passed", line) for line in said)
