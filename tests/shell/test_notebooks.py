"""The notebooks: run from the first cell to the last, and stored as they run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]


@pytest.mark.parametrize("source", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_to_its_end(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jupytext = pytest.importorskip("jupytext")
    nbclient = pytest.importorskip("nbclient")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    notebook = jupytext.read(source)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=tmp_path)
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    assert outputs and not [o for o in outputs if o.output_type == "error"]


@pytest.mark.parametrize("source", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_stored_notebook_is_the_source_executed(source: Path) -> None:
    jupytext = pytest.importorskip("jupytext")
    stored = jupytext.read(source.with_suffix(".ipynb"))
    cells = [(c.cell_type, c.source) for c in jupytext.read(source).cells]
    assert [(c.cell_type, c.source) for c in stored.cells] == cells, (
        "run: python jobs/execute_notebooks.py"
    )
    assert all(c.execution_count for c in stored.cells if c.cell_type == "code")
    text = source.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert "/tmp/" not in text and str(ROOT) not in text
