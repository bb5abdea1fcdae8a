"""The frame of an HTML page, and HTML tables, in the style sheets of the web pages
(`dashboards/web`), light and dark.

There are no external resources and no scripts, which a Content-Security-Policy enforces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from autotune import assets


def whole_page(title: str, body: Iterable[str]) -> str:
    """Return a whole page; `body`: its parts as HTML."""
    styles = assets.web_file("figures.css") + assets.web_file("style.css")
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{styles}</style></head>"
        '<body class="autotune"><main>\n'
        + "\n".join(part for part in body if part)
        + "\n</main></body></html>\n"
    )


def html_table(
    heads: Sequence[tuple[str, bool]], rows: Iterable[tuple[str, Sequence[str]]], *, label: str = ""
) -> str:
    """Return a scrollable table. `heads`: (name, whether the column has numbers). `rows`: (class,
    cells as HTML). `label`: name for screen readers, not needed below a heading."""
    classes = [" class=n" if is_number else "" for _, is_number in heads]
    columns = zip(heads, classes, strict=True)
    top = "".join(
        f"<th{css}>{escape(name)}</th>" if name else "<td></td>" for (name, _), css in columns
    )
    lines = []
    for kind, cells in rows:
        inner = "".join(f"<td{css}>{cell}</td>" for css, cell in zip(classes, cells, strict=True))
        lines.append(f"<tr{f' class={kind}' if kind else ''}>{inner}</tr>")
    region = f' role="region" aria-label="{escape(label)}"' if label else ""
    return f'<div class="scroll" tabindex="0"{region}><table><thead><tr>{top}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
