"""The one statement by which entries come into the journal: an insert-only MERGE."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from txnqueue.core.model import Condition, Entry, Unit
from txnqueue.storage.journal.rows import NAMES
from txnqueue.storage.journal.tables import JOURNAL_COLUMNS, identifier, literal, literals

_RANGES = "array<struct<first:bigint,last:bigint>>"


def merge(table: str, units: Sequence[Unit]) -> str:
    """Write the MERGE that appends some units.

    The guard is one aggregate over the literal shards of all conditions, evaluated on the
    MERGE's own snapshot; it yields the units that may go in. The shards stand as literals
    in the match condition too, so that Delta knows what was read, and nothing more.

    Which rows could break or fulfil a condition, and which appends are meant, stands besides as
    predicates on columns that Delta keeps statistics of: so it opens only the files that may
    hold them, of thousands. What counts as read is told by the shards alone.
    """
    shards = _reads(units)
    appends = literals(sorted({unit.append_id for unit in units}))
    return (
        f"MERGE INTO {table} t USING ({admitted(table, units)}) s "
        f"ON t.shard IN ({shards}) AND t.append_id IN ({appends}) "
        f"AND t.shard = s.shard AND t.append_id = s.append_id "
        f"AND t.`index` = s.`index` WHEN NOT MATCHED THEN INSERT *"
    )


def admitted(table: str, units: Sequence[Unit]) -> str:
    """Write the query of the entries whose units may go in, as the journal stands."""
    conditions = dict.fromkeys(_meant(c) for unit in units for c in unit.conditions)
    concerned = " OR ".join(f"({terms})" for terms in conditions) or "false"
    verdicts = ", ".join(_verdict(number, unit) for number, unit in enumerate(units))
    rows = ", ".join(
        _values(number, replace(entry, ordinal=number))
        for number, unit in enumerate(units)
        for entry in unit.entries
    )
    source = ", ".join(identifier(name) for name in ["unit", *NAMES])
    columns = ", ".join(map(_typed, JOURNAL_COLUMNS))
    return (
        f"SELECT {columns} FROM VALUES {rows} AS v({source}) "
        f"WHERE array_contains((SELECT array({verdicts}) FROM {table} g "
        f"WHERE g.shard IN ({_reads(units)}) AND ({concerned})), v.unit)"
    )


def _reads(units: Sequence[Unit]) -> str:
    return literals(sorted({shard for unit in units for shard in unit.reads}))


def _verdict(number: int, unit: Unit) -> str:
    """The unit's number if all its conditions hold, else a number that no unit has."""
    broken = " OR ".join(
        f"count_if(g.shard = {literal(c.shard)} AND {_meant(c)}) {'=' if c.present else '>'} 0"
        for c in unit.conditions
    )
    return f"if({broken or 'false'}, -1, {number})"


def _meant(condition: Condition) -> str:
    """What a condition is about in its shard, which is no part of it.

    From predicates that mix the shard with other columns Spark would infer one more, and Delta
    would list the files again.
    """
    terms = [f"g.stream = {literal(condition.stream)}"]
    if condition.kinds is not None:
        terms.append(f"g.kind IN ({literals(condition.kinds)})")
    if condition.attempts is not None:
        terms.append(f"g.attempt IN ({literals(condition.attempts)})")
    if condition.attempts_except is not None:
        terms.append(f"coalesce(g.attempt NOT IN ({literals(condition.attempts_except)}), true)")
    if condition.sequence_from is not None:
        terms.append(f"g.sequence >= {literal(condition.sequence_from)}")
    if condition.begun_above is not None:
        terms.append(f"g.begun > {literal(condition.begun_above)}")
    return " AND ".join(terms)


def _values(number: int, entry: Entry) -> str:
    """One row of VALUES; ranges and body as JSON, the instant as milliseconds."""
    texts: dict[str, str | int] = {
        "ranges": json.dumps([{"first": first, "last": last} for first, last in entry.ranges]),
        "body": json.dumps(dict(entry.body), separators=(",", ":")),
        "recorded_at": entry.recorded_at_ms,
    }
    cells = (literal(texts[n] if n in texts else getattr(entry, n)) for n in NAMES)
    return f"({number}, {', '.join(cells)})"


def _typed(column: tuple[str, str]) -> str:
    name, kind = column
    quoted = identifier(name)
    if name == "ranges":
        return f"from_json(v.{quoted}, '{_RANGES}') AS {quoted}"
    if name == "recorded_at":
        return f"timestamp_millis(v.{quoted}) AS {quoted}"
    return f"CAST(v.{quoted} AS {kind}) AS {quoted}"
