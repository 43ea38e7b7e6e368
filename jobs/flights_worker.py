"""A consumer as its parent sees it: a spare process, until it is told to begin.

What it does then it tells line by line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from flights_data import Work

PROGRAM = Path(__file__).with_name("flights_consumer.py")
STOP_SECONDS = 30


class Worker:
    """One consumer process; it does not outlive the block that it is used in."""

    def __init__(
        self,
        root: str,
        work: Work,
        batch_size: int,
        actor: str,
        *,
        pause_at: int | None = None,
        pause_before_apply: bool = False,
    ) -> None:
        command = [sys.executable, str(PROGRAM), f"--root={root}", f"--queue={work.queue}"]
        command += [f"--actor={actor}", f"--batch-size={batch_size}", "--standby"]
        if work.reject_where:
            command += [f"--reject-where={work.reject_where}", f"--reason={work.reason}"]
        if work.routed:
            command += ["--routed", f"--table={work.totals_table(root)}"]
        if pause_before_apply:
            command.append("--pause-before-apply")
        if pause_at is not None:
            command.append(f"--pause-at={pause_at}")
        self.actor = actor
        library = str(PROGRAM.parents[1])
        paths = [library, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=environment,
        )

    def begin(self) -> None:
        """Let the spare go to work."""
        assert self.process.stdin is not None
        print("begin", file=self.process.stdin, flush=True)

    def events(self, committed: Callable[[int], None]) -> Iterator[dict[str, Any]]:
        """Yield what the process tells until it ends; commits go to ``committed``."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if event["event"] == "committed":
                committed(event["messages"])
            else:
                yield event
        self.process.wait()

    def kill(self, signal: int) -> None:
        """Kill the process: it gets no chance to say or to finish anything."""
        os.kill(self.process.pid, signal)
        self.process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
