"""The library over a Spark Connect server that runs in another process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.delta.connect_server import CORE, Program, Server, conform, run

pytest.importorskip("grpc")
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_200)]
CLIENT = "tests.delta.connect_client"
MODULE_SECONDS = 900
"""So long may all of a module take that is asked of Delta."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("connect"), interpreted=not LONG)
    yield started
    started.stop()


def test_everything_works_over_a_server_elsewhere(server: Server, tmp_path: Path) -> None:
    more = ["look"] if LONG else []
    program = (CLIENT, server.address, tmp_path / "store", *more)
    assert "done\n" in run(*program, seconds=1_100)


@pytest.mark.skipif(not LONG, reason="the conformance suite's core on Delta, over a server")
@pytest.mark.parametrize("module", CORE)
def test_the_core_of_the_suite_holds_over_a_server_elsewhere(server: Server, module: str) -> None:
    assert conform(server, module, MODULE_SECONDS) > 0


@pytest.mark.skipif(not LONG, reason="a server of its own, which is killed")
def test_a_manager_closes_and_its_process_ends_though_the_server_is_gone(tmp_path: Path) -> None:
    own = Server(tmp_path)
    program = Program(CLIENT, own.address, tmp_path / "store", "lose", seconds=300)
    try:
        assert program.wait("open") == 0
        own.stop()
        assert program.wait() == 0, "".join(program.said[-50:])
    finally:
        program.close()
    assert "done\n" in program.said
