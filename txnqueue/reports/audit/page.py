"""The audit page: one HTML file that needs no network."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from txnqueue.core import model
from txnqueue.core.markup import printable
from txnqueue.errors import PlatformMissing
from txnqueue.reports.audit.figures import AuditFigures, Moment, QueueDifference
from txnqueue.reports.report import plain
from txnqueue.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

    from txnqueue.reports.audit_report import AuditReport

FILTERS_MAX = 500
"""So many values a filter offers; text finds the others."""

CAUSES_MAX = 200
"""So many causes of dead letters have a place on the page."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a long table.

    Attributes:
        name: What it is of a row.
        label: What it is called.
        kind: text, id, transaction, list (of texts), count, commit, at or seconds.
        choose: Whether the table offers to show one value only.
    """

    name: str
    label: str
    kind: str = "text"
    choose: bool = False


_WHO = (Column("actor", "actor"), Column("run_id", "run"))
LONG_TABLES: dict[str, tuple[str, tuple[Column, ...]]] = {
    "depths": (
        "Messages by queue and state, after commits",
        (
            Column("queue", "queue"),
            Column("commit_seq", "commit", "commit"),
            Column("at", "time (UTC)", "at"),
            Column("available", "available", "count"),
            Column("delayed", "delayed", "count"),
            Column("in_flight", "in flight", "count"),
            Column("purge_pending", "purge pending", "count"),
            Column("expired", "expired", "count"),
            Column("oldest_age_seconds", "oldest available", "seconds"),
        ),
    ),
    "lanes": (
        "Messages by lane, at the second moment",
        (
            Column("queue", "queue"),
            Column("lane", "lane", "count"),
            Column("available", "available", "count"),
            Column("delayed", "delayed", "count"),
            Column("in_flight", "in flight", "count"),
            Column("oldest_age_seconds", "oldest available", "seconds"),
        ),
    ),
    "causes": (
        "What went astray, by reason",
        (
            Column("kind", "what", choose=True),
            Column("queue", "queue"),
            Column("reason", "reason"),
            Column("times", "times", "count"),
            Column("messages", "messages", "count"),
            Column("first_at", "first (UTC)", "at"),
            Column("last_at", "last (UTC)", "at"),
        ),
    ),
    "runs": (
        "Runs and actors, by when they began",
        (
            Column("run_id", "run", "id"),
            Column("actor", "actor"),
            Column("first_at", "first (UTC)", "at"),
            Column("last_at", "last (UTC)", "at"),
            Column("committed", "committed", "count"),
            Column("rolled_back", "rolled back", "count"),
            Column("sent", "sent", "count"),
            Column("received", "received", "count"),
            Column("accepted", "accepted", "count"),
            Column("rejected", "rejected", "count"),
            Column("released", "given back", "count"),
            Column("queues", "queues", "list"),
        ),
    ),
    "attempts": (
        "Transactions, by when they began",
        (
            Column("transaction_id", "transaction", "transaction"),
            Column("status", "status", choose=True),
            Column("began_at", "began (UTC)", "at"),
            Column("decided_at", "decided (UTC)", "at"),
            Column("commit_seq", "commit", "commit"),
            Column("posted", "posted", "count"),
            Column("settled", "settled", "count"),
            Column("changes", "table changes", "count"),
            *_WHO,
            Column("reason", "reason"),
        ),
    ),
    "changes": (
        "Changes of tables, by when they were decided",
        (
            Column("table", "table", choose=True),
            Column("operation", "operation"),
            Column("status", "status", choose=True),
            Column("rows", "rows", "count"),
            Column("commit_seq", "commit", "commit"),
            Column("decided_at", "decided (UTC)", "at"),
            Column("lag_seconds", "lag at most", "seconds"),
            Column("transaction_id", "transaction", "transaction"),
            *_WHO,
            Column("reason", "reason"),
        ),
    ),
    "events": (
        "Entries of the journal, in commit order",
        (
            Column("commit_seq", "commit", "commit"),
            Column("at", "time (UTC)", "at"),
            Column("kind", "event", choose=True),
            Column("queue", "queue"),
            Column("table", "table"),
            Column("lane", "lane", "count"),
            Column("count", "messages", "count"),
            Column("transaction_id", "transaction", "transaction"),
            *_WHO,
            Column("reason", "reason"),
        ),
    ),
}
_FLOWS = (
    ("posted", "posted"),
    ("accepted", "consumed"),
    ("rejected", "rejected"),
    ("dead_lettered", "dead-lettered"),
    ("expired", "expired"),
    ("purged", "purged"),
    ("moved", "moved away"),
    ("duplicates", "duplicates"),
    ("dropped", "dropped"),
)


def new_environment() -> Environment:
    """Make what pages are written by.

    Raises:
        PlatformMissing: jinja2 is not installed.
    """
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise PlatformMissing(
            f"The audit page needs {error.name}: pip install 'txnqueue[report]'.",
            missing=error.name,
        ) from error
    return jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)


def page_of(report: AuditReport) -> str:
    """Write the page of a report.

    Raises:
        PlatformMissing: jinja2 is not installed.
    """
    environment = new_environment()
    environment.filters.update(shown=_shown, counted=_counted, at=_at, pretty=_pretty)
    styles = [_resource("uPlot.min.css"), _resource("page.css")]
    scripts = [_resource("uPlot.iife.min.js"), _resource("page.js")]
    template = environment.from_string(_resource("page.html.j2"))
    return template.render(
        report=report,
        version=__version__,
        policy=_policy(styles, scripts),
        licence=_resource("uPlot.LICENSE"),
        sheets=styles,
        chart_library=scripts[0],
        script=scripts[1],
        data=script_data(_data(report.figures)),
        **_tables(report),
    )


def script_data(value: object) -> str:
    """Write a value as JSON that is safe inside a script element, whatever texts it has.

    Nothing in it can end the element or begin a comment there, nor be taken for a line's end.
    """
    written = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _resource(name: str) -> str:
    folder = resources.files("txnqueue.reports.audit") / "resources"
    return (folder / name).read_text(encoding="utf-8")


def _policy(styles: Iterable[str], scripts: Iterable[str]) -> str:
    """Allow the page's own styles and scripts, and nothing else that a browser could load."""

    def hashes(texts: Iterable[str]) -> str:
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        return " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in digests)

    return (
        f"default-src 'none'; script-src {hashes(scripts)}; style-src {hashes(styles)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


# ------------------------------------------------------------------- long tables, by script


class _Words:
    """Every text once: tables name it by its number."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def number(self, text: object) -> int | None:
        """Return the number of a text, as it is shown."""
        if text is None:
            return None
        return self.known.setdefault(printable(str(text)), len(self.known))


def _data(figures: AuditFigures) -> dict[str, Any]:
    """Lay the long tables out by columns."""
    words = _Words()
    tables = {
        name: {
            "caption": caption,
            "columns": [
                {"name": c.name, "label": c.label, "kind": c.kind, "choose": c.choose}
                for c in columns
            ],
            "cells": [_cells(getattr(figures, name), column, words) for column in columns],
        }
        for name, (caption, columns) in LONG_TABLES.items()
    }
    queues = sorted({one.queue for one in figures.differences})
    runs = sorted({one.run_id for one in figures.runs if one.run_id is not None})
    actors = sorted({one.actor for one in figures.runs if one.actor is not None})
    busiest = sorted(figures.differences, key=lambda one: (-one.posted, one.queue))
    charted = {point.queue for point in figures.depths}
    return {
        "tables": tables,
        "filters": {
            name: [words.number(one) for one in known[:FILTERS_MAX]]
            for name, known in (("queue", queues), ("run_id", runs), ("actor", actors))
        },
        "charted": list(
            dict.fromkeys(words.number(one.queue) for one in busiest if one.queue in charted)
        ),
        "words": list(words.known),
    }


def _cells(lines: Sequence[object], column: Column, words: _Words) -> list[Any]:
    values = [getattr(line, column.name) for line in lines]
    if column.kind == "at":
        return [None if one is None else round(one.timestamp() * 1000) for one in values]
    if column.kind == "list":
        return [[words.number(text) for text in one] for one in values]
    if column.kind in ("text", "id", "transaction"):
        return [words.number(one) for one in values]
    return values


# ------------------------------------------------------------- short tables, by the template


def _tables(report: AuditReport) -> dict[str, Any]:
    """Lay out what the template shows by itself."""
    figures = report.figures
    differences = [_difference(one) for one in figures.differences]
    flows = [(label, "n") for _, label in _FLOWS]
    return {
        "first": _moment(figures.first),
        "last": _moment(figures.last),
        "beginning": figures.beginning,
        "glance": list(_glance(report)),
        "difference_columns": [("queue", ""), ("before", "n"), *flows, ("after", "n")],
        "differences": differences,
        "totals": ["all queues", *(sum(line[n] for line in differences) for n in range(1, 12))],
        "state_columns": [
            ("queue", ""),
            *((name, "n") for name in ("available", "delayed", "in flight", "purge pending")),
            *((name, "n") for name in ("expired", "oldest available")),
        ],
        "states": _states(figures),
        "every": figures.depth_every_versions,
        "dead": figures.dead_letters[:CAUSES_MAX],
        "more_dead": len(figures.dead_letters[CAUSES_MAX:]),
        "table_columns": [
            ("table", ""),
            *((name, "n") for name in ("decided", "applied", "waived", "not confirmed")),
            *((name, "n") for name in ("lag, median", "lag, at most")),
        ],
        "tables": _table_lags(figures),
        "heuristic_columns": [
            *(("transaction", ""), ("decision", ""), ("time", "t"), ("actor", ""), ("run", "")),
            *(("reason", ""), ("commit", "n"), ("acknowledged", "t"), ("by", "")),
        ],
        "heuristics": _heuristics(figures),
        "left_out": figures.events_left_out,
        "proof_columns": [("claim", ""), ("found", "n"), ("has to be", "n"), ("holds", "")],
        "claims": [
            (c.claim, c.found, c.expected, "✓ yes" if c.holds else "✗ no")
            for c in (report.proof.claims if report.proof else ())
        ],
    }


def _difference(one: QueueDifference) -> tuple[Any, ...]:
    name = one.queue if one.there else f"{one.queue} (dropped)"
    flows = (getattr(one, field) for field, _ in _FLOWS)
    return (name, one.messages_before, *flows, one.messages_after)


def _states(figures: AuditFigures) -> list[tuple[Any, ...]]:
    """Lay out the last known state of each queue that is still there."""
    newest = {point.queue: point for point in figures.depths}
    there = [newest[one.queue] for one in figures.differences if one.there and one.queue in newest]
    return [
        (
            *(p.queue, p.available, p.delayed, p.in_flight, p.purge_pending, p.expired),
            _seconds(p.oldest_age_seconds),
        )
        for p in there
    ]


def _table_lags(figures: AuditFigures) -> list[tuple[Any, ...]]:
    """Lay out the changes of each table, and how long they took to be applied."""
    return [
        (
            *(t.table, t.decided, t.applied, t.waived, t.unconfirmed),
            *(_seconds(t.lag_seconds_median), _seconds(t.lag_seconds_max)),
        )
        for t in figures.tables
    ]


def _heuristics(figures: AuditFigures) -> list[tuple[Any, ...]]:
    """Lay out the decisions of operators, and whether they are acknowledged."""
    return [
        (
            *(h.transaction_id, h.decision, _at(h.at), h.actor, h.run_id, h.reason),
            str(h.commit_seq),
            "no: still on record" if h.forgotten_at is None else _at(h.forgotten_at),
            h.forgotten_by,
        )
        for h in figures.heuristics
    ]


def _glance(report: AuditReport) -> Iterator[tuple[str, str, str]]:
    """Pass on the few numbers that are looked at first: name, value, tone."""
    figures = report.figures
    decided = [one.status for one in figures.attempts]
    dead = sum(one.count["waiting"] + one.count["in_flight"] for one in figures.dead_letters)
    unconfirmed = sum(one.unconfirmed for one in figures.tables)
    on_record = sum(one.forgotten_at is None for one in figures.heuristics)
    yield "Messages in the queues", _counted(_sum(figures, "messages_after")), ""
    yield "Posted between", _counted(_sum(figures, "posted")), ""
    yield "Consumed between", _counted(_sum(figures, "accepted")), ""
    yield "Transactions committed", _counted(decided.count(model.COMMITTED)), ""
    yield "Attempts rolled back", _counted(decided.count(model.ROLLED_BACK)), ""
    yield "Dead letters", _counted(dead), "bad" if dead else ""
    yield "Table changes not confirmed", _counted(unconfirmed), ""
    yield "Heuristic decisions on record", _counted(on_record), "bad" if on_record else ""
    if report.proof is None:
        yield "Proof", "not asked for", ""
    elif report.proof.ok:
        yield "Proof", "✓ holds", "good"
    else:
        yield "Proof", "✗ does not hold", "bad"


def _sum(figures: AuditFigures, field: str) -> int:
    return sum(getattr(one, field) for one in figures.differences)


def _moment(moment: Moment) -> str:
    if moment.at is None:
        return "the beginning of the history"
    return f"commit {moment.commit_seq} ({_at(moment.at)})"


# -------------------------------------------------------------------------------- one value


def _shown(value: object) -> str:
    return printable(str(value))


def _counted(value: object) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


def _at(value: datetime.datetime) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%S UTC")


def _pretty(value: object) -> str:
    return printable(json.dumps(plain(value), ensure_ascii=False, indent=2))


def _seconds(value: float | None) -> str | None:
    if value is None:
        return None
    for unit, length, from_ in (("d", 86_400, 172_800), ("h", 3_600, 7_200), ("min", 60, 120)):
        if value >= from_:
            return f"{value / length:.1f} {unit}"
    return f"{value:g} s"
