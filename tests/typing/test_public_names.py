"""What users see: the package's names, the names of its objects, the keys of its dicts."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import txnqueue
from tests.inside import client_of
from txnqueue import types
from txnqueue.storage.payload.schemas import MESSAGE_TYPE
from txnqueue.testing import memory_manager, plain_schema

FOR_USERS = {
    "AuditFigures": "attempts beginning causes changes dead_letters depth_every_versions depths "
    "differences events events_left_out first heuristics lanes last runs tables",
    "AuditReport": "figures html json made_at made_by payload proof root save",
    "Auxiliary": "commit connection cursor execute name rollback",
    "Batch": "accept df extend_lease heartbeat held_until holds keep messages modify move reject "
    "release to_arrow",
    "DeadLetters": "df json rows",
    "DrainResult": "already_finished applied batches dead_lettered errors failed finished "
    "last_error messages run_id stopped",
    "QueueDropResult": "dropped existed held_by messages queue",
    "EraseResult": "erased purged queue readable_until undecided",
    "Exchange": "alter bind bindings describe drop info name publish schema sink unbind",
    "ExchangeDropResult": "dropped existed exchange held_by",
    "ExchangeInfo": "arguments closing created_at_ms dead_letter_id durable exchange_id kind name "
    "schema schema_version unroutable",
    "ExchangeReader": "bindings describe name",
    "Heartbeat": "beats lost",
    "History": "as_of changes digest horizon report trace verify",
    "HistoryDigest": "after commit_seq entries parse seed sha256",
    "MaintenanceResult": "archived compacted dry_run forgotten horizon orphans removed rewritten "
    "skipped slices",
    "Metrics": "df json prometheus rows",
    "Outcome": "attempts heuristic reason receipt status transaction_id",
    "PublishResult": "count queues receipt returned returned_messages send_id transaction_id "
    "unroutable",
    "Queue": "alter dead_letters depth drain drop in_flight info move name peek peek_messages "
    "purge receive redrive replay resend schema send sink stream",
    "QueueInfo": "closing created_at_ms dead_letter_id name queue_id schema schema_version "
    "settings",
    "QueueManager": "apply_change attempts close commit create_exchange create_queue "
    "create_views decide_heuristically declare drop_exchange drop_queue erase exchange forget "
    "history "
    "list_exchanges "
    "list_queues maintain metrics outcome queue recover rehearse release rollback root "
    "run_transaction sink take_over transaction view_statements waive_change",
    "QueueDataSource": "name options reader register schema simpleStreamReader streamReader "
    "streamWriter writer",
    "QueueReader": "dead_letters depth in_flight info name peek peek_messages",
    "QueueSettings": "dead_letter dead_letter_expired delay_step_seconds deliveries_max "
    "duplicate_window_seconds durable group_by lanes lease_seconds message_id ordered "
    "redelivery_delay_seconds redelivery_delay_seconds_max",
    "Receipt": "applied commit_seq committed_at journal_version transaction_id",
    "RecoveryResult": "aborted databases drops erasing exchange_drops heuristic prepared "
    "released waiting",
    "RetryPolicy": "attempts_max seconds_max wait_seconds_first wait_seconds_max",
    "Rollback": "reason transaction",
    "SendResult": "count receipt send_id transaction_id",
    "Rehearsal": "batches changes commit_seq consumed df error json limits messages rolled_back "
    "rows sent transactions was_sent",
    "ReplayedBatch": "accept df extend_lease heartbeat held_until holds keep messages modify move "
    "reject release to_arrow",
    "Report": "df json rows",
    "Stream": "await_termination exception is_active result stop",
    "Snapshot": "at_ms bindings commit_seq counts dispatches exchanges messages queues "
    "transactions",
    "DeclarationResult": "action changes held_by queue",
    "StoreReader": "entries exchange history list_exchanges list_queues metrics outcome queue "
    "refresh root",
    "TableChanges": "append delete merge schema update",
    "Transaction": "already_committed auxiliary commit digest enlist exchange id lease_seconds "
    "metadata prepare queue receipt rollback send status table",
    "VerificationResult": "claims commit_seq compared log_from_version ok problems",
    "WaitingChange": "change_id commit_seq operation reason remedy rows table transaction_id",
}
"""What each class is to show."""
TO_GO = {
    "Auxiliary": "end",
    "ExchangeInfo": "payload_id",
    "QueueInfo": "in_memory payload_id redelivery sequence transient",
    "QueueSettings": "detects_by duplicate_window_ms lanes_by",
    "Receipt": "in_memory of",
    "RetryPolicy": "wait_seconds",
}
"""What shows today though only the library uses it. Nothing is to be added here."""


NOT_NAMED = {
    **dict.fromkeys(
        [
            *("AttemptLine", "Cause", "DeadLetterCause", "DepthPoint", "Event"),
            *(
                "HeuristicDecision",
                "LaneLag",
                "Moment",
                "QueueDifference",
                "RunLine",
                "TableChange",
            ),
            "TableLag",
        ],
        "a line of AuditFigures",
    ),
    "CheckedPromise": "a line of VerificationResult.claims",
    "RowT_co": "the rows of a report, by a type variable",
    "Runtime": "for tests, by txnqueue.testing",
    "Store": "for tests, by txnqueue.testing",
}
"""Types in users' signatures that the package does not name, and why."""
FOREIGN = frozenset(
    [
        "Any",
        "BaseException",
        "Callable",
        "DataFrame",
        "DataSourceReader",
        "DataSourceStreamReader",
        "Exception",
        "Iterator",
        "Mapping",
        "None",
        "NoReturn",
        "Path",
        "Sequence",
        "SimpleDataSourceStreamReader",
        "SparkSession",
        "StructType",
        "Unpack",
    ]
)
"""Types in users' signatures that come from Python and Spark."""


class Database:
    """A connection that does nothing."""

    commit = rollback = cursor = lambda self: None


def looked_at(folder: Path) -> txnqueue.StoreReader:
    """Look at the store that an older version left."""
    stores = Path(__file__).resolve().parents[1] / "stores"
    with tarfile.open(stores / "0.1.0.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    return txnqueue.look(str(folder / "store"))


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """One object of each public class, as users get it."""
    manager = memory_manager()
    orders = manager.create_queue("orders", "a long")
    sold = manager.create_exchange("sold", "direct", "a long")
    tx = manager.transaction()
    stream = memory_manager().create_queue("idle", "a long").stream(lambda batch, tx: None)
    stream.stop()
    steps = manager.declare({"queues": {"bills": {"schema": "b long"}}})
    made = [
        *(manager, manager.history, manager.history.as_of(), manager.history.verify()),
        manager.history.digest(),
        *(manager.metrics(), manager.maintain(), manager.recover(), steps[0]),
        *(orders, orders.info, orders.info.settings, orders.send([{"a": 1}])),
        *(orders.drain(lambda batch, tx: None, max_seconds=0), orders.dead_letters()),
        *(sold, sold.info, sold.publish([{"a": 2}]), sold.drop()),
        *(tx, tx.auxiliary("log", Database()), tx.table("gold/totals")),
        *((batch := orders.receive(transaction=tx)), batch.heartbeat()),
        *(
            tx.commit(),
            orders.replay(),
            manager.rehearse(print, orders),
            manager.outcome(tx.id),
            orders.drop(),
            txnqueue.RetryPolicy(),
        ),
        *(txnqueue.EraseResult("orders"), txnqueue.Rollback(tx), manager.history.changes(), stream),
        *((report := manager.history.report()), report.figures),
        *(
            (look := looked_at(tmp_path_factory.mktemp("older"))),
            look.queue("orders"),
            look.exchange("news"),
            txnqueue.QueueDataSource({}),
        ),
        txnqueue.WaitingChange("c-1", "t-1", 1, "gold/totals", "append", 1, "why", "what to do"),
    ]
    return {type(one).__name__: one for one in made}


@pytest.mark.parametrize("name", FOR_USERS)
def test_an_object_shows_what_is_the_users_and_nothing_new(objects: Any, name: str) -> None:
    shown = {one for one in dir(objects[name]) if not one.startswith("_")} - {*dir(Exception)}
    assert shown == {*FOR_USERS[name].split(), *TO_GO.get(name, "").split()}


def test_every_public_class_is_held_to_its_list(objects: Any) -> None:
    classes = {name for name in txnqueue.__all__ if inspect.isclass(getattr(txnqueue, name))}
    without_state = {
        name for name in classes if getattr(txnqueue, name).__module__ == types.__name__
    }
    assert FOR_USERS.keys() == classes - without_state - {"Message", "NotGiven", "Status"}
    assert objects.keys() == FOR_USERS.keys() and TO_GO.keys() <= FOR_USERS.keys()


def annotated(name: str) -> Iterator[Any]:
    """List what the members of a class that are for users take and answer, as annotated."""
    made = getattr(txnqueue, name)
    for member in FOR_USERS[name].split() + ["__init__"] * (name == "QueueManager"):
        found = inspect.getattr_static(made, member, None)
        found = found.fget if isinstance(found, property) else found
        if inspect.isfunction(found):
            yield from found.__annotations__.values()
        else:
            yield made.__annotations__.get(member, "")


@pytest.mark.parametrize("name", FOR_USERS)
def test_what_signatures_name_can_be_imported_from_the_package(name: str) -> None:
    named = {
        one for text in annotated(name) for one in re.findall(r"(?<![.\w])[A-Z]\w*", str(text))
    }
    assert named - FOREIGN <= {*txnqueue.__all__, *NOT_NAMED}


def test_what_type_checkers_read_is_what_is_loaded() -> None:
    tree = ast.parse(Path(txnqueue.__file__).read_text())
    (block,) = (one for one in tree.body if isinstance(one, ast.If))
    read = {
        alias.name: one.module.removeprefix("txnqueue.")
        for one in block.body
        if isinstance(one, ast.ImportFrom) and one.module is not None
        for alias in one.names
    }
    assert read == vars(txnqueue)["_HOMES"]
    assert sorted(txnqueue.__all__) == sorted([*read, "__version__", "errors"]) == dir(txnqueue)
    assert [one for one in txnqueue.__all__ if not hasattr(txnqueue, one)] == []


def test_the_package_loads_nothing_before_it_is_used() -> None:
    code = "import sys, txnqueue; print({'pyspark', 'pyarrow', 'txnqueue.client'} & {*sys.modules})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_rows_have_the_keys_that_are_declared() -> None:
    manager = memory_manager()
    orders = manager.create_queue("orders", "a long")
    sold = manager.create_exchange("sold", "direct", "a long")
    sold.bind(orders)
    orders.send([{"a": 1}], headers={"source": "test"})
    with manager.transaction() as tx:
        orders.receive(transaction=tx).reject(reason="no", transaction=tx)
    dead = manager.queue("orders.dead")
    store: Any = client_of(manager).store
    store.tables.create("totals", plain_schema("a long"))
    (message,) = dead.peek_messages()
    about = message["_message"]
    history, snapshot = manager.history, manager.history.as_of()
    shown: dict[type, Any] = {
        types.MessageInfo: [about],
        types.Origin: [about["origin"]],
        types.TraceStep: history.trace(about["id"]).rows(),
        types.ChangeRow: history.changes().rows(),
        types.TransactionRow: snapshot.transactions().rows(),
        types.DispatchRow: snapshot.dispatches().rows(),
        types.BindingRow: snapshot.bindings().rows(),
        types.ExchangeRow: snapshot.exchanges().rows(),
        types.QueueCounts: snapshot.counts().rows(),
        types.QueueRow: snapshot.queues().rows(),
        types.QueueMetrics: manager.metrics().rows(),
        types.DeadLetterCount: orders.dead_letters().rows(),
        types.ChangedRow: manager.rehearse(
            lambda _, tx: tx.table("totals").append([{"a": 1}]), dead
        )
        .changes("totals")
        .rows(),
        types.RehearsalRow: manager.rehearse(lambda _, tx: None, dead).rows(),
        types.ExchangeDescription: [sold.describe()],
    }
    for declared, rows in shown.items():
        keys = get_type_hints(declared).keys()
        assert rows and all(row.keys() == keys for row in rows), declared
    assert MESSAGE_TYPE.names == list(types.MessageInfo.__annotations__)
    assert about["headers"] == {"source": "test"}
