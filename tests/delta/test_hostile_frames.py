"""DataFrames from strangers are sent as they are, or are refused before any of it is there."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import LONG
from tests.delta.hostile_frames import SORTS, offer
from txnqueue import QueueManager

pytestmark = pytest.mark.spark
BY_DEFAULT = (
    *("no_rows", "names_twice", "keys_that_are_none"),
    *("drawn_anew", "fails_half_way", "not_there_any_more"),
)
"""What no other test has; the others are in the long run."""
NUMBERS = [n for n, sort in enumerate(SORTS) if LONG or sort.__name__ in BY_DEFAULT]


@pytest.fixture(scope="module")
def manager(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    manager = QueueManager(spark, str(tmp_path_factory.mktemp("hostile") / "store"))
    yield manager
    assert manager.history.verify().ok


@pytest.mark.parametrize("number", NUMBERS)
def test_a_frame_is_sent_as_it_is_or_nothing_of_it(
    manager: QueueManager, spark: Any, number: int
) -> None:
    offer(manager, spark, number)
