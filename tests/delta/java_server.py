"""Servers in Java that stand beside the tests, and the packages that they are made of."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterable

READY_SECONDS = 180
_FETCH = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.jars.packages", sys.argv[1])
spark = builder.config("spark.jars.excludes", sys.argv[2]).getOrCreate()
print("jars", spark.conf.get("spark.jars"))
spark.stop()
"""


def fetched(packages: Iterable[str], without: Iterable[str] = ()) -> list[str]:
    """Fetch packages, and what they need, by Spark's own mechanism, and list the jars."""
    command = [sys.executable, "-c", _FETCH, ",".join(packages), ",".join(without)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    jars = re.search(r"^jars (.*)$", said, re.MULTILINE)
    assert jars is not None, said
    return [jar.removeprefix("file://") for jar in jars.group(1).split(",")]


class JavaServer:
    """A server in a process of its own, until ``close`` is called.

    Attributes:
        address: What it says of where it is.
    """

    def __init__(self, jars: Iterable[str], program: Iterable[object], ready: str) -> None:
        """Start it, and wait until it says where it is.

        Args:
            jars: Its class path.
            program: A class, or a file of source code, and its arguments.
            ready: A pattern of the line that says so; its first group is the address.
        """
        self._process = subprocess.Popen(
            ["java", "-cp", ":".join(jars), *map(str, program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.address = ""
        begun = threading.Event()
        reading = threading.Thread(target=self._read, args=(re.compile(ready), begun), daemon=True)
        reading.start()
        assert begun.wait(READY_SECONDS) and self.address, f"{program} did not start"

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(60)

    def _read(self, ready: re.Pattern[str], begun: threading.Event) -> None:
        """Read all that it says: it would wait for that."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = ready.search(line)
            if found is not None:
                self.address = found.group(1)
                begun.set()
        begun.set()  # it has ended
