"""Options that give a batch in tokens: of a rank or of a step, by their name, or asked for where
the name may mean something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import first_draft
from tests.shortcuts import file_with


def draft_of(folder: Path, **options: int) -> Draft:
    lines = ["import argparse", "p = argparse.ArgumentParser()"]
    lines += [
        f'p.add_argument("--{name}", type=int, default={value})' for name, value in options.items()
    ]
    script = file_with(folder / "train.py", "\n".join([*lines, "p.parse_args()"]))
    return first_draft(script, model="gpt2-small", cluster="h100-sxm-1x1", folder=folder)


OF_A_RANK = (
    "max_tokens_per_batch",
    "max_tokens_in_batch",
    "max_tokens_per_gpu",
    "tokens_per_batch",
)
OF_A_RANK += ("batch_size_in_tokens", "batch_tokens", "train_batch_tokens", "tokens_per_gpu")
OF_A_STEP = ("tokens_per_step", "global_batch_size_in_tokens", "total_batch_tokens")


@pytest.mark.parametrize("name", OF_A_RANK)
def test_a_batch_of_a_rank(tmp_path: Path, name: str) -> None:
    draft = draft_of(tmp_path, **{name: 4096}, seq_len=512, grad_accum=2)
    assert f"--{name}={{micro_batch_size * seq_len}}" in draft.document["trainer"]["argv"]
    assert draft.document["workload"]["global_batch_size"] == 16
    assert "micro_batch_size=8" in draft.document["baseline"]
    assert "tokens per rank" in draft.text


@pytest.mark.parametrize("name", OF_A_STEP)
def test_a_batch_of_a_step(tmp_path: Path, name: str) -> None:
    draft = draft_of(tmp_path, **{name: 4096}, seq_len=512, micro_batch_size=2)
    argv = draft.document["trainer"]["argv"]
    assert f"--{name}={{global_batch_size * seq_len}}" in argv
    assert draft.document["workload"]["global_batch_size"] == 8


def test_beside_a_micro_batch_it_is_that_of_a_step(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, tokens_per_batch=4096, seq_len=512, micro_batch_size=2)
    argv = draft.document["trainer"]["argv"]
    assert "--tokens_per_batch={global_batch_size * seq_len}" in argv


@pytest.mark.parametrize("beside", ["update-freq", "max-sentences"])
def test_fairseqs_max_tokens(tmp_path: Path, beside: str) -> None:
    options = {"max-tokens": 4096, beside: 2, "tokens-per-sample": 512}
    draft = draft_of(tmp_path, **options)
    assert "--max-tokens={micro_batch_size * seq_len}" in draft.document["trainer"]["argv"]
    assert "micro_batch_size=8" in draft.document["baseline"]


def test_max_tokens_alone_is_asked_for(tmp_path: Path) -> None:
    """litgpt's are those of the whole training."""
    draft = draft_of(tmp_path, **{"max-tokens": 4096}, seq_len=512)
    assert {"workload.global_batch_size", "baseline"} <= set(draft.fill_in)
    (note,) = (each for each in draft.notes if "--max-tokens=4096" in each)
    assert "--max-tokens={micro_batch_size * seq_len}" in note


def test_max_tokens_beside_a_batch_stays(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, **{"max-tokens": 4096}, seq_len=512, batch_size=2)
    assert "max-tokens" not in draft.text
    assert "micro_batch_size=2" in draft.document["baseline"]
