"""Turns a trainer's launch into the order that each node of an attempt gets.

A trial is launched like an export, except that the runner decides where nodes connect and which
file the program is.
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

_RENDEZVOUS_OPTIONS = ("master_addr", "master_port")
"""trainer options that the runner overrides"""
UPLOAD = "upload"
"""value of `working_dir` for a program whose folder is sent to the nodes"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramJob:
    """An attempt that is ready to be placed."""

    request: TrialRequest
    """request of the attempt"""
    launch: Launch
    """the trainer's launch, with absolute paths of the program and its folder"""
    placement: Placement
    """number of nodes, and ranks per node"""
    upload: str
    """folder to send to the nodes; empty if they have it"""

    @property
    def secrets(self) -> frozenset[str]:
        """Secrets that the program may print and that must not be stored."""
        from_environment = {
            f"{name}_TOKEN": self.launch.env[name]
            for name in self.launch.env
            if self._is_from_environment(name)
        }
        return secrets_of(from_environment, self.launch.argv, self.launch.env, self.launch.files)

    def _is_from_environment(self, name: str) -> bool:
        asked = self.request.trainer_options.get("env")
        return isinstance(asked, Mapping) and asked.get(name) == FROM_ENVIRONMENT

    def reader(self) -> LineReader:
        """A new reader for one node's log."""
        return trainer(self.request.trainer).reader(self.request.trainer_options)

    def order(self, node: int, *, master_addr: str, master_port: int) -> ProgramOrder:
        """The order for node number `node`, when all nodes connect at `master_addr:master_port`."""
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
    """The job for a request. `is_local`: whether all nodes are this machine. Raises `RunnerError`
    if the program or folder does not exist, and another `AutotuneError` if the trainer rejects the
    config."""
    launcher, options = trainer(request.trainer), dict(request.trainer_options)
    steps = request.measure.warmup_steps + request.measure.max_steps
    kept_options = {
        name: value for name, value in options.items() if name not in _RENDEZVOUS_OPTIONS
    }
    options = launcher.with_own(kept_options, steps=steps, seed=request.seed)
    launch = launcher.launch(request.workload, request.config, launcher.in_trial(options))
    launch = launch if request.keeps_outputs else with_own_outputs(launch)
    placement = place(request.workload.cluster, request.config)
    upload = options.get("working_dir") == UPLOAD
    if is_local:
        check_launch(launcher.name, launch)
    elif upload:
        check_folder(launcher.name, launch)
    cwd = os.path.abspath(launch.cwd) if launch.cwd or not launch.files else ""
    # from inside a container the nodes' programs cannot be found
    if not is_local and in_container():
        program, env = _named_program(launch, cwd, upload=upload), _with_values(launch.env)
    else:
        program = _program(launcher.name, launch, cwd, upload=upload)
        env = {**_with_values(launch.env), "PATH": search_path(launch.env, launch.programs_folder)}
    launch = replace(launch, argv=(program, *launch.argv[1:]), env=env, cwd="." if upload else cwd)
    return ProgramJob(
        request=request, launch=launch, placement=placement, upload=cwd if upload else ""
    )


def _with_values(env: Mapping[str, str]) -> dict[str, str]:
    """The variables, with those that the spec takes from the environment replaced by their values.
    Raises `RunnerError` if one is not set."""
    environment = program_environment(with_job=True)
    missing = [
        name for name, value in env.items() if value == FROM_ENVIRONMENT and name not in environment
    ]
    if missing:
        raise RunnerError(
            f"the spec takes {' and '.join(missing)} from the environment, but no such variable is set",
            remedy="export the variable before you start autotune; a service passes on only variables set with `--program-env`",
            field=f"trainer.env.{missing[0]}",
        )
    return {
        name: environment[name] if value == FROM_ENVIRONMENT else value
        for name, value in env.items()
    }


def _program(trainer_name: str, launch: Launch, cwd: str, *, upload: bool) -> str:
    """Path of the program that every node starts. A plain name is resolved here once, so that all
    nodes run the same file. Raises `RunnerError` if it is not found."""
    is_sent = upload and os.path.dirname(launch.argv[0]) and not os.path.isabs(launch.argv[0])
    if not is_sent and (found := find_executable(launch)):
        return os.path.abspath(found)
    if os.path.dirname(named := _named_program(launch, cwd, upload=upload)):
        return named
    raise RunnerError(
        f"the {trainer_name} trainer starts {named!r}, but there is no such program here",
        remedy="set trainer.python to the nodes' environment, or set the program's path",
        field="trainer",
    )


def _named_program(launch: Launch, cwd: str, *, upload: bool) -> str:
    """The program named by the launch: a path, or a plain name that the node looks up in its own
    PATH."""
    named = launch.argv[0]
    if os.path.dirname(named):  # stays relative to a folder that is sent to the nodes
        return (
            named
            if upload and not os.path.isabs(named)
            else os.path.normpath(os.path.join(cwd, named))
        )
    return os.path.join(launch.programs_folder, named) if launch.python else named
