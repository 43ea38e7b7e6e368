"""What an error of Spark means, by its trace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException, ParseException, UnsupportedOperationException

from txnqueue.client.past_store import PastPayload
from txnqueue.errors import InvalidInput, StoreCorrupt, StoreError
from txnqueue.messages.charges import Fault, fault_of
from txnqueue.storage.journal.exceptions import (
    UsersTable,
    damage,
    damage_below,
    is_file_missing,
    met_by_handler,
    misnamed,
)
from txnqueue.storage.payload import evaluating

READ = "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:/lake/a.parquet. "
SPARK = f"org.apache.spark.SparkException: {READ}\n\tat org.apache.spark.Some.method(Some.scala:1)"
PARQUET = """
{cause}
	at java.base/java.net.URLClassLoader.findClass(URLClassLoader.java:445)
	at java.base/java.lang.ClassLoader.loadClass(ClassLoader.java:592)
	at org.apache.parquet.hadoop.CodecFactory.getCodec(CodecFactory.java:302)
	... 36 more
"""
STORAGE = """
{cause}
	at java.base/java.io.DataInputStream.readFully(DataInputStream.java:210)
	at org.apache.hadoop.fs.s3a.S3AInputStream.read(S3AInputStream.java:505)
	at org.apache.parquet.hadoop.ParquetFileReader.readFooter(ParquetFileReader.java:609)
"""
STREAM = """
{cause}
	at org.apache.parquet.hadoop.util.H2SeekableInputStream.readFully(H2SeekableInputStream.java:9)
	at org.apache.parquet.hadoop.ParquetFileReader.readFooter(ParquetFileReader.java:609)
"""
CAUSES = [
    "java.lang.RuntimeException: footer is too large: 2887123624to be read",
    "java.lang.ClassNotFoundException: com.hadoop.compression.lzo.LzoCodec",
    "java.io.EOFException",
]


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize(
    ("trace", "expected"), [(PARQUET, StoreCorrupt), (STORAGE, OSError), (STREAM, OSError)]
)
def test_what_parquet_makes_of_bytes_is_damage_and_what_the_storage_says_is_not(
    cause: str, trace: str, expected: type[Exception]
) -> None:
    said = f"An error occurred.\n: {SPARK}\nCaused by: {trace.strip().format(cause=cause)}\n"
    with pytest.raises(expected) as caught, damage():
        raise OSError(said)
    assert READ.strip() in str(caught.value)


def test_a_first_cause_that_is_the_storages_is_one_though_parquet_passes_it_on() -> None:
    passed_on = PARQUET.strip().format(cause="java.io.IOException: can not read class PageHeader")
    first = STORAGE.strip().format(cause="java.net.SocketTimeoutException: Read timed out")
    with pytest.raises(OSError, match="Read timed out"), damage():
        raise OSError(f": {SPARK}\nCaused by: {passed_on}\nCaused by: {first}\n")


# ------------------------------------------------------------- a user's predicate on the payload

JAVA = "An error occurred while calling o9.getResult.\n: org.apache.spark.SparkException: "
AT = "\n\tat org.apache.spark.Some.method(Some.scala:1)"
TORN = f"Caused by: {PARQUET.strip().format(cause=CAUSES[2])}\n"


def reading(file: str, cause: str = TORN, kind: str = "NO_HINT") -> str:
    """What Spark says of a file, within an error of Java that Python does not know."""
    said = (
        f"[FAILED_READ_FILE.{kind}] Encountered error while reading file {file}.  SQLSTATE: KD001"
    )
    return f"{JAVA}Exception thrown in awaitResult:{AT}\nCaused by: {said}{AT}\n{cause}"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (reading("file:/my lake/payload/q-1/a.parquet"), StoreCorrupt),
        (reading("file:///my%20lake/payload/q-1/a.parquet"), StoreCorrupt),
        (reading("file:/my lake/payload/q-1/a.parquet", "", "FILE_NOT_EXIST"), StoreCorrupt),
        (reading("file:/my lake/other/a.parquet"), OSError),  # the predicate reads it
        (reading("s3a://away/a", f"Caused by: {STORAGE.format(cause=CAUSES[2]).strip()}"), OSError),
        (f"{JAVA}[SCALAR_SUBQUERY_TOO_MANY_ROWS] two rows. SQLSTATE: 21000{AT}", InvalidInput),
        (
            f"{JAVA}Exception thrown in awaitResult:{AT}\nCaused by: SparkException: "
            f"[MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION] [null].\nParse Mode: FAILFAST.\n"
            f"SQLSTATE: 22023{AT}",
            InvalidInput,
        ),
        (f"{JAVA}[INTERNAL_ERROR] a bug. SQLSTATE: XX000{AT}", OSError),
        ("the storage is away", OSError),
    ],
)
def test_a_damaged_file_that_a_predicate_meets_is_told_from_a_predicate_that_fails(
    said: str, expected: type[Exception]
) -> None:
    """Of either, the caller got an error of Java."""
    with pytest.raises(expected) as caught, evaluating("where", "n = 1", "/my lake/payload/"):
        raise OSError(said)
    assert "awaitResult" not in str(caught.value) or expected is OSError
    if expected is InvalidInput:
        assert str(caught.value).startswith("where='n = 1' cannot be evaluated: [")


DENIED_FILE = (
    "Caused by: java.io.FileNotFoundException: /my lake/payload/a.parquet (Permission denied)"
)
DENIED_FOLDER = f"{JAVA}java.nio.file.AccessDeniedException: /my lake/a: Permission denied{AT}"


@pytest.mark.parametrize(
    "said",
    [reading("file:/my lake/payload/a.parquet", DENIED_FILE, "FILE_NOT_EXIST"), DENIED_FOLDER],
)
def test_what_this_user_must_not_read_is_not_called_damaged(said: str) -> None:
    """Spark says of such a file that it does not exist."""
    with pytest.raises(StoreError, match="let this user read it") as caught, damage():
        raise OSError(said)
    assert type(caught.value) is StoreError and "'/my lake/" in str(caught.value)
    assert not is_file_missing(OSError(said)), "a newer version names it too"


def test_a_file_that_a_predicate_must_not_read_is_named() -> None:
    said = reading("file:/my lake/payload/a.parquet", DENIED_FILE, "FILE_NOT_EXIST")
    found = damage_below("/my lake/payload/", OSError(said))
    assert type(found) is StoreError and "a.parquet" in str(found)


def test_without_files_there_is_no_damage() -> None:
    assert damage_below("", OSError(reading("file:/my lake/payload/q-1/a.parquet"))) is None


# ---------------------------------------------------------------------------- a user's table

LOG = "[DELTA_TRUNCATED_TRANSACTION_LOG] {}: Unable to reconstruct state at version 7"
TOTALS = UsersTable("totals", beside="/my lake/payload/")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (reading("file:/my lake/totals/a.parquet"), "is damaged: [FAILED_READ_FILE"),
        (f"{JAVA}{LOG.format('file:/my lake/totals')}{AT}", "is damaged: [DELTA_TRUNCATED"),
        (reading("file:/t/a", DENIED_FILE, "FILE_NOT_EXIST"), "cannot be read: let this user"),
        (DENIED_FOLDER, "cannot be read: let this user read '/my lake/a'"),
    ],
)
def test_a_damaged_table_of_the_users_is_no_damage_of_the_store(said: str, told: str) -> None:
    """It said to stop writing to the store, and ended every drain that met it."""
    with pytest.raises(InvalidInput) as caught, damage(TOTALS):
        raise OSError(said)
    assert str(caught.value).startswith(f"The table 'totals' {told}")
    assert caught.value.table == caught.value.name == "totals"
    assert fault_of(caught.value) is Fault.JOB
    assert met_by_handler(TOTALS.beside, caught.value) is None


@pytest.mark.parametrize(
    "said",
    [
        reading("file:/my%20lake/payload/x-1/a.parquet"),
        f"{JAVA}{LOG.format('file:/my lake/payload/x-1')}{AT}",
    ],
)
def test_damage_of_the_rows_that_a_table_is_to_take_is_one_of_the_store(said: str) -> None:
    with pytest.raises(StoreCorrupt), damage(TOTALS):
        raise OSError(said)


@pytest.mark.parametrize("table", [None, TOTALS])
def test_an_error_of_the_librarys_own_is_no_damage_whatever_rows_it_quotes(table: Any) -> None:
    quoted = InvalidInput("The rows to merge contain {'k': 'is not a Parquet file'} 2 times")
    with pytest.raises(InvalidInput) as caught, damage(table):
        raise quoted
    assert caught.value is quoted
    with pytest.raises(OSError, match="away"), damage(table):
        raise OSError("the storage is away")


# ----------------------------------------------------------------------------- names of tables

ILLEGAL = "[INTERNAL_ERROR] Cannot find main error class 'DELTA_PARSING_ILLEGAL_TABLE_NAME'"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(f"{JAVA}{ILLEGAL} SQLSTATE: XX000{AT}"), "at most three parts"),
        (OSError(f'{JAVA}No FileSystem for scheme "s3x"{AT}'), 'No FileSystem for scheme "s3x"'),
        (
            OSError(f"{JAVA}Class org.apache.hadoop.fs.s3a.S3AFileSystem not found{AT}"),
            "S3AFileSystem not found",
        ),
        (OSError(f"{JAVA}[DELTA_FILE_NOT_FOUND] File path /t@v0{AT}"), "File path /t@v0"),
        (OSError(f"{JAVA}[DELTA_FILE_NOT_FOUND] File path /t/_delta_log/1.json{AT}"), None),
        (UnsupportedOperationException(""), "cannot hold tables"),
        (ParseException("[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'."), "Syntax error"),
        (
            AnalysisException("[REQUIRES_SINGLE_PART_NAMESPACE] spark_catalog requires one"),
            "spark_catalog requires one",
        ),
        (AnalysisException("[UNRESOLVED_COLUMN] x"), None),
        (OSError("Read timed out"), None),
    ],
)
def test_a_name_that_leads_nowhere_is_told_from_a_storage_that_is_away(
    error: Exception, why: str | None
) -> None:
    found = misnamed(error, "table('t')", "Name another.", "t")
    if why is None:
        assert found is None
    else:
        assert isinstance(found, InvalidInput) and why in str(found)
        assert str(found).endswith(". Name another.") and found.name == "t"


def test_a_host_that_is_not_found_is_no_mistake_for_certain() -> None:
    """A scheduler tries a store that is away again, and gives up on a wrong argument."""
    error = OSError(f"{JAVA}java.net.UnknownHostException: nowhere{AT}")
    found = misnamed(error, "table('t')", "Name another.", "t")
    assert type(found) is StoreError and "UnknownHostException: nowhere." in str(found)


def test_a_rehearsal_tells_damage_in_the_payload_that_it_reads_too() -> None:
    there: Any = SimpleNamespace(spark=None, payload=SimpleNamespace(folder="/lake/payload/"))
    assert PastPayload(there).folder == "/lake/payload/"
