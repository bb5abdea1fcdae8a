"""The published measurements that ship with reviews are those of the data sets, and a review names the nearest one."""

from __future__ import annotations

from autotune import api
from autotune.reviews.earlier import PUBLISHED_FILE
from autotune.reviews.edits import SURE
from tests.benchmarks.published_table import text
from tests.benchmarks.review_pairs import pairs

SPEC = """
name: published
model: llama-8b
cluster: h100-sxm-1x8
workload: {seq_len: 4096, global_batch_size: 128}
space: {tp: [1, 2], zero_stage: [1], precision: [bf16], micro_batch_size: [1, 2]}
trainer: megatron
"""


def test_the_table_is_what_the_data_sets_say() -> None:
    assert PUBLISHED_FILE.read_text(encoding="utf-8") == text(), "python -m tests.benchmarks.published_table writes it"


def test_a_review_names_the_nearest_published_measurement() -> None:
    found = api.review(SPEC).earlier
    assert found is not None
    assert found.kind == "published"
    assert found.config.world_size == 8
    assert "H100" in found.where
    assert found.tokens_per_s == found.config.global_batch_size * found.seq_len / found.step_time_s
    assert set(found.differs) <= {
        "micro_batch_size",
        "accumulation_steps",
        "dp",
        "tp",
        "precision",
        "zero_stage",
        "seq_len",
    }
    assert api.review(SPEC.replace("h100-sxm", "l40s")).earlier is None


def test_what_may_not_fit_may_be_worth_a_trial_and_its_risk_is_said() -> None:
    (pair,) = pairs(["flagperf"])
    (tried,) = pair.found.trials
    assert tried.changes == {"tp": (8, 4), "pp": (4, 8)}
    assert SURE < tried.oom_probability < 0.3
    assert tried.to_dict()["oom_probability"] == tried.oom_probability
    assert pair.gain > 1.2


def test_a_launch_at_the_limit_of_memory_is_told_what_helps_and_proposed_nothing_slower() -> None:
    """Paddle's 7B on eight GPUs ran with 70 of its 80 GB; every other published config that fits is slower."""
    found = [pair for pair in pairs(["flagperf_paddle"]) if pair.found.if_out_of_memory]
    (pair,) = found
    assert not pair.slower
    assert not pair.found.edits
    spare = pair.found.if_out_of_memory
    assert spare is not None
    assert spare.alone is not None
    assert spare.memory_bytes < 0
    assert spare.oom_probability <= SURE
