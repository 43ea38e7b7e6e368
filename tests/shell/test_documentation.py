"""The documentation is true to its form: examples run, links lead somewhere, records have dates."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG

PROJECT = Path(__file__).resolve().parents[2]
HOW_TO = [f"docs/how-to/{name}.md" for name in ("producer", "consumer", "operator", "auditor")]
PAGES = {"the README": ["README.md"], "the how-to pages": [*HOW_TO, "docs/how-to/testing.md"]}
"""Pages whose examples go on with what the ones before them made."""
IN_SHORT = {**PAGES, "the how-to pages": HOW_TO[:1]}
"""What the default run runs: all of them take five minutes."""
DECISIONS = PROJECT / "docs" / "decisions"
_RECORD = re.compile(
    r"# (?P<number>\d{4}) (?P<title>[^\n]+)\n\n"
    r"(?P<date>\d{4}-\d\d-\d\d) · "
    r"(?P<status>accepted|superseded(?: in part)? by (?P<later>[^\n]+))\n\n"
    r".*?^\*\*Context\.\*\* .*^\*\*Decision\.\*\*",
    re.MULTILINE | re.DOTALL,
)
_LATER = re.compile(r"\[(\d{4})\]\(([^)]+)\)")
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.spark
@pytest.mark.parametrize("pages", (PAGES if LONG else IN_SHORT).values(), ids=PAGES)
def test_the_examples_run(pages: list[str], spark: Any, tmp_path: Path) -> None:
    names: dict[str, Any] = {"spark": spark, "root": str(tmp_path / "messaging")}
    for page in pages:
        text = (PROJECT / page).read_text()
        assert _BLOCK.search(text), f"{page} has no example"
        for found in _BLOCK.finditer(text):
            above = "\n" * text.count("\n", 0, found.start(1))  # so that an error names its line
            exec(compile(above + found[1], page, "exec"), names)


def test_every_how_to_page_is_run() -> None:
    stored = {str(path.relative_to(PROJECT)) for path in (PROJECT / "docs/how-to").glob("*.md")}
    elsewhere = {"docs/how-to/schedulers.md"}  # test_schedulers.py, beside schedulers that stand in
    assert stored == {*PAGES["the how-to pages"], *elsewhere}


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page in [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]:
        broken += [
            f"{page.name}: {target}"
            for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
            if "://" not in target and not (page.parent / target).exists()
        ]
    assert not broken


def test_every_term_that_is_linked_has_its_anchor_in_the_glossary_itself() -> None:
    """A code host makes anchors for headings only."""
    pages = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]
    linked = {
        anchor
        for page in pages
        for anchor in re.findall(r"glossary\.md#([^)\s]+)\)", page.read_text())
    }
    glossary = (PROJECT / "docs" / "glossary.md").read_text()
    assert linked and linked == set(re.findall(r'^\| <a id="([^"]+)"></a>', glossary, re.MULTILINE))


def test_the_table_of_decisions_says_what_their_records_say() -> None:
    rows = []
    for path in sorted(DECISIONS.glob("[0-9]*.md")):
        record = _RECORD.match(path.read_text())
        assert record, f"{path.name}: write '# NNNN title', 'date · status', Context, Decision"
        assert path.name.startswith(f"{record['number']}-")
        if record["later"]:
            later = _LATER.findall(record["later"])
            assert " and ".join(f"[{number}]({file})" for number, file in later) == record["later"]
            assert all(file.startswith(f"{number}-") for number, file in later)
            assert all((DECISIONS / file).exists() for _, file in later)
        rows.append(
            f"| [{record['number']}]({path.name}) | {record['title']} "
            f"| {record['date']} | {record['status']} |"
        )
    table = [
        line for line in (DECISIONS / "README.md").read_text().splitlines() if line[:2] == "| "
    ]
    assert table[1:] == rows
