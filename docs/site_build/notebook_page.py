"""A notebook as a page of the site: it is run, and its outputs are those of this release.

Markdown cells stay as they are, code cells become fenced blocks, and an output is shown as HTML
where it has some, else as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

LONGEST_S = 120
"""a cell that takes longer fails"""


def run_notebook(path: Path) -> Any:
    """The notebook with the outputs of its cells, run in an empty folder. Raises nbclient's
    `CellExecutionError` when a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=LONGEST_S,
            startup_timeout=LONGEST_S,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            extra_arguments=["--HistoryManager.enabled=False", "--IPKernelApp.log_level=ERROR"],
        )
        client.execute()
    return notebook


def page_of(notebook: Any, *, source: str) -> str:
    """The page, as Markdown. `source`: where the notebook lies in the repository; the one that was
    run lies beside the page."""
    title, *cells = notebook.cells
    with_outputs = f"[Download it with its outputs]({Path(source).name})"
    parts = [
        title.source,
        f"*This page is the notebook `{source}`, run when the site was built. {with_outputs}.*",
    ]
    for cell in cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        printed = "".join(
            output["text"] for output in cell.outputs if output["output_type"] == "stream"
        )
        parts += [f"```text\n{printed.rstrip()}\n```"] if printed else []
        parts += [_shown(output["data"]) for output in cell.outputs if "data" in output]
    return "\n\n".join(parts) + "\n"


def _shown(found: Mapping[str, str]) -> str:
    """A cell's value, by the richest of its forms. Blank lines would end a block of HTML in
    Markdown."""
    for kind in ("text/html", "image/svg+xml"):
        if kind in found:
            lines = (line.strip() for line in found[kind].splitlines())
            return f'<div class="notebook-output">{" ".join(line for line in lines if line)}</div>'
    return f"```text\n{found['text/plain']}\n```"
