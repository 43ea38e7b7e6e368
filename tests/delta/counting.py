"""Count what an operation costs: Delta commits, Spark jobs and their tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Cost:
    """What happened between ``with Cost(...)`` and its end.

    Attributes:
        commits: Delta commits over all tables of the store.
        jobs: Spark jobs, without those of checkpoints: every tenth commit of a table makes one.
        tasks: Tasks of each of those jobs.
        bytes: How much was read from files, logs included.
    """

    def __init__(self, spark: Any, root: str) -> None:
        self._context = spark.sparkContext._jsc.sc()
        self._disk = spark._jvm.org.apache.hadoop.fs.FileSystem
        self._root = Path(root)
        self.commits = self.jobs = self.bytes = 0
        self._checkpoints: set[Path] = set()
        self.tasks: list[int] = []

    def __enter__(self) -> Cost:
        self._commits = self._count_commits()
        self._checkpoints = self._find_checkpoints()
        self._job = self._context.dagScheduler().numTotalJobs()
        self._bytes = self._count_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = self._count_bytes() - self._bytes
        self.commits = self._count_commits() - self._commits
        last = self._context.dagScheduler().numTotalJobs()
        self._context.listenerBus().waitUntilEmpty()
        listed = self._context.statusStore().jobsList(None)
        jobs = [listed.apply(i) for i in range(listed.size())]
        new = self._find_checkpoints() - self._checkpoints
        versions = {int(path.name.split(".")[0]) for path in new}
        mine = sorted((job for job in jobs if self._job <= job.jobId() < last), key=_number)
        counted = [job for job in mine if not _of_checkpoints(job, versions)]
        self.jobs = last - self._job - (len(mine) - len(counted))
        self.tasks = [job.numTasks() for job in counted]

    def _count_bytes(self) -> int:
        found = self._disk.getAllStatistics()
        return sum(found.get(i).getBytesRead() for i in range(found.size()))

    def _count_commits(self) -> int:
        return sum(1 for _ in self._root.glob("**/_delta_log/*.json"))

    def _find_checkpoints(self) -> set[Path]:
        return set(self._root.glob("**/_delta_log/*.checkpoint*.parquet"))


def _number(job: Any) -> int:
    found: int = job.jobId()
    return found


def _of_checkpoints(job: Any, versions: set[int]) -> bool:
    """Whether a job belongs to the writing of a table's checkpoint at one of these versions."""
    if not versions:
        return False
    if job.description().isEmpty():
        return bool(job.name().startswith("$anonfun$recordDeltaOperationInternal"))
    return job.description().get() in {
        f"Delta: Compute snapshot for version: {version}" for version in versions
    }
