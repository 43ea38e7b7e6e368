"""Draw the pictures of the documentation: python jobs/draw_pictures.py [FOLDER]

Each is written down here as boxes and arrows, and drawn as plain SVG, which a code host and the
site show without any script. A test compares the stored files with what is drawn.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "pictures"
LINE = 18
FILLS = {"plain": "#eef1fb", "good": "#e6f4ea", "bad": "#fdecea", "note": "#fff8e1", "none": "none"}


@dataclass(frozen=True)
class Box:
    """A rectangle with centred lines of text; ``x`` and ``y`` are its middle."""

    x: float
    y: float
    text: str
    width: float = 130
    fill: str = "plain"
    dashed: bool = False
    top: bool = False
    high: float = 0

    @property
    def height(self) -> float:
        return self.high or LINE * len(self.text.split("\n")) + 18

    def edge(self, x: float, y: float) -> tuple[float, float]:
        """Find where a line from the middle to a point leaves the rectangle."""
        dx, dy = x - self.x, y - self.y
        scale = min(
            (self.width / 2) / abs(dx) if dx else 9e9, (self.height / 2) / abs(dy) if dy else 9e9
        )
        return self.x + dx * scale, self.y + dy * scale

    def svg(self) -> str:
        left, up = self.x - self.width / 2, self.y - self.height / 2
        dash = ' stroke-dasharray="5 4"' if self.dashed else ""
        lines = self.text.split("\n")
        first = up + LINE if self.top else self.y - LINE * (len(lines) - 1) / 2
        return (
            f'<rect x="{left:g}" y="{up:g}" width="{self.width:g}" height="{self.height:g}" rx="6" '
            f'fill="{FILLS[self.fill]}" stroke="#3949ab"{dash}/>\n'
            + "".join(_text(self.x, first + LINE * n, line) for n, line in enumerate(lines))
        )


@dataclass(frozen=True)
class Arrow:
    """An arrow from box to box, with a label beside its middle; ``bend`` lifts its middle."""

    start: str
    end: str
    label: str = ""
    bend: float = 0
    dx: float = 0
    dy: float = -6
    dashed: bool = False

    def svg(self, boxes: dict[str, Box]) -> str:
        one, other = boxes[self.start], boxes[self.end]
        middle = ((one.x + other.x) / 2, (one.y + other.y) / 2)
        length = ((other.x - one.x) ** 2 + (other.y - one.y) ** 2) ** 0.5
        across = ((other.y - one.y) / length, -(other.x - one.x) / length)
        via = (middle[0] + across[0] * 2 * self.bend, middle[1] + across[1] * 2 * self.bend)
        x1, y1 = one.edge(*via)
        x2, y2 = other.edge(*via)
        dash = ' stroke-dasharray="5 4"' if self.dashed else ""
        at = (middle[0] + across[0] * self.bend, middle[1] + across[1] * self.bend)
        return (
            f'<path d="M{x1:.1f} {y1:.1f} Q{via[0]:.1f} {via[1]:.1f} {x2:.1f} {y2:.1f}" '
            f'fill="none" stroke="#444" marker-end="url(#head)"{dash}/>\n'
            + "".join(
                _text(at[0] + self.dx, at[1] + self.dy + 15 * n, line, 12)
                for n, line in enumerate(self.label.split("\n") if self.label else [])
            )
        )


@dataclass(frozen=True)
class Picture:
    """Boxes by name, arrows between them, and the size of the whole."""

    title: str
    width: int
    height: int
    boxes: dict[str, Box]
    arrows: list[Arrow] = field(default_factory=list)

    def svg(self) -> str:
        parts = [box.svg() for box in self.boxes.values()]
        parts += [arrow.svg(self.boxes) for arrow in self.arrows]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" '
            'font-family="Helvetica, Arial, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
            'markerHeight="8" orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="#444"/>'
            "</marker></defs>\n"
            f'<rect width="{self.width}" height="{self.height}" fill="#ffffff" rx="8"/>\n'
            + "".join(parts)
            + "</svg>\n"
        )


def _text(x: float, y: float, line: str, size: int = 14) -> str:
    bold = ' font-weight="bold"' if line.startswith("*") else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="middle" '
        f'dominant-baseline="middle" fill="#1b1b1b"{bold}>{escape(line.lstrip("*"))}</text>\n'
    )


PICTURES = {
    "model": Picture(
        "The journal names positions of payload and the claims on them", 760, 380,
        {
            "journal": Box(220, 190, "*journal: one Delta table", 400, "none",
                           dashed=True, top=True, high=340),
            "payload": Box(620, 190, "*payload of the queue orders", 240, "none",
                           dashed=True, top=True, high=340),
            "posted": Box(220, 95, "position (posted)\nlane 0 of orders: send s1, rows 0 to 99",
                          370),
            "claimed": Box(220, 190, "claim 7 (claimed)\nrows 0 to 49 are in flight for attempt a1",
                           370, "note"),
            "decided": Box(220, 290, "decision of attempt a1 (committed)\nclaim 7 is accepted;\n"
                           "its own sends are posted", 370, "good"),
            "s1": Box(620, 95, "send s1\nrows 0 to 99", 190),
            "s2": Box(620, 225, "send s2: staged,\nnamed by no entry,\nnot visible", 190,
                      dashed=True),
        },
        [
            Arrow("posted", "s1", "names", dx=42, dy=-10),
            Arrow("claimed", "posted", "", dy=0),
            Arrow("decided", "claimed", "", dy=0),
        ],
    ),
    "message": Picture(
        "States of a message", 860, 450,
        {
            "staged": Box(90, 60, "staged", dashed=True),
            "available": Box(330, 60, "*available"),
            "flight": Box(640, 60, "*in flight"),
            "delayed": Box(330, 200, "delayed", fill="note"),
            "bound": Box(640, 200, "bound", fill="note"),
            "gone": Box(90, 380, "expired, duplicate,\npurged, dropped", 150, "bad"),
            "dead": Box(440, 380, "rejected, dead-lettered\n(in the dead-letter queue)", 210,
                        "bad"),
            "accepted": Box(710, 380, "accepted,\nmoved", 130, "good"),
        },
        [
            Arrow("staged", "available", "commit"),
            Arrow("available", "flight", "receive", bend=26, dy=-14),
            Arrow("flight", "available", "release, rollback, end of the lease", bend=26, dy=18),
            Arrow("delayed", "available", "time", dx=-22, dy=0),
            Arrow("flight", "delayed", "failure, with back-off", dx=75, dy=14),
            Arrow("flight", "bound", "prepare", dx=30, dy=0),
            Arrow("available", "gone", "expiry, duplicate\ndetection, purge, drop", dx=-75, dy=-20),
            Arrow("available", "dead", "deliveries used up", bend=70, dx=-78, dy=34),
            Arrow("flight", "dead", "reject", dx=-22, dy=22),
            Arrow("bound", "accepted", "commit", dx=-30, dy=0),
            Arrow("flight", "accepted", "accept,\nmove,\ncommit", bend=80, dx=38, dy=-10),
        ],
    ),
    "transaction": Picture(
        "States of an attempt of a transaction", 820, 320,
        {
            "new": Box(90, 160, "not started", dashed=True),
            "active": Box(300, 160, "*active", 110),
            "prepared": Box(500, 160, "prepared", 110, "note"),
            "committed": Box(720, 60, "committed", 140, "good"),
            "rolled": Box(720, 260, "rolled back", 140, "bad"),
        },
        [
            Arrow("new", "active", "first call"),
            Arrow("active", "prepared", "prepare"),
            Arrow("active", "committed", "commit, end of the block", bend=45, dx=-75, dy=-12),
            Arrow("active", "rolled", "rollback, exception,\nanother client after the lease",
                  bend=-45, dx=-90, dy=12),
            Arrow("prepared", "committed", "commit", dx=-24, dy=-8),
            Arrow("prepared", "rolled", "rollback", dx=30, dy=-8),
        ],
    ),
    "rooms": Picture(
        "The rooms of the package: imports go down only", 820, 500,
        {
            room: Box(410, 32 + 61 * n, f"*{room}\n{place}", 760, fill)
            for n, (room, place, fill) in enumerate([
                ("cli/ · protocols/ · testing · plots",
                 "the shell; five specifications in their own words; stores in memory", "plain"),
                ("manager · queue · batch · transaction · table · exchange · drain · heartbeat",
                 "what users hold: one public class in the file of its name", "good"),
                ("admin/ · reports/",
                 "create, alter, drop, recover, maintain | history, metrics, SQL views", "plain"),
                ("transactions/",
                 "an attempt: its work, decision, participants, table changes", "plain"),
                ("messages/", "send, claim, settle, move, select: what is planned on a queue",
                 "plain"),
                ("client/", "one driver's view of a store: what it has read, and how it appends",
                 "plain"),
                ("storage/",
                 "journal, payload, the users' tables: the only room that knows Delta", "plain"),
                ("core/ · errors · types · results",
                 "entries, state, plans, settings: no Spark, no clock, no I/O", "note"),
            ])
        },
    ),
    "attempt": Picture(
        "What an attempt writes, and where", 820, 560,
        {
            "user": Box(80, 40, "*user", 110),
            "attempt": Box(300, 40, "*attempt", 130),
            "payload": Box(500, 40, "*payload", 130),
            "journal": Box(710, 40, "*journal (Delta)", 150),
            "u1": Box(80, 120, "receive", 110), "j1": Box(710, 120, "one append: claims", 190),
            "u2": Box(80, 200, "send,\ntable().append", 130),
            "p2": Box(500, 200, "rows are staged,\nnamed by no entry", 170),
            "u3": Box(80, 285, "accept, reject,\nmove", 130),
            "a3": Box(300, 285, "is noted,\nnot yet done", 150),
            "u4": Box(80, 385, "commit", 110),
            "j4": Box(690, 385, "one append: positions,\nsettlements, table\nchanges, the decision",
                      230, "good"),
            "note": Box(410, 455, "from here on all of it has happened", 740, "note"),
            "u5": Box(80, 520, "receipt", 110),
            "t5": Box(610, 520, "table changes are applied, in commit order, once", 390),
        },
        [
            Arrow("u1", "j1", "claims messages for the attempt"),
            Arrow("u2", "p2"), Arrow("u3", "a3"), Arrow("u4", "j4", "one Delta commit"),
            Arrow("t5", "u5"),
        ],
    ),
}  # fmt: skip


def main() -> int:
    folder = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    for name, picture in PICTURES.items():
        (folder / f"{name}.svg").write_text(picture.svg(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
