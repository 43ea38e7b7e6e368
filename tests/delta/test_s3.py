"""Stores on a real S3 server, on which two driver processes work at the same time."""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyarrow.fs import S3FileSystem

import txnqueue
from tests.conftest import INTERPRETED, LONG
from tests.delta.s3 import BUCKET, Between, S3Server, settings
from tests.delta.s3_driver import Process
from txnqueue.platform.log_store import CONDITIONAL_PUT, log_store_jar

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]
ROOT = Path(__file__).resolve().parents[2]
COMMITS = re.compile(r"/journal/_delta_log/\d{20}\.json$")
DELTAS_OWN = f"s3://{BUCKET}"
"""With this scheme Delta's own log store is used."""
CONDITIONAL = f"s3a://{BUCKET}"


@dataclass(frozen=True)
class Lake:
    """The server, what stands before it, and two drivers."""

    server: S3Server
    between: Between
    one: Process
    two: Process

    def look(self, root: str) -> txnqueue.StoreReader:
        """Look at a store without Spark."""
        files = S3FileSystem(
            endpoint_override=self.server.url, access_key="x", secret_key="x", region="us-east-1"
        )
        return txnqueue.look(root, filesystem=files)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    folder = tmp_path_factory.mktemp("s3")
    server = S3Server(folder)
    between = Between(server)
    said = {
        **settings(between.url),
        **({} if LONG else INTERPRETED),
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    }
    drivers = [Process(name, said, folder / name) for name in ("one", "two")]
    yield Lake(server, between, *drivers)
    for driver in drivers:
        driver.close()
    between.close()
    server.close()


@pytest.fixture
def between(lake: Lake) -> Iterator[Between]:
    yield lake.between
    lake.between.loses = lake.between.meets = None
    lake.between.lost.clear()
    lake.between.met.clear()
    lake.between.unconditional = False


def test_two_drivers_send_and_consume_at_the_same_time(lake: Lake) -> None:
    root = f"{CONDITIONAL}/shared"
    assert lake.one.do("create", root) is True
    lake.one.begin("send", root, first=0, sends=2)
    lake.two.begin("send", root, first=100, sends=2)
    assert (lake.one.end(), lake.two.end()) == (2, 2)
    lake.one.begin("drain", root)
    lake.two.begin("drain", root)
    taken = [lake.one.end(), lake.two.end()]
    assert sum(taken) == 4, taken
    sent = [0, 1, 100, 101]
    assert lake.two.do("audit", root) == {"in": [], "out": sent, "proof": ""}
    if LONG:  # a minute
        assert lake.one.do("maintain", root) is True
    seen = lake.look(root)
    assert sorted(row["i"] for row in seen.queue("out").peek_messages(100)) == sent


@pytest.mark.skipif(not LONG, reason="more than a minute: a VACUUM of the whole table")
def test_files_that_no_log_names_are_found_and_removed(lake: Lake) -> None:
    root = f"{CONDITIONAL}/shared"
    stray = f"{lake.server.url}/{BUCKET}/shared/journal/shard=fence/stray.parquet"
    urllib.request.urlopen(urllib.request.Request(stray, b"?", method="PUT")).close()
    assert lake.one.do("vacuum", root, table="journal") is True
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(stray)
    assert lake.two.do("waiting", root, queue="out") == [0, 1, 100, 101]


def test_of_two_commits_in_one_moment_none_is_lost(lake: Lake, between: Between) -> None:
    root = f"{CONDITIONAL}/met"
    lake.one.do("create", root)
    assert lake.two.do("send", root, first=0) == 1  # both know the store
    collide(lake, between, root)
    assert lake.one.do("audit", root) == {"in": [0, 1, 2], "out": [], "proof": ""}


@pytest.mark.skipif(not LONG, reason="what it shows does not change with the library")
def test_with_delta_s_own_log_store_one_of_them_is_lost(lake: Lake, between: Between) -> None:
    """So that it is known that the test above meets what it is about."""
    root = f"{DELTAS_OWN}/lost"
    for driver in (lake.one, lake.two):
        driver.do("unguarded", root)
    lake.one.do("create", root)
    assert lake.two.do("send", root, first=0) == 1
    collide(lake, between, root)
    lake.two.do("close", root)
    there = lake.look(root).queue("in").peek_messages(10)
    assert len(there) < 3


def collide(lake: Lake, between: Between, root: str) -> None:
    """Let both drivers put the next commit of the journal at the same time."""
    between.meets = COMMITS
    lake.one.begin("send", root, first=1)
    lake.two.begin("send", root, first=2)
    assert (lake.one.end(), lake.two.end()) == (1, 1)
    assert between.met, "they did not meet"


def test_a_put_whose_answer_is_lost_has_landed_once(lake: Lake, between: Between) -> None:
    root = f"{CONDITIONAL}/lost-answers"
    lake.one.do("create", root)
    between.loses = re.compile(r"/_delta_log/\d{20}\.json$")
    assert lake.one.do("send", root, first=0, sends=3) == 3
    assert any("/journal/" in name for name in between.lost), between.lost
    assert any("/payload/" in name for name in between.lost), between.lost
    between.loses = None
    assert lake.one.do("waiting", root) == [0, 1, 2]


@pytest.mark.skipif(not LONG, reason="a minute for three figures")
def test_what_an_operation_asks_of_the_server(lake: Lake, between: Between) -> None:
    """Each request is one that waits for the one before it, but for those of a few tasks."""
    root = f"{CONDITIONAL}/counted"
    lake.one.do("create", root)
    lake.one.do("send", root, first=0, sends=3)
    lake.one.do("accept", root)
    counted = {}
    between.logs_listed.clear()
    for act, arguments in (("send", {"first": 10}), ("accept", {}), ("depth", {})):
        before = between.counts.total()
        lake.one.do(act, root, **arguments)
        counted[act] = between.counts.total() - before
    assert counted["send"] <= 130, counted
    assert counted["accept"] <= 160, counted
    assert counted["depth"] <= 3, counted
    # What looks whether a folder is there asks for two names. All else begins at a commit.
    whole = [one for one in between.logs_listed if one.get("max-keys") != "2"]
    assert whole and all("start-after" in one for one in whole), whole


@pytest.mark.skipif(not LONG, reason="what is refused is refused before anything is put")
def test_whoever_puts_otherwise_is_refused_until_somebody_says_so(lake: Lake) -> None:
    shared, otherwise = f"{CONDITIONAL}/refused", f"{DELTAS_OWN}/refused"
    lake.one.do("create", shared)
    said = lake.two.do("send", otherwise, first=0)
    assert said.startswith("SecondDriver"), said
    assert f"spark.delta.logStore.s3.impl={CONDITIONAL_PUT}" in said
    assert lake.two.do("take_over", otherwise) is True
    assert lake.two.do("send", otherwise, first=0) == 1
    assert lake.two.do("close", otherwise) is True  # the next one may begin
    assert lake.one.do("close", shared) is True
    assert lake.one.do("send", shared, first=1) == 1
    assert lake.one.do("waiting", shared) == [0, 1]


def test_a_server_that_does_not_mind_the_condition_is_refused(lake: Lake, between: Between) -> None:
    lake.server.make_bucket("careless")
    between.unconditional = True
    said = lake.one.do("create", "s3a://careless/store")
    assert "If-None-Match" in said, said
    with urllib.request.urlopen(f"{lake.server.url}/careless?list-type=2") as answer:
        assert b".json" not in answer.read()  # what is there marks the folder
    between.unconditional = False
    assert lake.one.do("create", "s3a://careless/store") is True


@pytest.mark.skipif(shutil.which("javac") is None, reason="there is no JDK")
def test_the_jar_is_made_from_the_source(tmp_path: Path) -> None:
    made = tmp_path / "made.jar"
    subprocess.run(["bash", "jobs/log_store.sh", str(made)], cwd=ROOT, check=True)
    release = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True)
    if "javac 17." in release.stdout + release.stderr:
        assert made.read_bytes() == log_store_jar().read_bytes()
    assert zipfile.ZipFile(made).namelist() == zipfile.ZipFile(log_store_jar()).namelist()
