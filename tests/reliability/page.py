"""Writes the page of what the long runs found, from their result files alone.

    .venv/bin/python -m tests.reliability --page

``docs/reliability.md`` has a part between two marks that is written from ``docs/reliability/``.
What was mended is in ``docs/reliability/findings.json``, which is written by hand.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.reliability import answers, lists, results, soak_page
from tests.reliability.kinds import KINDS, Kind
from tests.reliability.lists import Seen
from tests.reliability.results import Again, Failure, Run

DOCS = results.FOLDER.parent
BEGIN = "<!-- written from docs/reliability/ by tests/reliability/page.py: begin -->"
END = "<!-- end -->"
_FOLDER = re.compile(r"file:/\S*?/(?=(?:journal|archive|payload)/)")
_DoneAgain = Mapping[tuple[str, int], Again]
"""What came of failures that were repeated, by kind and number."""
_Passed = Mapping[int, Run]
"""In which run each case passed that did, by its place in the list."""
_BETWEEN = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)


def write(docs: Path = DOCS) -> None:
    """Write the page and its picture from the files that are there."""
    soak_page.draw(docs / "reliability", docs / "pictures")
    path = docs / "reliability.md"
    text = with_figures(path.read_text(encoding="utf-8"), docs / "reliability")
    path.write_text(text, encoding="utf-8")


def with_figures(text: str, folder: Path) -> str:
    """Put what was found between the marks of a page.

    Raises:
        ValueError: The page has no marks.
    """
    found, count = _BETWEEN.subn(lambda _: "\n".join(["", *_lines(folder), "", ""]), text)
    if count != 1:
        raise ValueError(f"The page has not one part between {BEGIN} and {END}.")
    return found


def _lines(folder: Path) -> Iterator[str]:
    runs = {kind: results.read(kind.name, folder) for kind in KINDS.values()}
    done = {kind: found for kind, found in runs.items() if found}
    again = {(one.kind, one.number): one for one in results.read_again(folder)}
    seen = lists.read(folder)
    passed = {kind: _passed(kind, found, again, folder) for kind, found in done.items()}
    yield from ("### In short", "")
    how_far = {
        kind.name: _done(kind, found, again, passed[kind], lists.changed(kind, found, seen))
        for kind, found in done.items()
    }
    yield from answers.lines(how_far, folder)
    yield from ("", "### All runs", "")
    yield (
        "| what | store | how often | failed once | of a list, or share that may fail, at 95 % "
        "| hours | last run |"
    )
    yield "|---|---|---:|---:|---:|---:|---|"
    for kind, found in done.items():
        yield _row(kind, found, again, passed[kind], lists.changed(kind, found, seen))
    for kind, found in done.items():
        yield from _section(kind, found, again, passed[kind], lists.changed(kind, found, seen))
        yield from kind.shown(folder) if kind.shown is not None else ()
    yield from _findings(folder)
    missing = [kind.title for kind, found in runs.items() if not found]
    if missing:
        yield ""
        yield f"Not run yet: {'; '.join(missing)}."


def _done(
    kind: Kind, found: list[Run], again: _DoneAgain, passed: _Passed, changed: Seen | None
) -> answers.Done:
    """Say how far a kind is, and how much of it still fails, or was not repeated."""
    parts = kind.parts() if kind.parts is not None else []
    same = len(parts) == found[-1].of
    reached = Counter(parts[place] if same else "" for place in passed)
    failing = 0
    if kind.looked_at is None and kind.told is None:
        failing = sum(
            not _passes_since(kind, run, one, again, passed)
            for run in found
            for one in run.failures
        )
    return answers.Done(found, reached, failing, changed is not None)


def _passes_since(
    kind: Kind, run: Run, failure: Failure, again: _DoneAgain, passed: _Passed
) -> bool:
    """Return whether a failure was repeated and passes, or its case is gone or passed later."""
    since = again.get((kind.name, failure.number))
    if since is not None:
        return not since.failed
    place = failure.number % run.of if run.of else None
    return place in passed and passed[place].date > run.date


def _row(
    kind: Kind, found: list[Run], again: _DoneAgain, passed: _Passed, changed: Seen | None
) -> str:
    failed = sum(len(run.failures) for run in found)
    hours = sum(run.seconds for run in found) / 3600
    last = found[-1]
    cells = [kind.title, kind.store, _often(kind, found, again, passed), str(failed)]
    bound = _bound(kind, found, again, passed)
    is_other = changed is not None and bound.endswith(" of a list")
    cells.append(f"{bound} that has changed since" if is_other else bound)
    cells += [f"{hours:.2f}", f"{last.date[:10]}, {last.commit}"]
    return f"| {' | '.join(cells)} |"


def _often(kind: Kind, found: list[Run], again: _DoneAgain, passed: _Passed) -> str:
    n = found[-1].n if kind.whole else results.total(found)
    if kind.told is not None:
        return f"{kind.told(found, _of(kind, again)).done}, {n:,} {kind.unit}"
    of = _list_of(kind, found)
    done = "" if of is None else f"; {len(passed):,} of {of:,}"
    return f"{n:,} {kind.unit}{done}"


def _list_of(kind: Kind, found: list[Run]) -> int | None:
    """Count the list of the last run, if it is to be complete: nobody draws all there is."""
    return None if kind.found else found[-1].of


def _passed(kind: Kind, found: list[Run], again: _DoneAgain, folder: Path) -> _Passed:
    """Find what passed of the last run's list, or passes since it failed."""
    failures = [(run, one) for run in found for one in run.failures]
    settled = {one.number for run, one in failures if _is_settled(kind, run, one, again)}
    return results.passed(found, found[-1].listed, settled, folder)


def _is_settled(kind: Kind, run: Run, failure: Failure, again: _DoneAgain) -> bool:
    """Return whether a failure passes since: in a store as old as its own may have been."""
    since = again.get((kind.name, failure.number))
    alone = kind.in_one_store > 1 and since is not None and since.before is None
    return since is not None and since.passes(run) and not alone


def _bound(kind: Kind, found: list[Run], again: _DoneAgain, passed: _Passed) -> str:
    """Say how small the share of failures is: not of what is a list, which is all or not."""
    if kind.found:
        return _share(kind, found)
    if kind.told is not None:
        return kind.told(found, _of(kind, again)).bound
    n, of, last = results.clean(found), found[-1].of, found[-1]
    if of is None and not n:
        return "failed in the last run"
    if of is not None:
        if not all(_is_settled(kind, last, one, again) for one in last.failures):
            return "failed in the last run"
        return "all of a list" if len(passed) == of else "a part of a list"
    return f"< {results.bound(n):.2g}" if kind.independent else "a list"


def _share(kind: Kind, found: list[Run]) -> str:
    """Say which share was found: of a sample, so with an interval."""
    hits = sum(run.counts.get(count, 0) for run in found for count in kind.found)
    n = results.total(found)
    low, high = results.interval(hits, n)
    return f"{hits / max(n, 1):.1%} {kind.found[0]} ({low:.1%} to {high:.1%})"


def _section(
    kind: Kind, found: list[Run], again: _DoneAgain, passed: _Passed, changed: Seen | None
) -> Iterator[str]:
    yield from ("", f"### {kind.title[0].upper()}{kind.title[1:]}", "", kind.does, "")
    counts = sum((Counter(run.counts) for run in found), Counter[str]())
    if kind.told is not None:
        yield from (*kind.told(found, _of(kind, again)).lines, "")
    elif counts:
        said = ", ".join(f"{number:,} {what}" for what, number in counts.items())
        yield from (f"In them: {said}.", "")
    if _list_of(kind, found) is not None and kind.told is None:
        yield from _about_the_list(found, passed, changed)
        yield from () if changed else _parts(kind, found, passed)
    if kind.note:
        yield from (kind.note, "")
    yield f"What it cannot show: {kind.blind}"
    yield from ("", f"`bash tests/reliability.sh {kind.name} --minutes 60` goes on.")
    failures = [(run, one) for run in found for one in run.failures]
    if failures and kind.looked_at is not None:
        yield from _looked_at(kind, results.total(found), counts, failures)
        yield from _by_run(kind, found)
        yield from _verdicts(kind, failures)
    elif failures:
        yield from ("", "| number | commit | failed with | done again |", "|---:|---|---|---|")
        for run, f in failures:
            since = _since(kind, run, again.get((kind.name, f.number)))
            yield f"| {f.number} | {run.commit} | {_literal(f.what)} | {since} |"


def _about_the_list(found: list[Run], passed: _Passed, changed: Seen | None) -> Iterator[str]:
    """Say when its cases passed, and what is to be known of a list that has changed."""
    last, said = found[-1], list[str]()
    if passed:
        oldest = min(passed.values(), key=lambda run: run.date)
        said.append(f"Each passed at {oldest.commit}, {oldest.date[:10]}, or later.")
    earlier = [run for run in passed.values() if run.listed != last.listed]
    if earlier:
        said.append(f"{len(earlier):,} passed as cases of the same name in earlier lists.")
    others = sum(run.next - run.first for run in found if run.listed != last.listed)
    if others and not earlier:
        said.append(f"{others:,} numbers of earlier lists do not count here.")
    if last.fingerprint is None:
        said.append("Its list is known by its length alone.")
    if changed is not None:
        when = f"{changed.commit}, {changed.date[:10]}"
        said.append(f"The list has changed since, and has {changed.of:,} now: {when}.")
    if said:
        yield from (" ".join(said), "")


def _parts(kind: Kind, found: list[Run], passed: _Passed) -> Iterator[str]:
    """Say how far each part of a list is, if it is not complete, and still that of the code."""
    parts = kind.parts() if kind.parts is not None else []
    if len(parts) != found[-1].of or len(passed) == len(parts):
        return
    reached = Counter(parts[place] for place in passed)
    yield from ("| part of the list | done | of |", "|---|---:|---:|")
    for part, count in Counter(parts).items():
        yield f"| {part} | {reached[part]:,} | {count:,} |"
    yield ""


def _of(kind: Kind, again: _DoneAgain) -> dict[int, Again]:
    """Find what came of a kind's failures when they were done again, by their numbers."""
    return {number: one for (name, number), one in again.items() if name == kind.name}


def _since(kind: Kind, run: Run, again: Again | None) -> str:
    """Say what came of a case that failed when it was done again."""
    if again is None:
        return "not yet"
    where = f"{again.commit}, {again.date[:10]}"
    if again.failed:
        return f"failed again: {where}: {_literal(again.failed[0])}"
    if not again.n and not again.found:
        return f"there is no such case any more: {where}"
    if not again.n:
        return f"not repeated, nothing could be done: {where}"
    passes = "passes" if again.n == 1 else f"all {again.n:,} of its sort pass"
    if again.found is not None and again.found > again.n:
        passes = f"{again.n:,} of {again.found:,} of its sort pass, the others were not repeated"
    if kind.in_one_store > 1:
        before = again.before
        passes += ", alone in a new store" if not before else f" after {before} others in its store"
    if again.commit == run.commit:
        passes += " at the commit that failed"
    return f"{passes}: {where}"


def _looked_at(
    kind: Kind, n: int, counts: Counter[str], failures: list[tuple[Run, Failure]]
) -> Iterator[str]:
    """Say of all failures how many are what."""
    assert kind.looked_at is not None
    seen = [kind.looked_at(one.what) for _, one in failures]
    shares = Counter("not looked at yet" if v is None else v.verdict for v in seen)
    shares["equivalent"] += counts["equivalent"]
    said = ", ".join(f"{number} {what}" for what, number in shares.most_common())
    found = sum(counts[count] for count in kind.found)
    rest, now = n - shares["equivalent"], found + shares["killed since"]
    yield from ("", f"Those that no test failed with at first sight are: {said}.", "")
    first, last = (f"{number / max(rest, 1):.1%}" for number in (found, now))
    yield f"Of the {rest} that are not equivalent {first} were found then, {last} are found now."
    yield "The latter says nothing of those that were not drawn: tests were written for these."


def _by_run(kind: Kind, found: list[Run]) -> Iterator[str]:
    """Tell each run's share at first sight: tests were written after one, and before the next."""
    yield "Each run drew new ones, before tests were written for its own:"
    yield ""
    yield "| commit | drawn | found at first sight | without those that are equivalent |"
    yield "|---|---:|---:|---:|"
    for run in found:
        hits = sum(run.counts.get(count, 0) for count in kind.found)
        equal = answers.equivalent(kind, run)
        shares = [f"{hits / max(n, 1):.1%}" for n in (run.n, run.n - equal)]
        yield f"| {run.commit} | {run.n} | {shares[0]} | {shares[1]} |"


def _verdicts(kind: Kind, failures: list[tuple[Run, Failure]]) -> Iterator[str]:
    """Say of each failure what it is."""
    assert kind.looked_at is not None
    yield from ("", "| number | commit | failed with | what it is |", "|---:|---|---|---|")
    for run, one in failures:
        v = kind.looked_at(one.what)
        what = "" if v is None else f"{v.verdict}: {v.why}"
        yield f"| {one.number} | {run.commit} | {_literal(one.what)} | {_cell(what)} |"


def _findings(folder: Path) -> Iterable[str]:
    path = folder / "findings.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    if not found:
        return
    yield from (
        "",
        "### What was found, and mended",
        "",
        "| by | what | mended by |",
        "|---|---|---|",
    )
    for one in found:
        yield f"| {KINDS[one['kind']].title} | {_cell(one['what'])} | {one['mended']} |"


def _literal(text: str) -> str:
    """Show what a run said, without the folder of its store: brackets are no links there."""
    return "`" + _cell(_FOLDER.sub("…/", text)).replace("`", "'") + "`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
