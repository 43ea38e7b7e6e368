"""One Spark session for all tests that need one."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

LONG = os.environ.get("TXNQUEUE_LONG") == "1"

# How long an example takes says how busy the machine is, and nothing about the library.
hypothesis.settings.register_profile("txnqueue", deadline=None)
hypothesis.settings.load_profile("txnqueue")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from txnqueue.environment import local_spark

    warehouse = tmp_path_factory.mktemp("warehouse")
    session = local_spark(
        "txnqueue tests",
        short_lived=True,  # many different statements, few of them often
        settings={
            "spark.sql.warehouse.dir": str(warehouse),
            "spark.sql.shuffle.partitions": "2",
            "spark.databricks.delta.snapshotPartitions": "2",
        },
    )
    yield session
    session.stop()
