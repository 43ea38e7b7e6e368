"""Whether Spark and the files tell the same of all stores that tests left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import txnqueue
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.errors import FilesNotReadable, TxnQueueError

NOT_READABLE, FAILED = "not readable", "failed"
QUEUES = 5
"""Of so many queues of each store the first messages are compared: each costs a query."""


def stores(folder: Path) -> list[Path]:
    """Find the stores below a folder: whatever has a journal with a log of Delta's."""
    return sorted(log.parent.parent for log in folder.rglob("journal/_delta_log"))


def told(entries: Iterable[object]) -> list[str]:
    """Write entries down, in an order of their own."""
    return sorted(map(repr, entries))


def answers(held: Any) -> Iterator[tuple[str, object]]:
    """Ask a manager or a reader, from the entries to the payload.

    Args:
        held: The one or the other.

    Yields:
        What was asked, and the answer.
    """
    journal = client_of(held).store.journal
    yield "entries", told(journal.read_all().entries)
    yield "files", journal.files()
    yield "version", journal.version()
    yield "queues", held.list_queues()
    yield "exchanges", held.list_exchanges()
    yield "horizon", held.history.horizon()
    yield "changes", held.history.changes().rows()  # those in the archive, too
    yield "counts", held.history.as_of().counts().rows()
    for name in held.list_queues()[:QUEUES]:
        yield f"messages of {name}", held.queue(name).peek_messages(20)


def disagreements(spark: Any, folder: Path) -> list[str]:
    """Compare what both tell of the stores below a folder, each as far as Spark can read it.

    Args:
        spark: The session.
        folder: Where the stores are.

    Returns:
        A line for each answer of Spark that ``look`` does not give, too. That a store needs Spark
        is an answer that it may give.
    """
    found: list[str] = []
    for root in map(str, stores(folder)):
        theirs = _asked(partial(QueueManager, spark, root))
        ours = _asked(partial(txnqueue.look, root))
        if NOT_READABLE not in ours:
            theirs.pop(FAILED, None)  # a test has deleted files
            found += [f"{root}: {what}" for what in theirs if theirs[what] != ours.get(what)]
    return sorted(found)


def _asked(opened: Callable[[], Any]) -> dict[str, object]:
    """Ask as far as there are answers; what refuses the next one is the last of them."""
    found: dict[str, object] = {}
    try:
        found.update(answers(opened()))
    except FilesNotReadable as error:
        found[NOT_READABLE] = str(error)
    except TxnQueueError as error:
        found["refused"] = type(error).__name__
    except Exception as error:
        found[FAILED] = str(error)
    return found
