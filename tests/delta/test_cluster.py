"""The scheduled job on a real Spark cluster: standalone, a master and two workers, the wheel."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from txnqueue.manager import QueueManager

pytest.importorskip("typer")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS = 120
SCHEMA = "id long, name string"
QUICK = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""A dozen Java processes that live for seconds: they compile quickly instead of well."""
HANDLER = """
import os, signal

def handle(batch, tx):
    rows = batch.df.selectExpr("id", "concat(name, '!') AS name")
    tx.queue("done").send(rows)
    tx.table(os.environ["GOLD"]).append(rows)
    if os.environ.get("DIES_AT") == tx.id:
        os.kill(os.getpid(), signal.SIGKILL)
"""


class Daemon:
    """A process of the cluster, which is ready when it says so."""

    def __init__(self, ready: str, *arguments: str, **environment: str) -> None:
        import pyspark

        program = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        # Not through a shell that outlives its child: the group ends as one.
        self.process = subprocess.Popen(
            [program, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                **QUICK,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_NO_DAEMONIZE": "1",
                **environment,
            },
        )
        self._said: list[str] = []
        self._ready = threading.Event()
        threading.Thread(target=self._read, args=(ready,), daemon=True).start()
        assert self._ready.wait(READY_SECONDS), "".join(self._said)

    def _read(self, ready: str) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said.append(line)
            if re.search(ready, line):
                self._ready.set()

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def master() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    package = "org.apache.spark.deploy"
    where = ("--host", "127.0.0.1", "--webui-port", "0")
    running: list[Daemon] = []
    try:
        options: tuple[str, ...] = (f"{package}.master.Master", "--port", str(port), *where)
        running.append(Daemon("I have been elected leader", *options))
        for _ in range(2):
            options = (f"{package}.worker.Worker", url, "--cores", "1", "--memory", "1g", *where)
            running.append(Daemon("Successfully registered with master", *options))
        yield url
    finally:
        for daemon in reversed(running):
            daemon.stop()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True)
    (found,) = folder.glob("txnqueue-*.whl")
    return str(found)


@pytest.mark.skipif(not LONG, reason="four minutes: in the long run")
def test_the_job_survives_a_kill_and_repeats_on_a_cluster(
    spark: Any, master: str, wheel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyspark
    from typer.testing import CliRunner

    from txnqueue.cli.main import app
    from txnqueue.platform.local_spark import cached_jars, delta_coordinate

    root, gold = str(tmp_path / "store"), str(tmp_path / "gold")
    manager = QueueManager(spark, root)
    for name in ("orders", "done"):
        manager.create_queue(name, SCHEMA)
    spark.sql(f"CREATE TABLE delta.`{gold}` ({SCHEMA}) USING delta")
    manager.queue("orders").send([{"id": i, "name": "n"} for i in range(10)])
    (tmp_path / "my_job.py").write_text(HANDLER)
    jars = ",".join(map(str, cached_jars(delta_coordinate())))
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", master]
    submit += ["--jars", jars, "--py-files", wheel]
    submit += ["--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]
    submit += ["--conf", "spark.executor.memory=512m", "--conf", "spark.ui.enabled=false"]
    submit += ["--conf", "spark.driver.host=127.0.0.1", str(ROOT / "jobs" / "consume_queue.py")]
    options = ["orders", f"--root={root}", "--handler=my_job:handle", "--batch-size=4"]
    options += ["--run-id=night", "--consumer=job", "--output=json"]

    def run(**environment: str) -> subprocess.CompletedProcess[str]:
        paths = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "GOLD": gold}
        return subprocess.run(
            [*submit, *options],
            cwd=tmp_path,
            env={**os.environ, **QUICK, **paths, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    killed = run(DIES_AT="night/1")
    assert killed.returncode != 0
    assert manager.queue("done").depth() == 4, killed.stderr[-3000:]
    first = run()
    assert first.returncode == 0, first.stderr[-3000:]
    monkeypatch.syspath_prepend(tmp_path)  # once more, by hand and from elsewhere
    here = QueueManager(spark, root, run_id="night", consumer="job")
    second = CliRunner().invoke(app, ["consume", *options], obj=lambda _: (here, None))
    assert second.exit_code == 0, second.output
    said = [json.loads(out.stdout.strip().splitlines()[-1]) for out in (first, second)]
    assert (said[0]["messages"], said[0]["finished"]) == (6, True)
    assert (said[1]["messages"], said[1]["already_finished"]) == (0, True)
    done = sorted(row["id"] for row in manager.queue("done").peek_messages(100))
    assert done == list(range(10))
    rows = sorted(row["id"] for row in spark.read.format("delta").load(gold).collect())
    assert rows == list(range(10))
    assert manager.recover().waiting == () and manager.history.verify().ok
