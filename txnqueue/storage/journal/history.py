"""Delta's history of the journal: its commits and their operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txnqueue.storage.setbacks import LoggedCommit

if TYPE_CHECKING:
    from txnqueue.storage.journal.statements import Statements


class JournalHistory:
    """The commits of a store's journal, read anew each time."""

    def __init__(self, statements: Statements) -> None:
        """Query nothing yet."""
        self._statements = statements

    def newest(self, count: int) -> list[LoggedCommit]:
        """Read a number of the newest commits, at least one."""
        query = f"DESCRIBE HISTORY {self._statements.names.journal} LIMIT {count}"

        def statement() -> list[Any]:
            asked = self._statements.session.sql(query)
            return asked.select("version", "operation", "operationParameters").collect()

        rows = self._statements.run(statement)
        return [LoggedCommit.of(int(version), str(what), said) for version, what, said in rows]

    def since(self, version: int, known: int) -> list[LoggedCommit]:
        """Read the commits from a version on.

        Args:
            version: The first version.
            known: A version that exists; there may be newer ones.
        """
        count = known - version + 1
        while True:
            commits = self.newest(count)
            if len(commits) < count or min(one.version for one in commits) <= version:
                return [one for one in commits if one.version >= version]
            count *= 2
