"""The meaning of exceptions of Spark and Delta for the library's statements."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

from txnqueue.core.settings import text_of
from txnqueue.errors import InvalidInput, StoreCorrupt, StoreError, TxnQueueError
from txnqueue.storage.journal import AppendConflict

_DAMAGED_LOG = (
    "DELTA_CHECKPOINT_SNAPSHOT_MISMATCH",
    "DELTA_MISSING_COMMIT_INFO",
    "DELTA_MISSING_COMMIT_TIMESTAMP",
    "DELTA_MISSING_PART_FILES",
    "DELTA_STATE_RECOVER_ERROR",
    "DELTA_TRUNCATED_TRANSACTION_LOG",
    "DELTA_TXN_LOG_FAILED_INTEGRITY",
    "DELTA_VERSIONS_NOT_CONTIGUOUS",
    "INVALID_JSON_DATA_TYPE",  # the schema that it names
)
_MISSING_FILE = "FAILED_READ_FILE.FILE_NOT_EXIST"
_DENIED_FILE = re.compile(r"FileNotFoundException: ([^\n]*) \(Permission denied\)")
"""The cause of such an error if the file is there, but not for this user."""
_DENIED_FOLDER = re.compile(r"AccessDeniedException: ([^\n]*): Permission denied")
"""What Hadoop says of a folder on a disk that this user must not list."""
_DAMAGED_FILE = (
    "CANNOT_READ_FILE_FOOTER",
    "ChecksumException",
    _MISSING_FILE,
    "JsonParseException",
    "MALFORMED_RECORD_IN_PARSING",
    "ParquetDecodingException",
    'because "partitionValues',  # an added file has a partition column of an unknown name
    "could not verify page checksum",
    "is not a Parquet file",
    "org.apache.parquet.format.",
)
"""Marks in the trace of an error that is caused by a file's contents, not by its storage."""
_READING_PARQUET = re.compile(
    r"java\.(?:io|lang|nio)\.\w+Exception[^\n]*(?:\n\s+at java\.[^\n]*)*"
    r"\n\s+at org\.apache\.parquet\.(?!hadoop\.util\.)"  # there are the streams of storages
)
"""The first cause of such an error if Parquet itself met it, in whatever way bytes can be wrong."""
_READING_FILE = re.compile(r"\[FAILED_READ_FILE[A-Z_.]*\] [^\n]*?reading file ([^\n]*)")
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\] (?:(?!\n\s+at ).)*?SQLSTATE: (\w\w)\w{3}", re.DOTALL)
"""Spark's own message in a trace, and the class of its SQLSTATE."""
_OF_USERS = ("0A", "21", "22", "42")
"""What is not supported, numbers of rows, values, and names or syntax."""
_ABSENT = ("NOT_FOUND", "DELTA_MISSING", "DOES_NOT_EXIST", "doesn't exist", "not a Delta table")
_MISNAMED = (
    re.compile(r"No FileSystem for scheme \"[^\n\"]*\""),
    re.compile(r"Class org\.apache\.hadoop\.fs\.\S+ not found"),
    re.compile(r"\[DELTA_FILE_NOT_FOUND\][^\n]*@v?\d+(?=\s|$)"),  # Delta's way to name a version
    re.compile(r"\[INVALID_ATTRIBUTE_NAME_SYNTAX\][^\n]*"),
    re.compile(r"\[REQUIRES_SINGLE_PART_NAMESPACE\][^\n]*"),
)
"""What Spark says of a table's name that leads nowhere."""
_CONFLICT = re.compile(r"DELTA_(?:CONCURRENT_|METADATA_CHANGED|PROTOCOL_CHANGED)")
_RIVALRY = re.compile(
    r"DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION|DELTA_MISSING_DELTA_TABLE"
    r"|TABLE_OR_VIEW_ALREADY_EXISTS"
)
_SESSION_ENDED = re.compile(
    r"\[(?:INVALID_HANDLE\.SESSION_(?:CHANGED|CLOSED|NOT_FOUND)|NO_ACTIVE_SESSION)\]"
    r"|incorrect server side session identifier"
)
"""What a Spark Connect server, or its client, says of a session that there is no more."""
_NO_OUTCOME = re.compile(r"\[(?:INVALID_HANDLE|INVALID_CURSOR)\.|\[RESPONSE_ALREADY_RECEIVED\]")
"""What either says of a statement whose results it does not have."""
_NOT_LITE = "DELTA_CANNOT_VACUUM_LITE"
_NO_HOST = re.compile(r"UnknownHostException: [^\n]*")
_TOO_MANY_PARTS = "DELTA_PARSING_ILLEGAL_TABLE_NAME"


@contextmanager
def conflicts() -> Iterator[None]:
    """Distinguish conflicts from other errors.

    Raises:
        AppendConflict: Delta reports that another commit won.
    """
    try:
        yield
    except Exception as error:
        if _is_conflict(error):
            raise AppendConflict(str(error)) from error
        raise


@dataclass(frozen=True, slots=True)
class UsersTable:
    """A table that is not of the store, and that a statement reads.

    Attributes:
        name: The table as the user named it.
        beside: What the paths of the store's files contain that the statement reads, too; empty if
            there are none.
    """

    name: str
    beside: str = ""


@contextmanager
def damage(table: UsersTable | None = None) -> Iterator[None]:
    """Distinguish tables with damaged files from those that cannot be reached.

    Args:
        table: The user's table that is read; None if only tables of the store are.

    Raises:
        StoreCorrupt: Delta or Spark read a file of the store that is not as it was written.
        StoreError: This user must not read a file or folder of the store.
        InvalidInput: The same of the user's table, with which the store has nothing to do.
    """
    try:
        yield
    except TxnQueueError:  # already translated; it may quote rows, which say anything
        raise
    except Exception as error:
        said = str(error)
        unreadable: TxnQueueError | None
        if table is None or _is_below(table.beside, said):
            unreadable = _unreadable(said)
        else:
            unreadable = _damaged(table, said)
        if unreadable is not None:
            raise unreadable from error
        raise


def is_file_missing(error: BaseException) -> bool:
    """Return whether a data file was not there, which a newer version may not need."""
    said = str(error)
    return _MISSING_FILE in said and not _DENIED_FILE.search(said)


def met_by_handler(folder: str, error: BaseException) -> StoreError | None:
    """Return the error for a file of the store that a handler met; None if it met something else.

    Only Spark's errors tell of files: the text of others may be that of a message.
    """
    if isinstance(error, StoreCorrupt):  # the library has read it
        return error
    return damage_below(folder, error) if _is_of(error, "pyspark", "py4j") else None


def damage_below(folder: str, error: BaseException) -> StoreError | None:
    """Return the error for a file of the store that a user's SQL met; None if it met another error.

    The SQL may read the user's own files, and fail in any way by itself.

    Args:
        folder: What the paths of the store's files contain.
        error: The error of the query with the user's SQL.

    Returns:
        ``StoreCorrupt`` for a damaged file, ``StoreError`` for one that this user must not read.
    """
    said = text_of(error)
    return _unreadable(said) if _is_below(folder, said) else None


def _is_below(folder: str, said: str) -> bool:
    """Return whether an error is about a file of a folder; of a log, Spark names no file."""
    file = _READING_FILE.search(said)
    return bool(folder) and folder in unquote(said if file is None else file[1])


def objection(error: BaseException) -> str | None:
    """Return what Spark objects to in a user's SQL or its data; None if the error is another one.

    Python knows some of these errors only as errors of Java; their SQLSTATE tells.
    """
    found = _CONDITION.search(str(error))
    return spark_message(found[0]) if found and found[1] in _OF_USERS else None


def _unreadable(said: str) -> StoreError | None:
    """Return the error for a file that cannot be read as it was written; None for any other."""
    denied = _denied(said)
    if denied is not None:
        return StoreError(f"{denied!r} cannot be read: let this user read it.")
    if not _is_damage(said):
        return None
    return StoreCorrupt(
        f"A file of the store is damaged: {spark_message(said)} Stop writing to the store, keep it "
        "as it is, and put the file back from a copy."
    )


def _damaged(table: UsersTable, said: str) -> InvalidInput | None:
    """Return the same for a file of a user's table, by which the store is as good as before."""
    denied, why = _denied(said), None
    if denied is not None:
        why = f"cannot be read: let this user read {denied!r}."
    elif _is_damage(said):
        why = (
            f"is damaged: {spark_message(said)} Put its file back from a copy, or use another "
            "table. The store is not affected."
        )
    if why is None:
        return None
    return InvalidInput(f"The table {table.name!r} {why}", name=table.name, table=table.name)


def _denied(said: str) -> str | None:
    """Return the file or folder that this user must not read; None if an error is another one."""
    found = _DENIED_FOLDER.search(said)
    if found is None and _MISSING_FILE in said:  # Spark takes one for the other
        found = _DENIED_FILE.search(said)
    return None if found is None else found[1]


def _is_damage(said: str) -> bool:
    signs = (*_DAMAGED_LOG, *_DAMAGED_FILE)
    first_cause = said.rpartition("Caused by: ")[2]
    return any(sign in said for sign in signs) or bool(_READING_PARQUET.match(first_cause))


def spark_message(said: str) -> str:
    """Find Spark's own message in a Java trace."""
    found = re.search(r"\[[A-Z][A-Z_.]+\] [^\n]*", said)
    return found[0].strip() if found else said.strip().partition("\n")[0]


def is_absent(error: BaseException) -> bool:
    """Return whether an error means that a table or its schema does not exist."""
    from pyspark.errors import AnalysisException

    return isinstance(error, AnalysisException) and any(sign in str(error) for sign in _ABSENT)


def misnamed(error: BaseException, named: str, remedy: str, name: str) -> TxnQueueError | None:
    """Return the error for the name of a table that leads nowhere; None if it does not say so.

    A host that is not found may be found again: that is no mistake of the caller's for certain.

    Args:
        error: The error of a statement that only describes or reads the table.
        named: The argument with its value.
        remedy: What to give instead.
        name: The name of the argument.
    """
    host = _NO_HOST.search(str(error))
    if host is not None:
        return StoreError(
            f"{named}: {host[0].strip()}. Check the host's name; if it is right, try again."
        )
    reason = _leads_nowhere(error)
    return None if reason is None else InvalidInput(f"{named}: {reason}. {remedy}", name=name)


def _leads_nowhere(error: BaseException) -> str | None:
    """Return why a name can be that of no table; None if an error says something else."""
    from pyspark.errors import ParseException, UnsupportedOperationException

    said = str(error)
    if _TOO_MANY_PARTS in said:
        return "a name has at most three parts, catalog.schema.table"
    if isinstance(error, UnsupportedOperationException):
        return "its file system cannot hold tables"
    if isinstance(error, ParseException):
        return spark_message(said)
    found = next((match for sign in _MISNAMED if (match := sign.search(said))), None)
    return found and found[0].strip()


def surely_not_begun(error: BaseException, analyse: Callable[[], object]) -> bool:
    """Return whether a statement certainly failed before it did anything.

    Spark analyses a statement as a whole before it begins. A parse error is certain; other errors
    of the analysis can also occur later, and count only if they occur again immediately.

    Args:
        error: The error of the statement.
        analyse: Lets Spark analyse a part of the statement, without an effect.
    """
    from pyspark.errors import AnalysisException, ParseException

    if isinstance(error, ParseException):
        return True
    if not isinstance(error, AnalysisException):
        return False
    try:
        analyse()
    except AnalysisException:
        return True
    except Exception:  # so nothing is certain
        return False
    return False


def is_altered(error: BaseException) -> bool:
    """Return whether a table was altered between the analysis of a statement and its start.

    Only of the table that the statement changes is that a conflict: Spark says the same of a
    table that a user's DataFrame reads, and then the DataFrame must be made anew.
    """
    return "DELTA_SCHEMA_CHANGE_SINCE_ANALYSIS" in str(error)


def is_session_ended(error: BaseException) -> bool:
    """Return whether a Spark Connect server does not know the session of a statement any more.

    The statement was refused, or was carried out, at least in part, before the session ended.
    """
    return _is_of(error, "pyspark", "grpc") and bool(_SESSION_ENDED.search(str(error)))


def is_unanswered(error: BaseException) -> bool:
    """Return whether a statement may still be at work, since nothing came back of it.

    An error of Spark or Delta is an answer: the statement has ended.
    """
    if isinstance(error, ConnectionError) or is_session_ended(error) or _is_of(error, "grpc"):
        return True
    kind, said = type(error).__name__, str(error)
    if _is_of(error, "py4j"):  # an answer of Java has its class, or its trace
        return kind in ("Py4JError", "Py4JNetworkError") and "Trace:" not in said
    return _is_of(error, "pyspark") and (
        kind in ("SparkConnectException", "SparkConnectGrpcException")
        or bool(_NO_OUTCOME.search(said))
    )


def needs_listing(error: BaseException) -> bool:
    """Return whether a VACUUM by Delta's log is refused because only a folder's listing tells all.

    Any other error may also come of an attempt that is still at work.
    """
    from pyspark.errors import ParseException

    # A Delta that does not know LITE does not parse it.
    return _NOT_LITE in str(error) or isinstance(error, ParseException)


def _is_of(error: BaseException, *packages: str) -> bool:
    """Return whether the class of an error, or one that it is derived from, is of a package."""
    kinds = type(error).__mro__
    return any(kind.__module__.partition(".")[0] in packages for kind in kinds)


def is_rivalry(error: BaseException) -> bool:
    """Return whether a statement met another driver that makes or alters the same table."""
    if isinstance(error, TxnQueueError):
        return False
    return isinstance(error, AppendConflict) or bool(_RIVALRY.search(str(error)))


def _is_conflict(error: BaseException) -> bool:
    """Return whether Delta reports that another commit won.

    Delta's conflict exceptions have no base class of their own in Python, and are wrapped if the
    commit ran inside something else, so the error class is checked too.
    """
    from delta import exceptions

    known = (
        exceptions.ConcurrentAppendException,
        exceptions.ConcurrentDeleteDeleteException,
        exceptions.ConcurrentDeleteReadException,
        exceptions.ConcurrentTransactionException,
        exceptions.ConcurrentWriteException,
        exceptions.MetadataChangedException,
        exceptions.ProtocolChangedException,
    )
    if isinstance(error, TxnQueueError):  # it may name the conflict that it comes from
        return False
    return isinstance(error, known) or bool(_CONFLICT.search(str(error)))
