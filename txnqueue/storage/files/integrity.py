"""Checks that a file can be read and is as it was written; errors name the file."""

from __future__ import annotations

import errno
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyarrow.fs import FileType, LocalFileSystem, SubTreeFileSystem

from txnqueue.errors import FilesNotReadable, StoreCorrupt

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_HEADER = struct.Struct(">4si")
"""The header of Hadoop's checksum file: a magic number, and the bytes per checksum."""


def damaged(path: str, how: str) -> StoreCorrupt:
    """Build the error that names a damaged file and the remedy."""
    return StoreCorrupt(
        f"{path} is damaged: {how}. Stop writing to the store, keep it as it is, and put this file "
        "back from a copy."
    )


@contextmanager
def reaching(path: str) -> Iterator[None]:
    """Name in the error what cannot be read because the storage is unreachable or refuses.

    Raises:
        FilesNotReadable: Replaces errors of the file system, except that a file does not exist.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        remedy = (
            "let this user read it."
            if error.errno == errno.EACCES
            else "check the storage's credentials and address in the environment of this process, "
            "give look() a filesystem=, or use Spark, which has its own settings."
        )
        raise FilesNotReadable(f"{path!r} cannot be read ({error}): {remedy}", path=path) from error


@contextmanager
def understanding(filesystem: FileSystem, path: str) -> Iterator[None]:
    """Distinguish a file that cannot be parsed from storage that cannot be reached.

    Raises:
        FileNotFoundError: The file does not exist.
        FilesNotReadable: The file cannot be read.
        StoreCorrupt: The file can be read, but not parsed.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except PermissionError:
        with reaching(path):
            raise
    except (OSError, ValueError, KeyError, TypeError, NotImplementedError) as error:
        with reaching(path), filesystem.open_input_stream(path) as stream:
            while stream.read(1 << 20):
                pass
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def content_of(filesystem: FileSystem, path: str) -> bytes:
    """Read a file, and compare it with its checksums if it is on a local disk.

    Raises:
        FileNotFoundError: The file does not exist.
        StoreCorrupt: The contents differ from what was written.
    """
    with filesystem.open_input_stream(path) as stream:
        content = bytes(stream.read())
    sums = _sums(filesystem, path)
    if sums is not None and not _holds(content, sums):
        raise damaged(path, "its contents do not match the checksum file written with it")
    return content


def _sums(filesystem: FileSystem, path: str) -> bytes | None:
    """Read the checksum file that Hadoop keeps beside a file, only on a local disk."""
    while isinstance(filesystem, SubTreeFileSystem):
        filesystem, path = filesystem.base_fs, f"{filesystem.base_path}{path}"
    if not isinstance(filesystem, LocalFileSystem):
        return None
    folder, _, name = path.rpartition("/")
    beside = f"{folder}/.{name}.crc"
    if filesystem.get_file_info(beside).type is not FileType.File:
        return None
    with filesystem.open_input_stream(beside) as stream:
        return bytes(stream.read())


def _holds(content: bytes, sums: bytes) -> bool:
    """Return whether a file matches its checksums (pure); damaged checksums are ignored."""
    if len(sums) < _HEADER.size:
        return True
    magic, each = _HEADER.unpack_from(sums)
    if magic != b"crc\0" or each <= 0 or (len(sums) - _HEADER.size) % 4:
        return True
    said = struct.unpack(f">{(len(sums) - _HEADER.size) // 4}I", sums[_HEADER.size :])
    found = [zlib.crc32(content[at : at + each]) for at in range(0, len(content), each)]
    return found == list(said)
