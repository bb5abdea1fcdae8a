"""A data-parallel training script of one's own: `torchrun train.py --micro-batch-size=...
--accumulation-steps=... --precision=...`.

A trainer says which values it cannot express (`find_limits`), writes the launch (`build`) and reads
the log (`parse_line`). `reads` lists the knobs that it takes care of, by using or by refusing each
of their values, `cannot` those that it has nothing for; knobs that are listed nowhere are refused
too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from autotune.spec import ParallelConfig, Workload
from autotune.trainers import Launch, Limit, StepMetrics, Trainer
from autotune.trainers.base.torchrun import place, torchrun
from autotune.trainers.base.trainer import clean

ABSENT = (
    "tp", "pp", "cp", "ep", "zero_stage", "recompute", "sequence_parallel", "pp_schedule", "virtual_stages", "dp_replicas", "pp_split",
    "loss", "cp_style", "activation_budget", "offload", "async_tp", "cuda_graph", "dispatcher", "ep_overlap",
)  # fmt: skip
"""knobs that the script has nothing for"""
PRECISIONS: Mapping[str, str] = {"tf32": "fp32", "fp8": "bf16", "mxfp8": "bf16", "nvfp4": "bf16"}
"""precisions that the script does not know, each with the nearest that it does"""
STEP = re.compile(r"^step (\d{1,9}): ([\d.]{1,20}) s, loss ([\d.]{1,20})$")


class DdpScriptTrainer(Trainer):
    """A script that knows data parallelism and nothing else."""

    name = "ddp_script"
    summary = "train.py of the example package: data parallel only"
    reads = frozenset({"dp", "micro_batch_size", "accumulation_steps", "precision", "compile"})
    cannot: ClassVar = dict.fromkeys(ABSENT, "train.py is data parallel only")

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """Precisions that the script does not know; what it has nothing for stands in `cannot`."""
        known = PRECISIONS.get(config.precision)
        message = "train.py computes in fp32, bf16 or fp16"
        return (
            (Limit(knob="precision", value=config.precision, message=message, nearest=known),)
            if known
            else ()
        )

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """torchrun and the script with its arguments."""
        start = torchrun(
            place(workload.cluster, config),
            master_addr=options["master_addr"],
            master_port=options["master_port"],
        )
        arguments = {
            "sequence-length": workload.seq_len,
            "micro-batch-size": config.micro_batch_size,
            "accumulation-steps": config.accumulation_steps,
            "precision": config.precision,
            "learning-rate": options["learning_rate"],
            "steps": options["steps"],
            "seed": options["seed"],
        }
        flags = ("--compile",) if config.compile else ()
        return Launch(
            argv=(
                *start,
                "train.py",
                *(f"--{name}={value}" for name, value in arguments.items()),
                *flags,
            )
        )

    def parse_line(self, line: str) -> StepMetrics | None:
        """`step 3: 0.251 s, loss 4.17`."""
        found = STEP.match(clean(line).strip())
        if found is None:
            return None
        return StepMetrics(step=int(found[1]), step_time_s=float(found[2]), loss=float(found[3]))
