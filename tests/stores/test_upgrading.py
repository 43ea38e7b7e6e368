"""Work that an older version left is gone on with, whichever store call fails meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyspark")
import txnqueue
from tests.conftest import LONG
from tests.faults.injection import Fault
from tests.stores import upgrading
from txnqueue.core import model
from txnqueue.core.model import Unit
from txnqueue.errors import LayoutUnsupported

EVERY = 1 if LONG else 13


def test_all_that_an_older_version_left_is_gone_on_with() -> None:
    upgrade = upgrading.Upgrade()
    manager = upgrade.client("first")
    orders = manager.queue("orders")
    assert (orders.depth(), orders.in_flight(), manager.queue("orders.dead").depth()) == (7, 5, 2)
    assert manager.history.verify().ok
    upgrading.work(manager)
    upgrading.work(upgrade.client("second"))
    upgrading.check_whole(upgrade)


def test_each_store_call_of_an_upgrade_may_fail_or_be_the_last_one() -> None:
    """Every one of them in the long run, and as a kind of reliability run."""
    cases = list(upgrading.cases())
    assert {one.call for one in cases} >= {"append", "apply", "stage", "add", "remove"}
    late = [one for one in cases if one.call == "append" and one.fault is Fault.LANDS_LATE]
    for case in [*late, *cases[::EVERY]]:  # one that was late brought back what was archived
        upgrading.run(case)


def test_a_newer_layout_is_refused_at_the_opening_and_in_the_middle_of_work() -> None:
    upgrade = upgrading.Upgrade()
    older = upgrade.client("opened before")
    queue = older.queue("unique")
    assert queue.depth()
    (layout,) = (e for e in upgrade.store.journal.entries() if e.kind == model.LAYOUT_CHANGED)
    newer = replace(layout, append_id="newer", sequence=model.LAYOUT + 1)
    assert upgrade.store.journal.append([Unit("newer", (newer,), ())], {}).won == (True,)
    before = upgrade.store.journal.version()
    told = rf"has layout {model.LAYOUT + 1}, this library writes {model.LAYOUT}: use a newer"
    for act in (
        lambda: upgrade.client("opened now").queue("unique"),
        lambda: queue.send([{"k": "z"}]),
        lambda: queue.receive(1),
        older.recover,
        lambda: older.create_queue("late", "n long"),
        lambda: older.maintain(**upgrading.AT_ONCE),
    ):
        with pytest.raises(LayoutUnsupported, match=told) as refused:
            act()
        assert refused.value.layout == model.LAYOUT + 1
    assert upgrade.store.journal.version() == before
    assert older.commit("hold/1").applied  # nothing may keep a prepared one from its decision


def test_a_look_refuses_a_newer_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "LAYOUT", 0)
    with pytest.raises(LayoutUnsupported, match="has layout 1, this library writes 0: use a newer"):
        txnqueue.look(upgrading.unpacked()).list_queues()


@pytest.mark.parametrize("name", ["orders", "orders.dead", "invoices", "unique"])
def test_a_rehearsal_on_an_older_store_has_the_batches_of_a_drain(name: str) -> None:
    """Also of what failed before, what dead clients hold, and what is a duplicate."""
    manager = upgrading.Upgrade().client("later")
    seen: list[list[str]] = []

    def handle(batch: Any, tx: Any) -> None:
        found = batch.messages()
        seen.append([message["_message"]["id"] for message in found])
        tx.queue(name).send([{k: v for k, v in found[0].items() if k != "_message"}])

    rehearsal = manager.rehearse(handle, name, batch_size=2)
    rehearsed = seen.copy()
    seen.clear()
    assert manager.queue(name).drain(handle, batch_size=2).messages == rehearsal.messages > 0
    assert seen == rehearsed
    assert rehearsal.error is None


def test_verify_tells_an_archive_that_was_copied_later_than_its_journal() -> None:
    upgrade = upgrading.Upgrade()
    journal = upgrade.store.journal
    known = next(iter(journal.archive.kept.values()))
    later = replace(known, append_id="later", version=journal.version() + 3)
    journal.archive.kept["2026-11-22", later.entry_id] = later
    proof = upgrade.client("auditor").history.verify()
    told = f"the archive has commit {later.commit_seq}, and the journal ends at version 28"
    assert [problem.partition(":")[0] for problem in proof.problems] == [told]
    assert not proof.ok


def test_verify_tells_two_appends_at_one_place() -> None:
    upgrade = upgrading.Upgrade()
    journal = upgrade.store.journal
    (first, *_), _ = journal.commits[28]
    other = replace(first, append_id="other", stream="elsewhere", sequence=None)
    journal._shards[other.shard].append(other)
    journal.commits[28] = ((*journal.commits[28][0], other), {})
    proof = upgrade.client("auditor").history.verify()
    assert any(one.startswith("two appends are at commit_seq 28672") for one in proof.problems)
