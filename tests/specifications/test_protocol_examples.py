"""The examples of the documentation of protocols run as they stand, on a store in memory."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from txnqueue.testing import MemoryStore, memory_manager, plain_schema

PAGE = Path(__file__).parents[2] / "docs" / "protocols.md"
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(section: str) -> list[str]:
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = _BLOCK.findall(text)
    assert found, f"{section} has no example"
    return list(found)


def run(section: str, manager: Any) -> dict[str, Any]:
    names: dict[str, Any] = {"manager": manager}
    for block in blocks(section):
        exec(compile(block, section, "exec"), names)
    return names


def test_the_example_of_openamq() -> None:
    manager = memory_manager()
    orders = manager.create_queue("orders", "order_id long, customer string")
    invoices = manager.create_queue("invoices", "customer string")
    orders.send([{"order_id": n, "customer": f"c{n}"} for n in range(12)])
    names = run("OpenAMQ message transactions", manager)
    assert (orders.depth(), orders.in_flight(), invoices.depth()) == (2, 0, 10)
    assert names["channel"].dispatch_list == []


def test_the_example_of_amqp() -> None:
    pytest.importorskip("proton", reason="python-qpid-proton is not installed")
    manager = memory_manager()
    orders = manager.create_queue("orders", "order_id long, customer string")
    invoices = manager.create_queue("invoices", "customer string")
    orders.send([{"order_id": n, "customer": f"c{n}"} for n in range(3)])
    run("AMQP 1.0 transactions", manager)
    assert (orders.depth(), orders.in_flight(), invoices.depth()) == (0, 0, 3)
    run("AMQP 1.0: the listener", manager)
    assert manager.queue("letters").schema.names == ["body", "subject", "weight"]


def test_the_example_of_flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("audit.db") as connection:
        connection.execute("CREATE TABLE seen (amount real)")
    store = MemoryStore()
    manager = memory_manager(store)
    store.tables.create("bank.payments", plain_schema("amount double"))
    for name in ("payments", "mortgage"):
        manager.create_queue(name, "amount double")
    manager.queue("payments").send([{"amount": 9.5}])
    run("Message flows", manager)
    assert manager.queue("mortgage").depth() == 1
    assert store.tables.rows("bank.payments").to_pylist() == [{"amount": 9.5}]
    assert sqlite3.connect("audit.db").execute("SELECT * FROM seen").fetchall() == [(9.5,)]


def test_the_example_of_mqqb() -> None:
    manager = memory_manager()
    orders = manager.create_queue("orders", "order_id long, customer string")
    vips = manager.create_queue("orders-of-vips", "order_id long, customer string")
    invoices = manager.create_queue("invoices", "customer string")
    orders.send([{"order_id": n, "customer": f"c{n}"} for n in range(3)])
    run("MS-MQQB: Transaction Commit", manager)
    assert (orders.depth(), vips.depth(), invoices.depth()) == (1, 1, 1)
