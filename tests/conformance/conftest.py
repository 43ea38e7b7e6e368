"""One suite of what the public interface does, on both stores."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.locks import SingleLock
from txnqueue.client.runtime import Runtime
from txnqueue.core import custody, model
from txnqueue.manager import QueueManager
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock, Ids, runtime

_NUMBERS = itertools.count(1)
SCHEMA = "n long, key string"
ALONE = "delta, alone"


class World:
    """One store, one clock, any number of managers: what a test stands in.

    The worlds on Delta share one store, because a new one costs seconds: so a test takes
    its names from ``name``.
    """

    def __init__(self, store: MemoryStore | None, spark: Any = None, root: str = "memory") -> None:
        self.clock = Clock()
        self.store: Any = store  # None on Delta, where no test asks for it
        self.spark, self.root = spark, root
        self._prefix = f"t{next(_NUMBERS)}"
        self._instances = itertools.count()

    @property
    def has_frames(self) -> bool:
        """Whether there are DataFrames here."""
        return self.spark is not None

    def name(self, word: str) -> str:
        """Make a name that no other test uses."""
        return f"{self._prefix}-{word}"

    def runtime(self, name: str = "a") -> Runtime:
        """Make what a client takes from outside; no two draw the same ids."""
        made = runtime(self.clock, self.name(name))
        made.new_id = Ids(f"{self.name(name)}#{next(self._instances)}")
        return made

    def manager(self, name: str = "a") -> QueueManager:
        """Start a client; the same name again is the same consumer id, started anew."""
        return QueueManager(self.spark, self.root, store=self.store, runtime=self.runtime(name))

    def queue(self, word: str = "orders", *, dead_letter: bool = False, **settings: Any) -> Any:
        """Create a queue by a manager ``a`` of its own."""
        return self.manager().create_queue(
            self.name(word), SCHEMA, dead_letter=dead_letter, **settings
        )

    def open(self, queue: Any, client: str) -> Any:
        """Open a queue by another manager."""
        return self.manager(client).queue(queue.name)

    def lease_over(self) -> None:
        """Turn the clock past the lease of a queue's default settings."""
        self.clock.advance(301)


def rows(*numbers: int, key: str | None = None) -> list[dict[str, Any]]:
    """Make messages that carry numbers."""
    return [{"n": n, "key": key} for n in numbers]


def numbers(found: Any) -> list[int]:
    """Read the numbers that a batch's messages carry, in delivery order."""
    return [row["n"] for row in (found if isinstance(found, list) else found.messages())]


def pick(batch: Any, *wanted: int) -> list[dict[str, Any]]:
    """Pick messages of a batch by their numbers."""
    return [row for row in batch.messages() if row["n"] in wanted]


@pytest.fixture(autouse=True)
def one_lock_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread holds two locks; elsewhere one thread plays several clients."""
    monkeypatch.setattr(custody, "new_lock", SingleLock)


@pytest.fixture(scope="session")
def shared_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The store on Delta that all tests of the suite share."""
    return str(tmp_path_factory.mktemp("conformance") / "store")


BOTH_STORES = ("memory", pytest.param("delta", marks=pytest.mark.spark))


@pytest.fixture(params=BOTH_STORES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A store in memory, and one on Delta."""
    if request.param == "memory":
        store = MemoryStore()
        yield World(store)
        check_form(store)
        return
    spark = request.getfixturevalue("spark")
    if request.param == ALONE:
        yield World(None, spark, str(tmp_path / "store"))
    else:
        yield World(None, spark, request.getfixturevalue("shared_root"))


def own_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Make a world whose store no other test shares, in memory or on Delta, as a fixture asks."""
    if request.param == "memory":
        return World(MemoryStore())
    return World(None, request.getfixturevalue("spark"), str(tmp_path / "store"))


def check_form(store: MemoryStore) -> None:
    """Check that all that was ever written says its stored form, and is numbered without gaps."""
    numbers: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for landed, _ in store.journal.commits:
        for entry in landed:
            assert entry.body.get("v") == 1, f"{entry.kind}: {entry.body}"
            if entry.sequence is not None and entry.kind != model.LAYOUT_CHANGED:
                numbers[entry.shard, entry.stream].append(entry.sequence)
    for where, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), f"{where}: {found}"


in_memory = pytest.mark.parametrize("world", ["memory"], indirect=True)
"""Marks what a store cannot make a difference to: it runs in memory only."""


def _when_long(where: str) -> pytest.MarkDecorator:
    there = [pytest.param(where, marks=pytest.mark.spark)] if LONG else []
    return pytest.mark.parametrize("world", ["memory", *there], indirect=True)


on_delta_when_long = _when_long("delta")
"""Marks what runs on Delta in the long run only: what it needs of a store, others show."""
alone_on_delta_when_long = _when_long(ALONE)
"""The same, of what asks a whole store: it has one of its own."""


@pytest.fixture(params=BOTH_STORES)
def alone(request: pytest.FixtureRequest, tmp_path: Any) -> World:
    """A place of its own, where there is no store yet."""
    if request.param == "memory":
        return World(MemoryStore())
    return World(None, request.getfixturevalue("spark"), str(tmp_path / "nothing"))
