"""Launchers that would start only a part of a config: they are refused at load, not measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.errors import ExportError
from autotune.spec import ClusterSpec, ParallelConfig, catalog
from autotune.testing.trainers import WORKLOAD
from autotune.trainers import Limit, trainer
from autotune.trainers.base.workload_limits import DEEPSPEED_NODES, MACHINES

SCRIPT = (
    "train.py",
    "--ranks={dp}",
    "--batch={micro_batch_size}",
    "--accumulate={accumulation_steps}",
)


def limits(dp: int, *argv: str, cluster: ClusterSpec = WORKLOAD.cluster) -> tuple[Limit, ...]:
    workload = replace(WORKLOAD, cluster=cluster)
    return trainer("command").limits(
        workload, ParallelConfig(dp=dp, micro_batch_size=4), {"argv": [*argv, *SCRIPT]}
    )


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["torchrun", "--standalone"], "remove --standalone"),
        (["torchrun", "--nnodes", "1"], "remove --nnodes=1"),
        (["python3.11", "-m", "torch.distributed.run", "--nnodes=1"], "remove --nnodes=1"),
        (["accelerate", "launch", "--num_processes={world_size}"], "--machine_rank={node_rank}"),
        (["/envs/train/bin/accelerate-launch"], "--machine_rank={node_rank}"),
        (["deepspeed", "--num_gpus=8"], "--node_rank={node_rank}"),
        (["deepspeed", "--no_ssh", "--node_rank={node_rank}"], "--hostfile=hostfile"),
    ],
)
def test_a_launcher_that_would_train_on_each_node_alone_is_refused_on_several(
    argv: list[str], says: str
) -> None:
    assert limits(8, *argv) == ()
    (limit,) = limits(16, *argv)
    assert limit.knob == "nnodes"
    assert says in limit.remedy


@pytest.mark.parametrize(
    "argv",
    [
        ["torchrun"],
        ["torchrun", "--nnodes={nnodes}"],
        ["accelerate", "launch", *MACHINES],
        ["accelerate", "launch", "--machine-rank", "{node_rank}"],
        ["deepspeed", *DEEPSPEED_NODES],
        ["my-launcher"],
        ["accelerate", "test"],
    ],
)
def test_a_launcher_that_is_told_where_the_nodes_meet_is_not(argv: list[str]) -> None:
    assert limits(16, *argv) == ()


def test_accelerate_on_nodes_of_one_gpu_is_told_to_form_ranks() -> None:
    """It looks for a second GPU on its own node, whatever the number of machines."""
    singles = catalog.cluster("h100-sxm-4x1")
    alone = [word for word in MACHINES if word != "--multi_gpu"]
    (limit,) = limits(4, "accelerate", "launch", *alone, cluster=singles)
    assert (limit.knob, limit.remedy) == ("nnodes", "add --multi_gpu to trainer.argv")
    assert limits(4, "accelerate", "launch", *MACHINES, cluster=singles) == ()
    assert limits(4, "accelerate", "launch", "--use_fsdp", *alone, cluster=singles) == ()


def test_accelerate_starts_one_process_on_cpus() -> None:
    """Measured as if it were two it would look twice as fast as it is."""
    cpus = catalog.cluster("cpu-1x2")
    assert limits(1, "accelerate", "launch", cluster=cpus) == ()
    (limit,) = limits(2, "accelerate", "launch", cluster=cpus)
    assert (limit.knob, limit.value) == ("world_size", 2)
    assert "torchrun" in limit.remedy
    assert limits(2, "accelerate", "launch", "--mpirun_hostfile=hosts", cluster=cpus) == ()
    with pytest.raises(ExportError, match="on CPUs, `accelerate launch` starts only one process"):
        trainer("command").launch(
            replace(WORKLOAD, cluster=cpus),
            ParallelConfig(dp=2, micro_batch_size=4),
            {"argv": ["accelerate", "launch", *SCRIPT]},
        )
