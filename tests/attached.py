"""A driver process of its own that has a Spark session in the Java of the test's process.

It is there within a second or two, where a Java of its own takes half a minute; all of the
library runs in the new process, and dies with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1]


def start(spark: Any, module: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a module in a process of its own, which can attach to a session's Java."""
    gateway = spark.sparkContext._gateway.gateway_parameters
    environment = {
        **os.environ,
        "PYSPARK_GATEWAY_PORT": str(gateway.port),
        "PYSPARK_GATEWAY_SECRET": gateway.auth_token,
    }
    command = [sys.executable, "-m", module, *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=_FOLDER, env=environment, stdout=pipe, stderr=pipe, text=True
    )


def session() -> Any:
    """Get the session of the process that started this one."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()  # which the environment names
    there = gateway.jvm.SparkSession.getDefaultSession().get()
    java = gateway.jvm.JavaSparkContext(there.sparkContext())
    settings = SparkConf(_jvm=gateway.jvm, _jconf=java.getConf())
    context = SparkContext(gateway=gateway, jsc=java, conf=settings)
    return SparkSession(context, there)
