"""The conformance suite over a Spark Connect server: one number for each of its modules."""

from __future__ import annotations

from collections import Counter

from tests.delta.connect_server import Server, conform, modules
from tests.reliability.session import Session

MODULE_SECONDS = 900


def total() -> int:
    """Count the modules."""
    return len(modules())


def run(session: Session, number: int) -> tuple[int, Counter[str]]:
    """Run one module; whoever fails gets a new server after it."""
    module = modules()[number % total()]
    server = session.kept.pop("connect", None) or Server(session.folder())
    try:
        passed = conform(server, module, MODULE_SECONDS)
    except BaseException:
        server.close()
        raise
    session.kept["connect"] = server
    return passed, Counter({"modules": 1} if passed else {"modules that Delta is not asked in": 1})
