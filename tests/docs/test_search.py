"""The site's search finds the page that answers a question among its first three pages, with the
pages that its build makes from the code.

Sections are indexed as mkdocs does it and asked as the theme's search asks: lunr, with titles and
keywords far ahead of texts and the last word also as a beginning. All sections of a page have its
keywords. Of a page its best section counts; those that have all words, and the beginnings of pages,
count more.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT

lunr = pytest.importorskip("lunr", reason="lunr is not installed; install the dev extra")
griffe = pytest.importorskip("griffe", reason="griffe is not installed; install the dev extra")
pytest.importorskip("mkdocs", reason="mkdocs is not installed; install the dev extra")

PLUGINS = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["plugins"]
QUESTIONS = {
    "micro-batch recompute accelerate script": "how-to/accelerate-script.md",
    "gradient checkpointing my accelerate script": "how-to/accelerate-script.md",
    "tune on slurm": "how-to/slurm.md",
    "sbatch": "how-to/slurm.md",
    "multi-node": "how-to/two-nodes.md",
    "two nodes without slurm": "how-to/two-nodes.md",
    "cancel a study": "how-to/resume.md",
    "how do i stop a running study": "how-to/resume.md",
    "change number of trials": "how-to/cost.md",
    "what is a final run": "concepts/measurement.md",
    "study on shared noisy cluster": "concepts/measurement.md",
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
    "windows": "how-to/install.md",
    "macos": "how-to/install.md",
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
    "run on slurm": "how-to/slurm.md",
    "how much GPU memory does my model need": "how-to/fit.md",
    "my loss is nan": "concepts/reward.md",
    "resume a study": "how-to/resume.md",
    "tune on spot nodes": "how-to/ray.md",
    "change optimizer": "how-to/knobs.md",
    "multi node torchrun": "how-to/two-nodes.md",
    "cancel": "how-to/resume.md",
    "compare two clusters": "how-to/clusters.md",
    "DeepSpeed zero stage": "trainers/deepspeed.md",
    "out of memory what now": "how-to/fit.md",
    "add a knob": "how-to/knobs.md",
    "price": "how-to/plan.md",
    "privacy offline": "operations.md",
    "does it send data": "operations.md",
    "password": "operations.md",
    "upgrade": "operations.md",
    "uninstall": "how-to/install.md",
    "run on kubernetes": "how-to/kubernetes.md",
    "report a bug": "how-to/install.md",
    "which python version": "releasing.md",
    "docker": "how-to/deploy.md",
    "container image": "how-to/deploy.md",
    "train my own script": "how-to/your-program.md",
    "how do I use my own model": "how-to/your-module.md",
    "hugging face trainer": "trainers/hf_trainer.md",
    "pytorch lightning": "trainers/lightning.md",
    "fsdp": "how-to/knobs.md",
    "why is my training slow": "how-to/my-run-is-slow.md",
    "slow rank": "how-to/my-run-is-slow.md",
    "export the best config": "how-to/launch.md",
    "how long does it take": "how-to/cost.md",
    "limit the time": "how-to/tune.md",
    "cpu only": "how-to/plan.md",
    "which gpu should I buy": "how-to/clusters.md",
    "amd gpu": "how-to/clusters.md",
    "lora": "how-to/knobs.md",
    "grpo": "how-to/post-training.md",
    "rlhf": "how-to/post-training.md",
    "activation checkpointing": "how-to/knobs.md",
    "wandb": "questions.md",
    "share results with my team": "how-to/team.md",
    "postgres database": "operations.md",
    "delete a study": "reference/commands.md",
    "jupyter notebook": "how-to/notebook.md",
    "rest api": "reference/rest.md",
    "python api": "how-to/python.md",
    "environment variables": "operations.md",
    "where are results stored": "how-to/install.md",
    "exit codes": "reference/commands.md",
    "is the speedup real": "concepts/measurement.md",
    "search space": "how-to/space.md",
    "https proxy": "operations.md",
    "fp8 stable": "concepts/reward.md",
    "hang": "concepts/measurement.md",
    "timeout": "concepts/measurement.md",
    "getting started": "tutorial.md",
    "no module named torch": "how-to/install.md",
    "does my data leave the machine": "operations.md",
    "tokens and passwords": "operations.md",
    "grafana": "how-to/monitor.md",
    "QLoRA": "how-to/knobs.md",
    "abort": "how-to/resume.md",
    "megatron tensor parallel": "trainers/megatron.md",
    "batch size too large": "how-to/fit.md",
    "quickstart": "tutorial.md",
    "why is the winner tied": "concepts/measurement.md",
    "compare h100 and b200": "how-to/plan.md",
    "use my conda environment": "how-to/install.md",
    "enqueue my own config": "how-to/space.md",
    "run trials in parallel": "how-to/tune.md",
    "warm start": "how-to/tune.md",
    "what is MFU": "concepts/measurement.md",
    "skill for agents": "how-to/agents.md",
}


def sections() -> list[dict[str, str]]:
    """One document per heading of each page that is searched: its address, title, text and
    keywords."""
    found = []
    keywords = built("hooks").KEYWORDS
    for name, text in searched_pages():
        text = re.sub(r"<!--.*?-->|^```\w* ?.*$", "", text, flags=re.MULTILINE)
        for number, part in enumerate(re.split(r"^#{1,3} ", text, flags=re.MULTILINE)[1:]):
            title, _, body = part.partition("\n")
            tags = " ".join(keywords.get(name, ()))
            found.append(
                {"location": f"{name}#{number}", "title": title, "text": body, "tags": tags}
            )
    return found


def searched_pages() -> Iterator[tuple[str, str]]:
    """Every page of the site by its path, but those that its build takes out of the search."""
    hooks = built("hooks")
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if (name := path.relative_to(ROOT / "docs").as_posix()) not in hooks.NOT_SEARCHED:
            yield name, path.read_text(encoding="utf-8")
    for name, text in built("reference").pages().items():
        yield (
            name,
            re.sub(r"^::: (\S+)$", lambda found: _documented(found[1]), text, flags=re.MULTILINE),
        )
    cells = json.loads((ROOT / hooks.NOTEBOOK).read_text(encoding="utf-8"))["cells"]
    yield (
        "how-to/notebook.md",
        "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"),
    )


def built(name: str) -> Any:
    """A module of the site's build."""
    sys.path.insert(0, str(ROOT / "docs" / "site_build"))
    try:
        return import_module(name)
    finally:
        sys.path.pop(0)


@cache
def _loaded(package: str) -> Any:
    return griffe.load(package)


def _documented(name: str) -> str:
    """The sections that the reference makes of a Python object: one for itself and one for each
    public member."""
    package, _, inner = name.partition(".")
    thing = _loaded(package)[inner]
    parts = [(thing.name, thing)] + [
        (n, m) for n, m in thing.members.items() if not n.startswith("_") and not m.is_alias
    ]
    return "\n\n".join(f"### {n}\n{m.docstring.value if m.docstring else ''}" for n, m in parts)


@pytest.fixture(scope="module")
def index():
    [boosts] = (each["search"]["fields"] for each in PLUGINS if "search" in each)
    fields = [{"field_name": name, **how} for name, how in boosts.items()]
    return lunr.lunr(ref="location", fields=fields, documents=sections())


def test_there_are_a_hundred_questions_and_keywords_belong_to_pages() -> None:
    assert len(QUESTIONS) >= 100
    pages = {name for name, _ in searched_pages()}
    assert {*built("hooks").KEYWORDS} <= pages


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
