"""The target of a spec: the job that is meant, beside the cluster at hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.errors import CatalogError, SpecError
from autotune.schema import parse_study
from autotune.spec import Study
from autotune.spec.plain import canonical

SPEC: dict[str, Any] = {
    "model": "llama-1b",
    "cluster": "h100-sxm-1x8",
    "workload": {"seq_len": 4096, "global_batch_size": 64},
    "space": "dense-multi-node",
}


def study(**changes: Any) -> Study:
    return parse_study({**SPEC, **changes})


def test_the_workload_is_the_targets_and_at_hand_is_the_smaller_cluster() -> None:
    found = study(target={"cluster": "h100-sxm-4x8", "global_batch_size": 512, "seq_len": 8192})
    assert found.at_hand is not None
    assert (found.at_hand.name, found.workload.cluster.name) == ("h100-sxm-1x8", "h100-sxm-4x8")
    assert (found.workload.global_batch_size, found.workload.seq_len) == (512, 8192)
    assert found.name == "llama-1b-h100-sxm-4x8-by-h100-sxm-1x8"


def test_a_target_may_be_only_the_name_of_a_cluster() -> None:
    found = study(target="h100-sxm-4x8")
    assert found.workload == study(cluster="h100-sxm-4x8").workload


def test_a_target_with_the_gpus_of_the_cluster_needs_no_proxies() -> None:
    assert study(target="h100-sxm-1x8") == study()


def test_a_study_with_a_target_round_trips() -> None:
    found = study(target="h100-sxm-4x8")
    assert Study.from_dict(json.loads(canonical(found.to_dict()))) == found


def test_a_study_without_a_target_is_stored_as_in_earlier_releases() -> None:
    assert "at_hand" not in study().to_dict()


def test_the_error_for_an_unknown_target_has_its_field() -> None:
    with pytest.raises(CatalogError, match="there is no cluster 'nowhere-4x8'") as refused:
        study(target="nowhere-4x8")
    assert refused.value.field == "target.cluster"


def test_the_sequence_length_of_a_target_may_have_a_unit() -> None:
    assert study(target={"cluster": "h100-sxm-4x8", "seq_len": "8Ki"}).workload.seq_len == 8192


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        (
            {"target": "a100-80gb-4x8"},
            "target.cluster",
            "proxies must run on the target's GPU type",
        ),
        (
            {"target": "h100-sxm-1x4"},
            "target.cluster",
            "a target must have more GPUs than the cluster that runs the trials",
        ),
        ({"target": "local"}, "target.cluster", "not this machine"),
        (
            {"target": "h100-sxm-4x8", "objective": {"metric": "goodput"}},
            "objective.metric",
            "a target's configs are ranked by throughput",
        ),
        (
            {"target": "h100-sxm-4x8", "baseline": {"dp": 3}},
            "baseline",
            "never compared with a baseline",
        ),
        (
            {"target": {"cluster": "h100-sxm-4x8", "batch": 64}},
            "target.batch",
            "did you mean global_batch_size",
        ),
        ({"target": {"clustr": "h100-sxm-4x8"}}, "target.clustr", "there is no key 'clustr'"),
        (
            {"target": {"cluster": "h100-sxm-4x8", "seq_len": 0}},
            "target.seq_len",
            "greater than or equal to 1",
        ),
    ],
)
def test_an_impossible_target_is_rejected_with_its_field(
    changes: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(SpecError, match=words) as refused:
        study(**changes)
    assert refused.value.field == field
    assert refused.value.remedy or field == "target.seq_len"
