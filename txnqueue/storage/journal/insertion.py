"""The only statement that adds entries to the journal: an insert-only MERGE."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from txnqueue.core.model import Condition, Entry, Unit
from txnqueue.storage.journal.rows import NAMES
from txnqueue.storage.journal.tables import JOURNAL_COLUMNS, identifier, literal, literals

_RANGES = "array<struct<first:bigint,last:bigint>>"


def merge(table: str, units: Sequence[Unit]) -> str:
    """Return the MERGE that appends some units, each entirely or not at all.

    Its match condition describes what must not exist: an entry of the journal that breaks a unit
    matches every row of that unit, whatever its values. So the MERGE's snapshot decides on all
    entries of a unit together.
    """
    return (
        f"MERGE INTO {table} t USING ({_source(table, units)}) s ON {_broken(units)} "
        "WHEN NOT MATCHED THEN INSERT *"
    )


def inserted(table: str, units: Sequence[Unit]) -> str:
    """Return the query for the rows that the MERGE of some units would insert now."""
    source = _source(table, units)
    return f"SELECT s.* FROM ({source}) s LEFT ANTI JOIN {table} t ON {_broken(units)}"


def _source(table: str, units: Sequence[Unit]) -> str:
    """Return the query for the new entries, without units whose requirements are not met."""
    rows = ", ".join(
        _values(number, replace(entry, ordinal=number))
        for number, unit in enumerate(units)
        for entry in unit.entries
    )
    names = ", ".join(identifier(name) for name in ["unit", *NAMES])
    columns = ", ".join(map(_typed, JOURNAL_COLUMNS))
    needed = " AND ".join(
        f"(v.unit <> {number} OR (SELECT count(*) FROM {table} g "
        f"WHERE g.shard IN ({literal(condition.shard)}) AND {_meant(condition, 'g')}) > 0)"
        for number, unit in enumerate(units)
        for condition in unit.conditions
        if condition.present
    )
    query = f"SELECT v.unit, {columns} FROM VALUES {rows} AS v({names})"
    return f"{query} WHERE {needed}" if needed else query


def _broken(units: Sequence[Unit]) -> str:
    """Return the condition under which an entry `t` of the journal keeps the row `s` out.

    Only the shards, given as literals as Delta requires, determine what counts as read. Further
    predicates use columns with statistics, so that of thousands of files only those that may hold
    relevant entries are opened. Which entry concerns which unit is decided last, in a CASE: from
    predicates that mix the shard with other columns, Spark would infer another one, and Delta
    would list the files again.
    """
    absent = [c for unit in units for c in unit.conditions if not c.present]
    concerned = [f"({meant})" for meant in dict.fromkeys(_meant(c, "t") for c in absent)]
    own = f"t.append_id IN ({literals(sorted({unit.append_id for unit in units}))})"
    cases = " ".join(f"WHEN {number} THEN {_breaks(unit)}" for number, unit in enumerate(units))
    return (
        f"t.shard IN ({_reads(units)}) AND ({' OR '.join([*concerned, own])}) "
        f"AND CASE s.unit {cases} END"
    )


def _breaks(unit: Unit) -> str:
    """Return the condition under which an entry `t` keeps a unit out, as one of its own does."""
    terms = [
        f"t.shard = {literal(condition.shard)} AND {_meant(condition, 't')}"
        for condition in unit.conditions
        if not condition.present
    ]
    return " OR ".join([*terms, f"t.append_id = {literal(unit.append_id)}"])


def _reads(units: Sequence[Unit]) -> str:
    return literals(sorted({shard for unit in units for shard in unit.reads}))


def _meant(condition: Condition, entry: str) -> str:
    """Return the predicate for the entries of its shard that a condition concerns."""
    terms = [f"{entry}.stream = {literal(condition.stream)}"]
    if condition.kinds is not None:
        terms.append(f"{entry}.kind IN ({literals(condition.kinds)})")
    if condition.attempts is not None:
        terms.append(f"{entry}.attempt IN ({literals(condition.attempts)})")
    if condition.attempts_except is not None:
        others = literals(condition.attempts_except)
        terms.append(f"coalesce({entry}.attempt NOT IN ({others}), true)")
    if condition.sequence_from is not None:
        terms.append(f"{entry}.sequence >= {literal(condition.sequence_from)}")
    if condition.begun_above is not None:
        terms.append(f"{entry}.begun > {literal(condition.begun_above)}")
    return " AND ".join(terms)


def _values(number: int, entry: Entry) -> str:
    """Return one row of VALUES, with ranges and body as JSON and the instant in milliseconds."""
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
