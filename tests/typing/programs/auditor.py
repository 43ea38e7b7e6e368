"""An auditor: asks what was, message by message and commit by commit."""

import datetime

from txnqueue import (
    History,
    HistoryDigest,
    Outcome,
    QueueManager,
    Snapshot,
    Status,
    TraceStep,
    errors,
)


def told(step: TraceStep) -> str:
    when = step["recorded_at"].isoformat()
    return f"{step['commit_seq']} {when} {step['step']} by {step['actor']} in {step['queue']}"


def yesterday(history: History) -> Snapshot | None:
    instant = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
    try:
        return history.as_of(timestamp=instant)
    except errors.HistoryRemoved as removed:
        print(f"known from {removed.commit_seq} on")
        return None


def as_frames(manager: QueueManager) -> None:
    snapshot = manager.history.as_of(manager.history.horizon())
    snapshot.counts().df().show()
    snapshot.transactions().df().where("status = 'prepared'").show()
    snapshot.messages("orders").df().groupBy("state").count().show()
    manager.history.changes(after=17).df().show()
    steps = manager.history.trace(queue="orders", where="order_id = 4711", partial=True).rows()
    print([told(step) for step in steps])


def became(outcome: Outcome) -> str:
    if outcome.status is Status.COMMITTED and outcome.receipt is not None:
        return f"committed at {outcome.receipt.committed_at}"
    return f"{outcome.status.value}: {outcome.reason}"


def main(manager: QueueManager) -> None:
    orders = manager.create_queue("orders", "order_id long")
    sent = orders.send([{"order_id": 4711}])
    batch = orders.receive()
    message_id = batch.messages()[0]["_message"]["id"]
    batch.accept(reason="delivered")
    history = manager.history
    print([told(step) for step in history.trace(message_id).rows()])
    print(became(manager.outcome(sent.transaction_id)), yesterday(history))
    for row in history.changes().rows():
        print(row["kind"], row["queue"], row["count"])
    proof = history.verify()
    assert proof.ok, proof.problems
    print([(line.claim, line.found, line.expected) for line in proof.claims])
    kept = str(history.digest(history.horizon()))
    assert history.verify(digest=kept).ok
    print(history.digest(after=kept).sha256, history.digest(after=HistoryDigest.parse(kept)))
