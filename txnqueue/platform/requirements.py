"""Which versions of Spark and Delta go together, and which txnqueue is tested with.

``pyproject.toml`` requires the same of pip; here, installations by other means are checked.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from math import inf
from typing import Any

REQUIRED = {
    "pyspark": ">=4.0.1,<=4.2.0",
    "delta-spark": ">=4.0.1,!=4.4.1,<4.5",
    "pyarrow": ">=18",
}
"""The versions that the extras ``spark`` and ``connect`` ask for, and the package itself."""

INSTALL = "pip install 'txnqueue[spark]'"
# pip keeps versions that are allowed separately even if they do not go together.
INSTALL_NEWEST = "pip install --upgrade 'txnqueue[spark]' pyspark delta-spark"

# The newest Spark that a release of Delta has jars for on Maven Central; each has some for 4.0.
# What delta-spark itself asks of pip has no upper bound before 4.2.
_NEWEST_SPARK: dict[tuple[int, ...], tuple[int, int]] = {
    (4, 0): (4, 0),
    (4, 1): (4, 1),
    (4, 2): (4, 1),
    (4, 3): (4, 1),
    (4, 4): (4, 2),
}

# Hadoop before 3.5 uses what Java removed in 23; Spark 4.2 is the first with Hadoop 3.5.
_NEWEST_JAVA_OF_OLD_HADOOP, _NEW_HADOOP = 22, (4, 2)

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "<": operator.lt,
    "!=": operator.ne,
}


@dataclass(frozen=True)
class Misfit:
    """An installed version that txnqueue does not ask for.

    Attributes:
        meaning: What that means, and what to do.
        usable: Whether it may work: what is newer than what was tested may.
    """

    meaning: str
    usable: bool


def misfit(package: str, version: str) -> Misfit | None:
    """Compare a version with what is required of its package; None if it is one of those."""
    for bound in REQUIRED.get(package, "").split(","):
        parts = re.fullmatch(r"([<>=!]+)([\d.]+)", bound)
        if parts is None:
            continue
        compare, asked = _COMPARISONS[parts[1]], numbers_of(parts[2])
        if compare(numbers_of(version), asked):
            continue
        remedy = INSTALL if package == "pyarrow" else INSTALL_NEWEST
        if parts[1] == ">=":
            return Misfit(f"It is too old, {parts[2]} or newer is needed: {remedy}.", usable=False)
        if parts[1] == "!=":
            return Misfit(f"Its jars are not on Maven Central: {remedy}.", usable=False)
        tested = f"txnqueue is tested with {package}{REQUIRED[package]}"
        return Misfit(f"{tested}: {remedy}.", usable=True)
    return None


def without_jars(spark: str, delta: str) -> str | None:
    """Say that a release of Delta has no jars for a Spark, and what to do; None if it has.

    Releases that are newer than what is required are not known, and not judged.
    """
    newest = _NEWEST_SPARK.get(numbers_of(delta)[:2])
    if newest is None or numbers_of(spark)[:2] <= newest:
        return None
    served = "4.0" if newest == (4, 0) else "4.0 to {}.{}".format(*newest)
    return (
        f"delta-spark {delta} has jars for Spark {served}, and none for pyspark {spark}; txnqueue "
        f"is tested with pyspark{REQUIRED['pyspark']} and delta-spark{REQUIRED['delta-spark']}: "
        f"{INSTALL_NEWEST}."
    )


def java_newest(spark: str) -> float:
    """Return the newest Java, by its major version, that a Spark starts with."""
    return inf if numbers_of(spark) >= _NEW_HADOOP else _NEWEST_JAVA_OF_OLD_HADOOP


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None without it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def numbers_of(version: str) -> tuple[int, ...]:
    """Read a version's first three numbers."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
