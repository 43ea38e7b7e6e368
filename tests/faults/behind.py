"""What works behind its caller, where a test decides when: at once, at the end, or in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import greenlet

from tests.faults.injection import Crash

if TYPE_CHECKING:
    from tests.faults.clients import Client


class Act:
    """Something that is done once, when its time has come."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self.done = False
        self._value: Any = None
        self._error: BaseException | None = None

    def do(self) -> None:
        try:
            self._value = self._act()
        except BaseException as error:
            self._error = error
        self.done = True

    def result(self) -> Any:
        if not self.done:
            self.do()
        if self._error is not None:
            raise self._error
        return self._value


class AtTheEnd:
    """Does everything when its result is waited for: the handler has returned by then."""

    def submit(self, act: Callable[[], Any]) -> Act:
        return Act(act)

    def shutdown(self, *, wait: bool) -> None:
        pass


class AtOnce(AtTheEnd):
    """Does everything before the handler begins."""

    def submit(self, act: Callable[[], Any]) -> Act:
        begun = Act(act)
        begun.do()
        return begun


ORDERS: dict[str, Any] = {"at once": AtOnce, "at the end": AtTheEnd}


class Turned(Act):
    """Done in turns with its caller, as the simulator's chance has it."""

    def __init__(self, client: Client, act: Callable[[], Any]) -> None:
        super().__init__(act)
        self._client = client
        self.thread = greenlet.greenlet(self.do, client.simulation.main)

    def kill(self) -> None:
        """End with the process."""
        if self.thread:
            self.thread.throw(Crash("killed"))
        self.done, self._error = True, self._error or Crash("killed")

    def result(self) -> Any:
        while not self.done:
            if self._client.dead:
                raise Crash("killed")
            self._client.simulation.pause()
        return super().result()


class InTurns(AtTheEnd):
    """A thread of a client of the simulator."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(self, act: Callable[[], Any]) -> Act:
        self._client.reference.counts["ahead"] += 1
        begun = Turned(self._client, act)
        self._client.behind.append(begun)
        return begun
