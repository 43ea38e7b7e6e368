"""What verifying counts, of entries that no store of today would have."""

from __future__ import annotations

from dataclasses import replace

from txnqueue.core.model import Entry
from txnqueue.reports.consistency import Landings


def test_an_append_that_landed_twice_is_counted_once() -> None:
    landings, entry = Landings(), Entry("table/0", "t", "change_applied")
    for version, append_id in enumerate("abca"):
        for index in range(2):
            landings.see(replace(entry, append_id=append_id, version=version, index=index))
    (claim,) = landings.claims()
    assert (claim.found, claim.expected, claim.holds) == (3, 4, False)


def test_of_an_empty_history_nothing_landed_twice() -> None:
    assert all(claim.holds for claim in Landings().claims())
