"""Maintenance does none of what it must never do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.keeping import CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_maintenance_breaks_no_promise(check: Callable[[], None]) -> None:
    check()
