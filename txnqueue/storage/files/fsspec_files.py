"""File systems of fsspec, as those of Arrow that the files are read by."""

from __future__ import annotations

from typing import Any

from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem


class AskedAnew(FSSpecHandler):  # type: ignore[misc]
    """Asks for files each time: many of fsspec's remember what was in a folder once."""

    def get_file_info_selector(self, selector: Any) -> Any:
        """List a folder as it is now."""
        self.fs.invalidate_cache()
        return super().get_file_info_selector(selector)

    def get_file_info(self, paths: Any) -> Any:
        """Tell what there is now of some files."""
        self.fs.invalidate_cache()
        return super().get_file_info(paths)


def of_arrow(filesystem: object) -> FileSystem:
    """Make a file system of fsspec one of Arrow."""
    return PyFileSystem(AskedAnew(filesystem))
