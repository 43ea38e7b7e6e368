"""Which lists of cases have changed since their last run: the page says so.

    .venv/bin/python -m tests.reliability --lists

A list depends on the code, and a few take a minute to make: what was seen is kept in a file beside
the results, and the page is written from that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.reliability import results
from tests.reliability.kinds import Kind
from tests.reliability.results import Listed, Run

NAME = "lists.json"


@dataclass(frozen=True)
class Seen:
    """A list that is not that of the last run of its kind.

    Attributes:
        date: When it was seen first (ISO, UTC).
        commit: With which code.
        of: How many cases it has.
        fingerprint: Which list it is.
    """

    date: str
    commit: str
    of: int
    fingerprint: str | None

    @property
    def listed(self) -> Listed:
        """The list."""
        return Listed(self.of, self.fingerprint)


def read(folder: Path = results.FOLDER) -> dict[str, Seen]:
    """Read which lists were seen to have changed, by the names of their kinds."""
    path = folder / NAME
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {name: Seen(**one) for name, one in found.items()}


def look(kinds: Iterable[Kind], date: str, commit: str, folder: Path = results.FOLDER) -> None:
    """Make all lists anew, and write down those that are not their last run's."""
    before, found = read(folder), dict[str, Seen]()
    for kind in kinds:
        runs = results.read(kind.name, folder)
        if not runs or kind.total is None or kind.found:  # what is drawn is of any list
            continue
        now = kind.listed()
        if now.of is not None and _differs(now, runs[-1].listed):
            seen = before.get(kind.name)
            if seen is None or seen.listed != now:
                seen = Seen(date, commit, now.of, now.fingerprint)
            found[kind.name] = seen
    text = json.dumps({name: asdict(one) for name, one in sorted(found.items())}, indent=1)
    (folder / NAME).write_text(f"{text}\n", encoding="utf-8")


def changed(kind: Kind, runs: list[Run], seen: Mapping[str, Seen]) -> Seen | None:
    """Find the list of a kind, if it has changed since its last run.

    A run that began later had the list of then.
    """
    one = seen.get(kind.name)
    later = one is not None and runs[-1].date > one.date
    return one if one is not None and not later and _differs(one.listed, runs[-1].listed) else None


def _differs(now: Listed, then: Listed) -> bool:
    """Return whether a list is another one than it was: of older runs, by its length."""
    return now != then if then.fingerprint is not None else now.of != then.of
