"""Clusters side by side: the best config of each, what a training takes there, and what is said
where nothing fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune import api
from autotune.errors import CatalogError, SpecError
from autotune.plan.clusters import clusters_of, compare_clusters
from autotune.plan.plan import Bill, plan
from autotune.report.cluster_table import cluster_notes
from autotune.space import SearchSpace
from autotune.spec import SpaceSpec, Workload, catalog

SPACE = SpaceSpec(
    name="test",
    knobs={
        "tp": (1, 2, 4, 8),
        "micro_batch_size": (1, 2, 4),
        "zero_stage": (0, 1, 3),
        "recompute": ("none", "full"),
    },
)


def workload(model: str = "llama-8b", cluster: str = "h100-sxm-2x8") -> Workload:
    return Workload(
        model=catalog.model(model), cluster=catalog.cluster(cluster), seq_len=4096, global_batch_size=128, trainer="megatron"
    )  # fmt: skip


def compared(
    *names: str, space: SpaceSpec = SPACE, model: str = "llama-8b", tokens: float | None = 1e11
):
    return compare_clusters(workload(model), space, clusters_of(names, 16), tokens=tokens)


def test_each_cluster_has_the_best_config_of_a_plan_of_its_own() -> None:
    for choice in compared("h100-sxm", "a100-80gb-2x8"):
        own = plan(
            SearchSpace.build(replace(workload(), cluster=choice.cluster), SPACE), top=1
        ).rows[0]
        assert choice.config == own.config
        assert choice.estimate is not None
        assert float(choice.estimate.tokens_per_s) == float(own.estimate.tokens_per_s)
        low, high = choice.tokens_per_s_90 or (0.0, 0.0)
        assert low < float(choice.estimate.tokens_per_s) < high


def test_days_cost_and_energy_follow_from_the_speed() -> None:
    (choice,) = compared("h100-sxm-2x8")
    assert choice.bill is not None
    assert choice.estimate is not None
    gpu = choice.cluster.gpu
    seconds = 1e11 / float(choice.estimate.tokens_per_s)
    assert choice.bill.days == pytest.approx(seconds / 86400)
    assert choice.bill.gpu_hours == pytest.approx(16 * seconds / 3600)
    assert choice.bill.cost_usd == pytest.approx(choice.bill.gpu_hours * (gpu.usd_per_hour or 0))
    assert choice.bill.energy_kwh == pytest.approx(
        choice.bill.gpu_hours * (gpu.power_watts or 0) / 1000
    )
    assert compared("h100-sxm-2x8", tokens=None)[0].bill is None


def test_what_is_not_known_of_a_gpu_is_not_invented() -> None:
    unknown = replace(catalog.gpu("h100-sxm"), usd_per_hour=None, power_watts=None)
    bill = Bill.of(catalog.cluster_of(unknown, num_nodes=1), 1e5, 1e9)
    assert bill.cost_usd is None
    assert bill.energy_kwh is None
    assert bill.days > 0


def test_a_gpu_type_alone_has_as_many_gpus_in_nodes_of_its_own_size() -> None:
    found = [
        cluster.name
        for cluster in clusters_of(["h200-sxm", "gb200-nvl72", "gh200", "a100-80gb-4x8"], 16)
    ]
    assert found == ["h200-sxm-2x8", "gb200-nvl72-4x4", "gh200-16x1", "a100-80gb-4x8"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["h100"], "h100-nvl, h100-pcie, h100-sxm or h100-sxm-96gb"),
        (["h100-sxm-2x8", "h100-sxm"], "named twice"),
        ([], "1 to 100 clusters"),
        (["h100-sxm-2by8"], "there is no GPU"),
    ],
)
def test_mistaken_names_are_answered_with_the_remedy(names: list[str], words: str) -> None:
    with pytest.raises((CatalogError, SpecError), match=words):
        clusters_of(names, 16)


def test_a_cluster_on_which_nothing_fits_has_the_nearest_miss() -> None:
    small, large = compared("l4", "b200-sxm", model="llama-70b")
    assert large.config is not None
    assert small.config is None
    assert small.nearest_miss is not None
    assert any(
        "nearest miss" in line and line.startswith("l4-2x8")
        for line in cluster_notes([small, large])
    )
    assert small.to_dict()["nearest_miss"]["config"]


def test_a_precision_that_a_gpu_lacks_is_said() -> None:
    narrow = replace(SPACE, knobs={**SPACE.knobs, "precision": ("bf16", "fp8")})
    a100, h100 = compared("a100-80gb", "h100-sxm", space=narrow)
    assert (a100.lacking, h100.lacking) == (("fp8",), ())
    assert a100.config is not None
    assert "compared without fp8, which the GPU does not support: a100-80gb-2x8" in cluster_notes(
        [a100, h100]
    )
    only = replace(SPACE, knobs={**SPACE.knobs, "precision": ("nvfp4",)})
    h100, b200 = compared("h100-sxm", "b200-sxm", space=only)
    assert h100.config is None
    assert h100.reason == "h100-sxm has no nvfp4, only fp32, tf32, bf16, fp16, fp8"
    assert b200.config is not None


def test_the_study_is_compared_through_the_package() -> None:
    study = api.load_study(
        {
            "model": "llama-8b",
            "cluster": "h100-sxm-2x8",
            "workload": {"seq_len": 4096, "global_batch_size": 128},
            "space": {
                "tp": [1, 2],
                "micro_batch_size": [1, 2],
                "zero_stage": [1, 3],
                "recompute": ["full"],
            },
            "trainer": "megatron",
            "budget": {"train_tokens": 1e10},
        }
    )
    found = api.compare_clusters_of(study, ["h200-sxm", catalog.cluster("a100-80gb-2x8")])
    assert [choice.cluster.name for choice in found] == ["h200-sxm-2x8", "a100-80gb-2x8"]
    assert all(choice.bill is not None and choice.bill.tokens == 1e10 for choice in found)
