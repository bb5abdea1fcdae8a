"""What each node of an attempt is told to start: a trainer's launch as orders.

A trial is launched as an export is, but that the runner says where the nodes meet, and which file
the program is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.errors import RunnerError
from autotune.ports import TrialRequest
from autotune.slurm.allocation import in_container
from autotune.spec.plain import to_plain
from autotune.spec.texts import secrets
from autotune.spec.texts.secrets import FROM_ENVIRONMENT, secrets_of
from autotune.trainers import Launch, trainer
from autotune.trainers.base.executable import find_executable, search_path
from autotune.trainers.base.torchrun import Placement, place
from autotune.trainers.base.trainer import LineReader
from autotune.trainers.documents.output_options import with_own_outputs
from autotune_workers.probe.injected.parsed_options import ASKED
from autotune_workers.probe.probe_folder import is_off
from autotune_workers.process.program.environment import program_environment
from autotune_workers.process.program.places import ProgramOrder
from autotune_workers.runners.machine_limits import check_folder, check_launch

_MEETING = ("master_addr", "master_port")
"""options of trainers that the runner knows better"""
UPLOAD = "upload"
"""`working_dir` of a program whose folder is sent along"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramJob:
    """An attempt that is ready to be placed."""

    request: TrialRequest
    """the attempt that is launched"""
    launch: Launch
    """the trainer's launch, with the program as an absolute path, and its folder"""
    placement: Placement
    """nodes, and ranks on each"""
    upload: str
    """the folder that is sent along; empty when the nodes have it"""

    @property
    def secrets(self) -> frozenset[str]:
        """What its program may print and nobody shall keep."""
        taken = {
            f"{name}_TOKEN": self.launch.env[name]
            for name in self.launch.env
            if self._is_taken(name)
        }
        return secrets_of(taken, self.launch.argv, self.launch.env, self.launch.files)

    def _is_taken(self, name: str) -> bool:
        asked = self.request.trainer_options.get("env")
        return isinstance(asked, Mapping) and asked.get(name) == FROM_ENVIRONMENT

    def reader(self) -> LineReader:
        """A reader of one node's log."""
        return trainer(self.request.trainer).reader(self.request.trainer_options)

    def order(self, node: int, *, master_addr: str, master_port: int) -> ProgramOrder:
        """What node `node` starts, when all meet at that address."""
        launch = self.launch.on_node(node, master_addr=master_addr, master_port=master_port)
        asked = {ASKED: secrets.__file__} if self.request.as_it_is else {}
        return ProgramOrder(
            argv=launch.argv,
            env={**launch.env, **asked},
            files=launch.files,
            cwd=launch.cwd,
            nodes=self.placement.nnodes,
            trainer=self.request.trainer,
            options=to_plain(self.request.trainer_options),
            watched=self.request.watched and not is_off(os.environ),
            keeps_files=not self.request.keeps_outputs,
        )


def prepare(request: TrialRequest, *, is_local: bool) -> ProgramJob:
    """The job of a request. Raises `RunnerError` when there is no such program or folder, and
    another `AutotuneError` for a config that the trainer refuses. `is_local`: whether all nodes are
    this machine."""
    whose, options = trainer(request.trainer), dict(request.trainer_options)
    steps = request.measure.warmup_steps + request.measure.max_steps
    given = {name: value for name, value in options.items() if name not in _MEETING}
    options = whose.with_own(given, steps=steps, seed=request.seed)
    launch = whose.launch(request.workload, request.config, whose.in_trial(options))
    launch = launch if request.keeps_outputs else with_own_outputs(launch)
    placement = place(request.workload.cluster, request.config)
    upload = options.get("working_dir") == UPLOAD
    if is_local:
        check_launch(whose.name, launch)
    elif upload:
        check_folder(whose.name, launch)
    cwd = os.path.abspath(launch.cwd) if launch.cwd or not launch.files else ""
    if not is_local and in_container():  # whose programs cannot be looked for from here
        program, env = _named_program(launch, cwd, upload=upload), _taken(launch.env)
    else:
        program = _program(whose.name, launch, cwd, upload=upload)
        env = {**_taken(launch.env), "PATH": search_path(launch.env, launch.programs_folder)}
    launch = replace(launch, argv=(program, *launch.argv[1:]), env=env, cwd="." if upload else cwd)
    return ProgramJob(
        request=request, launch=launch, placement=placement, upload=cwd if upload else ""
    )


def _taken(env: Mapping[str, str]) -> dict[str, str]:
    """The variables, those that the spec takes from the environment with their values there. Raises
    `RunnerError`."""
    ours = program_environment(with_job=True)
    missing = [
        name for name, value in env.items() if value == FROM_ENVIRONMENT and name not in ours
    ]
    if missing:
        raise RunnerError(
            f"the spec takes {' and '.join(missing)} from the environment, but no such variable is set",
            remedy="export the variable before you start autotune; a service passes on only variables set with `--program-env`",
            field=f"trainer.env.{missing[0]}",
        )
    return {name: ours[name] if value == FROM_ENVIRONMENT else value for name, value in env.items()}


def _program(name: str, launch: Launch, cwd: str, *, upload: bool) -> str:
    """The file that every node starts. A plain name is looked for once, here, so that no node takes
    another program of the same name."""
    is_sent = upload and os.path.dirname(launch.argv[0]) and not os.path.isabs(launch.argv[0])
    if not is_sent and (found := find_executable(launch)):
        return os.path.abspath(found)
    if os.path.dirname(named := _named_program(launch, cwd, upload=upload)):
        return named
    raise RunnerError(
        f"the {name} trainer starts {named!r}, but there is no such program here",
        remedy="set trainer.python to the nodes' environment, or set the program's path",
        field="trainer",
    )


def _named_program(launch: Launch, cwd: str, *, upload: bool) -> str:
    """The program as the launch names it: its path, or a plain name that the node looks for in its
    own PATH."""
    named = launch.argv[0]
    if os.path.dirname(named):  # of the folder that is sent along it stays relative
        return (
            named
            if upload and not os.path.isabs(named)
            else os.path.normpath(os.path.join(cwd, named))
        )
    return os.path.join(launch.programs_folder, named) if launch.python else named
