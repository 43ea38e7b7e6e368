"""Questions to the history of a queue, beside scans of a plain table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tests.bench.case import Case, Comparison, Side, steps
from tests.bench.floors import aggregate, orders
from tests.bench.world import SCHEMA, World
from tests.inside import client_of
from txnqueue import QueueManager
from txnqueue.client.past_reader import PastReader
from txnqueue.reports.history import History

MESSAGES = 1_000_000
THREADS = 8
TARGET = 4.0


def makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name the case of the normal run, and what prepares it."""
    return {"questions to 100": partial(_questions, world, 100)}


def full_makers(world: World) -> Mapping[str, Callable[[], Case]]:
    """Name that of the full run."""
    return {"questions to 1000": partial(_questions, world, 1_000)}


def _questions(world: World, transactions: int) -> Case:
    """Ask a store of its own, in which nothing else has happened, and a copy that is maintained."""
    root, kept_root = world.path("store"), world.path("kept")
    manager = QueueManager(world.spark, str(root))
    queue, raw = manager.create_queue("orders", SCHEMA, dead_letter=False), world.raw_table()
    pieces = world.raw_table()
    transactions = 4 if world.quick else transactions
    each = MESSAGES // transactions

    def send(number: int) -> Any:
        return queue.send(orders(world.spark, each, number * each))

    with ThreadPoolExecutor(THREADS) as threads:
        sent = list(threads.map(send, range(transactions)))
    raw.append(orders(world.spark, MESSAGES))
    for number in range(transactions):
        pieces.append(orders(world.spark, each, number * each))
    with manager.transaction() as tx:
        claimed = queue.receive(1_000, transaction=tx)
        traced = next(iter(claimed.messages()))["_message"]["id"]
    history, then = manager.history, max(result.receipt.commit_seq for result in sent)
    shutil.copytree(root, kept_root)
    kept = QueueManager(world.spark, str(kept_root))
    kept.maintain()

    def past(history: History) -> None:
        aggregate(history.as_of(then).messages("orders").df(), MESSAGES)

    def first() -> None:
        client_of(manager).cache.pasts = PastReader()  # as in a process that has not asked yet
        past(history)

    def trace(history: History) -> None:
        found = [row["step"] for row in history.trace(traced).rows()]
        if found != ["sent", "claimed", "accepted"]:
            raise AssertionError(f"the message was {', '.join(found)}")

    def verify() -> None:
        if not history.verify().ok:
            raise AssertionError("the history is not true")

    return Case(
        f"questions to {transactions}",
        f"a queue of {MESSAGES:,} messages that {transactions:,} transactions sent: "
        "its state in the past, a message's steps, the proof of its history",
        {
            "txnqueue": Side("as_of, aggregated", steps(past=partial(past, history))),
            "kept": Side("as_of after maintenance", steps(past=partial(past, kept.history))),
            "first": Side("as_of, asked for the first time, aggregated", steps(first=first)),
            "trace": Side("trace of a message", steps(trace=partial(trace, history))),
            "kept trace": Side(
                "trace of a message after maintenance", steps(trace=partial(trace, kept.history))
            ),
            "verify": Side("verify", steps(verify=verify)),
            "floor": Side("raw scan", steps(scan=lambda: raw.aggregate(0, MESSAGES))),
            "pieces": Side(
                "raw scan of as many appends", steps(scan=lambda: pieces.aggregate(0, MESSAGES))
            ),
        },
        [
            Comparison(target=TARGET),
            Comparison(below="pieces"),
            Comparison("first", "floor"),
            Comparison("first", "pieces"),
            Comparison("kept", "floor", target=TARGET),
            Comparison("trace", "floor"),
            Comparison("kept trace", "floor", target=TARGET),
            Comparison("verify", "floor"),
        ],
        rounds_max=9,
    )
