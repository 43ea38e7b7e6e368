"""One session's work in a branch that several share."""

from __future__ import annotations

from typing import Any, NoReturn

from txnqueue.branching import Ticket
from txnqueue.changes import TableChanges
from txnqueue.client import Client
from txnqueue.contents import Contents
from txnqueue.deciding import Receipt, Status
from txnqueue.errors import BranchMisused, TransactionFinished
from txnqueue.model import Entry
from txnqueue.planning import Stamp
from txnqueue.transaction import Transaction


class Session(Transaction):
    """One session's work in a branch: queues work in it, its coordinator decides it."""

    keeps = False  # nobody tells this process of the commit
    takes_transient = False  # other processes may decide it, and prepare it

    def __init__(self, client: Client, branch: str, attempt: str, begun: int, name: str) -> None:
        """Make a session; ``Branches`` does, and lets it work.

        Args:
            client: Whose session it is.
            branch: The branch's key.
            attempt: The branch's only attempt; empty while nobody has read it.
            begun: Where the branch began.
            name: Tells it from all other sessions.
        """
        super().__init__(client, None)
        self.id, self.attempt, self.name = branch, attempt, name
        self.status = Status.ACTIVE
        self.at_work = False
        self.ticket: Ticket | None = None
        self._begun = begun

    def belong_to(self, attempt: str, begun: int) -> None:
        """Take over what the journal says of the branch."""
        self.attempt, self._begun = attempt, begun

    def check_active(self) -> None:
        """Check that it takes more work.

        Raises:
            TransactionFinished: It has ended, or is suspended, or that is in doubt.
        """
        if not self.at_work:
            raise TransactionFinished(
                f"The work in branch {self.id!r} has ended or is suspended: start or resume it; "
                "if ending it failed, end it again."
            )

    def adopt(self, batch: Contents) -> None:
        """Refuse messages that are held under a lease.

        Raises:
            BranchMisused: They were not received in this branch.
        """
        if batch not in self._work.batches:
            raise BranchMisused(
                f"Messages that are held under a lease cannot be settled in branch {self.id!r}: "
                "receive them in it.",
                transaction_id=self.id,
            )

    def sealed(self, stamp: Stamp) -> tuple[list[Entry], list[Entry]]:
        """Write what it has done: what a commit posts and settles, and what goes back if not."""
        gathered = self._work.gathered(self.client, self.owner, stamp)
        return gathered.facts, self._work.released(stamp, "rolled back")

    def commit(self) -> Receipt:
        """Refuse: whoever coordinates the branch commits it."""
        self._refuse("be committed")

    def rollback(self, reason: str | None = None, *, counted: bool = True) -> None:
        """Refuse: whoever coordinates the branch rolls it back."""
        self._refuse("be rolled back")

    def prepare(self) -> None:
        """Refuse: whoever coordinates the branch prepares it."""
        self._refuse("be prepared")

    def __enter__(self) -> Transaction:
        """Refuse: a block would commit at its end."""
        self._refuse("be a block")

    def table(self, name: str, *, lineage: bool = False) -> TableChanges:
        """Refuse: a branch is about messages."""
        self._refuse("change tables")

    def enlist(self, name: str, connection: Any, *, last: bool = False) -> Any:
        """Refuse: the coordinator knows of the databases."""
        self._refuse("enlist databases")

    def auxiliary(self, name: str, connection: Any) -> NoReturn:
        """Refuse: the coordinator knows of the databases."""
        self._refuse("use databases")

    def _refuse(self, what: str) -> NoReturn:
        raise BranchMisused(
            f"One session's work in branch {self.id!r} cannot {what}: that is for whoever "
            "coordinates the branch.",
            transaction_id=self.id,
        )
