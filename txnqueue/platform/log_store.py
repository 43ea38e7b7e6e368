"""Log stores for Delta tables, and the jar that contains them.

``python -m txnqueue.platform.log_store`` prints the path of the jar. Sessions of ``local_spark``
have it; others must be started with it and a setting such as ``spark.delta.logStore.s3a.impl``.
"""

from __future__ import annotations

from pathlib import Path

CONDITIONAL_PUT = "txnqueue.ConditionalPutLogStore"
"""The class with which any number of drivers share tables on S3."""

TAIL_LISTING = "txnqueue.TailListingLogStore"
"""The class that reads of a log on a local disk only what is new.

The sources of both lie beside the jar. ``jobs/log_store.sh`` makes the jar from them.
"""

ATOMIC = ("", "file", "hdfs", "viewfs", "abfs", "abfss", "wasb", "wasbs", "adl", "gs", "dbfs")
"""Schemes for which Delta by itself takes a log store that makes a commit's file whole or not at
all, and only if there is none. On others several drivers need one that is set up for them."""


def scheme_of(location: str) -> str:
    """Return the scheme of a location in lower case; empty if there is none."""
    scheme, colon, _ = location.partition(":")
    return scheme.lower() if colon and "/" not in scheme else ""


def log_store_jar() -> Path:
    """Find the jar that holds the log stores; it is part of this package."""
    return Path(__file__).parent / "resources" / "txnqueue-log-store.jar"


if __name__ == "__main__":
    print(log_store_jar())
