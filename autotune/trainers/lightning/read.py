"""The configuration of a LightningCLI (`lightning.yaml`) read back, and the arguments of the
program."""

from __future__ import annotations

from typing import Any

from autotune.spec.texts.fsdp import stage_of
from autotune.trainers.documents.program_arguments import exported_program, own_program, program_of
from autotune.trainers.launch_files import FOLDER
from autotune.trainers.present_configuration import (
    KeyReader,
    PresentConfiguration,
    Reading,
    batch_of,
    completed,
)

READ_PRECISIONS = {
    "32-true": "fp32", "32": "fp32", 32: "fp32", "bf16-mixed": "bf16", "bf16-true": "bf16", "bf16": "bf16",
    "16-mixed": "fp16", "16-true": "fp16", "16": "fp16", 16: "fp16", "transformer-engine": "fp8",
}  # fmt: skip
"""our precisions; the weights of `16-true` are 16-bit too, which an export makes mixed"""
STAGES = {
    "auto": 0,
    "ddp": 0,
    **{
        f"ddp_{kind}": 0
        for kind in (
            "find_unused_parameters_true",
            "find_unused_parameters_false",
            "spawn",
            "notebook",
        )
    },
    "fsdp": 3,
    "fsdp_native": 3,
    "deepspeed": 2,
    **{f"deepspeed_stage_{stage}{tail}": stage for stage in (1, 2, 3) for tail in ("", "_offload")},
}
"""ZeRO stage of the strategies that are named by a word"""
WRITTEN_ANEW = (
    "accelerator", "num_nodes", "logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary",
    "use_distributed_sampler",
)  # fmt: skip
"""keys of an export's trainer section that are the same in each, or follow from the cluster"""


def read(present: PresentConfiguration) -> Reading:
    """lightning.yaml, and the arguments of the program."""
    keys = present.keys(".yaml", ".yml")
    stage, degrees, recompute = _read_strategy(keys)
    # DeepSpeed has weights in fp32 beside those in bf16 under either name
    pure = (
        keys.find("trainer.precision") == "bf16-true"
        and "deepspeed" not in str(keys.find("trainer.strategy")).lower()
    )
    precision = keys.word("trainer.precision", READ_PRECISIONS, "fp32")
    devices, nodes = _devices(keys), keys.positive("trainer.num_nodes")
    program = exported_program(present)
    own = own_program(present, "--config")
    knobs: dict[str, Any] = {
        **degrees,
        "precision": "tf32" if precision == "fp32" and present.tf32 else precision,
        "zero_stage": stage,
        "accumulation_steps": keys.positive("trainer.accumulate_grad_batches"),
    }
    options: dict[str, Any] = {
        "steps": keys.count("trainer.max_steps"),
        "seed": keys.count("seed_everything"),
    }
    if own is not None:
        options |= _own(present)
        knobs["micro_batch_size"] = keys.count(str(options.get("batch_key", "data.batch_size")))
        if layers := keys.find("trainer.strategy.init_args.auto_wrap_policy"):
            options["layer_class"] = layers[0]
        keys.drop(
            "trainer.strategy.init_args.auto_wrap_policy",
            "trainer.strategy.init_args.activation_checkpointing_policy",
        )
    else:
        knobs |= {"recompute": "none", "compile": False} if program_of(present.argv) else {}
        knobs |= program.knobs
        if "--recompute-layers" in present.argv:
            recompute = True
        if keys.find("trainer.logger"):
            keys.remarks.append(
                f"{keys.name}: trainer.logger is left out, because the exported program has no logger; to keep the logger, export your own program with the `script` option"
            )
        keys.drop(*(f"trainer.{key}" for key in WRITTEN_ANEW))
    keys.drop("trainer.accelerator")
    if recompute:
        knobs["recompute"] = "full"
    knobs = completed(knobs, ranks=devices * nodes if devices else present.ranks)
    return Reading(
        knobs=knobs,
        model_file=program.model_file,
        seq_len=program.seq_len,
        global_batch_size=batch_of(knobs),
        optimizer=program.optimizer,
        pure_bf16=pure,
        options={
            **program.options,
            **{option: value for option, value in options.items() if value is not None},
        },
        settings=keys.left,
        remarks=tuple(keys.remarks),
    )


def _devices(keys: KeyReader) -> int | None:
    """Ranks of a node, of a list as many as it names: `[0, 1]` or `"0,1"`; None where the program
    finds out."""
    said = keys.find("trainer.devices")
    listed = said.split(",") if isinstance(said, str) and "," in said else said
    if isinstance(listed, list):
        keys.drop("trainer.devices")
        return len(listed)
    if said in (-1, "-1"):
        keys.drop("trainer.devices")
        return None
    return keys.count("trainer.devices")


def _read_strategy(keys: KeyReader) -> tuple[int, dict[str, int | None], bool]:
    """(ZeRO stage, degrees that the strategy states, whether every layer is recomputed)"""
    written = keys.find("trainer.strategy")
    if not isinstance(written, dict):
        if str(written).endswith("_offload"):
            keys.remarks.append(
                f"{keys.name}: trainer.strategy={written} offloads to host memory, but plans assume that everything is on the GPU"
            )
        return keys.word("trainer.strategy", STAGES, 0), {"tp": 1}, False
    kind = str(keys.text("trainer.strategy.class_path")).rpartition(".")[2]
    inner = "trainer.strategy.init_args"
    if kind == "FSDPStrategy":
        recompute = bool(keys.find(f"{inner}.activation_checkpointing_policy"))
        stage = stage_of(keys.text(f"{inner}.sharding_strategy"))
        return 3 if stage is None else stage, {"tp": 1}, recompute
    if kind == "ModelParallelStrategy":
        degrees = {
            "tp": keys.count(f"{inner}.tensor_parallel_size"),
            "dp": keys.count(f"{inner}.data_parallel_size"),
        }
        return 3, degrees, False
    if kind == "DeepSpeedStrategy":
        return keys.count(f"{inner}.stage") or 2, {"tp": 1}, False
    if kind != "DDPStrategy":
        keys.remarks.append(
            f"{keys.name}: trainer.strategy={kind} is not supported, so it is read as ddp"
        )
    return 0, {"tp": 1}, False


def _own(present: PresentConfiguration) -> dict[str, Any]:
    """The user's program and its arguments, without `fit` and what an export adds."""
    script, *words = program_of(present.argv)
    kept = [word for word in words if not word.startswith("--trainer.callbacks")]
    ours = next(
        (
            at
            for at, word in enumerate(kept)
            if word in ("lightning.yaml", f"{FOLDER}/lightning.yaml")
        ),
        0,
    )
    if ours and kept[ours - 1] == "--config":
        del kept[ours - 1 : ours + 1]
    arguments = kept[1:] if kept[:1] == ["fit"] else kept
    return {"script": script, **({"script_args": arguments} if arguments else {})}
