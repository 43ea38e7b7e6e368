"""The core of the suite with other versions of Python, Spark and Delta."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.reliability.session import Session

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = "spark,cli,report,plots,metrics,connect,test"
IN_MEMORY = ("tests/core", "tests/conformance")
ON_SPARK = ("transactions", "sending", "catalog", "leases", "transient", "headers", "placing")
SECONDS = 1_500
_PINNED = ("pyspark", "delta-spark")


@dataclass(frozen=True)
class Versions:
    """What is installed for a run; Java is the machine's.

    Attributes:
        python: The minor version of Python, such as ``3.13``.
        spark: PySpark's version.
        delta: delta-spark's version.
        in_memory: Whether the tests that need no Spark run, or those on Delta.
    """

    python: str
    spark: str
    delta: str
    in_memory: bool

    def __str__(self) -> str:
        where = "in memory" if self.in_memory else "on Delta"
        return f"tests {where} with Python {self.python}, Spark {self.spark}, Delta {self.delta}"


SPARKS = (("4.2.0", "4.4.0"), ("4.1.1", "4.2.0"), ("4.0.1", "4.0.1"))
PYTHONS = ("3.13", "3.10", "3.12", "3.11")
ALL = [
    *(Versions(python, *SPARKS[0], in_memory=True) for python in PYTHONS),
    *(Versions("3.11", *spark, in_memory=False) for spark in SPARKS[1:]),
    *(Versions(python, *SPARKS[0], in_memory=False) for python in ("3.13", "3.10", "3.12")),
]


def run(session: Session, number: int) -> tuple[int, Counter[str]]:
    """Install the versions of a number, and run the tests with them; how many passed.

    Raises:
        AssertionError: A test failed, or nothing could be installed.
    """
    wanted = ALL[number]
    folder = session.folder()
    python = _python(wanted.python)
    if python is None:
        return 0, Counter({f"Python {wanted.python} is not on this machine": 1})
    try:
        made = _installed(wanted, python, folder)
        found = _tested(wanted, made)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found, Counter({str(wanted): found})


def _python(minor: str) -> str | None:
    """Find a Python of a minor version that can make virtual environments."""
    say = "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"
    beside = Path.home().glob(f".pyenv/versions/{minor}.*/bin/python")
    for candidate in filter(None, [shutil.which(f"python{minor}"), *map(str, beside)]):
        told = subprocess.run([candidate, "-c", say], capture_output=True, text=True, check=False)
        if told.stdout.strip() == minor:
            return candidate
    return None


def _installed(wanted: Versions, python: str, folder: Path) -> str:
    """Make a virtual environment with these versions, and everything else as it is pinned."""
    pins = (ROOT / "conf/constraints.txt").read_text(encoding="utf-8").splitlines()
    kept = [line for line in pins if not line.startswith(_PINNED)]
    kept += [f"pyspark=={wanted.spark}", f"delta-spark=={wanted.delta}"]
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(kept), encoding="utf-8")
    _called(python, "-m", "venv", str(folder / "venv"))
    made = str(folder / "venv/bin/python")
    _called(made, "-m", "pip", "install", "-q", "-c", str(constraints), f"{ROOT}[{EXTRAS}]")
    return made


def _tested(wanted: Versions, python: str) -> int:
    on_spark = [f"tests/conformance/test_{name}.py" for name in ON_SPARK]
    tests = IN_MEMORY if wanted.in_memory else on_spark
    marked = "not spark" if wanted.in_memory else "spark"
    said = _called(python, *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marked), *tests)
    found = re.search(r"(\d+) passed", said)
    assert found is not None, f"{wanted}: no tests were run"
    return int(found[1])


def _called(*command: str) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-1_500:]
    return done.stdout
