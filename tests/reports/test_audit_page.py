"""The audit page in a real browser: it loads nothing, runs nothing foreign, and can be used."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jinja2", reason="the audit page needs the extra `report`")

from tests.conftest import LONG
from tests.reports.test_audit_report import Shop
from txnqueue.errors import PlatformMissing
from txnqueue.manager import QueueManager
from txnqueue.reports.audit.page import script_data
from txnqueue.reports.audit_report import AuditReport

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "<!--<script>",
    "{{ 7 * 7 }} {% raw %}",
    "\u202egnp.exe\u2028window.hacked = 3\u2029",
    "\"'><svg onload=window.hacked=4>",
    "&lt;b&gt; \\u003c \\",
    "ünïcödé 名前 ✓",
)


def css() -> str:
    """Read the page's own style sheet."""
    folder = resources.files("txnqueue.reports.audit") / "resources"
    return (folder / "page.css").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's Chromium, without a window."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="no playwright: pip install playwright"
    )
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Opened:
    """A page that is open, and what it did that it should not."""

    def __init__(self, browser: Any, file: Path, **settings: Any) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 900}, **settings)
        self.said: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def check_quiet(self) -> None:
        """Nothing was loaded, complained of or run."""
        assert self.said == []
        assert len(self.requests) == 1, self.requests
        assert self.page.evaluate("window.hacked") is None

    def status(self, table: str) -> str:
        """Read how many rows a long table has."""
        return str(self.page.locator(f"[data-table={table}] [role=status]").inner_text())

    def wait_for_status(self, table: str, part: str) -> None:
        """Wait until a long table was filtered."""
        from playwright.sync_api import expect

        status = self.page.locator(f"[data-table={table}] [role=status]")
        expect(status).to_contain_text(part)

    def column(self, table: str, number: int) -> list[str]:
        """Read a column of a long table's shown page."""
        cells = self.page.locator(f"[data-table={table}] tbody td:nth-child({number})")
        return [str(text) for text in cells.all_inner_texts()]


@pytest.fixture(scope="module")
def report() -> AuditReport:
    """The report of a store that has had all that a page shows."""
    shop = Shop(5, steps=120)
    with shop.client("nightly").transaction("close/1") as tx:
        tx.queue("orders").send([{"n": n} for n in range(3)])
        tx.table("gold").append([{"n": 1}])
    held = shop.manager.transaction("bank/1")
    shop.manager.queue("orders").send([{"n": 1}], transaction=held)
    held.prepare()
    shop.manager.queue("orders").send([{"n": 1}])
    shop.manager.queue("orders").receive(1).reject(reason="the only one")
    shop.client("boss").decide_heuristically("bank/1", commit=True, reason="the bank is gone")
    return shop.manager.history.report()


@pytest.fixture
def opened(browser: Any, report: AuditReport, tmp_path: Path) -> Iterator[Opened]:
    """That report's page, which is quiet to the end."""
    page = Opened(browser, report.save(tmp_path / "audit.html"))
    yield page
    page.check_quiet()
    page.page.close()


def test_the_page_opens_and_shows_the_figures(opened: Opened, report: AuditReport) -> None:
    page, figures = opened.page, report.figures
    assert page.title() == "Audit of memory"
    total = f"of {len(figures.events):,}"
    assert opened.status("events").endswith(total)
    assert page.locator("#chart-depth canvas").is_visible()
    rows = page.locator("section[aria-labelledby=between] tbody tr").all_inner_texts()
    shown = {
        row.split("\t")[0]: [int(n.replace(",", "")) for n in row.split("\t")[1:]] for row in rows
    }
    assert shown == {
        one.queue: [
            *(one.messages_before, one.posted, one.accepted, one.rejected, one.dead_lettered),
            *(one.expired, one.purged, one.moved, one.duplicates, one.dropped),
            one.messages_after,
        ]
        for one in figures.differences
    }
    assert "✓ Every claim holds." in page.inner_text("section[aria-labelledby=proof]")
    assert "bank/1" in page.inner_text("section[aria-labelledby=heuristic]")
    assert page.locator("section[aria-labelledby=dead] article").count() == len(
        figures.dead_letters
    )


def test_sentences_and_lists_can_be_read(opened: Opened) -> None:
    page = opened.page
    for text in page.locator("p").all_inner_texts():
        assert not re.search(r"[a-z][.:][A-Z]", text), f"a blank is missing in {text!r}"
        assert not re.search(r"\b1 messages", text)
    row = page.locator("[data-table=runs] tbody tr", has_text="orders.dead").first
    assert row.bounding_box()["height"] < 80, "the queues of a run are not one below the other"


def test_filters_and_search_narrow_every_long_table(opened: Opened, report: AuditReport) -> None:
    events = report.figures.events
    opened.page.select_option("#filters [name=queue]", label="payments")
    mine = [event for event in events if event.queue == "payments"]
    opened.wait_for_status("events", "(of")
    assert opened.status("events") == f"1 to 25 of {len(mine):,} (of {len(events):,})"
    assert {*opened.column("events", 4)} == {"payments"}
    opened.page.fill("#filters [name=text]", "NEGATIVE")
    found = [event for event in mine if "negative" in (event.reason or "")]
    assert 0 < len(found) < 25
    opened.page.wait_for_timeout(300)
    assert opened.column("events", 11) == ["negative"] * len(found)
    opened.page.click("#filters button")
    opened.page.wait_for_timeout(300)
    assert opened.status("events") == f"1 to 25 of {len(events):,}"
    opened.page.locator("[data-table=events] select").first.select_option(label="rejected")
    rejected = [event for event in events if event.kind == "rejected"]
    assert opened.status("events").endswith(f"of {len(rejected):,} (of {len(events):,})")


def test_long_tables_are_paged_and_sorted(opened: Opened, report: AuditReport) -> None:
    commits = [str(event.commit_seq) for event in report.figures.events]
    assert opened.column("events", 1) == commits[:25]
    table = opened.page.locator("[data-table=events]")
    table.get_by_role("button", name="Next").click()
    assert opened.column("events", 1) == commits[25:50]
    table.get_by_role("button", name="commit", exact=True).click()
    table.get_by_role("button", name="commit ▲").click()
    assert opened.column("events", 1) == commits[::-1][:25]
    assert table.locator("th[aria-sort=descending]").count() == 1


def test_a_transactions_timeline_lists_what_it_wrote(opened: Opened, report: AuditReport) -> None:
    page = opened.page
    page.fill("#transaction", "close/1")
    page.get_by_role("button", name="Show").click()
    mine = [event for event in report.figures.events if event.transaction_id == "close/1"]
    steps = page.locator("#way tbody th").all_inner_texts()
    assert steps == [event.kind for event in mine] and "change_decided" in steps
    assert "committed by nightly" in page.inner_text("#way")
    assert page.evaluate("document.activeElement.id") == "timeline"
    assert page.url.endswith("#transaction=close%2F1")
    page.locator("[data-table=attempts] button.link").first.click()
    assert page.input_value("#transaction") == report.figures.attempts[0].transaction_id


def test_a_link_to_a_transaction_opens_its_timeline(
    browser: Any, report: AuditReport, tmp_path: Path
) -> None:
    file = report.save(tmp_path / "audit.html")
    page = browser.new_page()
    page.goto(f"{file.as_uri()}#transaction=close%2F1")
    assert page.locator("#way tbody tr").count() > 2
    page.close()


def test_all_can_be_reached_by_keyboard_and_shows_its_focus(opened: Opened) -> None:
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(140):
        page.keyboard.press("Tab")
        focus = page.evaluate(
            """() => { const one = document.activeElement; const style = getComputedStyle(one);
            return [one.tagName, style.outlineStyle, parseFloat(style.outlineWidth)]; }"""
        )
        if focus[0] == "BODY":
            break
        assert focus[1] != "none" and focus[2] >= 1, focus
        reached.add(focus[0])
    assert reached >= {"A", "SELECT", "INPUT", "BUTTON", "SUMMARY", "DIV"}
    sort = page.locator("[data-table=runs] thead button").nth(4)
    sort.focus()
    page.keyboard.press("Enter")
    assert page.locator("[data-table=runs] th[aria-sort=ascending]").count() == 1


def test_the_page_has_the_structure_that_readers_are_led_by(opened: Opened) -> None:
    page = opened.page
    wrong = page.evaluate(
        """() => {
        const wrong = [];
        const all = (selector) => [...document.querySelectorAll(selector)];
        if (document.documentElement.lang !== "en") wrong.push("lang");
        for (const one of ["h1", "main", "nav", "header", "footer"])
          if (all(`body ${one}`).length !== 1) wrong.push(one);
        for (const table of all("table.rows")) {
          if (!table.caption || !table.caption.textContent.trim()) wrong.push("caption");
          for (const cell of table.querySelectorAll("thead th"))
            if (cell.scope !== "col") wrong.push("scope");
        }
        for (const field of all("input, select"))
          if (!field.labels.length || !field.labels[0].textContent.trim()) wrong.push(field.name);
        for (const button of all("button"))
          if (!button.textContent.trim()) wrong.push("button");
        for (const one of all("canvas"))
          if (one.getAttribute("role") !== "img" || !one.getAttribute("aria-label"))
            wrong.push("canvas");
        const ids = all("[id]").map((one) => one.id);
        if (new Set(ids).size !== ids.length) wrong.push("ids");
        for (const link of all("a[href^='#']"))
          if (!document.querySelector(link.getAttribute("href"))) wrong.push(link.href);
        let level = 0;
        for (const heading of all("h1, h2, h3")) {
          const now = Number(heading.tagName[1]);
          if (now > level + 1) wrong.push(heading.textContent);
          level = now;
        }
        return wrong;
        }"""
    )
    assert wrong == []


@pytest.mark.parametrize("width", [360, 800])
def test_a_narrow_window_needs_no_sideways_scrolling(
    browser: Any, report: AuditReport, tmp_path: Path, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 700})
    page.goto(report.save(tmp_path / "audit.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_of_both_schemes_are_told_apart(
    browser: Any, report: AuditReport, tmp_path: Path, scheme: str
) -> None:
    page = browser.new_page(color_scheme=scheme)
    page.goto(report.save(tmp_path / "audit.html").as_uri())
    names = sorted({*re.findall(r"(--[a-z0-9-]+):", css())})
    colours = page.evaluate(
        """(names) => Object.fromEntries(names.map((name) => [name,
        getComputedStyle(document.documentElement).getPropertyValue(name).trim()]))""",
        names,
    )
    shown = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert shown == [rgb(colours["--ground"]), rgb(colours["--text"])]
    for ground in ("--ground", "--raised"):
        for text in ("--text", "--quiet", "--link", "--good", "--bad"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for line in ("--line", *(name for name in names if name.startswith("--series"))):
        assert contrast(colours[line], colours["--ground"]) >= 3, line
    page.close()


def rgb(colour: str) -> str:
    """Write a colour as a browser tells it."""
    red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"


def contrast(one: str, other: str) -> float:
    """Compute the contrast of two colours, as WCAG defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_hostile_text_is_only_ever_text(browser: Any, tmp_path: Path) -> None:
    shop = Shop(0, steps=0)
    shop.manager.create_queue("texts", "s string", lanes=1)
    for number, text in enumerate(HOSTILE):
        client: Any = shop.client(text)
        client._client.runtime.run_id = f"run {text}"
        client.queue("texts").send([{"s": text}], headers={"h": text})
        with client.transaction(f"{number}{text}") as tx:
            tx.queue("texts").receive(1).reject(reason=text, transaction=tx)
    report = shop.manager.history.report(payload=True)
    opened = Opened(browser, report.save(tmp_path / "<audit> &.html"))
    opened.check_quiet()
    content = opened.page.inner_text("main")
    for text in (HOSTILE[0], HOSTILE[1], HOSTILE[3], HOSTILE[5], HOSTILE[6], HOSTILE[7]):
        assert text in content
    assert "\u202e" not in content and "\\u202egnp.exe\\u2028" in content
    opened.page.locator("[data-table=attempts] button.link").nth(4).click()
    assert opened.page.locator("#way tbody tr").count() >= 2
    assert opened.page.locator("main img, main svg[onload]").count() == 0
    opened.page.fill("#filters [name=text]", "<img src=x")
    opened.page.wait_for_timeout(300)
    assert opened.column("causes", 3) == [HOSTILE[1]]
    opened.check_quiet()
    opened.page.close()


def test_a_script_that_got_in_would_not_run(
    browser: Any, report: AuditReport, tmp_path: Path
) -> None:
    file = tmp_path / "audit.html"
    page = report.html()
    file.write_text(page.replace("</main>", "<script>window.hacked = 9</script></main>"))
    opened = Opened(browser, file)
    assert opened.page.evaluate("window.hacked") is None
    assert any("Content Security Policy" in said for said in opened.said)
    opened.page.close()


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_in_data_ends_its_script(text: str) -> None:
    written = script_data({"a": text})
    assert not {"<", ">", "&", "\u2028", "\u2029"} & {*written}


def test_without_scripts_the_counted_tables_show(
    browser: Any, report: AuditReport, tmp_path: Path
) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto(report.save(tmp_path / "audit.html").as_uri())
    assert page.locator("section[aria-labelledby=between] tbody tr").count() == 4
    assert page.locator("noscript").is_visible()
    page.close()


@pytest.mark.skipif(not LONG, reason="two minutes: in the long run")
def test_a_hundred_thousand_events_open_at_once(
    browser: Any, busy: QueueManager, tmp_path: Path
) -> None:
    file = busy.history.report(verify=False).save(tmp_path / "audit.html")
    assert file.stat().st_size < 15_000_000
    started = time.monotonic()
    opened = Opened(browser, file)
    opened.page.wait_for_selector("[data-table=events] tbody tr")
    assert time.monotonic() - started < 10
    assert opened.status("events") == "1 to 25 of 100,000"
    assert opened.page.evaluate("document.getElementsByTagName('*').length") < 20_000
    assert "1,003" in opened.page.inner_text("section[aria-labelledby=events]")
    started = time.monotonic()
    opened.page.fill("#filters [name=text]", "committed")
    opened.wait_for_status("events", "(of")
    assert time.monotonic() - started < 3
    opened.check_quiet()
    opened.page.close()


def test_without_jinja2_it_says_what_to_install(
    report: AuditReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(PlatformMissing, match=r"txnqueue\[report\]"):
        report.html()
