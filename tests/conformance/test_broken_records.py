"""Records that lie, on purpose: what is erased, what was digested, and what somebody set back.

Each variant breaks one rule of the real code; a test of the conformance suite must fail then.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conformance import test_digest as digests
from tests.conformance import test_erasing as erasing
from tests.conformance import test_replay as replaying
from tests.conformance.conftest import World
from tests.core import test_setbacks as setting_back
from txnqueue.admin import erasure
from txnqueue.client.archive import Past
from txnqueue.core import model
from txnqueue.core.model import Entry
from txnqueue.core.state import erasures
from txnqueue.errors import TxnQueueError
from txnqueue.messages.removal import Progress
from txnqueue.reports import digest
from txnqueue.storage import setbacks
from txnqueue.storage.setbacks import LoggedCommit
from txnqueue.storage.store import MemoryStore

Break = Callable[[pytest.MonkeyPatch], None]
Catch = Callable[[], None]

keys_without_spark = erasing.keys_without_spark
"""The store in memory understands the predicates of that module here as well."""


def of_a_world(test: Callable[..., None], *given: Any) -> Catch:
    """Look for a violation by a test of the suite, on a new store in memory."""
    return lambda: test(World(MemoryStore()), *given)


# ------------------------------------------------------------------------------ erasures


def leaves_what_waits(patch: pytest.MonkeyPatch) -> None:
    """Erase the payload of messages that still wait to be received."""
    patch.setattr(erasure._Standing, "purge", lambda self, posted, progress: None)


def looks_once(patch: pytest.MonkeyPatch) -> None:
    """Do not look where messages went while one looked."""
    real = erasure._Standing.purge

    def purge(self: Any, posted: Callable[[], list[Entry]], progress: Progress) -> None:
        seen = posted()
        real(self, lambda: seen, progress)

    patch.setattr(erasure._Standing, "purge", purge)


def overlooks_what_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    """Erase what a consumer has in its hands."""
    patch.setattr(erasure._Standing, "_in_flight", lambda self, fold: 0)


def overlooks_what_is_prepared(patch: pytest.MonkeyPatch) -> None:
    """Erase rows that a prepared transaction can still make messages of."""
    patch.setattr(erasure._Search, "_prepared", lambda self: {})


def overlooks_what_is_undecided(patch: pytest.MonkeyPatch) -> None:
    """Take every transaction for decided that began before now."""
    careless = SimpleNamespace(**{**vars(model), "horizon": lambda entries: 1 << 60})
    patch.setattr(erasure, "model", careless)


def forgets_the_window(patch: pytest.MonkeyPatch) -> None:
    """Erase ids by which duplicates are told."""
    patch.setattr(erasure._Standing, "_check_window", lambda *given: None)


def leaves_the_rest_to_nobody(patch: pytest.MonkeyPatch) -> None:
    """Record an erasure as done before its rows are deleted."""
    real = erasure._say_deleted

    def finish(client: Any, facts: Any) -> dict[str, Exception]:
        waiting = [one for one in erasures.erasures(facts) if one.done is None]
        real(client, waiting)
        for owner, places in erasures.rows_of(waiting).items():
            client.store.payload.erase(owner, [(*place, part) for place, part in places.items()])
        return {}

    patch.setattr(erasure, "finish", finish)


# ------------------------------------------------------------------------------- digests


def links_nothing(patch: pytest.MonkeyPatch) -> None:
    """Digest each entry by itself: the order of commits does not count."""
    real = digest._chained

    def sorted_first(entries: Any, seed: str) -> tuple[str, int]:
        return real(sorted(entries, key=lambda entry: entry.entry_id), seed)

    def nameless(entry: Entry) -> bytes:
        return repr((entry.append_id, entry.index, entry.kind, entry.actor)).encode()

    patch.setattr(digest, "_chained", sorted_first)
    patch.setattr(digest, "canonical", nameless)


def digests_names_only(patch: pytest.MonkeyPatch) -> None:
    """Digest who an entry is, and not what it says."""
    patch.setattr(digest, "canonical", lambda entry: repr((entry.entry_id, entry.place)).encode())


def digests_what_is_left(patch: pytest.MonkeyPatch) -> None:
    """Compute a digest though some of its entries were removed."""
    patch.setattr(Past, "check_known", lambda self, commit_seq: None)


def leaves_values_out(patch: pytest.MonkeyPatch) -> None:
    """Leave out of the digest by which run an entry was written."""
    patch.setattr(digest, "_COLUMNS", [name for name in digest._COLUMNS if name != "run_id"])


# ----------------------------------------------------------------------------- set-backs


def believes_deletions(patch: pytest.MonkeyPatch) -> None:
    """Take a DELETE from the journal for one of the library's own."""
    patch.setattr(setbacks, "_CHANGING", ("TRUNCATE", "OVERWRITE"))


def forgets_how_it_was(patch: pytest.MonkeyPatch) -> None:
    """Tell only a client that opens the store anew of a RESTORE."""
    patch.setattr(setting_back, "met", setbacks.found)


def looks_no_further(patch: pytest.MonkeyPatch) -> None:
    """Judge a RESTORE by the newest commits, to whatever version it went back."""
    patch.setattr(setting_back, "looked_up", lambda commits, since: setbacks.found(commits))


def overlooks_overwriting(patch: pytest.MonkeyPatch) -> None:
    """Take each WRITE for an append."""

    def of(cls: Any, version: int, operation: str, said: Any) -> LoggedCommit:
        return LoggedCommit(version, operation)

    patch.setattr(LoggedCommit, "of", classmethod(of))


def _deleted() -> None:
    setting_back.test_what_is_missing_is_named_with_the_version_that_has_it(
        (*setting_back.START, "DELETE"), (), 3
    )


def _moved_meanwhile() -> None:
    for call, nth in itertools.product(("append", "find", "read"), range(1, 8)):
        erasing.test_a_message_that_moves_meanwhile_is_followed(World(MemoryStore()), call, nth)


def _prepared() -> None:
    with pytest.MonkeyPatch.context() as patch:
        erasing.test_what_was_prepared_stays(patch)


def _tampered(tamper: Any) -> None:
    digests.test_tampering_is_found(World(MemoryStore()), tamper)


VARIANTS: dict[str, tuple[Break, Catch]] = {
    "what waits is erased": (
        leaves_what_waits,
        of_a_world(erasing.test_what_waits_is_purged_wherever_it_stands),
    ),
    "what moves meanwhile is not followed": (
        looks_once,
        _moved_meanwhile,
    ),
    "what is in flight is erased": (
        overlooks_what_is_in_flight,
        of_a_world(erasing.test_what_is_in_flight_refuses_and_nothing_is_changed),
    ),
    "what is prepared is erased": (
        overlooks_what_is_prepared,
        _prepared,
    ),
    "what is undecided is erased": (
        overlooks_what_is_undecided,
        of_a_world(erasing.test_what_is_not_decided_stays_until_it_cannot_be_any_more),
    ),
    "ids are erased within their window": (
        forgets_the_window,
        of_a_world(erasing.test_what_duplicates_are_told_by_stays_for_the_window),
    ),
    "erased before it is deleted": (
        leaves_the_rest_to_nobody,
        of_a_world(erasing.test_a_fault_at_any_call_is_made_good, "recover"),
    ),
    "a digest without an order": (links_nothing, lambda: _tampered(digests._exchanged)),
    "a digest of names": (digests_names_only, lambda: _tampered(digests._changed)),
    "a digest of what is left": (
        digests_what_is_left,
        of_a_world(digests.test_a_digest_of_removed_history_is_refused_and_a_continued_one_is_not),
    ),
    "a replay of what is left": (
        digests_what_is_left,
        of_a_world(replaying.test_history_that_was_removed_is_missed_at_once),
    ),
    "a digest that leaves values out": (
        leaves_values_out,
        digests.test_every_value_of_an_entry_counts_and_absent_ones_do_not,
    ),
    "deletions are believed": (believes_deletions, _deleted),
    "an undone set-back is read past": (
        forgets_how_it_was,
        setting_back.test_who_knows_what_was_before_is_told_of_an_undone_restore_as_well,
    ),
    "only the newest commits are looked at": (
        looks_no_further,
        setting_back.test_what_came_before_the_commits_that_were_looked_at_is_looked_up,
    ),
    "an overwriting is an append": (
        overlooks_overwriting,
        setting_back.test_operations_are_read_as_delta_says_them,
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_record_that_lies_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, catch = VARIANTS[name]
    broken(monkeypatch)
    try:
        catch()
    except (AssertionError, TxnQueueError, pytest.fail.Exception) as error:
        print(f"{name}: {type(error).__name__}: {str(error)[:150]}")
        return
    pytest.fail(f"{broken.__doc__} Nothing noticed it.")
