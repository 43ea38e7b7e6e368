"""The erased rows of the payload, as the catalog records them (pure).

An erasure is recorded before any row is deleted, and again when the rows are gone. Both entries
stay for ever: they explain why rows that the history names are missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from txnqueue.core import model, ranges
from txnqueue.core.model import Entry, PositionId, Range
from txnqueue.core.planning import Plan, Stamp

Place = tuple[int, str]
"""A slice of payload, and a send that was staged into it."""
Places = Mapping[Place, tuple[Range, ...]]
"""Offsets by place."""
Rows = Mapping[str, Places]
"""Rows of payload, by owner."""


@dataclass(frozen=True, slots=True)
class Erasure:
    """One erasure of rows of one owner.

    Attributes:
        entry: The entry that recorded it.
        places: The rows.
        done: The entry that recorded that they are gone; None if there is none, as after a crash.
    """

    entry: Entry
    places: Places
    done: Entry | None = None

    @property
    def payload_id(self) -> str:
        """The owner of the rows."""
        return str(self.entry.body["payload"])


def erasures(catalog: Iterable[Entry]) -> list[Erasure]:
    """List all erasures, in commit order."""
    entries = list(catalog)
    done = {
        (entry.stream, number): entry
        for entry in entries
        if entry.kind == model.PAYLOAD_ERASED
        for number in entry.body["erasures"]
    }
    recorded = (entry for entry in entries if entry.kind == model.PAYLOAD_ERASING)
    return [
        Erasure(entry, places_of(entry), done.get((entry.stream, entry.sequence)))
        for entry in sorted(recorded, key=lambda entry: entry.place)
    ]


def places_of(entry: Entry) -> dict[Place, tuple[Range, ...]]:
    """Read the erased rows that an entry records."""
    found: dict[Place, tuple[Range, ...]] = {}
    at = 0
    for slice_, send_id, length in entry.body["places"]:
        found[slice_, send_id] = entry.ranges[at : at + length]
        at += length
    return found


def rows_of(found: Iterable[Erasure]) -> dict[str, dict[Place, tuple[Range, ...]]]:
    """Collect the erased rows by owner and place."""
    spans: dict[str, dict[Place, list[Range]]] = defaultdict(lambda: defaultdict(list))
    for erasure in found:
        for place, part in erasure.places.items():
            spans[erasure.payload_id][place].extend(part)
    return {
        owner: {place: ranges.normalised(part) for place, part in places.items()}
        for owner, places in spans.items()
    }


def record(
    catalog: Sequence[Entry],
    rows: Rows,
    gone: Collection[PositionId] = (),
    *,
    queue_id: str,
    name: str,
    reason: str,
    stamp: Stamp,
) -> Plan:
    """Plan the entries that record an erasure of the rows that no earlier entry records.

    Args:
        catalog: The catalog's entries.
        rows: The rows to be erased.
        gone: The entries of erasures that had ended before the rows were found. Such rows have come
            back, in a table that was restored, and are recorded once more.
        queue_id: The id of the queue in which they were found.
        name: The queue's name.
        reason: The reason.
        stamp: The author and the instant.
    """
    known = rows_of(one for one in erasures(catalog) if one.entry.entry_id not in gone)
    plan = Plan()
    for owner, places in sorted(rows.items()):
        mine = known.get(owner, {})
        left = {
            place: part
            for place, found in sorted(places.items())
            if (part := ranges.difference(found, mine.get(place, ())))
        }
        if left:
            lie = tuple(span for part in left.values() for span in part)
            listed = [[*place, len(part)] for place, part in left.items()]
            body = {"v": 1, "payload": owner, "name": name, "places": listed}
            plan += _fact(
                catalog,
                Entry(
                    model.CATALOG,
                    model.erasure_stream(owner),
                    model.PAYLOAD_ERASING,
                    queue_id=queue_id,
                    ranges=lie,
                    count=ranges.count(lie),
                    reason=reason,
                    body=body,
                    **stamp.columns(),
                ),
            )
    return plan


def finish(catalog: Sequence[Entry], deleted: Iterable[Erasure], stamp: Stamp) -> Plan:
    """Plan the entries that record that the rows of erasures are gone, where none does yet."""
    waiting = {e.entry.entry_id: e for e in erasures(catalog) if e.done is None}
    by_owner: dict[str, list[Entry]] = defaultdict(list)
    for erasure in deleted:
        if erasure.entry.entry_id in waiting:
            by_owner[erasure.payload_id].append(erasure.entry)
    plan = Plan()
    for owner, found in sorted(by_owner.items()):
        numbers = [entry.sequence for entry in found]
        plan += _fact(
            catalog,
            Entry(
                model.CATALOG,
                model.erasure_stream(owner),
                model.PAYLOAD_ERASED,
                queue_id=found[-1].queue_id,
                count=model.messages(found),
                body={"v": 1, "payload": owner, "erasures": numbers},
                **stamp.columns(),
            ),
        )
    return plan


def _fact(catalog: Sequence[Entry], entry: Entry) -> Plan:
    """Plan the next entry of a stream of the catalog."""
    number = model.newest_sequence(one for one in catalog if one.stream == entry.stream) + 1
    numbered = replace(entry, sequence=number)
    conditions = (
        model.next_sequence(model.CATALOG, entry.stream, number),
        model.layout_unchanged(),
    )
    return Plan((numbered,), conditions)
