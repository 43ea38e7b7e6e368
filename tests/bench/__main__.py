"""Measures, and writes what was found.

    bash tests/bench.sh                  every case, about 25 minutes
    bash tests/bench.sh --minutes 8      fewer rounds
    bash tests/bench.sh --only send      a group, or cases whose names begin so; repeatable
    bash tests/bench.sh --skip audit     all but a group, or such cases; repeatable
    bash tests/bench.sh --quick          one round of each, to see that it works
    bash tests/bench.sh --full           also large stores, and how costs grow
    bash tests/bench.sh --publish        into docs/: the figures, the pictures, the tables

A partial run that is published replaces the cases that it has measured, if all versions are the
same; those that another machine has measured are marked.

Exit codes: 0 everything was measured; 1 a case failed, or is void.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.bench import machine, page, report, results
from tests.bench.audit import audit
from tests.bench.case import Group
from tests.bench.consumer import CONSUMERS
from tests.bench.groups import chosen, groups
from tests.bench.runner import Runner
from tests.bench.world import World
from txnqueue import local_spark

PROJECT = Path(__file__).resolve().parents[2]
RESULTS = PROJECT / ".cache" / "performance.json"
MINUTES = 25.0
MINUTES_FULL = 90.0
ROUNDS = 10
AUDIT = "audit"
"""What the check is called by which messages are lost or doubled."""
AUDIT_MINUTES = 12.0


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("bench.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="CASE")
    parser.add_argument("--skip", action="append", default=[], metavar="CASE")
    parser.add_argument("--minutes", type=float, help="about how long it may take")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at most so many")
    parser.add_argument("--quick", action="store_true", help="one round of each")
    parser.add_argument("--full", action="store_true", help="large stores as well")
    parser.add_argument("--publish", action="store_true", help="write into docs/")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--folder", type=Path, help="where the tables lie; on a real disk")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start Spark, measure, and write."""
    given, console = options(arguments), Console()
    made = given.folder is None
    folder = Path(tempfile.mkdtemp(prefix="txnqueue-bench-")) if made else given.folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        spark = local_spark("txnqueue bench", cores=machine.cores(), memory="4g")
        spark.sparkContext.setLogLevel("ERROR")
        document = Session(spark, folder, given, console).measure()
        spark.stop()
    finally:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
    report.shown(document, console)
    if given.publish:
        page.publish(document)
    return int(bool(document["failed"]) or any(case["void"] for case in document["cases"]))


class Session:
    """One run of what was asked for."""

    def __init__(
        self, spark: Any, folder: Path, given: argparse.Namespace, console: Console
    ) -> None:
        """Begin the document.

        Args:
            spark: The user's session.
            folder: Where the tables lie.
            given: What was asked for.
            console: Where is shown what goes on.
        """
        self._spark, self._folder, self._given, self._console = spark, folder, given, console
        self._began = time.monotonic()
        self._world = World(spark, folder, quick=given.quick)
        self._todo = planned(groups(self._world), given)
        self._document: results.Document = {
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "mode": "quick" if given.quick else "full" if given.full else "normal",
            "machine": machine.machine(folder),
            "versions": machine.versions(spark),
            "cases": [],
            "peers": [],
            "failed": [],
        }

    def measure(self) -> results.Document:
        """Measure; after each group all that there is so far is written."""
        with self._console.status("") as self._status:
            if self._todo:
                self._measure()
            if audited(self._given):
                self._document["peers"] = self._audits()
        self._document["seconds"] = round(time.monotonic() - self._began)
        self._keep()
        return self._document

    def _measure(self) -> None:
        given, minutes = self._given, self._given.minutes
        minutes = minutes or (MINUTES_FULL if given.full else MINUTES)
        ends = self._began + 60 * (minutes - AUDIT_MINUTES * audited(given))
        self._say("preparing the store")
        self._world.prepare()
        self._say("warming up")
        self._world.warm()
        runner = Runner(self._world, rounds=1 if given.quick else given.rounds, say=self._say)
        for number, (group, names) in enumerate(self._todo):
            now = time.monotonic()
            share = group.share / sum(one.share for one, _ in self._todo[number:])
            found = runner.measure(group, names, now + share * max(ends - now, 0))
            self._document["cases"] += [results.case_of(group.name, one) for one in found]
            self._failed(runner.failed)
            self._keep()
            taken = time.monotonic() - now
            self._console.print(f"{group.name}: {len(found)} cases in {taken:.0f} s")
        self._world.manager.close()

    def _audits(self) -> list[results.Document]:
        found = []
        for name in CONSUMERS:
            try:
                found.append(audit(self._spark, self._folder / AUDIT, name, self._say))
            except Exception as error:  # the others are checked nevertheless
                self._failed({f"audit of {name}": error})
        return found

    def _failed(self, errors: Mapping[str, Exception]) -> None:
        for name, error in errors.items():
            line = f"{name}: {type(error).__name__}"
            if line not in self._document["failed"]:
                self._document["failed"].append(line)
                self._console.print(f"{name} failed: {error}"[:2_000], markup=False)

    def _keep(self) -> None:
        results.write(self._given.output, self._document)

    def _say(self, line: str) -> None:
        self._status.update(line)
        if not self._console.is_terminal:
            print(f"{time.monotonic() - self._began:6.0f} s  {line}", flush=True)


def planned(known: Sequence[Group], given: argparse.Namespace) -> list[tuple[Group, list[str]]]:
    """Find the groups, and their cases, that were asked for."""
    only, skip = ([name for name in names if name != AUDIT] for names in (given.only, given.skip))
    if given.only and not only:
        return []
    return chosen(known, only, skip, full=given.full)


def audited(given: argparse.Namespace) -> bool:
    """Tell whether peers are to be checked."""
    return (not given.only or AUDIT in given.only) and AUDIT not in given.skip


if __name__ == "__main__":
    sys.exit(main())
