"""Limits of trainers that do not depend on their own code.

For autotune's own training loop with a model built by code: parallelism that needs a plan which
the model does not provide, and features that exist only in the built-in decoder. Always supported
are DDP and ZeRO 0 to 3 with replicas, accumulation, precision, `recompute=full`, compilation and
adapters; tp with a tensor plan, and pp with a split.

For any trainer: workloads and models that the trainer does not support according to its
`Abilities`.

For launchers in a command: configs of which the launcher would silently start only some ranks.

    torchrun --standalone, --nnodes=1    each node trains alone
    accelerate launch                    each node trains alone without `--machine_rank`; on CPUs it starts only one process
                                         (accelerate 1.15, commands/launch.py: `launch_command` ends in `simple_launcher` without a GPU)
    deepspeed                            starts all nodes from one of them, or only its own without `--no_ssh`

The launcher is the first word of the command, or the module that its Python runs. Launchers inside
scripts are not recognized.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from autotune.spec import ClusterSpec, ModelCode, ModelSpec, ParallelConfig, Workload, number_of
from autotune.spec.hugging_face.families import FAMILIES
from autotune.spec.hugging_face.figures import figures_of
from autotune.spec.post_training import RL_KNOBS, PostTraining
from autotune.trainers.base.abilities import UNCOMMON_SHAPES, Abilities
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.torchrun import Placement
from autotune.trainers.base.trained_families import OWN_PROGRAM, who_trains
from autotune.trainers.launch_files import INTERPRETER


def own_model_limits(workload: Workload, c: ParallelConfig) -> list[Limit]:
    """Values that the loop cannot express for a model built by code; empty for a model of the
    catalog or one given by its shape."""
    code = workload.model.code
    if workload.model.is_counted:
        return [_counted(workload.model, "native")]
    if code is None:
        return []
    packed = Rule(
        workload.document_len,
        "workload.document_len",
        "packed documents need attention that respects document boundaries, and a model built by its own code may ignore these boundaries",
        0,
    )
    return broken(
        workload, c, *_plans(workload, code, c), *_decoder_alone(c), *_loss(code, c), packed
    )


def unequal_limits(workload: Workload, c: ParallelConfig) -> list[Limit]:
    """Limits of the loop for sequences of unequal length. For sequences of equal length, only knobs
    that require unequal ones."""
    rl = workload.rl
    if rl is None:
        message = (
            "this knob is for sequences of unequal length, but all sequences have seq_len tokens"
        )
        remedy = "describe unequal lengths under `rl` or workload.lengths"
        return [
            Limit(knob=name, value=value, message=message, remedy=remedy)
            for name, value in c.extra.items()
            if name in RL_KNOBS
        ]
    reason = "but micro-batches have unequal lengths"
    offload = c.extra.get("phase_offload", rl.phase_offload)
    ours = "the built-in decoder packs sequences, but this model is built by its own code"
    return broken(
        workload,
        c,
        Rule(c.pp > 1, "pp", f"a pipeline's stages send tensors of a fixed shape, {reason}", 1),
        Rule(c.cp > 1, "cp", f"sequences are cut into equal chunks, {reason}", 1),
        Rule(c.compile, "compile", f"layers are compiled for a fixed shape, {reason}", False),
        Rule(c.precision == "fp8", "precision", f"matrix products in fp8 need multiples of 16 tokens, {reason}", "bf16"),
        Rule(workload.document_len, "workload.document_len", f"packed documents need sequences of equal length, {reason}", 0),
        Rule(workload.model.code is not None, "model.code", ours, value=workload.model.name, remedy="describe the model by its shape"),
        Rule(rl.critic is not None, "workload.rl.critic", "the loop trains only one model", value="ppo", remedy="use algorithm grpo, or trainer verl, nemo_rl or openrlhf"),
        Rule(offload != "none", "phase_offload", "weights and optimizer states stay on the rank's device", value=offload, remedy="use phase_offload=none"),
        step_rule(rl, c),
    )  # fmt: skip


def step_rule(rl: PostTraining, c: ParallelConfig) -> Rule:
    """The rule that a config's optimizer step has as many sequences as the workload's."""
    return Rule(
        c.global_batch_size != rl.mini_batch,
        "accumulation_steps",
        f"an optimizer step of this workload has {number_of(rl.mini_batch, 'sequence')}, but micro_batch_size * accumulation_steps * dp = {c.global_batch_size}",
        remedy="make this product equal prompts * responses / mini_batches",
        value=c.accumulation_steps,
    )


def module_limits(model: ModelSpec, trainer: str) -> Iterator[Limit]:
    """Limits of a trainer that builds models from shapes: it cannot use a user's module, nor a
    model known only by its number of weights."""
    if model.is_counted:
        yield _counted(model, trainer)
    elif model.code is not None and model.code.module:
        message = f"the {trainer} trainer builds a model from its shape and cannot use a module"
        remedy = "use trainer native or a command that builds the module, or set the model to {hf: PATH} or its shape"
        yield Limit(knob="model.code", value=model.code.module, message=message, remedy=remedy)


def _counted(model: ModelSpec, trainer: str) -> Limit:
    message = f"the {trainer} trainer builds the model, but only the weight count of {model.name} is known"
    remedy = "use trainer command with a program that builds the model, or set the model to its shape, {hf: PATH} or {module: PACKAGE.MODULE:FUNCTION}"
    return Limit(
        knob="model.parameters", value=model.num_parameters, message=message, remedy=remedy
    )


def _plans(workload: Workload, code: ModelCode, c: ParallelConfig) -> tuple[Rule, ...]:
    name, stages, cuts = workload.model.name, c.pp * c.virtual_stages, code.num_cuts
    builder = "the builder" if code.module else "the builder of a {module: ...}"
    return (
        Rule(
            c.tp > 1 and not code.has_tensor_plan,
            "tp",
            f"{name} has no tensor-parallel plan that the loop supports",
            remedy=f"use tp=1, or return a `tp_plan` from {builder}",
        ),
        Rule(
            c.pp > 1 and not code.has_pipeline_split,
            "pp",
            f"{name} defines no split points for a pipeline",
            remedy=f"use pp=1, or return a `pp_split` from {builder}",
        ),
        Rule(
            c.pp > 1 and code.has_pipeline_split and stages > cuts + 1,
            "pp",
            f"{name} has {cuts} split points, so at most {cuts + 1} stages, but pp * virtual_stages = {stages}",
            remedy="use a smaller pp, or add split points to `pp_split`",
        ),
        Rule(
            c.recompute == "selective" and not code.has_attention,
            "recompute",
            f"no module in {name}'s blocks has attention (attn) in its name",
            "full",
        ),
    )


def _decoder_alone(c: ParallelConfig) -> tuple[Rule, ...]:
    """Rules for features that only the built-in decoder has."""
    reason = "only in the built-in decoder, but this model is built by its own code"
    return (
        Rule(c.cp > 1, "cp", f"context parallelism replaces the attention {reason}", 1),
        Rule(c.ep > 1, "ep", f"expert parallelism replaces the experts {reason}", 1),
        Rule(
            c.sequence_parallel,
            "sequence_parallel",
            f"sequence parallelism splits the activations between a tensor plan's modules {reason}",
            False,
        ),
        Rule(c.precision == "fp8", "precision", f"fp8 replaces the projections {reason}", "bf16"),
        Rule(
            c.pp_split != "layers",
            "pp_split",
            f"the first and last stages can be balanced {reason}",
            "layers",
        ),
        Rule(
            c.pp_schedule == "interleaved_zero_bubble",
            "pp_schedule",
            f"this schedule can split the layers' backward pass {reason}",
            "interleaved_1f1b",
        ),
        Rule(
            c.recompute in ("norm", "mlp"),
            "recompute",
            f"these modules are known {reason}",
            "full",
        ),
    )


def _loss(code: ModelCode, c: ParallelConfig) -> tuple[Rule, ...]:
    """Rules for the loss: only for transformers' own classes can the loop compute it in chunks, in
    the output projection."""
    return (
        Rule(
            c.loss != "own" and code.module,
            "loss",
            "a model built by its own code computes its own loss; only transformers' own classes ({hf: PATH}) have a chunked loss",
            "own",
        ),
        Rule(
            c.loss == "chunked" and c.tp > 1 and not code.module,
            "loss",
            "the tensor plan gathers the logits, but a chunked loss never has all logits at once",
            "own",
        ),
    )


OTHERS = f"a trainer that reads the config.json itself (accelerate, deepspeed, hf_trainer, lightning, megatron_bridge, native), or {OWN_PROGRAM}"
"""trainers that may train a model that a trainer does not build"""


def workload_limits(trainer: Abilities, workload: Workload, c: ParallelConfig) -> list[Limit]:
    """Limits for optimizer, packed documents, post-training, pure bf16, stored attention scores,
    loop and adapters."""
    rl, peft, name = workload.rl, workload.peft, trainer.name
    kind = (
        "sequences of unequal length"
        if rl is not None and rl.algorithm == "sft"
        else "post-training steps"
    )
    return broken(
        workload,
        c,
        Rule(
            workload.optimizer not in trainer.optimizers,
            "workload.optimizer",
            f"the {name} trainer supports {', '.join(sorted(trainer.optimizers))}",
            "adamw",
        ),
        Rule(
            workload.document_len and not trainer.packs_documents,
            "workload.document_len",
            f"the {name} trainer attends over whole sequences",
            0,
        ),
        Rule(
            rl is not None and not trainer.trains_rl,
            "workload.rl",
            f"the {name} trainer does not support {kind}",
            remedy="use verl, nemo_rl, openrlhf, trl, command with your own program, or native, which runs only the trainer's phases",
            value=rl and rl.algorithm,
        ),
        Rule(
            workload.pure_bf16 and not trainer.trains_pure_bf16,
            "workload.pure_bf16",
            f"the {name} trainer's launches keep weights or moments in fp32",
            False,
            "use torchtitan, lightning, or command with your own program",
        ),
        Rule(
            workload.unfused_attention and not trainer.has_unfused_attention,
            "workload.unfused_attention",
            f"the {name} trainer's launches use attention kernels that never store the scores",
            False,
            "remove unfused_attention, or use the megatron trainer, or the command trainer with your own program",
        ),
        Rule(
            bool(workload.attention_kernel) and trainer.has_own_attention,
            "workload.attention_kernel",
            f"the {name} trainer chooses its attention kernel itself",
            remedy="remove attention_kernel",
            value=workload.attention_kernel,
        ),
        Rule(
            bool(workload.loop) and not trainer.runs_own_program,
            "workload.loop",
            f"the {name} trainer has its own training loop",
            remedy="remove loop, or use command with your own program",
            value=workload.loop,
        ),
        Rule(
            peft is not None and peft.method not in trainer.peft_methods,
            "workload.peft",
            f"the {name} trainer cannot train adapters this way ({trainer.no_adapters})",
            remedy="use command with your own program, or native for lora",
            value=peft and peft.method,
        ),
    )


def shape_limits(trainer: Abilities, workload: Workload) -> Iterator[Limit]:
    """Limits for a user's module, a family that the trainer would train as another one, and shapes
    that it does not build."""
    model = workload.model
    if not (trainer.trains_modules or trainer.has_own_model):
        yield from module_limits(model, trainer.name)
    if model.code is not None and trainer.trains_modules:
        return  # its own code builds the model
    figures = figures_of(model)
    if model.mtp_layers and "mtp_layers" not in trainer.shapes:
        message = f"the {trainer.name} trainer builds no {UNCOMMON_SHAPES['mtp_layers']}"
        remedy = f"use megatron, megatron_bridge, or {OWN_PROGRAM}"
        yield Limit(
            knob="model.mtp_layers",
            value=model.mtp_layers,
            message=message,
            nearest=0,
            remedy=remedy,
        )
    if figures is not None and trainer.reads_config_json:
        known = FAMILIES.get(figures.family)  # None for families that are not in the table
        if known is not None and not known.has_class:
            message = f"the {trainer.name} trainer builds the transformers class that config.json names, but transformers has no class for this model"
            remedy = f"use {who_trains(figures.family)}"
            yield Limit(knob="model.family", value=figures.family, message=message, remedy=remedy)
        return
    alternatives = (
        f"megatron, {OTHERS}" if figures is None else who_trains(figures.family, but=trainer.name)
    )
    if figures is not None and model.source and not trainer.knows(figures.family):
        message = f"the {trainer.name} trainer would train a model that differs from this config.json; the trainer supports {trainer.known_families}"
        remedy = f"if a plain model with the same sizes is enough, set the sizes instead of the file; otherwise use {alternatives}"
        yield Limit(knob="model.family", value=figures.family, message=message, remedy=remedy)
    for name, what in UNCOMMON_SHAPES.items():
        value = getattr(model, name)
        if value and name not in trainer.shapes and name != "mtp_layers":
            message = f"the {trainer.name} trainer builds no {what}"
            yield Limit(
                knob=f"model.{name}", value=value, message=message, remedy=f"use {alternatives}"
            )


MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
"""modules that start launchers"""
MACHINES = (
    *("--multi_gpu", "--num_machines={nnodes}", "--machine_rank={node_rank}"),
    *("--main_process_ip={master_addr}", "--main_process_port={master_port}"),
)
"""options of `accelerate launch` for several nodes; without the first one, nodes with one GPU each
train alone (commands/launch.py of accelerate 1.15)"""
_FORMS_RANKS = ("--multi_gpu", "--config_file", "--use_fsdp", "--use_deepspeed")
"""options each of which also makes nodes with one GPU train together"""
DEEPSPEED_ONE = ("--num_gpus={nproc_per_node}", "--master_port={master_port}")
"""options of `deepspeed` on one node"""
DEEPSPEED_NODES = (
    *("--hostfile=hostfile", "--no_ssh", "--num_nodes={nnodes}", "--num_gpus={nproc_per_node}"),
    *("--node_rank={node_rank}", "--master_addr={master_addr}", "--master_port={master_port}"),
)
"""options of `deepspeed` for several nodes. Without a hostfile (a line `HOST slots=GPUS` per node)
DeepSpeed knows only one node and rejects any other rank (launcher/runner.py)"""


def launcher_limits(
    argv: Sequence[str], placement: Placement, cluster: ClusterSpec
) -> Iterator[Limit]:
    """Limits if the launcher in this command would start fewer ranks than the config has, or nodes
    that train separately. `argv`: as in the spec."""
    name = _launcher(argv)
    if (
        name == "accelerate"
        and cluster.gpu.is_cpu
        and placement.world_size > 1
        and not _has(argv, "--mpirun_hostfile")
    ):
        yield Limit(
            knob="world_size",
            value=placement.world_size,
            message="on CPUs, `accelerate launch` starts only one process",
            remedy="start the script with torchrun, and set env: {ACCELERATE_USE_CPU: 'true'}; otherwise ranks train separately",
        )
    elif placement.nnodes > 1 and (found := _on_one_node(name, argv, placement.nproc_per_node)):
        message, remedy = found
        yield Limit(knob="nnodes", value=placement.nnodes, message=message, remedy=remedy)


def _on_one_node(name: str, argv: Sequence[str], gpus: int) -> tuple[str, str] | None:
    """(why each node would train alone, remedy); None if the nodes train together."""
    if name == "torchrun" and (_has(argv, "--standalone") or _has(argv, "--nnodes", "1")):
        option = "--standalone" if _has(argv, "--standalone") else "--nnodes=1"
        return (
            f"the ranks are on several nodes, but with {option} torchrun stays on one node",
            f"remove {option} from trainer.argv, because torchrun gets the rendezvous address from its environment",
        )
    if (
        name == "accelerate"
        and gpus == 1
        and not any(_has(argv, option) for option in _FORMS_RANKS)
    ):
        return (
            "with one GPU per node, accelerate launch would train on each node separately",
            "add --multi_gpu to trainer.argv",
        )
    if name == "accelerate" and not _has(argv, "--machine_rank"):
        return (
            "accelerate launch would train on each node separately",
            f"add these arguments to trainer.argv before the script: {' '.join(MACHINES)}",
        )
    if name == "deepspeed" and not (_has(argv, "--no_ssh") and _has(argv, "--hostfile")):
        return (
            "deepspeed would train on each node separately",
            "start the script with torchrun, or use a hostfile with one line `HOST slots=GPUS` per node and add these arguments to trainer.argv before the script: "
            + " ".join(DEEPSPEED_NODES),
        )
    return None


def _launcher(argv: Sequence[str]) -> str:
    """Name of the launcher; empty if the command has no known one."""
    first = os.path.basename(argv[0]) if argv else ""
    if INTERPRETER.fullmatch(first) and "-m" in argv[:-1]:
        return MODULES.get(argv[argv.index("-m") + 1], "")
    if first == "accelerate-launch" or (first == "accelerate" and argv[1:2] == ["launch"]):
        return "accelerate"
    return first if first in ("torchrun", "deepspeed") else ""


def _has(argv: Sequence[str], option: str, value: str = "") -> bool:
    """Whether the command has the option, with this value if one is given. Dashes and underscores
    in names are equal."""
    for place, word in enumerate(argv):
        name, _, rest = word.partition("=")
        if name.replace("_", "-") == option.replace("_", "-"):
            rest = rest or next(iter(argv[place + 1 : place + 2]), "")
            return not value or rest == value
    return False
