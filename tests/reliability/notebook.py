"""The life of a notebook: cells are interrupted, jobs cancelled, sessions stopped, kernels killed.

A real kernel does what ``notebook_cells.py`` says. After each disturbance the next call has to be
right: the outcome that the same notebook is told is the one that others are told, the work can
be repeated under its id, and after the leases each message is there once.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.reliability.session import Session

ROOT = Path(__file__).resolve().parents[2]
CELL_SECONDS = 120.0
"""No cell may take so long, whatever disturbed it or the one before."""
READY_SECONDS = 60.0
DELAY_SECONDS_MAX = 1.5
LATE_SECONDS = 1.0
WITH_ID = {"send": "send", "frame": "send", "pass_on": "pass", "stop_within": "pass"}
ACTS = ("send", "frame", "pass_on", "pass_on", "drain", "maintain")
BEFORE_A_RESTART = 4


class CellFailed(Exception):
    """A cell ended with an error, which it says."""

    def __init__(self, name: str, value: str) -> None:
        """Hold the name of the error and what it said."""
        super().__init__(f"{name}: {value}")
        self.name = name


class Kernel:
    """A Jupyter kernel of Python."""

    def __init__(self, folder: Path) -> None:
        """Start it, in a folder of its own."""
        from jupyter_client.manager import KernelManager

        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._manager: Any = KernelManager(kernel_name="python3")
        self._manager.start_kernel(cwd=str(folder), env=environment)
        self._client: Any = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=READY_SECONDS)

    def run(self, code: str, interrupted_after: float | None = None) -> str:
        """Run a cell, and return what it printed.

        Raises:
            CellFailed: It ended with an error.
            TimeoutError: It did not end.
        """
        printed: list[str] = []

        def collect(message: Any) -> None:
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                printed.append(message["content"]["text"])

        timer = threading.Timer(interrupted_after or 0, self._manager.interrupt_kernel)
        if interrupted_after is not None:
            timer.start()
        try:
            reply = self._client.execute_interactive(
                code, allow_stdin=False, output_hook=collect, timeout=CELL_SECONDS
            )
        finally:
            if interrupted_after is not None:
                timer.join()
        content = reply["content"]
        if content["status"] != "ok":
            raise CellFailed(content.get("ename", content["status"]), content.get("evalue", ""))
        return "".join(printed).strip()

    def begin(self, code: str) -> None:
        """Run a cell that nobody waits for."""
        self._client.execute(code, allow_stdin=False)

    def restart(self) -> None:
        """Kill it, with all that it started, and start it anew."""
        self._manager.restart_kernel(now=True)
        self._client.wait_for_ready(timeout=READY_SECONDS)

    def close(self) -> None:
        """End it."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


@dataclass(frozen=True)
class Disturbed:
    """Something that is done, and what comes in between."""

    how: str
    act: str
    delay: float


class Life:
    """A notebook, from one disturbance to the next."""

    def __init__(self, folder: Path) -> None:
        """Begin it."""
        self._root = str(folder / "store")
        self.kernel = Kernel(folder)
        self._sends = 0
        self._audits = 0
        self._open()

    def close(self) -> None:
        """End it."""
        self.kernel.close()

    def _open(self) -> None:
        self.kernel.run("from tests.reliability.notebook_cells import Notebook")
        self.kernel.run(f"notebook = Notebook({self._root!r})")

    def live(self, disturbances: list[Disturbed]) -> Counter[str]:
        """Let all of it happen, and check what came of it."""
        counts: Counter[str] = Counter()
        first = self._sends
        for one in disturbances:
            self._send_before(one)
            number = self._sends
            if WITH_ID.get(one.act) == "send":
                self._sends += 1
            counts[self._disturb(one, number)] += 1
            self._next_call(one, number, counts)
        sent = list(range(first, self._sends))
        self.kernel.run(f"notebook.audit({self._audits}, {sent})")
        self._audits += 1
        counts["messages"] += len(sent) * 5
        return counts

    def _send_before(self, one: Disturbed) -> None:
        """See to it that there is something to receive."""
        if one.act in ("pass_on", "drain", "stop_within"):
            self.kernel.run(f"notebook.send({self._sends}); notebook.send({self._sends + 1})")
            self._sends += 2

    def _disturb(self, one: Disturbed, number: int) -> str:
        """Do it, and say what came in between."""
        act = f"notebook.{one.act}({number})"
        if one.how == "restart":
            self.kernel.begin(act)
            time.sleep(one.delay)  # not a wait for something
            self.kernel.restart()
            self._open()
            return "kernels restarted"
        try:
            if one.how in ("interrupt", "interrupt and cancel"):
                before = f"notebook.cancel_after({one.delay}); " if "cancel" in one.how else ""
                self.kernel.run(before + act, interrupted_after=one.delay)
            else:
                before = (
                    "" if one.how == "stop within" else f"notebook.{one.how}_after({one.delay}); "
                )
                self.kernel.run(before + act)
        except CellFailed as failed:
            return f"{one.how}: {failed.name}"
        return f"{one.how}: the cell went on"

    def _next_call(self, one: Disturbed, number: int, counts: Counter[str]) -> None:
        """Ask what became of it, and do it again."""
        if one.how in ("cancel", "stop", "interrupt and cancel"):
            self.kernel.run("notebook.disturbed()")
        if one.how.startswith("stop"):
            self._stopped(counts)
        kind = WITH_ID.get(one.act)
        if kind is not None:
            key = f"{kind}/{number}"
            told = self.kernel.run(f"notebook.told({key!r})")
            another = self.kernel.run(f"notebook.told_to_another({key!r}, {LATE_SECONDS})")
            settled = one.how != "restart" or told in ("committed", "rolled_back")
            assert told == another or not settled, f"{one}: told {told}, then others {another}"
            counts[f"told {told}"] += 1
        again = "pass_on" if one.act == "stop_within" else one.act
        self.kernel.run(f"notebook.{again}({number})")
        if kind is not None:
            told = self.kernel.run(f"notebook.told({key!r})")
            assert told == "committed", f"{one}: done again, it is {told}"

    def _stopped(self, counts: Counter[str]) -> None:
        """Ask the manager of a session that was stopped, and make another one."""
        try:
            self.kernel.run("notebook.manager.queue('in').depth()")
        except CellFailed as failed:
            assert failed.name == "PlatformMissing", f"a stopped session: {failed}"
            counts["told that the session was stopped"] += 1
        self.kernel.run("notebook.open()")


def scenario(number: int) -> list[Disturbed]:
    """Draw what happens: a few disturbances, then a killed kernel, then a stopped session."""
    dice = random.Random(number)

    def draw(how: str, acts: tuple[str, ...] = ACTS) -> Disturbed:
        return Disturbed(how, dice.choice(acts), round(dice.uniform(0, DELAY_SECONDS_MAX), 3))

    few = ("interrupt", "interrupt", "cancel", "interrupt and cancel")
    found = [draw(dice.choice(few)) for _ in range(BEFORE_A_RESTART)]
    found += [draw("stop"), draw("stop within", ("stop_within",)), draw("restart")]
    dice.shuffle(found)
    return found


def run(session: Session, number: int) -> tuple[int, Counter[str]]:
    """Live through a scenario; what failed leaves its store, and a new notebook begins."""
    life: Life = session.kept.pop("notebook", None) or Life(session.folder())
    found = scenario(number)
    try:
        counts = life.live(found)
    except BaseException:
        life.close()
        raise
    session.kept["notebook"] = life
    return len(found), counts
