"""What an error of Spark means, by its trace."""

from __future__ import annotations

import pytest

from txnqueue.errors import StoreCorrupt
from txnqueue.storage.journal.exceptions import damage

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
