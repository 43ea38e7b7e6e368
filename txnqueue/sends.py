"""Send to several queues by one call of a transaction, staging the rows in parallel."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from txnqueue.client.side_by_side import side_by_side
from txnqueue.core.settings import check_id
from txnqueue.errors import InvalidInput
from txnqueue.messages.send import SendResult
from txnqueue.messages.staged import StagedSend
from txnqueue.queue import Queue, stage_with
from txnqueue.types import Rows

if TYPE_CHECKING:
    from txnqueue.transactions.attempt import Attempt


def send_to_queues(attempt: Attempt, rows: Mapping[str, Rows]) -> dict[str, SendResult]:
    """Stage rows for several queues side by side, and record all of them, or none.

    What is kept in memory takes no time, and a lock that others need: it is staged last, and
    another thread that decides the transaction gets both kinds or none.

    Args:
        attempt: Sends them.
        rows: Rows by the name of their queue.
    """
    attempt.check_active()
    queues = _queues(attempt, rows)
    if attempt.already_committed:
        return {name: SendResult(0, "", attempt.id, attempt.receipt) for name in queues}
    staged: dict[str, StagedSend] = {}
    recorded: list[StagedSend] = []  # other threads may record sends of their own meanwhile

    def record(send: StagedSend) -> None:
        """Record what must be recorded at once: what is in memory."""
        if send.info.transient:
            recorded.append(send)
            attempt.add_send(send)

    def stage_those(*, durable: bool) -> None:
        names = [name for name in queues if queues[name].info.settings.durable == durable]
        acts = [partial(stage_with, queues[name], rows[name], attempt, record) for name in names]
        found = side_by_side(attempt.client.store.spark if durable else None, acts)
        staged.update(zip(names, found, strict=True))

    try:
        stage_those(durable=True)
        with attempt.adding():
            stage_those(durable=False)
            results = {
                name: SendResult(staged[name].count, staged[name].send_id, attempt.id, None)
                for name in queues
            }
            kept = [send for send in staged.values() if send.runs and not send.info.transient]
            recorded += kept
            attempt.add_sends(kept)
    except BaseException:
        attempt.take_back(recorded)
        raise
    return results


def _queues(attempt: Attempt, rows: Mapping[str, Rows]) -> dict[str, Queue]:
    """Open the queues.

    Raises:
        InvalidInput: There are none, or a name is none.
        QueueNotFound: One of them is not there.
    """
    if not isinstance(rows, Mapping) or not rows:
        raise InvalidInput("Give a dict of rows by queue name: {name: rows, …}.")
    names = [check_id(name, "name") for name in rows]
    client = attempt.client
    return {name: Queue(client, client.cache.queue(name), attempt) for name in names}
