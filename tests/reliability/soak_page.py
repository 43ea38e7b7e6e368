"""What the page shows of the long-lived process: a picture, and whether its costs grow."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.bench import pictures
from tests.reliability import points
from tests.reliability.points import Point
from tests.reliability.soak import KEPT_FOR, READ_ENTRIES, TAIL_ENTRIES
from tests.reliability.trends import GROWTH_MAX, Series, Trend, trend, trend_of_ratios
from txnqueue.client.readers import ENTRIES_KEPT
from txnqueue.storage.journal.tail import ENTRIES_MAX

LONG_SLICES = 25
"""A process with so many is long enough to be judged by itself."""
FILLED_SLICES = 15
"""So many are left out: in two processes the memory in use was what it stayed after 11 and 13."""
TEN = 10
SHOWN = 7
"""So many slices of a process are shown in a row at most."""
PICTURE = f"{pictures.FOLDER}/soak.svg"
JUDGED = {
    "send_ms": "a send, median ms",
    "receive_ms": "a transaction that receives, sends and commits, median ms",
    "python_mb": "memory of the process, MB",
    "used_mb": "of it in use, MB",
    "python_blocks": "pieces of memory that Python's objects hold",
    "java_mb": "memory of its Java, MB",
    "java_code_mb": "of it compiled code, MB",
    "java_but_code_mb": "memory of its Java without compiled code, MB",
    "heap_mb": "Java's heap after a collection, MB",
    "threads": "threads of both",
    "python_threads": "threads of the process",
    "open_files": "open files of both",
}
"""What has to stay as it is, however long the process lives."""
JAVA = {
    "java_classes_mb": "classes and their names",
    "java_code_mb": "compiled code",
    "java_stacks_mb": "stacks of threads",
    "java_rest_mb": "what else Java keeps an account of",
    "java_beside_mb": "what it does not: libraries, and what the allocator keeps",
}
"""What Java's memory is, beside the heap."""
RATIOS = {
    "ratio": "a send, a transaction that passes on, and one that takes out, against a new store",
    "processor_ratio": "the same, time of processors",
    "read_ratio": "the same, bytes read",
    "written_ratio": "the same, bytes written",
}
_PANELS = (
    ("ms", {"send_ms": "send", "receive_ms": "receive, send on and commit"}),
    ("MB", {"python_mb": "Python", "java_mb": "Java", "heap_mb": "Java's heap, collected"}),
    ("files of the journal", {"journal_files": ""}),
)


def series(found: Sequence[Point], what: str) -> Series:
    """Take one value of the points, by process."""
    each: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for point in found:
        value = getattr(point, what)
        if value is not None:
            each[point.process].append((point.commits, value))
    return each


def _judged(found: Sequence[Point]) -> list[list[Point]]:
    """Take the points of each process that lived long, the newest first; else those of all."""
    counts = Counter(point.process for point in found)
    long = sorted((one for one, count in counts.items() if count >= LONG_SLICES), reverse=True)
    each = [[point for point in found if point.process == process] for process in long]
    return each or [list(found)]


def _longer_before(folder: Path, found: Sequence[Point]) -> list[list[Point]]:
    """Take the newest process of another store that lived longer: memory fills for long."""
    longest = max(Counter(point.process for point in found).values())
    others = [
        [point for point in store if point.process == process]
        for name, store in points.by_store(folder).items()
        if name != found[-1].store
        for process in {point.process for point in store}
    ]
    longer = [one for one in others if len(one) > max(longest, LONG_SLICES)]
    return sorted(longer, key=lambda one: one[0].process)[-1:]


def _drivers(count: int) -> str:
    return "one process" if count == 1 else f"{count} processes one after the other"


def lines(folder: Path) -> Iterator[str]:
    """Write what the points say."""
    found = points.read(folder)
    if not found:
        return
    last, processes = found[-1], len({point.process for point in found})
    yield ""
    yield f"![Latency, memory and files over commits](pictures/{PICTURE})"
    yield ""
    yield (
        f"This store had {last.commits:,} sends and {last.messages:,} messages, worked on "
        f"by {_drivers(processes)}; its journal has "
        f"{last.journal_files:,} files of {last.journal_mb:,.0f} MB. "
        f"What is judged is each process that did {LONG_SLICES} slices or more, and not its "
        f"first {FILLED_SLICES}; before there is one, what all processes have in common. It is "
        f"flat if it grows by less than {GROWTH_MAX:.0%} per 1,000 sends at 95 %, and grows if "
        "it surely grows at all."
    )
    yield ""
    yield (
        f"What a process keeps of what is past is a tenth of the usual here, so that all of it is "
        f"there within five slices: {TAIL_ENTRIES:,} of the newest {ENTRIES_MAX:,} entries and "
        f"ranges that it wrote, {READ_ENTRIES:,} of {ENTRIES_KEPT:,} that each manager read; of "
        f"stores begun since 2026-11-29 08:00 also how long Delta lists the removed files of the "
        f"journal, {min(KEPT_FOR) / 60:.0f} minutes and not an hour: it reads the list for each "
        "append ([performance](performance.md)). What is finished is archived after two minutes."
    )
    yield ""
    yield (
        "Memory is measured after Python, Java and their allocators have given back what is free. "
        "Java has its heap of 3,072 MB from the start. What it has beside that is below, by its "
        "own account: it grows by what its thorough compiler writes, by less with each slice, in "
        "room for 512 MB. Python's own allocator keeps a megabyte as long as one object lies in "
        "it; the system's, which is used here, gives back more. Most of the threads are of Spark's "
        "pools for blocks and broadcasts, which keep one for a minute after its work."
    )
    yield ""
    yield (
        "After some slices, when nothing else works, this store and a new one take turns in the "
        "same process: how many times as much the old one costs does not depend on the machine, "
        "nor on what works beside. Both are written to for it; the new one is not maintained. The "
        "first value is left out."
    )
    yield ""
    yield from _other_stores(folder, shown=last.store)
    for number, judged in enumerate([*_judged(found), *_longer_before(folder, found)]):
        yield from [""] if number else []
        yield from _judgement(judged)
    yield from _of_java(found)


def in_short(folder: Path) -> str:
    """Say of the newest process that lived long how quick it stays, and how much it fills."""
    found = points.read(folder)
    trends = dict(_trends(_judged(found)[0])) if found else {}
    quick = trends.get(RATIOS["ratio"])
    if quick is None:
        return "not known yet"
    most = {
        name: trend.high / trend.level
        for what, name in (("python_mb", "Python"), ("java_mb", "Java"))
        if (trend := trends.get(JUDGED[what])) is not None
    }
    fills = (f"the memory of {name} by {max(share, 0):.1%}" for name, share in most.items())
    said = f"as quick as a new store: {quick.verdict.value}"
    return f"{said}; in 1,000 sends grows at most, at 95 %, {' and '.join(fills)}"


def _trends(judged: Sequence[Point]) -> Iterator[tuple[str, Trend | None]]:
    """Find the trend of each value that was measured."""
    for what, name in RATIOS.items():
        if (values := series(judged, what)) or what == "ratio":
            yield name, trend_of_ratios(values, warm=1)
    for what, name in JUDGED.items():
        if values := series(judged, what):
            yield name, trend(values, FILLED_SLICES)


def _judgement(judged: Sequence[Point]) -> Iterator[str]:
    """Judge each value, and show how memory fills."""
    first = judged[0]
    how = first.allocator or ("PYTHONMALLOC=malloc" if first.used_mb is not None else "")
    sends = f"after {first.commits:,} sends of the store"
    yield f"From {_minute(first.process)}, {sends}{f', with `{how}`' if how else ''}:"
    yield ""
    yield "| what | median | growth per 1,000 sends | 95 % interval | slices | verdict |"
    yield "|---|---:|---:|---:|---:|---|"
    for name, line in _trends(judged):
        yield _row(name, line, digits=3 if name in RATIOS.values() else 1)
    yield from _by_tens(judged)


def _minute(name: str) -> str:
    """Write when a store or a process began, which is its name, as a person would."""
    return f"{_day(name)} {name[9:11]}:{name[11:13]}"


def _day(name: str) -> str:
    return f"{name[:4]}-{name[4:6]}-{name[6:8]}"


def _by_tens(judged: Sequence[Point]) -> Iterator[str]:
    """Show how memory fills, and whether it goes on to: means of each ten slices of a process."""
    if len(judged) < 2 * TEN or len({point.process for point in judged}) > 1:
        return
    tens = [judged[at : at + TEN] for at in range(0, len(judged) - TEN + 1, TEN)]
    titles = [f"{TEN * n + 1} to {TEN * (n + 1)}" for n in range(len(tens))]
    yield ""
    yield f"| mean of slices | {' | '.join(titles)} |"
    yield f"|---|{'---:|' * len(tens)}"
    for what in ("python_mb", "used_mb", "java_mb", "java_code_mb", "java_but_code_mb", "heap_mb"):
        values = [[getattr(point, what) for point in ten] for ten in tens]
        if all(value is not None for ten in values for value in ten):
            cells = [f"{fmean(ten):,.1f}" for ten in values]
            yield f"| {JUDGED[what]} | {' | '.join(cells)} |"


def _of_java(found: Sequence[Point]) -> Iterator[str]:
    """Show what a Java has beside its heap, from slice to slice of the process that did most."""
    each: defaultdict[str, list[Point]] = defaultdict(list)
    for point in found:
        if point.java_code_mb is not None:
            each[point.process].append(point)
    mine = max(each.values(), key=lambda told: (len(told), told[0].process), default=[])
    if len(mine) < 2:
        return
    last, shown = len(mine) - 1, min(SHOWN, len(mine))
    nth = [round(n * last / (shown - 1)) for n in range(shown)]
    yield ""
    yield f"From {_minute(mine[0].process)}, what its Java had beside the heap, MB:"
    yield ""
    yield f"| after slice | {' | '.join(str(n + 1) for n in nth)} |"
    yield f"|---|{'---:|' * shown}"
    for what, name in JAVA.items():
        cells = " | ".join(f"{getattr(mine[n], what):,.1f}" for n in nth)
        yield f"| {name} | {cells} |"


def _other_stores(folder: Path, shown: str) -> Iterator[str]:
    """Say how old other stores became: each was judged by the page of its day."""
    stores = points.by_store(folder)
    others = [one for name, one in stores.items() if name != shown and points.is_long(one)]
    if not others:
        return
    yield f"Other stores of {points.LONG_COMMITS:,} sends or more:"
    yield ""
    yield "| begun | sends | messages | processes | files of the journal | MB |"
    yield "|---|---:|---:|---:|---:|---:|"
    for store in others:
        last = store[-1]
        yield (
            f"| {_day(last.store)} | {last.commits:,} | {last.messages:,} "
            f"| {len({point.process for point in store})} | {last.journal_files:,} "
            f"| {last.journal_mb:,.0f} |"
        )
    yield ""


def _row(name: str, line: Trend | None, digits: int) -> str:
    if line is None:
        return f"| {name} | | | | too few | not known yet |"
    slope, low, high = (f"{one:+.{digits + 1}f}" for one in (line.slope, line.low, line.high))
    cells = [name, f"{line.level:.{digits}f}", slope, f"{low} to {high}", str(line.values)]
    return f"| {' | '.join([*cells, line.verdict.value])} |"


def draw(folder: Path, to: Path) -> None:
    """Draw the points as SVG, if there are any; the same points give the same file."""
    found = points.read(folder)
    if not found:
        return
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(pictures.SETTINGS):
        figure = Figure(figsize=(8, 6.5), layout="constrained")
        for axes, (unit, names) in zip(
            figure.subplots(len(_PANELS), sharex=True), _PANELS, strict=True
        ):
            _paint(axes, found, names, unit)
        figure.axes[-1].set_xlabel("sends of 100 messages, each consumed")
        (to / PICTURE).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(to / PICTURE, metadata={"Date": None})


def _paint(axes: Any, found: Sequence[Point], names: dict[str, str], unit: str) -> None:
    """Draw values over commits; a line ends with its process."""
    for number, (what, label) in enumerate(names.items()):
        for nth, run in enumerate(series(found, what).values()):
            shown = label if nth == 0 else None
            axes.plot(*zip(*run, strict=True), color=f"C{number}", linewidth=1, label=shown)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(unit)
    if any(names.values()):
        axes.legend(frameon=False, ncols=len(names))
