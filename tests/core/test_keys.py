"""What one column says of messages: found by send and offset, in the order of the ranges."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from txnqueue.core.state.duplicates import digest
from txnqueue.storage.payload import Part
from txnqueue.storage.payload.keys import Texts, by_part


def part(send_id: str, *ranges: tuple[int, int]) -> Part:
    return Part("orders", 0, send_id, ranges, "orders", 0, 0, 0, None, None)


def test_texts_are_found_in_whatever_order_and_pieces_they_come() -> None:
    places = [(send, offset) for send in "ab" for offset in (*range(6), 1 << 40, (1 << 40) + 1)]
    random.Random(1).shuffle(places)
    rows = [
        {"send_id": send, "send_offset": offset, "text": None if offset == 3 else f"{send}{offset}"}
        for send, offset in places
    ]
    table = pa.concat_tables(pa.Table.from_pylist(rows[n : n + 5]) for n in range(0, len(rows), 5))
    texts = Texts(table)
    assert list(texts.of(part("b", (1 << 40, (1 << 40) + 1), (2, 3)))) == [
        f"b{1 << 40}",
        f"b{(1 << 40) + 1}",
        "b2",
        None,
    ]
    assert list(texts.of(part("a", (4, 9)))) == ["a4", "a5"], "what is gone is left out"
    assert list(texts.of(part("c", (0, 9)))) == []


@pytest.mark.parametrize("pieces", [[], [[]]])
def test_texts_of_nothing_are_none(pieces: list[list[str]]) -> None:
    kinds = {"send_id": pa.string(), "send_offset": pa.int64(), "text": pa.string()}
    columns = [pa.chunked_array(pieces, kind) for kind in kinds.values()]
    assert list(Texts(pa.table(columns, names=list(kinds))).of(part("a", (0, 3)))) == []


def test_a_text_that_is_not_utf_8_keeps_its_octets() -> None:
    octets = [b"\xffA", "é".encode(), b"\xfeA"]
    text = pa.Array.from_buffers(pa.string(), 3, pa.array(octets).buffers())
    places = {"send_id": ["a"] * 3, "send_offset": [0, 1, 2], "text": text}
    found = list(Texts(pa.table(places)).of(part("a", (0, 2))))
    assert [one and one.encode(errors="surrogateescape") for one in found] == octets
    assert len(set(map(digest, found))) == 3 and digest(found[1]) == digest("é")


def test_ranges_of_a_send_are_sorted_by_part_and_lane() -> None:
    lie = [(1, "a", 5, 9), (0, "a", 0, 4), (1, "a", 10, 12), (0, "b", 0, 99)]
    parts = [part("a", (2, 6)), part("a", (8, 8), (11, 20)), part("b", (3, 3)), part("c", (1, 1))]
    assert by_part(lie, parts) == [
        {0: ((2, 4),), 1: ((5, 6),)},
        {1: ((8, 8), (11, 12))},
        {0: ((3, 3),)},
        {},
    ]
