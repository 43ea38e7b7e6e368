"""Deletion as acknowledgement: read the first messages, handle them, delete them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bench.peers import Handler, append, create, retried


class Deletion:
    """Claims nothing: whoever reads at the same time handles the same messages."""

    def __init__(self, session: Any, path: Path) -> None:
        self._session, self._path, self._table = session, path, f"delta.`{path}`"
        create(session, path)

    def send(self, frame: Any) -> None:
        append(frame, self._path)

    def consume(self, count: int, handle: Handler) -> int:
        first = f"SELECT order_id FROM {self._table} ORDER BY order_id LIMIT {count}"
        low, high, found = self._session.sql(
            f"SELECT min(order_id), max(order_id), count(*) FROM ({first})"
        ).collect()[0]
        if found:
            these = f"order_id BETWEEN {low} AND {high}"
            handle(self._session.sql(f"SELECT * FROM {self._table} WHERE {these}"))
            gone = f"DELETE FROM {self._table} WHERE {these}"
            retried(lambda: int(self._session.sql(gone).collect()[0][0]))
        return int(found)
