"""Texts that people meet use the field's words: the list of `docs/style.md` holds for messages in
the source, for pages, help and documentation."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.cli import application
from autotune.cli.help_pages import commands_of
from autotune.mcp.spec_tools import SpecTools
from autotune.mcp.study_tools import SteeringTools, StudyTools

ROOT = Path(__file__).resolve().parents[2]


def as_pattern(phrase: str) -> str:
    """The pattern of a phrase of the list: `a/b` are forms of one word, `...` is any word, N a
    number."""
    forms = {"...": r"'?[{\w]+'?", "N": r"\d+"}
    words = [
        forms.get(word) or f"(?:{re.escape(word).replace('/', '|')})" for word in phrase.split()
    ]
    return r"(?i)(?<!\w)" + " ".join(words) + r"(?!\w)"


def literal(phrase: str) -> str:
    """The longest word that every text with the phrase has, in lower case; empty where all its
    words have forms."""
    words = [
        word.lower() for word in phrase.split() if word not in ("...", "N") and "/" not in word
    ]
    return max(words, key=len, default="")


def listed() -> list[tuple[str, str, str]]:
    """The list of `docs/style.md`: a word without which there is no need to look, the pattern of
    what is not written, and what is written instead."""
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \|$",
        (ROOT / "docs" / "style.md").read_text().partition("## Words")[2],
        re.MULTILINE,
    )
    return [
        (literal(phrase), as_pattern(phrase), plain)
        for plain, phrases in rows[1:]
        for phrase in phrases.split(", ")
    ]


PRIVATE = listed()
"""the private words"""
TEXTS = [
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "dashboards" / "web").glob("*.html")),
    *sorted((ROOT / "search_spaces").rglob("*.yaml")),
    *sorted((ROOT / "skills").rglob("*.md")),
]
SOURCES = sorted([*(ROOT / "autotune").rglob("*.py"), *(ROOT / "workers").rglob("*.py")])
API = [
    *(ROOT / "autotune" / name for name in ("api.py", "errors.py", "ray.py")),
    *(ROOT / "autotune" / "results" / name for name in ("result.py", "figure.py")),
    *(
        ROOT / "autotune" / "search" / name
        for name in ("searcher.py", "by_name.py", "optuna_study.py")
    ),
    *(
        ROOT / "autotune" / "trainers" / name
        for name in ("base/trainer.py", "launch_files.py", "logs/step_metrics.py")
    ),
    ROOT / "autotune" / "ports" / "trial_runner.py",
    ROOT / "autotune" / "study" / "progress.py",
    *sorted((ROOT / "autotune" / "plan" / "fit").rglob("*.py")),
    *sorted((ROOT / "autotune" / "spec").rglob("*.py")),
    *sorted((ROOT / "autotune" / "client").rglob("*.py")),
]
"""where the reference of the Python API takes its docstrings from"""
TOOLS = (SpecTools, StudyTools, SteeringTools)
SHOWN = [
    *sorted((ROOT / "autotune" / "cli" / "commands").rglob("*.py")),
    *sorted((ROOT / "autotune" / "mcp").rglob("*.py")),
    *sorted((ROOT / "autotune" / "service" / "routes").rglob("*.py")),
    *sorted((ROOT / "autotune" / "schema").rglob("*_models.py")),
    *sorted((ROOT / "autotune" / "schema").rglob("*_documents.py")),
]
"""whose docstrings people and agents read: help, tools, and the documents of REST and of specs"""
LISTED = [
    *sorted((ROOT / "autotune" / "search").glob("*.py")),
    *sorted((ROOT / "workers" / "autotune_workers" / "runners").glob("*.py")),
]
"""whose classes `autotune searchers` and `autotune runners` list with the first line of their
docstrings"""
SITE = sorted((ROOT / "docs" / "site_build").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").rglob("*.ipynb"))
THIRD_PERSON = re.compile(r"^(?:Adds|Cancels|Changes|Checks|Copies|Counts|Creates|Deletes|Does|Explains|Exports|Finds|Follows|Lists|Looks|Makes|Measures|Pauses|Predicts|Prints|Puts|Ranks|Reads|Removes|Resumes|Returns|Reviews|Revokes|Runs|Says|Serves|Shows|Stops|Stores|Submits|Tries|Upgrades|Waits|Writes)\b")  # fmt: skip


def private_words(text: str) -> list[str]:
    """The private words of a text."""
    text = re.sub(r"\s+", " ", text)
    lower = text.lower()
    asked = [(pattern, plain) for word, pattern, plain in PRIVATE if word in lower]
    return [
        f"{found[0]!r}: write {plain!r}"
        for pattern, plain in asked
        for found in re.finditer(pattern, text)
    ]


def said(path: Path, docstrings: bool = False) -> Iterator[tuple[int, str]]:
    """The strings of a module that have words; its docstrings alone if `docstrings`."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    alone = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and (id(node) in alone) is docstrings
            and " " in node.value
        ):
            yield node.lineno, node.value


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages_use_the_fields_words(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name == "style.md":
        text = text.partition("## Rules")[0]  # rules and list show what not to write
    assert private_words(text) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_use_the_fields_words(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert cells
    assert [words for cell in cells for words in private_words("".join(cell["source"]))] == []


@pytest.mark.parametrize(
    ("sources", "docstrings"),
    [(SOURCES, False), (API, True), (SHOWN, True), (SITE, False)],
    ids=["messages", "api", "help, tools and documents", "site"],
)
def test_sources_use_the_fields_words(sources: list[Path], docstrings: bool) -> None:
    found = []
    for path in sources:
        texts = list(said(path, docstrings))
        if private_words("\0".join(text for _, text in texts)):  # no pattern reaches over the zero
            found += [
                f"{path.relative_to(ROOT)}:{line}: {words}"
                for line, t in texts
                if (words := private_words(t))
            ]
    assert found == []


def test_summaries_of_searchers_and_runners_use_the_fields_words() -> None:
    classes = [
        node
        for path in LISTED
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    first = {node.name: (ast.get_docstring(node) or "").partition("\n")[0] for node in classes}
    assert {"GridSearcher", "SlurmRunner"} <= first.keys()
    assert {name: words for name, line in first.items() if (words := private_words(line))} == {}


def test_help_is_imperative() -> None:
    help_of = {
        name: (command.help or (command.callback.__doc__ if command.callback else "") or "").strip()
        for name, command in commands_of(application())
    }
    assert len(help_of) > 40
    assert {
        name: text.splitlines()[0] for name, text in help_of.items() if THIRD_PERSON.match(text)
    } == {}
    bodies = {
        name: [part for part in text.split("\n\n") if THIRD_PERSON.match(part)]
        for name, text in help_of.items()
    }
    assert {name: parts for name, parts in bodies.items() if parts} == {}


def test_tools_and_routes_are_imperative() -> None:
    from fastapi.routing import APIRoute

    from autotune.service.routes import (
        across_studies,
        events,
        health,
        studies,
        study_annotations,
        study_figures,
    )

    told = {
        f"{kind.__name__}.{name}": inspect.getdoc(tool) or ""
        for kind in TOOLS
        for name, tool in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(tool)
    }
    told |= {
        route.path: route.description
        for rooms in (across_studies, events, health, studies, study_annotations, study_figures)
        for route in rooms.router.routes
        if isinstance(route, APIRoute)
    }
    assert len(told) > 30
    assert {
        name: text.splitlines()[0] for name, text in told.items() if THIRD_PERSON.match(text)
    } == {}


@pytest.mark.parametrize(
    "text",
    [
        "the default config again",
        "cannot be told from trial 8",
        "1.18x (95%: 1.14 to 1.22)",
        "a config that breaks the law",
        "the first measurement of the default\nconfig",
        "no knob is called 'tpp'",
        "hands back the winner",
        "two nodes of which one is slow",
        "nothing better than 3% is to be had",
        "9k tokens per second and GPU",
        "a job of Slurm",
        "two of its nodes are away",
        "what is legal",
        "the rule at hand",
        "a config that breaks two laws",
    ],
)
def test_a_private_word_is_found(text: str) -> None:
    assert private_words(text)
