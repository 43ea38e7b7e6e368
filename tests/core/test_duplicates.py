"""The rule of duplicates against one that compares every two messages, whoever knows how much."""

from __future__ import annotations

import random
from typing import Any

import pytest

from txnqueue.core import ranges
from txnqueue.core.model import PositionId
from txnqueue.core.state import Position, duplicates
from txnqueue.core.state.duplicates import Arrival, Duplicates, digest, write_ids

HOUR_MS = 3_600_000


def position_of(version: int, size: int, at_ms: int, origin: dict[str, object] | None) -> Position:
    """Make a position whose messages lie in two ranges."""
    parts = ((0, 0), (5, 5 + size - 2)) if size > 1 else ((3, 3),)
    place = (version, 0, 0)
    return Position(
        (f"a{version}", 0), "q", version % 2, "p", 0, "s", parts, 4, None, None, 1, origin, None,
        place, at_ms,
    )  # fmt: skip


class Everything:
    """Some hours of a queue: who posts what when, and what has left."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.window_ms = self.random.choice((60_000, HOUR_MS, 5 * HOUR_MS))
        self.now_ms = 10**9
        self.slow = self.random.choice((0, 0, 1, 3))  # so many wait for long
        self.log: list[tuple[str, Position, list[str], tuple[tuple[int, int], ...]]] = []
        self.names: dict[int, list[str]] = {}
        self.standing: dict[int, Position] = {}
        self.twice: dict[int, tuple[tuple[int, int], ...]] = {}
        self.firsts: dict[str, list[int]] = {}
        self.clients = [self.cold(), self.cold()]

    def cold(self) -> Duplicates:
        """Make a client that learns from the log what there is."""
        made = Duplicates(self.window_ms)
        for what in getattr(self, "log", ()):
            self.tell(made, *what)
        return made

    def tell(self, client: Duplicates, kind: Any, position: Any, names: Any, twice: Any) -> None:
        if kind == "posted":
            few = write_ids(map(digest, names)) if position.place[0] % 3 else None
            client.posted(position, few)
        else:
            client.left_out(position.position_id, twice)
            client.retired(position.position_id)

    def note(self, *what: Any) -> None:
        self.log.append(what)
        for client in self.clients:
            self.tell(client, *what)

    def post(self) -> None:
        draw = self.random
        skew_ms = draw.randint(-HOUR_MS // 2, HOUR_MS // 2)
        origin: dict[str, object] | None = {"queue": "elsewhere"} if draw.random() < 0.1 else None
        names = [f"k{draw.randrange(12)}" for _ in range(draw.randint(1, 4))]
        position = position_of(len(self.log), len(names), self.now_ms + skew_ms, origin)
        offsets = [n for first, last in position.ranges for n in range(first, last + 1)]
        found = []
        for offset, name in zip(offsets, names, strict=True):
            firsts, at_ms = self.firsts.setdefault(name, []), position.posted_at_ms
            if origin is None and any(at_ms - first < self.window_ms for first in firsts):
                found.append(offset)
            else:
                firsts.append(at_ms)
        self.standing[position.place[0]], self.names[position.place[0]] = position, names
        self.twice[position.place[0]] = ranges.of_offsets(found)
        self.note("posted", position, names, ())

    def claim(self) -> int:
        """Let a client look at a position, and take it away."""
        number = self.random.choice(list(self.standing)[self.slow : self.slow + 5])
        position, client = self.standing.pop(number), self.random.choice(self.clients)
        if not client.looked_at(position.position_id):
            arrivals = client.to_look_at(position, self.now_ms)
            for arrival in arrivals:
                names = self.names[arrival.position.place[0]]
                arrival.ids = arrival.ids or b"".join(map(digest, names))
            client.learn(arrivals)
        twice = client.of(position.position_id)
        assert twice == self.twice[number]
        self.note("left", position, self.names[number], twice)
        return len(twice)


@pytest.mark.parametrize("seed", range(30))
def test_everybody_finds_the_same_duplicates(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "ARRIVALS_MIN", 3)
    monkeypatch.setattr(duplicates, "LOOK_AHEAD", 5)
    world, found = Everything(seed), 0
    for _ in range(300):
        chance = world.random.random()
        world.now_ms += world.random.choice((0, 1_000, 60_000, HOUR_MS // 4))
        if chance < 0.05:
            world.clients[world.random.randrange(2)] = world.cold()
        elif chance < 0.5 or len(world.standing) <= world.slow:
            world.post()
        else:
            world.slow *= world.random.random() > 0.02
            found += world.claim()
    assert found > 10
    assert all(twice for client in world.clients for twice in client._found.values())


def test_old_positions_are_forgotten_and_looked_for_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "ARRIVALS_MIN", 3)
    client, looked = Duplicates(HOUR_MS), 0
    forget = client._forget

    def counted(now_ms: int) -> None:
        nonlocal looked
        looked += 1
        forget(now_ms)

    monkeypatch.setattr(client, "_forget", counted)
    for n in range(100):
        client.posted(position_of(n, 2, n * HOUR_MS, None), None)
        if n >= 50:
            client.retired((f"a{n}", 0))
    assert 3 <= looked <= 8
    for n in range(50):
        client.retired((f"a{n}", 0))
    for n in range(100, 300):
        client.posted(position_of(n, 2, n * HOUR_MS, None), None)
        client.retired((f"a{n}", 0))
    assert len(client._arrivals) < 50


def test_what_waits_for_long_keeps_only_what_it_may_repeat() -> None:
    """A message with a delay of a month must not keep a month's ids."""
    client, waits = Duplicates(HOUR_MS), position_of(50, 1, 50 * HOUR_MS, None)
    for n in range(50):
        client.posted(position_of(n, 2, n * HOUR_MS, None), None)
    client.posted(waits, None)
    for n in range(51, 1_000):
        client.posted(position_of(n, 2, n * HOUR_MS, None), None)
    for n in range(1_000):
        if n != 50:
            client.retired((f"a{n}", 0))
    last = position_of(1_000, 1, 1_000 * HOUR_MS, None)
    client.posted(last, None)
    left = [one.position.place[0] for one in client.to_look_at(last, 1_000 * HOUR_MS)]
    # The hour before it, and the hour by which clocks differ; the same for what is still to come.
    assert left == [50, 51, 999, 1_000]


def test_two_ids_have_two_digests_and_null_has_none() -> None:
    assert digest("a") != digest("b")
    assert digest(None) == duplicates.NO_ID != digest("")
    assert len(digest("x" * 1000)) == duplicates.DIGEST_BYTES


def test_who_reads_ids_at_all_reads_those_of_what_comes_after_too() -> None:
    client = Duplicates(HOUR_MS)
    positions = [position_of(version, 2, 10**9, None) for version in range(5)]
    known = write_ids(map(digest, ("k1", "k2")))
    for position, ids in zip(positions, (None, known, None, None, known), strict=True):
        client.posted(position, ids)
    looked_at = client.to_look_at(positions[0], 10**9)
    assert [one.position for one in looked_at] == positions
    looked_at = client.to_look_at(positions[1], 10**9)
    assert [one.position for one in looked_at] == positions


def test_no_more_is_looked_at_ahead_than_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "LOOK_AHEAD", 4)
    client = Duplicates(HOUR_MS)
    positions = [position_of(n, 2, 10**9, None) for n in range(6)]
    for n, one in enumerate(positions):
        client.posted(one, write_ids(map(digest, (f"{n} a", f"{n} b"))))
    for n, looked_at in ((0, 2), (1, 2), (3, 4)):  # whatever comes before it, and up to four ids
        assert len(client.to_look_at(positions[n], 10**9)) == looked_at


def test_who_need_not_read_stops_before_what_would_have_to_be_read() -> None:
    client = Duplicates(HOUR_MS)
    positions = [position_of(version, 2, 10**9, None) for version in range(4)]
    known = write_ids(map(digest, ("k1", "k2")))
    for position, ids in zip(positions, (known, known, None, known), strict=True):
        client.posted(position, ids)
    looked_at = client.to_look_at(positions[0], 10**9)
    assert [one.position for one in looked_at] == positions[:2]


def test_a_message_without_an_id_hides_none_of_those_beside_it() -> None:
    client = Duplicates(HOUR_MS)
    moved, sent = position_of(1, 3, 10**9, {"queue": "elsewhere"}), position_of(2, 2, 10**9, None)
    for position, names in ((moved, ("k1", None, "k2")), (sent, ("k2", "k3"))):
        client.posted(position, write_ids(map(digest, names)))
    client.learn(client.to_look_at(sent, 10**9))
    assert (client.of(moved.position_id), client.of(sent.position_id)) == ((), ((0, 0),))


class Interrupted(dict[bytes, int]):
    """Ids that somebody interrupts the recording of, once."""

    struck = False

    def update(self, *given: Any, **more: Any) -> None:
        super().update(*given, **more)
        if not self.struck:
            self.struck = True
            raise KeyboardInterrupt


@pytest.mark.parametrize("looks", [True, False])
def test_an_interrupt_makes_no_duplicates_of_a_positions_own_messages(looks: bool) -> None:
    client, position = Duplicates(HOUR_MS), position_of(1, 2, 10**9, None)
    client.posted(position, write_ids(map(digest, ("k1", "k2"))))
    client._known = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        client.learn(client.to_look_at(position, 10**9))
    if looks:
        assert client.looked_at(position.position_id)
    client.learn(client.to_look_at(position, 10**9))
    assert client.of(position.position_id) == ()


@pytest.mark.parametrize(
    ("lane", "upto_ms", "stands", "kept"),
    [
        (1, 10**9, False, False),
        (1, 10**9 - 1, False, True),  # a window may ask for it
        (0, 10**9, False, True),  # another lane says when it is done with its own
        (1, 10**9, True, True),  # it waits itself
    ],
)
def test_what_a_lane_is_done_with_is_forgotten_and_nothing_else(
    lane: int, upto_ms: int, stands: bool, kept: bool
) -> None:
    client = Duplicates(HOUR_MS)
    first, later = position_of(1, 2, 10**9, None), position_of(2, 2, 10**9 + 1, None)
    for position in (first, later):
        client.posted(position, write_ids(map(digest, ("k1", "k2"))))
    if not stands:
        client.retired(first.position_id)
    client.forget(lane, upto_ms)
    arrivals = client.to_look_at(later, 10**9)
    assert [arrival.position for arrival in arrivals] == ([first, later] if kept else [later])
    client.learn(arrivals)
    assert client.of(later.position_id) == (((0, 0), (5, 5)) if kept else ())


class Left(dict[PositionId, Arrival]):
    """Positions to look at; who takes one out is interrupted just after that, if it is told to."""

    strikes = False

    def pop(self, *given: Any) -> Any:
        found = super().pop(*given)
        if self.strikes:
            self.strikes = False
            raise KeyboardInterrupt
        return found


def test_of_a_position_that_has_left_after_an_interrupt_nothing_is_kept() -> None:
    client, left = Duplicates(HOUR_MS), Left()
    client._arrivals = left
    first, second = position_of(1, 1, 10**9, None), position_of(2, 1, 10**9, None)
    for position in (first, second):
        client.posted(position, write_ids([digest("k1")]))
    earlier, later = client.to_look_at(second, 10**9)
    client.learn([earlier])
    left.strikes = True
    with pytest.raises(KeyboardInterrupt):
        client.learn([later])
    client.retired(second.position_id)
    assert client.looked_at(second.position_id)
    assert client.of(second.position_id) == ()
