"""Worlds that begin alike: built once, then copied; and what is in them, to tell them apart."""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from tests.faults.world import World
from txnqueue.core.model import Entry
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import Clock

_LOCK = type(threading.Lock())
_SHARED = (Entry, pa.Table, StructType)
"""What nobody changes: all copies have the same ones."""


class Start:
    """A world in its first state."""

    def __init__(self, build: Callable[[World], None]) -> None:
        """Build it.

        Args:
            build: Makes the store's first state.
        """
        self._build = build
        self._world = World()
        build(self._world)
        self._shared: list[Any] = []
        self._store = self._frozen(self._world.store)

    def copy(self, step: Callable[[str], None]) -> World:
        """Make a world in this state whose store calls ``step`` before each step of a call."""
        built = self._world
        if built.sessions:  # they are at work in their own store
            world = World(store=MemoryStore(step=step))
            self._build(world)
            return world
        return World(
            store=self._thawed(step),
            clock=Clock(built.clock.now_ms),
            generation=built.generation,
            explicit=set(built.explicit),
            prepared=set(built.prepared),
        )

    def _frozen(self, store: MemoryStore) -> bytes:
        into = io.BytesIO()
        pickler = pickle.Pickler(into)
        pickler.persistent_id = self._name
        pickler.dump((store.journal, store.payload, store.tables))
        return into.getvalue()

    def _name(self, thing: object) -> object:
        if isinstance(thing, _LOCK):
            return "lock"
        if thing is self._world.store.journal.step:
            return "step"
        if isinstance(thing, _SHARED):
            self._shared.append(thing)
            return len(self._shared) - 1
        return None

    def _thawed(self, step: Callable[[str], None]) -> MemoryStore:
        def found(name: Any) -> object:
            if name == "lock":
                return threading.Lock()
            return step if name == "step" else self._shared[name]

        unpickler = pickle.Unpickler(io.BytesIO(self._store))
        unpickler.persistent_load = found
        store = MemoryStore(step=step)
        store.journal, store.payload, store.tables = unpickler.load()
        return store


def contents(world: World) -> str:
    """Write out all that a world holds: what its judge can see."""
    store = world.store
    payload = {name: rows.to_pydict() for name, rows in store.payload._sends.items()}
    tables = {
        name: (table.commits, table.numbers, [piece.to_pydict() for piece in table.pieces])
        for name, table in store.tables._tables.items()
    }
    journal = [entries for entries, _ in store.journal.commits]
    kept = (store.journal._removals, store.journal.archive.kept)
    told = sorted(world.prepared), sorted(world.explicit)
    return repr((world.clock.now_ms, journal, kept, payload, tables, told))
