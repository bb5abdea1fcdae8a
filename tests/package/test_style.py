"""Texts that people meet use the field's words: the list of `docs/style.md` holds for messages in the source, for pages, help and documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.cli import application
from autotune.cli.help_pages import commands_of

ROOT = Path(__file__).resolve().parents[2]
PRIVATE = {
    r"\bdefault config\b": "baseline",
    r"\bcannot (?:surely )?be told (?:from|apart)": "statistically tied",
    r"\b(?:do|does) not tell \w+ from": "statistically tied",
    r"\bmeasured again in turn\b": "re-measured side by side",
    r"\b95%: ": "95% CI",
    r"\bof the same time\b": "corrected for drift",
    r"\bturn has come\b": "resuming",
    r"\btime went on\b": "(leave it out)",
    r"\bwronged\b": "skewed",
    r"\bat hand\b": "you have",
    r"\b(?:is|are) tried again\b": "retrying",
    r"\bbreaks? (?:a|the) law\b": "breaks a rule",
    r"\bnot certain enough to name\b": "not confirmed",
    r"\bthe config to beat\b": "baseline",
    r"\b[Tt]he tests (?:of these pages )?do not run\b": "a marker in the source",
    r"\beverything but its steps\b": "overhead",
    r"\bthe default (?:one\b|ran\b)": "the baseline",
    r"\bmend(?:s|ed)?\b": "fix",
    r"\brehearse[ds]?\b": "simulate",
    r"\bhands? back\b": "return",
    r"\b(?:is|are) called '?[{\w]+'?; did you mean": "there is no ...",
    r"\bno \w+ is called\b": "there is no ...",
    r"\blegal configs?\b": "valid",
    r"\bcomes along\b": "bundled",
    r"\bof a folder of its own\b": "its own folder",
    r"\bof yours\b(?! to)": "your own",
    r"\bbeyond chance\b": "significantly",
    r"\b[Ll]ate comers?\b": "late contender",
    r"\bin turn(?:;|,| before)": "side by side",
    r"\b(?:of|by) which \d+\b": "N of them",
    r"\bof which\b": "a second sentence",
    r"\brun dry\b": "dry-run",
    r"\bper second and (?:GPU|rank)\b": "per second per GPU",
    r"\bto be had\b": "the fact, positively",
    r"\b(?:nodes? (?:are|is)|store is|service is) away\b": "unavailable",
    r"\bcertain to gain\b": "certain to be faster",
    r"\bgive or take\b": "within",
    r"\bmust get (?:shorter|smaller|faster)\b": "should",
    r"\b[Jj]obs? of (?:a )?(?:Slurm|Kubernetes)\b": "Slurm job",
    r"\bshall\b": "must",
    r"\b(?:is|are|was|were|be) told\b": "gets, receives, knows",
    r"\bstands? beside\b": "is next to",
    r"\bown number explains\b": "more ranks than cores",
    r"\bpeculiarit(?:y|ies)\b": "specifics",
}
"""private words as patterns, each with what is written instead"""
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
THIRD_PERSON = re.compile(r"^(?:Adds|Cancels|Checks|Copies|Creates|Deletes|Explains|Finds|Follows|Lists|Makes|Measures|Pauses|Predicts|Prints|Puts|Ranks|Returns|Revokes|Runs|Says|Serves|Shows|Stops|Submits|Tries|Upgrades|Writes)\b")  # fmt: skip


def private_words(text: str) -> list[str]:
    """The private words of a text."""
    text = re.sub(r"\s+", " ", text)
    return [
        f"{found[0]!r}: write {plain!r}" for pattern, plain in PRIVATE.items() for found in re.finditer(pattern, text)
    ]


def said(path: Path) -> Iterator[tuple[int, str]]:
    """The strings of a module that have words, without docstrings, which only programmers read."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in alone
            and " " in node.value
        ):
            yield node.lineno, node.value


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_pages_use_the_fields_words(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.name == "style.md":
        text = text.partition("## Rules")[0]  # rules and list show what not to write
    assert private_words(text) == []


def test_messages_use_the_fields_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in SOURCES
        for line, text in said(path)
        if (words := private_words(text))
    ]
    assert found == []


def test_help_is_imperative() -> None:
    help_of = {
        name: (command.help or (command.callback.__doc__ if command.callback else "") or "").strip()
        for name, command in commands_of(application())
    }
    assert len(help_of) > 40
    assert {name: text.splitlines()[0] for name, text in help_of.items() if THIRD_PERSON.match(text)} == {}


@pytest.mark.parametrize(
    "text",
    [
        "the default config again",
        "cannot be told from trial 8",
        "1.18x (95%: 1.14 to 1.22)",
        "a law that breaks the law",
        "the first measurement of the default\nconfig",
        "no knob is called 'tpp'",
        "hands back the winner",
        "two nodes of which one is slow",
        "nothing better than 3% is to be had",
        "9k tokens per second and GPU",
        "a job of Slurm",
        "two of its nodes are away",
    ],
)
def test_a_private_word_is_found(text: str) -> None:
    assert private_words(text)
