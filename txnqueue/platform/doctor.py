"""Checks of what txnqueue needs on this machine, and their meaning for the user."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib import util
from typing import Literal

from txnqueue.errors import PlatformMissing
from txnqueue.platform.local_spark import (
    VECTOR_MODULE,
    cached_jars,
    delta_coordinate,
    find_java,
    no_java,
)
from txnqueue.platform.log_store import ATOMIC, CONDITIONAL_PUT, log_store_jar, scheme_of
from txnqueue.platform.requirements import INSTALL, misfit, version_of

Verdict = Literal["ok", "warning", "error"]

_PURPOSE = {
    "pyspark": "Writing to a store, SQL predicates and proofs",
    "delta-spark": "Local sessions, not those of a platform with its own Delta,",
    "pyarrow": "All stores",
    "filelock": "Stores on a local disk",
    "psutil": "Stores on a local disk",
}


@dataclass(frozen=True)
class Check:
    """One thing that txnqueue needs: what was found, and what that means for the user."""

    name: str
    found: str
    verdict: Verdict
    meaning: str


def doctor(root: str | None = None) -> list[Check]:
    """Look at all that txnqueue needs on this machine, without starting Spark.

    Args:
        root: The root of a store, whose kind of storage is judged as well.

    Returns:
        One check for each thing, in the order in which a user would put them right.
    """
    checks = [
        Check("Python", platform.python_version(), "ok", "This Python can run txnqueue."),
        _check_java(),
        _check_package("pyspark", "error"),
        _check_package("delta-spark", "error"),
        _check_package("pyarrow", "error"),
        _check_jars(),
        _check_package("filelock", "warning"),
        _check_package("psutil", "warning"),
    ]
    return checks if root is None else [*checks, check_storage(root)]


def check_storage(root: str) -> Check:
    """Judge how many drivers may work on a store at the same time.

    Args:
        root: A path, a URL, or the name of a catalog schema.

    Returns:
        The check, named ``storage``.
    """
    if "/" not in root:
        meaning = "The location of the schema decides: run this again with that location."
        return Check("storage", f"the catalog schema {root}", "warning", meaning)
    scheme = scheme_of(root) or "file"
    if scheme == "file":
        meaning = (
            "Several drivers on this machine may use it, with a lock; a killed driver does no "
            "harm, but a power failure may."
        )
        return Check("storage", "file:", "ok", meaning)
    if scheme in ATOMIC:
        return Check("storage", f"{scheme}:", "ok", "Several drivers may use it.")
    if scheme in ("s3", "s3a", "s3n"):
        meaning = (
            "Only one driver at a time may use it, and a second is refused, unless all are "
            f"started with spark.delta.logStore.{scheme}.impl={CONDITIONAL_PUT} and "
            f"{log_store_jar()}, or all have Delta's DynamoDB log store."
        )
    else:
        meaning = (
            "It is unknown whether it creates files atomically: only one driver at a time may use "
            "it, and a second is refused, unless all have a Delta log store that supports several. "
            "If it is atomic, set spark.txnqueue.storage.several_drivers=true in all."
        )
    return Check("storage", f"{scheme}:", "warning", meaning)


def _check_java() -> Check:
    java = find_java()
    if java is None:
        return Check("Java", "missing", "error", no_java())
    found = f"{java.version} ({java.path})"
    problem = java.problem_with(version_of("pyspark"))
    if problem is not None:
        return Check("Java", found, "error", problem)
    return Check("Java", found, "ok", f"This Java can run Spark: it has {VECTOR_MODULE}.")


def _check_package(name: str, missing: Verdict) -> Check:
    found = version_of(name)
    if found is None and name == "pyspark" and util.find_spec("pyspark") is not None:
        meaning = "A platform's Spark of a version unknown to pip: 4.0.1 or later is needed."
        return Check(name, "version unknown", "warning", meaning)
    if found is None:
        return Check(name, "missing", missing, f"{_PURPOSE[name]} need it: {INSTALL}.")
    other = misfit(name, found)
    if other is not None:
        return Check(name, found, "warning" if other.usable else "error", other.meaning)
    return Check(name, found, "ok", "This version can be used.")


def _check_jars() -> Check:
    try:
        coordinate = delta_coordinate()
    except PlatformMissing as error:
        if error.missing is None:
            return Check("Delta's jars", "none", "error", error.message)
        meaning = "They can be checked once pyspark and delta-spark are installed."
        return Check("Delta's jars", "unknown", "warning", meaning)
    jars = cached_jars(coordinate)
    if jars:
        return Check(
            "Delta's jars", f"jar files: {len(jars)}", "ok", "Sessions start without a network."
        )
    meaning = "The first local session downloads them from Maven Central, which takes a minute."
    return Check("Delta's jars", "not fetched yet", "warning", meaning)
