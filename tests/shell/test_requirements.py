"""Which versions go together is told before Spark starts, alike by all that say it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.shell.conftest import complete_java
from txnqueue.errors import PlatformMissing
from txnqueue.platform import local_spark, requirements
from txnqueue.platform.doctor import doctor

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("spark", "delta", "served"),
    [
        ("4.2.1", "4.1.0", "4.0 to 4.1"),  # what pip takes if nothing keeps it from 4.2.1
        ("4.2.0", "4.0.1", "4.0"),
        ("4.1.1", "4.0.1", "4.0"),
        ("4.2.0", "4.3.1", "4.0 to 4.1"),
        ("4.3.0", "4.4.0", "4.0 to 4.2"),
    ],
)
def test_versions_that_do_not_go_together_are_told_before_spark_starts(
    versions: dict[str, str], spark: str, delta: str, served: str
) -> None:
    versions.update({"pyspark": spark, "delta-spark": delta})
    with pytest.raises(PlatformMissing) as caught:
        local_spark.local_spark()
    told = caught.value.message
    assert told.startswith(
        f"delta-spark {delta} has jars for Spark {served}, and none for pyspark {spark}; "
    )
    assert told.endswith(f": {requirements.INSTALL_NEWEST}.") and caught.value.missing is None
    assert all(
        f"{name}{requirements.REQUIRED[name]}" in told for name in ("pyspark", "delta-spark")
    )
    check = next(check for check in doctor() if check.name == "Delta's jars")
    assert (check.verdict, check.meaning) == ("error", told)


@pytest.mark.parametrize(
    ("name", "version", "why"),
    [
        ("pyspark", "3.5.9", "It is too old, 4.0.1 or newer is needed: pip install "),
        ("delta-spark", "3.3.3", "It is too old, 4.0.1 or newer is needed: pip install "),
        ("delta-spark", "4.4.1", "Its jars are not on Maven Central: pip install "),
    ],
)
def test_what_cannot_be_used_is_told_before_spark_starts(
    versions: dict[str, str], name: str, version: str, why: str
) -> None:
    versions[name] = version
    with pytest.raises(PlatformMissing) as caught:
        local_spark.local_spark()
    check = next(check for check in doctor() if check.name == name)
    assert caught.value.message == f"{name} is {version}. {check.meaning}"
    assert check.meaning.startswith(why) and check.verdict == "error"


def test_pip_the_library_and_the_pages_have_the_same_bounds() -> None:
    asked = re.compile(r'"(pyspark|delta-spark|pyarrow)(?:\[\w+\])?([<>=!][^"]*)"')
    found = asked.findall((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert sorted(name for name, _ in found) == [
        *("delta-spark", "delta-spark", "pyarrow", "pyspark", "pyspark")
    ]
    assert set(found) == set(requirements.REQUIRED.items())
    for page in ("README.md", "docs/upgrades.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for name in ("pyspark", "delta-spark"):
            assert f"`{name}{requirements.REQUIRED[name]}`" in text, (page, name)


def test_the_versions_that_are_pinned_are_within_the_bounds_and_go_together() -> None:
    lines = (ROOT / "conf/constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if re.fullmatch(r"[\w-]+==[\d.]+", line))
    for name in ("pyspark", "delta-spark"):
        assert requirements.misfit(name, pins[name]) is None
    assert requirements.without_jars(pins["pyspark"], pins["delta-spark"]) is None


@pytest.mark.parametrize("spark", ["4.0.1", "4.1.4"])
def test_a_java_that_is_too_new_for_the_hadoop_of_a_spark_is_told(
    versions: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: str
) -> None:
    path = complete_java(tmp_path, "25.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    versions["pyspark"] = spark
    with pytest.raises(PlatformMissing) as caught:
        local_spark.local_spark()
    told = caught.value.message
    assert told.startswith(f"Spark {spark} starts with Java 17 to 22, ")
    assert f"{path} is 25.0.1: install OpenJDK 17 and set JAVA_HOME" in told
    check = next(check for check in doctor() if check.name == "Java")
    assert (check.verdict, check.meaning) == ("error", told)


@pytest.mark.parametrize(
    ("java", "spark"),
    [("25.0.1", "4.2.0"), ("21.0.8", "4.0.1"), ("25", None), ("17.0.15", "4.1.4")],
)
def test_other_javas_are_left_to_a_spark(
    versions: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    java: str,
    spark: Any,
) -> None:
    complete_java(tmp_path, java)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    versions["pyspark"] = spark
    assert next(check for check in doctor() if check.name == "Java").verdict == "ok"
