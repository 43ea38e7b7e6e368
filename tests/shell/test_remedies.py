"""What errors say to do: on the command line it is something to type."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("typer")
from tests.core.test_errors import CLASSES
from txnqueue.cli.presentation import REMEDIES, in_the_shell

PACKAGE = Path(__file__).resolve().parents[2] / "txnqueue"
NO_COMMANDS = {
    "protocols", "data_source.py", "sink.py", "stream.py", "plots.py", "testing.py", "rehearsal.py",
    "table.py", "batch.py", "replayed_batch.py", "heartbeat.py", "transaction.py",
    "participants.py", "connections.py", "auxiliary.py", "last_resource.py", "selector.py",
    "changed_rows.py",
}  # fmt: skip
"""Where errors are raised for programs only; handlers of ``consume`` are programs."""
CALL = re.compile(
    r"(?<![\w.])(?:[a-z_]+\.)*[a-z_]+\((?:[^()]|\([^()]*\))*\)"
    r"|\b(?:manager|queue|history|exchange|tx|batch)\.[a-z_]+"
    r"|\b(?:create|drop|alter|apply|waive|take)_[a-z]+"
    r"|\b[a-z_]+=(?:True|False|\W|$)"
)
"""A call, a method, or an argument."""
FOR_PROGRAMS = {
    "manager.outcome(7)": "that it is put right with an id, test_cli shows",
    "A DataFrame needs a session": "no command makes a DataFrame of a report",
    "A store in memory needs a session": "no command has one",
    "DataFrames need a Spark session": "no command has one without",
    "Give available_at= or delay_seconds=": "send has the latter only",
    "Give commit_seq or timestamp=": "--as-of takes either",
    "Give a message id, or queue= and where=": "history refuses both options itself",
    "Nothing to trace was given": "history does something else then",
    "Give either the schema, or like=": "create needs a schema",
    "Transient messages cannot be sent in branch": "commands send durably, in no branch",
    "The transient messages of this process take": "commands send durably",
    "sent or received transient messages": "no command prepares",
    "decides by its own commit and cannot prepare": "no command prepares",
    "progress=True needs": "no command asks for it",
    "resend(": "no command calls it",
    "a stream cannot take them back": "no command runs a stream",
    "Views need a store in Delta tables": "no command makes views",
    "would have the name of a table of the store": "no command makes views",
    "is a table that this store did not create": "no command makes views",
    "a store opened by look() is read-only": "what commands write goes through Spark",
    "The proof needs Delta's change feed": "what commands verify is read with Spark",
    "where= is SQL": "what commands select is read with Spark",
    "end it here too (spark.stop())": "no command works on after a lost session",
    "was stopped (spark.stop())": "no command works on after a lost session",
    "commit_seq=-1": "its option has another check",
    "transaction_id='': give": "it names no call",
    "call recover() with a connection": "only a program has one",
    "call recover({": "only a program has one",
    "receive again, for longer work with": "a handler can, which is a program",
    "calls sys.exit()": "it is about the code of a handler",
    "called sys.exit(": "it is about the code of a handler",
}
"""What errors say in Python's words all the same, and why."""


def errors_of(file: Path) -> Iterator[str]:
    """Write the messages of the errors that a file makes, with values where it puts some in."""
    kinds = {kind.__name__ for kind in CLASSES}
    for call in ast.walk(ast.parse(file.read_text())):
        if isinstance(call, ast.Call) and call.args and ast.unparse(call.func) in kinds:
            yield written(call.args[0])


def written(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(written, node.values))
    quoted = isinstance(node, ast.FormattedValue) and node.conversion == ord("r")
    return "'x'" if quoted else "7"


def test_no_error_that_a_command_can_raise_says_what_to_call() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if NO_COMMANDS.isdisjoint(file.parts)]
    said = [in_the_shell(text) for file in files for text in errors_of(file)]
    calls = [text for text in said if CALL.search(text)]
    unknown = [text for text in calls if not any(known in text for known in FOR_PROGRAMS)]
    assert not unknown, "say in presentation.REMEDIES what to type"
    for known in FOR_PROGRAMS:
        assert any(known in text for text in calls), f"no error says {known!r} any more"


def test_every_remedy_is_one_that_the_package_names() -> None:
    package = "".join(
        re.sub(r'"\s+f?"', "", file.read_text())
        for file in PACKAGE.rglob("*.py")
        if file.name != "presentation.py"
    )
    assert [call for call in REMEDIES if call not in package] == []


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("Put it right and run recover().", "Put it right and run txnqueue recover."),
        ("or apply_change('0f:7') to", "or txnqueue apply-change 0f:7 to"),
        ("waive_change('0f:7', reason) to", "txnqueue waive-change 0f:7 --reason WHY to"),
        ("with table_gone=True if", "with --table-gone if"),
        (
            "manager.release('orders', consumer=, reason=);",
            "txnqueue release orders --consumer WHO --reason WHY;",
        ),
        ("drop_queue('orders') says", "txnqueue drop orders --yes says"),
        ("drop_exchange('sales') says", "txnqueue drop-exchange sales --yes says"),
        ("recover().prepared lists those", "txnqueue recover lists those"),
        ("first with manager.queue('a').alter(add=...).", "first with txnqueue declare FILE."),
        ("in parts, or with keep_order=False.", "in parts."),
        ("ask outcome('job', '0f.7'), or", "ask txnqueue outcome --attempt 0f.7 -- job, or"),
        ("read after=2048, or upto= an earlier", "read --after 2048, or --upto an earlier"),
        ("call recover() with a connection", "call recover() with a connection"),
        ("call recover({'pg': connection})", "call recover({'pg': connection})"),
    ],
)
def test_a_remedy_is_typed_with_its_arguments(said: str, typed: str) -> None:
    assert in_the_shell(said) == typed


def test_a_name_is_quoted_for_the_shell() -> None:
    typed = in_the_shell("""drop_queue("it's") says""").removesuffix(" says")
    assert shlex.split(typed) == ["txnqueue", "drop", "it's", "--yes"]
