"""Damage a store's files as disks, copies and hands do, and ask it what it still says.

A cell is a file of a table and a harm. What a store may answer to a question is what it answered
before, or ``StoreCorrupt`` that names the file; it is never something else. Only of what the
documentation calls a limit, a changed character in a commit without Hadoop's sums, another error
of the library's is accepted, and counted as a class of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import txnqueue
from txnqueue.errors import StoreCorrupt, TxnQueueError

BLOCK = 64
FLIPS = (0.02, 0.15, 0.31, 0.5, 0.68, 0.83, 0.97)
"""Where in a file a bit is flipped: a share of its length."""


def _flip(share: float) -> Callable[[bytes], bytes]:
    def flipped(content: bytes) -> bytes:
        at = min(int(len(content) * share), len(content) - 1)
        return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]

    return flipped


def _zeroed(content: bytes) -> bytes:
    at = max(0, len(content) // 2 - BLOCK // 2)
    return content[:at] + bytes(min(BLOCK, len(content) - at)) + content[at + BLOCK :]


def _without_last_line(content: bytes) -> bytes:
    return b"".join(content.splitlines(keepends=True)[:-1])


HARMS: dict[str, Callable[[bytes], bytes | None]] = {
    "gone": lambda _: None,
    "empty": lambda _: b"",
    "half": lambda content: content[: len(content) // 2],
    "without its last line": _without_last_line,
    "a block of zeros": _zeroed,
    **{f"a bit flipped at {share:.0%}": _flip(share) for share in FLIPS},
}


@dataclass(frozen=True)
class Cell:
    """A file of a store, and what is done to it.

    Attributes:
        kind: What kind of file it is, of which table.
        path: Where it is, below the store.
        harm: What is done to it.
    """

    kind: str
    path: str
    harm: str

    def __str__(self) -> str:
        return f"{self.kind}, {self.harm}"

    @property
    def is_a_character_of_a_commit(self) -> bool:
        """Whether it may leave a commit that is valid, and says something else."""
        return self.path.endswith(".json") and self.harm.startswith("a bit flipped")

    def do(self, store: Path) -> None:
        """Do it."""
        file = store / self.path
        after = HARMS[self.harm](file.read_bytes())
        if after is None:
            file.unlink()
        else:
            file.write_bytes(after)


def cells(store: Path) -> list[Cell]:
    """List the files of a store of each kind, with each harm that changes them."""
    return [
        Cell(f"{table.name.split('-')[0]}: {kind}", str(file.relative_to(store)), harm)
        for table in _tables(store)
        for kind, file in _files(table)
        for harm, change in HARMS.items()
        if change(file.read_bytes()) != file.read_bytes()
    ]


def cells_of_logs(store: Path) -> list[Cell]:
    """List those of a store with checkpoints whose logs are read otherwise because of them."""
    return [cell for cell in cells(store) if "/_delta_log/" in cell.path]


def _tables(store: Path) -> list[Path]:
    return [store / "journal", store / "archive", *sorted((store / "payload").iterdir())]


def _files(table: Path) -> Iterator[tuple[str, Path]]:
    log = table / "_delta_log"
    commits = sorted(one for one in log.glob("*.json") if one.stem.isdecimal())
    checkpoints = sorted(log.glob("*.checkpoint*.parquet"))[-1:]
    yield "the last commit", commits[-1]
    if len(commits) > 2:
        yield "a commit before", commits[len(commits) // 2]
    for checkpoint in checkpoints:
        yield "the last checkpoint", checkpoint
        yield "the hint at the last checkpoint", log / "_last_checkpoint"
    if (log / f"{commits[-1].stem}.crc").exists():
        yield "Delta's checksum", log / f"{commits[-1].stem}.crc"
    found = sorted(table.rglob("*.parquet"))
    data = [one for one in found if not one.relative_to(table).parts[0].startswith("_")]
    for number in sorted({0, len(data) // 2, len(data) - 1} & set(range(len(data)))):
        yield f"data file {number}", data[number]


def without_sums(store: Path) -> None:
    """Take away what only a local disk has: Hadoop's sums beside each file."""
    for file in store.rglob(".*.crc"):
        file.unlink()


# ------------------------------------------------------------------------------ what is asked


def looks(root: str) -> dict[str, Callable[[], Any]]:
    """What is asked of a store, without Spark."""

    @cache
    def reader() -> txnqueue.StoreReader:
        return txnqueue.look(root)

    def peeked() -> dict[str, Any]:
        store = reader()
        return {name: store.queue(name).peek_messages(100) for name in store.list_queues()}

    return {
        "depths": lambda: {name: reader().queue(name).depth() for name in reader().list_queues()},
        "outcome": lambda: [reader().outcome(t) for t in ("load/1", "hold/1", "back/1", "none")],
        "entries": lambda: reader().entries().to_pylist(),
        "messages": peeked,
        "counts then": lambda: reader().history.as_of().counts().rows(),
        "digest": lambda: str(reader().history.digest()),
    }


def proofs(spark: Any, root: str) -> dict[str, Callable[[], Any]]:
    """What is asked of a store with Spark: whether its history proves itself, and what waits."""

    @cache
    def manager() -> txnqueue.QueueManager:
        return txnqueue.QueueManager(spark, root)

    def verified() -> bool:
        proof = manager().history.verify()
        if not proof.ok:
            raise StoreCorrupt(str(proof))
        return True

    def peeked() -> dict[str, Any]:
        names = sorted(manager().list_queues())
        return {name: manager().queue(name).peek_messages(100) for name in names}

    return {"proof": verified, "messages": peeked}


def asked(questions: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Ask: the answers, or the errors instead of them."""
    found: dict[str, Any] = {}
    for name, ask in questions.items():
        try:
            found[name] = ask()
        except Exception as error:  # what it is, is judged
            found[name] = error
    return found


NAMED, UNNAMED = "named", "said something else of a changed commit"


def judged(
    cell: Cell, before: dict[str, Any], after: dict[str, Any], *, sums: bool, by_spark: bool = False
) -> dict[str, str]:
    """Say of each answer what it is: alike, or how the damage is named; all else is a problem.

    Args:
        cell: What was done.
        before: The answers before.
        after: The answers since.
        sums: Whether Hadoop's sums are beside the files.
        by_spark: Whether Spark answered, whose errors name a file in their own way, and of which a
            proof says only what it found.
    """
    limit = cell.is_a_character_of_a_commit and not sums
    found = {name: _judged(cell, before[name], answer) for name, answer in after.items()}
    for name, answer in after.items():
        if found[name] != NAMED and isinstance(answer, TxnQueueError):
            if by_spark and isinstance(answer, StoreCorrupt):
                found[name] = "told of damage"
            elif limit:
                found[name] = UNNAMED
    return found


def _judged(cell: Cell, before: Any, after: Any) -> str:
    if isinstance(after, StoreCorrupt) and _names(str(after), cell.path):
        return NAMED
    if isinstance(after, TxnQueueError):
        return f"unnamed {type(after).__name__}: {after}"[:300]
    if isinstance(after, BaseException):
        return f"untyped {type(after).__name__}: {after}"[:150]
    return "alike" if after == before else "silent"


def _names(said: str, path: str) -> bool:
    """Whether a message names a file below the store; Spark writes some characters otherwise."""
    return path in said or path in unquote(said)


def problems(said: dict[str, str]) -> list[str]:
    """List the answers that are neither what they were nor an error that names the damage."""
    fine = {"alike", NAMED, UNNAMED, "told of damage"}
    return [f"{name}: {what}" for name, what in said.items() if what not in fine]
