"""Delta's own log of the journal: which entries were inserted and deleted."""

from __future__ import annotations

import logging
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from txnqueue.storage.journal import Audit
from txnqueue.storage.journal.statements import RETENTION, Statements
from txnqueue.storage.journal.tables import TableNames, literal, verbatim

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("txnqueue")
_FEED = "txnqueue_feed"
"""A temporary view in one of the library's own sessions: the changes that a statement counts."""
_VERSIONS_FIRST = 1_000
"""How many versions are first checked for one that may no longer be requested."""
_WRITTEN_BEFORE_MS = 600_000
"""A commit may name files that are older than it by this time."""
_VACUUMED_MS = (
    "if(operation = 'VACUUM START', unix_millis(timestamp) - CAST(coalesce("
    "operationParameters['specifiedRetentionMillis'], "
    "operationParameters['defaultRetentionMillis']) AS bigint), NULL)"
)
"""The time before which a vacuum in Delta's history has removed deleted files."""
_IDS = "append_id, `index`"
_COMMIT = r"[0-9]{20}\.json"
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(?:\.[0-9]{10}\.([0-9]{10}))?\..*")
"""The version of a checkpoint file, and the number of files of that checkpoint."""


def changes(
    session: SparkSession, names: TableNames, start: int, end: int | None = None
) -> DataFrame:
    """Open the journal's change feed between two versions."""
    reader = session.read.format("delta").option("readChangeFeed", "true")
    reader = reader.option("startingVersion", start)
    if end is not None:
        reader = reader.option("endingVersion", end)
    return reader.load(f"{names.root}/journal") if names.by_path else reader.table(names.journal)


class ChangeFeed:
    """The change feed of the whole journal, as far back as it reaches."""

    def __init__(self, statements: Statements) -> None:
        """Use the change feed of a store's journal."""
        self._statements = statements
        self._names = statements.names

    def audit(self, upto: int, beginning: int, *, archived: bool) -> Audit:
        """Count what happened to entries.

        Errors are raised, unless the log shows that the feed can no longer begin where it did.

        Args:
            upto: The last version.
            beginning: The version from which the history is complete; -1: all of it.
            archived: Whether there is an archive.
        """
        start = self.start()
        while start <= upto:
            try:
                return self._audit(start, upto, beginning, archived=archived)
            except Exception as error:
                later = self._later_start(start)
                if later is None:
                    raise
                logger.info("change feed begins at=%s error=%s", later, error)
                start = later
        return Audit(start, 0, 0, 0, 0, 0)

    def start(self) -> int:
        """Find the first version at which the feed may begin, from the table's own log.

        Its commit must be in the log, and no older than Delta keeps deleted files, now and at each
        vacuum that the log tells of: that time may have been shorter. The newest version is always
        possible.
        """
        looked_at = _VERSIONS_FIRST
        while True:
            newest, oldest, young, old = self._versions(looked_at)
            if old or oldest == 0 or newest - oldest + 1 < looked_at:
                return newest if young is None else young
            looked_at *= 8

    def _later_start(self, failed: int) -> int | None:
        """Return where the feed must begin instead; None if the log does not require that."""
        try:
            found = max(self.start(), self._restorable())
        except Exception:  # the original error tells more
            logger.warning("the log of the journal cannot be read", exc_info=True)
            return None
        return found if found > failed else None

    def _restorable(self) -> int:
        """Find the first version that the files of the log can reconstruct.

        Delta removes old commits one by one; commits left before the first checkpoint are not
        sufficient by themselves.
        """
        detail = f"DESCRIBE DETAIL {self._names.journal}"

        def statement() -> tuple[int | None, list[str]]:
            session = self._statements.session
            folder = f"{session.sql(detail).collect()[0]['location']}/_delta_log"
            files = session.read.format("binaryFile").load(verbatim(folder))
            names = files.selectExpr("substring_index(path, '/', -1) AS name")
            commits = names.where(f"name RLIKE '^{_COMMIT}$'").selectExpr("min(name)").collect()
            oldest = commits[0][0]
            found = names.where("contains(name, '.checkpoint')").collect()
            return None if oldest is None else int(oldest[:20]), [row[0] for row in found]

        oldest, names = self._statements.run(statement)
        if not oldest:
            return 0
        parts = Counter(found.groups() for name in names if (found := _CHECKPOINT.fullmatch(name)))
        whole = (int(v) for (v, of), n in parts.items() if of is None or n == int(of))
        return min((version for version in whole if version >= oldest - 1), default=0)

    def _versions(self, looked_at: int) -> tuple[int, int, int | None, bool]:
        """Read the newest versions in the log.

        Returns:
            The newest, the oldest, the oldest recent enough, and whether any is not.
        """
        kept = f"SHOW TBLPROPERTIES {self._names.journal} ('{RETENTION}')"
        history = f"DESCRIBE HISTORY {self._names.journal} LIMIT {looked_at}"

        def statement() -> list[Any]:
            session = self._statements.session
            said = str(session.sql(kept).collect()[0]["value"])
            since = f"unix_millis(current_timestamp() - CAST({literal(said)} AS INTERVAL))"
            commits = session.sql(history)
            return commits.selectExpr(
                "version",
                "unix_millis(timestamp) AS at",
                f"{since} AS kept",
                f"{_VACUUMED_MS} AS gone",
            ).collect()

        commits = self._statements.run(statement)
        gone_ms = max(max(one["kept"], one["gone"] or 0) for one in commits)
        young = [one["version"] for one in commits if one["at"] >= gone_ms + _WRITTEN_BEFORE_MS]
        versions = [one["version"] for one in commits]
        return max(versions), min(versions), min(young, default=None), len(young) < len(versions)

    def _audit(self, start: int, upto: int, beginning: int, *, archived: bool) -> Audit:
        seen = (
            f"SELECT {_IDS}, "
            "max(if(_change_type = 'insert', _commit_version, NULL)) AS landed, "
            "bool_or(_change_type = 'delete') AS gone, "
            "count_if(_change_type NOT IN ('insert', 'delete')) AS changed "
            f"FROM {_FEED} GROUP BY {_IDS}"
        )
        counted = f"count_if(landed >= {beginning}), coalesce(sum(changed), 0)"
        if not archived:  # nothing should be gone: only what is gone has to be looked for
            query = f"SELECT {counted}, count_if(gone) FROM ({seen})"
            inserted, updated, gone = self._counts(start, upto, query)
            if not gone:
                return Audit(start, inserted, updated, 0, 0, 0)
        archive = f"SELECT DISTINCT {_IDS} FROM {self._names.archive}"
        nothing = "SELECT CAST(NULL AS string) AS append_id, CAST(NULL AS int) AS `index`"
        due = f"gone AND coalesce(landed, {start - 1}) >= {beginning}"
        kept = "(a.append_id IS NOT NULL OR j.append_id IS NOT NULL)"
        query = (
            f"SELECT {counted}, count_if({due}), count_if({due} AND {kept}), "
            f"count_if(gone AND j.append_id IS NOT NULL) FROM ({seen}) s "
            f"LEFT JOIN (SELECT {_IDS} FROM {self._names.journal} "
            f"WHERE _metadata.row_commit_version <= {upto}) j "
            "ON j.append_id = s.append_id AND j.`index` = s.`index` "
            f"LEFT JOIN ({archive if archived else nothing}) a "
            "ON a.append_id = s.append_id AND a.`index` = s.`index`"
        )
        inserted, updated, deleted, known, returned = self._counts(start, upto, query)
        return Audit(start, inserted, updated, deleted, known, returned)

    def _counts(self, start: int, upto: int, query: str) -> tuple[int, ...]:
        """Count what the feed between two versions shows, whose view the query names."""

        def statement(session: SparkSession) -> Any:
            changes(session, self._names, start, upto).createOrReplaceTempView(_FEED)
            found = session.sql(query).collect()[0]
            session.catalog.dropTempView(_FEED)  # its plan names the files of the feed
            return found

        return tuple(map(int, self._statements.alone(statement, compiled=True)))
