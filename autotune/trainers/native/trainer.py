"""autotune's own training loop: `torchrun -m autotune_workers.launch request.json`, the loop that
trials run.

The request is a `TrialRequest` as plain values, in the same format that the ranks of a trial
receive. The program prints one JSON object per step.

Of a step of post-training it runs the trainer's phases alone, log-probabilities and the update, on
sequences of drawn lengths; nothing is generated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, ClassVar

from autotune.errors import SpecError
from autotune.spec import FIELDS, MeasureSpec, ParallelConfig, Workload
from autotune.spec.post_training import RL_KNOBS
from autotune.trainers.base.effective import effective, word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.torchrun import ranks_started
from autotune.trainers.base.trainer import Option, StepLineTrainer
from autotune.trainers.base.trainer_option import MASTER_ADDR, MASTER_PORT, WORKING_DIR, Reach
from autotune.trainers.base.workload_limits import own_model_limits, unequal_limits
from autotune.trainers.documents.file_formats import to_json
from autotune.trainers.launch_files import Launch
from autotune.trainers.present_configuration import (
    KeyReader,
    PresentConfiguration,
    Reading,
    parse_document,
)

FOREVER_S = 1e9
"""an exported run has no deadline"""


class NativeTrainer(StepLineTrainer):
    """autotune's own loop."""

    name = "native"
    same_data = True
    summary = "autotune's own training loop"
    no_adapters = "the loop has no 4-bit weights"
    has_own_attention = True
    reads = frozenset({
        "tp", "pp", "dp", "cp", "ep", "micro_batch_size", "accumulation_steps", "precision",
        "recompute", "zero_stage", "sequence_parallel", "pp_schedule", "virtual_stages", "compile",
        "dp_replicas", "pp_split", "loss", "cp_style", "activation_budget", "dispatcher",
    })  # fmt: skip
    cannot: ClassVar = {
        "offload": "activations and optimizer states stay on the rank's device",
        "async_tp": "async_tp needs symmetric GPU memory, which the loop does not set up",
        "cuda_graph": "the loop launches each kernel separately",
        "ep_overlap": "the loop runs micro-batches one after another, each with its own all-to-all",
        "loss=full": "the loop computes all logits at once by default; use loss=own",
        "loss=fused": "the loop has no fused kernel for output projection and cross entropy",
        "dispatcher=flex": "the loop does not call DeepEP or HybridEP",
        "precision=mxfp8": "the loop's fp8 matrix products have one scale per tensor, not per block",
        "precision=nvfp4": "the loop has no 4-bit matrix products",
    }
    optimizers = frozenset({"adamw", "sgd", "muon", "adafactor"})
    packs_documents = True
    peft_methods = frozenset({"lora"})
    trains_rl = True
    trains_modules = True
    can_import = True
    recognized_by = ("trainer_options", "autotune_workers.launch")
    options = (
        Option(
            name="learning_rate",
            meaning="learning rate at the smallest global batch; larger batches multiply the rate by sqrt(batch / smallest) for adamw, batch / smallest for sgd; "
            "default: 3e-4 for adamw and muon, 0.01 for sgd and adafactor",
            default=0.0,
            reach=Reach.NOTHING,
        ),
        Option(
            name="loss_scale",
            meaning="loss scale of the first step in fp16, which is halved whenever gradients overflow; default: 65536",
            default=0.0,
            reach=Reach.NOTHING,
        ),
        Option(
            name="steps",
            meaning="optimizer steps to run",
            default=50,
            export_only=True,
            reach=Reach.NOTHING,
            least=1,
        ),
        Option(
            name="seed",
            meaning="seed of weights and data",
            default=0,
            export_only=True,
            reach=Reach.NOTHING,
        ),
        Option(
            name="data",
            meaning="text or .bin file; default: the bundled text",
            default="",
            export_only=True,
            reach=Reach.FILE,
        ),
        WORKING_DIR,
        replace(MASTER_ADDR, export_only=True),
        replace(MASTER_PORT, export_only=True),
        Option(
            name="nearest",
            meaning="use the nearest values that the trainer can express",
            default=False,
            export_only=True,
            reach=Reach.NOTHING,
        ),
    )

    def own_knob_refusal(self, name: str, options: Mapping[str, Any]) -> str:
        """Nothing for the knobs of post-training."""
        return "" if name in RL_KNOBS else super().own_knob_refusal(name, options)

    def find_limits(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> tuple[Limit, ...]:
        """What CPU ranks cannot compute, what the zero-bubble schedule cannot split, and what cuts
        documents, matrices, adapters or experts wrongly."""
        c, model = effective(config), workload.model
        on_cpu = {"fp8": "bf16", "tf32": "fp32"} if workload.cluster.gpu.is_cpu else {}
        splits = c.pp_schedule == "interleaved_zero_bubble"
        split = "the zero-bubble schedule splits the backward pass, which is impossible for"
        needs_matrices = workload.optimizer in ("muon", "adafactor")
        matrices = f"{workload.optimizer} needs whole matrices on every rank"
        adapts = workload.peft is not None
        return (
            *word_limit(c, "precision", on_cpu, "CPU ranks compute in fp32, bf16 or fp16"),
            *broken(
                workload,
                c,
                Rule(splits and c.compile, "compile", f"{split} compiled layers", False),
                Rule(
                    splits and c.recompute != "none",
                    "recompute",
                    f"{split} recomputed layers",
                    "none",
                ),
            ),
            *own_model_limits(workload, c),
            *unequal_limits(workload, c),
            *broken(
                workload,
                c,
                Rule(
                    workload.document_len and c.cp > 1 and c.cp_style == "ring",
                    "cp_style",
                    "the ring passes whole chunks of keys and values, which may cross document boundaries in a packed sequence",
                    "gather",
                ),
                Rule(needs_matrices and c.tp > 1, "tp", matrices),
                Rule(needs_matrices and c.zero_stage, "zero_stage", matrices, 0),
                Rule(
                    adapts and c.precision == "fp8",
                    "precision",
                    "fp8 replaces the projections to which adapters attach",
                    "bf16",
                ),
                Rule(
                    adapts
                    and c.pp_split == "edges"
                    and (model.num_layers + 2) // (c.pp * c.virtual_stages) < 2,
                    "pp_split",
                    "adapters need layers, but the last stage would have only the loss",
                    "layers",
                ),
                Rule(
                    c.dp_replicas > 1 and c.dp * c.cp // c.ep % c.dp_replicas,
                    "dp_replicas",
                    "each replica of the shards needs the same expert ranks, so dp_replicas must divide dp * cp / ep",
                    1,
                ),
            ),
        )

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """torchrun, the module and a request file."""
        steps = options["steps"]
        request = {
            "study": "export",
            "number": 0,
            "attempt": 1,
            "workload": asdict(workload),
            "config": config.to_dict(),
            "measure": asdict(
                MeasureSpec(min_steps=steps, max_steps=steps, trial_timeout_s=FOREVER_S)
            ),
            "seed": options["seed"],
            "trainer_options": {
                name: options[name] for name in ("learning_rate", "loss_scale") if options[name]
            },
            "data": options["data"] or None,
        }
        start = ranks_started(workload, config, options)
        synthetic = "the launch only measures the trainer's phases on sampled lengths; for post-training, export to verl, nemo_rl, openrlhf or trl"
        return Launch(
            notes=(synthetic,) if workload.rl is not None else (),
            argv=(*start, "-m", "autotune_workers.launch", "request.json"),
            env={"OMP_NUM_THREADS": "1"} if workload.cluster.gpu.is_cpu else {},
            files={"request.json": to_json(request)},
        )

    def read_config(self, present: PresentConfiguration) -> Reading:
        """The request."""
        name, text = present.named(".json")
        document = parse_document(name, text)
        config, workload = document.get("config"), document.get("workload")
        if not isinstance(config, dict) or not isinstance(workload, dict):
            raise SpecError(
                f"{name} is not a request for the native trainer, because it lacks a config or a workload",
                remedy="use the request.json from an exported folder",
                field="FILE",
            )
        keys = KeyReader(document, name)
        batch = [
            keys.positive(f"config.{name}")
            for name in ("micro_batch_size", "accumulation_steps", "dp")
        ]
        options = {
            name: keys.number(f"trainer_options.{name}") for name in ("learning_rate", "loss_scale")
        }
        return Reading(
            knobs={knob: config[knob] for knob in FIELDS if knob in config},
            model=dict(workload.get("model") or {}),
            seq_len=keys.count("workload.seq_len"),
            global_batch_size=math.prod(batch),  # a workload may allow several
            optimizer=keys.text("workload.optimizer") or "",
            cluster=keys.text("workload.cluster.name") or "",
            options=options,
            remarks=tuple(keys.remarks),
        )


TRAINER = NativeTrainer()
