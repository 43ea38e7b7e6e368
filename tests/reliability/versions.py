"""The core of the suite with other versions of Python, Spark, Delta and Java.

Each combination has a virtual environment of its own with the wheel that is built from the
checkout. The tests run in a copy of the checkout that has no package: they test what is installed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement

from tests.reliability.results import Again, Run, Told
from tests.reliability.session import Session

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "build" / "reliability"
EXTRAS = ("spark", "cli", "report", "plots", "metrics", "connect")
TOOLS = ("pytest", "pytest-timeout", "hypothesis", "greenlet", "chispa")
SHOWN = ("pyspark", "delta-spark", "pandas", "pyarrow")
IN_MEMORY = ("core", "conformance", "shell/test_environment.py", "shell/test_requirements.py")
ON_DELTA = ("transactions", "sending", "catalog", "leases", "transient", "headers", "placing")
INSTALL_SECONDS, TESTS_SECONDS = 900, 1_500
LINE_MAX = 200
PINNED, NEWEST, OLDEST = "pinned", "newest", "oldest"
NO_JAVA = "–"


class NotInstallable(Exception):
    """What a combination needs cannot be had on this machine; it says nothing of the library."""


@dataclass(frozen=True)
class Combination:
    """What is installed for a run of the tests.

    Attributes:
        python: The minor version of Python, such as ``3.13``.
        spark: PySpark's version; a series such as ``4.1.*``, whose newest one is taken; or
            nothing, and pip chooses.
        delta: delta-spark's version, or nothing.
        java: The major version of Java; none for the tests that need no Spark.
        others: All other packages: as ``conf/constraints.txt`` pins them, the newest ones that
            pip finds, or the oldest ones that the wheel asks for.
    """

    python: str
    spark: str
    delta: str
    java: str
    others: str = PINNED

    def __str__(self) -> str:
        return (
            f"Python {self.python}, Spark {self.spark or 'free'}, Delta {self.delta or 'free'}, "
            f"Java {self.java}, others {self.others}"
        )

    @property
    def in_memory(self) -> bool:
        """Whether the tests run that need no Spark, instead of those on Delta."""
        return self.java == NO_JAVA


# Only what is added at the end keeps the numbers of what was run.
ALL = (
    Combination("3.13", "4.2.0", "4.4.0", NO_JAVA),
    Combination("3.11", "4.1.*", "", "17", NEWEST),
    Combination("3.10", "4.2.0", "4.4.0", NO_JAVA),
    Combination("3.12", "4.0.*", "", "17", NEWEST),
    Combination("3.12", "4.2.0", "4.4.0", NO_JAVA),
    Combination("3.13", "4.2.0", "4.4.0", "25"),
    Combination("3.11", "4.1.1", "4.2.0", "17"),
    Combination("3.10", "", "", "17", OLDEST),
    Combination("3.10", "", "", NO_JAVA, OLDEST),
    Combination("3.11", "4.0.1", "4.0.1", "17"),
    Combination("3.11", "4.2.0", "4.4.0", NO_JAVA),
    Combination("3.13", "", "", "17", NEWEST),
    Combination("3.13", "", "", NO_JAVA, NEWEST),
    Combination("3.10", "4.2.0", "4.4.0", "17"),
    Combination("3.12", "4.2.0", "4.4.0", "17"),
)


# ------------------------------------------------------------------------------ what is said


@dataclass(frozen=True)
class Outcome:
    """What came of a combination the last time.

    Attributes:
        said: What it said.
        tests: How many tests passed; None: all, and nobody wrote down how many.
        commit: With what.
    """

    said: str
    tests: int | None
    commit: str

    @property
    def passed(self) -> bool:
        """Whether all of its tests passed."""
        return self.tests is None or self.tests > 0


def told(runs: Sequence[Run], again: Mapping[int, Again]) -> Told:
    """Say of each combination what came of it.

    Args:
        runs: The runs.
        again: What came of failures when they were done again, by their numbers.
    """
    found = _outcomes(runs, again)
    known = [found.get(str(one)) for one in ALL]
    passed = sum(one is not None and one.passed for one in known)
    failed = any(one is not None and one.said.startswith("failed") for one in known)
    whole = "all of a list" if passed == len(ALL) else "a part of a list"
    lines = [
        "| Python | Spark | Delta | Java | other packages | tests | what came of it | commit |"
    ]
    lines.append("|---|---|---|---|---|---:|---|---|")
    lines += [_row(one, outcome) for one, outcome in zip(ALL, known, strict=True)]
    return Told(
        f"{passed} of {len(ALL)} combinations", "failed in the last run" if failed else whole, lines
    )


def _outcomes(runs: Sequence[Run], again: Mapping[int, Again]) -> dict[str, Outcome]:
    found = {}
    for run in runs:
        for text, n in run.counts.items():
            name, _, said = text.partition(": ")
            found[name] = Outcome(said, n if said.startswith("passed") else 0, run.commit)
        for failure in run.failures:
            _, name, said = [*failure.what.split(": ", 2), "", ""][:3]
            since = again.get(failure.number)
            if since is not None and since.passes(run):
                found[name] = Outcome("passed when it was done again", None, since.commit)
            else:
                found[name] = Outcome(f"failed: {said}", 0, run.commit)
    return found


def _row(one: Combination, outcome: Outcome | None) -> str:
    cells = [one.python, one.spark or "free", one.delta or "free", one.java, one.others]
    if outcome is None:
        cells += ["", "not run yet", ""]
    else:
        tests = f"{outcome.tests:,}" if outcome.tests else ""
        said = outcome.said.replace("|", "\\|").replace("`", "'")
        cells += [tests, said if outcome.passed else f"`{said}`", outcome.commit]
    return f"| {' | '.join(cells)} |"


# ------------------------------------------------------------------------------ what is done


def run(session: Session, number: int) -> tuple[int, Counter[str]]:
    """Install a combination, and run the tests with it; how many passed.

    Raises:
        AssertionError: A test failed, or the doctor does not agree with what was installed.
    """
    wanted = ALL[number % len(ALL)]
    folder = session.folder()
    try:
        environment = _environment(wanted)
        source, wheel = _built(session)
        python = _installed(wanted, wheel, folder)
        versions = _versions(python, source, environment, folder)
        passed, skipped = _tested(wanted, python, source, environment)
    except NotInstallable as reason:
        said = str(reason)[:LINE_MAX]
        return 0, Counter({f"{wanted}: could not be installed: {said}": 1})
    except Exception as error:
        raise AssertionError(f"{wanted}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    said = f"passed with {versions}" + (f"; {skipped} skipped" if skipped else "")
    return passed, Counter({f"{wanted}: {said}": passed})


def _environment(wanted: Combination) -> dict[str, str]:
    """Make what the processes of a combination find in their environment."""
    mine = ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "SPARK_HOME")
    kept = {name: value for name, value in os.environ.items() if name not in mine}
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    if not wanted.in_memory:
        kept["JAVA_HOME"] = _java(wanted.java)
    return kept


def _java(major: str) -> str:
    """Find the folder of a Java: the one in use, or one where Debian keeps them."""
    on_path = shutil.which("java")
    homes = [os.environ.get("JAVA_HOME"), on_path and str(Path(on_path).resolve().parents[1])]
    for home in [*filter(None, homes), *map(str, sorted(Path("/usr/lib/jvm").glob("*")))]:
        program = str(Path(home, "bin/java"))
        if shutil.which(program) and _java_version(program).split(".")[0] == major:
            return home
    raise NotInstallable(f"there is no Java {major} on this machine")


def _java_version(program: str) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+[\d.]*", said.stdout)
    return found[0] if found is not None else "unknown"


def _python(minor: str) -> str:
    """Find a Python of a minor version that can make virtual environments."""
    say = "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"
    beside = Path.home().glob(f".pyenv/versions/{minor}.*/bin/python")
    for candidate in filter(None, [shutil.which(f"python{minor}"), *map(str, beside)]):
        said = subprocess.run([candidate, "-c", say], capture_output=True, text=True, check=False)
        if said.stdout.strip() == minor:
            return candidate
    raise NotInstallable(f"there is no Python {minor} on this machine")


def _built(session: Session) -> tuple[Path, Path]:
    """Build the wheel of the checkout, and leave the rest of it: the tests and what they read."""
    if "wheel" not in session.kept:
        folder = session.folder()
        source, made = folder / "source", folder / "wheel"
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (source / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, source / name)
        build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(made)]
        _called([*build, str(source)], folder, dict(os.environ), INSTALL_SECONDS)
        for name in ("txnqueue", "txnqueue.egg-info", "build"):
            shutil.rmtree(source / name, ignore_errors=True)
        session.kept["wheel"] = (source, next(made.glob("txnqueue-*.whl")))
    source, wheel = session.kept["wheel"]
    return source, wheel


def _installed(wanted: Combination, wheel: Path, folder: Path) -> str:
    """Make a virtual environment of a combination.

    Raises:
        NotInstallable: pip cannot install it; the message has its last line.
    """
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(_constraints(wanted, wheel)), encoding="utf-8")
    asked = [f"{wheel}[{','.join(EXTRAS)}]", *TOOLS]
    asked += [f"pyspark=={wanted.spark}"] if wanted.spark else []
    asked += [f"delta-spark=={wanted.delta}"] if wanted.delta else []
    python = str(folder / "venv/bin/python")
    install = [python, "-m", "pip", "install", "-q", "-c", str(constraints), *asked]
    try:
        _called([_python(wanted.python), "-m", "venv", str(folder / "venv")], folder)
        _called(install, folder, seconds=INSTALL_SECONDS)
    except AssertionError as error:
        raise NotInstallable(str(error)) from error
    return python


def _constraints(wanted: Combination, wheel: Path) -> list[str]:
    if wanted.others == OLDEST:
        return _oldest(wheel)
    if wanted.others == NEWEST:
        return []
    lines = (ROOT / "conf/constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if not line.startswith(("pyspark=", "delta-spark="))]


def _oldest(wheel: Path) -> list[str]:
    """Pin what the wheel asks for from a version on to that version."""
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(packed.read(name).decode()).get_all("Requires-Dist", [])
    asked = [Requirement(line) for line in lines]
    users = [
        one
        for one in asked
        if one.marker is None or any(one.marker.evaluate({"extra": name}) for name in EXTRAS)
    ]
    return sorted(
        {
            f"{one.name}=={bound.version}"
            for one in users
            for bound in one.specifier
            if bound.operator == ">="
        }
    )


_SAY = f"""
import json, platform, txnqueue
from importlib.metadata import version
found = {{name: version(name) for name in {SHOWN!r}}}
print(json.dumps([txnqueue.__file__, {{"Python": platform.python_version(), **found}}]))
"""


def _versions(python: str, source: Path, environment: Mapping[str, str], folder: Path) -> str:
    """Say what was installed; the package is the wheel's, and its doctor finds nothing wrong."""
    where, found = json.loads(_called([python, "-c", _SAY], source, environment))
    assert Path(where).is_relative_to(folder), f"the tests would be those of {where}"
    command = [str(Path(python).with_name("txnqueue")), "doctor", "--output", "json"]
    _called(command, source, environment)
    if "JAVA_HOME" in environment:
        found["Java"] = _java_version(str(Path(environment["JAVA_HOME"], "bin/java")))
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _tested(
    wanted: Combination, python: str, source: Path, environment: Mapping[str, str]
) -> tuple[int, int]:
    on_delta = [f"conformance/test_{name}.py" for name in ON_DELTA]
    tests = [f"tests/{path}" for path in (IN_MEMORY if wanted.in_memory else on_delta)]
    marked = "not spark and not slow" if wanted.in_memory else "spark"
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marked, *tests]
    said = _called(command, source, environment, TESTS_SECONDS)
    passed, skipped = (_counted(said, what) for what in ("passed", "skipped"))
    assert passed, "no tests were run"
    return passed, skipped


def _counted(said: str, what: str) -> int:
    found = re.search(rf"\b(\d+) {what}\b", said)
    return int(found[1]) if found is not None else 0


def _called(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    seconds: float = 120,
) -> str:
    """Run a program that succeeds; what it says, if it does not, is kept beside the project."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=None if environment is None else dict(environment),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{command[:3]} was not done after {seconds:.0f} s") from error
    if done.returncode != 0:
        LOGS.mkdir(parents=True, exist_ok=True)
        text = done.stdout + done.stderr
        (LOGS / "versions.log").write_text(f"{' '.join(command)}\n{text}", encoding="utf-8")
        named = [line for line in text.splitlines() if re.match(r"(FAILED|ERROR)\b", line)]
        raise AssertionError("; ".join(named) or (text.splitlines() or ["it said nothing"])[-1])
    return done.stdout
