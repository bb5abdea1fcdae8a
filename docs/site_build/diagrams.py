"""The drawn pictures of the concept pages: boxes and arrows, written as SVG files.

    python docs/site_build/diagrams.py docs/images

Coordinates are pixels. A box is (x, y, width, height, title, lines below it); an arrow joins
points, with words beside its middle.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Box:
    """A rounded box with a title and smaller lines under it."""

    x: float
    y: float
    width: float
    height: float
    title: str
    lines: Sequence[str] = ()
    fill: str = "#eef3fc"

    def svg(self) -> str:
        """The box as SVG."""
        middle = self.x + self.width / 2
        top = self.y + self.height / 2 - 8 * len(self.lines) + 5
        words = [f'<text x="{middle}" y="{top}" class="title">{escape(self.title)}</text>']
        words += [
            f'<text x="{middle}" y="{top + 17 * (i + 1)}" class="line">{escape(line)}</text>'
            for i, line in enumerate(self.lines)
        ]
        return (
            f'<rect x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" rx="7" fill="{self.fill}" class="box"/>'
            + "".join(words)
        )


@dataclass(frozen=True, slots=True)
class Arrow:
    """A line of straight pieces with a head at its end, and words at (label_x, label_y)."""

    points: Sequence[tuple[float, float]]
    label: str = ""
    at: tuple[float, float] = (0, 0)
    anchor: str = "middle"

    def svg(self) -> str:
        """The arrow as SVG."""
        path = " ".join(f"{x},{y}" for x, y in self.points)
        words = (
            f'<text x="{self.at[0]}" y="{self.at[1]}" class="label" text-anchor="{self.anchor}">{escape(self.label)}</text>'
            if self.label
            else ""
        )
        return f'<polyline points="{path}" class="arrow" marker-end="url(#head)"/>{words}'


WHITE, GREEN, RED, YELLOW = "#ffffff", "#e7f5ec", "#fbeaec", "#fdf6e3"

ARCHITECTURE = (
    900,
    570,
    (
        Box(20, 20, 210, 60, "you", ("commands, Python, web page",), WHITE),
        Box(270, 20, 210, 60, "service", ("REST, tokens, supervisor",)),
        Box(590, 20, 290, 60, "results database", ("SQLite file, or PostgreSQL by URL",), YELLOW),
        Box(20, 130, 860, 100, "", ()),
        Box(40, 145, 250, 70, "loop", ("ask, run, tell, store", "holds the study's lease"), WHITE),
        Box(
            325,
            145,
            250,
            70,
            "controller",
            ("pure: events in, commands out", "retries, budgets, finals"),
            WHITE,
        ),
        Box(610, 145, 250, 70, "searcher", ("which config next, and why", "when to stop"), WHITE),
        Box(140, 280, 220, 60, "space", ("rules; every valid config",), GREEN),
        Box(400, 280, 220, 60, "cost model", ("time and memory of each",), GREEN),
        Box(660, 280, 220, 60, "reward", ("speed and stability",), GREEN),
        Box(20, 385, 280, 165, "", ()),
        Box(40, 400, 240, 60, "local runner", ("processes on this machine",), WHITE),
        Box(40, 475, 240, 60, "Ray runner", ("placement groups on a cluster",), WHITE),
        Box(
            400, 385, 220, 75, "ranks", ("one warm process each;", "run the native trainer"), WHITE
        ),
        Box(
            400,
            475,
            220,
            75,
            "keepers",
            ("one on each node: start, watch", "and end a program"),
            WHITE,
        ),
        Box(
            680,
            475,
            200,
            75,
            "your program",
            ("every other trainer's launch:", "torchrun, accelerate, ..."),
            WHITE,
        ),
    ),
    (
        Arrow(((230, 50), (270, 50)), "submit", (250, 12)),
        Arrow(((480, 50), (590, 50)), "keeps", (535, 42)),
        Arrow(((100, 80), (100, 145)), "tune", (110, 112), "start"),
        Arrow(((330, 80), (240, 145)), "starts", (305, 112), "start"),
        Arrow(((270, 145), (680, 80)), "every result first", (520, 122), "start"),
        Arrow(((290, 180), (325, 180))),
        Arrow(((575, 180), (610, 180))),
        Arrow(((250, 230), (250, 280))),
        Arrow(((510, 230), (510, 280))),
        Arrow(((770, 230), (770, 280))),
        Arrow(((70, 230), (70, 385)), "start, poll", (80, 362), "start"),
        Arrow(((300, 423), (400, 423)), "native", (350, 415)),
        Arrow(((300, 513), (400, 513)), "all others", (350, 505)),
        Arrow(((620, 513), (680, 513))),
    ),
)

TRIAL = (
    900,
    330,
    (
        Box(20, 130, 130, 60, "PENDING", ("asked",), WHITE),
        Box(230, 130, 130, 60, "RUNNING", ("an attempt",)),
        Box(640, 15, 240, 56, "COMPLETED", ("measured precisely enough",), GREEN),
        Box(640, 85, 240, 56, "STOPPED", ("measured; cannot win",), GREEN),
        Box(640, 155, 240, 56, "FAILED", ("out of memory, diverged, hang, ...",), RED),
        Box(640, 225, 240, 56, "CANCELLED", ("no result; may be retried",), WHITE),
        Box(20, 250, 240, 56, "INFEASIBLE", ("too few ranks after a restart",), RED),
    ),
    (
        Arrow(((150, 160), (230, 160)), "started", (190, 152)),
        Arrow(((360, 150), (420, 43), (640, 43)), "precise enough, or step limit", (530, 36)),
        Arrow(((360, 157), (430, 113), (640, 113)), "slower than the best so far", (535, 106)),
        Arrow(((360, 166), (430, 183), (640, 183)), "with the evidence kept", (535, 176)),
        Arrow(((350, 190), (420, 253), (640, 253)), "cancel, or the study ends", (530, 246)),
        Arrow(((85, 190), (85, 250))),
        Arrow(
            ((270, 130), (270, 90), (320, 90), (320, 130)),
            "worker lost: up to two retries",
            (295, 82),
        ),
    ),
)

FLOW = (
    1065,
    300,
    (
        Box(20, 20, 130, 70, "what you have", ("script: init", "config file: import"), WHITE),
        Box(185, 20, 150, 70, "study spec", ("model, cluster,", "workload, space"), WHITE),
        Box(370, 20, 150, 70, "space", ("every valid config",), GREEN),
        Box(555, 20, 150, 70, "estimate", ("time and memory", "of each, by parts"), GREEN),
        Box(740, 20, 150, 70, "searcher", ("what to try next",), GREEN),
        Box(740, 160, 150, 70, "trial", ("a short real training",)),
        Box(555, 160, 150, 70, "measurement", ("steps, memory,", "losses, norms"), YELLOW),
        Box(370, 160, 150, 70, "reward", ("against the baseline",), GREEN),
        Box(185, 160, 150, 70, "best config", ("a claim with finals",), WHITE),
        Box(910, 160, 140, 70, "launch", ("of your trainer",), WHITE),
    ),
    (
        Arrow(((150, 55), (185, 55))),
        Arrow(((335, 55), (370, 55))),
        Arrow(((520, 55), (555, 55))),
        Arrow(((705, 55), (740, 55))),
        Arrow(((815, 90), (815, 160)), "ask", (825, 128), "start"),
        Arrow(((740, 195), (705, 195))),
        Arrow(((555, 195), (520, 195))),
        Arrow(((370, 195), (335, 195))),
        Arrow(
            ((445, 160), (445, 125), (765, 125), (765, 90)),
            "tell: measurement or failure",
            (605, 118),
        ),
        Arrow(((260, 230), (260, 270), (980, 270), (980, 230)), "export", (620, 263)),
    ),
)

STYLE = """text{font-family:system-ui,sans-serif;fill:#1c2430}.title,.line{text-anchor:middle}.title{font-size:14px;font-weight:600}.line{font-size:12px;fill:#44505f}
.label{font-size:12px;fill:#44505f}.box{stroke:#9fb0c8;stroke-width:1.2}.arrow{fill:none;stroke:#5b6675;stroke-width:1.5}"""
HEAD = '<marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto"><path d="M0,0 L9,4 L0,8 z" fill="#5b6675"/></marker>'


def picture(
    width: float, height: float, boxes: Sequence[Box], arrows: Sequence[Arrow], title: str
) -> str:
    """One picture as the text of an SVG file."""
    body = "\n".join([*(box.svg() for box in boxes), *(arrow.svg() for arrow in arrows)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">\n<style>{STYLE}</style>\n<defs>{HEAD}</defs>\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


PICTURES = {
    "architecture": (ARCHITECTURE, "The components and their calls"),
    "trial-life": (TRIAL, "The life of a trial"),
    "data-flow": (FLOW, "From the spec to the launch"),
}


def main(folder: str) -> None:
    """Writes all pictures into the folder."""
    for name, ((width, height, boxes, arrows), title) in PICTURES.items():
        (Path(folder) / f"{name}.svg").write_text(
            picture(width, height, boxes, arrows, title), encoding="utf-8"
        )


if __name__ == "__main__":
    main(sys.argv[1])
