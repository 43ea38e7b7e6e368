"""What the site has besides ``docs/``: hooks of MkDocs, which ``mkdocs.yml`` names.

- Pages that lie elsewhere in the repository: the README, the changelog, the notebooks. They are
  shown as they are stored; nothing is executed. Links between all pages are relative to the
  repository, so that they also work on a code host, and are turned to the site's own here.
- The Python reference. The front matter of a page names ``homes``: modules whose public names in
  ``txnqueue`` it shows; ``rest: true`` shows those that no other page does. ``modules`` are shown
  under names of their own: their ``__all__``, or all that they define. ``made`` names classes that
  users construct, ``internal`` members that are not for them; ``inherited: false`` leaves out what
  a base class has.
"""

from __future__ import annotations

import ast
import base64
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "README.md": "start.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "tests/README.md": "tests.md",
    **{f"notebooks/{path.name}": f"tutorials/{path.stem}.md"
       for path in sorted((ROOT / "notebooks").glob("*.ipynb"))},
}  # fmt: skip
"""Pages outside of ``docs/``, and where the site has them."""
_REPOSITORY = {there: here for here, there in OUTSIDE.items()}
_FENCES = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that lie outside of ``docs/``."""
    for source, page in OUTSIDE.items():
        path = ROOT / source
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text, pictures = notebook(json.loads(text), path.stem)
            for name, picture in pictures.items():
                files.append(File.generated(config, f"tutorials/{name}", content=picture))
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turn the repository's links to the site's, and fill in what is generated."""
    uri = page.file.src_uri
    parts = _FENCES.split(markdown)
    parts[::2] = [_LINK.sub(lambda link: site_link(link, uri), part) for part in parts[::2]]
    text = "".join(parts)
    if uri.startswith("reference/"):
        text += reference(page.meta)
    return text


def on_page_content(html: str, **_: Any) -> str:
    """Show the examples of docstrings without the second colon that Sphinx would want."""
    return html.replace("Example::</p>", "Example:</p>")


# ------------------------------------------------------------------------------------ links


def site_link(link: re.Match[str], uri: str) -> str:
    """Write a link of the page ``uri`` as the site has it; what it has no page of is text."""
    mark, text, target, anchor = link.groups(default="")
    if "://" in target or target.startswith("mailto:"):
        return link[0]
    here = _REPOSITORY.get(uri, f"docs/{uri}")
    meant = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    if meant in OUTSIDE:
        there = OUTSIDE[meant]
    elif meant.startswith("docs/"):
        there = meant.removeprefix("docs/")
    else:
        return text if (ROOT / meant).exists() else link[0]
    there = posixpath.relpath(there, posixpath.dirname(uri) or ".")
    return f"{mark}[{text}]({there}{anchor})"


# -------------------------------------------------------------------------------- notebooks


def notebook(stored: dict[str, Any], stem: str) -> tuple[str, dict[str, bytes]]:
    """Write a stored notebook as Markdown, with the pictures that it shows by their names."""
    blocks: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in stored["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            blocks.append(source)
            continue
        blocks.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                blocks.append(f"![What the cell above shows]({name})")
            elif html := "".join(data.get("text/html", "")):
                blocks.append(_without_gaps(html))
            elif text := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
                blocks.append(f"```text\n{text}\n```")
    return "\n\n".join(blocks) + "\n", pictures


def _without_gaps(html: str) -> str:
    """Write an output as one block of Markdown: without empty lines, and in the site's style."""
    html = re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL)
    return "\n".join(line for line in html.splitlines() if line.strip())


# -------------------------------------------------------------------------------- reference


def homes() -> dict[str, str]:
    """Find in which module of the package each public name is defined."""
    tree = ast.parse((ROOT / "txnqueue" / "__init__.py").read_text(encoding="utf-8"))
    return {
        alias.name: (node.module or "").removeprefix("txnqueue.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("txnqueue.")
        for alias in node.names
        if alias.name not in ("errors", "__version__")
    }


def reference(meta: dict[str, Any]) -> str:
    """Write the directives of a page of the reference: its names, in the order of its homes."""
    return "".join(f"\n\n{directive}" for directive in _directives(meta)) + "\n"


def _directives(meta: dict[str, Any]) -> Iterator[str]:
    public = homes()
    for home in meta.get("homes", ()):
        for name in (name for name, where in public.items() if where == home):
            yield _directive(name, meta, made=name in meta.get("made", ()))
    if meta.get("rest"):
        taken = {home for path in _pages() for home in _homes_of(path)}
        for name in sorted(name for name, where in public.items() if where not in taken):
            yield _directive(name, meta)
    for module in meta.get("modules", ()):
        listed = [f"{module}.{name}" for name in _listed(module)]
        for name in listed or [module]:
            yield _directive(name, meta, made=bool(listed))


def _directive(name: str, meta: dict[str, Any], *, made: bool = False) -> str:
    inherited = meta.get("inherited", True)
    options = {
        "filters": ["!^_", *(f"!^{name}$" for name in meta.get("internal", ()))],
        "inherited_members": inherited,
        "merge_init_into_class": made,
        "show_bases": not inherited,
    }
    return f"::: txnqueue.{name}\n    options: {json.dumps(options)}"


def _listed(module: str) -> list[str]:
    """Read the ``__all__`` of a module; empty if it has none."""
    path = ROOT / "txnqueue" / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def _pages() -> list[Path]:
    return sorted((ROOT / "docs" / "reference").glob("*.md"))


def _homes_of(path: Path) -> list[str]:
    """Read which homes a page of the reference names in its front matter."""
    found = re.search(r"^homes: \[(.*)\]$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return [home.strip() for home in found[1].split(",")] if found else []
