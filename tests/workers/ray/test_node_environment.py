"""The environment of programs and ranks on a node of a Ray cluster."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from autotune.errors import SpecError
from autotune_workers.ray.nodes.environment import NodeEnvironment, sort_gpus


def test_the_variables_of_a_node_come_after_those_of_all_nodes() -> None:
    environment = NodeEnvironment.of(
        {"NCCL_DEBUG": "WARN", "GLOO_SOCKET_IFNAME": "eth0"},
        {
            "10.0.0.7": {"GLOO_SOCKET_IFNAME": "ib0"},
            socket.gethostname(): {"NCCL_IB_HCA": "mlx5_0"},
        },
    )
    everywhere = {"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "mlx5_0"}
    assert environment.on("10.0.0.8") == {**everywhere, "GLOO_SOCKET_IFNAME": "eth0"}
    assert environment.on("10.0.0.7") == {**everywhere, "GLOO_SOCKET_IFNAME": "ib0"}
    assert NodeEnvironment.of(None, None).on("10.0.0.7") == {}


def test_variables_of_nodes_that_are_not_there_are_named() -> None:
    entries = ("gpu-1", "gpu-2.cluster.local", "10.0.0.7", "gpu-17")
    environment = NodeEnvironment.of(
        None, {node: {"GLOO_SOCKET_IFNAME": "ib0"} for node in entries}
    )
    hostnames, addresses = {"gpu-1.cluster.local", "gpu-2.cluster.local"}, {"10.0.0.7", "10.0.0.8"}
    assert environment.for_nobody(hostnames, addresses) == ["gpu-17"]
    assert NodeEnvironment.of({"A": "1"}, None).for_nobody(hostnames, addresses) == []


@pytest.mark.parametrize(
    ("env", "node_env", "words"),
    [
        (["A=1"], None, "runner.env must map names to values"),
        ({"A-B": "1"}, None, "'A-B' is not a valid environment variable name"),
        ({"A": True}, None, "A must be text, but is True; write the value in quotes"),
        (None, ["node-1"], "node_env must map hostnames or addresses to variables"),
        (None, {"node-1": "ib0"}, "runner.node_env.node-1 must map names to values"),
    ],
)
def test_what_is_no_environment_is_refused(env: Any, node_env: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        NodeEnvironment.of(env, node_env)


@pytest.mark.parametrize(("given", "left"), [({}, "None"), ({"OMP_NUM_THREADS": "3"}, "3")])
def test_threads_that_the_administrator_set_stay_and_those_that_ray_set_go(
    given: dict[str, str], left: str
) -> None:
    code = (
        "import os; from autotune_workers.ray.nodes.environment import forget_rays_threads;"
        "os.environ.setdefault('OMP_NUM_THREADS', '8'); forget_rays_threads(); print(os.environ.get('OMP_NUM_THREADS'))"
    )
    path = {"PYTHONPATH": ":".join(sys.path)}
    told = subprocess.run(
        [sys.executable, "-c", code], env={**path, **given}, capture_output=True, text=True
    )
    assert told.stdout.strip() == left, told.stderr


@pytest.mark.parametrize(
    ("given", "sorted_"),
    [("1,0", "0,1"), ("10,2,1", "1,2,10"), ("GPU-b,GPU-a", "GPU-b,GPU-a"), ("", "")],
)
def test_the_gpus_of_an_actor_come_in_their_order(
    given: str, sorted_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    sort_gpus()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == sorted_
