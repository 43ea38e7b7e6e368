"""What is run over a Spark Connect server: the conformance suite by module, hostile frames."""

from __future__ import annotations

from collections import Counter

from tests.delta.connect_server import Server, conform, modules
from tests.delta.connect_server import run as run_program
from tests.delta.hostile_frames import SORTS
from tests.reliability.session import Session

MODULE_SECONDS = 900
ROUND_SECONDS = 1_200


def total() -> int:
    """Count the modules."""
    return len(modules())


def names() -> list[str]:
    """Name the modules: a failure begins with its module."""
    return list(modules())


def run(session: Session, number: int) -> tuple[int, Counter[str]]:
    """Run one module, and count its tests; whoever fails gets a new server after it."""
    module = modules()[number % total()]
    server = session.kept.pop("connect", None) or Server(session.folder())
    try:
        passed = conform(server, module, MODULE_SECONDS)
    except BaseException:
        server.close()
        raise
    session.kept["connect"] = server
    return 1, Counter({"tests": passed} if passed else {"modules that Delta is not asked in": 1})


def hostile_frames(session: Session, number: int) -> tuple[int, Counter[str]]:
    """Offer one frame of each sort; whoever fails gets a new server after it."""
    server = session.kept.pop("connect", None) or Server(session.folder())
    program = ("tests.delta.hostile_frames", server.address, session.folder() / "store")
    try:
        said = run_program(*program, number * len(SORTS), seconds=ROUND_SECONDS)
    except BaseException:
        server.close()
        raise
    session.kept["connect"] = server
    told = [line.removeprefix("offered ").strip() for line in said if line.startswith("offered ")]
    assert len(told) == len(SORTS), told
    return len(told), Counter(told)
