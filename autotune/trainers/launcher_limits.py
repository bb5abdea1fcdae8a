"""Launchers in a command, and configs of which they would silently start only a part.

    torchrun --standalone, --nnodes=1    each node trains alone
    accelerate launch                    each node trains alone unless it is told its number (`--machine_rank`); on CPUs it starts one process only
                                         (accelerate 1.15, commands/launch.py: `launch_command` ends in `simple_launcher` where there is no GPU)
    deepspeed                            starts all nodes from one of them, or only its own, unless it is told its number (`--no_ssh`)

A launcher is the first word of the command, or the module that its Python runs. Other programs, and launchers inside scripts, are not known.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from autotune.spec import ClusterSpec
from autotune.trainers.launch_files import INTERPRETER
from autotune.trainers.limit import Limit
from autotune.trainers.torchrun import Placement

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
