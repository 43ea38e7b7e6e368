"""The local Spark session, and the Java and the jars with which it is started.

On a platform (Databricks, Fabric, EMR, a cluster) use the platform's own session; the
settings that it needs are in ``conf/spark-defaults.conf``. On a laptop, in a notebook and
in tests, ``local_spark`` returns a session with Delta. Delta's jars are downloaded once from Maven
Central by Spark's own package resolution, which takes seconds and needs the network at every
start. So the list of resolved files is kept beside Ivy's jars, and later starts pass these files
to Spark and need no network. ``fetch_jars`` does that beforehand, and ``archive_classes`` makes
the archive with which sessions start faster.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from txnqueue.core.settings import check_count, check_flag, check_id, is_text, shown
from txnqueue.errors import InvalidInput, PlatformMissing
from txnqueue.platform.class_archive import archive_file, class_path, make, use_option
from txnqueue.platform.log_store import TAIL_LISTING, log_store_jar
from txnqueue.platform.requirements import (
    INSTALL,
    INSTALL_NEWEST,
    java_newest,
    misfit,
    numbers_of,
    version_of,
    without_jars,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
CORES_MAX = 1_024
_MEMORY = re.compile(r"[1-9][0-9]*[kKmMgGtT]")
VECTOR_MODULE = "jdk.incubator.vector"
_LIST_MODULES = "--list-modules"
_ERROR_LENGTH_MAX = 200
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

# The first of Java's two compilers only: what it makes is slower, and there at once.
_QUICK = "-XX:TieredStopAtLevel=1"

# Spark and Delta load some 26,000 classes. Java begins with room for few, and collects all garbage
# each time before it makes more room.
_ROOM_FOR_CLASSES = "-XX:MetaspaceSize=256m"

# Whoever set one of these chose a log store for local files.
_CHOOSES_LOG_STORE = (
    "spark.delta.logStore.class",
    "spark.delta.logStore.file.impl",
    "delta.logStore.class",
    "delta.logStore.file.impl",
)

_SEPARATORS = {"spark.driver.extraJavaOptions": " ", "spark.driver.extraClassPath": os.pathsep}

# Organisations of what Delta's jars depend on and Spark brings itself, mostly newer.
PROVIDED_BY_SPARK = [
    "com.fasterxml.jackson.core",
    "com.fasterxml.jackson.datatype",
    "com.github.luben",
    "com.google.code.findbugs",
    "commons-pool",
    "io.airlift",
    "javax.annotation",
    "org.antlr",
    "org.apache.hadoop",
    "org.apache.logging.log4j",
    "org.apache.parquet",
    "org.locationtech.jts",
    "org.slf4j",
    "org.xerial.snappy",
]


@dataclass(frozen=True)
class Java:
    """The Java that Spark would start."""

    path: str
    version: str
    has_vector_module: bool

    def problem_with(self, spark: str | None) -> str | None:
        """Return why a version of Spark, if it is known, cannot start with it; None if it can."""
        major = (*numbers_of(self.version), 0)[0]
        if major < JAVA_VERSION_MIN:
            return (
                f"Spark needs Java {JAVA_VERSION_MIN} or newer, and {self.path} is "
                f"{self.version}: install OpenJDK {JAVA_VERSION_MIN} or set JAVA_HOME to one."
            )
        if not self.has_vector_module:
            return (
                f"The Java in {self.path} lacks the module {VECTOR_MODULE}, without which Spark "
                f"does not start: install a full OpenJDK {JAVA_VERSION_MIN} and set JAVA_HOME."
            )
        if spark is not None and major > java_newest(spark):
            span = f"{JAVA_VERSION_MIN} to {java_newest(spark)}"
            return (
                f"Spark {spark} starts with Java {span}, as its Hadoop does, and "
                f"{self.path} is {self.version}: install OpenJDK "
                f"{JAVA_VERSION_MIN} and set JAVA_HOME, or take a newer Spark: {INSTALL_NEWEST}."
            )
        return None


def _check_arguments(
    app_name: object, cores: object, memory: object, settings: object, *, short_lived: bool
) -> None:
    """Check what a session is started with: Java's errors would name none of it."""
    check_id(app_name, "app_name")
    check_count("cores", cores, 1, CORES_MAX)
    if not isinstance(memory, str) or not _MEMORY.fullmatch(memory):
        raise InvalidInput(
            f"memory={shown(memory)}: give the size of the Java heap, such as '2g' or '900m'.",
            name="memory",
        )
    named = settings is None or (
        isinstance(settings, Mapping) and all(map(is_text, (*settings, *settings.values())))
    )
    if not named:
        raise InvalidInput(
            f"settings={shown(settings)}: give a dict of Spark's settings, as text by key.",
            name="settings",
        )
    check_flag("short_lived", short_lived)


def local_spark(
    app_name: str = "txnqueue",
    cores: int = 2,
    memory: str = "2g",
    settings: Mapping[str, str] | None = None,
    *,
    short_lived: bool = False,
) -> SparkSession:
    """Start a Spark session with Delta on this machine, or get the one that runs already.

    Args:
        app_name: The name of the session.
        cores: How many tasks run at the same time.
        memory: The Java heap, such as ``"2g"``; this process cannot change it later.
        settings: More Spark settings. A session that runs already gets only these. For a new one
            they win over the ones made here; ``spark.jars``, ``spark.jars.packages``,
            ``spark.jars.excludes``, ``spark.sql.extensions`` and
            ``spark.driver.extraJavaOptions`` are added to them.
        short_lived: The process ends after a minute or so: its Java compiles quickly instead of
            well. That halves the processor time of a short process; a long one is slower by it.

    Returns:
        The session. The times of one that is started here, and those of its JVM, are in UTC.

    Raises:
        PlatformMissing: pyspark, delta-spark, a Java that can run Spark or Delta's jars are
            missing, these versions do not go together, or a session without Delta runs in this
            process already.
        InvalidInput: An argument is of a wrong type.
        LimitExceeded: ``cores`` is out of range.
    """
    _check_arguments(app_name, cores, memory, settings, short_lived=short_lived)
    coordinate = delta_coordinate()
    java = find_java()
    if java is None:
        raise PlatformMissing(no_java())
    problem = java.problem_with(version_of("pyspark"))
    if problem is not None:
        raise PlatformMissing(problem)
    from pyspark.errors import PySparkRuntimeError
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    # They print the stack of an exception that the caller gets as well.
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel("CRITICAL")

    # Spark starts its Python workers as "python3" otherwise, whichever that is.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = dict(settings or {})
    builder, wanted = SparkSession.builder, given
    running = _running()
    if running is not None:  # its settings are the user's
        _check_delta(running)
    else:
        archive = _archive(java, cached_jars(coordinate), given)
        wanted = _settings(
            cores, memory, given, coordinate, short_lived=short_lived, archive=archive
        )
        builder = builder.master(f"local[{cores}]").appName(app_name)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        raise PlatformMissing(
            "Spark's Java process ended before the session had started; its own message is above. "
            "If that names unresolved dependencies, this machine cannot reach Maven Central: start "
            "once with a network connection, or list Delta's jar files in spark.jars. If these "
            "versions have no jar files, txnqueue doctor shows which versions go together."
        ) from error
    _check_delta(spark)
    if running is not None:
        return spark
    _list_tails()
    named = given.keys() & {"spark.jars", "spark.jars.packages"}
    if "spark.jars.packages" in wanted and not named:
        _remember(coordinate, _jars_of_java())
    return spark


def _running() -> SparkSession | None:
    """Return the session that a builder would change and return, which is the user's."""
    from pyspark.sql import SparkSession

    kept: Any = SparkSession
    found = SparkSession.getActiveSession() or kept._instantiatedSession
    context: Any = getattr(getattr(found, "_sc", None), "_jsc", None)  # none of Spark Connect
    return None if context is None or context.sc().isStopped() else found


def _check_delta(spark: SparkSession) -> None:
    """Check that a session knows Delta.

    Raises:
        PlatformMissing: It does not.
    """
    if DELTA_EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise PlatformMissing(
            "This process already has a Spark session without Delta: stop it first."
        )


def delta_coordinate() -> str:
    """Name the Maven package that holds Delta for the installed pyspark and delta-spark.

    Returns:
        Such as ``"io.delta:delta-spark_4.2_2.13:4.4.0"``.

    Raises:
        PlatformMissing: pyspark or delta-spark is not installed or cannot be used, or they do
            not go together.
    """
    spark, delta = (_usable(name) for name in ("pyspark", "delta-spark"))
    problem = without_jars(spark, delta)
    if problem is not None:
        raise PlatformMissing(problem)
    # One release of Delta serves several releases of Spark since 4.1.
    suffix = "" if numbers_of(delta) < (4, 1) else "_{}.{}".format(*numbers_of(spark))
    return f"io.delta:delta-spark{suffix}_2.13:{delta}"


def _usable(package: str) -> str:
    version = version_of(package)
    if version is None:
        raise PlatformMissing(f"{package} is not installed: {INSTALL}.", missing=package)
    found = misfit(package, version)
    if found is not None and not found.usable:
        raise PlatformMissing(f"{package} is {version}. {found.meaning}")
    return version


def cached_jars(coordinate: str) -> list[Path]:
    """Find the jar files that an earlier start resolved.

    Args:
        coordinate: Delta's Maven package, from ``delta_coordinate``.

    Returns:
        The files; none if they were never resolved or one of them is gone.
    """
    try:
        lines = _record(coordinate).read_text(encoding="utf-8").splitlines()
    except (OSError, RuntimeError):  # the latter: this user has no home
        return []
    jars = [Path(line) for line in lines if line]
    return jars if all(jar.is_file() for jar in jars) else []


def find_java() -> Java | None:
    """Find the Java that Spark would start: that of JAVA_HOME, else the one on the path.

    Returns:
        The Java; None if there is none.
    """
    home = os.environ.get("JAVA_HOME")
    path = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if path is None:
        return None
    command = [path, _LIST_MODULES]
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="backslashreplace",  # an option that it picks up may have any octets
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:  # say, it is for another processor
        why = getattr(error, "strerror", None) or "no answer"
        return Java(path, f"no program that runs here ({why})", has_vector_module=False)
    said = answer.stdout + answer.stderr
    if answer.returncode and _LIST_MODULES not in said:  # which Java 8 does not know
        lines = [line for line in said.splitlines() if not line.startswith("Picked up")]
        why = " ".join(lines)[:_ERROR_LENGTH_MAX] or f"exit code {answer.returncode}"
        return Java(path, f"no program that runs here ({why})", has_vector_module=False)
    modules = dict(line.partition("@")[::2] for line in answer.stdout.splitlines())
    return Java(path, modules.get("java.base", "8 or older"), VECTOR_MODULE in modules)


def fetch_jars() -> list[Path]:
    """Fetch Delta's jars from Maven Central, unless they are there.

    Returns:
        The files.

    Raises:
        PlatformMissing: pyspark, delta-spark or a Java that can run Spark is missing, or the
            jars cannot be fetched.
    """
    coordinate = delta_coordinate()
    if not cached_jars(coordinate):
        # In another process: a Java that fetches jars does not have them on its class path.
        code = "from txnqueue.platform.local_spark import local_spark; local_spark().stop()"
        # Errors go to stderr, and what Java prints on stdout is no part of the caller's output.
        subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL)
        if not cached_jars(coordinate):
            raise PlatformMissing("Delta's jars could not be downloaded: see the message above.")
    return cached_jars(coordinate)


def archive_classes(work: Callable[[SparkSession], object]) -> Path:
    """Make the class archive with which later sessions start faster, unless it is there.

    Call this in a process that has no Spark session yet, and that needs none afterwards.

    Args:
        work: What a session does while its classes are gathered.

    Returns:
        The archive.

    Raises:
        PlatformMissing: As from ``local_spark``; or this Java makes no archive.
    """
    jars, java = cached_jars(delta_coordinate()), find_java()
    if java is None:
        raise PlatformMissing(no_java())
    archive = archive_file(java.path, jars)
    if not archive.is_file():
        make(archive, _start_with, work)
    return archive


def _start_with(option: str) -> SparkSession:
    given = {"spark.driver.extraJavaOptions": option}
    return local_spark(memory="1g", settings=given, short_lived=True)


def _settings(
    cores: int,
    memory: str,
    given: Mapping[str, str],
    coordinate: str,
    *,
    short_lived: bool = False,
    archive: Path | None = None,
) -> dict[str, str]:
    options = ["-Duser.timezone=UTC", "-XX:ReservedCodeCacheSize=512m", _ROOM_FOR_CLASSES]
    if short_lived:
        options.append(_QUICK)
    if "GC" not in given.get("spark.driver.extraJavaOptions", ""):
        options.append("-XX:+UseParallelGC")  # for many small jobs on few cores
    quiet = Path(__file__).parent / "resources" / "log4j2.properties"
    if quiet.is_file():
        options.append(f"-Dlog4j2.configurationFile={quiet.as_uri()}")
    defaults = {
        "spark.driver.memory": memory,
        # A laptop's own host name often resolves to nothing, or to a network that is gone.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # A long job leaves short ones, such as a heartbeat's, their share of the cores.
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * cores),
        # VACUUM starts so many tasks, several times, however few folders there are.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(2 * cores),
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    added = {
        "spark.sql.extensions": [DELTA_EXTENSION],
        "spark.driver.extraJavaOptions": options,
        "spark.jars": [log_store_jar().as_uri()],
    }
    jars = cached_jars(coordinate)
    if "delta-spark" in given.get("spark.jars", ""):
        pass  # the user names Delta's files
    elif jars and "spark.jars.packages" not in given:
        added["spark.jars"][:0] = [jar.as_uri() for jar in jars]
        on_class_path = class_path(jars)
        if on_class_path is not None:
            added["spark.driver.extraClassPath"] = [on_class_path]
            if archive is not None:
                options.append(use_option(archive))
    else:
        added["spark.jars.packages"] = [coordinate]
        added["spark.jars.excludes"] = [f"{name}:*" for name in PROVIDED_BY_SPARK]
    merged = {
        key: _SEPARATORS.get(key, ",").join(filter(None, [*own, given.get(key)]))
        for key, own in added.items()
    }
    return {**defaults, **given, **merged}


def _list_tails() -> None:
    """Let Delta read only new commits of a log on a local disk, unless the user chose otherwise.

    The application is asked once it runs, since a file may have set it up as well: Delta refuses a
    log store for one scheme beside one for all.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return  # the session is one of Spark Connect: its server has its own settings
    conf = context._jsc.sc().conf()
    has_jar = log_store_jar().as_uri() in conf.get("spark.jars", "")
    if has_jar and not any(conf.contains(key) for key in _CHOOSES_LOG_STORE):
        conf.set("spark.delta.logStore.file.impl", TAIL_LISTING)


def _jars_of_java() -> str:
    """Return the list of jars that the running Java was started with, packages included.

    The session's own ``spark.jars`` names only what this module asked for: PySpark writes the
    settings that it was given over those that Java found.
    """
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is None:
        return ""  # the session is one of Spark Connect
    jvm: Any = context._jvm
    return str(jvm.java.lang.System.getProperty("spark.jars", ""))


def _archive(java: Java, jars: Sequence[Path], given: Mapping[str, str]) -> Path | None:
    """Find the class archive; None without one, and while one is made."""
    if not jars or "ArchiveClassesAtExit" in given.get("spark.driver.extraJavaOptions", ""):
        return None
    archive = archive_file(java.path, jars)
    return archive if archive.is_file() else None


def _record(coordinate: str) -> Path:
    return Path.home() / ".ivy2.5.2" / "txnqueue" / (coordinate.replace(":", "_") + ".jars")


def _remember(coordinate: str, jars: str) -> None:
    paths = [unquote(urlparse(jar).path) for jar in jars.split(",") if jar]
    paths = [path for path in paths if path != str(log_store_jar())]
    if not any("delta-spark" in path for path in paths):
        return  # a session that was set up elsewhere
    try:
        record = _record(coordinate)
        fresh = record.with_suffix(f".{os.getpid()}")
        record.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text("\n".join(paths) + "\n", encoding="utf-8")
        fresh.replace(record)
    except (OSError, RuntimeError):  # the latter: this user has no home
        return  # the next start resolves again


def no_java() -> str:
    """Write the message that Java is missing, and what to do."""
    home = os.environ.get("JAVA_HOME")
    where = f"in JAVA_HOME ({home})" if home else "on the path"
    return (
        f"Spark needs Java, and there is none {where}: install OpenJDK {JAVA_VERSION_MIN} "
        "(Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME."
    )
