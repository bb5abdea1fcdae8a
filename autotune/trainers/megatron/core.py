"""What Megatron-LM and Megatron-Bridge share: the rules of Megatron Core, an option, and the lines
that both log.

Data parallelism and accumulation are no settings but follow from others: dp = world / (tp * pp *
cp), and accumulation = global_batch_size / (micro_batch_size * dp). ZeRO 1 is the distributed
optimizer; ZeRO 2 and 3 are Megatron-FSDP.
"""

from __future__ import annotations

import re

from autotune.spec import ParallelConfig, Workload
from autotune.trainers.base.effective import word_limit
from autotune.trainers.base.limit import Limit, Rule, broken, next_multiple
from autotune.trainers.base.trainer_option import Option, Reach
from autotune.trainers.logs.step_metrics import StepMetrics, clean, number_in
from autotune.trainers.megatron.knobs import divides_evenly

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
    "activation_budget": "an activation budget needs torch.compile, and Megatron Core has no option for torch.compile",
    "loss=chunked": "Megatron Core computes the loss over all logits at once",
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
    """Schedules other than (interleaved) 1F1B, torch.compile, uneven stages, and the combinations
    that its checks refuse."""
    model, stages = workload.model, c.pp * c.virtual_stages
    schedules = {"gpipe": "1f1b", "interleaved_zero_bubble": "interleaved_1f1b"}
    return (
        *word_limit(
            c, "pp_schedule", schedules, "Megatron-LM has the schedules 1f1b and interleaved_1f1b"
        ),
        *broken(
            workload,
            c,
            Rule(
                c.compile,
                "compile",
                "Megatron-LM has its own fused kernels and no switch for torch.compile",
                False,
            ),
            Rule(
                c.pp_split == "layers" and not divides_evenly(model, c),
                "pp",
                f"{model.num_layers} layers cannot be split evenly into {stages} stages",
                remedy="use pp_split=edges, whose stages can be uneven, or a pp that divides the layers",
            ),
            Rule(
                c.virtual_stages > 1 and c.accumulation_steps % c.pp,
                "virtual_stages",
                f"interleaving needs a multiple of pp={c.pp} micro-batches, but accumulation_steps={c.accumulation_steps}",
                remedy="use virtual_stages=1, or another micro_batch_size or global_batch_size",
            ),
            Rule(
                c.cp > 1 and workload.seq_len % (2 * c.cp),
                "cp",
                f"seq_len={workload.seq_len} must be a multiple of 2 * cp",
                remedy=f"use cp=1, or seq_len={next_multiple(workload.seq_len, 2 * c.cp)}",
            ),
            Rule(
                c.zero_stage == 1 and workload.optimizer == "sgd",
                "zero_stage",
                "the distributed optimizer supports only Adam",
                0,
            ),
            Rule(
                c.zero_stage >= 2 and c.pp > 1,
                "zero_stage",
                "Megatron-FSDP with pipeline stages is not supported here",
                1,
            ),
            *_module_rules(c),
            Rule(
                model.mtp_layers and c.ep_overlap and (model.mtp_layers > 1 or c.pp == 1),
                "ep_overlap",
                "ep_overlap with multi-token prediction needs exactly one such layer, and pp > 1",
                False,
            ),
            Rule(
                model.num_experts and c.tp > 1 and not c.sequence_parallel,
                "sequence_parallel",
                "experts with tensor parallelism need sequence parallelism",
                True,
            ),
            Rule(c.ep > 1 and not model.num_experts, "ep", "a dense model has no experts", 1),
            Rule(
                c.ep > 1 and c.precision == "fp16",
                "precision",
                "expert parallelism does not train in fp16",
                "bf16",
            ),
        ),
    )


def _module_rules(c: ParallelConfig) -> tuple[Rule, ...]:
    """What offloading, CUDA graphs and the overlap of experts cannot be combined with."""
    full, offloads_activations = c.recompute == "full", c.offload in ("activations", "all")
    return (
        Rule(
            c.offload in ("optimizer", "all") and c.zero_stage != 1,
            "offload",
            "only the distributed optimizer can be offloaded, and the distributed optimizer needs zero_stage=1",
            "none",
        ),
        Rule(
            offloads_activations and full,
            "offload",
            "with recompute=full there are no activations inside a layer to offload",
            "none",
        ),
        Rule(
            c.cuda_graph != "none" and (full or offloads_activations),
            "cuda_graph",
            "CUDA graphs cannot hold recompute=full or offloaded activations",
            "none",
        ),
        Rule(
            c.cuda_graph == "step" and c.recompute != "none",
            "cuda_graph",
            "a graph of the whole step cannot contain recomputation",
            "none",
        ),
        Rule(
            c.ep_overlap
            and (full or c.dispatcher == "allgather" or (c.pp > 1 and c.virtual_stages == 1)),
            "ep_overlap",
            "ep_overlap needs dispatcher alltoall or flex, no recompute=full, and virtual stages if pp > 1",
            False,
        ),
    )


def parse_iteration(line: str) -> StepMetrics | None:
    """` iteration 122/ 250000 | ... | elapsed time per iteration (ms): 865.2 | ... | lm loss:
    2.5E+00 | ...`, and memory reports."""
    text = clean(line)
    if (mib := number_in(text, _MEMORY)) is not None:
        return StepMetrics(peak_memory_bytes=mib * (1 << 20))
    iteration = _ITERATION.search(text)
    if not iteration:
        return None
    values = {name: number_in(text, pattern) for name, pattern in _FIELD.items()}
    milliseconds = values["time"]
    return StepMetrics(
        step=int(iteration[1]),
        step_time_s=None if milliseconds is None else milliseconds / 1e3,
        loss=values["loss"],
        grad_norm=values["norm"],
        skipped=bool(values["skipped"]),
    )
