"""What a launcher is told beside its ranks stays; what a trial cannot have is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.errors import SpecError
from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import command_draft, first_draft
from tests.shortcuts import write

PROGRAM = 'import argparse\np = argparse.ArgumentParser()\np.add_argument("--batch-size", type=int, default=4)\n'


def drafted(tmp_path: Path, run: str, cluster: str | None = None) -> Draft:
    write(tmp_path, {"train.py": PROGRAM, "run.sh": f"{run}\n"})
    return first_draft(tmp_path / "run.sh", model="gpt2-small", cluster=cluster, folder=tmp_path)


@pytest.mark.parametrize(
    ("run", "kept"),
    [
        ("deepspeed --num_gpus 2 --bind_cores_to_rank train.py", ["--bind_cores_to_rank"]),
        (
            "deepspeed --bind_core_list 0-3 --num_gpus 2 --master_port 9 train.py",
            ["--bind_core_list=0-3"],
        ),
        (
            "torchrun --nproc-per-node 2 --numa-binding node --rdzv-id 7 train.py",
            ["--numa-binding=node"],
        ),
        (
            "torchrun --standalone --nproc-per-node=2 --start-method=fork train.py",
            ["--start-method=fork"],
        ),
        (
            "accelerate launch --num_processes 2 --num_cpu_threads_per_process 4 --dynamo_backend no train.py",
            ["--num_cpu_threads_per_process=4", "--dynamo_backend=no"],
        ),
        ("mpirun -np 2 --bind-to core train.py", ["--bind-to", "core"]),
        ("srun -n 2 --cpu-bind=cores python train.py", ["--cpu-bind=cores"]),
        (
            "OMP_NUM_THREADS=1 nohup torchrun --nproc-per-node 2 --numa-binding=node train.py",
            ["--numa-binding=node"],
        ),
    ],
)
def test_what_is_not_about_ranks_stays(tmp_path: Path, run: str, kept: list[str]) -> None:
    draft = drafted(tmp_path, run)
    words = draft.document["trainer"]["argv"]
    before = words[: words.index("train.py")]
    assert [word for word in before if word in kept] == kept
    assert not any("left out" in note for note in draft.notes)
    assert not {"--rdzv-id=7", "--master_port=9"} & set(words)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("torchrun --nproc-per-node 2 --log-dir logs --tee 3 train.py", "--log-dir logs, --tee 3"),
        ("torchrun $DISTRIBUTED train.py", "$DISTRIBUTED"),
        (
            "deepspeed --num_gpus 2 --enable_each_rank_log logs train.py",
            "--enable_each_rank_log logs",
        ),
        ("numactl -l torchrun --nproc-per-node 2 train.py", "numactl -l"),
        ("sudo -E torchrun --nproc-per-node 2 train.py", "sudo -E"),
        ("timeout 1h nice -n 5 python train.py", "timeout 1h nice -n 5"),
        ("A=b stdbuf -oL torchrun --nproc-per-node 2 train.py", "stdbuf -oL"),
        ("./bind.sh torchrun --nproc-per-node 2 train.py", "./bind.sh"),
        ("conda run -n train python train.py", "conda run -n train"),
        (
            "conda run -n env --no-capture-output python train.py",
            "conda run -n env --no-capture-output",
        ),
        ("uv run --frozen torchrun --nproc-per-node 2 train.py", "uv run --frozen"),
        ("pixi run -e gpu python train.py", "pixi run -e gpu"),
        ("dotenv run -- python train.py", "dotenv run --"),
        ("srun -n 2 --output=log.txt --time 5 python train.py", "--output=log.txt, --time 5"),
        ("mpirun -np 2 --map-by socket python train.py", "--map-by socket"),
    ],
)
def test_what_trials_do_without_is_said(tmp_path: Path, run: str, said: str) -> None:
    draft = drafted(tmp_path, run)
    assert any(
        f"trials omit {said}, because autotune starts their ranks;" in note for note in draft.notes
    )
    words = draft.document["trainer"]["argv"]
    assert not any(
        word.startswith(("--log-dir", "--tee", "--enable", "--output", "--time", "$"))
        for word in words
    )


@pytest.mark.parametrize(
    ("run", "start"),
    [
        (
            "python3 -m torch.distributed.run --nproc_per_node=2 train.py",
            "python3 -m torch.distributed.run --standalone --nproc-per-node={nproc_per_node}",
        ),
        (
            "python -O -X faulthandler -m torch.distributed.launch --use_env --nproc_per_node=2 train.py",
            "python -O -X faulthandler -m torch.distributed.launch --standalone --nproc-per-node={nproc_per_node} --use_env",
        ),
        (
            "/env/bin/python3.12 -u -m accelerate.commands.launch --num_processes 2 train.py",
            "python3.12 -u -m accelerate.commands.launch --num_processes={world_size}",
        ),
        (
            "$PYTHON -m deepspeed.launcher.runner --num_gpus 2 train.py",
            "python -m deepspeed.launcher.runner --num_gpus={nproc_per_node} --master_port={master_port}",
        ),
        ("python3 -O -X dev train.py", "python3 -O -X dev"),
        ("srun -n 2 python -O train.py", "srun --nodes=1 --ntasks={world_size} python -O"),
    ],
)
def test_a_program_is_started_as_its_launch_starts_it(tmp_path: Path, run: str, start: str) -> None:
    words = drafted(tmp_path, run).document["trainer"]["argv"]
    assert " ".join(words[: words.index("train.py")]) == start


def test_options_of_python_that_torchrun_does_not_give_to_ranks_are_said(tmp_path: Path) -> None:
    draft = drafted(tmp_path, "srun -n 4 -N 2 python -O -u train.py", "h100-sxm-2x2")
    assert draft.document["trainer"]["argv"][0] == "torchrun"
    assert any("trials omit -O, because" in note for note in draft.notes)


def test_a_wrapper_of_a_known_command_is_said(tmp_path: Path) -> None:
    sft = {"model_name_or_path": "gpt2", "stage": "sft", "per_device_train_batch_size": 1}
    write(tmp_path, {"sft.yaml": json.dumps({**sft, "cutoff_len": 1024})})
    draft = drafted(tmp_path, "sudo -E llamafactory-cli train sft.yaml")
    assert any("trials omit sudo -E, because" in note for note in draft.notes)


@pytest.mark.parametrize(
    "run",
    [
        "env FOO=1 'BAR=a b' CUDA_VISIBLE_DEVICES=0 python train.py",
        "nohup /usr/bin/env -u OLD FOO=1 BAR='a b' torchrun --nproc-per-node 2 train.py",
        "BAR='a b' env -i FOO=1 python train.py",
        "BAR='a b' srun -n 1 --export=ALL,FOO=1 python train.py",
        "BAR='a b' mpirun -np 2 -x FOO=1 -x PATH python train.py",
    ],
)
def test_variables_that_a_command_sets_for_its_program_stay(tmp_path: Path, run: str) -> None:
    """However it sets them; where it runs is decided by autotune."""
    draft = drafted(tmp_path, run)
    assert draft.document["trainer"]["env"] == {"FOO": "1", "BAR": "a b"}


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["bash", "-x", "train.sh"], "autotune init train.sh"),
        (["papermill", "train.ipynb", "out.ipynb"], "jupyter nbconvert --to script train.ipynb"),
        (["make", "train"], "autotune init -- torchrun"),
    ],
)
def test_what_starts_no_program_itself_is_rejected_with_what_does(
    words: list[str], remedy: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError) as refused:
        command_draft(words, folder=tmp_path)
    assert remedy in (refused.value.remedy or "")


def test_on_cpus_the_options_of_accelerate_are_left_out_and_said(tmp_path: Path) -> None:
    draft = drafted(
        tmp_path, "accelerate launch --num_processes 2 --dynamo_backend no train.py", "cpu-1x2"
    )
    assert draft.document["trainer"]["argv"][0] == "torchrun"
    assert any("--dynamo_backend no" in note for note in draft.notes)
