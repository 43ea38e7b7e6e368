"""Count what an operation costs: Delta commits, Spark jobs and their tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Cost:
    """What happened between ``with Cost(...)`` and its end.

    Attributes:
        commits: Delta commits over all tables of the store.
        jobs: Spark jobs.
        tasks: Tasks of each of those jobs.
        bytes: How much was read from files, logs included.
    """

    def __init__(self, spark: Any, root: str) -> None:
        self._context = spark.sparkContext._jsc.sc()
        self._disk = spark._jvm.org.apache.hadoop.fs.FileSystem
        self._root = Path(root)
        self.commits = self.jobs = self.bytes = 0
        self.tasks: list[int] = []

    def __enter__(self) -> Cost:
        self._commits = self._count_commits()
        self._job = self._context.dagScheduler().numTotalJobs()
        self._bytes = self._count_bytes()
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = self._count_bytes() - self._bytes
        self.commits = self._count_commits() - self._commits
        last = self._context.dagScheduler().numTotalJobs()
        self.jobs = last - self._job
        self._context.listenerBus().waitUntilEmpty()
        jobs = self._context.statusStore().jobsList(None)
        found = {jobs.apply(i).jobId(): jobs.apply(i).numTasks() for i in range(jobs.size())}
        self.tasks = [found[number] for number in range(self._job, last) if number in found]

    def _count_bytes(self) -> int:
        found = self._disk.getAllStatistics()
        return sum(found.get(i).getBytesRead() for i in range(found.size()))

    def _count_commits(self) -> int:
        return sum(1 for _ in self._root.glob("**/_delta_log/*.json"))
