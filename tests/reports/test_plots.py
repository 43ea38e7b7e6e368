"""What is drawn is what the report says."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
from matplotlib import pyplot

from tests.reports.test_audit_report import Shop
from txnqueue import plots
from txnqueue.errors import InvalidInput, PlatformMissing
from txnqueue.reports.audit_report import AuditReport
from txnqueue.testing import memory_manager


@pytest.fixture(scope="module")
def report() -> AuditReport:
    """The report of a store that much has happened in."""
    shop = Shop(5, steps=120)
    with shop.client("nightly").transaction("close/$1") as tx:
        batch = tx.queue("orders").receive(4)
        shop.clock.advance(3)
        tx.queue("payments").send([{"n": 1}, {"n": 2}])
        batch.accept()
    return shop.manager.history.report(verify=False)


@pytest.fixture(autouse=True)
def without_windows() -> Iterator[None]:
    """No test needs a window, or leaves a figure open."""
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")


def drawn(ax: Any) -> dict[str, tuple[list[float], list[float]]]:
    """Read the lines of some axes."""
    return {
        line.get_label(): ([*map(float, line.get_xdata())], [*map(float, line.get_ydata())])
        for line in ax.get_lines()
    }


def test_depth_is_a_line_for_each_state(report: AuditReport) -> None:
    ax = plots.depth(report, "orders")
    points = [point for point in report.figures.depths if point.queue == "orders"]
    lines = drawn(ax)
    assert [*lines] == ["available", "delayed", "in flight", "expired"]
    for name, (x, y) in lines.items():
        assert x == [point.commit_seq for point in points]
        assert y == [getattr(point, name.replace(" ", "_")) for point in points]
    assert all(line.get_drawstyle() == "steps-post" for line in ax.get_lines())
    styles = {(line.get_linestyle(), line.get_color()) for line in ax.get_lines()}
    assert len(styles) == len({style for style, _ in styles}) == 4
    assert "orders" in ax.get_title()


def test_depth_of_all_queues_is_a_line_for_each(report: AuditReport) -> None:
    lines = drawn(plots.depth(report))
    assert [*lines] == ["orders", "orders.dead", "payments", "payments.dead"]
    for name, (_, y) in lines.items():
        assert y == [p.messages for p in report.figures.depths if p.queue == name]


def test_ages_have_gaps_where_nothing_waited(report: AuditReport) -> None:
    lines = drawn(plots.age(report))
    for name, (_, y) in lines.items():
        ages = [p.oldest_age_seconds for p in report.figures.depths if p.queue == name]
        assert [None if math.isnan(one) else one for one in y] == ages
    assert drawn(plots.age(report, "orders")).keys() == {"orders"}


def test_lag_is_a_bar_for_each_lane(report: AuditReport) -> None:
    ax = plots.lag(report, "orders")
    lanes = [one for one in report.figures.lanes if one.queue == "orders"]
    available, delayed = ax.containers
    assert [bar.get_width() for bar in available] == [one.available for one in lanes]
    assert [bar.get_width() for bar in delayed] == [one.delayed for one in lanes]
    assert [bar.get_x() for bar in delayed] == [one.available for one in lanes]
    ages = [one.oldest_age_seconds for one in lanes if one.oldest_age_seconds is not None]
    assert [text.get_text() for text in ax.texts] == [f"{one:,.0f} s" for one in ages]
    assert len(plots.lag(report).get_yticks()) == len(report.figures.lanes)


def test_a_timeline_has_a_dot_for_each_entry(report: AuditReport) -> None:
    ax = plots.timeline(report, "close/$1")
    events = [one for one in report.figures.events if one.transaction_id == "close/$1"]
    began = min(event.at for event in events)
    rows = [tick.get_text() for tick in ax.get_yticklabels()]
    dots = [(x, rows[round(y)]) for x, y in ax.collections[-1].get_offsets().tolist()]
    assert dots == [
        (
            (one.at - began).total_seconds(),
            " ".join([one.kind.replace("_", " "), *([one.queue] if one.queue else [])]),
        )
        for one in events
    ]
    assert "posted payments" in rows and {x for x, _ in dots} == {0.0, 3.0}
    ax.figure.canvas.draw()  # a "$" is no formula
    assert ax.get_title() == r"Transaction close/\$1"


def test_it_draws_where_it_is_told(report: AuditReport) -> None:
    _, axes = pyplot.subplots(2)
    assert plots.depth(report, ax=axes[0]) is axes[0]
    assert plots.age(report, ax=axes[1]) is axes[1]


def test_what_the_report_does_not_know_is_refused(report: AuditReport) -> None:
    for draw in (plots.depth, plots.age, plots.lag):
        with pytest.raises(InvalidInput, match=r"orders, orders\.dead, payments"):
            draw(report, "nothing")
    with pytest.raises(InvalidInput, match="no entry of transaction"):
        plots.timeline(report, "nothing")


def test_queues_that_never_held_anything_are_left_out() -> None:
    manager = memory_manager()
    manager.create_queue("orders", "n long").send([{"n": 1}])
    report = manager.history.report(verify=False)
    assert {point.queue for point in report.figures.depths} == {"orders", "orders.dead"}
    assert [*drawn(plots.depth(report))] == [*drawn(plots.age(report))] == ["orders"]
    assert drawn(plots.depth(report, "orders.dead")).keys()


def test_an_empty_store_is_an_empty_picture() -> None:
    manager = memory_manager()
    manager.create_queue("orders", "n long", dead_letter=False)
    empty = manager.history.report(verify=False)
    assert drawn(plots.depth(empty, "orders"))["available"][1][-1] == 0
    plots.lag(empty)


def test_without_matplotlib_it_says_what_to_install(
    report: AuditReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlatformMissing, match=r"txnqueue\[plots\]"):
        plots.depth(report)


def test_a_timeline_shows_of_a_tables_path_the_end(report: AuditReport) -> None:
    path = "/lake/of/a/company/gold/totals"
    events = [replace(one, table=one.table and path) for one in report.figures.events]
    (changed, *_) = [one for one in events if one.table]
    figures = replace(report.figures, events=tuple(events))
    assert changed.transaction_id is not None
    ax = plots.timeline(replace(report, figures=figures), changed.transaction_id)
    labels = [tick.get_text() for tick in ax.get_yticklabels()]
    assert "change decided …/gold/totals" in labels and not [x for x in labels if "company" in x]
