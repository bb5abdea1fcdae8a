"""Drawing: data in, one inline SVG out. No script, no network, no font of its own.

    axes.py          marks and lines over two linear axes     bars.py            stacked bars on one scale
    tiles.py         a grid of labeled cells                 lanes.py           spans of time on lanes
    parallel_axes.py lines across several axes                stacked_area.py    stacked areas
    canvas.py        what all of them share: the opening tag, round tick values

Coordinates are user units of a fixed `WIDTH`; the page scales them. Colors come from classes of
`dashboards/web/figures.css`, so that a dark page stays readable. Every mark has a `<title>`, which
browsers show when the pointer rests on it. All text is escaped.
"""
