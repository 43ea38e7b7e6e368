"""Sessions of the library beside the user's session, whose settings are not changed."""

from __future__ import annotations

import atexit
import importlib
import json
import logging
import weakref
from collections.abc import Mapping
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any

from txnqueue.errors import PlatformMissing
from txnqueue.storage.journal.exceptions import is_session_ended
from txnqueue.storage.journal.tables import SESSION_CATALOG

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

logger = logging.getLogger("txnqueue")
LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
"""The metadata that Delta writes into a table's history with each commit of a session."""
MEANING = {
    "parquet.page.verify-checksum.enabled": "true",
    # Else a statement may be two commits, of which the session tells the second one's version.
    "spark.databricks.delta.autoCompact.enabled": "false",
    "spark.databricks.delta.commit.idempotencyCheck.enabled": "true",
    "spark.databricks.delta.delete.deletionVectors.persistent": "false",
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.databricks.delta.merge.optimizeInsertOnlyMerge.enabled": "true",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    "spark.databricks.delta.stalenessLimit": "0",
    "spark.databricks.delta.vacuum.logging.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.broadcastTimeout": "86400",
    "spark.sql.caseSensitive": "false",
    # Delta joins a table with the one row that stands for the rows of an update or a delete.
    "spark.sql.crossJoin.enabled": "true",
    # Only Spark's own catalog, as Delta has it, creates tables by their paths; others are named.
    "spark.sql.defaultCatalog": SESSION_CATALOG,
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.maxRecordsPerFile": "0",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.sources.partitionOverwriteMode": "STATIC",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.variable.substitute": "false",
}
"""Settings that make statements mean the same everywhere, whatever a cluster, or the session that
Spark Connect clones, has set."""
SETTINGS = {
    **MEANING,
    "spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled": "true",
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.files.openCostInBytes": "65536",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "32",
}
"""The settings of the library's own sessions; the user's session is not changed.

A VACUUM that lists a folder starts so many tasks for it, several times, as partitions may be
discovered in parallel: by default 10,000, however few folders there are.
"""
APPENDING = {
    **SETTINGS,
    # Else there is a shuffle between the counting of an append's rows and their writing, and Spark
    # counts those of a task again that it repeats because the shuffle's files were lost.
    "spark.databricks.delta.optimizeWrite.enabled": "false",
}
"""The settings of the session that only appends to the journal use."""

APPLICATION = "spark.databricks.delta.write.txnAppId"
NUMBER = "spark.databricks.delta.write.txnVersion"
"""Delta skips a write whose number an application has already written."""


_USERS: weakref.WeakKeyDictionary[SparkSession, weakref.ref[SparkSession]] = (
    weakref.WeakKeyDictionary()
)
"""The user's session for each of the library's sessions."""


def is_connect(spark: SparkSession) -> bool:
    """Return whether a session is one of Spark Connect."""
    return "connect" in type(spark).__module__ or not hasattr(spark, "newSession")


def is_stopped(spark: SparkSession) -> bool:
    """Return whether a session was stopped."""
    if is_connect(spark):
        return bool(getattr(spark, "is_stopped", False))
    context = spark.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


def in_current_catalog(spark: SparkSession, root: str) -> str:
    """Return a root as the user's session means it now: sessions may have other catalogs later.

    A schema of Spark's own catalog has no other name than that of the schema.
    """
    if "/" in root:
        return root
    catalog, dot, schema = root.partition(".")
    if not dot:
        current = spark.catalog.currentCatalog()
        return root if current == SESSION_CATALOG else f"{current}.{root}"
    is_whole = bool(schema) and "." not in schema
    return schema if is_whole and catalog.lower() == SESSION_CATALOG else root


def new_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Create a session with its own settings beside the user's session.

    Raises:
        PlatformMissing: delta-spark is not installed, or a Spark Connect server has ended the
            user's session.
    """
    try:  # Delta's exceptions are translated only if this was imported before the call
        importlib.import_module("delta.exceptions")
    except ModuleNotFoundError as error:
        raise PlatformMissing(missing="delta-spark") from error
    # Connect has no newSession; its cloneSession is not in the classic class's type.
    connect = is_connect(spark)
    try:
        session: SparkSession = spark.cloneSession() if connect else spark.newSession()  # type: ignore[attr-defined]
    except Exception as error:
        if not is_session_ended(error):
            raise
        raise PlatformMissing(
            "The Spark Connect server has ended this manager's session, and nothing was done: end "
            "it here too (spark.stop()), get a new one, and create a QueueManager with that."
        ) from error
    _USERS[session] = weakref.ref(spark)
    for key, value in settings.items():
        session.conf.set(key, value)
    for key in (APPLICATION, NUMBER):
        session.conf.unset(key)
    if connect:  # its exit hook could wait for minutes for a server that is gone
        atexit.register(_hang_up, weakref.ref(session))
    return session


def _of_nothing(rows: Any) -> StructType | None:
    """Return the columns of a table without rows, which Connect does not infer from Arrow."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    empty = isinstance(rows, pa.Table) and not rows.num_rows
    return from_arrow_schema(rows.schema) if empty else None


def new_frame(
    session: SparkSession, rows: Any, schema: StructType | str | None = None
) -> DataFrame:
    """Make a DataFrame without changing the thread's active session.

    ``createDataFrame`` makes its own session the active one, which a program's
    ``SparkSession.active()``, and Spark when it looks up a data source, would then use.
    """
    if is_connect(session):
        return session.createDataFrame(rows, schema or _of_nothing(rows))
    make = partial(session.createDataFrame, rows, schema)
    from pyspark.sql import SparkSession

    known: Any = SparkSession
    before, sessions = known._activeSession, known._get_j_spark_session_class(session._jvm)
    active = sessions.getActiveSession()
    if before in _USERS:  # another thread is here too: it found the user's session
        before = _USERS[before]()
    try:
        return make()
    finally:
        known._activeSession = before
        if active.isDefined():
            sessions.setActiveSession(active.get())
        else:
            sessions.clearActiveSession()


def commit_noted(session: SparkSession, statement: str, note: Mapping[str, object]) -> list[Row]:
    """Run a statement that commits to a table, with a note in the table's history.

    Returns:
        The statement's rows.
    """
    session.conf.set(USER_METADATA, json.dumps(note))
    return session.sql(statement).collect()


def is_ours(session: SparkSession) -> bool:
    """Return whether a session is one of the library's own."""
    return session in _USERS


def is_known(session: SparkSession) -> bool:
    """Ask a Spark Connect server whether it still knows a session, which it then keeps for longer.

    A server ends a session that gets no call for an hour, by default.
    """
    try:
        session.conf.get(USER_METADATA, "")
    except Exception as error:
        if not is_session_ended(error):
            raise
        logger.info("the server has ended a session error=%s", type(error).__name__)
        return False
    return True


def answers(session: SparkSession) -> bool:
    """Return whether the server of one of the library's sessions is there, if it needs one.

    From then on the session does without Spark's tries, which last ten minutes if a server is gone.
    """
    if not is_connect(session):
        return True
    found: Any = session
    found.client.set_retry_policies([])
    try:
        is_known(session)
    except Exception as error:  # whatever it is, the server does not answer
        logger.info("no answer error=%s", error)
        return False
    return True


def close_session(session: SparkSession) -> None:
    """Close one of the library's sessions; a classic one costs nothing and is left open.

    ``stop`` would also stop a Connect server in this process.
    """
    client = getattr(session, "client", None) if is_connect(session) else None
    if client is None or client.is_closed:
        return
    client.set_retry_policies([])  # Spark would retry a server that is gone for ten minutes
    try:
        client.release_session()
    except Exception as error:  # the server is gone, and its sessions too
        logger.info("session not released error=%s", error)
    client.close()


def leave_session(session: SparkSession) -> None:
    """Close one of the library's sessions of which nothing came back, without waiting for that."""
    if is_connect(session):
        Thread(target=close_session, args=(session,), name="txnqueue leaves", daemon=True).start()


def _hang_up(session: weakref.ref[SparkSession]) -> None:
    found: Any = session()
    if found is not None and not found.client.is_closed:
        found.client.close()
