"""The page on two nodes without a scheduler, as it is written, on two nodes: Ray with a token, a
study of a torchrun program on both, the launch of its winner."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.nodes import programs
from tests.nodes.network import Network, Node, until
from tests.workers.ray.two_node_trials import ALONE

pytestmark = ALONE
PAGE = Path(__file__).parents[3] / "docs/how-to/two-nodes.md"
WAIT_S = 900.0
SPEC = {
    "name": "two-machines",
    "model": "nano-gpt",
    "cluster": {"gpu": "cpu", "num_nodes": 2, "gpus_per_node": 1},
    "workload": {"seq_len": 32, "global_batch_size": 8},
    "space": {"world_sizes": [2], "micro_batch_size": [2, 4], "precision": ["fp32"]},
    "budget": {"max_trials": 2, "min_gain": 0},
    "measure": {"warmup_steps": 1, "min_steps": 4, "max_steps": 4, "finalists": 1, "final_rounds": 1, "start_timeout_s": 600, "step_timeout_s": 600, "trial_timeout_s": 1200},
    "calibrate": False,
    "check": False,
    "trainer": {
        "kind": "command",
        "argv": ["torchrun", "plain.py", "--batch-size={micro_batch_size}", "--steps=12"],
        "metrics": {"step": "^step ([0-9]+)", "loss": "loss: ([0-9.]+)", "step_time_s": "step time: ([0-9.]+)"},
        "fixed": {"precision": "fp32"},
        "env": {"ACC": "{accumulation_steps}"},
    },
}  # fmt: skip


def commands() -> list[str]:
    """The page's own `ray start` recipe: lines of the first machine, and those of the second."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [
        "\n".join(line.removeprefix("$ ") for line in block.splitlines()) for block in blocks[:2]
    ]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Node, Node]]:
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{sys.prefix}/bin:{os.environ['PATH']}")
    with Network(2) as network:
        yield network.nodes[0], network.nodes[1]


@pytest.mark.slow
@pytest.mark.thorough
def test_the_page_works_as_it_is_written(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    first, second = nodes
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "ray-token")}

    def run(node: Node, text: str, **more: str) -> str:
        text = text.replace("10.0.0.1", first.address).replace("10.0.0.2", second.address)
        environment = {
            "HOME": str(node.folder),
            "RAY_TMPDIR": str(node.folder),
            "OMP_NUM_THREADS": "1",
            **more,
        }
        started = node.start("sh", "-ec", text, environment=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        said, _ = started.communicate(timeout=WAIT_S)
        assert started.returncode == 0, said
        return str(said)

    on_first, on_second = commands()
    run(first, on_first)
    assert (tmp_path / "ray-token").stat().st_mode & 0o077 == 0
    run(second, on_second, **token)
    shutil.copy(Path(programs.__file__).with_name("plain.py"), tmp_path)
    runner = {"kind": "ray", "address": f"{first.address}:6379"}
    (tmp_path / "two-machines.yaml").write_text(yaml.safe_dump({**SPEC, "runner": runner}))
    store = f"sqlite:///{tmp_path}/results.db"
    said = run(first, "autotune tune two-machines.yaml --json", **token, AUTOTUNE_STORE=store)
    document = json.loads(said[said.index("{") :])
    assert document["study"]["status"] == "COMPLETED", said
    assert {row["node"] for row in document["study"]["result"]["placed"]} == {
        first.name,
        second.name,
    }
    run(first, "autotune export two-machines -o launch", AUTOTUNE_STORE=store)
    others = second.start(
        "sh", "launch/launch.sh",
        environment={"NODE_RANK": "1", "MASTER_ADDR": first.address, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    lines = run(first, "sh launch/launch.sh", NODE_RANK="0", MASTER_ADDR=first.address)
    assert "step 11" in lines
    until(lambda: others.poll() is not None, WAIT_S)
    assert others.returncode == 0
    for node in nodes:
        run(node, "ray stop", **token)
