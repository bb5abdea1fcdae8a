"""The example notebook runs from top to bottom, and its page shows what it made.

The build of the site runs it too. Where that was after the last change of what the notebook uses,
as in `make test`, it is not run again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site_build"))

from notebook_page import page_of, run_notebook  # noqa: E402

NOTEBOOK = ROOT / "examples" / "first_study.ipynb"
USED = (
    "autotune",
    "workers",
    "dashboards",
    "search_spaces",
    "examples",
    "docs/site_build",
    "constraints.txt",
)
"""what the notebook's outputs come from"""


def executed() -> Any:
    """The notebook with its outputs: as the build of the site left it, unless something was changed
    since."""
    built = ROOT / "site" / "how-to" / NOTEBOOK.name
    files = [
        file for name in USED for file in (ROOT / name, *(ROOT / name).rglob("*")) if file.is_file()
    ]
    changed_s = max(file.stat().st_mtime for file in files if file.suffix != ".pyc")
    if built.exists() and built.stat().st_mtime > changed_s:
        return nbformat.read(built, as_version=4)
    return run_notebook(NOTEBOOK)


@pytest.mark.thorough
def test_the_notebook_runs_and_shows_a_card_figures_and_a_table() -> None:
    run = executed()
    shown = [
        output["data"]
        for cell in run.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "data" in output
    ]
    html = "".join(data.get("text/html", "") for data in shown)
    assert "autotune-result" in html
    assert html.count("<svg") >= 2
    assert 'class="dataframe"' in html
    page = page_of(run, source="examples/first_study.ipynb")
    assert page.startswith("# ")
    assert page.count("```python") == sum(cell.cell_type == "code" for cell in run.cells)
    assert "best so far: tp=" in page


def test_the_notebook_is_stored_without_outputs() -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    assert all(
        not cell.outputs and cell.execution_count is None
        for cell in stored.cells
        if cell.cell_type == "code"
    )
