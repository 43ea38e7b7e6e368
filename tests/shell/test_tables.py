"""Tables of the command line, in terminals of several widths."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence

import pytest

pytest.importorskip("rich")

from rich.console import Console
from rich.text import Text

from txnqueue.cli.presentation import QUEUE_COLUMNS, Output, Printer, json_for
from txnqueue.cli.tables import fitted

QUEUES = [
    ["orders", 4, 1_204, 1_000, 0, 204, 0, 0, 0, 0, 0, 0, 0, 0],
    ["orders-of-vips.dead", 1, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
]


def shown(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> list[str]:
    """Print a table in a terminal, and see to it that no line is longer than that."""
    cells = [[Text(str(value)) for value in row] for row in rows]
    terminal = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    terminal.print(fitted(columns, cells, width))
    assert isinstance(terminal.file, io.StringIO)
    lines = [line.rstrip() for line in terminal.file.getvalue().splitlines()]
    assert all(len(line) <= width for line in lines), lines
    return lines


@pytest.mark.parametrize("width", [80, 100, 120, 160, 240])
def test_queues_and_their_counts_can_be_read(width: int) -> None:
    lines = shown(QUEUE_COLUMNS, QUEUES, width)
    (head,) = (line for line in lines if "available" in line)
    for name, value in zip(QUEUE_COLUMNS, QUEUES[0], strict=True):
        if value:
            assert name in head.replace("┃", " ").split(), "no name is broken"
    (orders,) = (line for line in lines if "1204" in line)
    assert [word for word in orders.replace("│", " ").split() if word != "0"] == [
        str(value) for value in QUEUES[0] if value
    ]
    words = " ".join(lines).replace("┃", " ").replace(",", " ").split()
    assert all(name in words for name in QUEUE_COLUMNS), "what is left out is named below"


def test_a_terminal_that_is_too_narrow_for_columns_has_a_line_for_each_value() -> None:
    lines = shown(QUEUE_COLUMNS, QUEUES, 40)
    assert lines[0].split() == ["queue", "orders"]
    assert ["in_flight", "204"] in [line.split() for line in lines]
    assert len(lines) == 2 * (len(QUEUE_COLUMNS) + 1)


def test_long_values_are_folded_and_whole() -> None:
    reason = "".join(f"{n:04d}" for n in range(50))
    lines = shown(["queue", "reason", "at"], [["orders", reason, "2026-11-22"]], 60)
    cells = [line.split("│")[2].strip() for line in lines if line.startswith("│")]
    assert "".join(cells) == reason
    assert "2026-11-22" in lines[3], "a short value is in one piece"


@pytest.mark.parametrize("width", [20, 40, 80])
def test_names_leave_room_for_the_values_however_long_they_are(width: int) -> None:
    name = "_".join(["amount"] * 20)
    lines = shown(["id", name], [[17, "4711.25"]], width)
    assert [line.split() for line in lines if "17" in line] == [["id", "17"]]
    assert "4711.25" in "".join(line[width // 2 :].strip() for line in lines)
    assert "".join(line[: width // 2].strip() for line in lines).endswith(name)


def test_a_terminal_without_a_width_shows_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "4711" in printed(monkeypatch, "utf-8", Output.TABLE, "4711")


@pytest.mark.parametrize("width", [12, 30, 200])
def test_names_of_columns_are_only_text(width: int) -> None:
    lines = shown(["id", "[red]x[/red]", "a\x1b[2Jb"], [[1, 2, 3]] * 2, width)
    text = "".join(lines)
    assert "\x1b" not in text
    assert width == 12 or ("[red]x[/red]" in text and "a\\x1b[2Jb" in text)


def printed(
    monkeypatch: pytest.MonkeyPatch, encoding: str, output: Output, name: str = "Ä→\ud800"
) -> str:
    """Print a row on a stdout of an encoding."""
    octets = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(octets, encoding=encoding))
    printer = Printer(output)
    printer.rows([{"name": name}], ("name",), "")
    printer.check_printed()
    said = octets.getvalue().decode(encoding)
    monkeypatch.undo()
    return said


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "utf-16"])
def test_letters_that_stdout_has_no_code_for_are_escaped(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    assert json.loads(printed(monkeypatch, encoding, Output.JSON)) == {"name": "Ä→\ud800"}
    shown = {"ascii": r"\xc4\u2192", "latin-1": r"Ä\u2192"}.get(encoding, "Ä→")
    assert shown in printed(monkeypatch, encoding, Output.TABLE)


def test_a_line_of_json_is_read_whatever_the_locale_is() -> None:
    for encoding in ("ascii", "latin-1", "utf-8"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
        stream.write(json_for(stream, {"error": "Ä→"}))
        stream.seek(0)
        assert json.loads(stream.read()) == {"error": "Ä→"}
