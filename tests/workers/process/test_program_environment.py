"""Variables of the user's environment that may change the speed of a program."""

from __future__ import annotations

import pytest

from autotune_workers.runners.local import LocalRunner
from autotune_workers.speed_variables import speed_variables
from tests.workers.process.test_program_runner import options, request
from tests.workers.requests import measurement_of, one
from tests.workers.requests import request as native_request

FAST = {
    "OMP_NUM_THREADS": "4",
    "NCCL_ALGO": "Ring",
    "CUDA_LAUNCH_BLOCKING": "1",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_ALLOC_CONF": "max_split_size_mb:64",
    "TORCH_NCCL_HIGH_PRIORITY": "1",
    "HF_HUB_ENABLE_HF_TRANSFER": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def test_they_are_known_by_their_names_and_secrets_and_places_are_left_out() -> None:
    others = {
        "HF_TOKEN": "hf_abcdefgh",
        "HF_HOME": "/data/hf",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "CUDA_HOME": "/usr/local/cuda",
        "TORCH_PROXY": "http://me:secret1@proxy",
        "NCCL_VERSION": "2.27",
        "PATH": "/bin",
        "OMPI_COMM_WORLD_RANK": "0",
    }
    assert speed_variables({**others, **FAST}) == FAST


@pytest.mark.alone
def test_a_measurement_has_those_that_the_spec_does_not_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_NUM_THREADS", "NCCL_ALGO", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, FAST[name])
    own = {**options("--step-s=0.01"), "env": {"NCCL_ALGO": "Tree"}}
    with LocalRunner(max_ranks=1, device="cpu") as runner:
        seen = measurement_of(one(runner, request(0, trainer_options=own)))
    assert seen.environment is not None
    assert FAST.items() - seen.environment.items() == FAST.items() - {
        (name, FAST[name]) for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM")
    }
    assert "NCCL_ALGO" not in seen.environment


@pytest.mark.alone
def test_a_native_measurement_has_them_without_those_that_autotune_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMP_NUM_THREADS", "NCCL_ALGO"):
        monkeypatch.setenv(name, FAST[name])
    with LocalRunner(max_ranks=1, device="cpu") as runner:
        seen = measurement_of(one(runner, native_request(dp=1)))
    assert seen.environment is not None
    assert seen.environment["NCCL_ALGO"] == "Ring"
    assert not {"OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME"} & seen.environment.keys()
