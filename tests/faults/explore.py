"""Explore every interleaving of a few clients: the real code, on the store in memory.

A client runs in a greenlet and is switched away from before each atomic step of a store
call. A path is a list of choices: whose step comes next, and which fault hits it. Paths
are replayed from the start; a state that was seen before is not explored again.

What a client knows is what its store calls answered: so the journal's content and the history
of answers of each client that works name a state, with whether an append under way has lost
already.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import greenlet

from tests.faults import failures
from tests.faults.copying import Start, contents
from tests.faults.injection import Crash
from tests.faults.world import World
from txnqueue.errors import TxnQueueError
from txnqueue.storage.journal import AppendConflict

STEPS = ("read", "append starts", "append lands", "history", "apply starts", "apply lands")
"""The steps whose order matters: staged payload is invisible, and reading it changes nothing.
For the same reason a crash anywhere is a crash before the next append."""
Program = Callable[[World], Any]
Choice = tuple[str, int]
"""What happens next: ``step``, ``crash``, ``lose`` (the reply), ``late`` or ``tick``; to whom."""


@dataclass
class Found:
    """What an exploration came across; a test asserts that it was not vacuous."""

    states: int = 0
    paths: int = 0
    ends: dict[str, int] = field(default_factory=dict)
    truncated: bool = False

    def note(self, what: str) -> None:
        """Count an outcome."""
        self.ends[what] = self.ends.get(what, 0) + 1


class _NotYet(Exception):
    """The append that is about to start lands at some later time."""


class Violation(AssertionError):
    """A promise was broken; the message names the path that breaks it."""


class Client:
    """One program in its greenlet."""

    def __init__(self, name: str, program: Program, run: Run) -> None:
        self.name = name
        self.trace = ""
        self.waiting = ""
        self.fault: str | None = None
        self.ending: str | None = None
        self.snapshot = -1
        self.reads: set[str] = set()
        self.seen: dict[str, int] = {}
        self._run = run
        self._greenlet = greenlet.greenlet(self._main)
        self._program = program

    def resume(self) -> None:
        """Run to the next step of a store call, or to the end."""
        self._greenlet.switch()

    def learn(self, answer: str) -> None:
        """Take note of what a store call answered."""
        self.trace = hashlib.md5(f"{self.trace}|{answer}".encode()).hexdigest()

    def _main(self) -> None:
        try:
            self._program(self._run.world)
            self.ending = "ok"
        except Crash:
            self.ending = "crash"
        except (TxnQueueError, ConnectionError) as error:
            self.ending = type(error).__name__
            assert not failures.unfit(error), failures.unfit(error)

    @property
    def done(self) -> bool:
        """Say whether the program has ended."""
        return self.ending is not None


class Run:
    """One replay of a path."""

    def __init__(
        self,
        start: Start,
        programs: dict[str, Program],
        budget: dict[str, int],
    ) -> None:
        self.hub = greenlet.getcurrent()
        self.active: Client | None = None
        self.world = start.copy(self._step)
        self.budget = dict(budget)
        self.late: list[tuple[str, Callable[[], None]]] = []
        self._journal, self._written = hashlib.md5(), len(self.world.store.journal.commits)
        self._intercept()
        self.clients = [Client(name, program, self) for name, program in programs.items()]
        for client in self.clients:
            self._enter(client)

    def _enter(self, client: Client) -> None:
        self.active = client
        client.resume()
        self.active = None

    def _step(self, name: str) -> None:
        """Called by the store before each atomic step."""
        client = self.active
        if client is not None and client.fault == "crash":
            raise Crash(name)  # what it would clean up it does not any more
        if client is None or name not in STEPS:
            return
        client.waiting = name
        client.snapshot = self.world.store.journal.known_version()
        self.hub.switch()
        if client.fault == "crash":
            raise Crash(name)
        if client.fault == "late":
            client.fault = None
            raise _NotYet

    def _intercept(self) -> None:
        """Let an append's reply be lost, or the append land late."""
        journal = self.world.store.journal
        append, read = journal.append, journal.read

        def reads(*args: Any, **kwargs: Any) -> Any:
            client = self.active
            answer = read(*args, **kwargs)
            if client is not None:
                client.learn("|".join(f"{e.append_id}.{e.index}" for e in answer.entries))
            return answer

        def spoiled(units: Any, metadata: Any) -> Any:
            client = self.active
            if client is not None:
                client.reads = {shard for unit in units for shard in unit.reads}
            try:
                answer = append(units, metadata)
            except _NotYet:
                self.late.append((repr(units), lambda: append(units, metadata)))
                raise ConnectionError("no reply") from None
            except AppendConflict:
                if client is not None:
                    client.learn("conflict")
                raise
            if client is not None:
                client.learn(str(answer.won))
            if client is not None and client.fault == "lose":
                client.fault = None
                if answer.won[0]:
                    raise AppendConflict("Delta met its own commit")
            return answer

        journal.append = spoiled
        journal.read = reads
        self._intercept_tables()

    def _intercept_tables(self) -> None:
        """Let the reply to a table's change be lost, and take note of what tables answer."""
        tables = self.world.store.tables
        apply, history = tables.apply, tables.history

        def looks(*args: Any) -> Any:
            client = self.active
            answer = history(*args)
            if client is not None:
                client.learn(str([(c.version, c.note.get("number")) for c in answer]))
            return answer

        def spoiled(change: Any, stamp: Any, *, empty: bool = False) -> Any:
            client = self.active
            if client is not None:
                client.seen = tables.numbers(change.table)
            answer = apply(change, stamp, empty=empty)
            if client is not None:
                client.learn(str(answer))
            if client is not None and client.fault == "lose":
                client.fault = None
                raise ConnectionError("no reply")
            return answer

        tables.apply = spoiled
        tables.history = looks

    def choices(self) -> list[Choice]:
        """List what can happen next."""
        found: list[Choice] = []
        for number, client in enumerate(self.clients):
            if client.done:
                continue
            found.append(("step", number))
            starts = client.waiting in ("append starts", "apply starts")
            if starts and self.budget.get("crash"):
                found.append(("crash", number))
            if client.waiting in ("append lands", "apply lands") and self.budget.get("lose"):
                found.append(("lose", number))
            if client.waiting == "append starts" and self.budget.get("late"):
                found.append(("late", number))
        if self.budget.get("tick") and any(not c.done for c in self.clients):
            found.append(("tick", -1))
        found += [("land", number) for number in range(len(self.late))]
        return found

    def do(self, choice: Choice) -> None:
        """Let something happen."""
        what, number = choice
        if what == "tick":
            self.budget["tick"] -= 1
            self.world.lease_over()
            return
        if what == "land":
            with contextlib.suppress(AppendConflict):
                self.late.pop(number)[1]()
            return
        client = self.clients[number]
        if what != "step":
            self.budget[what] -= 1
            client.fault = what
        client.learn(f"{client.waiting} {what} {self.world.clock.now_ms}")
        self._enter(client)
        assert what != "crash" or client.done, f"{client.name} does something after its crash"

    def key(self, crashed: int | None = None) -> str:
        """Name the state, or the one that it becomes if a client crashes now."""
        journal = self.world.store.journal
        traces = []
        for number, client in enumerate(self.clients):
            if client.done or number == crashed:  # what it knew changes nothing any more
                traces.append(client.ending or "crash")
                continue
            lost = client.waiting == "append lands" and any(
                journal._added_since(shard, client.snapshot) for shard in client.reads
            )
            if client.waiting == "apply lands":
                lost = client.seen != self.world.store.tables.numbers(self.world.table)
            traces.append(f"{client.trace}:{client.waiting}:{client.ending}:{lost}")
        late = [units for units, _ in self.late]
        budget = dict(self.budget)
        if crashed is not None:
            budget["crash"] -= 1
        rest = f"{self.world.clock.now_ms}/{late}/{budget}"
        return f"{self._content()}/{'/'.join(traces)}/{rest}"

    def _content(self) -> str:
        commits = self.world.store.journal.commits
        for entries, _ in commits[self._written :]:
            self._journal.update(repr(entries).encode())
        self._written = len(commits)
        journal = self._journal.hexdigest()
        changed = self.world.store.tables.numbers(self.world.table)
        return f"{journal}/{sorted(changed.items())}"


def explore(
    build: Callable[[World], None],
    programs: dict[str, Program],
    judge: Callable[[World], None],
    *,
    crash: int = 0,
    lose: int = 0,
    late: int = 0,
    tick: int = 0,
    states_max: int = 200_000,
) -> Found:
    """Try every interleaving and every placement of the faults.

    Args:
        build: Makes the store's first state.
        programs: The clients by name.
        judge: Checks a world in which everybody has ended.
        crash: How many clients may crash.
        lose: How many appends may land while a conflict is reported.
        late: How many appends may get no reply and land at any later time.
        tick: How often the clock may jump past every lease.
        states_max: Stop there, and say so.
    """
    found = Found()
    budget = {"crash": crash, "lose": lose, "late": late, "tick": tick}
    seen: set[str] = set()
    judged: set[str] = set()
    start = Start(build)
    todo: list[list[Choice]] = [[]]
    while todo:
        path = todo.pop()
        run = Run(start, programs, budget)
        for choice in path:
            run.do(choice)
        while True:
            key = run.key()
            if key in seen:
                break
            seen.add(key)
            choices = run.choices()
            if not choices:
                found.paths += 1
                for client in run.clients:
                    found.note(f"{client.name} {client.ending}")
                ended = contents(run.world)
                if ended not in judged:
                    judged.add(ended)
                    _judge(run, judge, path)
                break
            for what, number in choices[1:]:
                if what != "crash" or run.key(crashed=number) not in seen:
                    todo.append([*path, (what, number)])
            path = [*path, choices[0]]
            run.do(choices[0])
        _abandon(run)
        if len(seen) >= states_max:
            found.truncated = True
            break
    found.states = len(seen)
    return found


def _judge(run: Run, judge: Callable[[World], None], path: list[Choice]) -> None:
    try:
        judge(run.world)
    except Exception as error:
        steps = ", ".join(f"{what} {number}" for what, number in path)
        raise Violation(f"{error} after: {steps}") from error


def _abandon(run: Run) -> None:
    """End the programs of a path that is not followed further."""
    for client in run.clients:
        if not client.done:
            client.fault = "crash"
            run.active = client
            client.resume()
            run.active = None
