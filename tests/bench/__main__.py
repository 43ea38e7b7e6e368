"""Measures, and writes what was found.

    bash tests/bench.sh                  every case, about 15 minutes
    bash tests/bench.sh --minutes 8      fewer rounds
    bash tests/bench.sh --only send      a group, or cases whose names begin so; repeatable
    bash tests/bench.sh --skip audit     all but a group, or such cases; repeatable
    bash tests/bench.sh --quick          one round of each, to see that it works
    bash tests/bench.sh --full           also large stores, and how costs grow
    bash tests/bench.sh --publish        into docs/: the figures, the pictures, the tables

A partial run that is published replaces the cases that it has measured, if the machine and all
versions are the same. Exit codes: 0 everything was measured; 1 a case failed, or is void.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.bench import machine, page, report, results
from tests.bench.audit import audits
from tests.bench.case import Group
from tests.bench.groups import chosen, groups
from tests.bench.runner import Runner
from tests.bench.world import World
from txnqueue import local_spark

PROJECT = Path(__file__).resolve().parents[2]
RESULTS = PROJECT / ".cache" / "performance.json"
PUBLISHED = PROJECT / "docs" / "performance.json"
MINUTES = 15.0
MINUTES_FULL = 60.0
ROUNDS = 10
AUDIT = "audit"
"""What the check is called by which messages are lost or doubled."""
AUDIT_MINUTES = 3.5


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
        document = measure(spark, folder, given, console)
        spark.stop()
    finally:
        if made:
            shutil.rmtree(folder, ignore_errors=True)
    report.shown(document, console)
    results.write(given.output, document)
    if given.publish:
        page.publish(document)
    return int(bool(document["failed"]) or any(case["void"] for case in document["cases"]))


def measure(
    spark: Any, folder: Path, given: argparse.Namespace, console: Console
) -> dict[str, Any]:
    """Measure what was asked for."""
    began = time.monotonic()
    minutes = given.minutes or (MINUTES_FULL if given.full else MINUTES)
    ends = began + 60 * (minutes - AUDIT_MINUTES * audited(given))
    document: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "mode": "quick" if given.quick else "full" if given.full else "normal",
        "machine": machine.machine(folder),
        "versions": machine.versions(spark),
        "cases": [],
        "failed": [],
    }

    def say(line: str) -> None:
        status.update(line)
        if not console.is_terminal:
            print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    with console.status("") as status:
        say("preparing the store")
        world = World(spark, folder, quick=given.quick)
        say("warming up")
        world.warm()
        runner = Runner(world, rounds=1 if given.quick else given.rounds, say=say)
        todo = planned(groups(world), given)
        for number, (group, names) in enumerate(todo):
            now = time.monotonic()
            left = max(ends - now, 0)
            share = group.share / sum(one.share for one, _ in todo[number:])
            try:
                found = runner.measure(group, names, now + share * left)
            except Exception as error:  # the others are measured nevertheless
                console.print_exception()
                document["failed"].append(f"{group.name}: {type(error).__name__}")
                continue
            document["cases"] += [results.case_of(group.name, one) for one in found]
            taken = time.monotonic() - now
            console.print(f"{group.name}: {len(found)} cases in {taken:.0f} s")
        world.manager.close()
        if audited(given):
            document["peers"] = audits(spark, folder / AUDIT, say)
    document["seconds"] = round(time.monotonic() - began)
    return document


def planned(known: Sequence[Group], given: argparse.Namespace) -> list[tuple[Group, list[str]]]:
    """Find the groups, and their cases, that were asked for."""
    only, skip = ([name for name in names if name != AUDIT] for names in (given.only, given.skip))
    return [] if given.only and not only else chosen(known, only, skip, full=given.full)


def audited(given: argparse.Namespace) -> bool:
    """Tell whether peers are to be checked."""
    return (not given.only or AUDIT in given.only) and AUDIT not in given.skip


if __name__ == "__main__":
    sys.exit(main())
