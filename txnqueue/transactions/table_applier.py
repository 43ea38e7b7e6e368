"""Apply the decided changes of the user's tables in commit order, once, by any client.

A change that cannot be applied holds up the later changes of its table, and of no other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from txnqueue.client.client import Client
from txnqueue.client.runtime import Retries
from txnqueue.core import model
from txnqueue.core.markup import Facts
from txnqueue.core.model import Entry, PositionId
from txnqueue.core.state import AttemptOwner
from txnqueue.core.state.confirmations import manifest_participants, participant_stream, unconfirmed
from txnqueue.errors import Busy, ChangeNotFound, ChangeWaiting, TableNotFound
from txnqueue.storage.tables import (
    CHANGES_PER_TRANSACTION_MAX,
    Change,
    CommitStamp,
    TableCommit,
    TableConflict,
    TableInfo,
)
from txnqueue.version import __version__

logger = logging.getLogger("txnqueue")
_Found = TypeVar("_Found")
_TITLE = "An error occurred while calling"
_SETTING_BACK = ("RESTORE", "CLONE", "REPLACE TABLE")


@dataclass(frozen=True, slots=True)
class WaitingChange(Facts):
    """A decided change that is not applied yet, and the reason.

    Attributes:
        change_id: The id that ``manager.apply_change`` and ``manager.waive_change`` take.
        transaction_id: The transaction that decided it.
        commit_seq: The commit that decided it.
        table: The table.
        operation: ``append``, ``merge``, ``update`` or ``delete``.
        rows: The number of rows staged for it; None without staged rows.
        reason: Why it waits.
        remedy: What an operator can do.
    """

    change_id: str
    transaction_id: str
    commit_seq: int
    table: str
    operation: str
    rows: int | None
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Decided:
    """A change with the entry that decided it."""

    entry: Entry
    change: Change

    @property
    def number(self) -> int:
        """The number that the table records; it rises with commit order."""
        return self.entry.commit_seq * CHANGES_PER_TRANSACTION_MAX + self.change.number

    @property
    def change_id(self) -> str:
        """The public id of the change."""
        return f"{self.entry.append_id}:{self.entry.index}"

    def stamp(
        self, store_id: str, waived: str | None = None, *, apart: bool = False
    ) -> CommitStamp:
        """Make the stamp that the table's history records.

        Args:
            store_id: The store that decided the change.
            waived: The reason of a waiver; None if the change is applied.
            apart: Whether its number is not one of those of the table's own changes, because it
                was decided for another table, whose name this one has now.
        """
        key, decided_for = AttemptOwner.of(self.entry).key, self.change.table_id
        application_id = f"txnqueue/{store_id}"
        if apart:
            application_id += f"/{decided_for}"
        note = {
            "txnqueue": __version__,
            "store": store_id,
            "number": self.number,
            "table_id": decided_for,
            "transaction_id": key,
            "actor": self.entry.actor,
            "operation": self.change.operation,
            **({} if waived is None else {"waived": waived}),
        }
        return CommitStamp(application_id, self.number, key, note)

    def waiting(self, reason: str) -> WaitingChange:
        """Describe the waiting change, with the reason and the remedy."""
        return WaitingChange(
            self.change_id,
            AttemptOwner.of(self.entry).key,
            self.entry.commit_seq,
            self.change.table,
            self.change.operation,
            self.entry.count,
            reason,
            f"Put the table right and run recover(); or apply_change({self.change_id!r}) to apply "
            f"it to the table as it is; or waive_change({self.change_id!r}, reason) to give it up, "
            "with table_gone=True if its table is gone for good.",
        )


def unapplied(entries: Iterable[Entry]) -> dict[str, list[Decided]]:
    """Find the changes that are not confirmed, by table, in commit order (pure)."""
    decided: dict[PositionId, Entry] = {}
    ended: set[PositionId] = set()
    for entry in entries:
        if entry.kind == model.CHANGE_DECIDED:
            decided[entry.entry_id] = entry
        elif entry.ended_change is not None:
            ended.add(entry.ended_change)
    left: dict[str, list[Decided]] = {}
    for entry in sorted(decided.values(), key=lambda e: e.place):
        if entry.entry_id not in ended:
            change = Change.from_json(entry.body["change"])
            left.setdefault(entry.stream, []).append(Decided(entry, change))
    return left


def _cut_off(one: Decided, info: TableInfo, commits: Sequence[TableCommit]) -> bool:
    """Return whether a table's history no longer reaches back to when a change was sealed."""
    since = one.change.table_version if info.table_id == one.change.table_id else -1
    return len(commits) < info.version - since


def obstacle(
    one: Decided, info: TableInfo | None, commits: Sequence[TableCommit], store_id: str
) -> str | None:
    """Return why a change must not be applied to the table as it is; None if it may be (pure).

    Args:
        one: The change.
        info: The table that now has the name; None if there is none.
        commits: The table's Delta commits since the change was sealed.
        store_id: The store that decided the change.
    """
    if info is None:
        return f"the table {one.change.table!r} is gone"
    if info.table_id != one.change.table_id:
        return f"another table stands under the name {one.change.table!r} now"
    for commit in commits:
        replaced = any(word in commit.operation.upper() for word in _SETTING_BACK)
        if replaced or (commit.operation == "WRITE" and commit.mode == "Overwrite"):
            what = "overwritten" if commit.operation == "WRITE" else commit.operation
            return f"the table was set back meanwhile: version {commit.version} is {what}"
        ahead = commit.note.get("store") == store_id and commit.note.get("number", 0) > one.number
        of_this = commit.note.get("table_id", one.change.table_id) == one.change.table_id
        if ahead and of_this:
            return (
                f"the table has change {commit.note['number']} of this store already, which is "
                "later: the store was restored to an older state, or the table copied"
            )
    if info.forgets_numbers and _cut_off(one, info, commits):
        return (
            "the table forgets which changes it has taken "
            "(delta.setTransactionRetentionDuration), and its history no longer tells: waive the "
            "change if its rows are there, else apply it"
        )
    return None


def mark_of(one: Decided, commits: Iterable[TableCommit], store_id: str) -> TableCommit | None:
    """Find the Delta commit that applied or waived exactly this change, if any (pure)."""
    return next(
        (
            commit
            for commit in commits
            if commit.note.get("store") == store_id and commit.note.get("number") == one.number
        ),
        None,
    )


class Applier:
    """Applies decided changes for one client, which then confirms them."""

    def __init__(self, client: Client) -> None:
        """Apply changes for a client."""
        self._client = client
        self._store_id = client.cache.store_id

    def apply(
        self, table_ids: Iterable[str] | None = None, known: Iterable[Entry] | None = None
    ) -> list[WaitingChange]:
        """Apply all decided changes of some tables, or of all.

        Args:
            table_ids: The tables; None for all.
            known: The journal's entries about the tables, if they were just read.

        Returns:
            The changes that could not be applied, with the reason; later changes of such a table
            wait too.
        """
        waiting: list[WaitingChange] = []
        for changes in self._unapplied(table_ids, known).values():
            held_up: str | None = None
            for one in changes:
                if held_up is None:
                    held_up = self._attempt(one)
                    if held_up is not None:
                        waiting.append(one.waiting(held_up))
                else:
                    waiting.append(one.waiting(f"an older change of the table waits: {held_up}"))
        return waiting

    def confirm_applied(self, known: Iterable[Entry]) -> None:
        """Confirm the changes that tables have taken, and apply none.

        Their clients may have died before that, and a table's history shows them only for a time.

        Args:
            known: The journal's entries about the tables.

        Raises:
            Busy: Others won every conflict.
            TransactionUnknown: The append is in doubt; it may be repeated.
        """
        found = False
        for changes in self._unapplied(None, known).values():
            for one in changes:
                mark = self._surely_marked(one)
                if mark is None:  # nor are later ones applied, which wait for it
                    break
                self._confirm(one, mark)
                found = True
        if found:
            self._client.confirm()

    def apply_to_table_as_it_is(self, change_id: str) -> None:
        """Apply a change although its table was replaced or set back.

        Raises:
            ChangeNotFound: No such change waits.
            ChangeWaiting: The change cannot be applied, or an older one of its table waits.
        """
        one = self._oldest(change_id)
        reason = self._attempt(one, anyhow=True)
        if reason is not None:
            raise ChangeWaiting(
                f"Change {change_id!r} cannot be applied yet: {reason}. Put that right and apply "
                f"it again, or give it up with waive_change({change_id!r}, reason).",
                change_id=change_id,
            )

    def waive(self, change_id: str, reason: str, *, table_gone: bool = False) -> None:
        """Waive a change for ever, on record.

        The table takes the change's number first, so that no client at work applies the change
        afterwards, and each later client finds by the number that it was waived. Without the table
        only the operator knows that nobody has applied it, or will.

        Raises:
            ChangeNotFound: No such change waits, or it was applied already.
            ChangeWaiting: An older change of the table waits.
            TableNotFound: There is no Delta table of that name here, and ``table_gone`` is false.
            Busy: Others changed the table at every try.
        """
        one = self._oldest(change_id)
        if self._is_there(one, table_gone=table_gone):
            try:
                self._take_number(one, reason)
            except Exception as error:
                if self._mark(one) is None:
                    if isinstance(error, TableConflict):
                        raise Busy(
                            f"Others changed the table of change {change_id!r} at every try, and "
                            "it is not waived: try again.",
                            operation="waive a change",
                        ) from error
                    raise
            mark = self._mark(one)
            if mark is not None and "waived" not in mark.note:
                self._confirm(one, mark)
                raise ChangeNotFound(
                    f"Change {change_id!r} was already applied: there is nothing to waive.",
                    change_id=change_id,
                )
        self._client.confirm([self._fact(one, model.CHANGE_WAIVED, None, reason)])

    # -------------------------------------------------------------------------- helpers

    def _is_there(self, one: Decided, *, table_gone: bool) -> bool:
        """Return whether the table of a change is there to take its number."""
        try:
            info = self._client.store.tables.describe(one.change.table)
        except Exception:  # it is no Delta table now, or its storage is away
            if not table_gone:
                raise
            return False
        if info is None and not table_gone:
            raise TableNotFound(
                f"Table {one.change.table!r} is not found in this session, so that it cannot take "
                f"the number of change {one.change_id!r}: a client that finds it may apply the "
                "change, or has applied it. Use a session that finds the table, or, if it is gone "
                "for good, waive the change with table_gone=True.",
                name=one.change.table,
            )
        return info is not None

    def _unapplied(
        self, table_ids: Iterable[str] | None, known: Iterable[Entry] | None = None
    ) -> dict[str, list[Decided]]:
        found = unapplied(self._client.cache.table_entries(table_ids) if known is None else known)
        wanted = None if table_ids is None else set(table_ids)
        confirmed = _confirmed(self._client)
        return {
            table_id: [one for one in changes if one.entry.entry_id not in confirmed]
            for table_id, changes in found.items()
            if wanted is None or table_id in wanted
        }

    def _oldest(self, change_id: str) -> Decided:
        for changes in self._unapplied(None).values():
            for number, one in enumerate(changes):
                if one.change_id == change_id and number:
                    raise ChangeWaiting(
                        f"An older change of the table, {changes[0].change_id!r}, is waiting: "
                        "apply or waive that one first.",
                        change_id=change_id,
                    )
                if one.change_id == change_id:
                    return one
        raise ChangeNotFound(
            f"No change {change_id!r} is waiting: recover().waiting lists the waiting ones.",
            change_id=change_id,
        )

    def _attempt(self, one: Decided, *, anyhow: bool = False) -> str | None:
        """Apply a change, the oldest that waits for its table; return why it waits, or None."""
        try:
            return self._patiently(lambda: self._try(one, anyhow=anyhow))
        except Exception as error:  # an error is not an outcome; the table's history tells it
            mark = self._surely_marked(one)
            if mark is None:
                return f"{type(error).__name__}: {_first_line(error)}"
            self._confirm(one, mark)
            return None

    def _try(self, one: Decided, *, anyhow: bool) -> str | None:
        """Apply a change to its table as it is now; return why it waits, or None.

        Raises:
            TableConflict: Another commit won. It may be the one that replaced the table, so the
                next try must look at the table again.
        """
        tables = self._client.store.tables
        info = tables.describe(one.change.table)
        commits = self._commits(one, info)
        mark = mark_of(one, commits, self._store_id)
        if mark is not None:
            self._confirm(one, mark)
            return None
        reason = None if anyhow and info else obstacle(one, info, commits, self._store_id)
        if reason is not None:
            return reason
        if self._ended(one):  # another client has waived it meanwhile
            return None
        return self._number(one, apart=info is not None and self._is_apart(one, info))

    def _number(self, one: Decided, *, apart: bool) -> str | None:
        """Apply a change under its number; return why the table skips it, or None."""
        tables = self._client.store.tables
        version = tables.apply(one.change, one.stamp(self._store_id, apart=apart))
        if version is not None:
            self._confirm(one, TableCommit(version, "", None, {}))
            return None
        # The table has taken this number, or a later one.
        info = tables.describe(one.change.table)
        shown = self._commits(one, info)
        mark = mark_of(one, shown, self._store_id)
        if mark is not None:
            self._confirm(one, mark)
            return None
        if info is not None and _cut_off(one, info, shown):
            return (
                "the table has taken this change, or a later one of this store, and its history no "
                "longer tells which: waive the change if its rows are there"
            )
        if info is not None and info.table_id != one.change.table_id and not apart:
            # A later change of the table's own: nobody applies this one by its plain number.
            return self._number(one, apart=True)
        return (
            "the table has taken a later change of this store: the store was restored to an "
            "older state"
        )

    def _take_number(self, one: Decided, waived: str) -> None:
        """Let the table take the number of a change that is waived, whatever table it is now."""
        tables = self._client.store.tables

        def take() -> int | None:
            info = tables.describe(one.change.table)
            apart = info is not None and self._is_apart(one, info)
            return tables.apply(
                one.change, one.stamp(self._store_id, waived, apart=apart), empty=True
            )

        self._patiently(take)

    def _is_apart(self, one: Decided, info: TableInfo) -> bool:
        """Return whether a table must not take the plain number of a change of another table.

        Older changes of its own that wait could not be applied any more. Otherwise it takes that
        number, which keeps whoever still takes it for the other table from applying the change.
        """
        if info.table_id == one.change.table_id:
            return False
        waiting = self._unapplied([info.table_id]).get(info.table_id, ())
        return any(other.number < one.number for other in waiting)

    def _patiently(self, act: Callable[[], _Found]) -> _Found:
        """Do something to a table, again if another commit on it won, with bounded retries."""
        retries = Retries(self._client.runtime)
        while True:
            try:
                return act()
            except TableConflict:
                if not retries.fail():
                    raise
            retries.wait()

    def _commits(self, one: Decided, info: TableInfo | None) -> list[TableCommit]:
        """List the table's Delta commits since the change was sealed; all if it was replaced."""
        if info is None:
            return []
        same = info.table_id == one.change.table_id
        if same and info.version == one.change.table_version:
            return []
        since = one.change.table_version if same else -1
        return self._client.store.tables.history(one.change.table, since)

    def _mark(self, one: Decided) -> TableCommit | None:
        """Find the Delta commit in the table's history that applied or waived a change."""
        info = self._client.store.tables.describe(one.change.table)
        return mark_of(one, self._commits(one, info), self._store_id)

    def _surely_marked(self, one: Decided) -> TableCommit | None:
        try:
            return self._mark(one)
        except Exception:  # the change waits, and the next client looks again
            return None

    def _ended(self, one: Decided) -> bool:
        """Return whether the journal now shows that the change was applied or waived."""
        known, name = self._client.cache.table_entries([one.entry.stream]), one.entry.entry_id
        # It has left the journal only if it was; the other changes, maybe thousands, are not read.
        there = any(entry.entry_id == name for entry in known)
        return not there or any(entry.ended_change == name for entry in known)

    def _confirm(self, one: Decided, mark: TableCommit) -> None:
        """Keep a change's confirmation for the client's next append."""
        waived = mark.note.get("waived")
        kind = model.CHANGE_APPLIED if waived is None else model.CHANGE_WAIVED
        self._client.add_confirmations([self._fact(one, kind, mark.version, waived)])

    def _fact(self, one: Decided, kind: str, version: int | None, reason: str | None) -> Entry:
        entry = one.entry
        return Entry(
            entry.shard,
            entry.stream,
            kind,
            count=entry.count,
            reason=reason,
            body={"v": 1, "change": [entry.append_id, entry.index], "table_version": version},
            **AttemptOwner.of(entry).columns(),
            **self._client.stamp().columns(),
        )


def is_applied(client: Client, decision: Entry) -> bool:
    """Return whether a commit is carried out everywhere: in tables and in databases."""
    names = manifest_participants(decision.body)
    if names:
        facts = client.cache.table_entries(map(participant_stream, names))
        if unconfirmed([decision], [*facts, *client.confirmations]):
            # A decision leaves the journal only once all databases have confirmed it.
            state = client.cache.key_state(decision.stream, archived_since=None)
            if decision.attempt in state.decisions:
                return False
    table_ids = decision.body.get("manifest", {}).get("tables", ())
    if not table_ids:
        return True
    left = unapplied(client.cache.table_entries(table_ids))
    confirmed = _confirmed(client)
    return not any(
        one.entry.attempt == decision.attempt and one.entry.entry_id not in confirmed
        for changes in left.values()
        for one in changes
    )


def follow(client: Client, decision: Entry) -> bool:
    """Apply the table changes of a commit, which stands even if that fails.

    Returns:
        Whether the commit is now carried out in all tables and databases.
    """
    table_ids = decision.body.get("manifest", {}).get("tables", ())
    try:
        for one in Applier(client).apply(table_ids) if table_ids else ():
            logger.warning("change waits change_id=%s reason=%s", one.change_id, one.reason)
        return is_applied(client, decision)
    except Exception as error:
        logger.warning("changes wait transaction_id=%s error=%s", decision.transaction_key, error)
        return False


def _confirmed(client: Client) -> set[PositionId]:
    """Return the changes whose confirmation waits for the client's next append."""
    waiting = (fact.body.get("change") for fact in client.confirmations)
    return {(change[0], change[1]) for change in waiting if change}


def _first_line(error: BaseException) -> str:
    """Return the first informative line of an error: Java errors begin with a title."""
    lines = (line.strip(": ") for line in str(error).splitlines())
    return next((line for line in lines if line and not line.startswith(_TITLE)), "")
