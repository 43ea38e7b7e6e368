"""Serve the numbers of all queues to Prometheus."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from txnqueue.cli.presentation import written_address
from txnqueue.cli.sensor import refresh
from txnqueue.cli.signals import on_sigterm
from txnqueue.errors import InvalidInput, PlatformMissing
from txnqueue.reports.metrics import GAUGES

if TYPE_CHECKING:
    from txnqueue.manager import QueueManager
    from txnqueue.store_reader import StoreReader

logger = logging.getLogger("txnqueue")
_LOOK_SECONDS = 0.2
"""How soon a request to stop is noticed."""
_OF_WRITERS = "conflicts"
"""The gauge of a client's appends, of which this one makes none."""


class QueueCollector:
    """Measures a store each time that Prometheus asks; one measurement at a time."""

    def __init__(self, store: QueueManager | StoreReader) -> None:
        """Measure nothing yet."""
        self._store = store
        self._lock = threading.Lock()

    def describe(self) -> list[Any]:
        """Name nothing beforehand: a server starts also while the store cannot be read."""
        return []

    def collect(self) -> Iterator[Any]:
        """Measure: a gauge for each number, and ``txnqueue_up``, 0 if the store is not read."""
        from prometheus_client.core import GaugeMetricFamily

        up = GaugeMetricFamily("txnqueue_up", "Whether the store could be read.")
        try:
            with self._lock:
                refresh(self._store)
                rows = self._store.metrics().rows()
        except Exception as error:
            logger.warning("store not measured error=%s: %s", type(error).__name__, error)
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        for name, about in GAUGES.items():
            if name == _OF_WRITERS:
                continue
            gauge = GaugeMetricFamily(f"txnqueue_{name}", about, labels=["queue"])
            for row in rows:
                value: Any = row[name]  # type: ignore[literal-required]  # by the names of the gauges
                if value is not None:
                    gauge.add_metric([row["queue"]], value)
            yield gauge


def serve(
    store: QueueManager | StoreReader, port: int, address: str, note: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        store: What is measured.
        port: Where to listen; 0: any free port.
        address: Which of the machine's addresses to listen at.
        note: Tells where it listens.

    Raises:
        PlatformMissing: prometheus-client is not installed.
        InvalidInput: The port or the address cannot be listened at.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ModuleNotFoundError as error:
        raise PlatformMissing(
            "metrics --serve needs prometheus-client: pip install 'txnqueue[metrics]'.",
            missing="prometheus-client",
        ) from error
    registry = CollectorRegistry()
    registry.register(QueueCollector(store))
    try:
        server, thread = start_http_server(port, address, registry)
    except (OSError, UnicodeError) as error:  # the latter of a name that no host can have
        raise InvalidInput(
            f"{written_address(address, port)} cannot be listened on: {error}."
        ) from error
    try:
        note(f"Serving http://{written_address(address, server.server_port)}/metrics")
        with on_sigterm(5) as stop:
            while not stop():
                thread.join(_LOOK_SECONDS)
    except KeyboardInterrupt:
        return
    finally:
        server.shutdown()
        server.server_close()
