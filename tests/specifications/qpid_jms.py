"""A client of JMS in a process of its own: Qpid JMS of Maven Central, compiled by Janino."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.specifications.amqp_listener import Refusal

PACKAGE = ("org.apache.qpid", "qpid-jms-client", "2.6.1")
SOURCE = Path(__file__).with_name("JmsClient.java")
FETCH_SECONDS = 300


def pyspark_jars(*names: str) -> list[Path]:
    """Find jars that PySpark brings: Ivy, which fetches others, and Janino, which compiles."""
    pyspark = pytest.importorskip("pyspark", reason="Ivy and Janino come with PySpark")
    folder = Path(pyspark.__file__).parent / "jars"
    return [next(folder.glob(f"{name}-[0-9]*.jar")) for name in names]


def jars() -> list[Path]:
    """Find Qpid JMS with what it needs; the first time it is fetched from Maven Central."""
    kept = Path.home() / ".ivy2.5.2" / "txnqueue" / "-".join(PACKAGE[1:])
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            _fetch(Path(folder))
            shutil.copytree(folder, f"{kept}.{os.getpid()}")
        Path(f"{kept}.{os.getpid()}").rename(kept)
    return sorted(kept.glob("*.jar"))


def _fetch(folder: Path) -> None:
    (ivy,) = pyspark_jars("ivy")
    files = folder / "[artifact]-[revision](-[classifier]).[ext]"
    command = ["java", "-jar", str(ivy), "-dependency", *PACKAGE, "-retrieve", str(files)]
    done = subprocess.run(
        [*command, "-confs", "default"],
        capture_output=True,
        text=True,
        timeout=FETCH_SECONDS,
        check=False,
    )
    if not list(folder.glob("qpid-jms-client*.jar")):
        pytest.skip(f"Qpid JMS cannot be fetched: {done.stdout[-300:]}")


class JmsClient:
    """A process with a client of JMS."""

    def __init__(self) -> None:
        if shutil.which("java") is None:
            pytest.skip("there is no Java")
        path = os.pathsep.join(
            str(jar) for jar in (*pyspark_jars("janino", "commons-compiler"), *jars())
        )
        options = ["-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", path]
        self._process = subprocess.Popen(
            ["java", *options, "org.codehaus.janino.SimpleCompiler", str(SOURCE), "JmsClient"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __call__(self, *words: object) -> str:
        """Let it do something, and give its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self._process.stdin.flush()
        verdict, _, answer = self._process.stdout.readline().rstrip("\n").partition(" ")
        if verdict != "ok":
            raise Refusal(answer or "the process ended")
        return answer

    def end(self) -> None:
        """End the process, as a crash does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
