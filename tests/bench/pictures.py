"""Pictures of what was measured: distance from floors, peers, threads, parts of steps, growth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = "measured"
SETTINGS: Any = {
    "svg.hashsalt": "txnqueue", "svg.fonttype": "none", "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False,
}  # fmt: skip
OURS, PEER, MARK = "#2f6f9f", "#b8b8b8", "#c0392b"


def shown(document: dict[str, Any]) -> dict[str, str]:
    """Name the pictures that there is something for, with what they show."""
    return {name: title for name, (title, _, some) in _PICTURES.items() if some(document)}


def draw(document: dict[str, Any], folder: Path) -> None:
    """Draw them as SVG; the same figures give the same files."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(SETTINGS):
        for name in shown(document):
            _, paint, some = _PICTURES[name]
            rows = some(document)
            figure = Figure(figsize=(8, 1.1 + 0.34 * max(len(rows), 4)), layout="constrained")
            paint(figure.add_subplot(), rows)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


Row = tuple[str, dict[str, Any]]
_APART = ("threads", "growth", "maintenance")
"""Groups that compare the library with itself."""


def _compared(document: dict[str, Any], *, peers: bool) -> Iterator[Row]:
    for case in document["cases"]:
        for one in case["comparisons"]:
            if case["group"] not in _APART and peers == one["at_least"] | (
                one["below"] == "txnqueue"
            ):
                yield f"{one['above']}, {case['name']}" if peers else case["name"], one


def _to_floors(document: dict[str, Any]) -> list[Row]:
    return list(_compared(document, peers=False))


def _to_peers(document: dict[str, Any]) -> list[Row]:
    return list(_compared(document, peers=True))


def _threads(document: dict[str, Any]) -> list[Row]:
    cases = [case for case in document["cases"] if case["name"] == "threads"]
    return [row for case in cases for row in case["sides"].items()]


def _parts(document: dict[str, Any]) -> list[Row]:
    cases = [case for case in document["cases"] if case["group"] == "parts"]
    return [(side["title"], side) for case in cases for side in case["sides"].values()]


def _grown(document: dict[str, Any]) -> list[Row]:
    return [(case["name"], case) for case in document["cases"] if case["group"] == "growth"
            and case["comparisons"]]  # fmt: skip


def _paint_ratios(axes: Any, rows: list[Row]) -> None:
    """Draw a bar for each ratio, its interval, and its target as a mark."""
    places = range(len(rows))
    values = [one["ratio"] for _, one in rows]
    beside = [
        [one["ratio"] - one["low"] for _, one in rows],
        [one["high"] - one["ratio"] for _, one in rows],
    ]
    beside = [[max(value, 0) for value in side] for side in beside]
    axes.barh(places, values, color=OURS, xerr=beside, ecolor="#444444", height=0.6)
    marks = [(one["target"], n) for n, (_, one) in enumerate(rows) if one["target"] is not None]
    if marks:
        axes.plot(*zip(*marks, strict=True), "|", color=MARK, markersize=14, markeredgewidth=2.5,
                  label="target")  # fmt: skip
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    axes.axvline(1, color="#888888", linewidth=0.8)
    axes.set_yticks(places, [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("ratio of medians")


def _paint_threads(axes: Any, rows: list[Row]) -> None:
    rates = [1 / side["median"] for _, side in rows]
    axes.bar([name for name, _ in rows], rates, color=OURS, width=0.5)
    axes.set_xlabel("threads")
    axes.set_ylabel("transactions per second")


def _paint_parts(axes: Any, rows: list[Row]) -> None:
    """Draw a bar for each step, of one colour for each thing that its time goes to."""
    ended = [0.0] * len(rows)
    for number, part in enumerate(rows[0][1]["parts"]):
        values = [1000 * side["parts"][part] for _, side in rows]
        axes.barh(range(len(rows)), values, left=ended, color=f"C{number}", height=0.6, label=part)
        ended = [end + value for end, value in zip(ended, values, strict=True)]
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds: the medians of the parts")
    axes.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))


def _paint_growth(axes: Any, rows: list[Row]) -> None:
    for name, case in rows:
        sides = [(float(size), side["median"]) for size, side in case["sides"].items()]
        axes.plot(*zip(*sides, strict=True), "o-", label=name.removeprefix("growth of "))
    axes.set_xscale("log")
    axes.set_ylim(
        0, 1.2 * max(side["median"] for _, case in rows for side in case["sides"].values())
    )
    axes.set_xlabel("how many there are")
    axes.set_ylabel("seconds")
    axes.legend(frameon=False, ncols=3, loc="lower left", bbox_to_anchor=(0, 1))


_PICTURES: dict[
    str, tuple[str, Callable[[Any, list[Row]], None], Callable[[dict[str, Any]], list[Row]]]
] = {
    "floors": ("Times of txnqueue over those of plain Delta", _paint_ratios, _to_floors),
    "peers": ("Times of hand-written queues over those of txnqueue", _paint_ratios, _to_peers),
    "threads": ("Transactions per second, by threads", _paint_threads, _threads),
    "parts": ("Where the time of a step goes", _paint_parts, _parts),
    "growth": ("Times as stores grow", _paint_growth, _grown),
}
