"""A status column: one MERGE claims the first free messages under a token."""

from __future__ import annotations

from tests.bench.peers.status_update import FREE, StatusUpdate


class StatusMerge(StatusUpdate):
    """Looks for what is free in the same statement that claims it."""

    def _claim(self, token: str, count: int) -> int:
        free = FREE.replace("status", "t.status").replace("claimed_at", "t.claimed_at")
        merge = (
            f"MERGE INTO {self._table} t USING (SELECT order_id FROM {self._table} WHERE {FREE} "
            f"ORDER BY order_id LIMIT {count}) s ON t.order_id = s.order_id AND {free} "
            f"WHEN MATCHED THEN UPDATE SET status = 'claimed', token = '{token}', "
            "claimed_at = current_timestamp()"
        )
        return int(self._session.sql(merge).collect()[0]["num_updated_rows"])
