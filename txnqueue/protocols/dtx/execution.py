"""The class execution: the executed command ids, as a mark and the ids above it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from txnqueue.core import model, ranges
from txnqueue.core.model import Entry, Range
from txnqueue.core.planning import Plan
from txnqueue.core.settings import check_count, check_name
from txnqueue.manager import client_of

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager

COMMAND_ID_MAX = (1 << 63) - 2


class Execution:
    """The executed commands of one sequence; durable, and shared by its name.

    Every id below ``mark`` has been executed, ``mark`` itself has not, and ids above it may have
    been.

    Example::

        execution = Execution(manager, "loader")
        execution.complete(0, 1, 3)
        assert execution.mark == 2 and execution.executed(3)
    """

    def __init__(self, manager: QueueManager, name: str) -> None:
        """Open a sequence of commands.

        Args:
            manager: The store.
            name: The name of the sequence: letters, digits, '.', '_' or '-'.
        """
        self._client = client_of(manager)
        self._stream = f"execution/{check_name(name, 'sequence of commands')}"
        self._shard = model.protocol_shard(self._stream)

    @property
    def mark(self) -> int:
        """The low-water mark: the first id that has not been executed."""
        return _mark(self._done(self._newest()))

    def executed(self, command_id: int) -> bool:
        """Return whether a command has been executed.

        Raises:
            InvalidInput: That is not a command id.
        """
        _check_command(command_id)
        wanted = ((command_id, command_id),)
        return bool(ranges.intersection(self._done(self._newest()), wanted))

    def gaps(self) -> list[Range]:
        """List the ids between the mark and the last executed id that have not been executed."""
        done = self._done(self._newest())
        if not done:
            return []
        return list(ranges.difference(((0, done[-1][1]),), done))

    def complete(self, *command_ids: int) -> int:
        """Record that commands have been executed; repeating it changes nothing.

        Args:
            command_ids: Whole numbers of at least 0.

        Returns:
            The mark.

        Raises:
            InvalidInput: One of them is not a command id.
        """
        for one in command_ids:
            _check_command(one)
        said = ranges.of_offsets(sorted(set(command_ids)))
        mark = 0

        def plan(_lost: int) -> Plan | None:
            nonlocal mark
            newest = self._newest()
            before = self._done(newest)
            done = ranges.normalised((*before, *said))
            mark = _mark(done)
            if done == before:
                return None
            sequence = 1 if newest is None else (newest.sequence or 0) + 1
            entry = Entry(
                self._shard,
                self._stream,
                model.EXECUTED,
                sequence=sequence,
                ranges=done,
                body={"v": 1, "mark": mark},
                **self._client.stamp().columns(),
            )
            expected = model.next_sequence(self._shard, self._stream, sequence)
            return Plan((entry,), (expected, model.layout_unchanged()))

        self._client.open()
        landed = self._client.land(plan, "complete commands")
        return mark if landed is None else int(landed.entries[0].body["mark"])

    def _newest(self) -> Entry | None:
        self._client.open()
        mine = (
            e for e in self._client.cache.shard_entries(self._shard) if e.stream == self._stream
        )
        return max(mine, key=lambda entry: entry.sequence or 0, default=None)

    @staticmethod
    def _done(newest: Entry | None) -> tuple[Range, ...]:
        return () if newest is None else newest.ranges


def _check_command(command_id: object) -> None:
    check_count("command_id", command_id, 0, COMMAND_ID_MAX)


def _mark(done: Iterable[Range]) -> int:
    first = next(iter(done), (1, 0))
    return first[1] + 1 if first[0] == 0 else 0
