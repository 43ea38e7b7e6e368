"""What a client is told of a failure: which errors may tell it, and that nothing has happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkTypeError

from tests.delta.failing_storage import OPERATIONS, QUEUE, Task, Worker
from tests.faults import failures, matrix
from tests.faults.scenarios import Operation
from txnqueue import QueueManager
from txnqueue.errors import (
    Busy,
    HandlerFailed,
    StoreCorrupt,
    StoreError,
    StoreSetBack,
    TransactionUnknown,
)
from txnqueue.results import DrainResult
from txnqueue.testing import memory_manager

DONE = DrainResult("R", 0, 0, 0, False)


def of_handler(cause: BaseException) -> HandlerFailed:
    """Make the error of a drain whose handler met another one."""
    error = HandlerFailed("The job itself is at fault.", result=DONE)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        None,
        StoreError("no"),
        Busy(),
        ConnectionError("reset"),
        FileNotFoundError("gone"),
        AnalysisException("[TABLE_OR_VIEW_NOT_FOUND]"),
        of_handler(OSError("rename failed, as it was told to")),
    ],
    ids=repr,
)
def test_errors_of_the_library_and_of_the_storage_tell_of_a_failure(
    error: BaseException | None,
) -> None:
    assert not failures.unfit(error)


@pytest.mark.parametrize(
    "error",
    [
        StoreCorrupt("damaged"),
        StoreSetBack("older", root="r", version=1),
        AttributeError("'NoneType' object has no attribute 'x'"),
        KeyError("k"),
        TypeError("no"),
        AssertionError("never"),
        ValueError("no"),
        RuntimeError("no"),
        PySparkTypeError("no"),
        of_handler(AttributeError("no")),
        of_handler(StoreCorrupt("damaged")),
    ],
    ids=repr,
)
def test_a_defect_or_a_corrupt_store_is_a_finding(error: BaseException) -> None:
    assert type(error.__cause__ or error).__name__ in failures.unfit(error)


@pytest.mark.parametrize("error", [StoreCorrupt("damaged"), of_handler(KeyError("k"))], ids=repr)
def test_the_crash_matrix_takes_no_such_error_for_a_failure(error: Exception) -> None:
    def act(client: QueueManager, subject: object) -> None:
        raise error

    operation = Operation("any", lambda w, m: None, act, lambda w, ledger: False)
    with pytest.raises(AssertionError, match=type(error.__cause__ or error).__name__):
        matrix.act(operation, memory_manager(), None)


# ------------------------------------------------------------------- storage that fails


@pytest.fixture
def worker() -> Worker:
    """One that has no disk, and a store in memory."""
    made = object.__new__(Worker)
    vars(made)["_other"] = memory_manager()
    for name in ("in", "out"):
        made._other.create_queue(name, "n long", **QUEUE)
    return made


def problem(worker: Worker, operation: str, task: Task, told: str = "failed") -> str:
    """Judge what was told of an operation."""
    return worker._problem(OPERATIONS[operation], task, told, committed=False)


def has_accepted(manager: QueueManager, task: Task) -> None:
    manager.queue("in").send([{"n": task.number}])
    manager.queue("in").receive(10).accept()


def has_drained(manager: QueueManager, task: Task) -> None:
    manager.queue("out").send([{"n": task.number}])


def has_created(manager: QueueManager, task: Task) -> None:
    manager.create_queue(f"new{task.number}", "n long", **QUEUE)


LANDED: dict[str, Callable[[QueueManager, Task], None]] = {
    "accept a batch": has_accepted,
    "drain and send": has_drained,
    "create a new queue": has_created,
}


@pytest.mark.parametrize("name", LANDED)
def test_what_has_happened_was_not_told_of_as_a_failure(worker: Worker, name: str) -> None:
    task = Task("T1", 1, "-")
    LANDED[name](worker._other, task)
    assert "it was told of a failure, and" in problem(worker, name, task)


@pytest.mark.parametrize("told", ["ok", "unknown"])
@pytest.mark.parametrize("name", LANDED)
def test_what_has_happened_may_be_in_doubt(worker: Worker, name: str, told: str) -> None:
    task = Task("T1", 1, "-")
    LANDED[name](worker._other, task)
    assert not problem(worker, name, task, told=told)


@pytest.mark.parametrize("told", ["failed", "unknown", "ok"])
@pytest.mark.parametrize("name", LANDED)
def test_what_has_not_happened_was_not_told_of_as_done(
    worker: Worker, name: str, told: str
) -> None:
    task = Task("T1", 1, "-")
    if name != "create a new queue":
        worker._other.queue("in").send([{"n": 1}])
    assert bool(problem(worker, name, task, told=told)) == (told == "ok")


def test_a_drain_may_fail_after_a_batch_of_whose_commit_it_has_told(worker: Worker) -> None:
    task = Task("T1", 1, "-", batches=[1])
    has_drained(worker._other, task)
    assert not problem(worker, "drain and send", task)
    worker._other.queue("in").send([{"n": 1}])
    assert "nothing was sent" in problem(worker, "drain and send", task)


def test_an_error_is_told_of_as_it_is(worker: Worker) -> None:
    def told(error: Exception | None) -> Any:
        def act() -> None:
            if error is not None:
                raise error

        return worker._told(act)

    doubt, defect = TransactionUnknown(transaction_id="T"), AttributeError("x")
    assert told(None) == ("ok", None)
    assert told(doubt) == ("unknown", doubt)
    assert told(defect) == ("failed", defect)
