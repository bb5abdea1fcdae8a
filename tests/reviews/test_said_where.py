"""A rule that a launch breaks is said of the lines that give its values."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import SpecError
from autotune.reviews import review
from autotune.reviews.said_where import lines_of_values
from tests.shortcuts import file_with

SIZES = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024"
MEGATRON = f"""#!/bin/bash
GPUS_PER_NODE=8
TP=${{TP:-2}}
torchrun --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py {SIZES} --bf16 \\
    --tensor-model-parallel-size $TP --micro-batch-size 8 \\
    --global-batch-size 64
"""
OWN = """torchrun --nproc_per_node 6 train.py --model meta-llama/Llama-2-7b-hf --micro-batch-size 2 --grad-accum 8 \\
    --seq-len 4096 --bf16 \\
    --tensor-model-parallel-size 6
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("TP:-2", "TP:-3", ["tp=3 * pp=1", "train.sh:3: tp=3", "train.sh:2: nproc_per_node=8"]),
        (
            "size 64",
            "size 60",
            [
                "global batch of 60",
                "train.sh:5: micro_batch_size=8",
                "train.sh:6: global_batch_size=60",
            ],
        ),
    ],
)
def test_an_error_names_the_lines(old: str, new: str, words: list[str], tmp_path: Path) -> None:
    path = file_with(tmp_path / "train.sh", MEGATRON.replace(old, new))
    with pytest.raises(SpecError) as refused:
        review(path, cluster="a100-80gb")
    for each in words:
        assert each in refused.value.message
    assert refused.value.remedy.startswith("change one of these values")


def test_a_config_that_is_not_valid_is_said_of_its_line_with_what_is(tmp_path: Path) -> None:
    path = file_with(tmp_path / "train.sh", OWN)
    (missing,) = review(path, cluster="h100-sxm").missing
    assert missing.what == (
        "a valid configuration, because tp must divide num_attention_heads, but tp=6 and num_attention_heads=32 (train.sh:3: tp=6)"
    )
    assert missing.remedy == "use 1, 2 or 4"


def test_a_job_file_that_is_not_valid_says_so(tmp_path: Path) -> None:
    path = file_with(
        tmp_path / "job.toml",
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nglobal_batch_size = 24\nseq_len = 8192\n'
        "[parallelism]\ntensor_parallel_degree = 3\ndata_parallel_shard_degree = 8\n",
    )
    (missing,) = review(path, cluster="h100-sxm-3x8").missing
    assert "tp must divide num_attention_heads, but tp=3" in missing.what
    assert "(job.toml:9: tp=3)" in missing.what


def test_comments_and_other_values_are_no_lines_of_a_value() -> None:
    texts = {"a.sh": "# TP=3\nTP=4\nx --tp=3\n", "b.yaml": "tp: 5\n"}
    assert lines_of_values("tp=3", texts) == "a.sh:3: tp=3"
    assert lines_of_values("tp=5 and pp=2", texts) == "b.yaml:1: tp=5"
    assert lines_of_values("no value", texts) == ""
