"""The mutants of the core and of the append loop: small mistakes, each made by Cosmic Ray.

What functions do is mutated: neither annotations and docstrings, nor the constants of modules, the
defaults of parameters and decorators.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.operators.provider import OperatorProvider
from parso.python.tree import Name

ROOT = Path(__file__).resolve().parents[2]
TARGETS = (
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "txnqueue" / "core").rglob("*.py")),
    "txnqueue/client/append.py",
    "txnqueue/client/runtime.py",
    "txnqueue/storage/journal/groups.py",
)
"""What decides, and what appends it: tries again, arbitrates, and finds out after a lost reply."""
SEED = "txnqueue"
"""Where a mutant stands in the order in which they are drawn."""

_COMPARISONS = (
    "Eq_NotEq NotEq_Eq Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt Is_IsNot IsNot_Is"
)
_ARITHMETIC = "Add_Sub Sub_Add Mul_FloorDiv FloorDiv_Mul Mod_FloorDiv BitOr_BitAnd BitAnd_BitOr"
_OTHERS = (
    "ReplaceUnaryOperator_Delete_Not ReplaceUnaryOperator_Delete_USub AddNot "
    "ReplaceTrueWithFalse ReplaceFalseWithTrue ReplaceAndWithOr ReplaceOrWithAnd "
    "ReplaceBreakWithContinue ReplaceContinueWithBreak ExceptionReplacer NumberReplacer "
    "ZeroIterationForLoop"
)
Span = tuple[tuple[int, int], tuple[int, int]]


class DropStatement(Operator):  # type: ignore[misc]
    """Leaves out a call, an augmented assignment, a yield or a raise: Cosmic Ray has none such."""

    _DROPPED = ("atom_expr", "power", "raise_stmt", "yield_expr")

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        """Find the statement."""
        if node.type == "simple_stmt":
            first = node.children[0]
            augmented = first.type == "expr_stmt" and first.children[1].type == "operator"
            added = augmented and first.children[1].value not in ("=", ":")
            if first.type in self._DROPPED or added:
                yield first.start_pos, first.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Put ``pass`` in its place."""
        first = node.children[0]
        node.children[0] = Name("pass", first.start_pos, first.get_first_leaf().prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """Show none."""
        return ()


class ReturnNone(Operator):  # type: ignore[misc]
    """Returns nothing."""

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        """Find the statement."""
        if node.type == "return_stmt" and node.children[1].get_code().strip() != "None":
            yield node.start_pos, node.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Put ``None`` in the place of what is returned."""
        node.children[1:] = [Name("None", node.children[1].start_pos, " ")]
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """Show none."""
        return ()


@cache
def _operators() -> dict[str, Operator]:
    provider = OperatorProvider()
    names = [f"ReplaceComparisonOperator_{change}" for change in _COMPARISONS.split()]
    names += [f"ReplaceBinaryOperator_{change}" for change in _ARITHMETIC.split()]
    found = {name: provider[name]() for name in (*names, *_OTHERS.split())}
    return {**found, "DropStatement": DropStatement(), "ReturnNone": ReturnNone()}


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Attributes:
        path: In which module.
        operator: What kind of mistake.
        occurrence: At which of the places for it in the module.
        line: The line that it begins at.
        place: Its place among all of them, which no other mutant changes.
    """

    path: str
    operator: str
    occurrence: int
    line: int
    place: str

    def source(self) -> str:
        """Write the module with the mistake."""
        text = (ROOT / self.path).read_text(encoding="utf-8")
        found: str | None = mutate_code(text, _operators()[self.operator], self.occurrence)
        assert found is not None, "there is no such place"
        return found

    def change(self) -> tuple[str, str]:
        """Tell the lines that differ: as they are, and with the mistake."""
        before = (ROOT / self.path).read_text(encoding="utf-8").splitlines()
        lines = list(difflib.ndiff(before, self.source().splitlines()))
        return tuple(  # type: ignore[return-value]
            " ".join(line[2:].strip() for line in lines if line.startswith(sign)) for sign in "-+"
        )


@cache
def mutants() -> list[Mutant]:
    """List all mutants in the order in which they are drawn: at random, but always the same."""
    return sorted((one for path in TARGETS for one in _of(path)), key=lambda one: one.place)


def _of(path: str) -> Iterator[Mutant]:
    text = (ROOT / path).read_text(encoding="utf-8")
    lines = text.splitlines()
    bodies, annotations = _spans(ast.parse(text))
    occurrences: Counter[str] = Counter()
    alike: Counter[str] = Counter()
    for node in ast_nodes(get_ast(text)):
        for name, operator in _operators().items():
            for span in operator.mutation_positions(node):
                occurrence = occurrences[name]
                occurrences[name] += 1
                if not _within(span, bodies) or _within(span, annotations):
                    continue
                key = f"{path}:{name}:{lines[span[0][0] - 1].strip()}"
                alike[key] += 1
                place = hashlib.sha256(f"{SEED}:{key}:{alike[key]}".encode()).hexdigest()
                yield Mutant(path, name, occurrence, span[0][0], place)


def _spans(tree: ast.Module) -> tuple[list[Span], list[Span]]:
    """Find the bodies of functions, and the annotations in them."""
    bodies, annotations = [], []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = node.body[ast.get_docstring(node) is not None :] or node.body
            bodies.append((_span(first[0])[0], _span(node.body[-1])[1]))
            annotations += [_span(node.returns)] if node.returns else []
        elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            annotations.append(_span(node.annotation))
    return bodies, annotations


def _span(node: Any) -> Span:
    return (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)


def _within(span: Span, others: list[Span]) -> bool:
    return any(begin <= span[0] and span[1] <= end for begin, end in others)
