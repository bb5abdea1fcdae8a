"""Hooks of the site's build: reference pages are made from the code, the cost model predicts every
published run, the example notebook is run, formulas become MathML.

mkdocs calls `on_files` before it reads the pages, and `on_page_markdown` and `on_page_content` for
each page. Nothing is fetched from the network.
"""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
import yaml
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from notebook_page import page_of, run_notebook
from reference import pages

from tests.benchmarks import accuracy_page

NOTEBOOK = "examples/first_study.ipynb"

BESIDE = {
    "../../research/measurements.md": "measurements.md",
    "../tests/benchmarks/RESULTS.md": "results.md",
    "../tests/benchmarks/figures/search_regret.svg": "images/search-regret.svg",
    "../../docs/": "",
    "../docs/": "",
}
"""addresses in the results and their record, and what they are on the site, where both lie beside
the pages that they link to"""
NOT_SEARCHED = ("measurements.md", "predictions.md", "results.md", "style.md")
"""records and tables of figures, and a page for authors: a search would list them before the pages
that answer it"""
KEYWORDS: dict[str, list[str]] = yaml.safe_load(
    Path(__file__).with_name("keywords.yaml").read_text(encoding="utf-8")
)
"""by page, words that its search weighs as those of a title"""
_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the reference and of every prediction, the notebook, and the benchmarks'
    results with their figure."""
    for path, text in {
        **pages(),
        **accuracy_page.pages(accuracy_page.shipped_rows(accuracy_page.timed_files())),
    }.items():
        files.append(File.generated(config, path, content=text))
    root = Path(config.config_file_path).parent
    run = run_notebook(root / NOTEBOOK)
    files.append(
        File.generated(config, "how-to/notebook.md", content=page_of(run, source=NOTEBOOK))
    )
    files.append(
        File.generated(config, f"how-to/{Path(NOTEBOOK).name}", content=nbformat.writes(run))
    )
    benchmarks = root / "tests" / "benchmarks"
    for name, source in (
        ("results", benchmarks / "RESULTS.md"),
        ("measurements", root / "research" / "measurements.md"),
    ):
        text = source.read_text(encoding="utf-8")
        for there, here in BESIDE.items():
            text = text.replace(f"]({there}", f"]({here}")
        files.append(File.generated(config, f"{name}.md", content=text))
    regret = benchmarks / "figures" / "search_regret.svg"
    files.append(File.generated(config, "images/search-regret.svg", abs_src_path=str(regret)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Takes pages out of the search, and gives others words by which they are found."""
    if page.file.src_uri in NOT_SEARCHED:
        page.meta["search"] = {"exclude": True}
    page.meta["tags"] = KEYWORDS.get(page.file.src_uri, [])
    return markdown


def on_page_content(text: str, **_: Any) -> str:
    """Turns each formula into MathML, which browsers show without a script."""
    return _FORMULA.sub(_mathml, text)


def _mathml(found: re.Match[str]) -> str:
    return convert(html.unescape(found[3]), display="block" if found[2] == "[" else "inline")
