"""Which transactions must have come before which others, and whether that goes in circles.

An edge says why one node comes before another: ``ww`` (both sent to a lane, in this order), ``wr``
(the second saw what the first did), ``rw`` (the first did not see what the second did) and ``rt``
(the first was answered before the second was called).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

WW, WR, RW, RT = "ww", "wr", "rw", "rt"
_LEVELS = (("G0", {WW}), ("G1c", {WW, WR}), ("G-single", {WW, WR}), ("G2", {WW, WR, RW}))
"""What a circle of such edges is called; G-single has one edge of kind rw besides."""


@dataclass(frozen=True)
class Edge:
    """One node comes before another."""

    before: str
    after: str
    kind: str


@dataclass(frozen=True)
class Cycle:
    """A circle, and what it is called."""

    name: str
    edges: tuple[Edge, ...]

    def __str__(self) -> str:
        """Show the way around."""
        steps = "".join(f" -{edge.kind}-> {edge.after}" for edge in self.edges)
        return f"{self.edges[0].before}{steps}"


def worst(edges: Iterable[Edge]) -> Cycle | None:
    """Find a shortest circle of the worst kind; those that need real time come last."""
    graph = _Graph(edges)
    for realtime in (False, True):
        for name, kinds in _LEVELS:
            allowed = kinds | {RT} if realtime else kinds
            found = graph.shortest(allowed, through=RW if name == "G-single" else None)
            if found:
                return Cycle(f"{name}-realtime" if realtime else name, tuple(found))
    return None


class _Graph:
    def __init__(self, edges: Iterable[Edge]) -> None:
        self._edges = sorted(set(edges), key=lambda e: (e.before, e.after, e.kind))
        self._after: defaultdict[str, list[Edge]] = defaultdict(list)
        for edge in self._edges:
            if edge.before != edge.after:
                self._after[edge.before].append(edge)

    def shortest(self, kinds: Collection[str], *, through: str | None) -> list[Edge] | None:
        """Find a shortest circle of some kinds of edges, with one of another kind if said."""
        component = self._components({*kinds, through} if through else kinds)
        best: list[Edge] | None = None
        for edge in self._edges:
            if edge.kind != through if through else edge.kind not in kinds:
                continue
            if edge.before == edge.after or component[edge.before] != component[edge.after]:
                continue
            back = self._path(edge.after, edge.before, kinds)
            if back is not None and (best is None or len(back) + 1 < len(best)):
                best = [edge, *back]
        return best

    def _path(self, start: str, end: str, kinds: Collection[str]) -> list[Edge] | None:
        came: dict[str, Edge | None] = {start: None}
        waiting = deque([start])
        while waiting and end not in came:
            for edge in self._steps(waiting.popleft(), kinds):
                if edge.after not in came:
                    came[edge.after] = edge
                    waiting.append(edge.after)
        if end not in came:
            return None
        path: list[Edge] = []
        step = came[end]
        while step is not None:
            path.append(step)
            step = came[step.before]
        return path[::-1]

    def _steps(self, node: str, kinds: Collection[str]) -> Iterator[Edge]:
        return (edge for edge in self._after[node] if edge.kind in kinds)

    def _components(self, kinds: Collection[str]) -> dict[str, int]:
        """Number the strongly connected components (Tarjan's way, without recursion)."""
        nodes = {edge.before for edge in self._edges} | {edge.after for edge in self._edges}
        index: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: list[str] = []
        component: dict[str, int] = {}
        for root in sorted(nodes):
            if root in index:
                continue
            index[root] = low[root] = len(index)
            stack.append(root)
            work = [(root, self._steps(root, kinds))]
            while work:
                node, steps = work[-1]
                edge = next(steps, None)
                if edge is None:
                    work.pop()
                    if work:
                        low[work[-1][0]] = min(low[work[-1][0]], low[node])
                    if low[node] == index[node]:
                        _close(node, stack, component, index[node])
                elif edge.after not in index:
                    index[edge.after] = low[edge.after] = len(index)
                    stack.append(edge.after)
                    work.append((edge.after, self._steps(edge.after, kinds)))
                elif edge.after not in component:
                    low[node] = min(low[node], index[edge.after])
        return component


def _close(root: str, stack: list[str], component: dict[str, int], number: int) -> None:
    while True:
        node = stack.pop()
        component[node] = number
        if node == root:
            return
