"""The environment of programs and ranks on a node: the administrator's settings for Ray there, then
the runner's `env`, then its `node_env` for this node.

No variable is removed, in particular no NCCL_* or GLOO_* variable, except OMP_NUM_THREADS: Ray sets
it in each actor to its number of processors, and every rank of a node would use as many threads.
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
    """Variables that the runner adds on its nodes."""

    env: Mapping[str, str] = field(default_factory=dict)
    """variables for all nodes"""
    node_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """variables for one node, by its hostname or address"""

    @classmethod
    def of(cls, env: Any, node_env: Any) -> NodeEnvironment:
        """From the runner's options. Raises `SpecError` for anything but text or numbers by
        name."""
        if node_env is not None and not isinstance(node_env, Mapping):
            raise SpecError(
                f"node_env must map hostnames or addresses to variables, but is {node_env!r:.80}",
                field="runner.node_env",
            )
        nodes = {
            str(node): _variables(f"runner.node_env.{node}", variables)
            for node, variables in (node_env or {}).items()
        }
        return cls(env=_variables("runner.env", env or {}), node_env=nodes)

    def on(self, address: str) -> dict[str, str]:
        """The variables for this machine, whose address in the cluster is given."""
        names = (*names_of(socket.gethostname()), address)
        return {
            **self.env,
            **{k: v for n in dict.fromkeys(names) for k, v in self.node_env.get(n, {}).items()},
        }

    def for_nobody(self, hostnames: Iterable[str], addresses: Iterable[str]) -> list[str]:
        """The entries of `node_env` that match none of these nodes."""
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
    """Removes OMP_NUM_THREADS as set by Ray for this actor, but not as set by the node's
    administrator."""
    try:
        initial_variables = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return
    if not any(variable.startswith(_THREADS.encode() + b"=") for variable in initial_variables):
        os.environ.pop(_THREADS, None)


def sort_gpus() -> None:
    """Sorts this actor's GPUs by number. Ray lists them in any order, so that a rank could have
    another GPU, and another path to the network, in each trial."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(gpu.isdigit() for gpu in gpus):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(sorted(gpus, key=int))
