"""Branches over two real driver processes on Delta, one of which is killed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import numbers
from tests.conftest import LONG
from tests.drivers import start
from tests.faults.audit import check
from tests.inside import client_of
from tests.specifications.dtx_world import refused
from txnqueue import QueueManager, Status
from txnqueue.protocols.dtx import Connection, Execution, XaStatus, Xid


@pytest.mark.spark
@pytest.mark.skipif(not LONG, reason="a second driver: in the long run")
@pytest.mark.timeout(900)
@pytest.mark.rule("S4-10", "S4-22", "S4-25", "S4-27", "S4-28", "S4-32", "S4-37")
def test_what_a_killed_driver_did_in_branches_is_decided_by_another_one(
    spark: Any, tmp_path: Path
) -> None:
    root = str(tmp_path / "store")
    manager = QueueManager(spark, root, actor="survivor")
    orders = manager.create_queue("orders", "n long")
    orders.send([{"n": n} for n in range(5)])
    channel = Connection(manager, default_timeout_seconds=3600).channel()
    channel.select()
    shared, prepared, operator, at_work = (
        Xid.of(1, b"shared"),
        *(Xid.of(2, gtrid) for gtrid in (b"prepared", b"operator", b"at work")),
    )
    channel.start(shared)
    assert numbers(channel.queue("orders").receive(1)) == [0]
    driver = start(
        "tests.delta.branch_driver",
        root,
        shared.transaction_id,
        attach_to=None if LONG else spark,
        stderr=subprocess.PIPE,
    )
    said, failed = driver.communicate()
    assert (driver.returncode, said) == (-9, "ready\n"), failed[-2000:]
    channel.end(shared)
    execution = Execution(manager, "loader")
    assert (execution.mark, execution.complete(2), execution.mark) == (2, 4, 4)
    assert set(channel.recover(startscan=True, endscan=True)) == {prepared, operator}
    with refused(503):
        channel.commit(at_work, one_phase=True)  # a dead session works in it for ever
    channel.set_timeout(at_work, 0.001)
    assert channel.prepare(at_work) is XaStatus.RBTIMEOUT
    assert channel.prepare(shared) is XaStatus.OK
    for xid in (shared, prepared):
        assert channel.commit(xid) is XaStatus.OK
    assert channel.commit(operator) is channel.rollback(operator) is XaStatus.HEURRB
    channel.forget(operator)
    assert channel.recover(startscan=True, endscan=True) == []
    assert manager.outcome(operator.transaction_id).status is Status.ROLLED_BACK
    assert numbers(orders.receive(100)) == [3]  # came back by itself, and so comes alone
    assert numbers(orders.receive(100)) == [4, 10, 11]
    entries = client_of(manager).store.journal.read_all().entries
    check(entries, {operator.transaction_id, at_work.transaction_id})
    assert manager.history.verify().ok
