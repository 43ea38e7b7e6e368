"""What the demo prints: progress while it works, then tables and the proof."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

try:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as error:
    raise SystemExit(
        f"The demo needs {error.name}: pip install 'txnqueue[spark,cli,demo]'"
    ) from None

if TYPE_CHECKING:
    from flights_audit import Proof
    from flights_worker import Worker

COUNTS = ("posted", "available", "in_flight", "accepted", "rejected")
PIPED_WIDTH = 120


class Stopwatch:
    """How long each part took."""

    def __init__(self) -> None:
        self._last = self._started = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._laps[name] = now - self._last
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.0f}" for name, seconds in self._laps.items())
        return f"{self._last - self._started:.0f} seconds ({parts})"


class Report:
    """Prints on stdout, for people."""

    def __init__(self) -> None:
        console = Console(highlight=False)
        wide = console.is_terminal
        self.console = console if wide else Console(highlight=False, width=PIPED_WIDTH)

    def say(self, sentence: str) -> None:
        self.console.print(Text(sentence))

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        with self.console.status(what):
            yield

    @contextmanager
    def progress(self, what: str, total: int) -> Iterator[Callable[[int], None]]:
        """Show how far it is; gives the function to say that some rows are done."""
        columns = (
            TextColumn(f"{what:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("messages"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console) as shown:
            task = shown.add_task(what, total=total)
            yield lambda count: shown.advance(task, count)

    def killed(self, worker: Worker, event: dict[str, Any]) -> None:
        who = (
            f"Killed {worker.actor} (process {worker.process.pid}, exit code "
            f"{worker.process.returncode})"
        )
        if event["event"] == "decided":
            self.say(
                f"{who} right after it had committed transaction {event['transaction_id']}, "
                "before the change of the table that was decided by it."
            )
        else:
            self.say(
                f"{who} while it held {event['messages']:,} messages in transaction "
                f"{event['transaction_id']}, all work done and nothing committed."
            )

    def finished(self, event: dict[str, Any]) -> None:
        if event["event"] != "finished":
            return
        if event["already_finished"]:
            self.say("This run was finished before: nothing was consumed again.")
            return
        self.say(
            f"The consumer finished: {event['messages']:,} messages in {event['batches']} batches, "
            f"{event['errors']} errors."
        )

    def queues(self, title: str, rows: Iterable[Mapping[str, Any]]) -> None:
        table = Table(title=title, title_justify="left", header_style="bold")
        table.add_column("queue")
        for name in (*COUNTS, "dead"):
            table.add_column(name.replace("_", " "), justify="right")
        for row in rows:
            counts = (f"{row[name]:,}" for name in COUNTS)
            table.add_row(row["queue"], *counts, f"{row['dead_lettered']:,}")
        self.console.print(table)

    def path(self, what: str, steps: Iterable[Mapping[str, Any]]) -> None:
        title = Text(f"Who processed {what}")
        table = Table(title=title, title_justify="left", header_style="bold")
        for name in ("commit", "step", "where", "transaction", "decision", "by", "reason"):
            table.add_column(name, overflow="fold")
        for step in steps:
            where = step["queue"] or Path(step["target"] or "").name
            names = ("transaction_id", "decision", "actor", "reason")
            cells = [step["commit_seq"], step["step"], where, *(step[n] for n in names)]
            table.add_row(*(Text("" if cell is None else str(cell)) for cell in cells))
        self.console.print(table)

    def proofs(self, proofs: Iterable[Proof]) -> None:
        table = Table(title="The proof, from the data", title_justify="left", header_style="bold")
        table.add_column("")
        table.add_column("claim")
        table.add_column("found", justify="right")
        table.add_column("expected", justify="right")
        for proof in proofs:
            mark = Text("✓", "bold green") if proof.holds else Text("✗", "bold red")
            table.add_row(mark, Text(proof.claim), f"{proof.found:,.0f}", f"{proof.expected:,.0f}")
        self.console.print(table)
