"""One session's work in a branch that several share."""

from __future__ import annotations

from txnqueue.client.client import Client
from txnqueue.core.model import Entry
from txnqueue.core.planning import Stamp
from txnqueue.core.receipt import Status
from txnqueue.core.state.branch import Ticket
from txnqueue.errors import BranchMisused, TransactionFinished
from txnqueue.exchange import Exchange, open_exchange
from txnqueue.messages.settlement import Account
from txnqueue.queue import Queue
from txnqueue.transactions.attempt import Attempt


class BranchSession(Attempt):
    """One session's work in a branch, which its coordinator decides."""

    def __init__(self, client: Client, branch: str, attempt: str, begun: int, name: str) -> None:
        """Create a session; use ``Branches``, which lets it work.

        Args:
            client: The client that it belongs to.
            branch: The branch's key.
            attempt: The branch's only attempt; empty until it has been read.
            begun: The version of the journal at which the branch began.
            name: Its unique name.
        """
        super().__init__(client)
        self.keeps = False  # this process is not told of the commit
        self.takes_transient = False  # other processes may prepare and decide it
        self.id, self.name = branch, name
        self.belong_to(attempt, begun)
        self.status = Status.ACTIVE
        self.at_work = False
        self.ticket: Ticket | None = None

    def belong_to(self, attempt: str, begun: int) -> None:
        """Take over the attempt and the begin of the branch from the journal."""
        self.attempt_id, self.begun = attempt, begun

    def check_active(self) -> None:
        """Check that it takes more work.

        Raises:
            TransactionFinished: It has ended or is suspended, or that is in doubt.
        """
        if not self.at_work:
            raise TransactionFinished(
                f"The work in branch {self.id!r} has ended or is suspended: start or resume it; "
                "if ending it failed, end it again."
            )

    def close(self) -> None:
        """Take no more work: it is about to end, or to be suspended."""
        with self._adding:
            self.at_work = False

    def adopt(self, account: Account) -> None:
        """Refuse messages that are held under a lease.

        Raises:
            BranchMisused: They were not received in this branch.
        """
        if account not in self.work.accounts:
            raise BranchMisused(
                f"Messages that are held under a lease cannot be settled in branch {self.id!r}: "
                "receive them in it.",
                transaction_id=self.id,
            )

    def sealed(self, stamp: Stamp) -> tuple[list[Entry], list[Entry]]:
        """Return the entries of its work: those of a commit, and those of a rollback."""
        gathered = self.work.gathered(self.client, self.owner, stamp)
        return gathered.facts, self.work.released(stamp, "rolled back")

    def queue(self, name: str) -> Queue:
        """Return a queue whose calls work in the branch.

        Raises:
            QueueNotFound: There is no such queue.
        """
        return Queue(self.client, self.client.cache.queue(name), self)

    def exchange(self, name: str) -> Exchange:
        """Return an exchange that publishes in the branch.

        Raises:
            ExchangeNotFound: There is no such exchange.
        """
        return open_exchange(self.client, name, self)
