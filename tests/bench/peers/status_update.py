"""A status column: UPDATE claims a range of ids under a token, another UPDATE acknowledges it."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from tests.bench.peers import LEASE_SECONDS, Handler, append, create, retried

FREE = (
    "(status = 'new' OR status = 'claimed' AND "
    f"claimed_at < current_timestamp() - INTERVAL {LEASE_SECONDS} SECONDS)"
)


class StatusUpdate:
    """Reads up to which id it goes, and takes what is free up to there."""

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
        last = (
            f"SELECT max(order_id) FROM (SELECT order_id FROM {self._table} WHERE {FREE} "
            f"ORDER BY order_id LIMIT {count})"
        )
        upto = self._session.sql(last).collect()[0][0]
        if upto is None:
            return 0
        claim = (
            f"UPDATE {self._table} SET status = 'claimed', token = '{token}', "
            f"claimed_at = current_timestamp() WHERE {FREE} AND order_id <= {upto}"
        )
        affected = int(self._session.sql(claim).collect()[0][0])
        return affected or self._claim(token, count)  # another consumer has taken all of them
