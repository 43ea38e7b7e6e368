"""Output of the command line: rich tables for people, JSON lines for programs."""

from __future__ import annotations

import ast
import datetime
import enum
import errno
import io
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, RenderableType
from rich.text import Text

from txnqueue.cli.tables import fitted
from txnqueue.core.markup import printable
from txnqueue.core.settings import text_of
from txnqueue.reports.report import plain

if TYPE_CHECKING:
    from txnqueue.admin.declarations import DeclarationResult
    from txnqueue.admin.drop import ExchangeDropResult, QueueDropResult
    from txnqueue.core.receipt import Receipt

PIPED_WIDTH = 240
"""So wide are tables that go into a file or a pipe."""
NARROWEST = 20
"""So wide are tables at least, also in a terminal that says of itself that it has no width."""
MESSAGE = "_message"
_ABOUT = ("id", "lane", "deliveries", "enqueued_at", "reason", "error")
"""The metadata of a message that a table shows, which no payload column may hide."""
_ENDS = ("reason", "error")
"""Those of a dead letter, which stand behind the payload if there are any."""
QUEUE_COLUMNS = (
    "queue", "lanes", "posted", "available", "delayed", "in_flight", "purge_pending", "accepted",
    "rejected", "dead_lettered", "expired", "purged", "moved", "duplicates",
)  # fmt: skip


REMEDIES = {
    "create_queue makes": "txnqueue create makes",
    "create_queue creates": "txnqueue create creates",
    "pass exist_ok=True": "pass --exist-ok",
    "partial=True": "--partial",
    "table_gone=True": "--table-gone",
    "manager.take_over(reason)": "txnqueue take-over",
    "manager.outcome(id)": "txnqueue outcome",
    "manager.outcome()": "txnqueue outcome",
    "manager.list_queues()": "txnqueue list",
    "manager.list_exchanges()": "txnqueue exchanges",
    "maintain(payload_retention_days=)": "txnqueue maintain --payload-retention-days",
    "maintain(history_retention_days=)": "txnqueue maintain --history-retention-days",
    "than maintain() allows": "than txnqueue maintain allows",
    "that maintain() removed": "that txnqueue maintain removed",
    "run recover()": "run txnqueue recover",
    "let recover() end": "let txnqueue recover end",
    "recover() lists": "txnqueue recover lists",
    "recover().prepared lists": "txnqueue recover lists",
    "recover().waiting lists": "txnqueue recover lists",
    "see recover().heuristic": "see txnqueue recover",
    "history.changes() shows": "txnqueue history shows",
    "history.trace shows": "txnqueue history --message shows",
    "history.digest() returned": "txnqueue history --digest printed",
    "open it with manager.queue(name), or add columns with queue.alter(add=...)": (
        "use it as it is, or add the columns with txnqueue declare FILE"
    ),
    ", or with keep_order=False": "",
    "Send df.coalesce(n) with fewer partitions": "Send the file in parts",
    "routing_key= or routing_key_column=": "--key or --key-column",
    "the name of a queue as routing_key=": "the name of a queue as --key",
    "with unroutable='return'": "with --unroutable return",
    "unroutable='dead_letter' and dead_letter_queue=": (
        "--unroutable dead_letter and --dead-letter-queue"
    ),
    "dead_letter_expired=True needs dead_letter=True": (
        "--dead-letter-expired needs --dead-letter"
    ),
    "that where= selects": "that --where selects",
    "match where=": "match --where",
    "queues() of this snapshot lists": "txnqueue history --as-of lists",
    "call look() again": "run it again",
    "call refresh() to read": "run it again to read",
    "give look() a filesystem=, or use Spark": "use --engine spark",
    "only Spark converts: use QueueManager": "only Spark converts: use --engine spark",
    "or upto= an earlier": "or --upto an earlier",
    "a report without upto=": "a report without --to",
}
"""What errors advise a program to call, and what to type instead.

``recover()`` with a connection is not among it: only a program can do that.
"""
_QUOTED = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""


def _asking_outcome(call: re.Match[str]) -> str:
    """Say what to type to ask for the outcome of an attempt: the id alone may name others."""
    attempt = ["--attempt", call[2]] if call[2] else []
    return shlex.join(["txnqueue", "outcome", *attempt, "--", ast.literal_eval(call[1])])


def _typed(command: str, call: re.Match[str], options: str = "") -> str:
    """Say what to type for a call whose first argument is a name or an id."""
    return f"txnqueue {command} {shlex.quote(ast.literal_eval(call[1]))} {options}".rstrip()


_CALLS: Mapping[str, Callable[[re.Match[str]], str]] = {
    rf"manager\.outcome\({_QUOTED}(?:, attempt='([^']*)')?\)": _asking_outcome,
    rf"(?<!\.)\boutcome\({_QUOTED}, '([^']*)'\)": _asking_outcome,
    rf"apply_change\({_QUOTED}\)": lambda call: _typed("apply-change", call),
    rf"waive_change\({_QUOTED}, reason\)": lambda call: _typed(
        "waive-change", call, "--reason WHY"
    ),
    rf"manager\.release\({_QUOTED}, consumer=, reason=\)": lambda call: _typed(
        "release", call, "--consumer WHO --reason WHY"
    ),
    rf"drop_queue\({_QUOTED}\)": lambda call: _typed("drop", call, "--yes"),
    rf"drop_exchange\({_QUOTED}\)": lambda call: _typed("drop-exchange", call, "--yes"),
    rf"\bchanges\(queue={_QUOTED}\)": lambda call: _typed("history --queue", call),
    rf"manager\.queue\({_QUOTED}\)\.alter\(add=\.\.\.\)": lambda _: "txnqueue declare FILE",
    rf"manager\.(?:queue|exchange)\({_QUOTED}\) opens the new one": lambda _: (
        "the same command again uses the new one"
    ),
    rf"open the new one with manager\.queue\({_QUOTED}\)": lambda _: "run the command again",
    r"\bread after=(\d+)": lambda call: f"read --after {call[1]}",
    r"\brun_id=(?=['\"])": lambda _: "--run-id ",
    r"\bduplicate_window_seconds=(\S+) needs message_id=": lambda call: (
        f"--duplicate-window-seconds {call[1]} needs --message-id"
    ),
}
"""The same of calls with arguments, which the command gets."""
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")


class Output(str, enum.Enum):
    """How results are printed."""

    TABLE = "table"
    JSON = "json"


class NotPrinted(Exception):
    """What a command printed did not arrive."""


class Printer:
    """Prints results on stdout, and everything else on stderr.

    A disk may be full, and a reader may have gone. What a command has done is done all the same:
    so its end says that the result did not arrive, and not the line that prints it.
    """

    def __init__(self, output: Output) -> None:
        """Print as tables or as JSON lines."""
        self.output = output
        self._failed: Exception | None = None

    def rows(self, rows: Iterable[Mapping[str, Any]], columns: Sequence[str], none: str) -> None:
        """Print rows.

        Args:
            rows: The rows; as JSON every key is printed.
            columns: The columns of the table.
            none: What to say instead of an empty table.
        """
        if self.output is Output.JSON:
            for row in rows:
                self._write(_line(row))
            self._flush()
            return
        cells = [[_cell(row.get(name)) for name in columns] for row in rows]
        if not cells:
            self.note(none)
            return
        page = _page()
        self._show(page, fitted(columns, cells, page.width))

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
            self._write(_line(values))
            self._flush()
        else:
            self._show(_page(), Text(printable(sentence)), soft_wrap=True)

    def script(self, values: Mapping[str, Any], text: str) -> None:
        """Print what other programs run: a JSON object, or exactly the text.

        On a terminal it is printed as everything else is: control characters would act on it.
        """
        if self.output is Output.JSON or _is_terminal():
            self.fact(values, text.removesuffix("\n"))
        else:
            self.text(text)

    def text(self, text: str) -> None:
        """Print a text of another format as it is."""
        self._write(text)
        self._flush()

    def note(self, sentence: str) -> None:
        """Print a note for people only: on stderr."""
        remark(printable(sentence))

    def check_printed(self) -> None:
        """Check that all that was printed has arrived.

        Raises:
            NotPrinted: It has not.
        """
        failed, self._failed = self._failed, None  # told once
        if failed is not None:
            raise NotPrinted(f"The output cannot be written: {failed}.") from failed

    def close(self) -> None:
        """Let go of what cannot be written.

        The interpreter would try it once more as it ends, and end with a code of its own: 120.

        Raises:
            NotPrinted: Something of the result did not arrive, though its reader had not gone.
        """
        for stream in (sys.stdout, sys.stderr):
            _let_go(stream)
        if not isinstance(self._failed, BrokenPipeError):
            self.check_printed()

    # -------------------------------------------------------------------------- helpers

    def _show(self, page: Console, what: RenderableType, *, soft_wrap: bool = False) -> None:
        with page.capture() as shown:
            page.print(what, soft_wrap=soft_wrap)
        self._write(shown.get())
        self._flush()

    def _write(self, text: str) -> None:
        """Write what the next ``_flush`` sends; nothing more once something was lost."""
        if self._failed is not None:
            return
        try:
            _there(sys.stdout).write(_encodable(text, sys.stdout))
        except (OSError, ValueError) as error:  # the latter of one that the program has closed
            self._failed = error

    def _flush(self) -> None:
        if self._failed is None:
            try:
                _there(sys.stdout).flush()
            except (OSError, ValueError) as error:
                self._failed = error


class _Page(io.StringIO):
    """What Rich draws for stdout: it would end the process where a reader has gone."""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # io has an attribute
        """What can be drawn there."""
        return _encoding_of(sys.stdout)

    def isatty(self) -> bool:
        """Return whether people see it at once."""
        return _is_terminal()


def _is_terminal() -> bool:
    """Return whether people see at once what is printed on stdout."""
    return sys.stdout is not None and sys.stdout.isatty()


def _page() -> Console:
    """Make a console that draws for stdout."""
    page = Console(file=_Page(), highlight=False)
    width = max(page.width, NARROWEST) if page.is_terminal else PIPED_WIDTH
    return Console(file=_Page(), highlight=False, width=width)


def _line(row: Mapping[str, Any]) -> str:
    return json_for(sys.stdout, row) + "\n"


def json_for(stream: TextIO | None, values: Mapping[str, Any]) -> str:
    """Write values as JSON, with escapes for the letters that a stream may have no code for.

    JSON itself has escapes for few control characters only: the others would control a terminal,
    and some of them end a line for programs.

    Args:
        stream: Where the text will be written.
        values: The values, by name.
    """
    every_letter = _encoding_of(stream).lower().startswith("utf")
    line = json.dumps(plain(values), ensure_ascii=not every_letter, allow_nan=False)
    return line if line.isprintable() else _UNPRINTABLE.sub(_escaped, line)


def _escaped(letter: re.Match[str]) -> str:
    """Write a letter within a text of JSON, with an escape unless it can be printed."""
    return letter[0] if letter[0].isprintable() else json.dumps(letter[0])[1:-1]


def _encodable(text: str, stream: TextIO | None) -> str:
    """Escape the letters that a stream has no code for, as Python does on stderr."""
    encoding = _encoding_of(stream)
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _encoding_of(stream: object) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _there(stdout: TextIO | None) -> TextIO:
    """Return a stdout; Python has none if it was closed before it began (``>&-``)."""
    if stdout is None:
        raise BrokenPipeError(errno.EPIPE, "stdout is closed")
    return stdout


def _let_go(stream: TextIO | None) -> None:
    """Write what a stream still holds, or send it nowhere if that is impossible."""
    if stream is None:
        return
    try:
        stream.flush()
    except (OSError, ValueError):  # the latter of one that the program has closed
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def written_address(host: str, port: int) -> str:
    """Format the address of a listener, with IPv6 hosts in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def in_the_shell(message: str) -> str:
    """Say what to type where a message says what to call."""
    for call, typed in REMEDIES.items():
        message = message.replace(call, typed)
    for pattern, typing in _CALLS.items():
        message = re.sub(pattern, typing, message)
    return message


def complain(message: str) -> None:
    """Print an error: one line on stderr, whatever is in the message."""
    remark(f"txnqueue: {printable(' '.join(message.split()))}")


def lines_of(error: BaseException) -> list[str]:
    """Split what an error says into lines, without what py4j puts before Java's own."""
    lines = text_of(error).strip().splitlines()
    said = [line for line in lines if not line.startswith("An error occurred while c")]
    return [line.lstrip(": ") for line in said or lines]


def remark(text: str) -> None:
    """Write on stderr, if that is there and takes it: no command fails because it does not."""
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr)
    except (OSError, ValueError):
        _let_go(sys.stderr)


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
    if not drop.existed:
        return f"{what} does not exist."
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


def told_of_step(step: DeclarationResult) -> str:
    """List what a step of a declaration alters, or what holds its drop back."""
    if step.held_by:
        return f"held back by what is prepared: {', '.join(step.held_by)}"
    return told_of_changes(step.changes)


def receipt_values(receipt: Receipt) -> dict[str, Any]:
    """Make what is printed of a receipt."""
    return {
        "transaction_id": receipt.transaction_id,
        "commit_seq": receipt.commit_seq,
        "journal_version": receipt.journal_version,
        "committed_at": receipt.committed_at,
    }
