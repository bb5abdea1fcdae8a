"""The training loop of a `ray.train.torch.TorchTrainer` that a Python program holds, tuned by
`autotune.ray.tune_torch_trainer`.

A config reaches the loop in its `train_loop_config`, each knob under its own name, the study's own
among them. Which of them the loop reads is the user's to know, so no value is rejected. No file can
hold a TorchTrainer, so no launch is written: the line `in_python` starts a config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.errors import ExportError
from autotune.spec import ParallelConfig, Workload
from autotune.spec.workload import OPTIMIZERS, PEFT_METHODS
from autotune.trainers.base.limit import Limit
from autotune.trainers.base.trainer import SAME_DATA, UNCOMMON_SHAPES, StepLineTrainer
from autotune.trainers.launch_files import Launch


class RayTrainTrainer(StepLineTrainer):
    """A TorchTrainer of Ray Train 2."""

    name = "ray_train"
    summary = "a TorchTrainer of Ray Train, from Python: autotune.ray.tune_torch_trainer"
    checked_against = "Ray 2.60.0"
    in_python = "autotune.ray.with_config(trainer, result.best.config).fit()"
    shapes = frozenset(UNCOMMON_SHAPES)  # the loop builds its own model
    limited_by = frozenset()
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "sequence_parallel", "pp_schedule", "virtual_stages", "compile",
        "dp_replicas", "pp_split", "loss", "cp_style", "activation_budget", "offload", "async_tp", "cuda_graph", "dispatcher", "ep_overlap",
    })  # fmt: skip
    optimizers = frozenset(OPTIMIZERS)
    packs_documents = True
    peft_methods = frozenset(PEFT_METHODS)
    trains_pure_bf16 = True
    has_unfused_attention = True
    runs_own_program = True
    options = (SAME_DATA,)

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """None: the loop is handed every knob."""
        return ()

    def own_knob_refusal(self, name: str, options: Mapping[str, Any]) -> str:
        """None is rejected: the loop finds it in its config, as every knob."""
        return ""

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """Raises `ExportError`: the TorchTrainer exists only in the program that made it."""
        raise ExportError(
            "the ray_train trainer writes no launch, because the TorchTrainer exists only in your Python program",
            remedy=f"start the config in that program: {self.in_python}",
            field="trainer",
        )


TRAINER = RayTrainTrainer()
