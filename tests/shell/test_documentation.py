"""Every Python example of the documentation runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", "docs/how-to.md"]
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.spark
@pytest.mark.parametrize("page", PAGES)
def test_the_examples_run(page: str, spark: Any, tmp_path: Path) -> None:
    blocks = _BLOCK.findall((PROJECT / page).read_text())
    assert blocks, f"{page} has no example"
    names: dict[str, Any] = {"spark": spark, "root": str(tmp_path / "messaging")}
    for block in blocks:
        exec(compile(block, page, "exec"), names)


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page in [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert not broken
