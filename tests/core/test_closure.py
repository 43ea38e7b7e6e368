"""Whom it bars that a queue or an exchange closes."""

from __future__ import annotations

import pytest

from txnqueue.core import model
from txnqueue.core.model import Condition, Entry, Unit
from txnqueue.core.state import closure

QUEUE = closure.closed_error(
    Entry(model.FENCE, "queue/q", model.QUEUE_CLOSING, queue_id="q", body={"name": "orders"})
)
EXCHANGE = closure.closed_error(
    Entry(model.FENCE, "exchange/e", model.EXCHANGE_DROPPED, body={"name": "sold", "exchange": "e"})
)


@pytest.mark.parametrize(
    ("expected", "by_queue", "by_exchange"),
    [
        (model.queue_open("q"), True, False),
        (model.exchange_open("e"), False, True),
        (model.queue_open("other"), False, False),
        (model.exchange_open("q"), False, False),
        (model.next_sequence(model.FENCE, "queue/q", 1), False, False),
        (Condition("elsewhere", "queue/q", kinds=(model.QUEUE_CLOSING,)), False, False),
    ],
)
def test_what_closes_bars_what_expects_it_open_and_nothing_else(
    expected: Condition, by_queue: bool, by_exchange: bool
) -> None:
    unit = Unit.of("a", [], [model.layout_unchanged(), expected])
    assert (closure.bars(QUEUE, unit), closure.bars(EXCHANGE, unit)) == (by_queue, by_exchange)
    assert closure.is_closed(QUEUE) and closure.is_closed(EXCHANGE)
    assert not closure.is_closed(ValueError()) and not closure.is_closed(None)
