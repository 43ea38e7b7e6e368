"""Writes down what a client calls and what it is told, at the instants at which that happens."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.histories.history import FAIL, INFO, OK
from txnqueue.errors import TransactionUnknown, TxnQueueError

Event = dict[str, Any]


def events_in(folder: Path) -> Iterator[Event]:
    """Read what was recorded in a folder; the last line of a killed process may be half of one."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue


def into_file(path: Path) -> Callable[[Event], None]:
    """Write events to a file, each of them at once, so that a killed process leaves them."""
    file = path.open("a", encoding="utf-8", buffering=1)
    return lambda event: print(json.dumps(event), file=file, flush=True)


class Recorder:
    """Records the calls of one client.

    The clock is that of the machine, which counts alike in all of its processes.
    """

    def __init__(self, client: str, write: Callable[[Event], object]) -> None:
        self._client = client
        self._write = write
        self._numbers = itertools.count()

    def call(
        self,
        what: str,
        act: Callable[[], Any],
        txn: str | None = None,
        told: Callable[[Any], Mapping[str, Any]] = lambda answer: {},
        **given: Any,
    ) -> Any:
        """Make a call and record it; what it raises is raised again.

        Args:
            what: What is called: see ``Operation``.
            act: The call.
            txn: The transaction that it belongs to.
            told: What is recorded of its answer.
            given: What is recorded of its parameters.
        """
        op = f"{self._client}.{next(self._numbers)}"
        event = {"op": op, "client": self._client, "f": what, "txn": txn}
        self._write({**event, "type": "invoke", "t": time.monotonic_ns(), "given": given})
        try:
            answer = act()
        except BaseException as error:
            self._answer(op, _outcome(error), {"error": type(error).__name__})
            raise
        self._answer(op, OK, told(answer))
        return answer

    def _answer(self, op: str, outcome: str, got: Mapping[str, Any]) -> None:
        self._write({"op": op, "type": outcome, "t": time.monotonic_ns(), "got": got})


def _outcome(error: BaseException) -> str:
    """Tell what surely has not happened from what nobody knows, as the library's errors say."""
    if isinstance(error, TransactionUnknown):
        return INFO
    return FAIL if isinstance(error, TxnQueueError | ConnectionError) else INFO
