"""What all tests share: one Spark session, and one PostgreSQL, for those that need it."""

from __future__ import annotations

import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from tests.postgres import database, postgres  # noqa: F401
from txnqueue.core import custody

custody.CHECKED = True  # what threads share is touched with its lock held: asserted in all tests

# A shell that starts the tests in the background has them ignore Ctrl-C, which some of them press.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = os.environ.get("TXNQUEUE_LONG") == "1"

COLLECTS_ALONE = "-XX:+UseSerialGC -Xmn1200m -XX:MetaspaceSize=400m"
"""No threads for collecting garbage, where two other processes want the two cores. What a statement
leaves behind dies young."""

if sys.platform == "linux":
    # Hadoop starts a program for each file that it makes on a local disk (chmod, readlink).
    COLLECTS_ALONE += " -Djdk.lang.Process.launchMechanism=VFORK"

OPTIMIZES_LATE = (
    f"{COLLECTS_ALONE} "
    "-XX:Tier4InvocationThreshold=30000 -XX:Tier4MinInvocationThreshold=5000 "
    "-XX:Tier4CompileThreshold=90000 -XX:Tier4BackEdgeThreshold=400000"
)
"""Java's thorough compiler only for what is really hot: most statements run a few times."""

REMEMBERS_LITTLE = {
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.liveUpdate.period": "1h",
    "spark.ui.retainedJobs": "300",
    "spark.ui.retainedStages": "300",
    "spark.ui.retainedTasks": "200",
}
"""Nobody looks at the pages on which Spark shows what it has done."""

INTERPRETED = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
"""Queries of a few rows take longer to compile than to run. The demo, the notebooks, the command
line and the long run have what users have."""

SHOWN = 30
"""So many folders and files are listed with what they cost."""

# How long an example takes says how busy the machine is, and nothing about the library.
hypothesis.settings.register_profile("txnqueue", deadline=None)
hypothesis.settings.load_profile("txnqueue")


REMOTE = os.environ.get("TXNQUEUE_TESTS_REMOTE")
"""A Spark Connect server that the tests work on, instead of a session of this process."""
_STARTED: list[Any] = []
"""The session of this process, while there is one."""


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    if REMOTE is not None:
        from pyspark.sql import SparkSession

        remote = SparkSession.builder.remote(REMOTE).getOrCreate()
        yield remote
        remote.stop()
        return
    from txnqueue.platform.local_spark import local_spark

    warehouse = tmp_path_factory.mktemp("warehouse")
    session = local_spark(
        "txnqueue tests",
        memory="3g",
        settings={
            "spark.driver.extraJavaOptions": OPTIMIZES_LATE,
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.sql.shuffle.partitions": "2",
            **REMEMBERS_LITTLE,
            **({} if LONG else INTERPRETED),
            "spark.databricks.delta.snapshotPartitions": "2",
        },
    )
    _STARTED.append(session)
    yield session
    _STARTED.clear()
    try:
        if LONG:
            from tests.stores.looking import disagreements

            assert disagreements(session, tmp_path_factory.getbasetemp()) == []
    finally:
        session.stop()


@pytest.fixture(autouse=True)
def same_active_session() -> Iterator[None]:
    """Make the tests' session the active one again: Spark looks up data sources in that.

    A DataFrame that a test makes on another session makes that one active, for all later tests.
    """
    yield
    for session in _STARTED:
        known: Any = type(session)
        known._activeSession = session
        known._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what each folder cost (``tests/README.md`` keeps these sums), and each dear file."""
    folders: defaultdict[str, float] = defaultdict(float)
    files: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                file = report.nodeid.partition("::")[0]
                files[file] += report.duration
                folders["/".join(file.split("/")[:2])] += report.duration
    for title, found in (("folder", folders), ("file", files)):
        terminalreporter.section(f"seconds by {title}")
        for name, total in sorted(found.items(), key=lambda one: -one[1])[:SHOWN]:
            terminalreporter.line(f"{total:8.0f}  {name}")
