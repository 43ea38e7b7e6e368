"""The world of the tests with databases: one queue in memory, and a file of SQLite."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.faults.world import World


@pytest.fixture
def world() -> World:
    world = World()
    world.create("in")
    return world


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A database of SQLite with a ledger."""
    name = str(tmp_path / "ledger.db")
    with sqlite3.connect(name) as connection:
        connection.execute("CREATE TABLE ledger (n integer)")
    return name
