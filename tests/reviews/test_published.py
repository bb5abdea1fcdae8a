"""The published measurements that ship with reviews are those of the data sets, and a review names
the nearest one."""

from __future__ import annotations

import pytest
import yaml

from autotune import api
from autotune.reviews.earlier import PUBLISHED_FILE, earlier_of
from autotune.reviews.edits import SURE
from autotune.spec import ParallelConfig
from tests.benchmarks.published_table import text
from tests.benchmarks.review_pairs import pairs

OWN_PROGRAM = "trainer: {kind: command, argv: [python, x.py, '--mbs={micro_batch_size}', '--acc={accumulation_steps}', '--tp={tp}']}"
SPEC = """
name: published
model: llama-8b
cluster: h100-sxm-1x8
workload: {seq_len: 4096, global_batch_size: 128}
space: {tp: [1, 2], zero_stage: [1], precision: [bf16], micro_batch_size: [1, 2]}
trainer: megatron
"""


def test_the_table_is_what_the_data_sets_say() -> None:
    assert PUBLISHED_FILE.read_text(encoding="utf-8") == text(), (
        "python -m tests.benchmarks.published_table writes it"
    )


def test_a_review_names_the_nearest_published_measurement() -> None:
    found = api.review(SPEC).earlier
    assert found.kind == "published"
    assert found.config.world_size == 8
    assert "H100" in found.where
    assert found.tokens_per_s == found.config.global_batch_size * found.seq_len / found.step_time_s
    assert set(found.differs) <= {
        "micro_batch_size",
        "accumulation_steps",
        "dp",
        "tp",
        "pp",
        "pp_schedule",
        "recompute",
        "precision",
        "zero_stage",
        "seq_len",
    }
    assert "nanotron-llama-8B" in found.where
    assert api.review(SPEC.replace("h100-sxm", "l40s")).earlier is None


@pytest.mark.parametrize(
    ("model", "more"),
    [
        ("mixtral-8x7b", ""),
        ("llama-8b", ", peft: {method: lora, rank: 16}"),
        (
            "{num_layers: 32, hidden_size: 4096, num_attention_heads: 32, vocab_size: 128256, ffn_hidden_size: 28672, gated_mlp: true}",
            "",
        ),
    ],
    ids=["experts", "adapters", "another size"],
)
def test_a_run_of_another_model_with_as_many_layers_is_not_named(model: str, more: str) -> None:
    text = SPEC.replace("model: llama-8b", f"model: {model}").replace(
        "global_batch_size: 128}", f"global_batch_size: 128{more}}}"
    )
    study = api.load_study(yaml.safe_load(text.replace("trainer: megatron", OWN_PROGRAM)))
    config = ParallelConfig(dp=8, accumulation_steps=16, zero_stage=1, precision="bf16")
    assert earlier_of(study, config, None) is None
    llama = api.load_study(yaml.safe_load(SPEC.replace("trainer: megatron", OWN_PROGRAM)))
    assert earlier_of(llama, config, None) is not None


def test_what_may_not_fit_may_be_worth_a_trial_and_its_risk_is_said() -> None:
    fewer_stages = {"tp": (2, 4), "pp": (2, 1)}
    found = ((pair, trial) for pair in pairs(["moussakam_h100"]) for trial in pair.found.trials)
    pair, tried = next((pair, trial) for pair, trial in found if trial.changes == fewer_stages)
    assert SURE < tried.oom_probability < 0.5
    assert tried.to_dict()["oom_probability"] == tried.oom_probability
    assert pair.gain > 1.2


def test_a_launch_at_the_limit_of_memory_is_told_what_helps_and_proposed_nothing_slower() -> None:
    """Paddle's 7B on eight GPUs ran with 70 of its 80 GB; every other published config that fits is
    slower."""
    found = [pair for pair in pairs(["flagperf_paddle"]) if pair.found.if_out_of_memory]
    (pair,) = found
    assert not pair.slower
    assert not pair.found.edits
    spare = pair.found.if_out_of_memory
    assert spare.alone is not None
    assert spare.memory_bytes < 0
    assert spare.oom_probability <= SURE
