"""The documentation as a site: it builds from the repository alone, and no link is broken."""

from __future__ import annotations

import posixpath
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import txnqueue
from tests.typing.test_public_names import FOR_USERS

pytest.importorskip("mkdocs")

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[2]
NO_NETWORK = """
import socket, sys

def refuse(*_, **__):
    raise OSError("the site is built without a network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli()
"""
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """What a page links to, what it loads, and what can be linked to in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.tables = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.tables += tag == "table"
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if LOADS.get(tag) in given:
            self.loads.append(given[LOADS[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """Build the site without a network; any warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-c", NO_NETWORK, "build", "--strict", "--site-dir", str(folder)],
        cwd=PROJECT,
        env={"PATH": "", "PYTHONPATH": str(PROJECT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return {
        str(path.relative_to(folder)): Page(path.read_text(encoding="utf-8"))
        for path in folder.rglob("*.html")
    } | {
        str(path.relative_to(folder)): Page("")
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".html"
    }


def test_every_link_and_anchor_of_the_site_is_there(site: dict[str, Page]) -> None:
    broken = []
    for name, page in site.items():
        for link in page.links + page.loads:
            scheme, host, path, _, anchor = urlsplit(link)
            if scheme or host or name == "404.html":  # which may be shown at any address
                continue
            folder = posixpath.dirname(name)
            target = posixpath.normpath(posixpath.join(folder, unquote(path))) if path else name
            target = "index.html" if target == "." else target
            if target not in site or (anchor and unquote(anchor) not in site[target].anchors):
                broken.append(f"{name}: {link}")
    assert not broken
    assert sum(len(page.links) for page in site.values()) > 1000


def test_no_page_loads_anything_from_elsewhere(site: dict[str, Page]) -> None:
    loads = {(name, load) for name, page in site.items() for load in page.loads}
    assert loads
    assert not {(name, load) for name, load in loads if "//" in load}


def test_no_page_has_a_diagram_that_a_script_would_fetch_a_library_for() -> None:
    """Material loads Mermaid from a public host when a page has such a block."""
    pages = [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]
    assert not [path for path in pages if "```mermaid" in path.read_text(encoding="utf-8")]


SPARKS_OWN = {"QueueDataSource": {"options", "simpleStreamReader"}}
"""Members that a class has from Spark, whose own reference tells of them."""


def test_every_public_name_and_every_member_for_users_is_in_the_reference(
    site: dict[str, Page],
) -> None:
    shown = {
        anchor for name in site if name.startswith("reference/") for anchor in site[name].anchors
    }
    public = set(txnqueue.__all__) - {"__version__"}
    assert not {name for name in public if f"txnqueue.{name}" not in shown}
    for name, members in FOR_USERS.items():
        found = {a.split(".")[2] for a in shown if a.startswith(f"txnqueue.{name}.")}
        assert found == set(members.split()) - SPARKS_OWN.get(name, set()), name


def test_what_lies_outside_of_the_documentation_is_shown_as_it_is_stored(
    site: dict[str, Page],
) -> None:
    notebook = site["tutorials/first_ten_minutes.html"]
    assert {"create-a-queue-and-send-messages", "trace-a-message"} <= notebook.anchors
    assert [load for load in notebook.loads if load.endswith(".png") and "first_ten" in load]
    for name in ("producer", "consumer", "auditor", "operations"):
        story = site[f"tutorials/{name}.html"]
        assert [load for load in story.loads if load.endswith(".png") and name in load]
        assert story.tables, "results are shown as tables"
    assert "twenty-lines" in site["start.html"].anchors
    assert {"start.html", "tutorials/first_ten_minutes.html"} <= set(site["index.html"].links)


def test_the_stored_pictures_are_what_their_source_draws(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "jobs/draw_pictures.py", str(tmp_path)], cwd=PROJECT, check=True
    )
    stored, drawn = (
        {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.svg")}
        for folder in (PROJECT / "docs" / "pictures", tmp_path)
    )
    assert drawn and stored == drawn, "run: python jobs/draw_pictures.py"
