"""A training on two nodes under `autotune run`: the first node speaks and keeps one run, the other
one becomes the command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from autotune.spec import Outcome
from tests.nodes.network import Network, what_is_missing
from tests.observing import programs
from tests.observing.test_real_runs import LONG_S, MODEL, autotune, environment, kept

MISSING = what_is_missing()


@pytest.mark.alone
@pytest.mark.thorough
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_of_two_nodes_the_first_one_speaks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(programs.PLAIN)
    with Network(2) as network:
        where = {"GLOO_SOCKET_IFNAME": "eth0", **environment(tmp_path)}
        started = []
        for rank, node in enumerate(network.nodes):
            launch = ["torchrun", "--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=1", f"--master-addr={network.nodes[0].address}", "--master-port=29511"]  # fmt: skip
            words = autotune(*MODEL, "--", *launch, str(tmp_path / "train.py"), "--batch-size=4")
            started.append(
                node.start(
                    *words, environment=where, stdout=subprocess.PIPE, stderr=subprocess.PIPE
                )
            )
        (out, err), (other_out, other_err) = (
            process.communicate(timeout=LONG_S) for process in started
        )
        assert [process.returncode for process in started] == [0, 0], (err, other_err)
    assert out.count(b"step ") == 8
    assert b"autotune: measured: " in err
    assert other_out == b""
    assert b"autotune: " not in other_err
    (run,) = kept(tmp_path)
    assert run.outcome is Outcome.COMPLETED
    assert (run.workload.cluster.num_nodes, run.config.dp, run.config.global_batch_size) == (
        2,
        2,
        8,
    )
    assert run.step_time_s is not None
    assert run.host == network.nodes[0].name
