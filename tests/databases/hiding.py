"""A database that hides what became of a commit."""

from __future__ import annotations

from typing import Any


class Hiding:
    """A database that prepares, loses its connection, and may tell what is prepared, or not."""

    def __init__(self) -> None:
        self.prepared: list[Any] = []
        self.committed: list[Any] = []
        self._xid: Any = None

    def xid(self, *parts: Any) -> Any:
        return parts

    def tpc_begin(self, xid: Any) -> None:
        self._xid = xid

    def tpc_prepare(self) -> None:
        self.prepared.append(self._xid)

    def tpc_commit(self, xid: Any = None) -> None:
        if xid is None:
            raise ConnectionError("it is gone")
        self.prepared.remove(xid)
        self.committed.append(xid)

    def tpc_rollback(self, xid: Any = None) -> None:
        self.prepared.remove(xid)

    def tpc_recover(self) -> list[Any]:
        return list(self.prepared)
