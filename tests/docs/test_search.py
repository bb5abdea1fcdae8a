"""The site's search finds the page that answers a question among its first three pages, with the pages that its build makes from the code.

Sections are indexed as mkdocs does it and asked as the theme's search asks: lunr, with titles far ahead of texts and the last word also as
a beginning. Of a page its best section counts; those that have all words, and the beginnings of pages, count more.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.docs.pages import ROOT

lunr = pytest.importorskip("lunr", reason="lunr is not installed; install the dev extra")
griffe = pytest.importorskip("griffe", reason="griffe is not installed; install the dev extra")
pytest.importorskip("mkdocs", reason="mkdocs is not installed; install the dev extra")

QUESTIONS = {
    "micro-batch recompute accelerate script": "how-to/accelerate-script.md",
    "gradient checkpointing my accelerate script": "how-to/accelerate-script.md",
    "tune on slurm": "how-to/slurm.md",
    "sbatch": "how-to/slurm.md",
    "multi-node": "how-to/two-nodes.md",
    "two nodes without slurm": "how-to/two-nodes.md",
    "cancel a study": "how-to/resume.md",
    "two nodes": "how-to/two-nodes.md",
    "ray start": "how-to/two-nodes.md",
    "what does a study cost": "how-to/cost.md",
    "GPU-hours": "how-to/cost.md",
    "how many minutes does tuning take": "how-to/cost.md",
    "optuna sampler object": "how-to/optuna.md",
    "own sampler": "how-to/optuna.md",
    "tied": "concepts/measurement.md",
    "own knob": "how-to/knobs.md",
    "token": "operations.md",
    "node dies": "how-to/ray.md",
    "stability": "concepts/reward.md",
    "install": "how-to/install.md",
    "will my model fit": "how-to/fit.md",
    "plan without hardware": "how-to/plan.md",
    "review my launch script": "how-to/review.md",
    "resume after a crash": "how-to/resume.md",
    "backup": "operations.md",
    "prometheus": "how-to/monitor.md",
    "kubernetes": "how-to/kubernetes.md",
    "megatron": "trainers/megatron.md",
    "deepspeed": "trainers/deepspeed.md",
    "release": "releasing.md",
    "agent mcp": "how-to/agents.md",
    "calibrate": "how-to/calibrate.md",
    "too noisy": "concepts/measurement.md",
    "web pages": "how-to/web.md",
    "out of memory": "how-to/fit.md",
    "confidence interval of the speedup": "mathematics/search.md",
    "how is the CI computed": "mathematics/search.md",
    "how is the speedup's CI computed": "mathematics/search.md",
    "script_args": "how-to/accelerate-script.md",
    "accelerate script batch": "how-to/accelerate-script.md",
}


def sections() -> list[dict[str, str]]:
    """One document per heading of each page that is searched: its address, title and text."""
    found = []
    for name, text in searched_pages():
        text = re.sub(r"<!--.*?-->|^```\w* ?.*$", "", text, flags=re.MULTILINE)
        for number, part in enumerate(re.split(r"^#{1,3} ", text, flags=re.MULTILINE)[1:]):
            title, _, body = part.partition("\n")
            found.append({"location": f"{name}#{number}", "title": title, "text": body})
    return found


def searched_pages() -> Iterator[tuple[str, str]]:
    """Every page of the site by its path, but those that its build takes out of the search."""
    sys.path.insert(0, str(ROOT / "docs" / "site_build"))
    try:
        from hooks import NOT_SEARCHED, NOTEBOOK
        from reference import pages
    finally:
        sys.path.pop(0)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if (name := path.relative_to(ROOT / "docs").as_posix()) not in NOT_SEARCHED:
            yield name, path.read_text(encoding="utf-8")
    for name, text in pages().items():
        yield (
            name,
            re.sub(r"^::: (\S+)$", lambda found: _documented(found[1]), text, flags=re.MULTILINE),
        )
    cells = json.loads((ROOT / NOTEBOOK).read_text(encoding="utf-8"))["cells"]
    yield (
        "how-to/notebook.md",
        "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"),
    )


@cache
def _loaded(package: str) -> Any:
    return griffe.load(package)


def _documented(name: str) -> str:
    """The sections that the reference makes of a Python object: one for itself and one for each public member."""
    package, _, inner = name.partition(".")
    thing = _loaded(package)[inner]
    parts = [(thing.name, thing)] + [
        (n, m) for n, m in thing.members.items() if not n.startswith("_") and not m.is_alias
    ]
    return "\n\n".join(f"### {n}\n{m.docstring.value if m.docstring else ''}" for n, m in parts)


@pytest.fixture(scope="module")
def index():
    fields = [{"field_name": "title", "boost": 1000}, "text"]
    return lunr.lunr(ref="location", fields=fields, documents=sections())


def test_there_are_thirty_questions() -> None:
    assert len(QUESTIONS) >= 30


@pytest.mark.thorough  # the index takes as long to make as the site
@pytest.mark.parametrize(("question", "page"), QUESTIONS.items())
def test_the_search_answers_among_its_first_three_pages(index, question: str, page: str) -> None:
    words = re.sub(r"[-:^~+']", " ", question).lower().split()
    *_, last = words
    hits = index.search(f"{' '.join(words)} {last}*")
    best: dict[str, float] = {}
    for hit in hits:
        name, _, number = hit["ref"].partition("#")
        found = set(hit["match_data"].metadata)
        is_whole = len(found) >= len(set(words))
        best[name] = max(best.get(name, 0.0), hit["score"] * (1 + (number == "0") + is_whole))
    assert page in sorted(best, key=lambda name: -best[name])[:3]
