"""A real S3 server in a process beside the tests: S3Proxy, which keeps objects as files.

In front of it stands a proxy of the tests' own, which counts requests, and can lose an answer or
take a condition away.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from functools import cache
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pyspark

from txnqueue.platform.log_store import CONDITIONAL_PUT

BUCKET = "lake"
SERVER = "org.gaul:s3proxy:4.1.0"
UNUSED_BY_SERVER = [
    "com.azure",
    "com.github.fge",
    "com.github.openstack4j.core",
    "com.google.api",
    "com.google.api-client",
    "com.google.api.grpc",
    "com.google.apis",
    "com.google.auth",
    "com.google.cloud",
    "com.google.http-client",
    "com.google.oauth-client",
    "com.microsoft.azure",
    "com.squareup.okhttp3",
    "com.squareup.okio",
    "io.grpc",
    "io.opencensus",
    "io.opentelemetry",
    "io.opentelemetry.contrib",
    "io.opentelemetry.semconv",
    "io.projectreactor",
    "io.prometheus",
    "org.apache.sshd",
]
"""Other clouds than S3's, and metrics."""
AWS = {"3.5.0": "2.35.4", "3.4.2": "2.29.52"}
"""The AWS SDK that a release of Hadoop was made with."""
AWS_MODULES = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
PROVIDED = (
    "software.amazon.awssdk:bundle",
    "org.wildfly.openssl:wildfly-openssl",
    "io.netty:*",
    "org.slf4j:*",
    "org.apache.hadoop:hadoop-client*",
)
"""What Spark has, or what the single modules are taken instead of: the bundle has 640 MB."""
READY_SECONDS = 60
MEET_SECONDS = 20
"""A PUT that is held goes on after this if no second one comes; clients wait for longer."""
FETCH = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.jars.packages", sys.argv[1])
spark = builder.config("spark.jars.excludes", sys.argv[2]).getOrCreate()
print("jars", spark.conf.get("spark.jars"))
spark.stop()
"""


def fetch(packages: str, excludes: str) -> str:
    """Fetch packages by Spark's own mechanism, and name their files as Spark does."""
    command = [sys.executable, "-c", FETCH, packages, excludes]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    jars = re.search(r"^jars (.*)$", said, re.MULTILINE)
    assert jars is not None, said
    return jars.group(1)


@cache
def client_jars() -> str:
    """Fetch Hadoop's file system for S3, as it belongs to this Spark."""
    (hadoop,) = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    release = hadoop.stem.removeprefix("hadoop-client-api-")
    modules = (f"software.amazon.awssdk:{name}:{AWS[release]}" for name in AWS_MODULES)
    packages = [f"org.apache.hadoop:hadoop-aws:{release}", *modules]
    return fetch(",".join(packages), ",".join(PROVIDED))


def settings(url: str, jars: str, log_store: str | None = CONDITIONAL_PUT) -> dict[str, str]:
    """Write what a session needs to work on the bucket.

    Args:
        url: Where the server is.
        jars: What ``client_jars`` has returned.
        log_store: Delta's log store; None: the one that Delta takes by itself.
    """
    own = {} if log_store is None else {"spark.delta.logStore.s3a.impl": log_store}
    return {
        **own,
        "spark.jars": jars,
        "spark.hadoop.fs.s3a.endpoint": url,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": "anyone",
        "spark.hadoop.fs.s3a.secret.key": "anything",
    }


class S3Server:
    """S3 until ``close`` is called.

    Attributes:
        url: Where it is.
    """

    def __init__(self, folder: Path) -> None:
        """Fetch the server, start it, and make a bucket."""
        jars = fetch(SERVER, ",".join(f"{group}:*" for group in UNUSED_BY_SERVER))
        paths = [jar.removeprefix("file://") for jar in jars.split(",")]
        (folder / "data").mkdir(parents=True)
        properties = folder / "s3proxy.conf"
        properties.write_text(
            "s3proxy.authorization=none\n"
            "s3proxy.endpoint=http://127.0.0.1:0\n"
            "jclouds.provider=filesystem-nio2\n"
            "jclouds.identity=anyone\n"
            "jclouds.credential=anything\n"
            f"jclouds.filesystem.basedir={folder / 'data'}\n"
        )
        self._process = subprocess.Popen(
            ["java", "-cp", ":".join(paths), "org.gaul.s3proxy.Main", "--properties", properties],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.url = ""
        ready = threading.Event()
        threading.Thread(target=self._read, args=(ready,), daemon=True).start()
        assert ready.wait(READY_SECONDS) and self.url, "S3Proxy did not start"
        made = urllib.request.Request(f"{self.url}/{BUCKET}", method="PUT")
        urllib.request.urlopen(made).close()

    def _read(self, ready: threading.Event) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = re.search(r"Started .*ServerConnector.*\{(127\.0\.0\.1:\d+)\}", line)
            if found is not None:
                self.url = f"http://{found.group(1)}"
                ready.set()
        ready.set()  # it has ended

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(READY_SECONDS)


class Between:
    """Hands requests on to a server, and answers back, unless a test says otherwise.

    Attributes:
        url: Where it is.
        counts: How many requests there were, by method.
        logs_listed: What was asked for by listings of logs.
        loses: The answers to PUTs of objects whose names match this are lost, each once.
        lost: The names of those that were.
        meets: PUTs of one object whose name matches this are held until there is a second one,
            which goes first; then no more are.
        met: The names of those that met.
        unconditional: Whether PUTs lose their conditions.
    """

    def __init__(self, server: S3Server) -> None:
        """Begin to listen."""
        self.counts: Counter[str] = Counter()
        self.logs_listed: list[dict[str, str]] = []
        self.loses: re.Pattern[str] | None = None
        self.lost: list[str] = []
        self.meets: re.Pattern[str] | None = None
        self.met: list[str] = []
        self.unconditional = False
        self._held: dict[str, threading.Event] = {}
        self._meeting = threading.Lock()
        self._server = server
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._http.shutdown()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _hand_on(self) -> None:
                between.hand_on(self)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _hand_on

            def log_message(self, *_about: Any) -> None:
                """Say nothing."""

        return Handler

    def _meet(self, name: str) -> threading.Event | None:
        """Hold the first of two PUTs until the second has gone; of that say when it has."""
        if self.meets is None or not self.meets.search(name):
            return None
        with self._meeting:
            other = self._held.get(name)
            if other is not None:
                self.met.append(name)
                self.meets = None
                return other
            mine = self._held[name] = threading.Event()
        mine.wait(MEET_SECONDS)
        with self._meeting:
            del self._held[name]
        return None

    def hand_on(self, asked: BaseHTTPRequestHandler) -> None:
        """Ask the server what a client asked, and answer as the server did."""
        method, path = asked.command, asked.path
        self.counts[method] += 1
        asked_for = dict(parse_qsl(path.partition("?")[2]))
        if asked_for.get("prefix", "").endswith("/_delta_log/"):
            self.logs_listed.append(asked_for)
        headers = {k: v for k, v in asked.headers.items() if k.lower() != "expect"}
        if self.unconditional:
            headers = {k: v for k, v in headers.items() if k.lower() != "if-none-match"}
        body = asked.rfile.read(int(headers.get("Content-Length", "0")))
        name = path.partition("?")[0]
        gone = self._meet(name) if method == "PUT" else None
        connection = HTTPConnection(self._server.url.removeprefix("http://"))
        with contextlib.closing(connection):
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        if gone is not None:
            gone.set()
        if method == "PUT" and self.loses and self.loses.search(name) and name not in self.lost:
            self.lost.append(name)
            asked.close_connection = True
            return
        asked.send_response_only(answer.status, answer.reason)
        for key, value in answer.getheaders():
            if key.lower() not in ("transfer-encoding", "content-length", "connection"):
                asked.send_header(key, value)
        length = answer.getheader("Content-Length") if method == "HEAD" else str(len(content))
        asked.send_header("Content-Length", length or "0")
        asked.end_headers()
        asked.wfile.write(content)
