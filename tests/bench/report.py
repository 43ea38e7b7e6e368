"""What is shown on the terminal: a line while it goes on, and a table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def shown(document: dict[str, Any], console: Console) -> None:
    """Show the table of all cases."""
    table = Table(title="Ratios of medians, with 95 % intervals", title_justify="left")
    for heading, justify in (
        ("case", "left"), ("sides", "left"), ("medians", "right"), ("ratio", "right"),
        ("interval", "right"), ("target", "right"), ("rounds", "right"), ("", "left"),
    ):  # fmt: skip
        table.add_column(heading, justify="right" if justify == "right" else "left")
    for case in document["cases"]:
        for row in rows_of(case):
            table.add_row(*row)
    console.print(table)
    if document.get("peers"):
        console.print(_audits(document["peers"]))


def _audits(found: list[dict[str, Any]]) -> Table:
    table = Table(title="Messages lost and doubled", title_justify="left")
    for heading in ("queue", "consumers", "lost", "doubled", "lost, one killed",
                    "doubled, one killed"):  # fmt: skip
        table.add_column(heading)
    for one in found:
        counts = [one[what][key] for what in ("steady", "killed") for key in ("lost", "doubled")]
        table.add_row(one["name"], str(one["threads"]), *map(str, counts))
    return table


def rows_of(case: dict[str, Any]) -> Sequence[tuple[str, ...]]:
    """Write the rows of a case: one for each comparison, or one for each side without any."""
    sides, verdict = case["sides"], "void" if case["void"] else ""
    rounds = str(case["rounds"])
    if not case["comparisons"]:
        return [
            (case["name"], side["title"], amount(side["median"], case["unit"]), "", "", "",
             rounds, verdict)
            for side in sides.values()
        ]  # fmt: skip
    found: list[tuple[str, ...]] = []
    for one in case["comparisons"]:
        above, below = sides[one["above"]], sides[one["below"]]
        medians = " / ".join(amount(side["median"], case["unit"]) for side in (above, below))
        found.append(
            (
                case["name"],
                f"{above['title']} / {below['title']}",
                medians,
                f"{one['ratio']:.2f}",
                f"{one['low']:.2f}–{one['high']:.2f}",
                target_of(one),
                rounds,
                verdict or {True: "met", False: "missed", None: ""}[one["met"]],
            )
        )
    return found


def target_of(comparison: dict[str, Any]) -> str:
    """Write what a ratio should be."""
    if comparison["target"] is None:
        return ""
    return f"{'≥' if comparison['at_least'] else '≤'} {comparison['target']:g}"


def amount(value: float, unit: str) -> str:
    """Write a time or a size as people read it."""
    if unit == "s":
        return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
    if unit == "bytes":
        return f"{value / 1e6:.1f} MB"
    return f"{value:.3g} {unit}"
