"""On what it was measured: what matters to the figures, and nothing that names the machine."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from txnqueue.version import __version__


def machine(folder: Path) -> dict[str, Any]:
    """Describe the machine, and the disk that the tables lie on."""
    return {
        "cores": cores(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "cpu": _cpu(),
        "system": f"{platform.system()} {platform.machine()}",
        "file_system": _file_system(folder),
    }


def versions(spark: Any) -> dict[str, str]:
    """Name the versions of all that takes part."""
    return {
        "txnqueue": __version__,
        "python": platform.python_version(),
        "pyspark": metadata.version("pyspark"),
        "delta-spark": metadata.version("delta-spark"),
        "java": str(spark._jvm.System.getProperty("java.version")),
    }


def cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu() -> str:
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or "unknown"


def _file_system(folder: Path) -> str:
    here = folder.resolve()
    mounts = {Path(one.mountpoint): one.fstype for one in psutil.disk_partitions(all=True)}
    return next((mounts[path] for path in [here, *here.parents] if path in mounts), "unknown")
