"""A driver process on S3: it does what it is told line by line, and answers each line by one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import drivers
from txnqueue import QueueManager
from txnqueue.storage.journal.admission import SETTING


class Process:
    """The driver process, seen from the tests."""

    def __init__(self, name: str, settings: dict[str, str], errors: Path) -> None:
        """Start it."""
        with errors.open("w") as file:
            self._process = drivers.start(
                "tests.delta.s3_driver", name,
                stdin=subprocess.PIPE, stderr=file.fileno(), settings=settings,
            )  # fmt: skip

    def begin(self, act: str, root: str, **arguments: Any) -> None:
        """Tell it to do something."""
        assert self._process.stdin is not None
        told = {"act": act, "root": root, **arguments}
        print(json.dumps(told), file=self._process.stdin, flush=True)

    def end(self) -> Any:
        """Wait for what came of it: a value, or the name and the text of an error."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer = json.loads(line)
                return answer.get("value", answer.get("error"))
        raise AssertionError(f"the driver ended: {self._process.wait()}")

    def do(self, act: str, root: str, **arguments: Any) -> Any:
        """Do something, and return what came of it."""
        self.begin(act, root, **arguments)
        return self.end()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


class Driver:
    """The driver process, from its inside."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._spark = drivers.session(name)
        self._managers: dict[str, QueueManager] = {}

    def of(self, root: str) -> QueueManager:
        """Open a store once."""
        if root not in self._managers:
            self._managers[root] = QueueManager(self._spark, root, actor=self._name)
        return self._managers[root]

    def create(self, root: str) -> bool:
        for name in ("in", "out"):
            self.of(root).create_queue(name, "i long", dead_letter=False)
        return True

    def unguarded(self, root: str) -> bool:
        """Open a store as one that any number of drivers may share, whatever its log store."""
        self._spark.conf.set(SETTING, "true")
        try:
            self.of(root)
        finally:
            self._spark.conf.unset(SETTING)
        return True

    def send(self, root: str, first: int, sends: int = 1) -> int:
        for number in range(first, first + sends):
            with self.of(root).transaction(f"{self._name}/{number}") as tx:
                tx.queue("in").send([{"i": number}])
        return sends

    def accept(self, root: str) -> int:
        """Receive what waits, look at it and accept it."""
        batch = self.of(root).queue("in").receive(100)
        count = batch.df.count()
        batch.accept()
        return int(count)

    def depth(self, root: str) -> int:
        return self.of(root).queue("in").depth()

    def take_over(self, root: str) -> bool:
        self.of(root).take_over("the others have ended")
        return True

    def drain(self, root: str) -> int:
        def handler(batch: Any, tx: Any) -> None:
            tx.queue("out").send(batch.df.select("i"))

        return self.of(root).queue("in").drain(handler, batch_size=4, until="empty").messages

    def audit(self, root: str) -> Any:
        proof = self.of(root).history.verify()
        found = {name: self.waiting(root, name) for name in ("in", "out")}
        return {**found, "proof": "" if proof.ok else str(proof)}

    def waiting(self, root: str, queue: str = "in") -> list[int]:
        return sorted(row["i"] for row in self.of(root).queue(queue).peek_messages(1000))

    def maintain(self, root: str) -> bool:
        self.of(root).maintain()
        return True

    def vacuum(self, root: str, table: str) -> bool:
        """Remove from a table's folder all that its log does not name."""
        self._spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        self._spark.sql(f"VACUUM delta.`{root}/{table}` RETAIN 0 HOURS").collect()
        return True

    def close(self, root: str) -> bool:
        self._managers.pop(root).close()
        return True


def main(name: str) -> None:
    driver = Driver(name)
    for line in sys.stdin:
        told = json.loads(line)
        try:
            answer = {"value": getattr(driver, told.pop("act"))(**told)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
