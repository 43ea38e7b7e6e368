"""Handlers of scheduled jobs: a function by its name, or queries in a SQL file.

A SQL file contains queries over the view ``batch``, each below a line that says what to do with
its rows::

    -- reject: cancelled
    SELECT * FROM batch WHERE dep_time IS NULL;
    -- send: rebooking
    SELECT * FROM batch WHERE dep_delay > 60;
    -- append: /lake/gold/flights
    SELECT carrier, flight FROM batch WHERE dep_time IS NOT NULL;
    -- merge: gold.totals on carrier
    SELECT carrier, count(*) AS flights FROM batch GROUP BY carrier;

Messages that are not rejected are accepted. A merge updates and inserts all columns.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txnqueue.core.handlers import check_function
from txnqueue.core.settings import text_of
from txnqueue.errors import InvalidInput, QueueError
from txnqueue.messages.charges import Fault, fault_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from txnqueue.batch import Batch
    from txnqueue.manager import QueueManager
    from txnqueue.queue import Queue
    from txnqueue.transaction import Transaction

Handler = Callable[["Batch", "Transaction"], object]
VIEW = "batch"
_DIRECTIVE = re.compile(r"--\s*(send|reject|append|merge)\s*:\s*(.+?)\s*$", re.IGNORECASE)
_MERGE = re.compile(r"(\S+)\s+on\s+(.+)", re.IGNORECASE)
_END = re.compile(r";\s*--[^\n]*\Z")

_MISTAKES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    SyntaxError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True)
class SqlStep:
    """One query, and what becomes of its rows: ``verb`` says what, ``target`` where.

    ``line``: where it begins in the file.
    """

    verb: str
    target: str
    keys: tuple[str, ...]
    query: str
    line: int

    @property
    def directive(self) -> str:
        """The line above the query."""
        on = f" on {', '.join(self.keys)}" if self.keys else ""
        return f"-- {self.verb}: {self.target}{on}"

    @property
    def placed(self) -> str:
        """The query behind so many line feeds that Spark counts its lines as the file's."""
        return "\n" * (self.line - 1) + self.query


def load(name: str) -> Handler:
    """Find a handler by its name, ``module:function``.

    Raises:
        InvalidInput: There is no such module or function, or it cannot be called.
    """
    module_name, colon, function = name.partition(":")
    if not colon or not module_name or module_name.startswith(".") or not function:
        raise InvalidInput(f"handler {name!r}: write module:function.", name="handler")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a job's own folder, as python -m has it
    try:
        with _printing_on_stderr():
            found: Any = importlib.import_module(module_name)
    except SystemExit as error:
        raise InvalidInput(
            f"handler {name!r}: {module_name!r} calls sys.exit() as it is imported: let it do so "
            "only under if __name__ == '__main__'.",
            name="handler",
        ) from error
    except Exception as error:
        if not _is_mistake(error):  # say, a service that the module asks is away
            raise
        why = f"{module_name!r} cannot be imported: {text_of(error)}"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing in (module_name, module_name.partition(".")[0]):
            why = f"there is no module {module_name!r} on Python's path"
        raise InvalidInput(f"handler {name!r}: {why}.", name="handler") from error
    for part in function.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise InvalidInput(
            f"handler {name!r}: {module_name!r} has no function {function!r}.", name="handler"
        )
    check_function("handler", found)
    return _returning(found, name)


def _is_mistake(error: Exception) -> bool:
    """Return whether a module that cannot be imported has to be corrected.

    No message is read yet, so that no message can have caused what is raised.
    """
    by_a_service = isinstance(error, OSError)  # though it may be a ValueError as well
    return fault_of(error) is Fault.JOB or (isinstance(error, _MISTAKES) and not by_a_service)


@contextmanager
def _printing_on_stderr() -> Iterator[None]:
    """Print what a job prints on stderr: on stdout is the result of the command, and only that."""
    with _descriptor_on_stderr(), redirect_stdout(sys.stderr):
        yield


@contextmanager
def _descriptor_on_stderr() -> Iterator[None]:
    """Do the same with the descriptor of stdout, which the programs that a job starts inherit.

    A descriptor that was closed before Python began may be another file's by now.
    """
    try:
        kept = None if sys.stdout is None else os.dup(1)
    except OSError:  # closed since
        kept = None
    if kept is None:
        yield
        return
    try:
        with open(os.devnull if sys.stderr is None else 2, "wb", closefd=sys.stderr is None) as to:
            os.dup2(to.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _returning(handler: Handler, name: str) -> Handler:
    """Wrap a handler so that it cannot end the process with an exit code that tells of no run."""

    def handle(batch: Batch, tx: Transaction) -> object:
        try:
            with _printing_on_stderr():
                return handler(batch, tx)
        except SystemExit as error:
            raise InvalidInput(
                f"handler {name!r} called sys.exit({error.code!r}): let it return when it has "
                "handled its batch, or raise an error.",
                name="handler",
            ) from error

    return handle


class SqlJob:
    """A handler that runs the queries of a SQL file over each batch."""

    def __init__(self, steps: list[SqlStep], file: str = "the file") -> None:
        """Take the queries; ``check`` looks whether they can run."""
        self._steps = steps
        self._file = file

    def __call__(self, batch: Batch, tx: Transaction) -> None:
        """Run the queries over a batch, in their order, in its transaction."""
        frame = batch.df
        frame.createOrReplaceTempView(VIEW)
        for step in self._steps:
            rows = frame.sparkSession.sql(step.placed)
            if step.verb == "send":
                tx.queue(step.target).send(rows)
            elif step.verb == "reject":
                batch.reject(matching=rows, reason=step.target)
            elif step.verb == "append":
                tx.table(step.target).append(rows)
            else:
                tx.table(step.target).merge(rows, on=step.keys, update="*", insert="*")

    @property
    def changes_tables(self) -> bool:
        """Whether some of its rows go to tables."""
        return any(step.verb in ("append", "merge") for step in self._steps)

    def check(self, manager: QueueManager, queue: Queue, spark: SparkSession | None) -> None:
        """Look up what the queries need, and let Spark analyse them, before anything is claimed.

        Args:
            manager: Knows the queues and tables.
            queue: The queue whose messages they are about.
            spark: Analyses the queries; None for a store in memory, which has no SQL.

        Raises:
            InvalidInput: A queue, a table or a column is missing, or a query is none.
        """
        if spark is not None:
            from pyspark.sql.types import StructType

            from txnqueue.core.settings import MESSAGE_COLUMN
            from txnqueue.storage.journal.sessions import new_frame
            from txnqueue.storage.payload.schemas import MESSAGE_TYPE

            schema = StructType([*queue.schema.fields]).add(
                MESSAGE_COLUMN, MESSAGE_TYPE, nullable=False
            )
            new_frame(spark, [], schema).createOrReplaceTempView(VIEW)
        for step in self._steps:
            with _told(f"{self._file}, line {step.line}, below '{step.directive}'"):
                target = _columns_of(manager, step)
                if spark is not None:
                    _check_query(spark, step, target)


def _columns_of(manager: QueueManager, step: SqlStep) -> StructType | None:
    """Look up the columns of a query's target; None for rejected messages."""
    if step.verb == "reject":
        return None
    if step.verb == "send":
        return manager.queue(step.target).schema
    return manager.transaction().table(step.target).schema


def _check_query(spark: SparkSession, step: SqlStep, target: StructType | None) -> None:
    """Let Spark analyse a query, and compare its columns with those of its target."""
    from txnqueue.core.settings import MESSAGE_COLUMN
    from txnqueue.storage.payload.schemas import matched_columns

    # As a part of another one it can only be a query: no command that would run at once.
    rows = spark.sql(f"SELECT * FROM ({step.placed}\n)")
    if target is None:
        _ = rows.select(f"{MESSAGE_COLUMN}.id").schema  # over Connect it is analysed now
        return
    if step.verb != "merge":
        matched_columns(target, rows.schema)
        return
    names = [name for name in rows.schema.names if name != MESSAGE_COLUMN]
    there = {name.lower() for name in target.names}
    lacking = [name for name in step.keys if name not in names or name not in target.names]
    lacking += [name for name in names if name.lower() not in there]
    if lacking:
        raise InvalidInput(
            f"column {lacking[0]!r} must be in the rows and in the table: select or rename it in "
            "the handler's statement, or add it to the table."
        )


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Return the place in the file of what cannot be run."""
    try:
        yield
    except (QueueError, InvalidInput) as error:
        raise InvalidInput(f"{where}: {error}", name="sql") from error
    except Exception as error:
        if fault_of(error) is not Fault.JOB:
            raise
        first = str(error).strip().partition("\n")[0]
        raise InvalidInput(f"{where}: {first}", name="sql") from error


def read_sql(file: str) -> SqlJob:
    """Make a handler of a SQL file.

    Raises:
        InvalidInput: The file cannot be read, or says of a query not what becomes of its rows.
    """
    try:
        text = Path(file).read_text(encoding="utf-8-sig")  # Windows' editors begin with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{file!r} cannot be read: {error}", name="sql") from error
    return SqlJob(parse(text, file), file)


def parse(text: str, file: str = "the file") -> list[SqlStep]:
    """Read the queries of a SQL file, each with what becomes of its rows (pure).

    Raises:
        InvalidInput: There are none, or one has no directive or no text.
    """
    blocks: list[tuple[str, str, list[str]]] = []
    for number, line in enumerate(text.split("\n"), 1):  # nothing else ends a line of SQL
        found = _DIRECTIVE.match(line.strip())
        if found:
            blocks.append((found.group(1).lower(), found.group(2), [""] * number))
        elif blocks:
            blocks[-1][2].append(line)
        elif line.strip() and not line.strip().startswith("--"):
            raise InvalidInput(
                f"{file}, line {number}: put '-- send: queue', '-- reject: reason', '-- append: "
                "table' or '-- merge: table on column' before each query.",
                name="sql",
            )
    if not blocks:
        raise InvalidInput(f"{file} has no query below a line like '-- send: queue'.", name="sql")
    return [_step(verb, target, "\n".join(lines), file) for verb, target, lines in blocks]


def _without_end(query: str) -> str:
    """Remove the semicolon that ends a query, with a remark behind it (pure)."""
    ends = _END.search(query)
    if ends is not None and all(query[: ends.start()].count(quote) % 2 == 0 for quote in "'\"`"):
        query = query[: ends.start()]  # else it may stand in a text
    return query.removesuffix(";").strip()


def _step(verb: str, target: str, query: str, file: str) -> SqlStep:
    """Read one query, which stands behind as many line feeds as in the file."""
    line = query[: -len(query.lstrip()) or None].count("\n") + 1
    lines = query.strip().split("\n")
    while lines and (not lines[-1].strip() or lines[-1].strip().startswith("--")):
        lines.pop()  # remarks about what follows
    query = _without_end("\n".join(lines).strip())
    if not query:
        raise InvalidInput(f"{file}: there is no query below '-- {verb}: {target}'.", name="sql")
    if verb != "merge":
        return SqlStep(verb, target, (), query, line)
    found = _MERGE.fullmatch(target)
    if found is None:
        raise InvalidInput(f"{file}: write '-- merge: table on column, column'.", name="sql")
    keys = tuple(key.strip() for key in found.group(2).split(","))
    return SqlStep(verb, found.group(1), keys, query, line)
