"""The library over a Spark Connect server that runs in another process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """Start a server on loopback, with Delta and nothing of the library."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
        "spark.jars": ",".join(jar.as_uri() for jar in cached_jars(delta_coordinate())),
        "spark.master": "local[2]",
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        "spark.sql.extensions": DELTA_EXTENSION,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.ui.enabled": "false",
    }
    options = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    server = Daemon(
        "Spark Connect server started", "org.apache.spark.deploy.SparkSubmit", *options,
        "--class", SERVER, "spark-internal",
    )  # fmt: skip
    yield f"sc://127.0.0.1:{port}"
    server.stop()


@pytest.mark.timeout(1_200)
def test_everything_works_over_a_server_elsewhere(remote: str, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "tests.delta.connect_client", remote, str(tmp_path / "store")]
    ran = subprocess.run(
        program,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TZ": "UTC"},
        capture_output=True,
        text=True,
        timeout=1_100,
    )
    assert ran.returncode == 0, ran.stderr[-4_000:]
    assert ran.stdout.splitlines()[-1] == "done"
