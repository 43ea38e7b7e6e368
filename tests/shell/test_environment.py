"""The local session, and what the doctor says about a machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LONG
from tests.shell.conftest import JAVA_MODULES, complete_java, install_java
from txnqueue.errors import PlatformMissing
from txnqueue.platform import class_archive, local_spark
from txnqueue.platform.doctor import doctor
from txnqueue.platform.local_spark import Java
from txnqueue.platform.log_store import CONDITIONAL_PUT, log_store_jar

LOG_STORE = log_store_jar().as_uri()
COORDINATE = "io.delta:delta-spark_4.2_2.13:4.4.0"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def fetched(home: Path, *names: str) -> list[Path]:
    jars = [home / "some jars" / name for name in names]
    for jar in jars:
        jar.parent.mkdir(exist_ok=True)
        jar.touch()
    local_spark._remember(COORDINATE, ",".join(jar.as_uri() for jar in jars))
    return jars


def settings(**given: str) -> Mapping[str, str]:
    dotted = {key.replace("_", "."): value for key, value in given.items()}
    return local_spark._settings(2, "2g", dotted, COORDINATE)


@pytest.mark.parametrize(
    ("spark", "delta", "coordinate"),
    [
        ("4.2.0", "4.4.0", COORDINATE),
        ("4.0.1", "4.4.0", "io.delta:delta-spark_4.0_2.13:4.4.0"),
        ("4.0.1", "4.0.1", "io.delta:delta-spark_2.13:4.0.1"),
        ("4.1.1", "4.1.0", "io.delta:delta-spark_4.1_2.13:4.1.0"),
        ("4.3.0", "4.5.0", "io.delta:delta-spark_4.3_2.13:4.5.0"),
    ],
)
def test_the_package_of_delta_follows_the_installed_versions(
    versions: dict[str, str], spark: Any, delta: str, coordinate: str
) -> None:
    versions.update({"pyspark": spark, "delta-spark": delta})
    assert local_spark.delta_coordinate() == coordinate


@pytest.mark.parametrize("name", ["pyspark", "delta-spark"])
def test_a_missing_package_is_named_with_its_remedy(versions: dict[str, str], name: str) -> None:
    del versions[name]
    with pytest.raises(PlatformMissing, match=rf"^{name} .*pip install 'txnqueue\[spark\]'"):
        local_spark.local_spark()


def test_the_doctor_says_for_what_spark_is_needed(
    versions: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a store are read without it."""
    del versions["pyspark"]
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    check = next(check for check in doctor() if check.name == "pyspark")
    assert check.meaning.startswith("Writing to a store, SQL predicates and proofs need it: pip")


def test_the_import_needs_no_spark() -> None:
    code = "import sys, txnqueue.platform.local_spark; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_java_is_told_before_spark_starts(
    versions: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(PlatformMissing, match=r"JAVA_HOME .*nowhere"):
        local_spark.local_spark()
    check = next(check for check in doctor() if check.name == "Java")
    assert (check.found, check.verdict) == ("missing", "error")


def test_java_home_wins_over_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other"
    complete_java(other, "21.0.1")
    monkeypatch.setenv("PATH", str(other / "bin") + os.pathsep + os.environ["PATH"])
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert local_spark.find_java() == Java(str(other / "bin" / "java"), "21.0.1", True)

    home = tmp_path / "home"
    path = install_java(home, JAVA_MODULES.format(version="11.0.2"))
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert local_spark.find_java() == Java(path, "11.0.2", False)


@pytest.mark.parametrize(
    ("modules", "problem"),
    [
        (JAVA_MODULES.format(version="11.0.2"), "Java 17 or newer"),
        (JAVA_MODULES.format(version="21.0.8"), "lacks the module jdk.incubator.vector"),
        ("", "is 8 or older"),
    ],
)
def test_a_java_that_cannot_run_spark_is_told(
    versions: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    modules: str,
    problem: str,
) -> None:
    install_java(tmp_path, modules)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PlatformMissing, match=problem):
        local_spark.local_spark()


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("Error occurred\njava.lang.Error: no current folder", "no current folder"),
        ("Picked up _JAVA_OPTIONS: -Xbogus\nUnrecognized option: -Xbogus", "option: -Xbogus"),
        ("Unrecognized option: --list-modules", "is 8 or older"),
    ],
)
def test_why_a_java_does_not_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, problem: str
) -> None:
    java = Path(install_java(tmp_path, f"{said}\n"))
    java.write_text(f"{java.read_text()}exit 1\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check = next(one for one in doctor() if one.name == "Java")
    assert check.verdict == "error" and problem in check.meaning
    assert ("8 or older" in check.meaning) == ("8 or older" in problem)


def test_what_java_picks_up_may_have_any_octets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete_java(tmp_path, "17.0.1")
    java = tmp_path / "bin" / "java"
    java.write_text(f"{java.read_text()}printf 'Picked up: -Dname=\\351\\n' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert local_spark.find_java() == Java(str(java), "17.0.1", True)


def test_a_java_for_another_processor_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = Path(install_java(tmp_path, ""))
    java.write_bytes(b"\x7fELF of another one")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check = next(one for one in doctor() if one.name == "Java")
    assert check.verdict == "error"
    assert "is no program that runs here (Exec format error)" in check.meaning
    with pytest.raises(PlatformMissing, match="Exec format error"):
        local_spark.local_spark()


def test_the_first_start_resolves_only_what_spark_lacks(home: Path) -> None:
    first = settings()
    assert first["spark.jars.packages"] == COORDINATE
    assert "com.fasterxml.jackson.core:*," in first["spark.jars.excludes"]
    assert first["spark.jars"] == LOG_STORE


def test_later_starts_use_the_files(home: Path) -> None:
    jars = fetched(home, "delta-spark.jar", "delta-storage.jar")
    later = settings()
    assert later["spark.jars"] == ",".join([*(jar.as_uri() for jar in jars), LOG_STORE])
    assert "spark.jars.packages" not in later


def test_a_lost_file_is_fetched_again(home: Path) -> None:
    fetched(home, "delta-spark.jar", "delta-storage.jar")[1].unlink()
    assert local_spark.cached_jars(COORDINATE) == []
    assert settings()["spark.jars.packages"] == COORDINATE


def test_jars_of_a_foreign_session_are_not_remembered(home: Path) -> None:
    fetched(home, "postgresql.jar")
    assert local_spark.cached_jars(COORDINATE) == []


def test_given_settings_win_and_given_lists_are_kept(home: Path) -> None:
    fetched(home, "delta-spark.jar")
    merged = settings(
        spark_ui_enabled="true",
        spark_sql_extensions="my.Extension",
        spark_driver_extraJavaOptions="-Xss4m",
        spark_jars="mine.jar",
    )
    assert merged["spark.ui.enabled"] == "true"
    assert merged["spark.sql.extensions"] == f"{local_spark.DELTA_EXTENSION},my.Extension"
    assert merged["spark.driver.extraJavaOptions"].startswith("-Duser.timezone=UTC ")
    assert merged["spark.driver.extraJavaOptions"].endswith(" -Xss4m")
    assert merged["spark.jars"].endswith(f"delta-spark.jar,{LOG_STORE},mine.jar")


def test_given_packages_are_resolved_together_with_delta(home: Path) -> None:
    fetched(home, "delta-spark.jar")
    merged = settings(spark_jars_packages="org.postgresql:postgresql:42.7.4")
    assert merged["spark.jars.packages"] == f"{COORDINATE},org.postgresql:postgresql:42.7.4"
    assert merged["spark.jars"] == LOG_STORE


def test_given_files_of_delta_are_used_as_they_are(home: Path) -> None:
    merged = settings(spark_jars="/opt/delta-spark_4.2_2.13-4.4.0.jar")
    assert merged["spark.jars"] == f"{LOG_STORE},/opt/delta-spark_4.2_2.13-4.4.0.jar"
    assert "spark.jars.packages" not in merged


@pytest.mark.parametrize(
    ("root", "found", "verdict", "meaning"),
    [
        ("/lake/messaging", "file:", "ok", "with a lock"),
        ("file:///lake", "file:", "ok", "a power failure"),
        ("hdfs://name/lake", "hdfs:", "ok", "Several drivers"),
        ("abfss://c@a.dfs.core.windows.net/lake", "abfss:", "ok", "Several drivers"),
        ("gs://bucket/lake", "gs:", "ok", "Several drivers"),
        (
            "s3a://bucket/lake",
            "s3a:",
            "warning",
            f"spark.delta.logStore.s3a.impl={CONDITIONAL_PUT}",
        ),
        ("S3://bucket/lake", "s3:", "warning", "Only one driver"),
        ("s3a://[bucket/lake", "s3a:", "warning", "Only one driver"),
        ("//[lake/messaging", "file:", "ok", "with a lock"),
        ("oci://bucket/lake", "oci:", "warning", "several_drivers=true"),
        ("lake.messaging", "the catalog schema lake.messaging", "warning", "location"),
    ],
)
def test_the_doctor_judges_the_storage(root: str, found: str, verdict: str, meaning: str) -> None:
    check = doctor(root)[-1]
    assert (check.name, check.found, check.verdict) == ("storage", found, verdict)
    assert meaning in check.meaning


@pytest.mark.parametrize(
    ("name", "version", "verdict"),
    [
        ("pyspark", "4.2.0", "ok"),
        ("pyspark", "4.0.0", "error"),
        ("pyspark", "4.2.1", "warning"),
        ("pyspark", "4.3.0", "warning"),
        ("delta-spark", "4.0.0", "error"),
        ("delta-spark", "4.5.0", "warning"),
        ("delta-spark", "4.4.1", "error"),
        ("delta-spark", None, "error"),
        ("pyarrow", "17.0.0", "error"),
        ("filelock", None, "warning"),
    ],
)
def test_the_doctor_judges_the_packages(
    versions: dict[str, str], name: str, version: str, verdict: str
) -> None:
    versions[name] = version
    check = next(check for check in doctor() if check.name == name)
    assert (check.found, check.verdict) == (version or "missing", verdict)


def test_the_doctor_says_whether_a_start_needs_the_network(
    versions: dict[str, str], home: Path
) -> None:
    before = next(check for check in doctor() if check.name == "Delta's jars")
    fetched(home, "delta-spark.jar")
    after = next(check for check in doctor() if check.name == "Delta's jars")
    assert (before.verdict, after.verdict) == ("warning", "ok")
    assert (before.found, after.found) == ("not fetched yet", "jar files: 1")


def test_every_meaning_is_one_sentence() -> None:
    for check in doctor("/lake"):
        assert check.meaning.endswith(".")
        assert "\n" not in check.meaning


def test_fetching_jars_tells_what_is_missing(versions: dict[str, str]) -> None:
    del versions["delta-spark"]
    with pytest.raises(PlatformMissing, match="delta-spark is not installed"):
        local_spark.fetch_jars()


JARS_OF_A_START = """
from txnqueue.platform import local_spark
assert not local_spark.cached_jars(local_spark.delta_coordinate())
jars = local_spark.fetch_jars()
assert any("delta-spark" in jar.name for jar in jars), jars
assert local_spark.log_store_jar() not in jars
"""


@pytest.mark.spark
def test_a_home_in_which_nothing_was_started_remembers_what_the_first_start_fetched(
    tmp_path: Path,
) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", JARS_OF_A_START], env=environment, check=True)


def test_a_user_without_a_home_has_fetched_no_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run under ids that no user has."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert local_spark.cached_jars("io.delta:delta-spark_4.2_2.13:4.4.0") == []
    local_spark._remember("io.delta:delta-spark_4.2_2.13:4.4.0", "/opt/delta-spark_4.2.jar")


def archived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jars: list[Path]) -> Path:
    java = local_spark.find_java()
    assert java is not None
    monkeypatch.setattr(class_archive, "_folder", lambda: tmp_path / "cache")
    archive = class_archive.archive_file(java.path, jars)
    archive.parent.mkdir(parents=True)
    archive.touch()
    return archive


def test_an_archive_belongs_to_the_jars_as_they_are(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = fetched(home, "delta-spark.jar", "delta-storage.jar")
    java = local_spark.find_java()
    assert java is not None
    archive = archived(tmp_path, monkeypatch, jars)
    assert local_spark._archive(java, jars, {}) == archive
    making = {"spark.driver.extraJavaOptions": "-XX:ArchiveClassesAtExit=x"}
    assert local_spark._archive(java, jars, making) is None
    assert local_spark._archive(java, jars[:1], {}) is None
    jars[0].write_text("newer")
    assert local_spark._archive(java, jars, {}) is None


def test_an_archive_whose_folder_cannot_be_made_is_not_made(tmp_path: Path) -> None:
    def start(_option: str) -> Any:
        raise AssertionError("a session was started")

    in_the_way = tmp_path / "share"
    in_the_way.touch()
    with pytest.raises(PlatformMissing, match="cannot be made"):
        class_archive.make(in_the_way / "txnqueue" / "classes.jsa", start, start)


def test_jars_come_first_on_the_class_path_and_an_archive_is_named(
    home: Path, tmp_path: Path
) -> None:
    jars = fetched(home, "delta-spark.jar", "delta-storage.jar")
    given = {"spark.driver.extraClassPath": "mine.jar"}
    archive = tmp_path / "classes.jsa"
    merged = local_spark._settings(2, "2g", given, COORDINATE, archive=archive)
    paths = [*map(str, jars), "mine.jar"]
    assert merged["spark.driver.extraClassPath"] == os.pathsep.join(paths)
    assert f"-XX:SharedArchiveFile={archive} " in merged["spark.driver.extraJavaOptions"]
    assert "SharedArchiveFile" not in settings()["spark.driver.extraJavaOptions"]


DELTAS_CLASSES = """
import sys
from pathlib import Path
from txnqueue.platform import class_archive
from txnqueue.platform.local_spark import local_spark
class_archive._folder = lambda: Path(sys.argv[3])
log = "-Xlog:class+load:file=" + sys.argv[1]
spark = local_spark(memory="1g", settings={"spark.driver.extraJavaOptions": log}, short_lived=True)
spark.range(3).write.format("delta").save(sys.argv[2])
assert spark.read.format("delta").load(sys.argv[2]).count() == 3
"""


def delta_classes(tmp_path: Path, archives: Path) -> list[str]:
    """Start a session in a process of its own, and list where Delta's classes came from."""
    log = tmp_path / "classes.log"
    arguments = map(str, (log, tmp_path / "table", archives))
    subprocess.run([sys.executable, "-c", DELTAS_CLASSES, *arguments], check=True)
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line.partition("source: ")[2] for line in lines if " io.delta." in line
            or " org.apache.spark.sql.delta." in line]  # fmt: skip


@pytest.mark.spark
def test_a_session_takes_deltas_classes_from_the_archive(tmp_path: Path) -> None:
    jars, java = local_spark.fetch_jars(), local_spark.find_java()
    archive = class_archive.archive_file(java.path, jars)
    if not archive.is_file():  # jobs/setup.sh has made it
        subprocess.run([sys.executable, "-m", "txnqueue.cli.main", "setup"], check=True)
    sources = delta_classes(tmp_path, archive.parent)
    archived, read = (
        sum(source.startswith(start) for source in sources) for start in ("shared objects", "file:")
    )
    assert archived > 500 and read < 0.1 * archived


@pytest.mark.spark
@pytest.mark.skipif(not LONG, reason="what Java does with a broken archive does not change")
def test_an_archive_that_is_broken_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = archived(tmp_path, monkeypatch, local_spark.fetch_jars())
    broken.write_bytes(b"no archive" * 100)
    sources = delta_classes(tmp_path, broken.parent)
    assert sources and not any(source.startswith("shared objects") for source in sources)


@pytest.mark.spark
def test_the_session_keeps_utc_and_writes_delta(spark: Any, tmp_path: Path) -> None:
    zones = spark.sql(
        "SELECT current_timezone(), reflect('java.time.ZoneId', 'systemDefault')"
    ).first()
    assert tuple(zones) == ("UTC", "UTC")
    table = str(tmp_path / "a table")
    spark.range(3).write.format("delta").save(table)
    assert spark.read.format("delta").load(table).count() == 3


@pytest.mark.spark
def test_workers_run_the_same_python(spark: Any) -> None:
    def python(batches: Any) -> Iterator[Any]:
        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"python": [sys.executable]})

    frame = spark.range(1).coalesce(1).mapInArrow(python, "python string")
    assert {row.python for row in frame.collect()} == {sys.executable}


@pytest.mark.spark
def test_a_second_call_gets_the_running_session(spark: Any) -> None:
    assert local_spark.local_spark().sparkContext is spark.sparkContext


@pytest.mark.spark
def test_a_session_that_runs_already_keeps_its_settings(spark: Any) -> None:
    own = {"spark.sql.session.timeZone": "Europe/Berlin", "spark.sql.shuffle.partitions": "7"}
    before = {key: spark.conf.get(key) for key in own}
    try:
        for key, value in own.items():
            spark.conf.set(key, value)
        found = local_spark.local_spark(settings={"spark.txnqueue.actor": "clerk"})
        assert {key: found.conf.get(key) for key in own} == own
        assert found.conf.get("spark.txnqueue.actor") == "clerk", "what is asked for is set"
    finally:
        spark.conf.unset("spark.txnqueue.actor")
        for key, value in before.items():
            spark.conf.set(key, value)


WITHOUT_DELTA = """
import sys
from pyspark.sql import SparkSession
from txnqueue.errors import PlatformMissing
from txnqueue.platform.local_spark import local_spark
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.session.timeZone", "Asia/Tokyo").getOrCreate()
try:
    local_spark()
except PlatformMissing as error:
    assert "without Delta" in str(error)
else:
    raise AssertionError("it is not refused")
assert spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
spark.range(3).write.parquet(sys.argv[1])
assert spark.sql(f"SELECT * FROM parquet.`{sys.argv[1]}`").count() == 3
"""


@pytest.mark.spark
def test_a_session_without_delta_is_refused_and_works_as_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_DELTA, str(tmp_path / "table")]
    subprocess.run(command, check=True, cwd=tmp_path)
