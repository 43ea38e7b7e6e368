"""Drivers of an older version beside drivers of this one: the older code is in git's history."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from tests.delta.test_two_drivers import kill
from tests.drivers import FOLDER, start
from tests.stores.older_code import code_of
from txnqueue import QueueManager

KILLS, SENDS = 4, 12
AT_ONCE: Any = {"transaction_seconds_max": 0, "payload_retention_days": 0, "vacuum": False}
MAKER = """
import sys
from tests import drivers
from txnqueue import QueueManager
root, what = sys.argv[1:]
manager = QueueManager(drivers.session("maker"), root, actor="maker")
try:
    if what == "make":
        manager.create_queue("first", "n long").send([{"n": 1}])
    print(what, len(manager.list_queues()), flush=True)
except Exception as error:
    print(type(error).__name__, error, flush=True)
drivers.leave()
"""


def said(folder: Path, root: str, what: str, attach_to: Any) -> str:
    """Let the older code make a store, or look at one, and read what it says."""
    process = start("maker", root, what, attach_to=attach_to, folder=folder)
    out, _ = process.communicate(timeout=120)
    return out.strip()


def beside(spark: Any, folder: Path, number: int) -> Counter[str]:
    """Let both versions work on one store, killed now and then; and show the older one a new one.

    Only those are counted as killed that were still alive.

    Args:
        spark: The session.
        folder: A new one.
        number: A seed; it also says which version produces and which one consumes.
    """
    older = folder / "code"
    code_of("0.1.0", older, "tests/delta/__init__.py", "tests/delta/driver.py")
    (older / "maker.py").write_text(MAKER, encoding="utf-8")
    shared, new = str(folder / "shared"), str(folder / "new")
    assert said(older, shared, "make", spark) == "make 2"
    manager = QueueManager(spark, shared)
    assert manager.queue("first").depth() == 1
    folders = (older, FOLDER) if number % 2 else (FOLDER, older)
    alive = kill(spark, shared, number, KILLS, SENDS, attached=True, folders=folders)
    proof = manager.history.verify()
    assert proof.ok, str(proof)
    manager.maintain(**AT_ONCE)
    assert said(older, shared, "look", spark).startswith("look ")
    proof = QueueManager(spark, shared).history.verify()
    assert proof.ok, str(proof)
    QueueManager(spark, new).create_queue("first", "n long").send([{"n": 1}])
    before = newest_version(spark, new)
    for what in ("look", "make"):
        told = said(older, new, what, spark)
        assert told.startswith("LayoutUnsupported"), told
    assert newest_version(spark, new) == before
    who = "older produces" if number % 2 else "older consumes"
    return Counter({"kills": alive, "messages": SENDS * 10, who: 1, "refusals": 2})


def newest_version(spark: Any, root: str) -> int:
    """Find how many commits the journal of a store has."""
    history = spark.sql(f"DESCRIBE HISTORY delta.`{root}/journal` LIMIT 1")
    return int(history.collect()[0]["version"])
