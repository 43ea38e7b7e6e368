"""What is said of the messages of a batch, and what of them is left (no effects)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from txnqueue import ranges
from txnqueue.errors import AlreadySettled
from txnqueue.holding import Said, name_of
from txnqueue.matching import Reasons
from txnqueue.model import Item, PositionId, Range
from txnqueue.planning import Disposition
from txnqueue.receiving import Held


class Settling:
    """Keeps account of a batch: what is settled, what was said in which attempt, what is left."""

    def __init__(self, held: Sequence[Held]) -> None:
        """Begin with claims of which nothing is settled."""
        self.held = list(held)
        self._rest = {name_of(one): dict(one.claim.items) for one in held}
        self._said: dict[str, Said] = {}
        self._whole = False

    def rest(self, one: Held) -> dict[PositionId, tuple[Range, ...]]:
        """What of a claim is not settled, whatever was said in attempts that are not decided."""
        return self._rest[name_of(one)]

    @property
    def anything(self) -> bool:
        """Whether anything is not settled yet."""
        return any(self._rest.values())

    def left(self, one: Held, attempt: str | None) -> dict[PositionId, tuple[Range, ...]]:
        """What of a claim is not settled yet, and not spoken of in an attempt."""
        left = self._rest[name_of(one)]
        for disposition in self._said.get(attempt or "", {}).get(name_of(one), ()):
            left = _without(left, disposition.items or ())
        return left

    def chosen(
        self, kind: str, named: Reasons | None, reason: str | None, attempt: str | None
    ) -> Said:
        """Write what is meant as dispositions of each claim, out of what is left of it."""
        meant: list[tuple[str | None, Mapping[str, Sequence[int]] | None]]
        meant = [(reason, None)] if named is None else [(r or reason, s) for r, s in named.items()]
        chosen: Said = {}
        for one in self.held:
            left = self.left(one, attempt)
            for why, by_send in meant:
                items = _meant(one, left, by_send)
                if items:
                    disposition = Disposition(kind, items, why)
                    chosen.setdefault(name_of(one), []).append(disposition)
        if named is None and self.held:
            # The rest may be empty, depending on the data; nobody settles the rest twice.
            if not chosen and self._whole:
                raise AlreadySettled("All messages of this batch are settled already.")
            self._whole = True
        return chosen

    def say(self, attempt: str, chosen: Said) -> None:
        """Note what a commit of this attempt is to do."""
        said = self._said.setdefault(attempt, {})
        for name, found in chosen.items():
            said.setdefault(name, []).extend(found)

    def said(self, attempt: str) -> Said:
        """What was said in an attempt."""
        return self._said.get(attempt, {})

    def settled(self, chosen: Said) -> None:
        """Note what has happened outside a transaction."""
        for name, found in chosen.items():
            for disposition in found:
                self._rest[name] = _without(self._rest[name], disposition.items or ())

    def committed(self, attempt: str) -> None:
        """Note that what was said in an attempt has happened."""
        for one in self.held:
            self._rest[name_of(one)] = self.left(one, attempt)
        self._said.pop(attempt, None)


def _meant(
    one: Held,
    left: Mapping[PositionId, tuple[Range, ...]],
    by_send: Mapping[str, Sequence[int]] | None,
) -> tuple[Item, ...]:
    """Find which messages of a claim are meant: all that are left, or those of some sends."""
    items: list[Item] = []
    for position_id, part in left.items():
        if by_send is not None:
            wanted = by_send.get(one.positions[position_id].send_id, ())
            part = ranges.intersection(part, ranges.of_offsets(wanted))
        if part:
            items.append((position_id, part))
    return tuple(items)


def _without(
    left: Mapping[PositionId, tuple[Range, ...]], taken: Iterable[Item]
) -> dict[PositionId, tuple[Range, ...]]:
    """Leave out what is taken."""
    gone = dict(taken)
    rest = {pid: ranges.difference(part, gone.get(pid, ())) for pid, part in left.items()}
    return {pid: part for pid, part in rest.items() if part}
