"""Pictures of a real study for README and site: figures of a report, as SVG files that stand alone.

    autotune report laptop -o report.html
    python docs/site_build/study_figures.py report.html docs/images

Takes the figures out of the page that `autotune report` wrote and gives each the page's style, with the light palette written out, so
that any viewer of SVG shows it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

FIGURES = {
    "Throughput by trial": "study-trials",
    "Predicted against measured": "study-predictions",
}
"""Heading in the report, and the name of the file."""
_FIGURE = re.compile(r"<figure><h3>(?P<title>[^<]*)</h3>(?P<svg><svg.*?</svg>)", re.DOTALL)


def pictures(page: str) -> dict[str, str]:
    """The figures of a report by file name. Raises `ValueError` when the page lacks one of them."""
    found = {figure["title"]: figure["svg"] for figure in _FIGURE.finditer(page)}
    missing = [title for title in FIGURES if title not in found]
    if missing:
        raise ValueError(f"the report must have a figure called {missing[0]!r}, but has {', '.join(found) or 'none'}")
    style = _style(page)
    return {name: _alone(found[title], title, style) for title, name in FIGURES.items()}


def _style(page: str) -> str:
    """The rules of the page's style sheet that concern figures, with the light palette's colours in place of its names."""
    sheet = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    text = sheet[1] if sheet else ""
    palette = dict(re.findall(r"--(\w+):([^;}]+)", text.split("@media", 1)[0]))
    rules = re.findall(
        r"((?:svg text|\.(?:tick|row|name|grid|axis|dot|best|base|fail|line|dashed|limit|mark)\b)[^{}]*\{[^}]*\})", text
    )
    return re.sub(r"var\(--(\w+)\)", lambda name: palette.get(name[1], "#000"), "\n".join(rules))


def _alone(svg: str, title: str, style: str) -> str:
    width, height = (float(n) for n in re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())  # type: ignore[union-attr]
    inner = svg[svg.index(">") + 1 : svg.rindex("</svg>")]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -30 {width:g} {height + 30:g}" width="{width:g}" height="{height + 30:g}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img" aria-label="{title}">\n<style>\n{style}\n</style>\n'
        f'<rect y="-30" width="100%" height="100%" fill="#fff"/>\n<text x="16" y="-10" font-size="15" font-weight="600">{title}</text>\n{inner}\n</svg>\n'
    )


def main(report: str, folder: str) -> None:
    """Writes the pictures of the report into the folder."""
    for name, text in pictures(Path(report).read_text(encoding="utf-8")).items():
        path = Path(folder) / f"{name}.svg"
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
