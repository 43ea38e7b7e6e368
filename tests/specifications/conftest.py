"""Which test shows which rule of the five specifications, and what came of it.

A test names its rules: ``@pytest.mark.rule("S0-01", "S0-02")``. The rules stand in
``rules/*.yaml``, a file for each text; a rule that cannot hold says why under ``without``.
``WRITE_CONFORMANCE=1 python -m pytest -m "not spark" tests/specifications`` writes
``docs/conformance.md``.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.conftest import World, alone, shared_root, world  # noqa: F401

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "conformance.md"
HEAD = """# Conformance

Every rule of the five specifications, the tests that show it, and what came of them. Written by
`WRITE_CONFORMANCE=1 python -m pytest -m "not spark" tests/specifications`; the tests check that it
is complete.
"""


@dataclass
class Shown:
    """What the tests of one session say of the rules."""

    tests: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    failed: set[str] = field(default_factory=set)

    def table(self, texts: dict[str, Any]) -> str:
        """Write the table: rule, what it says, its tests, result."""
        lines = [HEAD]
        for text in texts.values():
            lines += [f"\n## {text['title']}\n", "| rule | | tests | result |", "|---|---|---|---|"]
            for rule, says in text["rules"].items():
                names = sorted(self.tests.get(rule, ()))
                reason = text.get("without", {}).get(rule)
                result = "holds"
                if reason:
                    result = f"does not hold: {reason}"
                elif not names or self.failed.intersection(names):
                    result = "**not shown**"
                shown = "<br>".join(f"`{name}`" for name in names) or "none"
                lines.append(f"| {rule} | {says} | {shown} | {result} |")
        return "\n".join(lines) + "\n"


def texts() -> dict[str, Any]:
    """Read the rules of all texts."""
    found = sorted((HERE / "rules").glob("*.yaml"))
    return {path.stem: yaml.safe_load(path.read_text()) for path in found}


SHOWN = pytest.StashKey[Shown]()
WRITING = os.environ.get("WRITE_CONFORMANCE") == "1"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note which tests name which rules, before any is deselected."""
    shown = config.stash.setdefault(SHOWN, Shown())
    for item in items:
        for mark in item.iter_markers("rule"):
            for rule in mark.args:
                shown.tests[rule].add(_name(item.nodeid))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _FAILED.add(_name(report.nodeid))


_FAILED: set[str] = set()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if WRITING:
        shown = session.config.stash[SHOWN]
        shown.failed = set(_FAILED)
        TABLE.write_text(shown.table(texts()))


@pytest.fixture
def shown(request: pytest.FixtureRequest) -> Shown:
    """What the tests of this session say of the rules so far."""
    found = request.config.stash[SHOWN]
    found.failed = set(_FAILED)
    return found


def _name(nodeid: str) -> str:
    path, _, rest = nodeid.partition("::")
    return f"{Path(path).name}::{rest.partition('[')[0]}"
