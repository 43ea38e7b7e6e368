"""Command lines and files from strangers: an exit code that is documented, and a store as it was.

What cannot be used is said in one line; whatever was done, the history proves itself afterwards.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

typer = pytest.importorskip("typer")
import yaml  # noqa: E402
from hypothesis import HealthCheck, event, example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from pyspark.sql.types import LongType, StringType, StructField, StructType  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from tests.conftest import LONG  # noqa: E402
from tests.shell.test_cli import SCHEMA, Shell  # noqa: E402
from txnqueue.cli.console import Options  # noqa: E402
from txnqueue.cli.files import read_file, read_yaml  # noqa: E402
from txnqueue.cli.main import app  # noqa: E402
from txnqueue.errors import InvalidInput  # noqa: E402
from txnqueue.protocols.amqp.access import AccessRules  # noqa: E402

CODES = {0, 2, 3, 4, 5, 6, 7, 75, 76, 77}
"""Those of the documentation, without that of an unexpected failure."""
USAGE = 2
CHILD_SECONDS = 120.0
COLUMNS = StructType([StructField("id", LongType()), StructField("name", StringType())])
"""Those of the schema."""
COMMANDS = dict(typer.main.get_command(app).commands)
for _elsewhere in ("setup", "doctor", "amqp"):  # they are about the machine, or do not end
    del COMMANDS[_elsewhere]
ENDLESS = ("serve", "wait", "max_seconds", "verbose", "output", "html", "root")
"""Options that wait, write files or only say how results are shown."""
FITS = ("orders", "orders.dead", "events", "1", "0", "T", "send:0", "id", "id = 1", SCHEMA, "c int")
ODD = (
    *("", " ", "-", "--", "-1", "--root", "9" * 400, "1e400", "nan", "-inf", "0x1", "½", "٣", "١٢"),
    *("\ud800", "\udcff.csv", "\x00", "\x1b[2J", "a\nb", "é" * 300, "x" * 5_000, "../..", "/"),
    *("' OR 1=1 --", "id; DROP TABLE x", "1 = 1) OR (1 = 1", "a=b=c", "=", "a:b", "*", "#.#"),
    *("2024-13-45", "0001-01-01", "9999-12-31T23:59:59Z", "{", "[1", "null", "$HOME", "`id`", "%s"),
)
WORDS = st.one_of(st.sampled_from(FITS), st.sampled_from(ODD), st.text(max_size=8))
OFTEN = settings(
    max_examples=500 if LONG else 30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draw a command with some of its options, and whichever words."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    words = [name]
    for one in COMMANDS[name].params:
        if one.name in ENDLESS or not (one.required or draw(st.integers(0, 3)) == 0):
            continue
        if one.param_type_name == "argument":
            words.append(draw(WORDS))
        elif one.opts[-1] != "--help":
            words.append(one.opts[-1])
            if not one.is_flag:
                words.append(draw(WORDS))
    return words if draw(st.integers(0, 9)) else [*words, draw(WORDS)]


def _shell(folder: str) -> Shell:
    shell = Shell()
    shell("create", "orders", "--schema", SCHEMA)
    shell("create-exchange", "events", "--schema", SCHEMA, "--kind", "topic")
    file = Path(folder, "three.csv")
    file.write_text("id,name\n1,a\n2,b\n3,c\n", encoding="utf-8")
    shell("send", "orders", file)
    return shell


def _said(shell: Shell, words: list[str]) -> Any:
    """Run a command, and check what holds of all of them."""
    before = shell.store.journal.version()
    result = CliRunner().invoke(app, words, obj=shell.factory)
    told = (words, result.exit_code, result.stdout, result.stderr, result.exception)
    assert result.exit_code in CODES, told
    assert "Traceback" not in result.stderr, told
    if result.exit_code == USAGE:
        assert shell.store.journal.version() == before, told
    manager, _ = shell.factory(Options())
    assert manager.history.verify().ok, told
    return result


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    with TemporaryDirectory() as made:
        yield made


@OFTEN
@given(words=command_lines())
@example(words=["report", "--no-verify", "--from", "9" * 5_000])
def test_whichever_words_a_command_gets_its_exit_code_is_documented(
    words: list[str], folder: str
) -> None:
    _said(_shell(folder), words)


FILES = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")),
    st.lists(
        st.sampled_from(
            (
                *("id", "name", ",", "\n", '"', "1", "x", "{", "}", "[", "]", ":", '"id"', "null"),
                *("-0", "1e400", "NaN", "9" * 30, "\ufeff", "\x00", "\r", "\\", "\\ud800", "'"),
            )
        ),
        max_size=20,
    ).map(lambda parts: "".join(parts).encode()),
)


class Child:
    """A process beside, for what Arrow's own readers may end the process on."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, there = context.Pipe()
        self._process = context.Process(target=_work, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def survives(self, do: Callable[..., object], *arguments: object) -> bool:
        """Do something there; whether the process was there to the end. What is raised, is."""
        try:
            self._pipe.send((do, arguments))
            ended = self._pipe.poll(CHILD_SECONDS)
            raised = self._pipe.recv() if ended else None
        except (EOFError, OSError):
            self.close()
            self._start()
            return False
        if not ended:
            self.close()
            self._start()
            raise AssertionError(f"it does not end within {CHILD_SECONDS:.0f} s")
        if raised is not None:
            raise raised
        return True

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _work(pipe: Connection) -> None:
    """Do what is asked for, one after the other, and say what each raised."""
    with contextlib.suppress(EOFError):
        while True:
            do, arguments = pipe.recv()
            try:
                do(*arguments)
            except Exception as error:
                pipe.send(AssertionError("".join(traceback.format_exception(error))))
            else:
                pipe.send(None)


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    made = Child()
    yield made
    made.close()


def _sent(folder: str, file: str) -> None:
    shell = _shell(folder)
    result = _said(shell, ["send", "orders", file])
    waiting = shell.json("depth", "orders")[0]["available"]
    assert result.exit_code in (0, USAGE) and (waiting == 3 or result.exit_code == 0)


def _read_by_arrow(file: str) -> None:
    """Read a file by Arrow alone, with what the library asks of it."""
    with contextlib.suppress(InvalidInput):
        read_file(None, COLUMNS, file)


@OFTEN
@given(octets=FILES, suffix=st.sampled_from((".csv", ".json", ".jsonl", ".parquet")))
@example(octets=b"\x80\r", suffix=".csv")
def test_whichever_octets_a_file_has_it_is_sent_as_a_whole_or_not(
    octets: bytes, suffix: str, folder: str, child: Child
) -> None:
    file = Path(folder, f"hostile{suffix}")
    file.write_bytes(octets)
    if not child.survives(_sent, folder, str(file)):
        event("Arrow ended the process")
        assert not child.survives(_read_by_arrow, str(file)), "it was not Arrow"


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.dates(),
    st.datetimes(),
    st.binary(max_size=4),
    WORDS,
)
KEYS = st.one_of(
    st.sampled_from(
        (
            *("queues", "drop", "schema", "lanes", "group_by", "lease_seconds", "users", "rules"),
            *("send", "receive", "orders", "bills", "deliveries_max", "message_id", "durable"),
        )
    ),
    WORDS,
    st.integers(),
    st.none(),
    st.dates(),
)
SAID = st.recursive(
    PLAIN,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=8,
)
DECLARED = st.fixed_dictionaries(
    {
        "queues": st.one_of(
            SAID,
            st.dictionaries(
                WORDS,
                st.dictionaries(KEYS, PLAIN, max_size=3).map(
                    lambda one: {"schema": "n long", **one}
                ),
                min_size=1,
                max_size=2,
            ),
        )
    },
    optional={"drop": SAID, "more": PLAIN},
)


YAML = st.one_of(
    FILES,
    st.one_of(SAID, DECLARED).map(lambda said: yaml.safe_dump(said).encode()),
    st.sampled_from(
        (
            *(b"queues: &a\n  orders: *a\n", b"a: &a [*a]\n", b"queues: 2024-99-99\n", b"\xff\xfe"),
            *(b"x: !!python/object/apply:os.system ['true']\n", b"a: !!int x\n", b"? [1]\n: 2\n"),
            *(b"[" * 3_000, b"queues: !!binary '='\n", b"a: !!timestamp x\n", b"a: !!float ''\n"),
            *(b"drop: !!set {orders}\n", b"queues: {<<: 5}\n", b"queues: {1: {schema: n long}}\n"),
            *(b"drop: 0x_\n", b"drop: 1:99:99\n", b"a: !!bool x\n", b"--- a\n--- b\n", b"a: \x00"),
        )
    ),
)


@OFTEN
@given(octets=YAML, options=st.lists(st.sampled_from(("--dry-run", "--drop")), unique=True))
@example(octets=b"queues: \xff", options=[])
@example(octets=b"queues: 2024-99-99", options=[])
@example(octets=b"[" * 3_000, options=[])
def test_whichever_yaml_a_declaration_is_it_is_carried_out_or_refused(
    octets: bytes, options: list[str], folder: str
) -> None:
    file = Path(folder, "hostile.yaml")
    file.write_bytes(octets)
    _said(_shell(folder), ["declare", str(file), *options])


@OFTEN
@given(octets=YAML)
def test_whichever_yaml_rules_are_they_are_read_or_refused(octets: bytes, folder: str) -> None:
    file = Path(folder, "rules.yaml")
    file.write_bytes(octets)
    with contextlib.suppress(InvalidInput):
        AccessRules.read(read_yaml(str(file)))
