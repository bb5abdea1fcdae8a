"""What autotune's own training loop cannot do with a model that code builds: what needs a plan that the model does not bring, and what only the decoder
that ships is made for.

Always: DDP and ZeRO 0 to 3 with replicas, accumulation, precision, `recompute=full`, compilation, adapters. With a tensor plan: tp. With a split: pp.

What a trainer cannot be told of the workload and its model, whatever the config: from what the trainer declares of itself.

Launchers in a command, and configs of which they would silently start only a part.

    torchrun --standalone, --nnodes=1    each node trains alone
    accelerate launch                    each node trains alone unless it is told its number (`--machine_rank`); on CPUs it starts one process only
                                         (accelerate 1.15, commands/launch.py: `launch_command` ends in `simple_launcher` where there is no GPU)
    deepspeed                            starts all nodes from one of them, or only its own, unless it is told its number (`--no_ssh`)

A launcher is the first word of the command, or the module that its Python runs. Other programs, and launchers inside scripts, are not known.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from autotune.spec import ClusterSpec, ModelCode, ModelSpec, ParallelConfig, Workload
from autotune.spec.hugging_face_families import FAMILIES
from autotune.spec.model_figures import figures_of
from autotune.trainers.launch_files import INTERPRETER
from autotune.trainers.limit import Limit
from autotune.trainers.torchrun import Placement
from autotune.trainers.trained_families import OWN_PROGRAM, who_trains


def own_model_limits(workload: Workload, c: ParallelConfig) -> Iterator[Limit]:
    """The values that the loop cannot express; none for a model of the catalog or of a shape."""
    code = workload.model.code
    if workload.model.is_counted:
        yield _counted(workload.model, "native")
    elif code is not None:
        yield from _plans(workload, code, c)
        yield from _decoder_alone(c)
        yield from _loss(code, c)
        yield from _workload(workload)


def module_limits(model: ModelSpec, trainer: str) -> Iterator[Limit]:
    """For a trainer that builds models from shapes: it cannot be given a user's module, nor a model of which the number of weights alone is known."""
    if model.is_counted:
        yield _counted(model, trainer)
    elif model.code is not None and model.code.module:
        message = f"the trainer {trainer} builds a model from its shape, and cannot be given a module"
        remedy = "use trainer native, a command that builds it, or give the model as {hf: PATH} or by its shape"
        yield Limit(knob="model.code", value=model.code.module, message=message, remedy=remedy)


def _counted(model: ModelSpec, trainer: str) -> Limit:
    message = f"the trainer {trainer} builds the model, and of {model.name} the number of weights alone is known"
    remedy = "use trainer command with a program that builds it, or give the model's shape, {hf: PATH} or {module: PACKAGE.MODULE:FUNCTION}"
    return Limit(knob="model.parameters", value=model.num_parameters, message=message, remedy=remedy)


def _plans(workload: Workload, code: ModelCode, c: ParallelConfig) -> Iterator[Limit]:
    name, brings = (
        workload.model.name,
        "return it from the builder" if code.module else "build it by {module: ...} with one",
    )
    if c.tp > 1 and not code.has_tensor_plan:
        message = f"{name} brings no plan for tensor parallelism that the loop applies"
        yield Limit(knob="tp", value=c.tp, message=message, remedy=f"use tp=1, or {brings} (`tp_plan`)")
    stages = c.pp * c.virtual_stages
    if c.pp > 1 and not code.has_pipeline_split:
        message = f"{name} does not say where a pipeline may cut it"
        yield Limit(knob="pp", value=c.pp, message=message, remedy=f"use pp=1, or {brings} (`pp_split`)")
    elif c.pp > 1 and stages > code.num_cuts + 1:
        message = f"{name} can be cut at {code.num_cuts} places, so into {code.num_cuts + 1} stages at most, but pp * virtual_stages = {stages}"
        remedy = "use a smaller pp, or name more places in `pp_split`"
        yield Limit(knob="pp", value=c.pp, message=message, remedy=remedy)
    if c.recompute == "selective" and not code.has_attention:
        message = f"no module in the blocks of {name} is called attention (attn)"
        yield Limit(knob="recompute", value="selective", message=message, nearest="full")


def _decoder_alone(c: ParallelConfig) -> Iterator[Limit]:
    """What is written for the layers of the decoder that ships."""
    reason = "only the decoder that ships is made for it, and this model is built by code of its own"
    if c.cp > 1:
        yield Limit(knob="cp", value=c.cp, message=f"context parallelism replaces the attention: {reason}", nearest=1)
    if c.ep > 1:
        yield Limit(knob="ep", value=c.ep, message=f"expert parallelism replaces the experts: {reason}", nearest=1)
    if c.sequence_parallel:
        message = f"sequence parallelism cuts what flows between the modules of a tensor plan: {reason}"
        yield Limit(knob="sequence_parallel", value=True, message=message, nearest=False)
    if c.precision == "fp8":
        yield Limit(knob="precision", value="fp8", message=f"fp8 replaces the projections: {reason}", nearest="bf16")
    if c.pp_split != "layers":
        message = f"the first and the last stage are not weighed: {reason}"
        yield Limit(knob="pp_split", value=c.pp_split, message=message, nearest="layers")
    if c.pp_schedule == "interleaved_zero_bubble":
        message = f"it splits the backward pass of every layer: {reason}"
        yield Limit(knob="pp_schedule", value=c.pp_schedule, message=message, nearest="interleaved_1f1b")
    if c.recompute in ("norm", "mlp"):
        message = f"these modules are known by name in the decoder alone: {reason}"
        yield Limit(knob="recompute", value=c.recompute, message=message, nearest="full")


def _loss(code: ModelCode, c: ParallelConfig) -> Iterator[Limit]:
    """The loop can take the loss of transformers' own classes in their output projection, chunk by chunk."""
    message = ""
    if c.loss != "own" and code.module:
        message = "a model that code of its own builds takes its loss itself; only transformers' own classes ({hf: PATH}) have a chunked one"
    elif c.loss == "chunked" and c.tp > 1:
        message = (
            "the tensor plan gathers the logits of the output projection, which under a chunked loss never exist whole"
        )
    if message:
        yield Limit(knob="loss", value=c.loss, message=message, nearest="own")


def _workload(workload: Workload) -> Iterator[Limit]:
    if workload.document_len:
        message = (
            "packed documents need an attention that is told where they end, and this model is built by code of its own"
        )
        yield Limit(knob="workload.document_len", value=workload.document_len, message=message, nearest=0)


if TYPE_CHECKING:
    from autotune.trainers.trainer import Trainer

UNCOMMON_SHAPES = {
    "num_dense_layers": "model whose layers have experts only in part",
    "shared_ffn_hidden_size": "experts that every token visits",
    "kv_lora_rank": "latent attention",
    "mtp_layers": "layers of multi-token prediction",
}
"""Fields of `ModelSpec` that are set only for models that most trainers cannot build, each with what it stands for."""
OTHERS = f"a trainer that reads the config.json itself (accelerate, deepspeed, hf_trainer, lightning, megatron_bridge, native), or {OWN_PROGRAM}"
"""who may train a model that a trainer does not build"""


def workload_limits(trainer: Trainer, workload: Workload) -> Iterator[Limit]:
    """Optimizer, packed documents, weights in bf16 alone, stored scores, and adapters."""
    if workload.optimizer not in trainer.optimizers:
        message = f"the trainer {trainer.name} can be told {', '.join(sorted(trainer.optimizers))}"
        yield Limit(knob="workload.optimizer", value=workload.optimizer, message=message, nearest="adamw")
    if workload.document_len and not trainer.packs_documents:
        message = f"the trainer {trainer.name} attends over whole sequences"
        yield Limit(knob="workload.document_len", value=workload.document_len, message=message, nearest=0)
    if workload.rl is not None and not trainer.trains_rl:
        what = "sequences of unequal length" if workload.rl.algorithm == "sft" else "a step of post-training"
        message = f"the trainer {trainer.name} cannot be told {what}"
        remedy = "trainers that can: verl, nemo_rl, openrlhf, trl, and command with a program of yours"
        yield Limit(knob="workload.rl", value=workload.rl.algorithm, message=message, remedy=remedy)
    if workload.pure_bf16 and not trainer.trains_pure_bf16:
        message = f"launches of the trainer {trainer.name} keep weights or moments in fp32"
        remedy = "those of torchtitan, lightning, and command with a program of yours need not"
        yield Limit(knob="workload.pure_bf16", value=True, message=message, nearest=False, remedy=remedy)
    if workload.unfused_attention and not trainer.has_unfused_attention:
        message = f"launches of the trainer {trainer.name} attend by kernels that never store the scores"
        remedy = "leave unfused_attention out, or use megatron, or command with a program of yours"
        yield Limit(knob="workload.unfused_attention", value=True, message=message, nearest=False, remedy=remedy)
    if workload.peft is not None and workload.peft.method not in trainer.peft_methods:
        message = (
            f"the trainer {trainer.name} cannot be told to train adapters alone in this way ({trainer.no_adapters})"
        )
        remedy = "trainers that can: command with a program of yours, and native for lora"
        yield Limit(knob="workload.peft", value=workload.peft.method, message=message, remedy=remedy)


def shape_limits(trainer: Trainer, workload: Workload) -> Iterator[Limit]:
    """A module of the user's, a family that it would train as another, and shapes that it does not build."""
    model = workload.model
    if not (trainer.trains_modules or trainer.has_own_model):
        yield from module_limits(model, trainer.name)
    if model.code is not None and trainer.trains_modules:
        return  # its code builds it, whatever its shape
    figures = figures_of(model)
    if model.mtp_layers and "mtp_layers" not in trainer.shapes:
        message = f"the trainer {trainer.name} builds no {UNCOMMON_SHAPES['mtp_layers']}"
        remedy = f"use megatron, megatron_bridge, or {OWN_PROGRAM}"
        yield Limit(knob="model.mtp_layers", value=model.mtp_layers, message=message, nearest=0, remedy=remedy)
    if figures is not None and trainer.reads_config_json:
        known = FAMILIES.get(figures.family)  # not of a model that its class was built to describe
        if known is not None and not known.has_class:
            message = f"launches of the trainer {trainer.name} build the class that transformers has for a config.json, and it has none for this one"
            remedy = f"use {who_trains(figures.family)}"
            yield Limit(knob="model.family", value=figures.family, message=message, remedy=remedy)
        return
    who = f"megatron, {OTHERS}" if figures is None else who_trains(figures.family, but=trainer.name)
    if figures is not None and model.source and not trainer.knows(figures.family):
        message = f"the trainer {trainer.name} would train another model than this config.json means; it knows {trainer.known_families}"
        remedy = f"where a plain model of the same sizes will do, give them in the place of the file; else use {who}"
        yield Limit(knob="model.family", value=figures.family, message=message, remedy=remedy)
    for name, what in UNCOMMON_SHAPES.items():
        value = getattr(model, name)
        if value and name not in trainer.shapes and name != "mtp_layers":
            message = f"the trainer {trainer.name} builds no {what}"
            yield Limit(knob=f"model.{name}", value=value, message=message, remedy=f"use {who}")


MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
MACHINES = (
    *("--multi_gpu", "--num_machines={nnodes}", "--machine_rank={node_rank}"),
    *("--main_process_ip={master_addr}", "--main_process_port={master_port}"),
)
"""options of `accelerate launch` for several nodes; without the first, nodes of one GPU each train alone (commands/launch.py of accelerate 1.15)"""
_FORMS_RANKS = ("--multi_gpu", "--config_file", "--use_fsdp", "--use_deepspeed")
"""options with any of which it forms ranks on nodes of one GPU each too"""
DEEPSPEED_ONE = ("--num_gpus={nproc_per_node}", "--master_port={master_port}")
"""options of `deepspeed` on one node"""
DEEPSPEED_NODES = (
    *("--hostfile=hostfile", "--no_ssh", "--num_nodes={nnodes}", "--num_gpus={nproc_per_node}"),
    *("--node_rank={node_rank}", "--master_addr={master_addr}", "--master_port={master_port}"),
)
"""those for several nodes. Without a hostfile (a line `HOST slots=GPUS` for each node) DeepSpeed knows one node and refuses any other rank (launcher/runner.py)"""


def launcher_limits(argv: Sequence[str], placement: Placement, cluster: ClusterSpec) -> Iterator[Limit]:
    """Why the launcher in this command would start fewer ranks than the config has, or apart from each other. `argv`: as the spec has it."""
    name = _launcher(argv)
    if name == "accelerate" and cluster.gpu.is_cpu and placement.world_size > 1 and not _has(argv, "--mpirun_hostfile"):
        yield Limit(
            knob="world_size",
            value=placement.world_size,
            message="on CPUs accelerate launch starts one process",
            remedy="start the script by torchrun, with env: {ACCELERATE_USE_CPU: 'true'}, without which its ranks train alone",
        )
    elif placement.nnodes > 1 and (found := _on_one_node(name, argv, placement.nproc_per_node)):
        message, remedy = found
        yield Limit(knob="nnodes", value=placement.nnodes, message=message, remedy=remedy)


def _on_one_node(name: str, argv: Sequence[str], gpus: int) -> tuple[str, str] | None:
    """Why each node would train alone, and what to do; None when the nodes meet."""
    if name == "torchrun" and (_has(argv, "--standalone") or _has(argv, "--nnodes", "1")):
        option = "--standalone" if _has(argv, "--standalone") else "--nnodes=1"
        return (
            f"its ranks are on several nodes, but with {option} torchrun stays on one",
            f"leave {option} out of trainer.argv, because torchrun is told in its environment where the nodes meet",
        )
    if name == "accelerate" and gpus == 1 and not any(_has(argv, option) for option in _FORMS_RANKS):
        return (
            "with one GPU on each node accelerate launch would train on each alone",
            "add --multi_gpu to trainer.argv",
        )
    if name == "accelerate" and not _has(argv, "--machine_rank"):
        return (
            "accelerate launch would train on each node alone",
            f"add to trainer.argv, before the script: {' '.join(MACHINES)}",
        )
    if name == "deepspeed" and not (_has(argv, "--no_ssh") and _has(argv, "--hostfile")):
        return (
            "deepspeed would train on each node alone",
            "start the script by torchrun, or with a hostfile that has a line `HOST slots=GPUS` for each node, and before the script in trainer.argv "
            + " ".join(DEEPSPEED_NODES),
        )
    return None


def _launcher(argv: Sequence[str]) -> str:
    """The launcher's name; empty when the command has none that is known."""
    first = os.path.basename(argv[0]) if argv else ""
    if INTERPRETER.fullmatch(first) and "-m" in argv[:-1]:
        return MODULES.get(argv[argv.index("-m") + 1], "")
    if first == "accelerate-launch" or (first == "accelerate" and argv[1:2] == ["launch"]):
        return "accelerate"
    return first if first in ("torchrun", "deepspeed") else ""


def _has(argv: Sequence[str], option: str, value: str = "") -> bool:
    """Whether the option is there, with that value if one is given; it may be written with hyphens inside, too."""
    for place, word in enumerate(argv):
        name, _, rest = word.partition("=")
        if name.replace("_", "-") == option.replace("_", "-"):
            rest = rest or next(iter(argv[place + 1 : place + 2]), "")
            return not value or rest == value
    return False
