"""The notebooks: stored as they run, and run from the first cell to the last."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import LONG

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
BYTES_MAX = 400_000
FOR_LONG = ("auditor", "consumer", "operations", "producer")
"""The ordinary run has most of their calls in the examples of the how-to pages."""

jupytext = pytest.importorskip("jupytext")


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            path, marks=pytest.mark.skipif(path.stem in FOR_LONG and not LONG, reason="minutes")
        )
        for path in NOTEBOOKS
    ],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_to_its_end(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbclient = pytest.importorskip("nbclient")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")  # for a minute's Java
    notebook = jupytext.read(source)
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=tmp_path)
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    assert outputs and not [o for o in outputs if o.output_type == "error"]
    if source.stem == "auditor":  # flights were deleted from a copy of the store, and it is said
        said = "rows of payload are there in slice 0, of 1797; the first that is not there once is"
        assert said in str(outputs)


@pytest.mark.parametrize("source", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_stored_notebook_is_the_source_executed(source: Path) -> None:
    file = source.with_suffix(".ipynb")
    stored = jupytext.read(file)
    cells = [(c.cell_type, c.source) for c in jupytext.read(source).cells]
    again = f"run: python jobs/execute_notebooks.py {source.stem}"
    assert [(c.cell_type, c.source) for c in stored.cells] == cells, again
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)], again
    outputs = [output for cell in code for output in cell.outputs]
    assert [o for o in outputs if "image/png" in o.get("data", {})], "no picture"
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert len(code) <= 26
    text = file.read_text(encoding="utf-8")
    assert len(text) < BYTES_MAX
    assert "/tmp/" not in text and str(ROOT) not in text and str(Path.home()) + "/" not in text


def test_every_notebook_is_linked() -> None:
    pages = {
        "docs/README.md": "../notebooks/{}.ipynb",
        "README.md": "notebooks/{}.ipynb",
        "mkdocs.yml": "tutorials/{}.md",
    }
    for page, link in pages.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        assert not [path.stem for path in NOTEBOOKS if link.format(path.stem) not in text], page
