"""Flows, their data sources, and the main transaction of each message."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txnqueue.batch import claims_of
from txnqueue.core.handlers import check_function, check_ran
from txnqueue.core.receipt import Status
from txnqueue.core.settings import check_count, check_flag, check_id, shown
from txnqueue.errors import InvalidInput, TransactionUnknown
from txnqueue.manager import client_of
from txnqueue.protocols.deliveries import messages_of
from txnqueue.protocols.flow.processing import (
    LAKEHOUSE,
    DataSourceFailed,
    Processing,
    committed_after_all,
)
from txnqueue.transaction import attempt_of, rolled_back_by_handler
from txnqueue.transactions.connections import check_connection

if TYPE_CHECKING:
    from txnqueue.batch import Batch
    from txnqueue.core.receipt import Receipt
    from txnqueue.manager import QueueManager

logger = logging.getLogger("txnqueue")
AUTOMATIC = "automatic"
"""The mode in which each message determines whether it is processed in a main transaction."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """A database that a flow uses.

    Attributes:
        name: The data source name.
        connect: Opens a connection (DB-API 2.0) without an open transaction, with the settings
            that have no effect inside one (``PRAGMA foreign_keys``). It must not be in autocommit
            mode, unless the flow has no main transaction.
        last: Whether it takes part in the main transaction as the last resource: a database
            without two-phase commit, such as sqlite3. There can be only one.
        mixed: Whether one flow may use it both in its main transaction and in auxiliary ones.
            A database that does not allow that needs two data sources.

    Raises:
        InvalidInput: An attribute cannot be used.
    """

    name: str
    connect: Callable[[], Any]
    last: bool = False
    mixed: bool = True

    def __post_init__(self) -> None:
        """Check the attributes."""
        if not check_id(self.name, "name"):
            raise InvalidInput(f"{self.name!r}: give the data source a name.", name="name")
        check_function("connect", self.connect, "a function that opens a connection")
        check_flag("last", self.last)
        check_flag("mixed", self.mixed)


@dataclass(frozen=True, slots=True)
class Processed:
    """The result of processing one input message.

    Attributes:
        message: The message.
        receipt: The receipt of the main transaction; None if there was none.
    """

    message: Mapping[str, Any]
    receipt: Receipt | None


Node = Callable[[Processing], object]
"""A node of a flow, which processes a message."""


class MessageFlow:
    """An input queue, and nodes that process its messages one by one.

    Example::

        def book(processing):
            amount = processing.message["amount"]
            processing.execute("audit", "INSERT INTO seen VALUES (?)", [amount], uncoordinated=True)
            processing.commit("audit")                # stays even if the message is rolled back
            processing.put("mortgage", [{"amount": amount}])
            processing.table("bank.payments").append([{"amount": amount}])

        flow = MessageFlow(manager, "payments", [book], data_sources=[DataSource("audit", connect)])
        flow.process()
    """

    def __init__(
        self,
        manager: QueueManager,
        input_queue: str,
        nodes: Sequence[Node],
        *,
        coordinated: bool = True,
        transacted: bool | str = True,
        data_sources: Iterable[DataSource] = (),
    ) -> None:
        """Create a flow; no message is taken and no database is opened yet.

        Args:
            manager: The store of the queues.
            input_queue: The queue of its input messages.
            nodes: The nodes that process each message, one after another.
            coordinated: Whether tables belong to the main transaction; otherwise every change of
                one is outside it.
            transacted: Whether there is a main transaction at all; otherwise each get, put and
                change of a table is permanent at once. ``"automatic"``: there is one for a
                durable message, and none for a transient one.
            data_sources: The databases besides the Delta tables.

        Raises:
            InvalidInput: An argument cannot be used, or arguments contradict each other.
            QueueNotFound: The input queue does not exist.
        """
        client_of(manager)
        check_flag("coordinated", coordinated)
        if not isinstance(transacted, bool) and not (
            isinstance(transacted, str) and transacted == AUTOMATIC
        ):
            raise InvalidInput(
                f"transacted={shown(transacted)}: give True, False or {AUTOMATIC!r}.",
                name="transacted",
            )
        if coordinated and not transacted:
            raise InvalidInput(
                "transacted=False with coordinated=True: give coordinated=False, because there is "
                "no main transaction to coordinate.",
                name="coordinated",
            )
        self.nodes: list[Node] = _listed("nodes", nodes)  # an iterator yields them only once
        for node in self.nodes:
            check_function("nodes", node, "functions that take a Processing")
        if not self.nodes:
            raise InvalidInput(
                f"nodes={shown(nodes)}: give at least one node; without any, the flow would "
                "consume its messages and do nothing with them.",
                name="nodes",
            )
        manager.queue(input_queue)
        self.manager = manager
        self.input_queue = input_queue
        self.coordinated = coordinated
        self.transacted = transacted
        self._sources: dict[str, DataSource] = {}
        for source in _listed("data_sources", data_sources):
            if not isinstance(source, DataSource):
                raise InvalidInput(
                    f"data_sources={shown(source)}: give each one as a DataSource.",
                    name="data_sources",
                )
            if source.name in self._sources or source.name == LAKEHOUSE:
                raise InvalidInput(
                    f"The data source name {source.name!r} is taken: use another one."
                )
            self._sources[source.name] = source
        self._connections: dict[tuple[str, bool], Any] = {}
        self._uses: set[tuple[str, bool]] = set()
        self._comes_again = True
        self._interrupted = False
        """Whether an interrupt may have left work of a message open on the connections."""
        self._at_work: dict[str, object] = {}

    def process(self, wait_seconds: float = 0.0) -> Processed | None:
        """Process one message.

        After an error, the main transaction and every open auxiliary one are rolled back, and
        the message returns to its queue.

        Args:
            wait_seconds: How long to wait for a message.

        Returns:
            The result; None if there was no message.

        Raises:
            DataSourceFailed: An auxiliary transaction still open at the end could not be
                committed.
            InvalidInput: Another thread is processing a message with this flow, or one of its own
                nodes called it.
            TransactionAborted: A node raised ``Rollback``.
            TransactionUnknown: It is in doubt whether the message was processed;
                ``manager.outcome(id)`` tells.
            Exception: The error that a node raised.
        """
        with self._alone():
            return self._process(wait_seconds)

    def _process(self, wait_seconds: float = 0.0) -> Processed | None:
        """Process a message, with connections on which no earlier one has left work open."""
        if self._interrupted:
            self.close()
        self._interrupted = True  # until it is known that all work of the message has ended
        try:
            processed = self._process_message(wait_seconds)
        except Exception:
            self._interrupted = False
            raise
        self._interrupted = False
        return processed

    def _process_message(self, wait_seconds: float) -> Processed | None:
        self._comes_again = True
        if self.transacted is False:
            return self._process_at_once(wait_seconds)
        main = self.manager.transaction()
        processing: Processing | None = None
        try:
            with main:
                batch = main.queue(self.input_queue).receive(1, wait_seconds=wait_seconds)
                if not len(batch):
                    return None
                (message,) = batch.messages()
                if not self._at_once(batch):
                    processing = Processing(self, message, main)
                    self._through_nodes(processing)
                    processing.commit_open()
            if processing is not None and main.status is Status.ROLLED_BACK:
                raise rolled_back_by_handler(attempt_of(main))
        except BaseException as error:  # an interruption, too, must leave nothing open
            in_doubt = isinstance(error, TransactionUnknown)
            committed = (in_doubt or attempt_of(main).interrupted) and committed_after_all(main)
            if attempt_of(main).in_doubt:
                self._comes_again = False  # it may be processed, so the error must be raised
            if not (in_doubt and committed):
                if processing is not None:
                    processing.roll_back_open()
                raise
        if processing is None:
            return self._processed_at_once(message)
        return Processed(message, main.receipt)

    def run(self, messages_max: int | None = None, errors_max: int = 20) -> int:
        """Process messages until none is available.

        A message that fails is rolled back and delivered again, until it succeeds or reaches its
        queue's maximum of deliveries. A message without a main transaction is lost when it
        fails, which ends the run, as does a message that may have been processed.

        Args:
            messages_max: The maximum number of successes; None: any number.
            errors_max: The number of failures in a row after which the run ends.

        Returns:
            The number of messages processed.

        Raises:
            DataSourceFailed: Raised at the first failure, because the message is rarely its cause.
            InvalidInput: As in ``process``.
            TransactionUnknown: It is in doubt whether a message was processed.
            Exception: The last error that a node raised.
        """
        check_count("errors_max", errors_max, 1, math.inf)
        if messages_max is not None:
            check_count("messages_max", messages_max, 0, math.inf)
        with self._alone():
            return self._run(messages_max, errors_max)

    def _run(self, messages_max: int | None, errors_max: int) -> int:
        done = failed = 0
        while messages_max is None or done < messages_max:
            try:
                if self._process() is None:
                    return done
                done, failed = done + 1, 0
            except DataSourceFailed:
                raise
            except Exception as error:  # the message was rolled back, and comes again
                failed += 1
                if failed >= errors_max or not self._comes_again:
                    raise
                logger.warning("message rolled back flow=%s error=%s", self.input_queue, error)
        return done

    def close(self) -> None:
        """Close the connections to the data sources."""
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            _close(connection)

    # ----------------------------------------------------------------- for its processing

    def check_source(self, name: str) -> DataSource:
        """Find a data source.

        Raises:
            InvalidInput: There is no data source with that name.
        """
        source = self._sources.get(check_id(name, "data_source"))
        if source is None:
            known = ", ".join(sorted([*self._sources, LAKEHOUSE]))
            raise InvalidInput(f"There is no data source {name!r}; there are: {known}.", name=name)
        return source

    def source(self, name: str, *, coordinated: bool) -> tuple[DataSource, Any]:
        """Return a data source and its connection for coordinated or uncoordinated work.

        Raises:
            InvalidInput: It is unknown, it does not allow both uses and already has the other
                one, ``connect`` returned no connection, or the connection is in use.
        """
        source = self.check_source(name)
        if not source.mixed and (name, not coordinated) in self._uses:
            raise InvalidInput(
                f"{name!r} cannot take both coordinated and uncoordinated work of one flow: "
                "create a data source for each.",
                name=name,
            )
        key = (name, coordinated)
        if key not in self._connections:
            opened = source.connect()
            check_connection(name, opened)
            if any(opened is known for known in self._connections.values()):
                raise InvalidInput(
                    f"{name!r} gave a connection that this flow already uses, so ending one use "
                    "would end the other: let connect open a new one each time.",
                    name=name,
                )
            self._connections[key] = opened
        self._uses.add(key)
        return source, self._connections[key]

    def roll_back(self, name: str, *, coordinated: bool) -> None:
        """Roll back a connection's open work; if that fails, it is replaced at its next use."""
        connection = self._connections.pop((name, coordinated))
        try:
            connection.rollback()
            self._connections[name, coordinated] = connection
        except Exception as error:
            logger.warning("connection replaced name=%s error=%s", name, error)
            _close(connection)

    # -------------------------------------------------------------------------- helpers

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep the connections' open work to one message at a time."""
        mine = object()
        try:  # around everything, so that an interrupt does not block the next message
            if self._at_work.setdefault("message", mine) is not mine:
                raise InvalidInput(
                    "This flow is processing a message: create a MessageFlow for each thread, and "
                    "another one for processing inside a node."
                )
            yield
        finally:
            if self._at_work == {"message": mine}:  # no call, after which it may be interrupted
                self._at_work.clear()

    def _process_at_once(self, wait_seconds: float) -> Processed | None:
        """Process a message without a main transaction: work before a failure is permanent."""
        queue = self.manager.queue(self.input_queue)
        batch = queue.receive(1, wait_seconds=wait_seconds, transaction=None)
        if not len(batch):
            return None
        (message,) = messages_of(batch, None)
        try:
            batch.accept(transaction=None)
        except TransactionUnknown:
            self._comes_again = False  # the message may be lost, so the error must be raised
            raise
        return self._processed_at_once(message)

    def _processed_at_once(self, message: Mapping[str, Any]) -> Processed:
        """Process a message that is already consumed."""
        self._comes_again = False
        processing = Processing(self, message, None)
        try:
            self._through_nodes(processing)
        finally:
            processing.end()
        return Processed(message, None)

    def _at_once(self, batch: Batch) -> bool:
        """Return whether a received message is processed without a main transaction."""
        return self.transacted == AUTOMATIC and claims_of(batch)[0].info.transient

    def _through_nodes(self, processing: Processing) -> None:
        for node in self.nodes:
            check_ran(node(processing), "nodes")


def _listed(name: str, given: Any) -> list[Any]:
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
        raise InvalidInput(f"{name}={shown(given)}: give a list.", name=name)
    return list(given)


def _close(connection: Any) -> None:
    try:
        connection.close()
    except Exception as error:  # nobody uses it any more
        logger.warning("connection not closed error=%s", error)
