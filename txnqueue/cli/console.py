"""What all commands share: options, exit codes, the store that they open.

``docs/cli.md`` describes the exit codes.
"""

from __future__ import annotations

import enum
import errno
import functools
import inspect
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from txnqueue import errors
from txnqueue.cli.presentation import (
    NotPrinted,
    Output,
    Printer,
    complain,
    in_the_shell,
    lines_of,
    remark,
)
from txnqueue.cli.signals import starting_java
from txnqueue.core.configuration import OPTIONS, Configuration
from txnqueue.core.markup import printable
from txnqueue.core.settings import check_root
from txnqueue.core.state.closure import is_closed
from txnqueue.platform.log_store import scheme_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txnqueue.admin.drop import ExchangeDropResult, QueueDropResult
    from txnqueue.manager import QueueManager
    from txnqueue.store_reader import StoreReader

logger = logging.getLogger("txnqueue")
FAILED, USAGE, PLATFORM, HANDLER_FAILED, TRY_AGAIN, IN_DOUBT, NOT_APPLIED = 1, 2, 3, 4, 75, 76, 77
WOULD_CHANGE, DEAD_LETTERS, TOO_FEW = 5, 6, 7
_CLUSTER = ("HADOOP_CONF_DIR", "DATABRICKS_RUNTIME_VERSION", "PYSPARK_GATEWAY_PORT")
"""What the environment has where Spark's default file system need not be the local disk."""
EPILOG = (
    "Exit codes: 0 done or nothing to do; 1 unexpected failure; 2 usage or invalid input; "
    "3 store, queue, configuration or platform, or no such message; 4 a handler failed: too often, "
    "by a mistake of the job, or with everything; 5 declare --dry-run found something to change; "
    "6 consumed, but some messages failed too often and are dead letters; "
    "7 depth --at-least: there are fewer; "
    "75 conflicts outlasted the retries: try again; 76 outcome not known: see txnqueue outcome "
    "and recover; 77 committed, but table changes are not applied yet: txnqueue recover, and do "
    "not run it again; 130 interrupted."
)
_EXIT_CODES: Sequence[tuple[type[errors.TxnQueueError], int]] = (
    (errors.HandlerFailed, HANDLER_FAILED),
    (errors.TransactionUnknown, IN_DOUBT),
    (errors.TransactionIdReused, USAGE),
    (errors.TransactionMismatch, USAGE),
    (errors.TransactionNotFound, USAGE),
    (errors.TransactionNotPrepared, USAGE),
    (errors.DecidedByDatabase, USAGE),
    (errors.HeuristicNotFound, USAGE),
    (errors.SettlementPending, TRY_AGAIN),
    (errors.DatabaseUnavailable, PLATFORM),
    (errors.ChangeNotFound, USAGE),
    (errors.TransactionFinished, USAGE),
    (errors.NotPermitted, USAGE),
    (errors.ChangeWaiting, NOT_APPLIED),
    (errors.TransactionAborted, TRY_AGAIN),
    (errors.Busy, TRY_AGAIN),
    (errors.StoreBusy, TRY_AGAIN),
    (errors.LeaseLost, TRY_AGAIN),
    (errors.InvalidInput, USAGE),
    (errors.StoreError, PLATFORM),
    (errors.QueueError, PLATFORM),
    (errors.PlatformMissing, PLATFORM),
    (errors.PayloadRemoved, PLATFORM),
    (errors.NotErasable, TRY_AGAIN),
    (errors.HistoryRemoved, PLATFORM),
)


def exit_code(error: BaseException) -> int:
    """Return which exit code an error is: the first class of the list that it belongs to.

    A transaction that was aborted because a queue is being dropped is not worth another try.
    """
    if is_closed(error.__cause__):
        return PLATFORM
    if isinstance(error, errors.InvalidInput) and error.source is not None:  # it is configured
        return PLATFORM
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), FAILED)


class Engine(str, enum.Enum):
    """What reads the store for a command that only looks."""

    AUTO = "auto"
    FILES = "files"
    SPARK = "spark"


@dataclass(frozen=True, slots=True)
class Options:
    """The options that all commands have."""

    root: str | None = None
    output: Output = Output.TABLE
    actor: str | None = None
    consumer: str | None = None
    run_id: str | None = None
    verbose: bool = False
    short_lived: bool = True
    engine: Engine = Engine.AUTO


class _PrintableLog(logging.Formatter):
    """Writes records without control characters: an error may quote messages."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record; the stacks of Java have tabs."""
        return printable(super().format(record).expandtabs())


ManagerFactory = Callable[[Options], "tuple[QueueManager, SparkSession | None]"]
"""Opens the store of a command; tests hand in another one as typer's context object."""


def open_store(options: Options) -> tuple[QueueManager, SparkSession]:
    """Open the store at ``--root``, on the session that runs already or on one of our own."""
    root = _root_of(options, running_session)
    spark = start_spark(short_lived=options.short_lived, verbose=options.verbose)
    from txnqueue.manager import QueueManager

    manager = QueueManager(
        spark,
        root,
        actor=options.actor,
        run_id=options.run_id,
        consumer=options.consumer,
    )
    return manager, spark


def _root_of(options: Options, session: Callable[[], SparkSession | None]) -> str:
    """Find the store as a manager does, without starting a session only for this.

    What a session of our own would be configured with does not count: commands that need none
    would look at another store.

    Args:
        options: What was said to the command.
        session: Finds the session whose configuration counts before the environment.

    Raises:
        InvalidInput: It is given nowhere, or is no root.
    """
    given = None if options.root is None else check_root(options.root)
    spark = None if given is not None else session()
    configured = Configuration(
        lambda key: None if spark is None else spark.conf.get(key, None), os.environ
    )
    root = configured.value("root", given).value
    if root is None:
        raise errors.InvalidInput(
            "The store is not given: use --root, set the variable TXNQUEUE_ROOT, or set "
            "spark.txnqueue.root in a Spark session that runs already."
        )
    return check_root(root)


def active_session() -> SparkSession | None:
    """Return the session that runs in this process; PySpark is imported only if it is already."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def running_session() -> SparkSession | None:
    """Return the session of the platform or of spark-submit; None if there is none."""
    active = active_session()
    if active is None and _is_submitted():  # spark-submit has started the JVM
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate()
    return active


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _may_be_elsewhere() -> bool:
    """Return whether a path may mean another file system to Spark: on a cluster, say HDFS."""
    return any(name in os.environ for name in _CLUSTER)


def _is_forbidden(error: errors.StoreError, root: str) -> bool:
    """Return whether this user must not read a file on this disk, which Spark must not either."""
    cause = error.__cause__
    denied = isinstance(cause, PermissionError) and cause.errno == errno.EACCES
    return denied and scheme_of(root) in ("", "file")


def start_spark(*, short_lived: bool, verbose: bool = False) -> SparkSession:
    """Take the session of the platform or of spark-submit, or else start a local one.

    That one is silent unless it is to be verbose: what it would log comes as an exception, too.
    """
    from txnqueue.platform.local_spark import local_spark

    try:
        import pyspark.sql  # noqa: F401 - only whether it is there
    except ModuleNotFoundError as error:
        raise errors.PlatformMissing() from error
    running = running_session()
    if running is not None:
        return running
    settings = {} if verbose else {"spark.log.level": "OFF"}
    with starting_java():
        return local_spark("txnqueue", settings=settings, short_lived=short_lived)


Dropped = TypeVar("Dropped", "QueueDropResult", "ExchangeDropResult")


class OpenStore:
    """One run of one command: its options, where it prints, and its store."""

    def __init__(self, options: Options, factory: ManagerFactory | None = None) -> None:
        """Open nothing yet.

        Args:
            options: What was said to the command.
            factory: Opens the store, also to look at it; None: as the options say.
        """
        self.options = options
        self.printer = Printer(options.output)
        self._given = factory
        self._factory = factory or open_store
        self._reader: StoreReader | None = None
        self._opened: tuple[QueueManager, SparkSession | None] | None = None

    def __enter__(self) -> OpenStore:
        """Return the run, whose manager is closed at its end."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the manager, which records that the last commit's changes of tables are applied.

        A command that is interrupted ends at once. What a command did is done all the same if this
        fails: its exit code stays.
        """
        if self._opened is None or (kind is not None and not issubclass(kind, Exception)):
            return
        try:
            self._opened[0].close()
        except Exception as error:
            logger.warning("not closed error=%s", error)

    @property
    def manager(self) -> QueueManager:
        """The manager; the first use starts Spark."""
        return self._open()[0]

    @property
    def looking(self) -> QueueManager | StoreReader:
        """What the store is looked at by: its files, or the manager where that needs Spark."""
        if self._reader is None and self._looks_at_files():
            from txnqueue.store_reader import look

            root = _root_of(self.options, active_session)
            try:
                self._reader = look(root)
            except (errors.FilesNotReadable, errors.StoreNotFound) as error:
                surely = isinstance(error, errors.StoreNotFound) or _is_forbidden(error, root)
                if self.options.engine is Engine.FILES or (surely and not _may_be_elsewhere()):
                    raise
                complain(f"{error} Trying with Spark.")
        return self._reader or self.manager

    def _looks_at_files(self) -> bool:
        """Return whether the files are enough, as far as the options tell."""
        if self._given is not None or self._opened is not None:
            return False
        engine = self.options.engine
        if engine is not Engine.FILES and self._root_needs_spark():
            return False
        root = _root_of(self.options, active_session)
        return engine is Engine.FILES or (engine is Engine.AUTO and "/" in root)

    def _root_needs_spark(self) -> bool:
        """Return whether only the session of spark-submit, which does not run yet, may know it."""
        given = self.options.root is not None or OPTIONS["root"].variable in os.environ
        return _is_submitted() and not given and active_session() is None

    @property
    def spark(self) -> SparkSession | None:
        """The session that files are read with; None for a store in memory."""
        return self._open()[1]

    def _open(self) -> tuple[QueueManager, SparkSession | None]:
        if self._opened is None:
            self._opened = self._factory(self.options)
        return self._opened


@contextmanager
def exiting(*, verbose: bool) -> Iterator[None]:
    """Turn errors into one line on stderr and an exit code."""
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except KeyboardInterrupt as error:
        complain(f"interrupted: {error}" if str(error) else "interrupted")
        raise
    except Exception as error:
        if verbose:
            remark(printable(traceback.format_exc().expandtabs()))  # Java's stacks have tabs
        if isinstance(error, (errors.TxnQueueError, NotPrinted)):
            complain(in_the_shell(str(error)))
        else:
            first = next(iter(lines_of(error)), "")
            hint = "" if verbose else " (--verbose shows where)"
            complain(f"unexpected {type(error).__name__}: {first}{hint}")
        raise typer.Exit(exit_code(error)) from error


@contextmanager
def printed(printer: Printer) -> Iterator[None]:
    """Have what a command printed on its way when it ends; its own exit code counts more."""
    code = FAILED
    try:
        yield
        code = 0
    except typer.Exit as ending:
        code = ending.exit_code
        raise
    finally:
        try:
            printer.close()
        except NotPrinted as error:
            complain(str(error) if code else f"{error} What the command was to do is done.")
            if not code:
                raise typer.Exit(FAILED) from error


_COMMON = "Common options"
_Root = Annotated[
    str | None,
    typer.Option(
        help="The store: a path if it has a '/', otherwise a catalog schema. Default: "
        "spark.txnqueue.root of a running session, then the variable TXNQUEUE_ROOT.",
        rich_help_panel=_COMMON,
    ),
]
_Output = Annotated[
    Output,
    typer.Option(help="json: one object per line, nothing else.", rich_help_panel=_COMMON),
]
_Actor = Annotated[
    str | None,
    typer.Option(help="The actor, as recorded in the history.", rich_help_panel=_COMMON),
]
_Consumer = Annotated[
    str | None,
    typer.Option(
        help="The consumer that holds the leases; a later run with this name takes them over at "
        "once.",
        rich_help_panel=_COMMON,
    ),
]
_RunId = Annotated[
    str | None,
    typer.Option(help="The job run to which this belongs.", rich_help_panel=_COMMON),
]
_Verbose = Annotated[
    bool,
    typer.Option("--verbose", help="Log more, and show tracebacks.", rich_help_panel=_COMMON),
]

_Engine = Annotated[
    Engine,
    typer.Option(
        help="What reads the store: its files without Spark, or Spark; auto: the files unless the "
        "store or the question needs Spark.",
        rich_help_panel=_COMMON,
    ),
]


def _common(
    root: _Root = None,
    output: _Output = Output.TABLE,
    actor: _Actor = None,
    consumer: _Consumer = None,
    run_id: _RunId = None,
    *,
    engine: _Engine = Engine.AUTO,
    verbose: _Verbose = False,
) -> Options:
    return Options(root, output, actor, consumer, run_id, verbose, engine=engine)


app = typer.Typer(
    name="txnqueue",
    help="A transactional message queue inside the lakehouse.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def command(
    name: str,
    *,
    group: typer.Typer | None = None,
    short_lived: bool = True,
    looks: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function a command: it gets an ``OpenStore``, its options, and all common ones.

    Args:
        name: What it is called.
        group: The group that it is in; none when left out.
        short_lived: It ends soon, so that a Spark of its own should start quickly.
        looks: It changes nothing, and mostly needs no Spark.
    """

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
        taken = {parameter.name for parameter in own}  # a command may mean something else by it
        taken |= set() if looks else {"engine"}
        common = inspect.signature(_common, eval_str=True).parameters
        shared = {name: one for name, one in common.items() if name not in taken}

        @functools.wraps(body)
        def run(ctx: typer.Context, **given: object) -> None:
            options = _common(**{key: cast(Any, given.pop(key)) for key in shared})
            options = replace(options, short_lived=short_lived)
            level = logging.DEBUG if options.verbose else logging.WARNING
            log = logging.StreamHandler(sys.stderr)
            log.setFormatter(_PrintableLog(logging.BASIC_FORMAT))
            logging.basicConfig(handlers=[log], level=logging.WARNING)
            logging.getLogger("txnqueue").setLevel(level)
            if not options.verbose:
                warnings.filterwarnings("ignore", module="pyspark")
            store = OpenStore(options, ctx.obj)
            with printed(store.printer), exiting(verbose=options.verbose), store:
                body(store, **given)

        context = inspect.Parameter(
            "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
        )
        parameters = [
            context,
            *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in [*own, *shared.values()]),
        ]
        setattr(run, "__signature__", inspect.Signature(parameters))  # noqa: B010 - mypy knows no such attribute
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return (group or app).command(name, epilog=EPILOG)(run)

    return decorate


def check_sure(what: str, *, sure: bool) -> None:
    """Check that the user confirmed that something is deleted.

    Raises:
        BadParameter: ``--yes`` was not given.
    """
    if not sure:
        raise typer.BadParameter(f"{what} would be deleted: confirm with --yes.")


def drop_surely(
    session: OpenStore,
    what: str,
    drop: Callable[[], Dropped],
    told: Callable[[Dropped], str],
    *,
    sure: bool,
) -> None:
    """Drop something after the user confirmed it, and say how far that has come."""
    check_sure(what, sure=sure)
    result = drop()
    session.printer.fact(asdict(result), told(result))
    if not result.dropped:
        raise typer.Exit(TRY_AGAIN)
