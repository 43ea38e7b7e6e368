"""A Spark Connect server in a process of its own, and programs that work on it in others."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import INTERPRETED, OPTIMIZES_LATE, REMEMBERS_LITTLE
from tests.delta.test_cluster import Daemon
from tests.drivers import without_the_library
from txnqueue.platform.local_spark import (
    DELTA_CATALOG,
    DELTA_EXTENSION,
    cached_jars,
    delta_coordinate,
)

ROOT = Path(__file__).resolve().parents[2]
CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
CORE = (
    *("sending", "reading", "settling", "leases", "transactions", "prepared", "drain"),
    *("dead_letters", "duplicates", "exchanges", "history"),
)
"""The modules of the conformance suite that most programs would miss first."""
ENDS_SECONDS = 30
"""A process that has said its last word and has not ended after so long hangs."""
_LAST_WORD = re.compile(r"done\n|=+ .*\bin \d.*=+\n")
_PASSED = re.compile(r"\b(\d+) passed")
_NOTHING_COLLECTED = 5


def modules() -> list[str]:
    """List the conformance modules, those of the core first."""
    found = {path.stem.removeprefix("test_") for path in ROOT.glob("tests/conformance/test_*.py")}
    assert found.issuperset(CORE)
    return [*CORE, *sorted(found.difference(CORE))]


class Server(Daemon):
    """A server on loopback, with Delta and nothing of the library."""

    def __init__(self, folder: Path, *, interpreted: bool = True) -> None:
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
            **(INTERPRETED if interpreted else {}),
        }
        options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
        self.address = f"sc://127.0.0.1:{port}"
        super().__init__(
            "Spark Connect server started", "org.apache.spark.deploy.SparkSubmit", *options,
            "--class", CLASS, "spark-internal", PYSPARK_PYTHON=str(without_the_library(folder)),
        )  # fmt: skip

    def close(self) -> None:
        """End it."""
        self.stop()


class Program:
    """A Python program that works on a server; it ends soon after its last word."""

    def __init__(
        self, *program: object, seconds: float, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start it.

        Args:
            program: What ``python -m`` gets.
            seconds: After so long it is killed.
            environment: More variables for it.
        """
        self.said: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", *map(str, program)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TZ": "UTC", **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._patience = [threading.Timer(seconds, self._process.kill)]
        self._patience[0].start()

    def wait(self, until: str | None = None) -> int:
        """Listen to it until it ends, or has said a line.

        Args:
            until: The line.

        Returns:
            The exit code; negative if it was killed, 0 if it goes on.
        """
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                print(line, end="", flush=True)
                self.said.append(line)
                if line.rstrip("\n") == until:
                    return 0
                if _LAST_WORD.fullmatch(line):
                    self._patience.append(threading.Timer(ENDS_SECONDS, self._process.kill))
                    self._patience[-1].start()
            return self._process.wait()
        finally:
            if until is None or self._process.poll() is not None:
                self.close()

    def close(self) -> None:
        """End it, if it goes on."""
        self._process.kill()
        for timer in self._patience:
            timer.cancel()


def run(
    *program: object, seconds: float, environment: Mapping[str, str] | None = None
) -> list[str]:
    """Run a program that succeeds, and return what it says."""
    started = Program(*program, seconds=seconds, environment=environment)
    code = started.wait()
    assert code == 0, f"ended with {code}: " + "".join(started.said[-50:])
    return started.said


def conform(server: Server, module: str, seconds: float) -> int:
    """Run all that a module of the conformance suite asks of Delta, over a server.

    Args:
        server: The server.
        module: The module's name, without ``test_``.
        seconds: After so long it has failed.

    Returns:
        How many tests passed; 0 if none of them needs Delta.
    """
    path = f"tests/conformance/test_{module}.py"
    told = Program(
        *("pytest", "-v", "-p", "no:cacheprovider", "-m", "spark", path),
        seconds=seconds,
        environment={"TXNQUEUE_LONG": "1", "TXNQUEUE_TESTS_REMOTE": server.address},
    )
    code = told.wait()
    if code == _NOTHING_COLLECTED:
        return 0
    said = "".join(told.said)
    failed = [line.strip() for line in told.said if line.startswith(("FAILED", "ERROR"))]
    ended = f"it was killed after: {told.said[-1:]}" if code < 0 else said[-3_000:]
    assert code == 0, f"{module}: " + ("; ".join(failed) or ended)
    found = _PASSED.search(said)
    assert found is not None, f"{module}: nothing passed: {said[-3_000:]}"
    return int(found[1])
