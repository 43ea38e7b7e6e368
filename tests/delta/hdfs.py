"""A real HDFS in one process beside the tests: a name node and a data node on localhost."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

RELEASE = "3.4.2"
PACKAGES = (
    f"org.apache.hadoop:hadoop-client-minicluster:{RELEASE}",
    f"org.apache.hadoop:hadoop-client-api:{RELEASE}",
    f"org.apache.hadoop:hadoop-client-runtime:{RELEASE}",
    "commons-logging:commons-logging:1.2",
    "org.slf4j:slf4j-api:1.7.36",
)
READY_SECONDS = 180
PROGRAM = """
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

public class MiniHdfs {
    public static void main(String[] arguments) throws Exception {
        Configuration settings = new Configuration();
        settings.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, arguments[0]);
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(settings).numDataNodes(1).build();
        cluster.waitActive();
        System.out.println("hdfs://localhost:" + cluster.getNameNodePort());
        System.out.flush();
        while (System.in.read() >= 0) { }
        cluster.shutdown();
        System.exit(0);
    }
}
"""
FETCH = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.jars.packages", sys.argv[1]).getOrCreate()
print("jars", spark.conf.get("spark.jars"))
spark.stop()
"""


class MiniHdfs:
    """HDFS until ``close`` is called; ``url`` is where it is."""

    def __init__(self, folder: Path) -> None:
        """Fetch Hadoop by Spark's own package mechanism, and start it."""
        command = [sys.executable, "-c", FETCH, ",".join(PACKAGES)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        jars = re.search(r"^jars (.*)$", said, re.MULTILINE)
        assert jars is not None, said
        paths = [jar.removeprefix("file://") for jar in jars.group(1).split(",")]
        program = folder / "MiniHdfs.java"
        program.write_text(PROGRAM)
        self._process = subprocess.Popen(
            ["java", "-cp", ":".join(paths), str(program), str(folder / "data")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.url = ""
        ready = threading.Event()
        threading.Thread(target=self._read, args=(ready,), daemon=True).start()
        assert ready.wait(READY_SECONDS) and self.url, "HDFS did not start"

    def _read(self, ready: threading.Event) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("hdfs://"):
                self.url = line.strip()
                ready.set()
        ready.set()  # it has ended

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
