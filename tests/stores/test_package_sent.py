"""The package as a file, for a Python that has not installed it: what Spark sends there works."""

from __future__ import annotations

import copy
import pickle
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from pyspark import cloudpickle

from tests.conftest import LONG
from tests.drivers import without_the_library
from txnqueue import QueueDataSource
from txnqueue.platform import package

SEND = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import txnqueue
from pyspark import cloudpickle
from txnqueue import QueueDataSource
assert txnqueue.__file__.startswith(sys.argv[1])
source = QueueDataSource({"path": sys.argv[2], "queue": "orders"})
readers = source.reader(source.schema()), source.streamReader(source.schema())
for number, one in enumerate((source, *readers)):
    Path(f"{sys.argv[3]}/{number}").write_bytes(cloudpickle.dumps(one))
"""
READ = """
import pickle, sys
from pathlib import Path
def sent(number):
    return pickle.loads(Path(f"{sys.argv[1]}/{number}").read_bytes())
sent(int(sys.argv[2]))
assert ".zip/" in sys.modules["txnqueue"].__file__
source, reader, stream = map(sent, range(3))
(schema, found), start = (source.schema(), reader.partitions()), stream.initialOffset()
assert source.reader(schema).partitions() == found
posted = stream.partitions(start, stream.latestOffset())
rows = [[row for one in of for batch in reader.read(one) for row in batch.to_pylist()]
        for of in (found, posted)]
print(*map(len, rows))
"""


def run(python: Path, program: str, *arguments: str, also: str = "", temporary: str = "") -> str:
    """Run a program in a Python that has a folder beside its packages."""
    command = [str(python), "-c", program, *arguments]
    environment = {"PYTHONPATH": also, **({"TMPDIR": temporary} if temporary else {})}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def alone() -> Iterator[Path]:
    """The package as a file."""
    with package.written() as path:
        yield path
    assert not path.exists()


def beside_others(alone: Path, folder: Path) -> str:
    """Write the package into a folder of a zip file that has more, and return that folder."""
    with zipfile.ZipFile(alone) as own, zipfile.ZipFile(folder / "all.zip", "w") as out:
        for name in own.namelist():
            out.writestr(f"lib/{name}", own.read(name))
        out.writestr("lib/txnqueue_more/__init__.py", "")
        out.writestr("lib/big", bytes(10_000_000))
    return str(folder / "all.zip" / "lib")


@pytest.mark.parametrize("more", [False, True] if LONG else [True])
def test_what_came_from_a_file_brings_the_package_along_and_reads_with_it(
    tmp_path: Path, alone: Path, more: bool
) -> None:
    with tarfile.open(Path(__file__).parent / "0.1.0.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    origin = beside_others(alone, tmp_path) if more else str(alone)
    python = without_the_library(tmp_path)
    older = tmp_path / "older" / "txnqueue"
    older.mkdir(parents=True)
    (older / "__init__.py").touch()
    run(python, SEND, origin, str(tmp_path / "store"), str(tmp_path))
    size, temporary = alone.stat().st_size, tmp_path / "temporary"
    temporary.mkdir()
    for number in range(3):
        assert size < (tmp_path / str(number)).stat().st_size < size + 10_000
        for also in ("", str(older.parent)):
            given = (READ, str(tmp_path), str(number))
            said = run(python, *given, also=also, temporary=str(temporary))
            waiting, posted = map(int, said.split())
            assert posted >= waiting > 0
        # Workers of Spark do not clean up: they share one file, whose content is looked at.
        (left,) = temporary.iterdir()
        left.write_bytes(b"not the package")


def test_an_installed_package_is_copied_by_its_names() -> None:
    source = QueueDataSource({"path": "/lake", "queue": "orders"})
    sent = cloudpickle.dumps(source)
    pickled = [pickle.dumps(source, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for one in (copy.copy(source), copy.deepcopy(source), *map(pickle.loads, (*pickled, sent))):
        assert type(one) is QueueDataSource and vars(one) == vars(source)
    assert len(sent) < 1_000
