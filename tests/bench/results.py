"""What was measured, as JSON: medians, ratios with their intervals, and every single value."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.case import Comparison, Parts
from tests.bench.ratios import ratio
from tests.bench.runner import Measured

Document = dict[str, Any]


def case_of(group: str, measured: Measured) -> Document:
    """Write down a case."""
    case = measured.case
    return {
        "name": case.name,
        "group": group,
        "title": case.title,
        "unit": case.unit,
        "measured_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="minutes"),
        "rounds": max(map(len, measured.samples.values()), default=0),
        "drift": round(measured.drift, 3),
        "void": measured.void,
        "sides": {
            name: {
                "title": side.title,
                "median": _short(median(measured.values(name))),
                "parts": _medians(measured.samples[name]),
                "values": [_short(value) for value in measured.values(name)],
            }
            for name, side in case.sides.items()
        },
        "comparisons": [_compared(measured, one) for one in case.comparisons],
        "calibrations": [_short(value) for value in measured.calibrations],
    }


def _compared(measured: Measured, comparison: Comparison) -> Document:
    found = ratio(measured.values(comparison.above), measured.values(comparison.below))
    target, met = comparison.target, None
    if target is not None:
        met = found.value >= target if comparison.at_least else found.value <= target
    return {
        "above": comparison.above,
        "below": comparison.below,
        "ratio": round(found.value, 3),
        "low": round(found.low, 3),
        "high": round(found.high, 3),
        "target": target,
        "at_least": comparison.at_least,
        "met": met,
    }


def _medians(samples: Sequence[Parts]) -> dict[str, float]:
    return {name: _short(median(parts[name] for parts in samples)) for name in samples[0]}


def _short(value: float) -> float:
    """Round to what can be told from noise."""
    return float(f"{value:.4g}")


def merged(before: Mapping[str, Any] | None, after: Document) -> Document:
    """Put new cases in the place of those of the same name, if they were measured alike.

    With other versions nothing is kept of what was there. What is kept of another machine says so:
    each case is compared within one run, but no two of them with each other.
    """
    if before is None or before.get("versions") != after["versions"]:
        return after
    new = {case["name"]: case for case in after["cases"]}
    kept = [
        new.pop(case["name"], None) or _placed(case, before["machine"], after["machine"])
        for case in before["cases"]
    ]
    checks = {one["name"]: one for one in (*before.get("peers", ()), *after.get("peers", ()))}
    return {**after, "cases": [*kept, *new.values()], "peers": list(checks.values())}


def _placed(case: Mapping[str, Any], there: object, here: object) -> dict[str, Any]:
    """Say of a case on which machine it was measured, if that is another one than this."""
    machine = case.get("machine", there)
    rest = {key: said for key, said in case.items() if key != "machine"}
    return rest if machine == here else {**rest, "machine": machine}


def read(path: Path) -> Document | None:
    """Read what was written; None if there is nothing."""
    if not path.is_file():
        return None
    found: Document = json.loads(path.read_text(encoding="utf-8"))
    return found


def write(path: Path, document: Document) -> None:
    """Write it, one case after the other, short lists on one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
