"""Execute the notebooks and store them with their outputs: python jobs/execute_notebooks.py"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import jupytext
import nbclient

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    for source in sorted((ROOT / "notebooks").glob("*.py")):
        notebook = jupytext.read(source)
        with tempfile.TemporaryDirectory() as folder:
            nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute(
                cwd=folder
            )
        for cell in notebook.cells:  # what a JVM says when it starts is of no interest
            cell["outputs"] = [o for o in cell.get("outputs", []) if o.get("name") != "stderr"]
            if cell.cell_type != "code":
                del cell["outputs"]
            cell.get("metadata", {}).pop("execution", None)
        jupytext.write(notebook, source.with_suffix(".ipynb"))
        print(f"executed {source.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
