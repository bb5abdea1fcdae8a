"""What cannot run where it is asked is refused before a runner is made; what only another machine
can judge is left to that machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune import api
from autotune.errors import AutotuneError, CatalogError, MissingExtraError, RunnerError, SpecError
from autotune.ports import Store
from autotune.spec import StudyStatus
from autotune.store import MemoryStore
from autotune_workers.runners.machine_limits import is_torch_for_gpus, visible_gpus
from tests.small_studies import spec

ON_CPU = {
    "cluster": {"gpu": "cpu", "gpus_per_node": 2},
    "model": "nano-gpt",
    "workload": {"seq_len": 64, "global_batch_size": 8},
}
SPACE = {"micro_batch_size": [1, 2], "precision": ["fp32"]}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def on_cpu(**changes: Any) -> dict[str, Any]:
    return spec(**ON_CPU, space=SPACE) | changes


def command(*argv: str, **options: Any) -> dict[str, Any]:
    return {
        "kind": "command",
        "argv": [*argv, "--batch={micro_batch_size}", "--accum={accumulation_steps}"],
        **options,
    }


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"runner": "flux"}, CatalogError, "flux"),
        ({"runner": {"kind": "local", "max_rank": 2}}, SpecError, "max_ranks"),
        ({"runner": {"kind": "local", "max_ranks": "two"}}, SpecError, "two"),
        ({"runner": {"kind": "ray", "num_cpus": -1}}, SpecError, "num_cpus"),
        ({"runner": {"kind": "ray", "upload_limit_mb": "100"}}, SpecError, "upload_limit_mb"),
        (
            {"runner": {"kind": "ray", "env": ["A=1"]}},
            SpecError,
            "runner.env must map names to values",
        ),
        ({"runner": {"kind": "local", "device": "cuda"}}, RunnerError, "no GPU is visible"),
        (
            {"runner": {"kind": "local", "max_ranks": 1}},
            RunnerError,
            "needs 2 ranks, but the 'local' runner has 1",
        ),
        (
            {"runner": {"kind": "ray", "num_cpus": 1}},
            RunnerError,
            "needs 2 ranks, but the 'ray' runner has 1",
        ),
        ({"runner": {"kind": "ray", "cpus_per_rank": 64.0}}, RunnerError, "needs 2 ranks"),
        ({"runner": {"kind": "ray", "num_gpus": 1}}, RunnerError, "needs 2 ranks"),
        (
            {"runner": "local", "trainer": command("no-such-program")},
            RunnerError,
            "no such program here",
        ),
        (
            {"runner": "local", "trainer": command("no/train.py")},
            RunnerError,
            "no such program here",
        ),
        (
            {"runner": "ray", "model": "nano-llama", "trainer": {"kind": "nanotron"}},
            RunnerError,
            r"trainer\.entrypoint: .* entrypoint is not set",
        ),
    ],
)
def test_what_this_machine_cannot_run_is_refused_before_anything_is_stored(
    store: Store, changes: dict[str, Any], kind: type[AutotuneError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        api.tune(on_cpu(**changes), store=store)
    assert not store.studies()
    assert "ray" not in sys.modules or not sys.modules["ray"].is_initialized()


@pytest.mark.parametrize(
    ("runner", "option"), [("local", "device: cpu"), ("ray", "gpus_per_rank: 0")]
)
def test_a_study_of_gpus_trains_on_the_cpu_only_where_that_was_asked_for(
    runner: str, option: str
) -> None:
    study = api.load_study(spec(runner=runner))
    assert "no GPU is visible on this machine" in (refusal := api.cannot_run_here(study))
    assert option in refusal
    name, _, value = option.partition(": ")
    asked = {"kind": runner, name: value if value == "cpu" else float(value)}
    assert api.cannot_run_here(api.load_study(spec(runner=asked))) == ""


def test_visible_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert "needs 8 ranks, but the 'local' runner has 4" in api.cannot_run_here(
        api.load_study(spec(runner="local"))
    )
    fewer = spec(
        runner="local",
        space={"world_sizes": [2, 8], "tp": [1, 2]},
        trainer=command(sys.executable, "--size={tp}{dp}"),
    )
    assert api.cannot_run_here(api.load_study(fewer)) == ""
    assert "needs 8 ranks, but the 'ray' runner has 4" in api.cannot_run_here(
        api.load_study(spec(runner="ray"))
    )


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ("0,-1,1", ["0"]),
        ("GPU-1a, GPU-2b", ["GPU-1a", "GPU-2b"]),
        ("-1,0", []),
        ("0,,1", ["0"]),
        ("NoDevFiles", []),
    ],
)
def test_gpus_behind_a_word_that_hides_them_are_not_used(
    monkeypatch: pytest.MonkeyPatch, words: str, gpus: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", words)
    assert visible_gpus() == gpus


@pytest.mark.parametrize("runner", ["local", "ray"])
def test_gpus_that_are_announced_and_cannot_be_used_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    if is_torch_for_gpus():
        pytest.skip("torch is built for GPUs here")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    fewer = api.load_study(spec(runner=runner, space={"world_sizes": [2], "tp": [1, 2]}))
    refusal = api.cannot_run_here(fewer)
    assert "CUDA_VISIBLE_DEVICES=0,1" in refusal
    assert "train on the CPU" in refusal


@pytest.mark.parametrize("runner", ["local", "ray"])
def test_data_that_no_config_can_train_on_are_refused_at_the_start(
    tmp_path: Path, runner: str
) -> None:
    tokens = tmp_path / "tokens.bin"
    np.full(10_000, 60_000, dtype="<u2").tofile(tokens)
    refusal = api.cannot_run_here(api.load_study(on_cpu(runner=runner, data=str(tokens))))
    assert "token ids must be below vocab_size" in refusal
    assert "60000" in refusal
    assert "cannot be read" in api.cannot_run_here(
        api.load_study(on_cpu(runner=runner, data=str(tmp_path / "no.bin")))
    )
    (tmp_path / "odd.bin").write_bytes(b"\1" * 9_999)
    refusal = api.cannot_run_here(
        api.load_study(on_cpu(runner=runner, data=str(tmp_path / "odd.bin")))
    )
    assert "one 2-byte id per token" in refusal
    assert "9999 bytes" in refusal


def test_a_named_ray_cluster_is_judged_once_it_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        api.cannot_run_here(
            api.load_study(spec(runner={"kind": "ray", "address": "10.0.0.1:6379"}))
        )
        == ""
    )
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert api.cannot_run_here(api.load_study(spec(runner="ray"))) == ""


def test_several_nodes_need_a_ray_cluster_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    study = api.load_study(on_cpu(runner="ray", cluster="cpu-2x2", space={"world_sizes": [4]}))
    assert "needs 2 nodes, but no Ray cluster is set" in (refusal := api.cannot_run_here(study))
    assert "ray start --head" in refusal
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert api.cannot_run_here(study) == ""


def test_the_native_trainer_without_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.extras.is_installed", lambda module: module != "torch")
    study = api.load_study(on_cpu(runner="local"))
    with pytest.raises(MissingExtraError, match="needs torch"):
        api.tune(study, store=MemoryStore())
    assert "pip install" in api.cannot_run_here(study)


def test_without_ray_the_local_runner_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.extras.is_installed", lambda module: module != "ray")
    monkeypatch.setattr("autotune_workers.runners.ray.is_installed", lambda module: module != "ray")
    why = api.cannot_run_here(api.load_study(on_cpu(runner="ray")))
    assert "the 'ray' runner with the 'native' trainer needs ray, which is not installed" in why
    assert "pip install 'autotune-parallel[ray]'; or add --runner local" in why


def test_the_programs_folder_is_looked_at(tmp_path: Path, store: Store) -> None:
    trainer = command(sys.executable, cwd=str(tmp_path / "gone"))
    with pytest.raises(RunnerError, match="no such folder here"):
        api.tune(on_cpu(runner="local", trainer=trainer), store=store)


def test_a_folder_that_is_too_large_to_be_sent_along_is_refused(
    tmp_path: Path, store: Store
) -> None:
    (tmp_path / "weights.bin").write_bytes(b"x" * 2_000_000)
    trainer = command(sys.executable, cwd=str(tmp_path), working_dir="upload")
    runner = {"kind": "ray", "upload_limit_mb": 1, "address": "10.0.0.1:6379"}
    with pytest.raises(
        RunnerError, match=r"at most 1 MB .* has 2 MB; the largest entries are weights.bin \(2 MB\)"
    ):
        api.tune(on_cpu(runner=runner, trainer=trainer), store=store)


def test_whoever_submits_does_not_judge_the_machine_that_runs_the_study(store: Store) -> None:
    study = api.load_study(on_cpu(runner="local", trainer=command("only-on-the-cluster")))
    record = api.submit_study(store, study)
    assert record.status is StudyStatus.QUEUED
    with pytest.raises(CatalogError, match="flux"):
        api.submit_study(store, api.load_study(on_cpu(runner="flux")))
    with pytest.raises(RunnerError, match="no such program here"):
        api.run_study(store, record.id)
    assert "only-on-the-cluster" in store.study(record.id).message
    assert store.study(record.id).status is StudyStatus.FAILED


def test_a_runner_that_says_nothing_beforehand_goes_on_as_before() -> None:
    study = api.load_study(spec(runner={"kind": "simulated", "capacity": 1}))
    assert api.cannot_run_here(study) == ""
    with pytest.raises(RunnerError, match="needs 8 ranks, but the 'simulated' runner has 1"):
        api.tune(study, store=MemoryStore())
