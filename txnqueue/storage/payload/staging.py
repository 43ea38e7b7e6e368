"""Writing the rows of a send by one blind append, and finding their places."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnqueue.errors import StoreCorrupt, TxnQueueError
from txnqueue.platform.log_store import scheme_of
from txnqueue.storage.journal import AppendConflict
from txnqueue.storage.journal.sessions import LAST_COMMIT
from txnqueue.storage.journal.statements import Statements
from txnqueue.storage.journal.tables import TableNames
from txnqueue.storage.payload import Run, Send
from txnqueue.storage.payload.arrangement import arrange, widened
from txnqueue.storage.payload.commits import find_commit
from txnqueue.storage.payload.frame_arrangement import (
    aligned,
    arranged_frame,
    numbered,
    runs_of,
    runs_query,
    spread_runs,
    stands_anywhere,
    stored,
)
from txnqueue.storage.payload.refusals import of_rows
from txnqueue.storage.payload.rows import arrow_table
from txnqueue.storage.payload.writes import check_complete, check_written, options_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FEW_ROWS = 20_000
"""Up to this number of rows are arranged in this process, and read back without compiling."""


def stage(statements: Statements, send: Send, rows: object) -> list[Run]:
    """Write the rows of one send; see ``PayloadStore.stage``.

    Few rows are arranged here, so their places are known. Those of other rows are taken from the
    commit if they may be anywhere, and are otherwise read back.
    """
    from pyspark.sql import DataFrame

    statements.check_running()
    given = rows if isinstance(rows, DataFrame) else arrow_table(widened(send, rows), rows)
    few = isinstance(given, pa.Table) and given.num_rows <= FEW_ROWS and not send.order_by
    arranged = arrange(send, given) if few else None
    if arranged:
        frame = stored(send, arranged_frame(statements.session, send, arranged))
    else:
        columns = widened(send, given)
        frame = stored(send, numbered(send, aligned(statements.compiling, columns, given)))
    session = frame.sparkSession
    options = options_of(send, session)
    try:
        write(statements, send, frame, options)
    except (AppendConflict, TxnQueueError):  # a column was added meanwhile; nothing was written
        raise
    except Exception as error:
        raise of_rows(error, send) from error
    if arranged:
        return arranged.runs
    runs, written = _runs(statements, send, session)
    if not runs:
        check_written(options, session)
    expected = given.num_rows if isinstance(given, pa.Table) else written
    if expected is not None:
        check_complete(runs, expected)
    return runs


def write(statements: Statements, send: Send, frame: DataFrame, options: Mapping[str, str]) -> None:
    """Append rows to the table of a send.

    Raises:
        AppendConflict: The table was altered at the same time.
        StoreNotFound: The store was removed; nothing was written.
        StoreCorrupt: The table was removed from its store; nothing was written.
    """
    names = statements.names

    def statement() -> None:
        _check_table_there(names, send)
        if names.by_path:
            writer = frame.write.format("delta").mode("append").options(**options)
            writer.save(f"{names.root}/payload/{send.payload_id}")
        else:  # ``saveAsTable`` would create a table that is gone
            frame.writeTo(names.payload(send.payload_id)).options(**options).append()

    statements.staging(f"payload-{send.payload_id}", frame.sparkSession, statement)


def _has_commits(log: Path) -> bool:
    """Return whether a log has a commit or a checkpoint: Delta makes its folder before both."""
    try:
        with os.scandir(log) as listed:
            return any(one.name[0].isdigit() for one in listed)
    except OSError:
        return False


def _check_table_there(names: TableNames, send: Send) -> None:
    """Check, where that costs nothing, that a table is there: Delta would create another one.

    Raises:
        StoreCorrupt: The table was removed from its store; nothing was written.
    """
    if not names.by_path or scheme_of(names.root):
        return
    folder = Path(names.root) / "payload" / send.payload_id
    if not _has_commits(folder / "_delta_log"):
        raise StoreCorrupt(
            f"The table of payload {str(folder)!r} is missing from the store: put it back from a "
            "copy. Nothing was sent."
        )


def _runs(
    statements: Statements, send: Send, session: SparkSession
) -> tuple[list[Run], int | None]:
    """Find the runs of written rows, in the commit if it shows them, otherwise in the rows.

    There may be many rows, and no setting of a user's session may hide any of them.

    Returns:
        The runs, and the number of rows that the tasks wrote; None if it is unknown.
    """
    names, commit = statements.names, None
    if stands_anywhere(send):
        said = session.conf.get(LAST_COMMIT, None)
        commit = statements.run(partial(find_commit, send, said, statements.session, names))
    spans = commit.spans if commit else None
    if spans is not None:
        return spread_runs(send, spans), None  # spans are known only if the numbers of rows agree
    query = runs_query(send, names.payload(send.payload_id))
    found: Any = statements.run(lambda: statements.compiling.sql(query).toArrow())
    return runs_of(send, found), commit.rows if commit else None
