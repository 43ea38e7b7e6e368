"""Type checkers, as a user runs them: what each says of which line.

This folder has no ``__init__.py``: as a package it would be found before Python's own ``typing``
by every script that is started in the folder above.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
Found = dict[tuple[str, int], set[str]]
"""The codes of the errors, by file and line."""


def mypy() -> Found:
    """Check the programs as strictly as mypy can; pyproject.toml says so."""
    found: Found = defaultdict(set)
    programs = map(str, sorted(PROGRAMS.glob("*.py")))
    for line in _run("mypy", "--output", "json", *programs).splitlines():
        said = json.loads(line)
        if said["severity"] == "error":
            found[Path(said["file"]).name, said["line"]].add(said["code"])
    return dict(found)


def pyright() -> Found:
    """Check the programs as strictly as pyright can; its configuration beside them says so."""
    found: Found = defaultdict(set)
    said = json.loads(
        _run("pyright", "--outputjson", "-p", str(PROGRAMS.parent), "--pythonpath", sys.executable)
    )
    assert said["summary"]["filesAnalyzed"] == len(list(PROGRAMS.glob("*.py"))), said
    for one in said["generalDiagnostics"]:
        rule = one.get("rule", one["message"])
        if not rule.startswith("reportUnknown"):  # what follows from another error of the line
            found[Path(one["file"]).name, one["range"]["start"]["line"] + 1].add(rule)
    return dict(found)


def _run(*command: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    return run.stdout
