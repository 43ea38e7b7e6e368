"""Which errors a call may raise in a run; any other one is an anomaly, whatever is true of it.

A client takes every error of the library for an answer. One that says that the store is broken,
or that no documentation of the call knows, would pass as a conflict.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.histories.anomaly import Anomaly, anomaly
from tests.histories.history import History

UNREACHABLE = frozenset(
    {
        "ConnectionError",
        "ConnectionRefusedError",
        "ConnectionResetError",
        "BrokenPipeError",
        "Crash",
    }
)
"""The store was not reached, or the client died: any call may say so."""
SPOILED = frozenset({"StatementRefused"})
"""What only a fault says that is made on purpose: Spark parses all statements of the library."""
IN_THE_WAY = frozenset({"Busy", "StoreBusy"})
"""Others were in the way."""
SETTLING = IN_THE_WAY | {"LeaseLost", "SettlementPending", "TransactionUnknown"}
DECIDING = IN_THE_WAY | {"TransactionFinished", "TransactionUnknown"}
PREPARING = SETTLING | {"TransactionAborted"}
EXPECTED: dict[str, frozenset[str]] = {
    "begin": frozenset(),
    "send": IN_THE_WAY | {"TransactionAborted"},
    "receive": IN_THE_WAY | {"LeaseLost", "TransactionAborted", "TransactionUnknown"},
    "accept": SETTLING,
    "release": SETTLING,
    "commit": PREPARING | DECIDING,  # it may be prepared, and decided by another one meanwhile
    "prepare": PREPARING,
    "rollback": DECIDING,
    "decide": DECIDING | {"TransactionNotFound", "TransactionNotPrepared"},
    "recover": IN_THE_WAY | {"TransactionUnknown"},
    "look": frozenset(),
    "outcome": frozenset(),
}
"""What a call may raise besides when it meets others, as its documentation says."""


def errors(history: History) -> Iterator[Anomaly]:
    """A call that fails does so with an error that it may raise when it meets others."""
    spoiled = SPOILED if history.about.get("faults") else frozenset()
    for one in history.operations:
        error = one.got.get("error")
        if error is not None and error not in UNREACHABLE | spoiled | EXPECTED[one.what]:
            yield anomaly("unexpected error", f"{one.what} raised {error}", one)
