"""autotune's own training loop: `torchrun -m autotune_workers.launch request.json`, the loop that trials run.

The request is a `TrialRequest` as plain values, in the same format that the ranks of a trial receive. The program prints one JSON object per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from autotune.spec import MeasureSpec, ParallelConfig, Workload
from autotune.trainers.effective import effective, word_limit
from autotune.trainers.file_formats import to_json
from autotune.trainers.launch_files import Launch
from autotune.trainers.limit import Limit
from autotune.trainers.present_configuration import PresentConfiguration, Reading
from autotune.trainers.readers import trial_request
from autotune.trainers.steplines import parse_step_line
from autotune.trainers.torchrun import place, torchrun
from autotune.trainers.trainer import Option, StepMetrics, Trainer

FOREVER_S = 1e9
"""an exported run has no deadline"""


class NativeTrainer(Trainer):
    """autotune's own loop."""

    name = "native"
    same_data = True
    summary = "autotune's own training loop, which trials run"
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "sequence_parallel", "pp_schedule", "virtual_stages", "compile",
    })  # fmt: skip
    can_import = True
    recognized_by = ('"trainer_options"', "autotune_workers.launch")
    options = (
        Option(
            name="learning_rate",
            meaning="at the smallest global batch; larger ones take it times sqrt(batch / smallest) for adamw, batch / smallest for sgd; "
            "default: 3e-4 for adamw, 0.01 for sgd",
            default=0.0,
        ),
        Option(
            name="loss_scale",
            meaning="of the first step in fp16; halved whenever gradients overflow; default: 65536",
            default=0.0,
        ),
        Option(name="steps", meaning="optimizer steps to run", default=50, export_only=True),
        Option(name="seed", meaning="seed of weights and data", default=0, export_only=True),
        Option(
            name="data",
            meaning="text or .bin file; default: the text that ships with autotune",
            default="",
            export_only=True,
        ),
        Option(
            name="master_addr",
            meaning="address of node 0; default: each node is told when it starts",
            default="",
            export_only=True,
        ),
        Option(
            name="master_port",
            meaning="port at which several nodes meet; default: as told, else 29500",
            default=0,
            export_only=True,
        ),
        Option(
            name="nearest",
            meaning="take the nearest values that the trainer can express",
            default=False,
            export_only=True,
        ),
    )

    def find_limits(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> tuple[Limit, ...]:
        """What CPU ranks cannot compute, and what the zero-bubble schedule cannot split."""
        c = effective(config)
        limits: list[Limit] = []
        if workload.cluster.gpu.is_cpu:
            limits += word_limit(
                c, "precision", {"fp8": "bf16", "tf32": "fp32"}, "CPU ranks compute in fp32, bf16 or fp16"
            )
        if c.pp_schedule == "interleaved_zero_bubble":
            split = "the zero-bubble schedule splits the backward pass, which is impossible for"
            if c.compile:
                limits.append(Limit(knob="compile", value=True, message=f"{split} compiled layers", nearest=False))
            if c.recompute != "none":
                message = f"{split} recomputed layers"
                limits.append(Limit(knob="recompute", value=c.recompute, message=message, nearest="none"))
        return tuple(limits)

    def build(self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]) -> Launch:
        """torchrun, the module and a request file."""
        steps = options["steps"]
        request = {
            "study": "export",
            "number": 0,
            "attempt": 1,
            "workload": asdict(workload),
            "config": config.to_dict(),
            "measure": asdict(MeasureSpec(min_steps=steps, max_steps=steps, trial_timeout_s=FOREVER_S)),
            "seed": options["seed"],
            "trainer_options": {name: options[name] for name in ("learning_rate", "loss_scale") if options[name]},
            "data": options["data"] or None,
        }
        start = torchrun(
            place(workload.cluster, config), master_addr=options["master_addr"], master_port=options["master_port"]
        )
        return Launch(
            argv=(*start, "-m", "autotune_workers.launch", "request.json"),
            env={"OMP_NUM_THREADS": "1"} if workload.cluster.gpu.is_cpu else {},
            files={"request.json": to_json(request)},
        )

    def read_config(self, present: PresentConfiguration) -> Reading:
        """The request."""
        return trial_request.read(present)

    def parse_line(self, line: str) -> StepMetrics | None:
        """One JSON object per step."""
        return parse_step_line(line)


TRAINER = NativeTrainer()
