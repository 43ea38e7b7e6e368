"""A real S3 server in a process beside the tests: S3Proxy, which keeps objects as files.

In front of it stands a proxy of the tests' own, which counts requests, and can lose an answer or
take a condition away.
"""

from __future__ import annotations

import contextlib
import re
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

from tests.delta.java_server import JavaServer, fetched
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
MEET_SECONDS = 20
"""A PUT that is held goes on after this if no second one comes; clients wait for longer."""


@cache
def client_jars() -> list[str]:
    """Fetch Hadoop's file system for S3, as it belongs to this Spark."""
    (hadoop,) = Path(pyspark.__file__).parent.glob("jars/hadoop-client-api-*.jar")
    release = hadoop.stem.removeprefix("hadoop-client-api-")
    modules = (f"software.amazon.awssdk:{name}:{AWS[release]}" for name in AWS_MODULES)
    return fetched([f"org.apache.hadoop:hadoop-aws:{release}", *modules], PROVIDED)


def settings(url: str) -> dict[str, str]:
    """Write what a session needs to work on the bucket of a server."""
    return {
        "spark.delta.logStore.s3a.impl": CONDITIONAL_PUT,
        "spark.jars": ",".join(f"file://{jar}" for jar in client_jars()),
        "spark.hadoop.fs.s3a.endpoint": url,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": "anyone",
        "spark.hadoop.fs.s3a.secret.key": "anything",
    }


class S3Server(JavaServer):
    """S3 until ``close`` is called.

    Attributes:
        url: Where it is.
    """

    def __init__(self, folder: Path) -> None:
        """Fetch the server, start it, and make a bucket."""
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
        super().__init__(
            fetched([SERVER], [f"{group}:*" for group in UNUSED_BY_SERVER]),
            ("org.gaul.s3proxy.Main", "--properties", properties),
            r"Started .*ServerConnector.*\{(127\.0\.0\.1:\d+)\}",
        )
        self.url = f"http://{self.address}"
        self.make_bucket(BUCKET)

    def make_bucket(self, name: str) -> None:
        """Make a bucket."""
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT")).close()


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
        connection = HTTPConnection(self._server.address)
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
