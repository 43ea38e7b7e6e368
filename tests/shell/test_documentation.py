"""Every Python example of the documentation runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
HOW_TO = [f"docs/how-to/{name}.md" for name in ("producer", "consumer", "operator", "auditor")]
PAGES = {"the README": ["README.md"], "the how-to pages": [*HOW_TO, "docs/how-to/testing.md"]}
"""Pages whose examples go on with what the ones before them made."""
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.spark
@pytest.mark.parametrize("pages", PAGES.values(), ids=PAGES)
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
    assert stored == set(PAGES["the how-to pages"])


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page in [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert not broken
