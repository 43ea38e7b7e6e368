"""The rows of changes of a table, compared between two sides."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.errors import LimitExceeded, PayloadRemoved, TableNotFound
from txnqueue.reports.report import plain
from txnqueue.storage.payload.maps import MapItems, mark_maps
from txnqueue.storage.tables import Change, Tables
from txnqueue.types import ChangedRow

COLUMNS = "operation how row would really"
_Key = tuple[str, str | None, str | None]


@dataclass(frozen=True)
class Changes:
    """What one side decided of tables, and where the rows of that are read."""

    tables: Tables
    entries: Sequence[Entry]

    def all(self) -> list[Change]:
        """List the changes, in their order."""
        said = (e.body["change"] for e in self.entries if e.kind == model.CHANGE_DECIDED)
        return [Change.from_json(one) for one in said]

    def rows(self, table: str, rows_max: int) -> Counter[_Key]:
        """Count the same rows of the same change of a table.

        Raises:
            LimitExceeded: They are too many.
            PayloadRemoved: They are not there any more.
        """
        mine = [change for change in self.all() if change.table == table]
        count = sum(change.source.count for change in mine if change.source is not None)
        if count > rows_max:
            raise LimitExceeded(
                f"The changes of {table!r} have {count} rows, more than limit={rows_max}: give a "
                "larger limit, or rehearse with fewer messages.",
                name="limit",
            )
        found: Counter[_Key] = Counter()
        for change in mine:
            how = _how(change)
            if change.source is None:
                found[change.operation, how, None] += 1
                continue
            rows = self.tables.rows_of(change.source)
            if rows.num_rows < change.source.count:
                raise PayloadRemoved(
                    f"Staged rows of a change of {table!r} were removed after their retention, so "
                    "they cannot be compared: rehearse a later state.",
                    name=table,
                    send_id=change.source.send_id,
                )
            written = rows.to_pylist()
            mark_maps(written, rows.schema)
            for row in written:
                found[change.operation, how, _text(row)] += 1
        return found


def check_known(sides: Iterable[Changes], table: str) -> None:
    """Check that a table is changed by one of some sides.

    Raises:
        TableNotFound: None changes it.
    """
    known = {change.table for side in sides for change in side.all()}
    if table not in known:
        raise TableNotFound(
            f"No change of {table!r} was rehearsed or made; rows() covers the tables: "
            f"{', '.join(sorted(known)) or 'none'}.",
            name=table,
        )


def compared(would: Changes, really: Changes, table: str, rows_max: int) -> list[ChangedRow]:
    """List the rows of both sides, each with how often it is in either.

    Raises:
        LimitExceeded: They are too many.
        PayloadRemoved: They are not there any more.
    """
    here, there = (side.rows(table, rows_max) for side in (would, really))
    return [
        {
            "operation": key[0],
            "how": key[1],
            "row": key[2],
            "would": here[key],
            "really": there[key],
        }
        for key in dict.fromkeys([*here, *there])
    ]


def _how(change: Change) -> str | None:
    """Say what an operation does with a row, or with the rows of the table; None: it is added."""
    said = {
        "condition": change.condition,
        "update": change.update,
        "insert": change.insert,
        "delete": change.delete,
    }
    given = {name: one for name, one in said.items() if one is not None}
    return _text(given) if given else None


def _text(value: object) -> str:
    return json.dumps(plain(_in_order(value)), ensure_ascii=False)


def _in_order(value: object) -> object:
    """Sort the entries of maps by their keys: two maps are the same in whatever order they are."""
    if isinstance(value, MapItems):
        entries = ((key, _in_order(inner)) for key, inner in value)
        return MapItems(sorted(entries, key=lambda entry: str(plain(entry[0]))))
    if isinstance(value, Mapping):
        return {name: _in_order(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_order(inner) for inner in value]
    return value
