"""A real HDFS in one process beside the tests: a name node and a data node on localhost."""

from __future__ import annotations

from pathlib import Path

from tests.delta.java_server import JavaServer, fetched

RELEASE = "3.4.2"
PACKAGES = (
    f"org.apache.hadoop:hadoop-client-minicluster:{RELEASE}",
    f"org.apache.hadoop:hadoop-client-api:{RELEASE}",
    f"org.apache.hadoop:hadoop-client-runtime:{RELEASE}",
    "commons-logging:commons-logging:1.2",
    "org.slf4j:slf4j-api:1.7.36",
)
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


class MiniHdfs(JavaServer):
    """HDFS until ``close`` is called; ``url`` is where it is."""

    def __init__(self, folder: Path) -> None:
        """Fetch Hadoop, and start it."""
        program = folder / "MiniHdfs.java"
        program.write_text(PROGRAM)
        super().__init__(fetched(PACKAGES), (program, folder / "data"), "^(hdfs://.*)$")
        self.url = self.address
