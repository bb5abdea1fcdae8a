"""Hooks of the site's build: reference pages are made from the code, formulas become MathML.

mkdocs calls `on_files` before it reads the pages and `on_page_content` for each page. Nothing is fetched from the network.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))

from reference import pages

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the reference, and the benchmarks' results with their figure."""
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    benchmarks = Path(config.config_file_path).parent / "tests" / "benchmarks"
    results = (benchmarks / "RESULTS.md").read_text(encoding="utf-8")
    results = results.replace("figures/search_regret.svg", "images/search-regret.svg")
    files.append(File.generated(config, "results.md", content=results))
    regret = benchmarks / "figures" / "search_regret.svg"
    files.append(File.generated(config, "images/search-regret.svg", abs_src_path=str(regret)))
    return files


def on_page_content(text: str, **_: Any) -> str:
    """Turns each formula into MathML, which browsers show without a script."""
    return _FORMULA.sub(_mathml, text)


def _mathml(found: re.Match[str]) -> str:
    return convert(html.unescape(found[3]), display="block" if found[2] == "[" else "inline")
