"""What is measured of a long-lived process: its latencies, its memory, and the files it makes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypedDict

import psutil
import pyarrow

from tests.reliability.gauge import Cost

NAME = "soak-points"
MB = 2**20
LONG_COMMITS = 1_000
"""A store with so many shows what grows in the code of its day."""

COLLECTIONS_MAX = 30
SETTLED = 3
"""So many collections in a row that free nothing more end the collecting."""
SETTLED_SECONDS = 0.5
SETTINGS = ("PYTHONMALLOC", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES")
"""What a process's environment may say of its allocator."""
_CATEGORY = re.compile(r"(\w[\w ]*) \(reserved=\d+KB, committed=(\d+)KB")


@dataclass(frozen=True)
class Point:
    """What was measured at the end of a slice.

    Attributes:
        store: When the store was made.
        process: When the driver process began.
        part: The number of the slice, of those of the store.
        commits: So many sends the store has had.
        messages: So many messages were sent and consumed.
        seconds: How long the slice took.
        send_ms: The median of its sends.
        send_ms_high: What 95 % of them stayed below.
        receive_ms: The median of its transactions that receive, send on and commit.
        receive_ms_high: What 95 % of them stayed below.
        python_mb: The resident memory of the driver process, once it has given back what is free.
        java_mb: The resident memory of its Java, once it has given back what is free outside of its
            heap; it had not where no allocator is noted.
        heap_mb: What is in Java's heap after its garbage was collected.
        threads: The threads of both processes.
        open_files: The files, sockets and pipes that both have open.
        journal_files: The files in the journal's folder.
        journal_mb: Their bytes.
        python_threads: The threads of the driver process; None: not counted.
        ratio: How many times as long as on a new store the same work takes; None, as with the
            following ones: not measured.
        processor_ratio: How many times as much time of processors it takes.
        read_ratio: How many times as many bytes both processes read for it.
        written_ratio: How many times as many they write.
        python_blocks: The pieces of memory that Python's objects hold, whatever the process keeps
            of those that were given back; None: not counted, as with the system's allocator.
        used_mb: What the system's allocator has handed out to the driver process and not got back,
            whatever it keeps of the system's memory; None: Python has an allocator of its own.
        allocator: What both processes' environment says of it; None: not noted.
        java_classes_mb: What Java's own account says of its classes and their names; None, as with
            the following ones: it keeps no account.
        java_code_mb: The same of what it has compiled, and of its compilers.
        java_stacks_mb: The same of its threads.
        java_rest_mb: The same of all else but the heap.
        java_beside_mb: The rest of its resident memory, which it does not know of: files that it
            has mapped, libraries, and what its allocator keeps.
    """

    store: str
    process: str
    part: int
    commits: int
    messages: int
    seconds: float
    send_ms: float
    send_ms_high: float
    receive_ms: float
    receive_ms_high: float
    python_mb: float
    java_mb: float
    heap_mb: float
    threads: int
    open_files: int
    journal_files: int
    journal_mb: float
    python_threads: int | None = None
    ratio: float | None = None
    processor_ratio: float | None = None
    read_ratio: float | None = None
    written_ratio: float | None = None
    python_blocks: int | None = None
    used_mb: float | None = None
    allocator: str | None = None
    java_classes_mb: float | None = None
    java_code_mb: float | None = None
    java_stacks_mb: float | None = None
    java_rest_mb: float | None = None
    java_beside_mb: float | None = None

    @property
    def java_but_code_mb(self) -> float | None:
        """What Java has beside what it compiled, which it has room for up to a bound of its own."""
        return None if self.java_code_mb is None else round(self.java_mb - self.java_code_mb, 1)


class OfJava(TypedDict, total=False):
    """What Java's memory is, as in a point; nothing of it if Java keeps no account."""

    java_classes_mb: float
    java_code_mb: float
    java_stacks_mb: float
    java_rest_mb: float
    java_beside_mb: float


class OfProcesses(OfJava):
    """What a driver process and its Java hold, as in a point."""

    python_mb: float
    java_mb: float
    heap_mb: float
    threads: int
    python_threads: int
    python_blocks: int | None
    used_mb: float | None
    open_files: int
    allocator: str


class OfRatios(TypedDict, total=False):
    """What work costs against a new store, as in a point; nothing if it was not measured."""

    ratio: float
    processor_ratio: float
    read_ratio: float
    written_ratio: float


class OfFolder(TypedDict):
    """What is in the journal's folder, as in a point."""

    journal_files: int
    journal_mb: float


def by_store(folder: Path) -> dict[str, list[Point]]:
    """Read the points of each store, the oldest store first."""
    path = folder / f"{NAME}.jsonl"
    if not path.is_file():
        return {}
    found: defaultdict[str, list[Point]] = defaultdict(list)
    for line in path.read_text("utf-8").splitlines():
        point = Point(**json.loads(line))
        found[point.store].append(point)
    return dict(sorted(found.items()))  # a name is when it was made


def is_long(store: Sequence[Point]) -> bool:
    """Return whether a store lived long."""
    return store[-1].commits >= LONG_COMMITS


def read(folder: Path) -> list[Point]:
    """Read the points of the newest store that lived long; before there is one, of the longest."""
    stores = list(by_store(folder).values())
    long = [store for store in stores if is_long(store)]
    if long:
        return long[-1]
    return max(stores, key=lambda store: store[-1].commits, default=[])


def add(point: Point, folder: Path) -> None:
    """Write a point behind those that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{NAME}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(point)) + "\n")


def of_times(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median and what 95 % of the times stayed below, in milliseconds."""
    high = quantiles(seconds, n=20)[-1] if len(seconds) > 1 else seconds[0]
    return round(median(seconds) * 1000, 1), round(high * 1000, 1)


def of_ratios(cost: Cost | None) -> OfRatios:
    """Take what work costs on an old store, against a new one, as in a point."""
    if cost is None:
        return {}
    return {
        "ratio": cost.seconds,
        "processor_ratio": cost.processor,
        "read_ratio": cost.read,
        "written_ratio": cost.written,
    }


def processes(java: Any) -> list[psutil.Process]:
    """Return this process, and its Java, which is that of a session; None: none."""
    pids = [] if java is None else [java.java.lang.ProcessHandle.current().pid()]
    return [psutil.Process(), *map(psutil.Process, pids)]


def of_processes(java: Any) -> OfProcesses:
    """Measure what this process and its Java hold; Java is that of a session, None: none."""
    _give_back()
    here, *others = found = processes(java)
    heap, parts = 0, OfJava()
    for other in others:
        heap = _collected(java)
        home = java.System.getProperty("java.home")
        asked(home, other.pid, "System.trim_native_heap")  # its allocator does the same
        parts = parts_of_java(home, other.pid)
    memory = [round(one.memory_info().rss / MB, 1) for one in found]
    blocks = sys.getallocatedblocks() or None
    return {
        "python_mb": memory[0],
        "java_mb": sum(memory[1:]),
        "heap_mb": round(heap / MB, 1),
        "threads": sum(one.num_threads() for one in found),
        "python_threads": here.num_threads(),
        "python_blocks": blocks,
        "used_mb": None if blocks else _used_mb(),
        "open_files": sum(one.num_fds() for one in found),
        "allocator": _allocator(),
        **parts,
    }


def _allocator() -> str:
    """Say what the environment says of it."""
    return " ".join(f"{name}={os.environ[name]}" for name in SETTINGS if name in os.environ)


def _give_back() -> None:
    """Let the system have the memory that is free: what is in use does not depend on the past."""
    gc.collect()
    pyarrow.default_memory_pool().release_unused()
    with contextlib.suppress(OSError, AttributeError):  # only the GNU library has it
        ctypes.CDLL("libc.so.6").malloc_trim(0)


class _Mallinfo(ctypes.Structure):
    """What the GNU library's ``mallinfo2`` returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def _used_mb() -> float | None:
    """Return what the system's allocator has handed out, in pieces and as whole mappings."""
    try:
        mallinfo = ctypes.CDLL("libc.so.6").mallinfo2
    except (OSError, AttributeError):  # only the GNU library has it, since 2.33
        return None
    mallinfo.restype = _Mallinfo
    found = mallinfo()
    used: int = found.uordblks + found.hblkhd
    return round(used / MB, 2)


def _collected(java: Any) -> int:
    """Collect Java's garbage until nothing more is freed; return the bytes that are left.

    Spark frees what belongs to a broadcast or a cached frame only after a collection has told it
    that nobody has it any more, and in a thread of its own.
    """
    runtime, least, settled = java.Runtime.getRuntime(), sys.maxsize, 0
    for _ in range(COLLECTIONS_MAX):
        java.System.gc()
        left = runtime.totalMemory() - runtime.freeMemory()
        settled = settled + 1 if least - left < MB else 0
        least = min(least, left)
        if settled == SETTLED:
            break
        time.sleep(SETTLED_SECONDS)
    return least


def asked(home: str, pid: int, command: str) -> str:
    """Let a Java do a diagnostic command, and return what it says; nothing if there are no tools.

    Args:
        home: Where that Java is installed.
        pid: Its process.
        command: What jcmd calls it; old versions of Java may not have it.
    """
    tool = str(Path(home, "bin", "jcmd"))
    try:
        said = subprocess.run([tool, str(pid), command], capture_output=True, check=False)
    except FileNotFoundError:
        return ""
    assert said.returncode == 0 or b"Unknown diagnostic command" in said.stdout, said
    return said.stdout.decode()


def parts_of_java(home: str, pid: int) -> OfJava:
    """Measure a Java's memory by the categories of its Native Memory Tracking."""
    account = asked(home, pid, "VM.native_memory")
    resident_mb = psutil.Process(pid).memory_info().rss / MB
    found = {name: int(committed) / 1024 for name, committed in _CATEGORY.findall(account)}
    if not found:
        return {}
    known = sum(found.values())
    del found["Java Heap"]
    classes, code, stacks = (
        sum(found.pop(name, 0.0) for name in names)
        for names in (("Class", "Metaspace", "Symbol"), ("Code", "Compiler"), ("Thread",))
    )
    return {
        "java_classes_mb": round(classes, 1),
        "java_code_mb": round(code, 1),
        "java_stacks_mb": round(stacks, 1),
        "java_rest_mb": round(sum(found.values()), 1),
        "java_beside_mb": round(resident_mb - known, 1),
    }


def of_folder(path: Path) -> OfFolder:
    """Count the files in a folder, and their bytes."""
    sizes = list(_sizes(path))
    return {"journal_files": len(sizes), "journal_mb": round(sum(sizes) / MB, 2)}


def _sizes(path: Path) -> Iterator[int]:
    """List the sizes of files; who maintains the store may delete some meanwhile."""
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                yield os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
