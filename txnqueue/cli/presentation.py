"""Output of the command line: rich tables for people, JSON lines for programs."""

from __future__ import annotations

import datetime
import enum
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from txnqueue.core.markup import printable
from txnqueue.reports.report import plain

if TYPE_CHECKING:
    from txnqueue.admin.drop import ExchangeDropResult, QueueDropResult
    from txnqueue.core.receipt import Receipt

PIPED_WIDTH = 240
"""So wide are tables that go into a file or a pipe."""
MESSAGE = "_message"
_ABOUT = ("id", "lane", "deliveries", "enqueued_at", "reason", "error")
"""The metadata of a message that a table shows, which no payload column may hide."""
_ENDS = ("reason", "error")
"""Those of a dead letter, which stand behind the payload if there are any."""
QUEUE_COLUMNS = (
    "queue", "lanes", "posted", "available", "delayed", "in_flight", "purge_pending", "accepted",
    "rejected", "dead_lettered", "expired", "purged", "moved", "duplicates",
)  # fmt: skip


class Output(str, enum.Enum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


class Printer:
    """Prints results on stdout, and everything else on stderr."""

    def __init__(self, output: Output) -> None:
        """Print as tables or as JSON lines."""
        self.output = output

    def rows(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str], none: str) -> None:
        """Print rows.

        Args:
            rows: The rows; as JSON every key is printed.
            columns: The columns of the table.
            none: What to say instead of an empty table.
        """
        if self.output is Output.JSON:
            for row in rows:
                self._line(row)
            return
        table = Table(header_style="bold", highlight=False)
        for name in columns:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(_cell(row.get(name)) for name in columns))
        if table.row_count:
            self._console().print(table)
        else:
            self.note(none)

    def messages(self, messages: Sequence[Mapping[str, Any]], none: str) -> None:
        """Print messages: the payload's columns, and of ``_message`` what people look for."""
        if self.output is Output.JSON:
            self.rows(messages, (), none)
            return
        payload = [name for name in (messages[0] if messages else ()) if name != MESSAGE]
        about = {key: _beside(payload, key) for key in _ABOUT}
        flat = [_flat(message, payload, about) for message in messages]
        ends = [about[key] for key in _ENDS if any(row[about[key]] for row in flat)]
        columns = [*(about[key] for key in _ABOUT if key not in _ENDS), *payload, *ends]
        self.rows(flat, columns, none)

    def fact(self, values: Mapping[str, Any], sentence: str) -> None:
        """Print one result: a JSON object, or a sentence."""
        if self.output is Output.JSON:
            self._line(values)
        else:
            self._console().print(Text(printable(sentence)), soft_wrap=True)

    def note(self, sentence: str) -> None:
        """Print a note for people only: on stderr."""
        print(printable(sentence), file=sys.stderr)

    # -------------------------------------------------------------------------- helpers

    @staticmethod
    def _console() -> Console:
        console = Console(file=sys.stdout, highlight=False)
        return console if console.is_terminal else Console(file=sys.stdout, width=PIPED_WIDTH)

    @staticmethod
    def _line(row: Mapping[str, Any]) -> None:
        print(json.dumps(plain(row), ensure_ascii=False, allow_nan=False), file=sys.stdout)


def written_address(host: str, port: int) -> str:
    """Format the address of a listener, with IPv6 hosts in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def complain(message: str) -> None:
    """Print an error: one line on stderr, whatever is in the message."""
    print(f"txnqueue: {printable(' '.join(message.split()))}", file=sys.stderr)


def _beside(payload: Sequence[str], name: str) -> str:
    """Name a column of message metadata differently from all columns of the payload."""
    taken = {column.lower() for column in payload}
    return f"_{name}" if name.lower() in taken else name


def _flat(
    message: Mapping[str, Any], payload: Sequence[str], about: Mapping[str, str]
) -> dict[str, Any]:
    own = message[MESSAGE]
    origin = own["origin"] or {}
    values = {
        "id": own["id"],
        "lane": own["lane"],
        "deliveries": own["delivery_count"],
        "enqueued_at": own["enqueued_at"],
        "reason": origin.get("reason"),
        "error": origin.get("error"),
    }
    return {
        **{about[key]: value for key, value in values.items()},
        **{name: message.get(name) for name in payload},
    }


def _cell(value: object) -> Text:
    if value is None:
        return Text("")
    if isinstance(value, datetime.datetime):
        return Text(value.isoformat(sep=" ", timespec="milliseconds"))
    if isinstance(value, str):
        return Text(printable(value))
    if isinstance(value, (bool, int, float)):
        return Text(str(value), justify="right")
    return Text(printable(json.dumps(plain(value), ensure_ascii=False)))


def told_of_drop(drop: QueueDropResult) -> str:
    """Describe in a sentence the progress of a queue's drop."""
    return _told(f"Queue {drop.queue}", drop, f", {drop.messages} messages with it")


def told_of_exchange_drop(drop: ExchangeDropResult) -> str:
    """Describe in a sentence the progress of an exchange's drop."""
    return _told(f"Exchange {drop.exchange}", drop)


def _told(what: str, drop: QueueDropResult | ExchangeDropResult, and_what: str = "") -> str:
    if drop.dropped:
        return f"{what} is dropped{and_what}."
    return (
        f"{what} is closing and takes no more work; held back by what is prepared: "
        f"{', '.join(drop.held_by)}. Decide that, then drop again."
    )


def told_of_changes(changes: Mapping[str, tuple[object, object]]) -> str:
    """List what an alter changes."""
    return ", ".join(
        f"{name}: {'none' if old is None else old} -> {new}" for name, (old, new) in changes.items()
    )


def receipt_values(receipt: Receipt) -> dict[str, Any]:
    """Make what is printed of a receipt."""
    return {
        "transaction_id": receipt.transaction_id,
        "commit_seq": receipt.commit_seq,
        "journal_version": receipt.journal_version,
        "committed_at": receipt.committed_at,
    }
