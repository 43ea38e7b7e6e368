"""The world of the tests with databases: one queue, in memory."""

from __future__ import annotations

import pytest

from tests.faults.world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.create("in")
    return world
