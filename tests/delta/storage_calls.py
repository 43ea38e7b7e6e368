"""Count the calls to the storage that operations make, and how many of them wait for each other.

A process of its own, because its Java has another file system for local files: one that notes
each call and takes as long for it as an object store does (``java/WatchedFileSystem.java``).
What is counted are the calls of Hadoop's interface: opening a file is one, whatever is read.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txnqueue import QueueManager
from txnqueue.platform.local_spark import local_spark

CLASS, CONTEXT_CLASS = "WatchedFileSystem", "WatchedFileContext"
SOURCES = Path(__file__).parent / "java"
CALL_MILLISECONDS = 60
"""What a call to an object store takes, roughly."""
WARM_ROUNDS = 2


@dataclass(frozen=True)
class Call:
    """One call to the storage; its times in nanoseconds."""

    kind: str
    path: str
    began: int
    ended: int


def compiled(java: Any, folder: Path) -> None:
    """Compile the file system, and the context of it, with the compiler that Spark brings.

    Args:
        java: The Java of a session.
        folder: Where the class goes.
    """
    compiler = java.org.codehaus.janino.Compiler()
    compiler.setDestinationDirectory(java.java.io.File(str(folder)), False)
    jars = str(java.java.lang.System.getProperty("java.class.path")).split(":")
    compiler.setClassPath(_files(java, jars))
    sources = [str(SOURCES / f"{name}.java") for name in (CLASS, CONTEXT_CLASS)]
    compiler.compile(_files(java, sources))


def _files(java: Any, paths: Sequence[str]) -> Any:
    files = java.java.lang.reflect.Array.newInstance(java.java.io.File("").getClass(), len(paths))
    for index, path in enumerate(paths):
        java.java.lang.reflect.Array.set(files, index, java.java.io.File(path))
    return files


def calls_of(text: str) -> list[Call]:
    """Read what the file system has noted."""
    lines = (line.split("\t") for line in text.splitlines())
    return [Call(kind, path, int(began), int(ended)) for kind, path, began, ended in lines]


def waiting(calls: Sequence[Call]) -> int:
    """Count the longest row of calls of which each began when the one before had ended."""
    found, free = 0, 0
    for call in sorted(calls, key=lambda call: call.ended):
        if call.began >= free:
            found, free = found + 1, call.ended
    return found


def measured(java: Any, operation: Callable[[], object]) -> dict[str, Any]:
    """Do something, and count its calls by kind and table."""
    watched = getattr(java, CLASS)
    watched.begin(CALL_MILLISECONDS)
    operation()
    calls = calls_of(watched.end())
    kinds = Counter(f"{call.kind} {_place(call.path)}" for call in calls)
    return {"calls": len(calls), "waiting": waiting(calls), "kinds": dict(sorted(kinds.items()))}


def _place(path: str) -> str:
    """Name what a path belongs to: a table's log, or its data."""
    table = next((name for name in ("journal", "archive", "payload") if f"/{name}" in path), "-")
    return f"{table} log" if "/_delta_log" in path else table


def main() -> None:
    """Print what each operation costs, as JSON."""
    folder, classes = sys.argv[1:]
    spark = local_spark(
        "storage calls",
        memory="1g",
        settings={"spark.driver.extraClassPath": classes, "spark.hadoop.fs.file.impl": CLASS},
        short_lived=True,
    )
    java = spark._jvm
    manager = QueueManager(spark, f"{folder}/store")
    orders = manager.create_queue("orders", "n long")
    bills = manager.create_queue("bills", "n long", dead_letter=False)
    rows = [{"n": n} for n in range(10)]

    def consume() -> None:
        with manager.transaction() as transaction:
            batch = orders.receive(10, transaction=transaction)
            bills.send(batch.df.select("n"), transaction=transaction)

    def roll_back() -> None:
        with manager.transaction() as transaction:
            orders.receive(10, transaction=transaction)
            transaction.rollback()

    def frame() -> None:
        orders.send(spark.range(10).withColumnRenamed("id", "n"))

    operations: dict[str, Callable[[], object]] = {
        "depth": orders.depth,
        "send rows": lambda: orders.send(rows),
        "send a frame": frame,
        "peek": lambda: orders.peek(5),
        "roll back a claim": roll_back,
        "receive and accept": lambda: orders.receive(10).accept(),
        "consume and produce": consume,
    }
    for _ in range(WARM_ROUNDS):
        for operation in operations.values():
            operation()
    found = {name: measured(java, operation) for name, operation in operations.items()}
    print(json.dumps(found))
    manager.close()
    spark.stop()


if __name__ == "__main__":
    main()
