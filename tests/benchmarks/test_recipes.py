"""The space holds NVIDIA's published recipes, and the plan ranks them."""

from __future__ import annotations

from dataclasses import replace

from autotune.space import why_not
from autotune.spec import ParallelConfig, Workload, catalog
from tests.benchmarks.recipes import recipes, refusal_of, standings, summary


def test_four_of_five_published_recipes_are_legal_and_can_be_launched() -> None:
    asked = recipes()
    refused = {str(recipe.config): why for recipe in asked if (why := refusal_of(recipe))}
    assert len(asked) > 40
    assert len(refused) <= 0.2 * len(asked), refused


def test_a_sample_of_recipes_is_ranked_among_the_settings_of_its_space() -> None:
    sample = [r for r in recipes() if r.workload.model.name == "LLAMA2-7B"]
    found = list(standings(sample))
    assert found
    assert all(1 <= s.rank <= s.settings for s in found)
    assert all(s.gap >= 0.0 and (s.rank == 1) == (not s.why) for s in found)
    assert summary(found)["contained_share"] == 1.0


def test_a_pipeline_of_405b_with_eight_virtual_stages_counts_embedding_and_loss() -> None:
    workload = Workload(
        model=catalog.model("llama-405b"),
        cluster=catalog.cluster("h100-sxm-72x8"),
        seq_len=8192,
        global_batch_size=288,
    )
    config = ParallelConfig(
        tp=4, pp=16, dp=9, virtual_stages=8, pp_schedule="interleaved_1f1b", sequence_parallel=True, accumulation_steps=32,
        zero_stage=1,
    )  # fmt: skip
    assert "num_layers=126" in str(why_not(workload, config))
    assert why_not(workload, replace(config, pp_split="edges")) is None
