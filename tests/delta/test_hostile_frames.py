"""DataFrames from strangers are sent as they are, or are refused before any of it is there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import LONG
from tests.delta.hostile_frames import SORTS, offer
from txnqueue import QueueManager

pytestmark = pytest.mark.spark
SLOW = ("many_partitions", "long_texts", "many_columns")
QUICK = [number for number, sort in enumerate(SORTS) if sort.__name__ not in SLOW]
"""The others take half a minute each: they are in the long run."""


@pytest.fixture(scope="module")
def manager(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    manager = QueueManager(spark, str(tmp_path_factory.mktemp("hostile") / "store"))
    yield manager
    assert manager.history.verify().ok


@pytest.mark.parametrize("number", range(len(SORTS)) if LONG else QUICK)
def test_a_frame_is_sent_as_it_is_or_nothing_of_it(
    manager: QueueManager, spark: Any, number: int
) -> None:
    offer(manager, spark, number)
