"""What is read back of a send: its runs, as long as there are not too many."""

from __future__ import annotations

import pyarrow as pa
import pytest

from txnqueue.errors import LimitExceeded
from txnqueue.storage.payload import Routes, Run, Send, numbering


@pytest.mark.parametrize(
    ("routes", "name", "remedy"),
    [(None, "orders", "coalesce"), (Routes("topic", ()), "events", "keep_order=False")],
)
def test_very_many_runs_are_refused_before_they_become_objects(
    monkeypatch: pytest.MonkeyPatch, routes: Routes | None, name: str, remedy: str
) -> None:
    monkeypatch.setattr(numbering, "RUNS_PER_SEND_MAX", 2)
    note = {"queue": "orders"} if routes is None else {"exchange": "events"}
    send = Send("p", 0, "s", None, 1, None, note=note, routes=routes)  # type: ignore[arg-type]
    assert "LIMIT 3" in numbering.runs_query(send, "t")
    rows = pa.table({"lane": [1, 0, 0], "first": [0, 9, 3], "count": [3, 1, 2]})
    assert numbering.runs_of(send, rows.slice(1)) == [Run(0, 3, 2), Run(0, 9, 1)]
    with pytest.raises(LimitExceeded, match=remedy) as told:
        numbering.runs_of(send, rows)
    assert told.value.name == name
