"""The trainer of a Ray Train loop: every knob reaches the loop, no launch is written, and other
trainers launch its best config as any study's."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from autotune import api
from autotune.errors import ExportError
from autotune.store import MemoryStore
from autotune.testing.trainers import TrainerContract

LINE = "autotune.ray.with_config(trainer, result.best.config).fit()"


class TestRayTrainTrainer(TrainerContract):
    trainer = "ray_train"
    log_lines: ClassVar = {"(RayTrainWorker pid=7) [world_rank=0] loss 2.5": None}


def simulated(**change: Any) -> dict[str, Any]:
    return {
        "model": "llama-1b",
        "cluster": "h100-sxm-1x8",
        "workload": {"seq_len": 2048, "global_batch_size": 64},
        "space": {"micro_batch_size": [1, 2], "zero_stage": [1, 2, 3], "precision": ["bf16"]},
        "trainer": "ray_train",
        "runner": "simulated",
        "budget": {"max_trials": 2},
        **change,
    }


def test_its_launch_is_refused_and_others_are_written_as_for_any_study() -> None:
    store = MemoryStore()
    result = api.tune(simulated(), store=store)
    document = api.document(result)
    assert document["next_export"] == {"trainer": "ray_train", "options": {}, "python": LINE}
    assert "ray_train" not in document["exports"]
    assert {"megatron", "hf_trainer"} <= set(document["exports"])
    with pytest.raises(ExportError) as caught:
        api.export_document(store, result.record.id, "ray_train", {})
    assert LINE in caught.value.remedy
    options = {"hf_assets_path": "/a"}
    assert (
        api.export_document(store, result.record.id, "torchtitan", options)["argv"][0] == "torchrun"
    )
    store.close()


def test_losses_are_compared_step_by_step_only_where_the_call_says_that_the_data_are_the_same() -> (
    None
):
    assert not api.load_study(simulated()).same_data
    assert api.load_study(simulated(trainer={"kind": "ray_train", "same_data": True})).same_data
