"""Writes what was measured into the page of the documentation, and draws its pictures.

    .venv/bin/python -m tests.bench.page

The page ``docs/performance.md`` has a part between two marks that is written from
``docs/performance.json``; it is empty while that file is not there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench import pictures, results
from tests.bench.consumer import BATCH
from tests.bench.peers import LEASE_SECONDS
from tests.bench.report import rows_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN = "<!-- written from performance.json by tests/bench/page.py: begin -->"
END = "<!-- end -->"
_MARKS = "¹²³⁴⁵⁶⁷⁸⁹"
_BETWEEN = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)


def with_figures(page: str, document: dict[str, Any] | None) -> str:
    """Put what was measured between the marks of a page.

    Raises:
        ValueError: The page has no marks.
    """
    text = "" if document is None else "\n" + "\n".join(lines(document)) + "\n\n"
    found, count = _BETWEEN.subn(lambda _: text, page)
    if count != 1:
        raise ValueError(f"The page has not one part between {BEGIN} and {END}.")
    return found


def lines(document: dict[str, Any]) -> Iterator[str]:
    """Write the part, line by line."""
    yield (
        f"Measured on {document['date']}: {_described(document['machine'])}; "
        + ", ".join(f"{name} {version}" for name, version in document["versions"].items())
        + ". All single values: [performance.json](performance.json)."
    )
    for name, title in pictures.shown(document).items():
        yield ""
        yield f"![{title}](pictures/{pictures.FOLDER}/{name}.svg)"
    yield ""
    yield "| what | beside | medians | ratio | 95 % interval | target | rounds | |"
    yield "|---|---|---:|---:|---:|---:|---:|---|"
    notes: dict[str, str] = {}
    for case in document["cases"]:
        title = case["title"] + _note(case, notes)
        for _, sides, medians, *rest in rows_of(case):
            yield "| " + " | ".join([title, sides, medians, *rest]) + " |"
    for where, mark in notes.items():
        yield ""
        yield f"{mark} On another machine: {where}."
    if document.get("peers"):
        yield ""
        yield from _audits(document["peers"])
        yield from _best(document)


def _described(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, "
        f"{machine['file_system']}"
    )


def _note(case: dict[str, Any], notes: dict[str, str]) -> str:
    """Mark a case that was measured elsewhere; the notes gain what the mark means."""
    if "machine" not in case:
        return ""
    where = f"{_described(case['machine'])}, {case['measured_at'][:10]}"
    return " " + notes.setdefault(where, _MARKS[len(notes) % len(_MARKS)])


def _audits(found: list[dict[str, Any]]) -> Iterator[str]:
    yield (
        "Does a consumer that writes each message to an output lose or double any? Counted over "
        f"{found[0]['steady']['sent']} messages in batches of {BATCH}. Where claims have leases, "
        f"what is not acknowledged after {LEASE_SECONDS} seconds is given to the next one:"
    )
    yield ""
    yield "| queue | consumers | lost | doubled | lost, one killed | doubled, one killed |"
    yield "|---|---:|---:|---:|---:|---:|"
    for one in found:
        counts = [one[what][key] for what in ("steady", "killed") for key in ("lost", "doubled")]
        yield f"| {one['name']} | {one['threads']} | " + " | ".join(map(str, counts)) + " |"


def _best(document: dict[str, Any]) -> Iterator[str]:
    """Say how the best peer compares that is correct as long as nobody is killed."""
    correct = {
        one["name"]
        for one in document["peers"]
        if not one["steady"]["lost"] + one["steady"]["doubled"]
    }
    for case in document["cases"]:
        found = [one for one in case["comparisons"] if one["above"] in correct and one["at_least"]]
        if found and case["group"] == "peers":
            best = min(found, key=lambda one: float(one["ratio"]))
            yield ""
            yield (
                f"Of those that are correct while no consumer is killed, {best['above']} is best: "
                f"it takes {best['ratio']:.2f} times as long for {case['title'].partition(':')[0]}."
            )


def publish(document: dict[str, Any], docs: Path = DOCS) -> None:
    """Write the figures, the pictures and the page."""
    whole = results.merged(results.read(docs / "performance.json"), document)
    results.write(docs / "performance.json", whole)
    write(docs)


def write(docs: Path = DOCS) -> None:
    """Write the pictures and the page from the figures that are there."""
    document, page = results.read(docs / "performance.json"), docs / "performance.md"
    if document is not None:
        pictures.draw(document, docs / "pictures" / pictures.FOLDER)
    text = with_figures(page.read_text(encoding="utf-8"), document)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
    sys.exit()
