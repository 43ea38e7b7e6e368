"""A damaged store says what it said before, or what is damaged; never anything else."""

from __future__ import annotations

import random
import shutil
import struct
import tarfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from tests.conftest import LONG
from tests.stores import damage
from txnqueue import QueueManager, look
from txnqueue.errors import FilesNotReadable, PayloadRemoved, StoreCorrupt
from txnqueue.storage.files.delta_log import TableVersion
from txnqueue.storage.files.entries import _renamed
from txnqueue.storage.files.integrity import content_of, understanding

HERE = Path(__file__).parent
OLD, CHECKPOINTS = "0.1.0", "checkpoints"
CELLS = 504
"""So many damages can be done to the store of 0.1.0, whose tables have no checkpoints yet."""
CELLS_OF_LOGS = 480
"""So many to the logs of a store that has them."""
ALL_CELLS = CELLS + CELLS_OF_LOGS
MANY = 2 * ALL_CELLS if LONG else 6


class Store:
    """A whole store, with Hadoop's sums beside the files or without, and a copy of it to harm."""

    def __init__(self, folder: Path, name: str, *, sums: bool) -> None:
        self.name, self.sums = name, sums
        self.whole = _unpacked(folder / "whole", name)
        self.copy = folder / "harmed"
        if not sums:
            damage.without_sums(self.whole)
        shutil.copytree(self.whole, self.copy)
        self.before = damage.asked(damage.looks(str(self.copy)))
        self.cells = (damage.cells if name == OLD else damage.cells_of_logs)(self.whole)
        random.Random(23).shuffle(self.cells)


class Damaged:
    """All the damages that are done to the stores: one by one, to a copy."""

    def __init__(self, folder: Path) -> None:
        self._cells: list[tuple[Store, damage.Cell]] = []
        for name, count in ((OLD, CELLS), (CHECKPOINTS, CELLS_OF_LOGS)):
            stores = [Store(folder / name / str(sums), name, sums=sums) for sums in (True, False)]
            assert {len(store.cells) for store in stores} == {count}
            for cells in zip(*(store.cells for store in stores), strict=True):
                self._cells += zip(stores, cells, strict=True)
        self._proved: dict[Store, Any] = {}

    def say(self, number: int) -> list[str]:
        """Harm a copy as a cell says; how its answers are.

        Raises:
            AssertionError: One is another one than before.
        """
        store, cell = self._cells[number]
        cell.do(store.copy)
        after = damage.asked(damage.looks(str(store.copy)))
        shutil.copy2(store.whole / cell.path, store.copy / cell.path)
        said = damage.judged(cell, store.before, after, sums=store.sums)
        found = damage.problems(said)
        assert not found, f"{self.name(number)}: {found}"
        return list(said.values())

    def name(self, number: int) -> str:
        """Name a damage, whether or not there are sums."""
        store, cell = self._cells[number]
        return str(cell) if store.name == OLD else f"with checkpoints, {cell}"

    def has_sums(self, number: int) -> bool:
        """Return whether Hadoop's sums are beside the files."""
        return self._cells[number][0].sums

    def prove(self, spark: Any, number: int, folder: Path) -> list[str]:
        """Harm a store that no session has seen, and let Spark prove it; how its answers are.

        Raises:
            AssertionError: One is another one than before.
        """
        store, cell = self._cells[number]
        whole = self._cells[number - number % 2][0]  # the sums make no difference to what is right
        if whole not in self._proved:
            self._proved[whole] = damage.asked(damage.proofs(spark, str(whole.copy)))
        harmed = folder / "store"
        shutil.copytree(store.whole, harmed)
        cell.do(harmed)
        after = damage.asked(damage.proofs(spark, str(harmed)))
        said = damage.judged(cell, self._proved[whole], after, sums=store.sums, by_spark=True)
        found = damage.problems(said)
        assert not found, f"{self.name(number)}: {found}"
        return [f"{name} {what}" for name, what in said.items()]


def _unpacked(folder: Path, name: str = OLD) -> Path:
    with tarfile.open(HERE / f"{name}.tar.gz") as packed:
        packed.extractall(folder, filter="data")
    return folder / "store"


@pytest.fixture(params=["with sums", "without sums"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store, and one as it is where nothing but Delta says what was written."""
    made = _unpacked(tmp_path)
    if request.param == "without sums":
        damage.without_sums(made)
    return made


@pytest.mark.timeout(3_600 if LONG else 300)
def test_what_is_damaged_is_named_or_makes_no_difference(tmp_path: Path) -> None:
    damaged = Damaged(tmp_path)
    said = Counter(word for number in range(MANY) for word in damaged.say(number))
    assert said["named"] and said["alike"], "vacuous: all were alike, or nothing could be read"


def test_a_commit_that_is_gone_or_shorter_is_named(whole: Path, tmp_path: Path) -> None:
    for harm in ("gone", "half", "empty"):
        store = tmp_path / harm
        shutil.copytree(whole, store)
        cell = next(c for c in damage.cells(store) if str(c) == f"journal: the last commit, {harm}")
        cell.do(store)
        with pytest.raises(StoreCorrupt, match=Path(cell.path).name):
            look(str(store)).list_queues()
    store = tmp_path / "shorter"
    shutil.copytree(whole, store)
    _forget_what_was_added(store)
    with pytest.raises(StoreCorrupt, match="damaged"):
        look(str(store)).list_queues()


@pytest.mark.parametrize("table", ["journal", "archive"])
def test_each_lost_file_of_entries_is_named(whole: Path, tmp_path: Path, table: str) -> None:
    """Readers were told to call refresh(), after which they were told so again."""
    files = [one for one in (whole / table).rglob("*.parquet") if "_delta_log" not in one.parts]
    lost = 0
    for file in files:
        file.rename(tmp_path / "lost")
        try:
            look(str(whole)).entries()
        except StoreCorrupt as error:
            assert f"{file} is damaged: it is missing" in str(error) and "put this" in str(error)
            lost += 1
        (tmp_path / "lost").rename(file)
    assert lost > len(files) // 4, "most of these files are old, and none needs them"


def test_a_shortened_commit_is_named_and_not_the_newest_one(whole: Path) -> None:
    cells = damage.cells(whole)
    wanted = ("archive: a commit before", "without its last line")
    cell = next(one for one in cells if (one.kind, one.harm) == wanted)
    cell.do(whole)
    with pytest.raises(StoreCorrupt, match=f"{cell.path} is damaged"):
        look(str(whole)).entries()


def test_only_an_error_that_names_the_file_names_the_damage() -> None:
    gone = damage.Cell("journal: data file 0", "journal/shard=a%2F1/part-0.parquet", "gone")
    for error, sums, by_spark, expected in (
        (StoreCorrupt(f"/x/{gone.path} is damaged"), True, False, []),
        (StoreCorrupt("file:/x/journal/shard=a%252F1/part-0.parquet"), True, True, []),
        (StoreCorrupt("/x/journal/shard=b/part-0.parquet"), True, False, ["unnamed StoreCorrupt"]),
        (StoreCorrupt("a proof failed"), False, True, []),
        (PayloadRemoved(), False, False, ["unnamed PayloadRemoved"]),
        (FilesNotReadable(f"{gone.path}: call refresh()"), True, False, ["unnamed FilesNot"]),
        (KeyError(gone.path), False, False, ["untyped KeyError"]),
    ):
        said = damage.judged(gone, {"q": 1}, {"q": error}, sums=sums, by_spark=by_spark)
        found = damage.problems(said)
        assert [
            one.startswith(f"q: {what}") for one, what in zip(found, expected, strict=True)
        ] == [True for _ in expected], (error, found)
    flipped = damage.Cell("journal: a commit before", "journal/_delta_log/1.json", "a bit flipped")
    for sums in (True, False):
        said = damage.judged(flipped, {"q": 1}, {"q": PayloadRemoved()}, sums=sums)
        assert bool(damage.problems(said)) == sums
    assert damage.problems(damage.judged(flipped, {"q": 1}, {"q": 2}, sums=False)) == ["q: silent"]


def _forget_what_was_added(store: Path) -> None:
    """Take the files that a commit added out of it: what is left can be read."""
    log = sorted((store / "journal/_delta_log").glob("*.json"))
    file = next(one for one in log if '{"add"' in one.read_text())
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith('{"add"')))


def test_a_file_that_cannot_be_reached_is_not_called_damaged(tmp_path: Path) -> None:
    there, local = tmp_path / "there", LocalFileSystem()
    there.write_bytes(b"content")
    with pytest.raises(StoreCorrupt, match="there is damaged"), understanding(local, str(there)):
        raise OSError("it does not decompress")
    with pytest.raises(FileNotFoundError), understanding(local, f"{there} no more"):
        raise OSError("the connection was reset")


def test_only_a_column_in_the_place_of_another_is_a_damaged_name() -> None:
    moment = TableVersion(
        columns=dict.fromkeys(("kind", "lane", "shard"), "string"),
        properties={"delta.rowTracking.materializedRowIdColumnName": "row-id-1"},
    )
    assert _renamed({"kind", "lane", "shard", "row-id-1"}, moment) is None
    assert _renamed({"kind", "shard", "__is_cdc"}, moment) is None, "a column came later"
    assert _renamed({"kind", "lane", "shard", "note"}, moment) is None, "a column went"
    assert _renamed({"kind", "lana", "shard"}, moment) == "lana"


def test_sums_are_compared_and_what_they_do_not_say_is_believed(tmp_path: Path) -> None:
    file, sums = tmp_path / "file", tmp_path / ".file.crc"
    file.write_bytes(b"x" * 700)
    assert content_of(LocalFileSystem(), str(file)) == b"x" * 700
    crcs = [zlib.crc32(b"x" * 512), zlib.crc32(b"x" * 188)]
    sums.write_bytes(struct.pack(">4siII", b"crc\0", 512, *crcs))
    within = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    assert content_of(within, "file") == b"x" * 700
    file.write_bytes(b"x" * 699 + b"y")
    for filesystem, path in ((LocalFileSystem(), str(file)), (within, "file")):
        with pytest.raises(StoreCorrupt, match="file is damaged"):
            content_of(filesystem, path)
    sums.write_bytes(b"crc")  # damaged itself
    assert content_of(LocalFileSystem(), str(file))[-1:] == b"y"


SENDING = [
    ("journal: the last commit", "gone"),
    ("journal: the last commit", "half"),
    ("journal: a commit before", "gone"),
]
PROVING = [
    ("journal: data file 0", "half"),
    ("journal: data file 19", "gone"),
    ("journal: data file 19", "a bit flipped at 50%"),
    ("archive: data file 0", "a bit flipped at 31%"),
    ("archive: data file 1", "a block of zeros"),
    ("invoices: the last commit", "a bit flipped at 68%"),
]
"""What only a reader of these files can know of."""
SUMS = pytest.mark.parametrize("sums", [True, False] if LONG else [False])


@pytest.mark.spark
@SUMS
@pytest.mark.parametrize(("kind", "harm"), SENDING if LONG else SENDING[:1])
def test_a_driver_names_what_is_damaged_and_writes_nothing(
    spark: Any, tmp_path: Path, kind: str, harm: str, *, sums: bool
) -> None:
    store = _damaged(tmp_path, kind, harm, sums=sums)
    before = _sizes(store)
    queue = QueueManager(spark, str(store)).queue
    with pytest.raises(StoreCorrupt, match="Stop writing to the store"):
        queue("orders").send([{"order_id": 1, "customer": "ada"}])
    assert _sizes(store) == before


@pytest.mark.spark
@pytest.mark.skipif(not LONG, reason="six seconds each: in the long run")
@SUMS
@pytest.mark.parametrize(("kind", "harm"), PROVING)
def test_a_proof_names_what_is_damaged(
    spark: Any, tmp_path: Path, kind: str, harm: str, *, sums: bool
) -> None:
    store = _damaged(tmp_path, kind, harm, sums=sums)
    with pytest.raises(StoreCorrupt, match="Stop writing to the store"):
        QueueManager(spark, str(store)).history.verify()


@pytest.mark.spark
def test_reading_messages_names_a_damaged_file(spark: Any, tmp_path: Path) -> None:
    store = _damaged(tmp_path, "orders: data file 0", "a bit flipped at 97%", sums=True)
    with pytest.raises(StoreCorrupt, match=r"payload/orders-.*Stop writing to the store"):
        QueueManager(spark, str(store)).queue("orders").peek_messages(100)


def _damaged(folder: Path, kind: str, harm: str, *, sums: bool) -> Path:
    store = _unpacked(folder)
    if not sums:
        damage.without_sums(store)
    cells = damage.cells(store)
    next(one for one in cells if (one.kind, one.harm) == (kind, harm)).do(store)
    return store


def _sizes(store: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in store.rglob("*") if path.is_file()}
