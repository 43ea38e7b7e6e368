"""A status column: one MERGE claims the first free messages under a token."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from tests.bench.peers import Handler, append, create, retried
from tests.bench.peers.status_update import FREE


class StatusMerge:
    """Looks for what is free in the same statement that claims it."""

    def __init__(self, session: Any, path: Path) -> None:
        self._session, self._path, self._table = session, path, f"delta.`{path}`"
        create(session, path, ", status STRING, token STRING, claimed_at TIMESTAMP",
               "PARTITIONED BY (status)")  # fmt: skip

    def send(self, frame: Any) -> None:
        append(frame.selectExpr("*", "'new' AS status"), self._path)

    def consume(self, count: int, handle: Handler) -> int:
        token = uuid.uuid4().hex
        claimed = retried(lambda: self._claim(token, count))
        if claimed:
            mine = f"status = 'claimed' AND token = '{token}'"
            handle(self._session.sql(f"SELECT * FROM {self._table} WHERE {mine}"))
            done = f"UPDATE {self._table} SET status = 'done' WHERE {mine}"
            retried(lambda: int(self._session.sql(done).collect()[0][0]))
        return claimed

    def _claim(self, token: str, count: int) -> int:
        free = FREE.replace("status", "t.status").replace("claimed_at", "t.claimed_at")
        merge = (
            f"MERGE INTO {self._table} t USING (SELECT order_id FROM {self._table} WHERE {FREE} "
            f"ORDER BY order_id LIMIT {count}) s ON t.order_id = s.order_id AND {free} "
            f"WHEN MATCHED THEN UPDATE SET status = 'claimed', token = '{token}', "
            "claimed_at = current_timestamp()"
        )
        return int(self._session.sql(merge).collect()[0]["num_updated_rows"])
