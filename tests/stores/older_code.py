"""The code of older versions, out of git's history."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from tests.drivers import FOLDER

COMMITS = {"0.1.0": "aeb22d588fa5fa1d59130575c787289b30eb1d82"}
"""The last commit of each version."""
_NEEDED = ("txnqueue", "tests/__init__.py", "tests/drivers.py")


class HistoryMissing(Exception):
    """The commit of an older version is not there: this is no clone of the whole repository."""


def code_of(version: str, folder: Path, *more: str) -> None:
    """Write the library of an older version, and how its tests start drivers, into a new folder.

    Args:
        version: Which one.
        folder: Where to; it is made.
        more: Other files and folders of then.

    Raises:
        HistoryMissing: Git does not have it.
    """
    done = subprocess.run(
        ["git", "-C", str(FOLDER), "archive", COMMITS[version], *_NEEDED, *more],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        told = done.stderr.decode().strip()
        raise HistoryMissing(f"the code of {version} is not in this clone of git: {told}")
    folder.mkdir(parents=True)
    with tarfile.open(fileobj=BytesIO(done.stdout)) as packed:
        packed.extractall(folder, filter="data")
