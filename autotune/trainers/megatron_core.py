"""What Megatron-LM and Megatron-Bridge share: the rules of Megatron Core, an option, and the lines that both log.

Data parallelism and accumulation are no settings but follow from others: dp = world / (tp * pp * cp), and accumulation = global_batch_size /
(micro_batch_size * dp). ZeRO 1 is the distributed optimizer; ZeRO 2 and 3 are Megatron-FSDP.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from autotune.spec import ParallelConfig, Workload
from autotune.trainers.effective import word_limit
from autotune.trainers.limit import Limit, next_multiple
from autotune.trainers.megatron_knobs import divides_evenly
from autotune.trainers.step_metrics import StepMetrics, clean, number
from autotune.trainers.trainer_option import Option, Reach

_ITERATION = re.compile(r"\biteration +(\d+)/ *(?:\d+|infinity) +\|")
_FIELD = {
    "time": re.compile(r"elapsed time per iteration \(ms\): *([0-9.]+)"),
    "loss": re.compile(r"\blm loss: *([-+0-9.eEnaif]+)"),
    "norm": re.compile(r"\| grad norm: *([-+0-9.eEnaif]+)"),
    "skipped": re.compile(r"number of skipped iterations: *(\d+)"),
}
_MEMORY = re.compile(r"\bmemory \(MB\) \|.{0,400}?max reserved: *([0-9.]+)")
ITERATION_MARKS = ("iteration ", "max reserved:")
"""each line that `parse_iteration` reads has one of these"""
NOT_IN_CORE = {
    "activation_budget": "Megatron Core has no switch for torch.compile, whose compiler would keep the budget",
    "loss=chunked": "Megatron Core computes the loss of all logits at once",
}
"""what neither program can do, with the reason"""
OVERLAP = Option(
    name="overlap",
    meaning="overlap gradient and weight communication with compute",
    default=True,
    reach=Reach.NOTHING,
)
SHARDING = {2: "optim_grads", 3: "optim_grads_params"}
"""sharding strategy of Megatron-FSDP by ZeRO stage"""


def core_limits(workload: Workload, c: ParallelConfig) -> tuple[Limit, ...]:
    """Schedules other than (interleaved) 1F1B, torch.compile, uneven stages, and the combinations that its checks refuse."""
    model = workload.model
    limits = [
        *word_limit(
            c,
            "pp_schedule",
            {"gpipe": "1f1b", "interleaved_zero_bubble": "interleaved_1f1b"},
            "Megatron-LM has the schedules 1f1b and interleaved_1f1b",
        )
    ]

    def limit(knob: str, value: Any, message: str, nearest: Any = None, remedy: str = "") -> None:
        limits.append(Limit(knob=knob, value=value, message=message, nearest=nearest, remedy=remedy))

    if c.compile:
        limit("compile", True, "Megatron-LM has fused kernels of its own and no switch for torch.compile", False)
    if c.pp_split == "layers" and not divides_evenly(model, c):
        message = f"{model.num_layers} layers cannot be split evenly into {c.pp * c.virtual_stages} stages"
        limit(
            "pp",
            c.pp,
            message,
            remedy="use pp_split=edges, whose stages can be uneven, or a pp that divides the layers",
        )
    if c.virtual_stages > 1 and c.accumulation_steps % c.pp:
        limit(
            "virtual_stages",
            c.virtual_stages,
            f"interleaving needs a multiple of pp={c.pp} micro-batches, but accumulation_steps={c.accumulation_steps}",
            remedy="use virtual_stages=1, or another micro_batch_size or global_batch_size",
        )
    if c.cp > 1 and workload.seq_len % (2 * c.cp):
        remedy = f"use cp=1, or seq_len={next_multiple(workload.seq_len, 2 * c.cp)}"
        limit("cp", c.cp, f"seq_len={workload.seq_len} must be a multiple of 2 * cp", remedy=remedy)
    if c.zero_stage == 1 and workload.optimizer == "sgd":
        limit("zero_stage", 1, "the distributed optimizer supports only Adam", 0)
    if c.zero_stage >= 2 and c.pp > 1:
        limit("zero_stage", c.zero_stage, "Megatron-FSDP is not launched together with pipeline stages here", 1)
    limits += _module_limits(c)
    if model.mtp_layers and c.ep_overlap and (model.mtp_layers > 1 or c.pp == 1):
        limit("ep_overlap", True, "beside multi-token prediction it needs one such layer, and pp > 1", False)
    if model.num_experts and c.tp > 1 and not c.sequence_parallel:
        limit("sequence_parallel", False, "experts with tensor parallelism need sequence parallelism", True)
    if c.ep > 1 and not model.num_experts:
        limit("ep", c.ep, "a dense model has no experts", 1)
    if c.ep > 1 and c.precision == "fp16":
        limit("precision", "fp16", "expert parallelism does not train in fp16", "bf16")
    return tuple(limits)


def _module_limits(c: ParallelConfig) -> Iterator[Limit]:
    """What offloading, CUDA graphs and the overlap of experts cannot be combined with."""
    if c.offload in ("optimizer", "all") and c.zero_stage != 1:
        message = "the optimizer is offloaded by its distributed form, which is zero_stage=1"
        yield Limit(knob="offload", value=c.offload, message=message, nearest="none")
    if c.offload in ("activations", "all") and c.recompute == "full":
        message = "with recompute=full there are no activations inside a layer to offload"
        yield Limit(knob="offload", value=c.offload, message=message, nearest="none")
    if c.cuda_graph != "none" and (c.recompute == "full" or c.offload in ("activations", "all")):
        message = "CUDA graphs cannot hold recompute=full or offloaded activations"
        yield Limit(knob="cuda_graph", value=c.cuda_graph, message=message, nearest="none")
    if c.cuda_graph == "step" and c.recompute != "none":
        message = "a graph of the whole step holds no recomputation"
        yield Limit(knob="cuda_graph", value="step", message=message, nearest="none")
    if c.ep_overlap and (c.recompute == "full" or c.dispatcher == "allgather" or (c.pp > 1 and c.virtual_stages == 1)):
        message = (
            "it needs a dispatcher that sends (alltoall or flex), no recompute=full, and virtual stages where pp > 1"
        )
        yield Limit(knob="ep_overlap", value=True, message=message, nearest=False)


def parse_iteration(line: str) -> StepMetrics | None:
    """` iteration 122/ 250000 | ... | elapsed time per iteration (ms): 865.2 | ... | lm loss: 2.5E+00 | ...`, and memory reports."""
    text = clean(line)
    memory = _MEMORY.search(text)
    if memory:
        mib = number(memory[1])
        return None if mib is None else StepMetrics(peak_memory_bytes=mib * (1 << 20))
    iteration = _ITERATION.search(text)
    if not iteration:
        return None
    found = {name: pattern.search(text) for name, pattern in _FIELD.items()}
    values = {name: number(match[1]) if match else None for name, match in found.items()}
    milliseconds = values["time"]
    return StepMetrics(
        step=int(iteration[1]),
        step_time_s=None if milliseconds is None else milliseconds / 1e3,
        loss=values["loss"],
        grad_norm=values["norm"],
        skipped=bool(values["skipped"]),
    )
