"""Pictures for README and site: figures of a report or of a dry run, as SVG files that stand alone.

    autotune report laptop -o report.html                  autotune fit SPEC -o fit.html
    python docs/site_build/study_figures.py report.html docs/images

Takes the figures out of the page that the command wrote and gives each the style sheet of figures,
in light colors, so that any viewer of SVG shows it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from autotune.results.figure import picture_of

FIGURES = {
    "Best so far over trials": "study-trials",
    "Predicted against measured: speed": "study-predictions",
    "Memory over the step, every rank": "fit-memory",
}
"""Heading in the page, and the name of the file."""
_FIGURE = re.compile(
    r"<figcaption><h3>(?P<title>[^<]*)</h3>.*?</figcaption>(?P<svg><svg.*?</svg>)", re.DOTALL
)


def pictures(page: str) -> dict[str, str]:
    """The figures of a page by file name. Raises `ValueError` when the page has none of
    `FIGURES`."""
    found = {figure["title"]: figure["svg"] for figure in _FIGURE.finditer(page)}
    known = {title: name for title, name in FIGURES.items() if title in found}
    if not known:
        raise ValueError(
            f"the page must have one of the figures {', '.join(FIGURES)}, but has {', '.join(found) or 'none'}"
        )
    return {name: picture_of(found[title]) for title, name in known.items()}


def main(report: str, folder: str) -> None:
    """Writes the pictures of the report into the folder."""
    for name, text in pictures(Path(report).read_text(encoding="utf-8")).items():
        path = Path(folder) / f"{name}.svg"
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
