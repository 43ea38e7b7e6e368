"""What exceptions of Spark and Delta mean for a statement of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from txnqueue.storage.journal import AppendConflict

_ABSENT = ("NOT_FOUND", "DELTA_MISSING", "DOES_NOT_EXIST", "doesn't exist", "not a Delta table")


@contextmanager
def conflicts() -> Iterator[None]:
    """Tell conflicts from other errors.

    Raises:
        AppendConflict: Delta reports that another commit was faster.
    """
    try:
        yield
    except Exception as error:
        if _is_conflict(error):
            raise AppendConflict(str(error)) from error
        raise


def is_absent(error: BaseException) -> bool:
    """Return whether a table, or its schema, is not there."""
    from pyspark.errors import AnalysisException

    return isinstance(error, AnalysisException) and any(sign in str(error) for sign in _ABSENT)


def surely_not_begun(error: BaseException, analyse: Callable[[], object]) -> bool:
    """Return whether a statement surely failed before it did anything.

    Spark reads a statement as a whole before it begins. That it cannot parse it is certain; other
    errors of the analysis also come up later, and count only if they come up again at once.

    Args:
        error: What the statement failed with.
        analyse: Has a part of the statement analysed, and does nothing.
    """
    from pyspark.errors import AnalysisException, ParseException

    if isinstance(error, ParseException):
        return True
    if not isinstance(error, AnalysisException):
        return False
    try:
        analyse()
    except AnalysisException:
        return True
    except Exception:
        return False
    return False


def _is_conflict(error: BaseException) -> bool:
    """Return whether Delta reports that another commit was faster.

    Delta's conflict exceptions have no base class of their own in Python, and arrive
    wrapped when the commit ran inside something else: so the error class is looked at too.
    """
    from delta import exceptions

    known = (
        exceptions.ConcurrentAppendException,
        exceptions.ConcurrentDeleteDeleteException,
        exceptions.ConcurrentDeleteReadException,
        exceptions.ConcurrentTransactionException,
        exceptions.ConcurrentWriteException,
        exceptions.MetadataChangedException,
        exceptions.ProtocolChangedException,
    )
    return isinstance(error, known) or "DELTA_CONCURRENT_" in str(error)
