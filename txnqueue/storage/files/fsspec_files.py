"""File systems of fsspec as file systems of Arrow."""

from __future__ import annotations

from typing import Any

from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem


class AskedAnew(FSSpecHandler):  # type: ignore[misc]  # pyarrow has no types
    """Lists files anew each time, because many file systems of fsspec cache listings."""

    def get_file_info_selector(self, selector: Any) -> Any:
        """List a folder as it is now."""
        self.fs.invalidate_cache()
        return super().get_file_info_selector(selector)

    def get_file_info(self, paths: Any) -> Any:
        """Describe some files as they are now."""
        self.fs.invalidate_cache()
        return super().get_file_info(paths)


def of_arrow(filesystem: object) -> FileSystem:
    """Wrap a file system of fsspec as one of Arrow."""
    return PyFileSystem(AskedAnew(filesystem))
