"""A process with all tests collected, which forks: each child makes one mistake and runs tests.

The child gets the code of the mutated functions put in the place of theirs: nothing is imported
again, and no file is changed.
"""

from __future__ import annotations

import ast
import gc
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS = ("-q", "-p", "no:cacheprovider", "-p", "no:terminalreporter", "-m", "not spark")
SECONDS_MORE, TIMES_MORE = 2, 5
"""How much longer than usual a test may compute; it is killed then."""
WALL_SECONDS = 120
MEMORY_BYTES = 3 << 30
RAN = "_statements_that_ran"
PASSED, FAILED, SLOW = "passed", "failed", "slow"


@dataclass(frozen=True)
class Trial:
    """A mistake, and the tests that have to find it.

    Attributes:
        path: The mutated module.
        source: What it is instead; None: nothing is changed.
        tests: The tests, and how many seconds each takes without the mistake.
    """

    path: str
    source: str | None
    tests: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Ran:
    """A test that ran, which statements of the targets it reached, and how long it took."""

    test: str
    seconds: float
    statements: dict[str, list[int]]


def serve(
    connection: Connection[Any, Any], tests: Sequence[str], targets: Sequence[str], kept: Path
) -> None:
    """Collect tests, then do what is asked for until the connection is closed."""
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(kept / "hypothesis")
    output = os.open(kept / "nursery.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(ROOT)
    pytest.main([*ARGUMENTS, *tests], plugins=[Nursery(connection, targets)])


class Nursery:
    """Takes the place of pytest's loop over the tests."""

    def __init__(self, connection: Connection[Any, Any], targets: Sequence[str]) -> None:
        """Wait for the tests."""
        self._connection = connection
        self._targets = targets
        self._functions: list[FunctionType] = []
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """See a test fail."""
        self._failed = self._failed or report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do what is asked for."""
        items = {item.nodeid: item for item in session.items}
        self._functions = functions(self._targets)
        gc.freeze()
        while True:
            try:
                asked = self._connection.recv()
            except EOFError:
                return True
            if isinstance(asked, Trial):
                self._connection.send(self._tried(asked, items))
            else:
                self._record([items[name] for name in items if name.partition("::")[0] == asked])

    # ---------------------------------------------------------------------------- trials

    def _tried(self, trial: Trial, items: dict[str, pytest.Item]) -> tuple[str, str | None]:
        """Run tests with a mistake until one fails; tell what happened, and in which test."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            _forked(lambda: self._run(trial, items, write))
        os.close(write)
        began, code = time.monotonic(), None
        while code is None:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                code = status
            elif time.monotonic() - began > WALL_SECONDS + 20 * sum(s for _, s in trial.tests):
                os.kill(child, signal.SIGKILL)
            else:
                time.sleep(0.005)
        with os.fdopen(read) as pipe:
            begun = len(pipe.read())
        last = trial.tests[begun - 1][0] if begun else None
        if os.WIFEXITED(code):
            return (PASSED, None) if os.WEXITSTATUS(code) == 0 else (FAILED, last)
        slow = os.WTERMSIG(code) in (signal.SIGPROF, signal.SIGKILL)
        return (SLOW if slow else FAILED), last

    def _run(self, trial: Trial, items: dict[str, pytest.Item], write: int) -> int:
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        if trial.source is not None:
            exchange(self._functions, {trial.path: ast.parse(trial.source)})
        chosen = [(items[name], seconds) for name, seconds in trial.tests]
        following = [item for item, _ in chosen[1:]] + [None]
        for (item, seconds), after in zip(chosen, following, strict=True):
            os.write(write, b".")  # so little that it waits for no reader
            signal.setitimer(signal.ITIMER_PROF, SECONDS_MORE + TIMES_MORE * seconds)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self._failed:
                return 1
        return 0

    # --------------------------------------------------------------------- what runs what

    def _record(self, items: list[pytest.Item]) -> None:
        """Run tests without a mistake, and send what each of them reached; None at the end."""
        child = os.fork()
        if child == 0:
            _forked(lambda: self._watch(items))
        os.waitpid(child, 0)
        self._connection.send(None)

    def _watch(self, items: list[pytest.Item]) -> int:
        ran: dict[str, set[int]] = {path: set() for path in self._targets}
        for path in self._targets:
            for module in list(sys.modules.values()):
                if getattr(module, "__file__", None) == str(ROOT / path):
                    setattr(module, RAN, ran[path].add)
        watched = {path: _watched((ROOT / path).read_text("utf-8")) for path in self._targets}
        exchange(self._functions, watched)
        for item, after in zip(items, [*items[1:], None], strict=True):
            for lines in ran.values():
                lines.clear()
            began, self._failed = time.process_time(), False
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            seconds = round(time.process_time() - began, 4)
            found = {path: sorted(lines) for path, lines in ran.items() if lines}
            if found and not self._failed:
                self._connection.send(Ran(item.nodeid, seconds, found))
        return 0


def _forked(act: Callable[[], int]) -> None:
    """End the child with what it returns, whatever happens."""
    code = 1
    try:
        code = act()
    finally:
        os._exit(code)


def functions(paths: Iterable[str]) -> list[FunctionType]:
    """Find all functions of modules."""
    files = {str(ROOT / path) for path in paths}
    found = (one for one in gc.get_objects() if isinstance(one, FunctionType))
    return [one for one in found if one.__code__.co_filename in files]


def exchange(known: Iterable[FunctionType], modules: dict[str, ast.Module]) -> None:
    """Put the code of other sources of modules in the place of that of their functions."""
    fresh = {
        str(ROOT / path): dict(_codes(compile(tree, str(ROOT / path), "exec", dont_inherit=True)))
        for path, tree in modules.items()
    }
    for one in known:
        code = fresh.get(one.__code__.co_filename, {}).get(_key(one.__code__))
        if code is not None and code.co_freevars == one.__code__.co_freevars:
            one.__code__ = code


def _codes(code: CodeType) -> Iterator[tuple[tuple[str, int], CodeType]]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield _key(inner), inner
            yield from _codes(inner)


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno


def statements(source: str) -> list[int]:
    """List the lines on which the statements of a module's functions begin."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    found = {
        inner.lineno
        for function in functions
        for inner in ast.walk(function)
        if isinstance(inner, ast.stmt) and inner is not function
    }
    return sorted(found)


def _watched(source: str) -> ast.Module:
    """Let each statement of a module's functions say that it is reached."""
    tree = ast.parse(source)
    for function in list(ast.walk(tree)):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                for name in ("body", "orelse", "finalbody"):
                    body = getattr(node, name, None)
                    if isinstance(body, list):
                        setattr(node, name, list(_said(body)))
    return ast.fix_missing_locations(tree)


def _said(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if not getattr(statement, "watches", False):
            call = ast.parse(f"{RAN}({statement.lineno})").body[0]
            call.watches = True  # type: ignore[attr-defined]
            statement.watches = True  # type: ignore[attr-defined]
            yield ast.copy_location(call, statement)
        yield statement
