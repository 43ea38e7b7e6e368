"""The nth call to the storage fails, or succeeds and says that it failed, for n = 1, 2, 3 and on.

Whatever the client is told is so, nothing is lost, nothing is there twice, and nothing hangs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import LONG
from tests.delta.failing_storage import KINDS, OPERATIONS, Cell, Process
from tests.delta.storage_calls import compiled

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(not LONG, reason="it starts a Java of its own, and takes minutes"),
]
NTH_MAX = 150
FEW_CALLS = [name for name in OPERATIONS if name != "maintain"]
"""Maintenance makes hundreds of calls: each is a number of tests/reliability."""


@pytest.fixture(scope="module")
def process(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    folder, classes = tmp_path_factory.mktemp("failing"), tmp_path_factory.mktemp("classes")
    compiled(spark._jvm, classes)
    process = Process(folder, classes)
    yield process
    process.close()


@pytest.mark.parametrize("after", [False, True], ids=["fails", "says that it failed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", FEW_CALLS)
def test_what_the_client_is_told_is_so(
    process: Process, operation: str, kind: str, after: bool
) -> None:
    for nth in range(1, NTH_MAX):
        found = process.run(Cell(operation, kind, nth, after))
        assert not found.problem, f"{operation}, {kind} {nth}: {found}"
        if found.hit is None:
            assert found.told == "ok" and nth > 1, found
            return
    raise AssertionError(f"there are more than {NTH_MAX} calls: {found}")
