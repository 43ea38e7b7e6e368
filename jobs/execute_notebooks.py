"""Execute notebooks and store them with their outputs: python jobs/execute_notebooks.py [name …]"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import jupytext
import nbclient

ROOT = Path(__file__).resolve().parents[1]


def main(names: list[str]) -> int:
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sources = [ROOT / "notebooks" / f"{name}.py" for name in names]
    for source in sources or sorted((ROOT / "notebooks").glob("*.py")):
        notebook = jupytext.read(source)
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TMPDIR"] = folder
            nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute(
                cwd=folder
            )
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell["outputs"] = kept(cell["outputs"], folder)
            else:
                cell.pop("outputs", None)
            cell.get("metadata", {}).pop("execution", None)
        jupytext.write(notebook, source.with_suffix(".ipynb"))
        print(f"executed {source.relative_to(ROOT)}")
    return 0


def kept(outputs: list[Any], folder: str) -> list[Any]:
    """Leave out what is of this run only: what a JVM says when it starts, and where files were."""
    made = re.compile(rf"{re.escape(folder)}/\w+")

    def told(value: Any) -> Any:
        if isinstance(value, str):
            return made.sub("/lake", value)
        return {key: told(one) for key, one in value.items()} if isinstance(value, dict) else value

    outputs = [output for output in outputs if output.get("name") != "stderr"]
    for output in outputs:
        for place in ("text", "data"):
            if place in output:
                output[place] = told(output[place])
    return outputs


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
