"""A real kernel is interrupted, fails and is restarted as in a notebook; so is a store in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LONG
from tests.reliability.notebook import CellFailed, Kernel, Life, scenario

pytest.importorskip("ipykernel")


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    found = Kernel(tmp_path)
    yield found
    found.close()


def test_a_kernel_is_interrupted_and_restarted(kernel: Kernel) -> None:
    assert kernel.run("x = 41; print(x + 1)") == "42"
    with pytest.raises(CellFailed, match="KeyboardInterrupt"):
        kernel.run("import time; time.sleep(60)", interrupted_after=0.1)
    assert kernel.run("print(x)") == "41"
    kernel.begin("time.sleep(60)")
    kernel.restart()
    with pytest.raises(CellFailed, match="NameError: name 'x' is not defined"):
        kernel.run("print(x)")


def test_a_scenario_has_each_kind_of_disturbance() -> None:
    assert scenario(7) == scenario(7) != scenario(8)
    hows = {one.how for number in range(50) for one in scenario(number)}
    assert hows == {
        *("interrupt", "cancel", "interrupt and cancel"), *("stop", "stop within", "restart")
    }  # fmt: skip


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="takes two minutes")
def test_a_notebook_lives_through_a_scenario(tmp_path: Path) -> None:
    life = Life(tmp_path)
    try:
        assert life.live(scenario(0))["kernels restarted"] == 1
    finally:
        life.close()
