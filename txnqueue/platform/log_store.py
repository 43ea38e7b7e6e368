"""The log store with which any number of drivers share tables on S3, and the jar that holds it.

``python -m txnqueue.platform.log_store`` prints where the jar is. Sessions of ``local_spark`` have
it; others are started with it, and with the setting ``spark.delta.logStore.s3a.impl``.
"""

from __future__ import annotations

from pathlib import Path

CONDITIONAL_PUT = "txnqueue.ConditionalPutLogStore"
"""Its class, whose source lies beside the jar. ``jobs/log_store.sh`` makes the jar from it."""


def log_store_jar() -> Path:
    """Find the jar that holds the log store; it is part of this package."""
    return Path(__file__).parent / "resources" / "txnqueue-log-store.jar"


if __name__ == "__main__":
    print(log_store_jar())
