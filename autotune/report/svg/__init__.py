"""Drawing: data in, one inline SVG out, without scripts, external resources or fonts.

    axes.py           marks and lines over two linear axes   bars.py          stacked bars on one scale
    tiles.py          a grid of labeled cells                lanes.py         time spans on lanes
    parallel_axes.py  lines across several axes              stacked_area.py  stacked areas
    canvas.py         common parts: opening tag, text, round tick values

Coordinates are user units of a fixed `WIDTH`, which the page scales. Colors are classes of
`dashboards/web/figures.css`, so that figures adapt to dark pages. Every mark has a `<title>`, which
browsers show as a tooltip. All text is escaped.
"""
