"""Driver processes of their own: each with its own Java, or attached to that of the test.

An attached one is there within two seconds instead of half a minute. All of the library runs
in the new process and dies with it; what it asked of Java last is carried out nevertheless.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1]
_PORT, _SECRET = "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET"
_SETTINGS = "TXNQUEUE_TESTS_SETTINGS"


def start(
    module: str,
    *arguments: object,
    attach_to: Any = None,
    stdin: int | None = None,
    stderr: int = subprocess.DEVNULL,
    folder: Path = FOLDER,
    settings: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a module as a driver process.

    Args:
        module: The module that is run.
        arguments: What it is called with.
        attach_to: The session whose Java it attaches to; None: it starts its own.
        stdin: Where it reads from; None: as this process does.
        stderr: Where its warnings go.
        folder: Where the code is.
        settings: What its session, and those of the processes that it starts, are set to besides.

    Returns:
        The process; what it prints can be read from it.
    """
    environment = dict(os.environ)
    if attach_to is not None:
        gateway = attach_to.sparkContext._gateway.gateway_parameters
        environment |= {_PORT: str(gateway.port), _SECRET: gateway.auth_token}
    if settings is not None:
        environment[_SETTINGS] = json.dumps(dict(settings))
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        cwd=folder,
        env=environment,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def session(name: str) -> Any:
    """Start the session of a driver process, or attach to the one that it was started for."""
    if _PORT not in os.environ:
        from txnqueue.platform.local_spark import local_spark

        given = json.loads(os.environ.get(_SETTINGS, "{}"))
        return local_spark(name, cores=1, memory="1g", settings=given, short_lived=True)
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    there = gateway.jvm.SparkSession.getDefaultSession().get()
    java = gateway.jvm.JavaSparkContext(there.sparkContext())
    settings = SparkConf(_jvm=gateway.jvm, _jconf=java.getConf())
    return SparkSession(SparkContext(gateway=gateway, jsc=java, conf=settings), there)


def leave() -> None:
    """End a driver process whose session others may still use."""
    sys.stdout.flush()
    if _PORT in os.environ:
        os._exit(0)


def without_the_library(folder: Path) -> Path:
    """Write a program that is this Python with its packages, but for the library."""
    packages = sysconfig.get_paths()["purelib"]
    python = folder / "python"
    python.write_text(
        f"#!/bin/sh\ncd /\nexport PYTHONPATH={shlex.quote(packages)}:$PYTHONPATH\n"
        f'exec {shlex.quote(sys.executable)} -S "$@"\n'  # -S: it is installed by a .pth file
    )
    python.chmod(0o755)
    imports = [str(python), "-c", "import pyarrow, pyspark\nimport txnqueue"]
    answer = subprocess.run(imports, capture_output=True, text=True, check=False)
    assert answer.stderr.endswith("No module named 'txnqueue'\n"), answer.stderr
    return python
