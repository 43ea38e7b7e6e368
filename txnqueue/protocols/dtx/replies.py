"""What the methods answer: a status, or a channel exception with a reply code."""

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
    """How a method of a branch went.

    ``HEURHAZ`` and ``HEURMIX`` are never answered here: one append decides all of a branch,
    and the journal always says how.
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
"""The core's word and the text's."""


class ReplyCode(enum.IntEnum):
    """Why a method was refused."""

    NOT_FOUND = 404
    COMMAND_INVALID = 503
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


class ChannelException(TxnQueueError):
    """A method was refused; the reply code says why. The channel can be used further."""

    reply_code: ReplyCode = ReplyCode.INTERNAL_ERROR

    @property
    def reply_text(self) -> str:
        """The reason in words."""
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
    """541: the method failed; its cause is this error's. Ask again what became of it."""

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
    """Answer with the text's reply codes; what is no branch's matter goes through.

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
    """Answer as ``replying``; where there is no store yet, there is no branch.

    Raises:
        ChannelException: As in ``replying``.
    """
    with replying():
        try:
            yield
        except StoreNotFound as error:
            raise NotFound(str(error)) from error


class Lifetime:
    """What is open until it is closed."""

    _closed = False

    def _check_open(self) -> None:
        """Check that it is not closed.

        Raises:
            CommandInvalid: It is.
        """
        if self._closed:
            raise CommandInvalid("The channel is closed: open another one.")
