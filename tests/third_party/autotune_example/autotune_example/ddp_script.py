"""A data-parallel training script of one's own: `torchrun train.py --micro-batch-size=... --accumulation-steps=... --precision=...`.

A trainer says which values it cannot express (`find_limits`), writes the launch (`build`) and reads the log (`parse_line`). `reads` lists the
knobs that it takes care of, by using or by refusing each of their values; knobs that are listed nowhere are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from autotune.spec import ParallelConfig, Workload
from autotune.trainers import Launch, Limit, StepMetrics, Trainer
from autotune.trainers.effective import effective
from autotune.trainers.torchrun import place, torchrun
from autotune.trainers.trainer import clean

ONLY: Mapping[str, Any] = {
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "ep": 1,
    "zero_stage": 0,
    "recompute": "none",
    "sequence_parallel": False,
    "pp_schedule": "1f1b",
    "virtual_stages": 1,
}
"""knobs of which the script knows one value"""
PRECISIONS: Mapping[str, str] = {"tf32": "fp32", "fp8": "bf16"}
"""precisions that the script does not know, each with the nearest that it does"""
STEP = re.compile(r"^step (\d{1,9}): ([\d.]{1,20}) s, loss ([\d.]{1,20})$")


class DdpScriptTrainer(Trainer):
    """A script that knows data parallelism and nothing else."""

    name = "ddp_script"
    summary = "train.py of the example package: data parallel only"
    reads = frozenset({"dp", "micro_batch_size", "accumulation_steps", "precision", "compile", *ONLY})

    def find_limits(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> tuple[Limit, ...]:
        """Everything but data parallelism in three precisions."""
        config = effective(config)  # knobs without effect are no reason to refuse
        wanted = {**ONLY, "precision": PRECISIONS.get(config.precision, config.precision)}
        return tuple(
            Limit(knob=knob, value=getattr(config, knob), message="train.py is data parallel only", nearest=value)
            for knob, value in wanted.items()
            if getattr(config, knob) != value
        )

    def build(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> Launch:
        """torchrun and the script with its arguments."""
        start = torchrun(
            place(workload.cluster, config), master_addr=options["master_addr"], master_port=options["master_port"]
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
        return Launch(argv=(*start, "train.py", *(f"--{name}={value}" for name, value in arguments.items()), *flags))

    def parse_line(self, line: str) -> StepMetrics | None:
        """`step 3: 0.251 s, loss 4.17`."""
        found = STEP.match(clean(line).strip())
        if found is None:
            return None
        return StepMetrics(step=int(found[1]), step_time_s=float(found[2]), loss=float(found[3]))
