"""What each node of an attempt is told to start: a trainer's launch as orders.

A trial is launched as an export is, but that the runner says where the nodes meet. Launchers that read no arguments of ours find the same in
their environment: torchrun takes the default of an option --some-name from PET_SOME_NAME (torch/distributed/argparse_util.py, class `env`), and an
option that is given wins. So a plain `torchrun train.py` runs on several nodes as it is.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, RunnerError, SpecError
from autotune.ports import TrialRequest
from autotune.trainers import Launch, trainer
from autotune.trainers.torchrun import Placement, place
from autotune.trainers.trainer import LineReader, Trainer
from autotune_workers.process.program_places import ProgramOrder

_MEETING = ("master_addr", "master_port")
"""options of trainers that the runner knows better"""
UPLOAD = "upload"
"""`working_dir` of a program whose folder is sent along"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramJob:
    """An attempt that is ready to be placed."""

    request: TrialRequest
    """what was asked"""
    launch: Launch
    """with the program as an absolute path, and its folder"""
    placement: Placement
    """nodes, and ranks on each"""
    upload: str
    """the folder that is sent along; empty when the nodes have it"""

    def reader(self) -> LineReader:
        """A reader of one node's log."""
        return trainer(self.request.trainer).reader(self.request.trainer_options)

    def order(self, node: int, *, master_addr: str, master_port: int) -> ProgramOrder:
        """What node `node` starts, when all meet at that address."""
        launch = self.launch.on_node(node, master_addr=master_addr, master_port=master_port)
        told = _meeting_variables(self.placement, node, master_addr, master_port) if self.placement.nnodes > 1 else {}
        return ProgramOrder(
            argv=launch.argv,
            env={**told, **launch.env},
            files=launch.files,
            cwd=launch.cwd,
            nodes=self.placement.nnodes,
        )


def prepare(request: TrialRequest, *, is_local: bool) -> ProgramJob:
    """The job of a request. Raises `RunnerError` when there is no such program or folder, and another `AutotuneError` for a config that the trainer
    refuses. `is_local`: whether all nodes are this machine."""
    whose, options = trainer(request.trainer), dict(request.trainer_options)
    known = {option.name for option in whose.options}
    steps = request.measure.warmup_steps + request.measure.max_steps
    own = {k: v for k, v in (("steps", steps), ("seed", request.seed)) if k in known}
    options = {**own, **{k: v for k, v in options.items() if k not in _MEETING}}
    launch = whose.launch(request.workload, request.config, options)
    placement = place(request.workload.cluster, request.config)
    if placement.nnodes > 1 and "--standalone" in launch.argv:
        raise AutotuneError(
            f"the config is spread over {placement.nnodes} nodes, but with --standalone torchrun stays on one",
            remedy="leave --standalone out: torchrun is told where the nodes meet",
            field="trainer.argv",
        )
    upload = options.get("working_dir") == UPLOAD
    cwd = os.path.abspath(launch.cwd) if launch.cwd or not launch.files else ""
    if cwd and (is_local or upload) and not os.path.isdir(cwd):
        raise RunnerError(
            f"the trainer {whose.name} runs in {cwd!r}, but there is no such folder here",
            remedy="give a folder that exists where trials run",
            field="trainer.cwd",
        )
    path = _search_path(launch.env, options.get("python", ""))
    program = _program(whose, launch.argv[0], cwd, path, is_local=is_local, upload=upload)
    env = {**launch.env, "PATH": path}
    launch = replace(launch, argv=(program, *launch.argv[1:]), env=env, cwd="." if upload and cwd else cwd)
    return ProgramJob(request=request, launch=launch, placement=placement, upload=cwd if upload else "")


def _program(whose: Trainer, named: str, cwd: str, path: str, *, is_local: bool, upload: bool) -> str:
    """The file that is started, on every node: found here and nowhere else, so that no node takes another one of the same name."""
    if os.path.dirname(named):
        if upload and not os.path.isabs(named):
            return named  # in the folder that is sent along
        found = os.path.join(cwd, named)
        if not is_local or shutil.which(found) is not None:
            return found
    elif (in_path := shutil.which(named, path=path)) is not None:
        return os.path.abspath(in_path)
    raise RunnerError(
        f"the trainer {whose.name} starts {named!r}, but there is no such program here",
        remedy="install it, name its environment with trainer.python, put its folder into PATH, or name it by its path",
        field="trainer",
    )


def _search_path(environment: Mapping[str, str], python: str) -> str:
    """Where programs are looked for: in the environment `python`, in PATH, and last beside this Python, where its torchrun is."""
    first = [_programs_of(python)] if python else []
    path = environment.get("PATH") or os.environ.get("PATH") or os.defpath
    return os.pathsep.join([*first, path, str(Path(sys.executable).parent)])


def _programs_of(python: str) -> str:
    """The folder of an environment's programs, given the environment or its interpreter."""
    path = Path(python).expanduser()
    if not path.is_absolute():
        raise SpecError(
            f"python must be an absolute path, because trials run on other nodes too, but is {python!r}",
            remedy="name the environment's folder, or its interpreter, by its whole path",
            field="trainer.python",
        )
    return str(path / "bin" if path.is_dir() else path.parent)


def _meeting_variables(placement: Placement, node: int, master_addr: str, master_port: int) -> dict[str, Any]:
    """Where the nodes meet, as launchers read it by themselves."""
    address, port, rank = master_addr, str(master_port), str(node)
    return {
        "PET_NNODES": str(placement.nnodes),
        "PET_NPROC_PER_NODE": str(placement.nproc_per_node),
        "PET_NODE_RANK": rank,
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
        "NODE_RANK": rank,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
