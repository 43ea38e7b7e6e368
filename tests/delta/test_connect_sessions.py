"""Sessions of Spark Connect, but for what is done by a server in another process."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.delta.connect_server import CORE, modules
from txnqueue.storage.journal.sessions import close_session, is_connect

pytest.importorskip("grpc")
CLOSES_SECONDS = 10


def test_a_session_of_a_server_that_is_gone_is_closed_at_once() -> None:
    from pyspark.sql.connect.client import SparkConnectClient

    client = SparkConnectClient("sc://127.0.0.1:9")
    session: Any = SimpleNamespace(client=client)
    assert is_connect(session)
    began = time.monotonic()
    close_session(session)
    assert time.monotonic() - began < CLOSES_SECONDS
    assert client.is_closed


def test_every_module_of_the_suite_has_a_number() -> None:
    named = modules()
    assert len(named) == len(set(named)) > len(CORE)
    assert set(CORE) < set(named)


@pytest.mark.spark
def test_a_local_session_may_be_one_of_connect() -> None:
    code = (
        "from txnqueue import local_spark\n"
        "spark = local_spark(settings={'spark.api.mode': 'connect'}, short_lived=True)\n"
        "print(type(spark).__module__, spark.range(3).count(), flush=True)\n"
        "spark.stop()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert "pyspark.sql.connect.session 3" in done.stdout, done.stderr
