"""All groups of cases, and which of them somebody asked for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tests.bench.case import Group
from tests.bench.cases import (
    amplification,
    claiming,
    cold,
    growth,
    handwritten,
    parts,
    pipelined,
    questions,
    receiving,
    sending,
    threads,
    views,
)
from tests.bench.world import World


def chosen(
    all_groups: Sequence[Group],
    only: Collection[str] = (),
    skip: Collection[str] = (),
    *,
    full: bool = False,
) -> list[tuple[Group, list[str]]]:
    """Find the groups, and their cases, that are to be measured.

    Args:
        all_groups: All that there are.
        only: Groups, or beginnings of names of cases; all of them when empty. What is named is
            measured even if only the full run has it otherwise.
        skip: Groups, or beginnings of names of cases, that are not.
        full: Whether this is the full run.

    Raises:
        SystemExit: There is nothing of a name.
    """
    unknown = [
        name
        for name in (*only, *skip)
        if not any(name == group.name or _named(group, name) for group in all_groups)
    ]
    if unknown:
        known = ", ".join(name for group in all_groups for name in (group.name, *group.makers))
        raise SystemExit(f"{', '.join(unknown)}: there is no such case. There are: {known}")
    found = []
    for group in all_groups:
        names = list(group.makers)
        if only and group.name not in only:
            names = [name for part in only for name in _named(group, part)]
        if group.name in skip:
            names = []
        left_out = {name for part in skip for name in _named(group, part)}
        names = [name for name in names if name not in left_out]
        if names and (only or full or not group.full):
            found.append((group, names))
    return found


def groups(world: World) -> list[Group]:
    """List the groups in the order in which they are measured."""
    return [
        Group("send", sending.makers(world), 2),
        Group("claim", claiming.makers(world), 0.5),
        Group("receive", receiving.makers(world), 2),
        Group("read", receiving.read_makers(world), 1),
        Group("drain", receiving.drain_makers(world), 2),
        Group("parts", parts.makers(world), 1),
        Group("ahead", pipelined.makers(world), 1.5),
        Group("peers", handwritten.makers(world), 4),
        Group("threads", threads.makers(world), 1.5),
        Group("views", views.makers(world), 1),
        Group("questions", questions.makers(world), 1),
        Group("cold", cold.makers(world), 2),
        Group("bytes", amplification.makers(world), 0.3),
        Group("receive from many", receiving.full_makers(world), 1, full=True),
        Group("questions to many", questions.full_makers(world), 1, full=True),
        Group("bulk", sending.full_makers(world), 1, full=True),
        Group("growth", growth.makers(world), 6, full=True),
        Group("maintenance", growth.maintenance_makers(world), 2, full=True),
    ]


def _named(group: Group, part: str) -> list[str]:
    if part in group.makers:
        return [part]
    return [name for name in group.makers if name.startswith(part)]
