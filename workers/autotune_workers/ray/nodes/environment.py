"""The environment of programs and ranks on a node: what its administrator set for Ray there, then
the runner's `env`, then its `node_env` for this node.

Nothing is taken away, above all no NCCL_* or GLOO_* variable, but one: Ray gives each actor as many
OpenMP threads as it has processors, and every rank of a node would take as many.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import SpecError
from autotune_workers.ray.placement import names_of

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnvironment:
    """What the runner adds to the environment of its nodes."""

    env: Mapping[str, str] = field(default_factory=dict)
    """variables for all nodes"""
    node_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """variables for one node, by its hostname or address"""

    @classmethod
    def of(cls, env: Any, node_env: Any) -> NodeEnvironment:
        """As the runner's options are written. Raises `SpecError` for anything but texts by
        name."""
        if node_env is not None and not isinstance(node_env, Mapping):
            raise SpecError(
                f"node_env must map hostnames or addresses to variables, but is {node_env!r:.80}",
                field="runner.node_env",
            )
        nodes = {
            str(node): _variables(f"runner.node_env.{node}", its)
            for node, its in (node_env or {}).items()
        }
        return cls(env=_variables("runner.env", env or {}), node_env=nodes)

    def on(self, address: str) -> dict[str, str]:
        """The variables for this machine, which has this address in the cluster."""
        names = (*names_of(socket.gethostname()), address)
        return {
            **self.env,
            **{k: v for n in dict.fromkeys(names) for k, v in self.node_env.get(n, {}).items()},
        }

    def for_nobody(self, hostnames: Iterable[str], addresses: Iterable[str]) -> list[str]:
        """The entries of `node_env` that are for none of these nodes."""
        known = {*(name for hostname in hostnames for name in names_of(hostname)), *addresses}
        return sorted(self.node_env.keys() - known)


NOTHING_ADDED = NodeEnvironment()


def _variables(where: str, given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise SpecError(f"{where} must map names to values, but is {given!r:.80}", field=where)
    for name, value in given.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise SpecError(f"{name!r} is not a valid environment variable name", field=where)
        if (
            not isinstance(value, str | int | float)
            or isinstance(value, bool)
            or "\0" in str(value)
        ):
            raise SpecError(
                f"{name} must be text, but is {value!r:.80}",
                remedy="write the value in quotes",
                field=where,
            )
    return {name: str(value) for name, value in given.items()}


def forget_rays_threads() -> None:
    """Removes the number of OpenMP threads that Ray set for this actor; one that the node's
    administrator set stays."""
    try:
        first = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return
    if not any(variable.startswith(_THREADS.encode() + b"=") for variable in first):
        os.environ.pop(_THREADS, None)


def sort_gpus() -> None:
    """Puts the GPUs of this actor in their order. Ray names them in any order, so that a rank of
    the program would have another GPU, and another way to the network, in each trial."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(gpu.isdigit() for gpu in gpus):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(sorted(gpus, key=int))
