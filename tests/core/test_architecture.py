"""The page of the architecture is true: the ways down that it lists are those of real calls."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import txnqueue
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.storage.store import MemoryStore
from txnqueue.storage.tables.memory import MemoryTables
from txnqueue.testing import memory_manager, plain_schema

PROJECT = Path(__file__).resolve().parents[2]
PACKAGE = Path(txnqueue.__file__).parent  # the installed one, where tests run on a wheel
MODULES_MAX = 12
ROW = {"n": 1, "k": "a"}


def modules_of(frame: FrameType | None) -> list[str]:
    """List the package's files on the stack, outermost first, each stay in one as one."""
    found: list[str] = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            found.append(str(path.relative_to(PACKAGE)))
        frame = frame.f_back
    found.reverse()
    return [name for n, name in enumerate(found) if n == 0 or found[n - 1] != name]


def ways(act: Callable[[], object], deciding: Collection[str]) -> dict[str, list[str]]:
    """Do something, and find by which files each deciding function was reached first."""
    found: dict[str, list[str]] = {}

    def look(frame: FrameType, event: str, _: object) -> None:
        name = getattr(frame.f_code, "co_qualname", "")
        here = frame.f_code.co_filename.startswith(str(PACKAGE))
        if event == "call" and here and name in deciding and name not in found:
            found[name] = modules_of(frame)

    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(None)
    return found


def queues() -> tuple[QueueManager, Any, Any]:
    manager = memory_manager()
    window: dict[str, Any] = {"message_id": "k", "duplicate_window_seconds": 60}
    orders = manager.create_queue("orders", "n long, k string", lanes=1, **window)
    return manager, orders, manager.create_queue("out", "n long, k string")


def send() -> Callable[[], object]:
    _, orders, _ = queues()
    return lambda: orders.send([ROW])


def commit() -> Callable[[], object]:
    manager, orders, out = queues()
    orders.send([ROW])
    tx = manager.transaction()
    orders.receive(transaction=tx)
    out.send([ROW], transaction=tx)
    return tx.commit


def claim() -> Callable[[], object]:
    _, orders, _ = queues()
    orders.send([ROW])
    receive: Callable[[], object] = orders.receive
    return receive


def change() -> Callable[[], object]:
    manager, _, _ = queues()
    store = client_of(manager).store
    assert isinstance(store, MemoryStore) and isinstance(store.tables, MemoryTables)
    store.tables.create("lake/gold", plain_schema("n long"))
    tx = manager.transaction()
    tx.table("lake/gold").append(pa.table({"n": pa.array([1], pa.int64())}))
    return tx.commit


def duplicate() -> Callable[[], object]:
    _, orders, _ = queues()
    orders.send([ROW, ROW])
    receive: Callable[[], object] = orders.receive
    return receive


APPEND = "MemoryJournal.append"
QUESTIONS: dict[str, tuple[Callable[[], Callable[[], object]], Sequence[str]]] = {
    "Where does a send become visible?": (
        send,
        ["MemoryPayload.stage", "StagedSend.positions", "seal", APPEND],
    ),
    "What happens at commit?": (commit, ["StagedSend.positions", "settlement", "seal", APPEND]),
    "How is a message claimed?": (claim, ["select", "QueueState.apply", APPEND]),
    "Who applies a table change after the commit?": (change, ["MemoryTables.apply"]),
    "How is a duplicate suppressed?": (
        duplicate,
        ["left_out", "firsts", "Duplicates.learn", "leaving_out"],
    ),
}


def listed(question: str) -> list[str]:
    """Read the files that the page lists under a question."""
    page = (PROJECT / "docs" / "architecture.md").read_text()
    section = page.split(f"### {question}\n")[1].split("\n##")[0]
    return re.findall(r"^\| `([\w/]+\.py)` \|", section, re.M)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames do not know whose they are")
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_way_down_is_straight_and_as_the_page_says(question: str) -> None:
    prepare, deciding = QUESTIONS[question]
    found, page = ways(prepare(), deciding), listed(question)
    assert found.keys() == set(deciding), "what decides is called otherwise, or not at all"
    for name, way in found.items():
        assert len(set(way)) == len(way), f"{name}: a file is entered twice: {way}"
        assert [file for file in page if file in way] == way, f"{name} is reached by {way}"
    assert {file for way in found.values() for file in way} == set(page)
    assert len(page) <= MODULES_MAX


def test_every_room_stands_on_the_page() -> None:
    page = (PROJECT / "docs" / "architecture.md").read_text()
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms and [room for room in rooms if f"`{room}/`" not in page] == []


def test_no_assertion_does_anything() -> None:
    """There are none under ``python -O``."""
    harmless = {"isinstance", "custody.held"}
    for path in sorted(PACKAGE.rglob("*.py")):
        for one in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(one, ast.Assert):
                inside = [call for call in ast.walk(one.test) if isinstance(call, ast.Call)]
                called = {ast.unparse(call.func) for call in inside}
                assert called <= harmless, f"{path}:{one.lineno}"


def test_no_class_is_called_as_another_one() -> None:
    """Only the specifications have words of their own, each in its own package."""
    homes: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if "protocols" not in path.parts:
            for name in re.findall(r"^class (\w+)", path.read_text(), re.M):
                homes.setdefault(name, set()).add(str(path))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}
