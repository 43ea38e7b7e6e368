"""This package as one file, for the Python of a Connect server, which may not have installed it."""

from __future__ import annotations

import copyreg
import io
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from txnqueue.version import __version__

_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of every file: Spark takes a file of one name again only if it is the same."""


@contextmanager
def written() -> Iterator[Path]:
    """Write the package's sources to a zip file from which Python imports them.

    Yields:
        The file; it is removed at the end of the block.
    """
    with tempfile.TemporaryDirectory(prefix="txnqueue-") as folder:
        path = Path(folder) / f"txnqueue-{__version__}.zip"
        path.write_bytes(_packed())
        yield path


def carried(source: object) -> tuple[Any, ...]:
    """Tell pickle how to copy an object of this package to another Python.

    If the package came here as such a file, the copy brings it along: Spark sends the files of a
    session to tasks, but not to the process that plans a streaming query.

    Returns:
        What ``__reduce__`` returns.
    """
    kind = type(source)
    if _came_as() is None:
        return copyreg.__newobj__, (kind,), vars(source)  # type: ignore[attr-defined]  # not in typeshed
    return _made, (_packed(), kind.__module__, kind.__name__), vars(source)


@cache
def _packed() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as out:
        for name, source in _sources():
            out.writestr(zipfile.ZipInfo(name, _TIME), source, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def _sources() -> Iterator[tuple[str, bytes]]:
    """Read the package's sources, and nothing else that is in the same folder or zip file."""
    root, archive = Path(__file__).parents[1], _came_as()
    if archive is None:
        for path in sorted(root.rglob("*.py")):
            yield path.relative_to(root.parent).as_posix(), path.read_bytes()
        return
    inside = root.relative_to(archive).as_posix()
    with zipfile.ZipFile(archive) as found:
        for name in sorted(found.namelist()):
            if name.startswith(f"{inside}/") and name.endswith(".py"):
                yield f"{root.name}{name.removeprefix(inside)}", found.read(name)


def _came_as() -> Path | None:
    """Return the zip file that the package is imported from; None where it is installed."""
    archive = getattr(__spec__.loader, "archive", None)
    return None if archive is None else Path(archive)


def _made(package: bytes, module: str, name: str) -> object:
    """Make an object of a class of the package, and import that from what came along.

    An installed package may be of another version. This function uses nothing of its module: it is
    copied itself, by its code.
    """
    import hashlib
    import importlib
    import os
    import stat
    import sys
    import tempfile
    from pathlib import Path

    if "txnqueue" not in sys.modules:
        # One file for all workers of a user: most end without cleaning up. Nobody else's is
        # imported, nor one to which somebody else's link leads.
        user = os.getuid() if hasattr(os, "getuid") else 0
        name_of_content = f"txnqueue-{user}-{hashlib.sha256(package).hexdigest()[:16]}.zip"
        archive = Path(tempfile.gettempdir()) / name_of_content
        try:
            there = archive.lstat()
            mine = stat.S_ISREG(there.st_mode) and there.st_uid == user
            known = mine and archive.read_bytes() == package
        except OSError:
            known = False
        if not known:
            new, beside = tempfile.mkstemp(prefix="txnqueue-", suffix=".zip")
            with os.fdopen(new, "wb") as file:
                file.write(package)
            try:
                os.replace(beside, archive)
            except OSError:  # another user took this name
                archive = Path(beside)
        sys.path.insert(0, str(archive))
        importlib.invalidate_caches()
    kind = getattr(importlib.import_module(module), name)
    return kind.__new__(kind)


_made.__module__ = "__main__"  # so that Spark's pickle copies its code, not its name
