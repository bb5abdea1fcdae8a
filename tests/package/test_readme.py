"""README is short, its links and pictures lead somewhere, and its figures are those of the
benchmarks. Its commands are run in `tests/docs`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import autotune
from autotune.reviews import lines_of
from autotune.spec import ParallelConfig

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MEASURED = (ROOT / "research" / "measurements.md").read_text(encoding="utf-8")


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 90


def test_links_and_pictures_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)", README)
    assert any(target.endswith(".svg") for target in targets)
    for target in targets:
        if not target.startswith(("http://", "https://")):
            assert (ROOT / target).exists(), target


def test_its_figures_are_those_of_the_benchmarks() -> None:
    for said, measured in {
        "1.9;": "| `bayesian` | 1.91 |",
        "`optuna:tpe` 13.4": "| `optuna:tpe` (20 seeds) | 13.43 |",
        "random 17.1": "| `random` (20 seeds) | 17.10 |",
        "0.08 s": "median of 99 | 0.082",
        "6.9 s": "by torchrun, median of 3 | 6.91",
        "2.9 ms": "| 10,000 | 2.9 ms |",
        "41.4 ms": "41.4 ms",
    }.items():
        assert said in README, said
        assert measured in MEASURED, measured


def test_its_plan_is_what_the_cost_model_says() -> None:
    workload = autotune.load_study(
        ROOT / "search_spaces" / "studies" / "llama-70b-16x8.yaml"
    ).workload
    rows = [
        row.strip("| ").split("|") for row in README.splitlines() if re.match(r"\|\s+\d \| tp", row)
    ]
    assert len(rows) == 3
    for _, label, tokens, _gain, step, mfu, memory, *_ in rows:
        found = autotune.estimate(workload, ParallelConfig.parse(label.strip()))
        said = [float(cell.strip(" skGiB%")) for cell in (tokens, step, mfu, memory)]
        figures = (
            found.tokens_per_s / 1e3,
            found.step_time_s,
            100 * found.mfu,
            found.peak_memory_bytes / 2**30,
        )
        assert said == pytest.approx(figures, rel=0.02), label


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/review.md"])
def test_a_page_shows_what_review_says_of_its_script(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    script, shown = (
        re.search(rf"```text{head}\n(.*?)```", text, re.DOTALL)
        for head in (' title="train.sh"', "(?=\ntrain.sh:)")
    )
    assert script
    assert shown
    (tmp_path / "train.sh").write_text(script[1])
    found = autotune.review(tmp_path / "train.sh", cluster="h200-sxm")
    assert shown[0].removeprefix("```text\n").removesuffix("```").splitlines() == lines_of(found)


def test_its_benchmarks_exist() -> None:
    for module in re.findall(r"python -m (tests\.[\w.]+)", README):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
