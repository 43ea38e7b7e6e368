"""Staged rows of a queue, which a commit turns into positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from txnqueue.core import model, planning
from txnqueue.core.model import Entry
from txnqueue.core.settings import QueueInfo
from txnqueue.core.state import AttemptOwner
from txnqueue.core.state.duplicates import write_ids
from txnqueue.storage.payload import Placing, Run
from txnqueue.storage.payload.places import Place, sort_key


@dataclass(frozen=True, slots=True)
class Publication:
    """The additional fields of the positions of published rows.

    Attributes:
        payload_id: The owner of the payload: the exchange.
        schema_version: The version of the exchange's columns.
        exchange_id: The exchange.
        origin: The origin of unroutable rows, as dead letters; None if a binding matched.
    """

    payload_id: str
    schema_version: int
    exchange_id: str
    origin: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StagedSend:
    """Staged rows of a queue, which a commit turns into positions.

    Rows share a position if they share the lane, the priority and both instants, and in an ordered
    queue only if no other rows stand between them.
    """

    info: QueueInfo
    slice: int
    send_id: str
    runs: tuple[Run, ...]
    placing: Placing = field(default_factory=Placing)
    published: Publication | None = None
    places: Sequence[tuple[Place, Sequence[Run]]] = field(init=False, compare=False, repr=False)
    """The place and the runs of each position, in the order of the positions.

    In an ordered queue rows keep their order, so that a place may have several positions.
    """

    def __post_init__(self) -> None:
        """Sort the runs once: a commit may be planned many times."""
        in_order = self.info.settings.ordered

        def key(run: Run) -> tuple[int, ...]:
            return (*sort_key(run.place, in_order=in_order), run.first)

        by_place = groupby(sorted(self.runs, key=key), lambda run: run.place)
        found = [(place, tuple(runs)) for place, runs in by_place]
        object.__setattr__(self, "places", found)

    @property
    def payload_id(self) -> str:
        """The owner of the payload: the queue, or the exchange that the rows were published to."""
        return self.info.payload_id if self.published is None else self.published.payload_id

    @property
    def count(self) -> int:
        """The number of rows."""
        return sum(run.count for run in self.runs)

    def positions(self, owner: AttemptOwner, stamp: planning.Stamp) -> list[Entry]:
        """Make the entries of the positions that the commit posts."""
        said = self._owner()
        reason = said["origin"]["reason"] if "origin" in said else None
        return [
            Entry.in_backlog(
                self.info.queue_id,
                lane,
                model.POSTED,
                ranges=tuple(run.range for run in runs),
                count=sum(run.count for run in runs),
                reason=reason,
                body={
                    "v": 1,
                    "slice": self.slice,
                    "send": self.send_id,
                    "priority": priority,
                    **said,
                    **self._instants(available_step, expires_step),
                    **self._names(runs),
                },
                **owner.columns(),
                **stamp.columns(),
            )
            for (lane, priority, available_step, expires_step), runs in self.places
        ]

    def _owner(self) -> dict[str, Any]:
        """Return the fields that name the payload's owner and, if published, the origin."""
        published = self.published
        if published is None:
            return {"payload": self.payload_id, "schema": self.info.schema_version}
        said = {
            "payload": self.payload_id,
            "schema": published.schema_version,
            "exchange": published.exchange_id,
        }
        return said if published.origin is None else {**said, "origin": dict(published.origin)}

    def _names(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Return the fields with the column that names the messages, and their ids if few."""
        column = self.info.settings.message_id
        found: dict[str, Any] = {} if column is None else {"message_id": column}
        if all(run.ids is not None for run in runs):
            found["ids"] = write_ids(one for run in runs for one in run.ids or ())
        return found

    def _instants(self, available_step: int | None, expires_step: int | None) -> dict[str, int]:
        """Return the instants (ms) of a delay and an expiry, as far as there are any."""
        placing, found = self.placing, {}
        steps = {"available_at": available_step, "expires_at": expires_step}
        fixed = {"available_at": placing.available_at, "expires_at": placing.expires_at}
        for name, step in steps.items():
            value = fixed[name]
            if step is not None:
                found[name] = step * placing.step_ms
            elif isinstance(value, int):
                found[name] = value
        return found
