"""Each argument of each public call, given what its annotation does not allow.

One typed error names the argument or the value, and nothing has happened. What an annotation does
allow may be refused too, by a typed error, or it is done, and can be read afterwards.
"""

from __future__ import annotations

import contextlib
import datetime
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import txnqueue
from tests.conformance.conftest import World, rows
from tests.inside import attempt_of
from txnqueue import QueueSettings, RetryPolicy, Rollback, plots
from txnqueue.core.settings import is_text, shown
from txnqueue.errors import (
    InvalidInput,
    PlatformMissing,
    QueueNotFound,
    TransactionUnknown,
    TxnQueueError,
)
from txnqueue.exchange_reader import ExchangeReader
from txnqueue.manager import QueueManager
from txnqueue.protocols import amqp, dtx, flow, mqqb, openamq
from txnqueue.queue_reader import QueueReader
from txnqueue.sink import _MicroBatch
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import memory_manager, plain_schema

UTC = datetime.timezone.utc
NAIVE = datetime.datetime(2026, 1, 1)
FIRST, LAST = datetime.datetime.min, datetime.datetime.max
"""The first and the last instant; the milliseconds since 1970 of the first one are negative."""


def step_by_step() -> Iterator[dict[str, int]]:
    """Yield rows one by one, once."""
    yield {"n": 1}


class Unwritable:
    """What has no text."""

    def __repr__(self) -> str:
        """Fail."""
        raise ArithmeticError


HOSTILE: tuple[Any, ...] = (
    None,
    True,
    Unwritable(),
    *(-1, 0, 1, 2**63, 10**400, 10**5_000, 2.5, 1e5, float("nan"), float("inf")),
    *(Decimal(1), np.int64(1), np.float64(1.5), np.bool_(True), np.array([1, 2]), np.array([])),
    *("", " ", "no", "a'\"\n\0", "x" * 300, "\ud800", b"x"),
    *([], ["key"], [5], ["\ud800"], {}, {"a": 5}, {5: "a"}, {"a": "\ud800"}, {"a": float("nan")}),
    *(object(), step_by_step, NAIVE, NAIVE.date(), FIRST.replace(tzinfo=UTC)),
    *(LAST.replace(tzinfo=UTC), FIRST.replace(tzinfo=datetime.timezone(datetime.timedelta(1) / 2))),
)
TEXT_OF_A_CHOICE = {"ExchangeKind", "Unwanted", "Until"}
MAPPINGS = ("Mapping[str, Any]", "Mapping[str, str]", "Mapping[str, Rows]")


def allowed(annotation: str, value: object) -> bool:
    """Return whether an annotation allows a value."""
    return any(allows(one.strip(), value) for one in alternatives(annotation))


def alternatives(annotation: str) -> list[str]:
    """Split a union into its alternatives."""
    found, depth = [""], 0
    for character in annotation:
        depth += (character in "[(") - (character in "])")
        if character == "|" and not depth:
            found.append("")
        else:
            found[-1] += character
    return found


def allows(kind: str, value: object) -> bool:
    """Return whether one alternative of an annotation allows a value."""
    if kind in MAPPINGS or kind.startswith("Mapping[str, Database"):
        return isinstance(value, Mapping) and all(map(is_text, value))
    if kind.startswith(("Callable", "Handler", "SinkHandler")):
        return callable(value) and value is not step_by_step
    if kind.startswith(("Sequence", "list", "tuple", "Iterable", "Collection")):
        return isinstance(value, (list, np.ndarray)) and all(map(is_text, value))
    if kind == "Assignments":
        return value is None or allows(MAPPINGS[1], value)
    return {
        "None": lambda: value is None,
        "bool": lambda: isinstance(value, bool),
        "int": lambda: isinstance(value, int) and not isinstance(value, bool),
        "float": lambda: is_number(value),
        "str": lambda: is_text(value),
        "bytes": lambda: isinstance(value, bytes),
        "datetime.datetime": lambda: isinstance(value, datetime.datetime) and bool(value.tzinfo),
        "Rows": lambda: isinstance(value, list),
        "Matching": lambda: isinstance(value, (list, np.ndarray)),
        "Tags": lambda: isinstance(value, (int, list, np.ndarray)) and not isinstance(value, bool),
        "Vacuum": lambda: isinstance(value, bool),
        "Any": lambda: True,
    }.get(kind, lambda: kind in TEXT_OF_A_CHOICE and is_text(value))()


def is_number(value: object) -> bool:
    """Return whether a value is a number; NaN is none, and neither is True."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and not (isinstance(value, float) and math.isnan(value))


# --------------------------------------------------------------------------- the calls

XID = dtx.Xid.of(1, b"a", b"b")
FITS: dict[str, Any] = {  # what calls require besides, by the argument's name
    "name": "q",
    "queue": "q",
    "to": "q.dead",
    "target_queue": "q.dead",
    "exchange": "x",
    "table": "gold",
    "schema": "n long",
    "add": "z long",
    "rows": rows(1),
    "body": {"n": 1},
    "handler": lambda *_given: None,
    "deliver": lambda *_given: None,
    "set": {"n": "0"},
    "where": "n = 1",
    "on": "n",
    "update": "*",
    "reason": "r",
    "commit": True,
    "consumer": "c",
    "transaction_id": "done",
    "transaction_identifier": "none",
    "change_id": "none",
    "seconds": 5.0,
    "declarations": {"queues": {}},
    "tag": 1,
    "xid": XID,
    "command_id": 1,
    "format_id": 1,
    "gtrid": "a",
    "bqual": "b",
    "connection": None,
    "data_source": "lakehouse",
    "statement": "SELECT 1",
}
MORE: dict[tuple[str, str], dict[str, Any]] = {  # what one call takes otherwise
    ("manager", "create_queue"): {"name": "fresh", "schema": "n long", "message_id": "n"},
    ("manager", "create_exchange"): {"name": "fresh", "schema": "n long"},
    ("manager", "drop_exchange"): {"name": "x"},
    ("manager", "exchange"): {"name": "x"},
    ("manager", "decide_heuristically"): {"transaction_id": "none"},
    ("tx", "send"): {"rows": {"q": rows(1)}},
    ("tx", "exchange"): {"name": "x"},
    ("history", "trace"): {"queue": "q", "where": "n = 1"},
    ("history", "report"): {"verify": False},
    ("batch", "reject"): {"matching": []},
}
INSIDE = {  # what users are not given, or have no arguments for
    ("flow", "check_source"),
    ("flow", "source"),
    ("flow", "roll_back"),
    ("connection", "cancel"),
    ("connection", "dispatch_waiting"),
    ("connection", "forget"),
    ("channel", "deliver"),
    ("messages", "find"),
    ("messages", "standing_of"),
    ("messages", "body_of"),
    ("messages", "purge"),
    ("policy", "wait_seconds"),
}
OF_THE_DRIVER = ("statement", "parameters")


def made(place: Place) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """List what users make themselves, with what else it takes."""
    manager = {"manager": place.manager}
    return {
        "QueueManager": (QueueManager, {"spark": None, "store": place.store}),
        "memory_manager": (memory_manager, {}),
        "RetryPolicy": (RetryPolicy, {}),
        "QueueSettings": (QueueSettings, {"message_id": "n"}),
        "Rollback": (Rollback, {}),
        "MessageFlow": (flow.MessageFlow, {**manager, "input_queue": "q", "nodes": [print]}),
        "DataSource": (flow.DataSource, {"name": "d", "connect": print}),
        "LocalQueueManager": (mqqb.LocalQueueManager, manager),
        "openamq.Connection": (openamq.Connection, manager),
        "dtx.Connection": (dtx.Connection, manager),
        "dtx.TpcConnection": (dtx.TpcConnection, manager),
        "dtx.Execution": (dtx.Execution, {**manager, "name": "e"}),
        "dtx.AccessTicket": (dtx.AccessTicket, {"realm": "r"}),
        "amqp.Rule": (amqp.Rule, {"users": ["a"]}),
        "amqp.AccessRules": (amqp.AccessRules, {"rules": []}),
        "amqp.Limits": (amqp.Limits, {}),
        "amqp.TransactionalResource": (amqp.TransactionalResource, manager),
        "plots.depth": (plots.depth, {"report": place.report}),
        "plots.lag": (plots.lag, {"report": place.report}),
        "plots.timeline": (plots.timeline, {"report": place.report, "transaction_id": "done"}),
        "look": (txnqueue.look, {"root": "/nowhere"}),
        "local_spark": (txnqueue.local_spark, {}),
    }


class Place:
    """A store with something of everything in it, by the names of what users hold."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.manager = manager = World(self.store).manager()
        queue = manager.create_queue("q", "n long, key string")
        queue.send(rows(*range(6)))
        exchange = manager.create_exchange("x", "direct", "n long, key string")
        exchange.bind(queue, "k")
        self.store.tables.create("gold", plain_schema("n long, key string"))
        with manager.transaction("done") as done:
            queue.receive(1, transaction=done)
        self.tx = tx = manager.transaction()
        attempt_of(tx).begin()
        self.report = manager.history.report(verify=False)
        local, connection = mqqb.LocalQueueManager(manager), openamq.Connection(manager)
        channel, coordination = connection.channel(), dtx.Connection(manager).channel()
        channel.select()
        coordination.select()
        ended = queue.stream(print, where=None, max_messages=1)
        ended.await_termination()
        self.held: dict[str, Any] = {
            "manager": manager,
            "queue": queue,
            "batch": queue.receive(2),
            "exchange": exchange,
            "tx": tx,
            "table": tx.table("gold"),
            "history": manager.history,
            "snapshot": manager.history.as_of(),
            "rehearsal": manager.rehearse(deed, "q", limit=1),
            "stream": ended,
            "reader": QueueReader(manager._client, queue.info),
            "exchange reader": ExchangeReader(manager._client, "x"),
            "policy": RetryPolicy(),
            "flow": flow.MessageFlow(manager, "q", [print]),
            "processing": flow.processing.Processing(
                flow.MessageFlow(manager, "q", [print]), {}, tx
            ),
            "local": local,
            "messages": local.queue("q"),
            "connection": connection,
            "channel": channel,
            "coordination": coordination,
            "tpc": dtx.TpcConnection(manager),
            "execution": dtx.Execution(manager, "e"),
        }
        self._begun = self._state()

    def _state(self) -> object:
        work = attempt_of(self.tx).work
        begun = len(work.sends), len(work.changes), len(work.accounts)
        payload = self.store.payload
        written = len(payload._sends), len(payload._columns), self.store.journal.version()
        return written, begun, self.tx.status

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing was written, staged or decided."""
        return self._state() == self._begun

    def call(self, what: str, name: str, argument: str) -> tuple[Callable[..., Any], Any]:
        """Return a call, and what it takes besides an argument."""
        if not name:
            called, given = made(self)[what]
            return called, {one: value for one, value in given.items() if one != argument}
        called = getattr(self.held[what], name)
        more = MORE.get((what, name), {})
        given = dict(more)
        for one in inspect.signature(called).parameters.values():
            if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
                given.setdefault(one.name, FITS.get(one.name))
        if "position" in given:
            given["position"] = self.held["messages"].message_position_list[-1]
        if "batch" in given:
            given["batch"] = self.held["batch"]
        if (what, name) == ("table", "merge"):
            matched = {} if argument == "condition" else {"on": "n"}
            given |= {**matched, "update": "*"}
        given.pop(argument, None)
        return called, given

    def check_readable(self) -> None:
        """Check that tables can hold what was written, and that messages can be read."""
        for entry in self.store.journal.read_all().entries:
            said = (entry.body, entry.reason, entry.actor, entry.run_id, entry.transaction_key)
            json.dumps(said, ensure_ascii=False, allow_nan=False, default=dict).encode()
        with contextlib.suppress(QueueNotFound):
            self.held["queue"].peek_messages()


def deed(batch: Any, tx: Any) -> None:
    """Send and change something."""
    tx.queue("q").send(rows(1))
    tx.table("gold").append(rows(1))


def arguments() -> Iterator[Any]:
    """List every argument of every public call, with its annotation."""
    place = Place()
    calls: dict[tuple[str, str], Any] = {
        (what, ""): call for what, (call, _) in made(place).items()
    }
    for what, one in place.held.items():
        for name, call in inspect.getmembers(type(one), inspect.isfunction):
            if not name.startswith("_") and (what, name) not in INSIDE:
                calls[what, name] = call
    for (what, name), call in calls.items():
        for one in inspect.signature(call).parameters.values():
            single = one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
            if single and one.name not in ("self", *OF_THE_DRIVER):
                annotation = str(one.annotation)
                yield pytest.param(what, name, one.name, annotation, id=f"{what}.{name}-{one.name}")


def names(error: TxnQueueError, argument: str, value: object) -> bool:
    """Return whether an error names the argument, or the value, or what is in it."""
    told = str(error).lower()
    inside = list(value)[:1] if isinstance(value, (list, dict, np.ndarray)) else []
    return argument.lower() in told or any(shown(one).lower() in told for one in (value, *inside))


@pytest.fixture(scope="module")
def places() -> list[Place]:
    """The place that the next call is made in, until the call changes it."""
    return [Place()]


@pytest.mark.parametrize(("what", "name", "argument", "annotation"), list(arguments()))
def test_what_cannot_be_meant_is_one_typed_error_and_changes_nothing(
    places: list[Place], what: str, name: str, argument: str, annotation: str
) -> None:
    for value in HOSTILE:
        (place,) = places
        call, given = place.call(what, name, argument)
        can_be_meant = allowed(annotation, value)
        if name == "" and what == "local_spark" and can_be_meant:
            continue  # it would start one
        try:
            found = call(**given, **{argument: value})
            if isinstance(found, txnqueue.Report):
                found.rows()
            elif isinstance(found, txnqueue.Stream):
                found.stop()
            elif inspect.isgenerator(found):
                next(found, None)
        except PlatformMissing:  # the value is one that only Spark can judge
            assert can_be_meant, f"{shown(value)} was not looked at"
        except TxnQueueError as error:
            assert not isinstance(error, TransactionUnknown), (value, error)
            assert place.is_unchanged, f"{shown(value)} changed something: {error}"
            assert can_be_meant or names(error, argument, value), f"{shown(value)}: {error}"
        else:
            assert can_be_meant or value is step_by_step, f"{shown(value)} was accepted"
            place.check_readable()
        if not place.is_unchanged:
            places[:] = [Place()]


@pytest.mark.parametrize("name", ["create_queue", "create_exchange"])
def test_what_is_refused_creates_no_store(name: str) -> None:
    needed = {"name": "fresh", "schema": "n long", "unroutable": "dead_letter"}
    create = inspect.signature(getattr(QueueManager, name))
    for argument in [one for one in create.parameters if one != "self"]:
        for value in HOSTILE:
            store = MemoryStore()
            manager = World(store).manager()
            given = {one: needed[one] for one in needed.keys() & create.parameters.keys()}
            if argument != "dead_letter_queue":
                given.pop("unroutable", None)
            before = store.journal.version()
            try:
                getattr(manager, name)(**{**given, argument: value})
            except QueueNotFound:  # a store is needed to find out
                continue
            except TxnQueueError:
                assert store.journal.version() == before, (argument, value)


@pytest.mark.parametrize("setting", sorted(txnqueue.ChangeableSettings.__annotations__))
def test_a_setting_is_not_changed_to_what_it_cannot_be(places: list[Place], setting: str) -> None:
    is_flag = isinstance(getattr(QueueSettings(), setting), bool)
    for value in HOSTILE:
        (place,) = places
        try:
            place.held["queue"].alter(**{setting: value})
        except TxnQueueError as error:
            assert place.is_unchanged
            assert names(error, setting, value), error
        else:
            assert allows("bool" if is_flag else "float", value), f"{shown(value)} was accepted"
            places[:] = [Place()]


def test_options_of_a_sink_are_those_that_it_was_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller may change a dict later, and the sink sends for weeks."""
    place, headers, order = Place(), {"a": "1"}, ["n"]
    batch = _MicroBatch("query", 1, None, None)
    monkeypatch.setattr(_MicroBatch, "of", classmethod(lambda cls, *_given: batch))
    kinds = ("queue", "exchange")
    key = {"queue": {}, "exchange": {"routing_key": "k"}}
    sinks = [place.held[one].sink(headers=headers, order_by=order, **key[one]) for one in kinds]
    place.held["queue"].purge()
    headers["a"], order[:] = "2", ["nope"]
    for sink in sinks:
        sink(rows(2, 1), 1)
    found = place.held["queue"].receive().messages()
    assert [one["n"] for one in found] == [1, 2, 1, 2]
    assert {one["_message"]["headers"]["a"] for one in found} == {"1"}


def test_a_heartbeat_beats_for_one_block() -> None:
    """A thread that was started twice was a ``RuntimeError``."""
    beating = Place().held["batch"].heartbeat()
    with beating:
        pass
    with pytest.raises(InvalidInput, match="one block"), beating:
        pass


def test_a_batch_that_another_run_committed_meanwhile_is_of_the_same_checkpoint() -> None:
    batch = _MicroBatch("query", 7, None, None)
    batch.check_is_after(6)
    batch.check_is_after(7)
    with pytest.raises(InvalidInput, match="Batch 8 of the query was written here"):
        batch.check_is_after(8)
