"""Something that must not be in a history."""

from __future__ import annotations

from dataclasses import dataclass

from tests.histories.history import Fact, Operation


@dataclass(frozen=True)
class Anomaly:
    """Something that must not be: its name, what it is, and the lines that show it."""

    name: str
    what: str
    witness: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Show it with its witness."""
        return "\n  ".join([f"{self.name}: {self.what}", *self.witness])


def anomaly(name: str, what: str, *witness: Operation | Fact | None) -> Anomaly:
    """Tell of an anomaly, with the lines that show it."""
    return Anomaly(name, what, tuple(str(one) for one in witness if one is not None))
