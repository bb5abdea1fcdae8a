"""Pipeline parallelism: the layers of a rank, and the order of its micro-batches.

    gpipe                    all forward, then all backward (Huang et al. 2019, arXiv:1811.06965)
    1f1b                     one forward, one backward (Narayanan et al. 2021, arXiv:2104.04473, section 2.2)
    interleaved_1f1b         1f1b with `virtual_stages` stages per rank (same paper, section 2.2.2)
    interleaved_zero_bubble  weight gradients are computed later, in the bubble (Qi et al. 2024, arXiv:2401.10241, ZB1P)

The schedules are torch's. Stage i is on rank i mod pp. The shapes of the tensors between stages are
passed in advance, so that no step has to infer them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from autotune.errors import ConfigError
from autotune.spec import ModelSpec, ParallelConfig
from autotune_workers.training.model.decoder import split_layers
from autotune_workers.training.task import Loss, Task

INTERLEAVED = {
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": ScheduleInterleavedZeroBubble,
}


def check_schedule(config: ParallelConfig) -> None:
    """Raise `ConfigError` if the schedule cannot run this config with any model."""
    micro_batches = config.accumulation_steps
    if config.pp_schedule != "gpipe" and micro_batches < config.pp:
        raise ConfigError(
            f"{config.pp_schedule} needs at least pp={config.pp} micro-batches, but accumulation_steps={micro_batches}",
            remedy="use pp_schedule=gpipe, or more and smaller micro-batches",
            field="accumulation_steps",
        )
    if config.pp_schedule == "interleaved_zero_bubble" and config.zero_stage == 3:
        # torch silently loses a part of the gradients in this case
        raise ConfigError(
            "interleaved_zero_bubble delays weight gradients until zero_stage=3 has freed the gathered weights",
            remedy="use zero_stage 0, 1 or 2",
            field="zero_stage",
        )


def layers_of_rank(model: ModelSpec, config: ParallelConfig, pp_rank: int) -> dict[int, range]:
    """The layers of this rank's stages, by stage number."""
    stages = config.pp * config.virtual_stages
    layers = split_layers(model.num_layers, stages, by_edges=config.pp_split == "edges")
    return {i: layers[i] for i in range(pp_rank, len(layers), config.pp)}


class Pipeline:
    """The stages of a rank with their schedule."""

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        config: ParallelConfig,
        *,
        group: dist.ProcessGroup,
        device: torch.device,
        task: Task,
        loss: Loss,
    ) -> None:
        count = config.pp * config.virtual_stages
        tensors = task.between(stages)
        pipe = [
            PipelineStage(
                stage, index, count, device, input_args=taken, output_args=given, group=group
            )
            for (index, stage), (taken, given) in zip(stages.items(), tensors.values(), strict=True)
        ]
        self.is_last = count - 1 in stages
        self._is_first = 0 in stages
        self._task = task
        options = {
            "n_microbatches": config.accumulation_steps,
            "loss_fn": loss,
            "scale_grads": False,
        }
        if config.pp_schedule in INTERLEAVED:
            self._schedule = INTERLEAVED[config.pp_schedule](pipe, **options)
        else:
            self._schedule = (ScheduleGPipe if config.pp_schedule == "gpipe" else Schedule1F1B)(
                pipe[0], **options
            )

    def step(self, inputs: Any, targets: Any) -> list[Tensor]:
        """Run forward and backward passes of all micro-batches. Returns their losses on the rank of
        the last stage, and an empty list on others."""
        losses: list[Tensor] = []
        args, kwargs, target = self._task.fed(
            inputs, targets, is_first=self._is_first, is_last=self.is_last
        )
        self._schedule.step(
            *args,
            target=target,
            losses=losses if self.is_last else None,
            return_outputs=False,
            **kwargs,
        )
        return losses
