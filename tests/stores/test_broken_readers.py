"""Readers of files that believe too much, on purpose: a damaged store must give each one away."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.stores import damage
from txnqueue.errors import FilesNotReadable
from txnqueue.storage.files import delta_log, entries, integrity, payload
from txnqueue.storage.files.delta_log import DataFile, DeltaLog

Break = Callable[[pytest.MonkeyPatch], None]
STORE = Path(__file__).parent / "0.1.0.tar.gz"


def compares_no_sums(patch: pytest.MonkeyPatch) -> None:
    """Read a file, and leave the sums beside it alone."""
    patch.setattr(integrity, "_sums", lambda filesystem, path: None)


def overlooks_what_is_gone(patch: pytest.MonkeyPatch) -> None:
    """Take the newest commit that is there for the newest that there was."""
    patch.setattr(DeltaLog, "_check_newest", lambda self, commits, names, *, last: None)


def counts_no_files(patch: pytest.MonkeyPatch) -> None:
    """Leave out what Delta says of a version's files."""
    patch.setattr(DeltaLog, "_fits_sum", lambda self, found, names: True)


def takes_what_is_lost_for_old(patch: pytest.MonkeyPatch) -> None:
    """Believe of each file that is not there that maintenance has removed it."""
    for reader in (entries, payload):
        patch.setattr(reader, "lost", lambda log, files: None)


def compares_paths_as_the_log_has_them(patch: pytest.MonkeyPatch) -> None:
    """Look for a file's path among those of the log, which has some characters otherwise."""

    def found(log: DeltaLog, files: Iterable[DataFile]) -> Exception | None:
        wanted = [one for one in files if one.path in log.newest().files]
        return real(log, wanted)

    real = entries.lost
    patch.setattr(entries, "lost", found)


def leaves_a_gap_to_spark(patch: pytest.MonkeyPatch) -> None:
    """Say of a commit that is missing that it may be elsewhere."""
    gap = FilesNotReadable("It is damaged, or its commits are stored elsewhere.")
    patch.setattr(DeltaLog, "_gap", lambda self, missing, later, *, last: gap)


def blames_the_newest_commit(patch: pytest.MonkeyPatch) -> None:
    """Name the commit whose checksum shows it, and not the one that is damaged."""

    def newest(log: DeltaLog, before: Any, wanted: list[int], names: Any) -> Exception:
        return integrity.damaged(log._commit(wanted[-1]), "it has other files")

    patch.setattr(DeltaLog, "_unfitting", newest)


def checks_no_pages(patch: pytest.MonkeyPatch) -> None:
    """Read pages without their checksums."""
    real = pq.ParquetFile

    def careless(source: Any, **options: Any) -> Any:
        return real(source, **{**options, "page_checksum_verification": False})

    patch.setattr(pq, "ParquetFile", careless)


def takes_any_name(patch: pytest.MonkeyPatch) -> None:
    """Take a column that is missing for one of nulls, whatever stands in its place."""
    patch.setattr(entries, "_renamed", lambda there, moment: None)


def lets_errors_through(patch: pytest.MonkeyPatch) -> None:
    """Tell what a JSON parser or Arrow says, instead of what is damaged."""

    @contextmanager
    def nothing(filesystem: Any, path: str) -> Iterator[None]:
        yield

    patch.setattr(delta_log, "understanding", nothing)


Harm = Callable[[Path], damage.Cell]
"""Harms a store, and says how."""


def another_version(store: Path) -> damage.Cell:
    """Let a commit say that its entries came with an earlier one: it is JSON as before."""
    file = next(_adding(store))
    text = file.read_text()
    file.write_text(re.sub(r'("defaultRowCommitVersion":)\d+', r"\g<1>0", text))
    assert file.read_text() != text
    return damage.Cell("journal: a commit", str(file.relative_to(store)), "another version")


def forgotten_files(store: Path) -> damage.Cell:
    """Take the files that a commit added out of it: what is left can be read."""
    file = next(_adding(store))
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith('{"add"')))
    return damage.Cell("journal: a commit", str(file.relative_to(store)), "forgotten files")


def _adding(store: Path) -> Iterator[Path]:
    log = sorted((store / "journal/_delta_log").glob("*.json"), reverse=True)
    return (one for one in log if '{"add"' in one.read_text())


def cell(kind: str, harm: str) -> Harm:
    """Do what a cell of the damages says."""

    def do(store: Path) -> damage.Cell:
        all_cells = damage.cells(store)
        found = next(one for one in all_cells if (one.kind, one.harm) == (kind, harm))
        found.do(store)
        return found

    return do


LAST = "journal: the last commit"
VARIANTS: dict[str, tuple[Break, bool, Harm]] = {
    "sums are not compared": (compares_no_sums, True, another_version),
    "the newest commit may be gone": (overlooks_what_is_gone, False, cell(LAST, "gone")),
    "files are not counted": (counts_no_files, False, forgotten_files),
    "pages are not checked": (
        checks_no_pages,
        False,
        cell("archive: data file 1", "a bit flipped at 15%"),
    ),
    "columns may have other names": (
        takes_any_name,
        False,
        cell("journal: data file 0", "a bit flipped at 31%"),
    ),
    "a lost file of entries is old": (
        takes_what_is_lost_for_old,
        True,
        cell("journal: data file 0", "gone"),
    ),
    "a lost file of payload was removed": (
        takes_what_is_lost_for_old,
        False,
        cell("orders: data file 0", "gone"),
    ),
    "paths are compared as they are written": (
        compares_paths_as_the_log_has_them,
        False,
        cell("journal: data file 0", "gone"),
    ),
    "a gap is no damage": (
        leaves_a_gap_to_spark,
        True,
        cell("journal: a commit before", "gone"),
    ),
    "the newest commit is blamed": (
        blames_the_newest_commit,
        False,
        cell("archive: a commit before", "without its last line"),
    ),
    "errors are not named": (lets_errors_through, False, cell(LAST, "half")),
}
"""What is broken, whether Hadoop's sums are beside the files, and what gives it away."""


@pytest.mark.parametrize("name", VARIANTS)
def test_a_reader_that_believes_too_much_is_found_out(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, sums, harm = VARIANTS[name]
    store = _unpacked(tmp_path, sums=sums)
    before = damage.asked(damage.looks(str(store)))
    done = harm(store)

    def problems() -> list[str]:
        after = damage.asked(damage.looks(str(store)))
        return damage.problems(damage.judged(done, before, after, sums=sums))

    assert not problems()
    broken(monkeypatch)
    assert problems(), f"{broken.__doc__} Nobody saw it."


def _unpacked(folder: Path, *, sums: bool) -> Path:
    with tarfile.open(STORE) as packed:
        packed.extractall(folder, filter="data")
    if not sums:
        damage.without_sums(folder / "store")
    return folder / "store"
