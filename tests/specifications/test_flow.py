"""Message flows: the main transaction, auxiliary ones, and flows without either."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, on_delta_when_long
from tests.faults.injection import Crash, Fault, Injector, faults_of
from tests.faults.interrupts import Interrupt
from tests.faults.world import World as CrashWorld
from tests.inside import client_of
from tests.postgres import connect, values
from tests.silence import unanswered
from txnqueue import Status
from txnqueue.errors import (
    InvalidInput,
    QueueNotFound,
    StatementRefused,
    TransactionAborted,
    TransactionError,
    TransactionFinished,
    TransactionUnknown,
)
from txnqueue.protocols.flow import LAKEHOUSE, DataSource, DataSourceFailed, MessageFlow, Processing
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.store import MemoryStore
from txnqueue.testing import plain_schema

_NUMBERS = itertools.count(1)


class Broken(Exception):
    """What fails, in these tests."""


def failing(processing: Processing) -> None:
    raise Broken


class Broker:
    """An input queue with messages, output queues, a Delta table and sqlite3 databases."""

    def __init__(self, world: Any, folder: Path, messages: int = 1) -> None:
        self.world = world
        self.folder = folder
        self.manager = world.manager("broker")
        self.input, self.output, self.second = (
            self.manager.create_queue(world.name(name), "n long", dead_letter=name == "in")
            for name in ("in", "out", "second")
        )
        self.input.send([{"n": n} for n in range(1, messages + 1)])
        self.table = self._table()
        self.databases: dict[str, str] = {}

    def _table(self) -> str:
        if self.world.spark is None:
            name = self.world.name("payments")
            self.world.store.tables.create(name, plain_schema("n long"))
            return str(name)
        name = str(self.folder / f"payments-{next(_NUMBERS)}")
        self.world.spark.sql(f"CREATE TABLE delta.`{name}` (n long) USING delta")
        return name

    def source(self, name: str = "ledger", **options: Any) -> DataSource:
        """A database in a file of its own."""
        file = self.databases.setdefault(name, str(self.folder / f"{name}.db"))
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS ledger (n integer)")
        connection.close()
        return DataSource(name, lambda: sqlite3.connect(file, timeout=0.1), **options)

    def flow(self, *nodes: Any, **options: Any) -> MessageFlow:
        return MessageFlow(self.manager, self.input.name, nodes, **options)

    # what a node does at an instant

    def row(self, n: int = 1, **how: Any) -> Callable[[Processing], Any]:
        return lambda processing: processing.table(self.table, **how).append([{"n": n}])

    def out(self, n: int = 1, **how: Any) -> Callable[[Processing], Any]:
        return lambda processing: processing.put(self.output.name, [{"n": n}], **how)

    @staticmethod
    def insert(source: str, n: int = 1, **how: Any) -> Callable[[Processing], Any]:
        statement = "INSERT INTO ledger VALUES (?)"
        return lambda processing: processing.execute(source, statement, [n], **how)

    # what is there afterwards

    def rows(self) -> list[int]:
        if self.world.spark is None:
            found = self.world.store.tables.rows(self.table)
            return sorted(found.column("n").to_pylist()) if found.num_columns else []
        frame = self.world.spark.read.format("delta").load(self.table)
        return sorted(row["n"] for row in frame.collect())

    def sent(self) -> list[int]:
        return [row["n"] for row in self.output.peek_messages(100)]

    def ledger(self, name: str = "ledger") -> list[int]:
        return values(sqlite3.connect(self.databases[name]))

    def waiting(self) -> list[int]:
        return [row["n"] for row in self.input.peek_messages(100)]

    @property
    def taken(self) -> bool:
        return (self.input.depth(), self.input.in_flight()) == (0, 0)

    def undo_data(self) -> list[Any]:
        """Everything that a roll back would need."""
        snapshot = self.manager.history.as_of(client_of(self.manager).store.journal.version() << 10)
        mine = {self.input.name}
        held = [r for r in snapshot.counts().rows() if r["queue"] in mine and r["in_flight"]]
        claims = {r["attempt"] for r in snapshot.dispatches().rows() if r["queue"] in mine}
        rows = [r for r in snapshot.transactions().rows() if r["attempt"] in claims]
        return held + [r for r in rows if r["status"] in ("pending", "prepared")]


@pytest.fixture
def broker(world: Any, tmp_path: Path) -> Broker:
    return Broker(world, tmp_path)


@pytest.mark.rule("S2-01", "S2-03", "S2-05")
def test_one_transaction_covers_messages_and_tables(broker: Broker) -> None:
    seen: list[Any] = []
    nodes = [lambda processing: seen.append(broker.undo_data()), broker.row(), broker.out()]
    assert broker.undo_data() == []
    flow = broker.flow(*nodes)
    processed = flow.process()
    assert processed is not None and processed.message["n"] == 1
    assert seen[0], "from taking the input on it can be undone"
    assert broker.undo_data() == []
    assert (broker.rows(), broker.sent(), broker.taken) == ([1], [1], True)
    steps = broker.manager.history.as_of(processed.receipt.commit_seq).transactions().rows()
    assert [r["commit_seq"] for r in steps].count(processed.receipt.commit_seq) == 1
    before = client_of(broker.manager).store.journal.version()
    assert flow.process() is None
    assert client_of(broker.manager).store.journal.version() == before, "nothing is noted when idle"


@on_delta_when_long
@pytest.mark.rule("S2-02")
@pytest.mark.parametrize("at", range(5))
def test_without_transactions_what_was_done_before_a_failure_stays(broker: Broker, at: int) -> None:
    nodes = [broker.row(2), broker.insert("ledger", 3), broker.out(4), broker.row(5)]
    nodes.insert(at, failing)
    flow = broker.flow(*nodes, coordinated=False, transacted=False, data_sources=[broker.source()])
    with pytest.raises(Broken):
        flow.process()
    assert broker.taken
    assert broker.rows() == [2, 5][: (at > 0) + (at > 3)]
    assert broker.ledger() == [3][: at > 1]
    assert broker.sent() == [4][: at > 2]


class Stubborn(sqlite3.Connection):
    """A connection that says that it cannot roll back."""

    def rollback(self) -> None:
        super().rollback()
        raise Broken


@in_memory
@pytest.mark.rule("S2-02")
@pytest.mark.parametrize("kind", [sqlite3.Connection, Stubborn])
def test_without_transactions_a_statement_that_fails_locks_nothing(
    world: Any, tmp_path: Path, kind: type[sqlite3.Connection]
) -> None:
    """Neither for other users of the database, nor for the messages that come next."""
    broker = Broker(world, tmp_path, messages=4)
    broker.source()
    file = broker.databases["ledger"]
    with sqlite3.connect(file) as other:
        other.execute("CREATE TRIGGER two BEFORE INSERT ON ledger WHEN NEW.n = 2 "
                      "BEGIN SELECT raise(ABORT, 'two'); END")  # fmt: skip
    opened: list[sqlite3.Connection] = []

    def opens() -> sqlite3.Connection:
        opened.append(sqlite3.connect(file, timeout=0.1, factory=kind))
        return opened[-1]

    node = lambda p: p.execute("ledger", "INSERT INTO ledger VALUES (?)", [p.message["n"]])  # noqa: E731
    source = DataSource("ledger", opens)
    flow = broker.flow(node, coordinated=False, transacted=False, data_sources=[source])
    with pytest.raises(sqlite3.IntegrityError, match="two"):
        flow.run()
    with other:
        other.execute("INSERT INTO ledger VALUES (9)")
    other.close()
    assert flow.run() == 2
    assert sorted(broker.ledger()) == [1, 3, 4, 9]
    assert len(opened) == (2 if kind is Stubborn else 1)
    flow.close()


@on_delta_when_long
@pytest.mark.rule("S2-04", "S2-06")
@pytest.mark.parametrize("at", range(5))
def test_a_failure_anywhere_leaves_nothing(broker: Broker, at: int) -> None:
    nodes = [broker.row(2), broker.out(3), broker.row(4), broker.insert("ledger", 5)]
    nodes.insert(at, failing)
    flow = broker.flow(*nodes, data_sources=[broker.source(last=True)])
    with pytest.raises(Broken):
        flow.process()
    assert (broker.rows(), broker.sent(), broker.ledger()) == ([], [], [])
    assert broker.waiting() == [1] and broker.undo_data() == []


@on_delta_when_long
@pytest.mark.rule("S2-05", "S2-06")
def test_a_later_failure_undoes_nothing_of_earlier_messages(world: Any, tmp_path: Path) -> None:
    broker = Broker(world, tmp_path, messages=3)

    def second_fails(processing: Processing) -> None:
        n = processing.message["n"]
        processing.table(broker.table).append([{"n": n}])
        processing.put(broker.output.name, [{"n": n}])
        if n == 2:
            raise Broken

    flow = broker.flow(second_fails)
    flow.process()
    with pytest.raises(Broken):
        flow.process()
    assert (broker.rows(), broker.sent(), broker.waiting()) == ([1], [1], [2, 3])


CALLS = 24
"""More store calls than a flow of one message makes."""


@pytest.mark.rule("S2-04", "S2-06")
@pytest.mark.parametrize("fault", list(Fault))
def test_a_crash_anywhere_leaves_all_or_nothing(tmp_path: Path, fault: Fault) -> None:
    """The last resource's database included; whoever recovers finishes it."""
    outcomes = set()
    for at in range(CALLS):
        world, injector = CrashWorld(), Injector(at, fault)
        world.create("in")
        world.create("out")
        world.create_table()
        world.helper("creator").queue("in").send([{"i": 7}])
        file = str(tmp_path / f"{fault.name}-{at}.db")
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE ledger (n integer)")
        source = DataSource("ledger", partial(sqlite3.connect, file), last=True)

        def node(processing: Processing, table: str = world.table) -> None:
            processing.table(table).append([{"i": 7}])
            processing.execute("ledger", "INSERT INTO ledger VALUES (7)")
            processing.put("out", [{"i": 7}])

        manager = world.manager("A", injector)
        manager.list_queues()
        flow = MessageFlow(manager, "in", [node], data_sources=[source])
        injector.arm()
        try:
            flow.process()
        except (Crash, KeyboardInterrupt, ConnectionError, AppendConflict):
            pass
        except (StatementRefused, TransactionUnknown):
            pass
        if at < len(injector.calls) and fault not in faults_of(injector.calls[at]):
            continue  # no such call fails so
        injector.disarm()
        injector.flush()
        flow.close()
        world.lease_over()
        again = sqlite3.connect(file)
        recovering = world.manager("B")
        recovering.recover({"ledger": again})
        done = values(again) == [7]
        assert recovering.queue("out").depth() == int(done)
        assert len(recovering.queue("in").receive(2)) == int(not done)
        assert world.table_numbers() == [7] * done
        outcomes.add(done)
    assert True in outcomes
    assert False in outcomes or fault is Fault.CONFLICT_THOUGH_LANDED


# ------------------------------------------------------------------ auxiliary transactions


@in_memory
@pytest.mark.rule("S2-07", "S2-08", "S2-09", "S2-14")
@pytest.mark.parametrize(("at", "main", "auxiliary"), [(3, 0, 0), (5, 0, 2), (None, 1, 2)])
@pytest.mark.parametrize("data_source", ["ledger", LAKEHOUSE])
def test_an_auxiliary_transaction_inside_the_main_one(
    broker: Broker, data_source: str, at: int | None, main: int, auxiliary: int
) -> None:
    """The text's second diagram: the auxiliary one works at 3 and 6, and commits at 7."""

    def beside(n: int) -> Callable[[Processing], Any]:
        if data_source == LAKEHOUSE:
            return broker.row(n, uncoordinated=True)
        return broker.insert("ledger", n, uncoordinated=True)

    nodes = [
        broker.out(2),
        beside(3),
        beside(6),
        lambda processing: processing.commit(data_source),
        broker.out(8),
    ]
    if at is not None:
        nodes.insert(at, failing)
    flow = broker.flow(*nodes, data_sources=[broker.source()])
    if at is None:
        flow.process()
    else:
        with pytest.raises(Broken):
            flow.process()
    found = broker.rows() if data_source == LAKEHOUSE else broker.ledger()
    assert found == [3, 6][:auxiliary]
    assert broker.sent() == [2, 8] * main and broker.taken == bool(main)


@on_delta_when_long
@pytest.mark.rule("S2-10")
def test_auxiliary_transactions_follow_one_another(broker: Broker) -> None:
    def node(processing: Processing) -> None:
        for n, end in enumerate([processing.commit, processing.rollback, processing.commit]):
            processing.table(broker.table, uncoordinated=True).append([{"n": n}])
            processing.execute("ledger", f"INSERT INTO ledger VALUES ({n})", uncoordinated=True)
            end("ledger")
            end(LAKEHOUSE)
        raise Broken

    with pytest.raises(Broken):
        broker.flow(node, data_sources=[broker.source()]).process()
    assert broker.rows() == [0, 2] == broker.ledger()
    assert broker.waiting() == [1]


@on_delta_when_long
@pytest.mark.rule("S2-11")
def test_each_data_source_has_its_own(broker: Broker) -> None:
    def node(processing: Processing) -> None:
        for name in ("ledger", "audit"):
            processing.execute(name, "INSERT INTO ledger VALUES (1)", uncoordinated=True)
        processing.table(broker.table, uncoordinated=True).append([{"n": 1}])
        processing.commit("audit")
        processing.rollback("ledger")
        assert (broker.ledger("audit"), broker.ledger(), broker.rows()) == ([1], [], [])
        processing.execute("ledger", "INSERT INTO ledger VALUES (2)", uncoordinated=True)

    broker.flow(node, data_sources=[broker.source(), broker.source("audit")]).process()
    assert (broker.ledger("audit"), broker.ledger(), broker.rows()) == ([1], [2], [1])


@on_delta_when_long
@pytest.mark.rule("S2-12")
@pytest.mark.parametrize("fails", [True, False])
def test_what_is_left_open_follows_the_outcome(broker: Broker, fails: bool) -> None:
    nodes = [
        broker.insert("ledger", 1, uncoordinated=True),
        broker.row(1, uncoordinated=True),
        *([failing] if fails else []),
    ]
    flow = broker.flow(*nodes, data_sources=[broker.source()])
    if fails:
        with pytest.raises(Broken):
            flow.process()
    else:
        assert flow.process() is not None
    expected = [] if fails else [1]
    assert broker.ledger() == expected == broker.rows()
    assert broker.taken != fails


class Refusing(sqlite3.Connection):
    """A database that is full."""

    def commit(self) -> None:
        raise sqlite3.OperationalError("disk full")


@on_delta_when_long
@pytest.mark.rule("S2-06", "S2-12")
def test_a_data_source_that_cannot_commit_rolls_the_message_back_and_run_raises(
    broker: Broker,
) -> None:
    """It is told at once, and nothing of the message is lost: it waits for the next run."""
    first, full = broker.source("first"), broker.source("full")
    connect = full.connect
    full = DataSource("full", lambda: sqlite3.connect(broker.databases["full"], factory=Refusing))
    nodes = [broker.out(), broker.row(uncoordinated=True)]
    nodes += [broker.insert(name, 1, uncoordinated=True) for name in ("first", "full")]
    with pytest.raises(DataSourceFailed, match=r"'full' could not commit.*disk full") as caught:
        broker.flow(*nodes, data_sources=[first, full]).run()
    assert caught.value.name == "full"
    assert (broker.sent(), broker.waiting(), broker.rows()) == ([], [1], [])
    assert (broker.ledger("first"), broker.ledger("full")) == ([1], [])
    repaired = DataSource("full", connect)
    assert broker.flow(*nodes, data_sources=[first, repaired]).run() == 1
    assert (broker.sent(), broker.taken, broker.rows()) == ([1], True, [1])
    assert (broker.ledger("first"), broker.ledger("full")) == ([1, 1], [1])


@pytest.mark.rule("S2-02", "S2-12")
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_a_crash_between_the_commits_repeats_the_message_and_loses_no_row(
    tmp_path: Path, fault: Fault
) -> None:
    """Tables and databases outside are committed first: what was put has its rows, always."""
    rows_found = set()
    for at in range(CALLS):
        world, injector = CrashWorld(), Injector(at, fault)
        world.create("in")
        world.create("out")
        world.create_table()
        world.helper("creator").queue("in").send([{"i": 7}])
        file = str(tmp_path / f"{fault.name}-{at}.db")
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE ledger (n integer)")
        source = DataSource("ledger", partial(sqlite3.connect, file))

        def node(processing: Processing, table: str = world.table) -> None:
            processing.put("out", [{"i": 7}])
            processing.table(table).append([{"i": 7}])
            processing.execute("ledger", "INSERT INTO ledger VALUES (7)")

        def flow(manager: Any, node: Any = node, source: DataSource = source) -> MessageFlow:
            return MessageFlow(manager, "in", [node], coordinated=False, data_sources=[source])

        broken = flow(world.manager("A", injector))
        injector.arm()
        with contextlib.suppress(Crash, ConnectionError, TransactionError):
            broken.process()
        if at < len(injector.calls) and fault not in faults_of(injector.calls[at]):
            continue  # no such call fails so
        broken.close()
        world.lease_over()
        recovering = world.manager("B")
        recovering.recover()
        found = sqlite3.connect(file)
        if recovering.queue("out").depth():
            assert values(found) and world.table_numbers()
        flow(recovering).run()
        assert recovering.queue("out").depth() == 1
        assert recovering.queue("in").depth() == recovering.queue("in").in_flight() == 0
        rows_found.add((len(values(found)), len(world.table_numbers())))
    assert rows_found >= {(1, 1), (2, 2)}, "outside is: at least once"


@on_delta_when_long
@pytest.mark.rule("S2-13")
@pytest.mark.parametrize("first", ["coordinated", "uncoordinated"])
def test_a_database_may_refuse_both_uses_in_one_flow(broker: Broker, first: str) -> None:
    plain = broker.insert("ledger", 1)
    beside = broker.insert("ledger", 2, uncoordinated=True)
    nodes = [plain, beside] if first == "coordinated" else [beside, plain]
    flow = broker.flow(*nodes, data_sources=[broker.source(last=True, mixed=False)])
    with pytest.raises(InvalidInput, match="a data source for each"):
        flow.process()
    assert broker.ledger() == [] and broker.waiting() == [1]
    two = [broker.source(last=True, mixed=False), broker.source("other", mixed=False)]
    nodes = [plain, broker.insert("other", 2, uncoordinated=True), broker.out()]
    broker.flow(*nodes, data_sources=two).process()
    assert (broker.ledger(), broker.ledger("other"), broker.sent()) == ([1], [2], [1])


@on_delta_when_long
@pytest.mark.rule("S2-14")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_commit_and_rollback_act_on_auxiliary_transactions_only(broker: Broker, end: str) -> None:
    def node(processing: Processing) -> None:
        processing.put(broker.output.name, [{"n": 1}])
        processing.table(broker.table).append([{"n": 1}])
        processing.execute("ledger", "INSERT INTO ledger VALUES (1)")
        processing.execute("audit", "INSERT INTO ledger VALUES (1)", uncoordinated=True)
        for name in ("ledger", "audit", LAKEHOUSE):
            getattr(processing, end)(name)
        assert (broker.rows(), broker.sent(), broker.ledger()) == ([], [], [])
        with pytest.raises(InvalidInput, match="nothing"):
            getattr(processing, end)("nothing")

    sources = [broker.source(last=True), broker.source("audit")]
    broker.flow(node, data_sources=sources).process()
    assert (broker.rows(), broker.sent(), broker.ledger()) == ([1], [1], [1])
    assert broker.ledger("audit") == [1] * (end == "commit")


@on_delta_when_long
@pytest.mark.rule("S2-15")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_each_uncoordinated_get_and_put_commits_by_itself(broker: Broker, end: str) -> None:
    broker.second.send([{"n": 7}])

    def node(processing: Processing) -> None:
        assert [m["n"] for m in processing.get(broker.second.name, uncoordinated=True)] == [7]
        processing.put(broker.output.name, [{"n": 1}], uncoordinated=True)
        processing.put(broker.output.name, [{"n": 2}], uncoordinated=True)
        getattr(processing, end)(LAKEHOUSE)
        assert broker.sent() == [1, 2]
        raise Broken

    with pytest.raises(Broken):
        broker.flow(node).process()
    assert broker.sent() == [1, 2] and broker.waiting() == [1]
    assert (broker.second.depth(), broker.second.in_flight()) == (0, 0)


@on_delta_when_long
@pytest.mark.rule("S2-01", "S2-15")
def test_a_coordinated_get_and_put_belong_to_the_main_transaction(broker: Broker) -> None:
    broker.second.send([{"n": 7}])

    def node(processing: Processing) -> None:
        (found,) = processing.get(broker.second.name)
        processing.put(broker.output.name, [{"n": found["n"]}])

    with pytest.raises(Broken):
        broker.flow(node, failing).process()
    assert broker.second.depth() == 1 and broker.sent() == []
    broker.flow(node).process()
    assert (broker.second.depth(), broker.second.in_flight()) == (0, 0) and broker.sent() == [7]


@on_delta_when_long
@pytest.mark.rule("S2-16")
@pytest.mark.parametrize("fails", [True, False])
def test_how_a_flow_is_split_into_nodes_changes_nothing(
    world: Any, tmp_path: Path, fails: bool
) -> None:
    results = []
    for size in (1, 2, 7):
        folder = tmp_path / str(size)
        folder.mkdir()
        broker = Broker(world, folder)
        steps = [
            broker.row(1),
            broker.insert("ledger", 2, uncoordinated=True),
            broker.insert("audit", 3, uncoordinated=True),
            lambda processing: processing.commit("ledger"),
            broker.out(4),
            broker.insert("ledger", 5, uncoordinated=True),
            failing if fails else broker.row(6),
        ]
        nodes = [steps[i : i + size] for i in range(0, len(steps), size)]
        flow = broker.flow(
            *(lambda p, part=part: [step(p) for step in part] for part in nodes),
            data_sources=[broker.source(), broker.source("audit")],
        )
        try:
            flow.process()
        except Broken:
            assert fails
        results.append((broker.rows(), broker.sent(), broker.ledger(), broker.ledger("audit")))
        world._prefix += "x"
    expected: Any = ([], [], [2], []) if fails else ([1, 6], [4], [2, 5], [3])
    assert results == [expected] * 3


@on_delta_when_long
@pytest.mark.rule("S2-17", "S2-12")
def test_in_a_flow_that_is_not_coordinated_every_table_is_outside(broker: Broker) -> None:
    nodes = [
        broker.insert("ledger", 1),
        broker.row(1),
        lambda processing: processing.commit("ledger"),
        lambda processing: processing.commit(LAKEHOUSE),
        broker.insert("ledger", 2),
        broker.row(2),
        broker.out(3),
    ]
    sources = [broker.source()]
    with pytest.raises(Broken):
        broker.flow(*nodes, failing, coordinated=False, data_sources=sources).process()
    assert (broker.ledger(), broker.rows()) == ([1], [1])
    assert broker.sent() == [] and broker.waiting() == [1], "the messages are inside"
    broker.flow(*nodes, coordinated=False, data_sources=sources).process()
    assert (broker.ledger(), broker.rows()) == ([1, 1, 2], [1, 1, 2])
    assert broker.sent() == [3] and broker.taken


# --------------------------------------------------------------------------- PostgreSQL


@on_delta_when_long
@pytest.mark.rule("S2-01", "S2-04", "S2-08", "S2-11")
def test_postgres_inside_and_beside(broker: Broker, database: str) -> None:
    """A database with two-phase commit takes both uses at once."""
    source = DataSource("bank", lambda: connect(database))

    def node(processing: Processing) -> None:
        processing.execute("bank", "INSERT INTO ledger VALUES (%s)", [1])
        processing.execute("bank", "INSERT INTO ledger VALUES (2)", uncoordinated=True)
        processing.commit("bank")
        processing.execute("bank", "INSERT INTO ledger VALUES (3)", uncoordinated=True)
        processing.table(broker.table).append([{"n": 1}])

    failed = broker.flow(node, failing, data_sources=[source])
    with pytest.raises(Broken):
        failed.process()
    with connect(database) as reader:
        assert values(reader) == [2] and broker.rows() == []
        assert reader.tpc_recover() == [] and broker.undo_data() == []
        reader.rollback()
        flow = broker.flow(node, data_sources=[source])
        flow.process()
        assert values(reader) == [1, 2, 2, 3] and broker.rows() == [1] and broker.taken
        assert reader.tpc_recover() == []
    flow.close()


@on_delta_when_long
@pytest.mark.rule("S2-04")
def test_what_a_database_refuses_rolls_everything_back(
    broker: Broker,
    database: str,
) -> None:
    source = DataSource("bank", lambda: connect(database))
    over = lambda p: p.execute("bank", "INSERT INTO ledger VALUES (1000)")  # noqa: E731
    flow = broker.flow(broker.out(), over, data_sources=[source])
    with pytest.raises(Exception, match="check"):
        flow.process()
    assert broker.sent() == [] and broker.waiting() == [1]

    def passing_over(processing: Processing, uncoordinated: bool) -> None:
        for n in (9, 1000):
            with contextlib.suppress(Exception):
                insert = f"INSERT INTO ledger VALUES ({n})"
                processing.execute("bank", insert, uncoordinated=uncoordinated)

    flow.nodes[1] = partial(passing_over, uncoordinated=False)
    with pytest.raises(TransactionAborted, match="prepare"):
        flow.process()
    flow.nodes[1] = partial(passing_over, uncoordinated=True)
    with pytest.raises(DataSourceFailed, match="bank"):
        flow.process()
    assert broker.sent() == [] and broker.waiting() == [1]
    flow.nodes[1] = lambda p: p.execute("bank", "INSERT INTO ledger VALUES (10)")
    flow.process()
    flow.close()
    with connect(database) as reader:
        assert values(reader) == [10] and broker.sent() == [1]


@in_memory
@pytest.mark.rule("S2-02")
def test_without_transactions_what_postgres_refuses_costs_its_own_message_only(
    world: Any, tmp_path: Path, database: str
) -> None:
    broker = Broker(world, tmp_path, messages=0)
    broker.input.send([{"n": n} for n in (1, 1000, 2, 3)])
    node = lambda p: p.execute("bank", "INSERT INTO ledger VALUES (%s)", [p.message["n"]])  # noqa: E731
    source = DataSource("bank", lambda: connect(database))
    flow = broker.flow(node, coordinated=False, transacted=False, data_sources=[source])
    with pytest.raises(Exception, match="check"):
        flow.run()
    assert flow.run() == 2
    flow.close()
    with connect(database) as reader:
        assert values(reader) == [1, 2, 3]


# ------------------------------------------------------------------------ flows at large


@in_memory
def test_a_flow_runs_until_nothing_waits(world: Any, tmp_path: Path) -> None:
    broker = Broker(world, tmp_path, messages=4)

    def node(processing: Processing) -> None:
        if processing.message["n"] == 2:
            raise Broken
        processing.put(broker.output.name, [{"n": processing.message["n"]}])

    assert broker.flow(node).run(messages_max=1) == 1
    assert broker.flow(node).run() == 2
    assert broker.sent() == [1, 3, 4] and broker.taken
    dead = broker.manager.queue(f"{broker.input.name}.dead").receive()
    assert [m["n"] for m in dead.messages()] == [2]
    broker.input.send([{"n": 2}])
    with pytest.raises(Broken):
        broker.flow(node).run(errors_max=2)


@in_memory
@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("back_again", [True, False])
def test_a_commit_in_doubt_is_settled_first(broker: Broker, landed: bool, back_again: bool) -> None:
    """The commit's reply is lost, and the journal does not answer right after it."""
    journal = broker.world.store.journal
    append, read = journal.append, journal.read

    def lost(units: Any, metadata: Any) -> Any:
        if not any(e.kind == "committed" for unit in units for e in unit.entries):
            return append(units, metadata)
        if landed:
            append(units, metadata)
        journal.read = unreadable
        raise OSError("no reply")

    def unreadable(*_: Any, **__: Any) -> Any:
        if back_again:
            journal.append, journal.read = append, read
        raise OSError("no reply")

    nodes = [broker.insert("ledger", 1, uncoordinated=True), broker.out()]
    flow = broker.flow(*nodes, data_sources=[broker.source()])
    journal.append = lost
    if landed and back_again:
        processed = flow.process()
        assert processed is not None and processed.receipt is not None
    else:
        with pytest.raises(TransactionUnknown):
            flow.process()
    journal.append, journal.read = append, read
    broker.world.lease_over()
    broker.manager.recover()
    assert broker.ledger() == [1], "what is outside was committed before"
    assert broker.sent() == [1] * landed and broker.taken == landed


@on_delta_when_long
@pytest.mark.rule("S2-02", "S2-04")
@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("persistent", [True, False])
def test_in_automatic_mode_the_message_says_whether_there_is_a_main_transaction(
    broker: Broker, persistent: bool, fails: bool
) -> None:
    broker.input.purge()
    broker.input.send([{"n": 3}], durable=persistent)
    nodes = [broker.out(2), broker.row(3), *([failing] if fails else []), broker.out(4)]
    flow = broker.flow(*nodes, transacted="automatic")
    if fails:
        with pytest.raises(Broken):
            flow.process()
    else:
        processed = flow.process()
        assert processed is not None and (processed.receipt is None) != persistent
    rolled_back = persistent and fails
    assert broker.sent() == ([] if rolled_back else [2] if fails else [2, 4])
    assert broker.rows() == ([] if rolled_back else [3])
    assert (broker.waiting(), broker.taken) == (([3], False) if rolled_back else ([], True))
    assert rolled_back or flow.process() is None


@in_memory
@pytest.mark.rule("S2-02")
@pytest.mark.parametrize("transacted", [False, "automatic"])
def test_a_run_ends_with_the_failure_of_a_message_that_cannot_come_again(
    world: Any, tmp_path: Path, transacted: Any
) -> None:
    """It is gone, and somebody has to hear of it; the next run takes what is left."""
    broker = Broker(world, tmp_path, messages=0)
    broker.input.send([{"n": n} for n in (1, 2, 3)], durable=False)

    def node(processing: Processing) -> None:
        if processing.message["n"] == 2:
            raise Broken
        processing.put(broker.output.name, [{"n": processing.message["n"]}])

    flow = broker.flow(node, coordinated=False, transacted=transacted)
    with pytest.raises(Broken):
        flow.run()
    assert (broker.sent(), broker.waiting()) == ([1], [3])
    assert flow.run() == 1
    assert (broker.sent(), broker.taken) == ([1, 3], True)
    for wrong in ({"errors_max": 0}, {"errors_max": "x"}, {"messages_max": -1}):
        with pytest.raises(InvalidInput):
            flow.run(**wrong)


def lands_unheard(broker: Broker, kind: str) -> None:
    """Let the next append with an entry of a kind land without a reply, and the look at it fail."""
    journal = broker.world.store.journal
    append, read = journal.append, journal.read

    def lost(units: Any, metadata: Any) -> Any:
        landed = append(units, metadata)
        if any(e.kind == kind for unit in units for e in unit.entries):
            journal.append, journal.read = append, unreadable
            raise OSError("no reply")
        return landed

    def unreadable(*_: Any, **__: Any) -> Any:
        journal.read = read
        raise OSError("no reply")

    journal.append = lost


@in_memory
@pytest.mark.rule("S2-02")
def test_a_run_ends_with_a_message_that_may_be_gone_unprocessed(world: Any, tmp_path: Path) -> None:
    """Without a main transaction: that it is taken gets no reply, and the journal no reading."""
    broker = Broker(world, tmp_path, messages=2)
    flow = broker.flow(broker.out(), coordinated=False, transacted=False)
    lands_unheard(broker, "accepted")
    with pytest.raises(TransactionUnknown):
        flow.run()
    assert (broker.sent(), broker.waiting()) == ([], [2])
    assert flow.run() == 1


@in_memory
@pytest.mark.rule("S2-02")
@pytest.mark.parametrize("landed", [True, False])
def test_a_run_ends_with_a_message_that_may_have_been_processed(
    world: Any, tmp_path: Path, landed: bool
) -> None:
    """With a main transaction: it was taken for a failure, and not counted if it was none."""
    broker = Broker(world, tmp_path, messages=2)
    journal, seen = broker.world.store.journal, list[int]()
    append, read = journal.append, journal.read

    def away(*_: Any, **__: Any) -> Any:
        raise OSError("the store is away")

    def lost(units: Any, metadata: Any) -> Any:
        if not any(e.kind == "committed" for unit in units for e in unit.entries):
            return append(units, metadata)
        if landed:
            append(units, metadata)
        journal.append = journal.read = away
        raise OSError("no reply")

    def node(processing: Processing) -> None:
        seen.append(processing.message["n"])
        processing.put(broker.output.name, [{"n": processing.message["n"]}])

    flow = broker.flow(node)
    journal.append = lost
    with pytest.raises(TransactionUnknown):
        flow.run()
    journal.append, journal.read = append, read
    assert seen == [1]
    broker.world.lease_over()
    broker.manager.recover()
    assert flow.run() == (1 if landed else 2)
    assert (broker.sent(), broker.taken) == ([1, 2], True)


@in_memory
@pytest.mark.rule("S2-11", "S2-14")
@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_of_delta_tables_in_doubt_is_not_taken_for_done(
    broker: Broker, landed: bool
) -> None:
    journal = client_of(broker.manager).store.journal
    told: list[str] = []

    def node(processing: Processing) -> None:
        processing.table(broker.table, uncoordinated=True).append([{"n": 1}])
        with unanswered(journal, lands=landed), pytest.raises(TransactionUnknown):
            processing.commit(LAKEHOUSE)
        with pytest.raises(TransactionFinished, match="may have committed"):
            processing.commit(LAKEHOUSE)
        try:
            processing.rollback(LAKEHOUSE)
        except TransactionFinished as error:
            told.append(str(error))
        processing.table(broker.table, uncoordinated=True).append([{"n": 2}])
        processing.commit(LAKEHOUSE)

    assert broker.flow(node).process() is not None
    assert ["already committed" in text for text in told] == [True] * landed
    assert broker.rows() == [1] * landed + [2]


@in_memory
@pytest.mark.rule("S2-12")
@pytest.mark.parametrize("landed", [True, False])
def test_what_a_commit_of_delta_tables_leaves_in_doubt_is_settled_at_the_end(
    broker: Broker, landed: bool
) -> None:
    journal = client_of(broker.manager).store.journal
    doubts: list[str] = []

    def node(processing: Processing) -> None:
        processing.table(broker.table, uncoordinated=True).append([{"n": 1}])
        with unanswered(journal, lands=landed), pytest.raises(TransactionUnknown) as caught:
            processing.commit(LAKEHOUSE)
        doubts.append(caught.value.transaction_id)

    with pytest.raises(DataSourceFailed, match="lakehouse"):
        broker.flow(node).process()
    broker.manager.recover()
    assert (broker.rows(), broker.waiting()) == ([1] * landed, [1])
    settled = Status.COMMITTED if landed else Status.ROLLED_BACK
    assert broker.manager.outcome(doubts[0]).status is settled


@in_memory
@pytest.mark.rule("S2-11")
def test_a_connection_has_one_use(broker: Broker) -> None:
    """A commit outside of the main transaction would commit what is inside of it."""
    shared = sqlite3.connect(":memory:")
    sources = [DataSource(name, lambda: shared) for name in ("one", "other")]

    def node(processing: Processing) -> None:
        processing.execute("one", "CREATE TABLE ledger (n integer)", uncoordinated=True)
        processing.execute("other", "SELECT 1", uncoordinated=True)

    with pytest.raises(InvalidInput, match="open a new one each time"):
        broker.flow(node, data_sources=sources).process()


@in_memory
@pytest.mark.rule("S2-06", "S2-12")
def test_a_flow_is_at_work_on_one_message_at_a_time(world: Any, tmp_path: Path) -> None:
    """Else what one message leaves open on a connection is committed by the other one."""
    broker = Broker(world, tmp_path, messages=2)
    refused: list[str] = []

    def node(processing: Processing) -> None:
        broker.insert("ledger", processing.message["n"], uncoordinated=True)(processing)
        for take in (flow.process, flow.run):
            with pytest.raises(InvalidInput, match="MessageFlow for each thread") as caught:
                take()
            refused.append(str(caught.value))
        raise Broken

    flow = broker.flow(node, data_sources=[broker.source()])
    with pytest.raises(Broken):
        flow.process()
    assert (broker.ledger(), broker.waiting(), len(refused)) == ([], [1, 2], 2)
    with pytest.raises(Broken):
        flow.process()  # it goes on afterwards


@in_memory
@pytest.mark.rule("S2-06")
def test_a_main_commit_in_doubt_is_settled_before_connections_are_closed(
    broker: Broker, database: str
) -> None:
    """Its databases follow what turns out: they need their connections for that."""
    source = DataSource("bank", lambda: connect(database))
    node = lambda p: p.execute("bank", "INSERT INTO ledger VALUES (7)")  # noqa: E731
    lands_unheard(broker, "committed")
    flow = broker.flow(node, data_sources=[source])
    assert flow.process() is not None
    flow.close()
    with connect(database) as reader:
        assert values(reader) == [7]


@in_memory
def test_flows_are_described_without_contradiction(broker: Broker) -> None:
    with pytest.raises(InvalidInput, match="coordinated=False"):
        broker.flow(transacted=False)
    for wrong in ("yes", "", 1, 0, None):
        with pytest.raises(InvalidInput, match="'automatic'"):
            broker.flow(transacted=wrong)
    with pytest.raises(InvalidInput, match="coordinated"):
        broker.flow(coordinated="no")
    with pytest.raises(InvalidInput, match="function"):
        broker.flow("no node")
    wrong_list: Any
    for wrong_list in (None, 7, broker.out()):
        with pytest.raises(InvalidInput, match="list"):
            MessageFlow(broker.manager, broker.input.name, wrong_list)
        with pytest.raises(InvalidInput, match="list"):
            broker.flow(print, data_sources=wrong_list)
    with pytest.raises(InvalidInput, match="at least one node"):
        MessageFlow(broker.manager, broker.input.name, [])
    with pytest.raises(InvalidInput, match="DataSource"):
        broker.flow(print, data_sources=["ledger"])
    with pytest.raises(QueueNotFound, match="misspelt"):
        MessageFlow(broker.manager, "misspelt", [print])
    sources: tuple[dict[str, Any], ...] = (
        {"name": ""},
        {"name": 7},
        {"connect": "ledger.db"},
        {"last": "yes"},
        {"mixed": None},
    )
    for source in sources:
        with pytest.raises(InvalidInput):
            DataSource(**{"name": "ledger", "connect": print, **source})
    for names in (["a", "a"], [LAKEHOUSE]):
        with pytest.raises(InvalidInput, match="taken"):
            broker.flow(print, data_sources=[DataSource(name, lambda: None) for name in names])
    kept: list[Processing] = []
    broker.flow(kept.append).process()
    for act in (
        lambda: kept[0].put(broker.output.name, [{"n": 1}]),
        lambda: kept[0].table(broker.table),
        lambda: kept[0].commit(LAKEHOUSE),
    ):
        with pytest.raises(TransactionFinished):
            act()
    assert broker.sent() == []


@in_memory
@pytest.mark.rule("S2-16")
def test_nodes_that_are_given_once_are_run_for_each_message(world: Any, tmp_path: Path) -> None:
    broker = Broker(world, tmp_path, messages=2)
    nodes: Any = (node for node in [broker.out()])
    assert MessageFlow(broker.manager, broker.input.name, nodes).run() == 2
    assert broker.sent() == [1, 1]


@in_memory
def test_what_is_processed_at_once_takes_no_work_afterwards(broker: Broker) -> None:
    kept: list[Processing] = []
    broker.flow(kept.append, coordinated=False, transacted=False).process()
    with pytest.raises(TransactionFinished):
        kept[0].put(broker.output.name, [{"n": 1}])
    assert broker.sent() == []


@in_memory
def test_an_unknown_data_source_is_refused(broker: Broker) -> None:
    with pytest.raises(InvalidInput, match="nothing"):
        broker.flow(broker.insert("nothing")).process()
    assert broker.waiting() == [1]


@in_memory
@pytest.mark.rule("S2-06")
def test_what_a_node_could_not_get_is_not_taken(broker: Broker) -> None:
    broker.second.send([{"n": 5}])
    payload = client_of(broker.manager).store.payload

    def tries(processing: Processing) -> None:
        table = payload.table

        def away(*args: Any, **kwargs: Any) -> Any:
            raise ConnectionError("away")

        payload.table = away
        with pytest.raises(ConnectionError):
            processing.get(broker.second.name)
        payload.table = table

    assert broker.flow(tries).process() is not None
    assert broker.taken
    assert [row["n"] for row in broker.second.peek_messages()] == [5]


@in_memory
@pytest.mark.rule("S2-12", "S2-06")
@pytest.mark.parametrize("landed", [True, False])
def test_a_commit_that_was_interrupted_is_settled(broker: Broker, landed: bool) -> None:
    journal = broker.world.store.journal
    append = journal.append

    def interrupted(units: Any, metadata: Any) -> Any:
        if not any(e.kind == "committed" for unit in units for e in unit.entries):
            return append(units, metadata)
        journal.append = append
        if landed:
            append(units, metadata)
        raise KeyboardInterrupt

    nodes = [broker.insert("ledger", 1, uncoordinated=True), broker.out()]
    journal.append = interrupted
    with pytest.raises(KeyboardInterrupt):
        broker.flow(*nodes, data_sources=[broker.source()]).process()
    assert broker.ledger() == [1], "what is outside was committed before"
    assert broker.sent() == [1] * landed
    assert broker.taken == landed and broker.waiting() == [1] * (not landed)


@in_memory
@pytest.mark.rule("S2-07")
def test_a_data_source_that_commits_each_statement_has_no_auxiliary_transaction(
    broker: Broker,
) -> None:
    """Its rows would stay though the message is rolled back."""
    broker.source("audit")
    connect = partial(sqlite3.connect, broker.databases["audit"], isolation_level=None)
    inserts, audit = broker.insert("audit", 1), DataSource("audit", connect)
    with pytest.raises(InvalidInput, match="autocommit"):
        broker.flow(inserts, failing, coordinated=False, data_sources=[audit]).process()
    assert (broker.ledger("audit"), broker.waiting()) == ([], [1])
    at_once = {"coordinated": False, "transacted": False}  # where each statement is permanent
    assert broker.flow(inserts, data_sources=[audit], **at_once).process() is not None
    assert (broker.ledger("audit"), broker.taken) == ([1], True)


@in_memory
@pytest.mark.parametrize("coordinated", [True, False])
def test_what_is_no_connection_is_refused(broker: Broker, coordinated: bool) -> None:
    source = DataSource("audit", lambda: None)
    flow = broker.flow(broker.insert("audit"), coordinated=coordinated, data_sources=[source])
    with pytest.raises(InvalidInput, match="'audit' has no cursor"):
        flow.process()


@in_memory
@pytest.mark.rule("S2-13")
def test_a_data_source_that_could_not_be_reached_has_not_been_used(broker: Broker) -> None:
    """A database that refuses both uses can still have the other one."""
    connect = broker.source().connect
    away = [True]

    def connects() -> Any:
        return sqlite3.connect(broker.folder / "no" / "such.db") if away.pop() else connect()

    def node(processing: Processing) -> None:
        with pytest.raises(sqlite3.OperationalError):
            broker.insert("ledger", 1)(processing)
        away.append(False)
        broker.insert("ledger", 2, uncoordinated=True)(processing)

    source = DataSource("ledger", connects, mixed=False)
    broker.flow(node, data_sources=[source]).process()
    assert broker.ledger() == [2]


@pytest.mark.rule("S2-06", "S2-12")
def test_a_failure_that_is_interrupted_anywhere_leaves_the_next_message_nothing_to_commit(
    tmp_path: Path,
) -> None:
    """The connections of a flow stay open for its next message."""

    def begun() -> tuple[Broker, MessageFlow]:
        broker, tries = Broker(World(MemoryStore()), tmp_path), list[int]()
        source = broker.source("audit")

        def node(processing: Processing) -> None:
            tries.append(len(tries))
            broker.insert("audit", tries[-1], uncoordinated=True)(processing)
            if tries == [0]:
                raise Broken

        return broker, broker.flow(node, data_sources=[source])

    for _ in range(2):  # the first one looks at more
        _, flow = begun()
        with pytest.raises(Broken), Interrupt() as counted:
            flow.process()
        flow.close()
    parts = ("protocols/flow", "participants", "auxiliary", "connections")
    found = [n for n, place in enumerate(counted.places, 1) if any(p in place for p in parts)]
    assert len(found) > 20
    for nth in found:
        broker, flow = begun()
        with pytest.raises(KeyboardInterrupt), Interrupt(nth) as interrupt:
            flow.process()
        flow.run()
        flow.close()
        assert 0 not in broker.ledger("audit"), interrupt.at
