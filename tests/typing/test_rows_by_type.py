"""What is given is told by its type: a DataFrame of Spark Connect answers every name."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from txnqueue.errors import InvalidInput
from txnqueue.testing import memory_manager

PACKAGE = Path(__file__).parents[2] / "txnqueue"
ASKED = {
    ("admin/recovery.py", "connection"),
    ("cli/signals.py", "os"),
    ("client/client.py", "self._local"),
    ("core/custody.py", "os"),
    ("messages/selector.py", "matching"),  # after it was found to be of pandas
    ("messages/selector.py", "message"),  # in a cell of pandas
    ("platform/package.py", "os"),
    ("storage/journal/sessions.py", "spark"),
    ("storage/payload/frames.py", "rows"),  # after its type was found to be one of pandas
    ("storage/payload/rows.py", "data"),
    ("storage/payload/rows.py", "rows"),  # after it was found to be of pandas
    ("storage/payload/rows.py", "table"),
    ("storage/transient.py", "os"),
    ("transactions/participants.py", "connection"),
}
"""What may be asked whether it has an attribute: nothing that may be a DataFrame of Spark."""


def test_nobody_asks_rows_what_they_have() -> None:
    found = {
        (str(path.relative_to(PACKAGE)), ast.unparse(node.args[0]))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hasattr"
    }
    assert found <= ASKED


class AnswersAll:
    """As a DataFrame of Connect: whatever it is asked for, it has it."""

    def __getattr__(self, name: str) -> Any:
        return self


@pytest.mark.parametrize("what", ["send", "publish", "settle", "transaction"])
def test_what_answers_every_name_is_none_of_what_it_answers_to(what: str) -> None:
    manager = memory_manager()
    queue = manager.create_queue("orders", "n long", dead_letter=False)
    exchange = manager.create_exchange("news", "fanout", "n long")
    queue.send([{"n": 1}])
    odd: Any = AnswersAll()
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: queue.send(odd),
        "publish": lambda: exchange.publish(odd, routing_key="x"),
        "settle": lambda: queue.receive(1).accept(matching=odd),
        "transaction": lambda: queue.send([{"n": 2}], transaction=odd),
    }
    with pytest.raises(InvalidInput):
        calls[what]()
    assert queue.depth() + queue.in_flight() == 1


def test_a_manager_is_closed_by_its_block() -> None:
    with memory_manager() as manager:
        manager.create_queue("orders", "n long").send([{"n": 1}])
