"""Pictures of an audit report: depth over commits, ages, lag by lane, a transaction's timeline.

Each function draws with matplotlib (``pip install 'txnqueue[plots]'``) into the given axes or new
ones, and returns them.

Example::

    from txnqueue import plots

    report = manager.history.report(verify=False)
    plots.depth(report, "orders")
    plots.timeline(report, "night-7/3")
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

from txnqueue.core.settings import check_id, check_text, shown
from txnqueue.errors import InvalidInput, PlatformMissing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from txnqueue.reports.audit.figures import AuditFigures, DepthPoint
    from txnqueue.reports.audit_report import AuditReport

__all__ = ["age", "depth", "lag", "timeline"]

STATES = ("available", "delayed", "in_flight", "expired")
_COLOURS = ("#0b57a4", "#b35a00", "#14672f", "#a3161f", "#6b2fa0", "#4d5761")
_DASHES = ("-", "--", ":", "-.")
_HATCHES = ("", "///")
_LINES_MAX = len(_COLOURS) * len(_DASHES)


def depth(report: AuditReport, queue: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw how many messages queues held after each commit.

    Args:
        report: The report to draw.
        queue: The queue, by state; when omitted, the total of each queue.
        ax: The axes to draw into; new ones when omitted.

    Returns:
        The axes: a line for each state that occurred, or for each queue that held any message.

    Raises:
        InvalidInput: The report has no such queue, or too many.
        PlatformMissing: matplotlib is not installed.
    """
    lines: list[tuple[str, list[DepthPoint], list[float | None]]] = []
    check_text("queue", queue)
    if queue is not None:
        points = _points(report, queue)
        lines = [(_words(name), points, [getattr(p, name) for p in points]) for name in STATES]
        lines = [line for line in lines if any(line[2])] or lines[:1]
    else:
        each = ((name, _points(report, name)) for name in _queues(report))
        lines = [(name, points, [point.messages for point in points]) for name, points in each]
        lines = [line for line in lines if any(line[2])] or lines
    drawn = _steps(_axes(ax), lines)
    drawn.set_title("Messages" if queue is None else f"Messages in {_plain(queue)}, by state")
    drawn.set_ylabel("messages")
    return drawn


def age(report: AuditReport, queue: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw how old the oldest available message was after each commit.

    Args:
        report: The report to draw.
        queue: The queue; every queue when omitted.
        ax: The axes to draw into; new ones when omitted.

    Returns:
        The axes: a line, in seconds, for each queue that had an available message, with gaps
        where it had none.

    Raises:
        InvalidInput: The report has no such queue, or too many.
        PlatformMissing: matplotlib is not installed.
    """
    check_text("queue", queue)
    names = _queues(report) if queue is None else [queue]
    each = ((name, _points(report, name)) for name in names)
    lines = [(name, points, [p.oldest_age_seconds for p in points]) for name, points in each]
    lines = [line for line in lines if any(age is not None for age in line[2])] or lines
    drawn = _steps(_axes(ax), lines)
    drawn.set_title("Age of the oldest available message")
    drawn.set_ylabel("seconds")
    return drawn


def lag(report: AuditReport, queue: str | None = None, *, ax: Axes | None = None) -> Axes:
    """Draw how many messages wait in each lane at the end of the report.

    Args:
        report: The report to draw.
        queue: The queue; all queues when omitted.
        ax: The axes to draw into; new ones when omitted.

    Returns:
        The axes: a bar for each lane, available messages first, then delayed ones; next to it
        the age of the oldest available message.

    Raises:
        InvalidInput: The report has no such queue.
        PlatformMissing: matplotlib is not installed.
    """
    check_text("queue", queue)
    lanes = [one for one in _figures(report).lanes if queue in (None, one.queue)]
    if not lanes:
        raise _unknown("queue", queue, {one.queue for one in _figures(report).lanes})
    drawn = _axes(ax)
    names = [_plain(f"{one.queue} {one.lane}" if queue is None else one.lane) for one in lanes]
    rows, left = range(len(lanes)), [0] * len(lanes)
    for number, state in enumerate(("available", "delayed")):
        counts = [getattr(one, state) for one in lanes]
        colour, hatch = _COLOURS[number], _HATCHES[number]
        drawn.barh(rows, counts, left=left, label=state, color=colour, hatch=hatch)
        left = [before + count for before, count in zip(left, counts, strict=True)]
    for row, one, end in zip(rows, lanes, left, strict=True):
        if one.oldest_age_seconds is not None:
            drawn.annotate(
                f"{one.oldest_age_seconds:,.0f} s",
                (end, row),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
            )
    drawn.set_yticks(rows, names)
    drawn.invert_yaxis()
    drawn.set_xlim(0, max(max(left) * 1.15, 1))
    drawn.set_xlabel("messages")
    drawn.set_ylabel("lane")
    drawn.set_title("Waiting messages by lane" + ("" if queue is None else f", {_plain(queue)}"))
    drawn.legend()
    return drawn


def timeline(report: AuditReport, transaction_id: str, *, ax: Axes | None = None) -> Axes:
    """Draw what a transaction wrote, and when.

    Args:
        report: The report to draw.
        transaction_id: The transaction.
        ax: The axes to draw into; new ones when omitted.

    Returns:
        The axes: a row for each kind of entry and queue or table, in the order of their first
        entries; a dot for each entry, at its seconds since the first one, with its messages.

    Raises:
        InvalidInput: The report lists no entry of the transaction.
        PlatformMissing: matplotlib is not installed.
    """
    check_id(transaction_id)
    events = [one for one in _figures(report).events if one.transaction_id == transaction_id]
    if not events:
        raise InvalidInput(
            f"The report lists no entry of transaction {transaction_id!r}: "
            "report.figures.attempts names the transactions that it contains.",
            name="transaction_id",
        )
    began = min(event.at for event in events)
    names = [
        " ".join([_words(one.kind), *(x for x in (one.queue or _end(one.table),) if x)])
        for one in events
    ]
    rows = list(dict.fromkeys(names))
    seconds = [(one.at - began).total_seconds() for one in events]
    places = [rows.index(name) for name in names]
    drawn = _axes(ax)
    drawn.hlines(range(len(rows)), 0, max(*seconds, 0.001), colors="#b5bcc4", linewidths=1)
    drawn.scatter(seconds, places, color=_COLOURS[0], zorder=3)
    counts: dict[tuple[float, int], int] = {}
    for at, place, event in zip(seconds, places, events, strict=True):
        counts[at, place] = counts.get((at, place), 0) + (event.count or 0)
    for (at, place), count in counts.items():
        if count:
            drawn.annotate(
                f"{count:,}",
                (at, place),
                xytext=(0, 6),
                textcoords="offset points",
                ha="center",
                fontsize="small",
            )
    drawn.set_yticks(range(len(rows)), [_plain(name) for name in rows])
    drawn.invert_yaxis()
    drawn.margins(x=0.05, y=0.2)
    drawn.set_xlabel(f"seconds since {began:%Y-%m-%d %H:%M:%S} UTC")
    drawn.set_title(f"Transaction {_plain(transaction_id)}")
    return drawn


def _axes(ax: Axes | None) -> Axes:
    """Return the given axes, or make new ones.

    Raises:
        InvalidInput: The value is none.
        PlatformMissing: matplotlib is not installed.
    """
    if ax is not None:
        if not callable(getattr(ax, "step", None)):
            raise InvalidInput(f"ax={shown(ax)}: give axes of matplotlib, or omit them.", name="ax")
        return ax
    try:
        from matplotlib import pyplot
    except ModuleNotFoundError as error:
        raise PlatformMissing(
            f"txnqueue.plots needs {error.name}: pip install 'txnqueue[plots]'.",
            missing=error.name,
        ) from error
    _, made = pyplot.subplots(figsize=(9, 4), layout="constrained")
    made.spines[["top", "right"]].set_visible(False)
    made.grid(alpha=0.25)
    made.set_axisbelow(True)
    return made


def _steps(
    ax: Axes, lines: Sequence[tuple[str, Sequence[DepthPoint], Sequence[float | None]]]
) -> Axes:
    """Draw lines that keep their value until the next commit; each line looks different."""
    if len(lines) > _LINES_MAX:
        raise InvalidInput(
            f"The report has {len(lines)} queues, but a picture shows at most {_LINES_MAX} lines: "
            "name a queue.",
            name="queue",
        )
    for number, (name, points, values) in enumerate(lines):
        ax.step(
            [point.commit_seq for point in points],
            [float("nan") if value is None else value for value in values],
            where="post",
            label=_plain(name),
            color=_COLOURS[number % len(_COLOURS)],
            linestyle=_DASHES[number % len(_DASHES)],
        )
    ax.set_xlabel("commit")
    ax.ticklabel_format(axis="x", style="plain", useOffset=False)
    ax.set_ylim(bottom=0)
    if lines:
        ax.legend()
    return ax


def _figures(report: AuditReport) -> AuditFigures:
    """Return the figures of a report.

    Raises:
        InvalidInput: The value is not a report.
    """
    figures = getattr(report, "figures", None)
    if figures is None:
        raise InvalidInput(
            f"report={shown(report)}: give what history.report() returned.", name="report"
        )
    return cast("AuditFigures", figures)


def _queues(report: AuditReport) -> list[str]:
    return list(dict.fromkeys(sorted(point.queue for point in _figures(report).depths)))


def _points(report: AuditReport, queue: str) -> list[DepthPoint]:
    """List the points of a queue.

    Raises:
        InvalidInput: The report has none for this queue.
    """
    found = [point for point in _figures(report).depths if point.queue == queue]
    if not found:
        raise _unknown("queue", queue, _queues(report))
    return found


def _unknown(name: str, value: object, known: Iterable[str]) -> InvalidInput:
    listed = ", ".join(sorted(known)) or "none"
    return InvalidInput(f"{name}={shown(value)}: the report contains {listed}.", name=name)


def _end(table: str | None) -> str | None:
    """Shorten a path to its last part; a catalog name stays as it is."""
    if table is None or "/" not in table:
        return table
    return "…/" + "/".join(table.rstrip("/").split("/")[-2:])


def _words(name: str) -> str:
    return name.replace("_", " ")


def _plain(text: object) -> str:
    """Escape a text so that matplotlib reads no part of it as a formula."""
    return str(text).replace("$", r"\$")
