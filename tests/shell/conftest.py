"""A machine with other packages, or another Java, than there are."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

JAVA_MODULES = "java.base@{version}\njava.sql@{version}\n"


@pytest.fixture(autouse=True, scope="session")
def closed_terminals() -> Iterator[None]:
    """Hear SIGHUP, and let commands hear it, also where the tests run behind ``nohup``."""
    before = signal.getsignal(signal.SIGHUP)
    if before is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    installed = {"pyspark": "4.2.0", "delta-spark": "4.4.0", "pyarrow": "26.0.1"}

    def version(name: str) -> str:
        if installed.get(name) is None:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    return installed


def install_java(folder: Path, modules: str) -> str:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\ncat <<EOF\n{modules}EOF\n")
    java.chmod(0o755)
    return str(java)


def complete_java(folder: Path, version: str) -> str:
    modules = JAVA_MODULES.format(version=version) + f"jdk.incubator.vector@{version}\n"
    return install_java(folder, modules)
