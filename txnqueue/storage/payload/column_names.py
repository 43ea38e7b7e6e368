"""When Spark considers the names of two columns equal; known without Spark."""

from __future__ import annotations


def folded(name: str) -> str:
    """Fold a name: Spark considers two names equal if their folded forms are equal.

    Java compares letter by letter, in upper case and then in lower case, so more letters are
    equal than by lower case alone: dotless i and i, micro and mu.
    """
    capitals = (c.upper() if len(c.upper()) == 1 else c for c in name)
    return "".join(c.lower()[0] for c in capitals)
