"""What an exported launch takes over from the study beside its config."""

from __future__ import annotations

from autotune import api
from autotune.results.provenance import in_environment_of
from autotune.trainers import Launch
from tests.small_studies import spec


def test_a_launch_has_the_environment_variables_of_its_trials() -> None:
    runner = {
        "kind": "ray",
        "env": {"NCCL_ALGO": "Ring", "NCCL_IB_TC": 106, "SEED": "1"},
        "node_env": {"gpu-7": {"NCCL_SOCKET_IFNAME": "ib1"}},
    }
    study = api.load_study(spec(runner=runner))
    inherited = {"OMP_NUM_THREADS": "4", "NCCL_ALGO": "Tree", "SEED": "3"}
    launch = Launch(argv=("train",), env={"SEED": "2"}, notes=("first",))
    launch = in_environment_of(study, launch, inherited)
    assert launch.env == {
        "OMP_NUM_THREADS": "4",
        "NCCL_ALGO": "Ring",
        "NCCL_IB_TC": "106",
        "SEED": "2",
    }, "the trainer's own win, as in a trial"
    assert launch.notes == (
        "first",
        "the trials had NCCL_SOCKET_IFNAME=ib1 on node gpu-7; set the same variables on the node that you use",
        "the trials inherited OMP_NUM_THREADS=4 from autotune's environment, so this launch sets the same",
    )


def test_a_runner_without_variables_changes_nothing() -> None:
    launch = Launch(argv=("train",), env={"A": "1"})
    assert in_environment_of(api.load_study(spec()), launch, {}) == launch
