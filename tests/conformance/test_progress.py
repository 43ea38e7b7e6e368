"""How far a drain or a send is can be watched, and watching changes nothing."""

from __future__ import annotations

import io
import queue as queues
import sys
from pathlib import Path
from typing import Any

import pytest

from txnqueue.errors import PlatformMissing
from txnqueue.testing import memory_manager

pytest.importorskip("rich")
from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
from txnqueue.testing import memory_manager

manager = memory_manager()
orders = manager.create_queue("orders", "a long")
orders.send([{"a": n} for n in range(7)], progress=True)
orders.drain(lambda batch, tx: None, batch_size=3, progress=True)
"""


@pytest.fixture
def orders() -> Any:
    """A queue of seven messages in one lane."""
    queue = memory_manager().create_queue("orders", "a long", lanes=1)
    queue.send([{"a": n} for n in range(7)])
    return queue


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a person sees in a terminal."""
    written = io.StringIO()
    made = Console(file=written, force_terminal=True, width=100, _environ={})
    monkeypatch.setattr("rich.console.Console", lambda **_: made)
    return written


def test_a_drain_shows_its_messages_and_calls_what_is_to_be_called(
    orders: Any, screen: io.StringIO
) -> None:
    seen: list[int] = []
    result = orders.drain(lambda batch, tx: None, batch_size=3, on_batch=seen.append, progress=True)
    assert (result.messages, seen) == (7, [3, 3, 1])
    assert "drain of orders" in screen.getvalue() and "7/7" in screen.getvalue()


def test_a_send_shows_that_it_is_under_way(orders: Any, screen: io.StringIO) -> None:
    assert orders.send([{"a": 1}, {"a": 2}], progress=True).count == 2
    assert "send to orders" in screen.getvalue()


def test_a_drain_of_a_part_knows_its_end(orders: Any, screen: io.StringIO) -> None:
    orders.drain(lambda batch, tx: None, batch_size=2, max_messages=4, progress=True)
    assert "4/4" in screen.getvalue()


def test_a_failing_handler_fails_as_without(orders: Any, screen: io.StringIO) -> None:
    def fail(batch: Any, tx: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        orders.drain(fail, progress=True)
    assert orders.depth() == 7


def test_a_terminal_that_is_gone_does_not_end_the_drain(
    orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("the terminal is gone")

    monkeypatch.setattr("rich.progress.Progress.update", fail)
    assert orders.drain(lambda batch, tx: None, progress=True).messages == 7


def test_without_rich_it_says_what_to_install_and_does_nothing(
    orders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(PlatformMissing, match=r"txnqueue\[cli\]"):
        orders.drain(lambda batch, tx: None, progress=True)
    assert orders.depth() == 7


def test_a_notebook_shows_an_element_that_is_replaced() -> None:
    manager = pytest.importorskip("jupyter_client.manager")
    kernel, client = manager.start_new_kernel(extra_arguments=["--quiet"], cwd=str(ROOT))
    try:
        client.execute(PROGRAM)
        shown, errors = [], []
        while True:
            message = client.get_iopub_msg(timeout=60)
            kind, content = message["msg_type"], message["content"]
            if kind in ("display_data", "update_display_data"):
                shown.append((kind, content["data"]["text/html"]))
            if kind in ("error", "stream"):
                errors.append(content)
            ended = kind == "status" and content["execution_state"] == "idle"
            if ended and (shown or errors):
                break
    except queues.Empty:
        pytest.fail("the kernel does not answer")
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    assert errors == []
    assert [kind for kind, _ in shown].count("display_data") == 2
    assert "send to orders: 7 messages" in shown[1][1]
    assert '<progress value="7" max="7"></progress> drain of orders: 7 of 7' in shown[-1][1]
