"""Rule S4-37: the low-water mark of executed commands."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.conformance.conftest import World, in_memory, on_delta_when_long
from txnqueue.errors import InvalidInput, InvalidName
from txnqueue.protocols.dtx import Execution

rule = pytest.mark.rule


@on_delta_when_long
@rule("S4-37")
def test_the_mark_passes_what_is_executed_and_nothing_else(world: World) -> None:
    world.queue()
    execution = Execution(world.manager(), world.name("loader"))
    assert execution.mark == 0 and execution.gaps() == []
    assert execution.complete(0, 1, 3, 6) == 2
    assert execution.gaps() == [(2, 2), (4, 5)]
    assert execution.executed(3) and not execution.executed(2)
    assert execution.complete(2) == 4  # over the gap that is filled
    other = Execution(world.manager("b"), world.name("loader"))
    assert other.mark == 4 and other.complete(5, 4) == 7


@in_memory
@rule("S4-37")
def test_saying_it_again_changes_nothing(world: World) -> None:
    world.queue()
    execution = Execution(world.manager(), world.name("loader"))
    execution.complete(0, 2)
    before = world.store.journal.version()
    assert execution.complete(2) == execution.complete() == 1
    assert world.store.journal.version() == before


@on_delta_when_long
@rule("S4-37")
def test_two_that_say_so_at_once_lose_nothing(world: World) -> None:
    world.queue()
    first, second = (Execution(world.manager(n), world.name("loader")) for n in "ab")
    newest = first._newest
    watched: Any = first
    watched._newest = lambda: [newest(), second.complete(1)][0]
    assert first.complete(0) == 2


@on_delta_when_long
@rule("S4-37")
def test_the_mark_is_what_it_is_defined_to_be_whatever_the_order(world: World) -> None:
    world.queue()
    dice = random.Random(37)
    executions = [Execution(world.manager(n), world.name("loader")) for n in "abc"]
    done: set[int] = set()
    before = 0
    for _ in range(300):
        some = {dice.randrange(40) for _ in range(dice.randrange(3))}
        mark = dice.choice(executions).complete(*some)
        done |= some
        assert mark == min(set(range(100)) - done)
        assert mark >= before
        before = mark


@on_delta_when_long
@rule("S4-37")
def test_what_is_no_command_id_is_refused(world: World) -> None:
    world.queue()
    execution = Execution(world.manager(), world.name("loader"))
    refused: list[Any] = [-1, "1", True, 1.0, 1 << 63]
    for wrong in refused:
        with pytest.raises(InvalidInput):
            execution.complete(0, wrong)
    assert execution.mark == 0
    with pytest.raises(InvalidName):
        Execution(world.manager(), "not a name")
