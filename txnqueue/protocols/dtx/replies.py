"""Replies of the methods: a status, or a channel exception with a reply code."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager

from txnqueue.core.state.branch import Ending
from txnqueue.errors import (
    BranchExists,
    BranchMisused,
    BranchNotFound,
    InvalidInput,
    NotPermitted,
    StoreNotFound,
    TransactionAborted,
    TransactionError,
    TxnQueueError,
)


class XaStatus(str, enum.Enum):
    """The status of a method on a branch.

    ``HEURHAZ`` and ``HEURMIX`` are never returned: one append decides the whole branch, and the
    journal always records how.
    """

    OK = "xa-ok"
    RBROLLBACK = "xa-rbrollback"
    RBTIMEOUT = "xa-rbtimeout"
    HEURHAZ = "xa-heurhaz"
    HEURCOM = "xa-heurcom"
    HEURRB = "xa-heurrb"
    HEURMIX = "xa-heurmix"
    RDONLY = "xa-rdonly"


STATUS = {
    Ending.DONE: XaStatus.OK,
    Ending.READ_ONLY: XaStatus.RDONLY,
    Ending.ROLLED_BACK: XaStatus.RBROLLBACK,
    Ending.TIMED_OUT: XaStatus.RBTIMEOUT,
    Ending.HEURISTIC_COMMIT: XaStatus.HEURCOM,
    Ending.HEURISTIC_ROLLBACK: XaStatus.HEURRB,
}
"""The specification's status for each ending of the core."""


class ReplyCode(enum.IntEnum):
    """Why a method was refused."""

    NOT_FOUND = 404
    COMMAND_INVALID = 503
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


class ChannelException(TxnQueueError):
    """A method was refused; the reply code says why. The channel remains usable."""

    reply_code: ReplyCode = ReplyCode.INTERNAL_ERROR

    @property
    def reply_text(self) -> str:
        """The reason as text."""
        return str(self)


class NotFound(ChannelException):
    """404: there is no such branch, or it is completed."""

    reply_code = ReplyCode.NOT_FOUND


class CommandInvalid(ChannelException):
    """503: the method is not allowed in this context; nothing was changed."""

    reply_code = ReplyCode.COMMAND_INVALID


class NotAllowed(ChannelException):
    """530: the xid was used before, or the branch is restricted to others."""

    reply_code = ReplyCode.NOT_ALLOWED


class NotImplementedHere(ChannelException):
    """540: this is not offered here; nothing was changed."""

    reply_code = ReplyCode.NOT_IMPLEMENTED


class InternalError(ChannelException):
    """541: the method failed; see the cause, and ask for the outcome before repeating it."""

    reply_code = ReplyCode.INTERNAL_ERROR


class BranchRolledBack(TransactionAborted):
    """The branch was rolled back; ``status`` says how."""

    status: XaStatus


class HeuristicallyCompleted(TransactionError):
    """An operator decided the branch otherwise; ``status`` says how. Then forget it."""

    transaction_id: str
    status: XaStatus


@contextmanager
def replying() -> Iterator[None]:
    """Translate errors about branches to the specification's reply codes; others pass through.

    Raises:
        ChannelException: For what the core refused, or failed to do.
    """
    try:
        yield
    except (ChannelException, InvalidInput):
        raise
    except BranchNotFound as error:
        raise NotFound(str(error)) from error
    except BranchMisused as error:
        raise CommandInvalid(str(error)) from error
    except (BranchExists, NotPermitted) as error:
        raise NotAllowed(str(error)) from error
    except Exception as error:
        raise InternalError(f"{type(error).__name__}: {error}") from error


@contextmanager
def about_branches() -> Iterator[None]:
    """Translate errors as ``replying`` does; without a store there is no branch.

    Raises:
        ChannelException: As in ``replying``.
    """
    with replying():
        try:
            yield
        except StoreNotFound as error:
            raise NotFound(str(error)) from error


class Lifetime:
    """Something that is open until it is closed."""

    _closed = False

    def _check_open(self) -> None:
        """Check that it is open.

        Raises:
            CommandInvalid: It is closed.
        """
        if self._closed:
            raise CommandInvalid("The channel is closed: open another one.")
