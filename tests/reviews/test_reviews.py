"""A review reads a launch as it is, says what is missing, and proposes edits that are legal, surely
fit and surely gain, as lines of the file."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autotune
from autotune import api
from autotune.cli import run
from autotune.cost.learn.uncertainty import Z90
from autotune.errors import SpecError
from autotune.reviews import lines_of, review, review_texts
from autotune.reviews.answer import Gain, LineEdit
from autotune.reviews.edits import LEAST_CHANCE, RISKY, SURE, TRIALS
from autotune.reviews.gains import given_that_it_ran
from autotune.reviews.lines import GONE, Change, _added, _apply, edited, patch
from autotune.reviews.target import reading_only
from autotune.schema.parsing import parse_study
from autotune.space import why_not
from autotune.spec import ParallelConfig
from tests.reviews.launches import Reviewed, Said
from tests.shortcuts import file_with, write

TRAINER = """#!/bin/bash
#SBATCH --nodes=1
#SBATCH --gres=gpu:8
BS=1
torchrun --nproc_per_node=8 run_clm.py \\
    --model_name_or_path meta-llama/Llama-3.1-8B \\
    --per_device_train_batch_size $BS \\
    --gradient_accumulation_steps 16 \\
    --gradient_checkpointing True \\
    --fsdp "full_shard auto_wrap" \\
    --block_size 4096 \\
    --bf16 True --max_steps 1000 --output_dir out 2>&1 | tee log.txt
"""
SCRIPT_ALONE = """import argparse
from accelerate import Accelerator
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=1)
parser.add_argument("--seq_len", type=int, default=4096)
args = parser.parse_args()
Accelerator(gradient_accumulation_steps=8)
"""
TITAN = """[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
steps = 1000
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 1
[activation_checkpoint]
mode = "full"
[compile]
enable = false
"""
TRAIN_JOB = """apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tune}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    numNodes: 2
    numProcPerNode: 8
    image: registry/image
    command: [python, train.py]
    args:
      - --model_name_or_path=meta-llama/Llama-3.1-8B
      - --per_device_train_batch_size=2
      - --gradient_accumulation_steps=4
      - --block_size=2048
      - --bf16=True
"""
PYTORCH_JOB = """apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: tune}
spec:
  nprocPerNode: "4"
  pytorchReplicaSpecs:
    Master: &pod
      replicas: 1
      template:
        spec:
          containers:
            - name: pytorch
              image: image
              command: ["bash", "-c", "torchrun --nnodes=2 --nproc-per-node=4 train.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --block_size 2048 --bf16 True"]
              resources: {limits: {nvidia.com/gpu: 4}}
    Worker: *pod
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return file_with(tmp_path / "train.sh", TRAINER)


def test_a_launch_is_understood_and_predicted_and_its_edits_are_lines_of_its_file(
    script: Path,
) -> None:
    found = review(script, cluster="h200-sxm")
    assert (found.config.dp, found.config.micro_batch_size, found.config.accumulation_steps) == (
        8,
        1,
        16,
    )
    assert (found.config.recompute, found.config.zero_stage, found.config.precision) == (
        "full",
        3,
        "bf16",
    )
    assert found.study.workload.model.name == "llama-8b"
    assert "128 x 4096" in found.understood
    (edit,) = [edit for edit in found.edits if edit.knob == "recompute"]
    assert edit.lines == (
        LineEdit(
            file="train.sh",
            line=9,
            before="    --gradient_checkpointing True \\",
            after="    --gradient_checkpointing False \\",
        ),
    )
    assert 1.0 < edit.alone.low < edit.alone.gain < edit.alone.high
    assert found.to_dict()["edits"][0]["line"] == 9
    assert script.read_text() == TRAINER  # nothing of theirs is written


@pytest.mark.parametrize(
    ("name", "text", "cluster"),
    [
        ("train.sh", TRAINER, "h200-sxm"),
        ("llama.toml", TITAN, "h100-sxm-1x8"),
        ("train.sh", TRAINER, "a100-80gb"),
    ],
)
def test_what_is_proposed_is_legal_surely_fits_and_surely_gains(
    name: str, text: str, cluster: str, tmp_path: Path
) -> None:
    found = review(file_with(tmp_path / name, text), cluster=cluster)
    assert found.config is not None
    if found.together is None:
        assert not found.edits
        return
    target = found.together.config
    assert why_not(found.study.workload, target) is None
    assert float(found.together.estimate.oom_probability) <= SURE
    assert found.together.gain.low > 1.0
    assert target.global_batch_size == found.config.global_batch_size
    assert target.world_size == found.config.world_size
    for edit in found.edits:
        assert edit.alone is None or edit.alone.low > 1.0


def test_where_no_edit_is_sure_up_to_three_are_worth_a_trial(script: Path) -> None:
    found = review(script, cluster="h100-sxm")
    assert found.config is not None
    assert not found.edits
    assert found.together is None
    assert 1 <= len(found.trials) <= TRIALS
    gains = []
    for tried in found.trials:
        assert tried.alone.low < 1.0 or tried.oom_probability > SURE
        assert "precision" not in tried.changes
        assert tried.alone.chance >= LEAST_CHANCE
        assert tried.oom_probability <= RISKY
        assert tried.lines or tried.unplaced
        gains.append(1.0 + (tried.alone.expected - 1.0) * (1.0 - tried.oom_probability))
    assert gains == sorted(gains, reverse=True)
    assert any("compile" in tried.changes for tried in found.trials)
    lines = lines_of(found)
    assert (
        "no edit is certain both to fit and to be faster; try these edits, and keep those that are faster:"
        in lines
    )
    assert any("compile off -> on" in line for line in lines)
    narrow = lines_of(found, most=None, width=60)
    assert max(map(len, narrow)) <= 60
    assert " ".join(" ".join(narrow).split()) == " ".join(
        " ".join(lines_of(found, most=None)).split()
    )
    document = found.to_dict()
    assert document["trials"][0] == document["worth_a_trial"]
    assert [each["chance"] for each in document["trials"]] == [
        tried.alone and tried.alone.chance for tried in found.trials
    ]


@pytest.mark.parametrize(
    ("gain", "low", "high"), [(1.1, 0.95, 1.3), (0.95, 0.8, 1.4), (1.0, 0.9, 1.1), (1.2, 1.1, 1.5)]
)
def test_what_a_trial_gains_on_average_is_that_of_draws(
    gain: float, low: float, high: float
) -> None:
    z = np.random.default_rng(0).standard_normal(400_000) / Z90
    logs = np.log(gain) + np.where(z < 0, z * np.log(gain / low), z * np.log(high / gain))
    said = Gain(gain=gain, low=low, high=high)
    assert said.expected == pytest.approx(float(np.exp(np.maximum(logs, 0.0).mean())), abs=5e-4)
    assert said.chance == pytest.approx(float((logs > 0).mean()), abs=2e-3)


def test_a_gain_without_a_spread_is_sure() -> None:
    assert Gain(gain=1.2, low=1.2, high=1.2).expected == pytest.approx(1.2)
    assert Gain(gain=0.9, low=0.9, high=0.9).expected == 1.0
    assert (Gain(gain=1.2, low=1.2, high=1.3).chance, Gain(gain=0.9, low=0.8, high=0.9).chance) == (
        1.0,
        0.0,
    )


def test_the_config_with_the_highest_prediction_is_named_beside_the_edits(tmp_path: Path) -> None:
    """`autotune plan` begins with it, though not each of its changes is certain to gain."""
    launch = file_with(
        tmp_path / "train.sh",
        "torchrun --nproc_per_node=8 run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --block_size 4096 --bf16 True --fsdp full_shard "
        "--gradient_checkpointing True --per_device_train_batch_size 1 --gradient_accumulation_steps 16 --torch_compile True\n",
    )
    found = review(launch, cluster="h200-sxm")
    assert found.best is not None
    assert found.best_gain == found.best.gain.gain > found.together.gain.gain  # type: ignore[union-attr]
    (line,) = (line for line in lines_of(found) if line.startswith("highest prediction"))
    assert "mb 1 -> 2, acc 16 -> 8, recompute full -> none" in line
    assert found.to_dict()["best"]["config"]["micro_batch_size"] == 2


def test_changes_that_surely_gain_together_are_proposed_though_none_is_sure_alone(
    tmp_path: Path,
) -> None:
    launch = file_with(
        tmp_path / "one_line.sh",
        "torchrun --nproc-per-node 8 run_clm.py --model_name_or_path Qwen/Qwen3-14B --per_device_train_batch_size 1 --gradient_accumulation_steps 8 "
        '--bf16 --gradient_checkpointing --fsdp "full_shard auto_wrap" --block_size 4096 --output_dir out\n',
    )
    found = review(launch, cluster="h200-sxm")
    assert found.together.gain.low > 1.0
    assert {edit.knob for edit in found.edits} == {"micro_batch_size", "compile"}
    assert all(edit.alone is None for edit in found.edits)
    assert (
        float(found.estimate.peak_memory_high_bytes)
        <= found.study.workload.cluster.gpu.memory_bytes
    )  # type: ignore[union-attr]


@pytest.mark.parametrize("said", ["fp16", "fp32"])
def test_no_slower_number_format_is_proposed_also_for_a_launch_that_does_not_fit(
    said: str, script: Path, tmp_path: Path
) -> None:
    """A config of another format than the launch's own: what is proposed is faster, so it is never
    fp32, nor fp16 in place of it."""
    launch = script.read_text().replace("Llama-3.1-8B", "Llama-3.1-70B")
    script.write_text(launch)
    for zero_stage in (0, 3):
        config = f"micro_batch_size=1,accumulation_steps=16,precision={said},zero_stage={zero_stage},recompute=full"
        found = review(script, cluster="h100-sxm", config=config)
        changes = [edit.changes for edit in (*found.edits, *found.trials)]
        changes += [found.if_out_of_memory.changes] if found.if_out_of_memory else []
        assert {each["precision"][1] for each in changes if "precision" in each} <= {"bf16"}


def test_what_is_missing_is_named_with_how_to_say_it_and_nothing_is_predicted(script: Path) -> None:
    found = review(script)
    assert [each.what for each in found.missing] == ["the GPUs to train on"]
    assert (
        "the 1 x 8 GPUs that the launch requests, e.g. --cluster h100-sxm"
        in found.missing[0].remedy
    )
    assert found.estimate is None
    assert "no prediction yet; add the missing values" in lines_of(found)
    bare = review(["torchrun", "--nproc-per-node", "8", "train.py", "--batch", "4"])
    assert {each.remedy.split()[1] for each in bare.missing} >= {"--model", "--seq-len", "--batch"}


def test_a_command_is_reviewed_as_a_script_is(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (
        TRAINER.split("BS=1\n")[1]
        .split(" 2>&1")[0]
        .replace("\\\n", " ")
        .replace("$BS", "1")
        .replace('"', "")
    )
    by_words = review(
        words.replace("full_shard auto_wrap", "full_shard").split(), cluster="h100-sxm"
    )
    assert by_words.config == review(script, cluster="h100-sxm").config
    assert by_words.target == "command"


@pytest.mark.parametrize("text", [TRAINER, TITAN])
def test_a_text_is_reviewed_as_its_file_is(text: str, tmp_path: Path) -> None:
    path = file_with(tmp_path / ("launch.sh" if text is TRAINER else "launch.toml"), text)
    found = autotune.review(text, cluster="h100-sxm-1x8")
    of_file = autotune.review(path, cluster="h100-sxm-1x8")
    assert (found.config, found.estimate, found.lines) == (
        of_file.config,
        of_file.estimate,
        of_file.lines,
    )


def test_edits_of_a_trainers_file_are_its_keys_and_a_patch_applies(tmp_path: Path) -> None:
    path = file_with(tmp_path / "llama.toml", TITAN)
    found = review(path, cluster="h100-sxm-1x8")
    changed = {(line.line, line.after) for line in found.lines}
    assert (16, "enable = true") in changed
    (tmp_path / "edits.patch").write_text(patch(found.texts, found.lines))
    subprocess.run(
        ["patch", "-p1", "-i", "edits.patch"], cwd=tmp_path, check=True, capture_output=True
    )
    assert path.read_text() == edited(found.texts, found.lines)["llama.toml"]
    again = review(path, cluster="h100-sxm-1x8")
    assert again.config.compile


def test_a_flag_on_a_line_of_its_own_goes_with_the_line() -> None:
    text = "torchrun t.py \\\n  --ckpt \\\n  --x 1\n"
    lines = text.splitlines()
    assert _apply(lines, "a.sh", Change("--ckpt", "", None)) == ("a.sh", 1)
    assert lines[1] == GONE
    gone = LineEdit(file="a.sh", line=2, before="  --ckpt \\", after="")
    assert edited({"a.sh": text}, (gone,)) == {"a.sh": "torchrun t.py \\\n  --x 1\n"}


def test_edits_of_a_script_are_lines_of_the_settings_that_it_names(tmp_path: Path) -> None:
    told = "model_name_or_path: Qwen/Qwen3-4B\nfinetuning_type: full\ncutoff_len: 2048\nper_device_train_batch_size: 1\n"
    write(
        tmp_path,
        {
            "sft.yaml": f"{told}gradient_accumulation_steps: 2\nbf16: true\nfsdp: full_shard\n",
            "data.json": '[{"per_device_train_batch_size": 1}]',
        },
    )
    launch = file_with(
        tmp_path / "run.sh", "CUDA_VISIBLE_DEVICES=0,1,2,3 llamafactory-cli train sft.yaml\n"
    )
    found = review(launch, cluster="h100-sxm")
    assert list(found.texts) == ["run.sh", "sft.yaml"]
    assert {line.file for line in found.lines} == {"sft.yaml"}
    assert not found.unplaced


def test_a_batch_that_follows_from_ranks_is_written_where_these_change(tmp_path: Path) -> None:
    path = file_with(tmp_path / "llama.toml", TITAN)
    found = review(path, cluster="h100-sxm-1x8")
    changed = [edit for edit in found.edits if "accumulation_steps" in edit.changes]
    assert changed
    for edit in changed:
        assert (
            LineEdit(
                file="llama.toml",
                line=6,
                before="[training]",
                after="[training]\nglobal_batch_size = 8",
            )
            in edit.lines
        )


def test_a_measured_step_takes_the_level_of_this_run(script: Path) -> None:
    before = review(script, cluster="h100-sxm")
    slow = 1.5 * float(before.estimate.step_time_s)
    after = review(script, cluster="h100-sxm", measured_s=slow)
    assert after.observed.slower == pytest.approx(1.5)
    assert float(after.estimate.step_time_s) == pytest.approx(slow, rel=0.1)
    width = [
        float(e.step_time_high_s) / float(e.step_time_low_s)
        for e in (before.estimate, after.estimate)
    ]
    assert width[1] < width[0]
    with pytest.raises(SpecError, match="above 0 s"):
        review(script, cluster="h100-sxm", measured_s=0.0)


def test_texts_from_elsewhere_read_no_file_of_this_machine(tmp_path: Path) -> None:
    secret = file_with(
        tmp_path / "secret.py",
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--known-only-here', default=3)\n",
    )
    started = f"torchrun --nproc_per_node 8 {secret} --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --block_size 2048 --bf16 True\n"
    for text in (started, started.replace(str(tmp_path), "../" * 12 + str(tmp_path)[1:])):
        found = review_texts({"run.sh": text}, cluster="h100-sxm")
        assert "known" not in json.dumps(found.to_dict())
        assert list(found.texts) == ["run.sh"]
    with pytest.raises(SpecError, match="not a file name"):
        review_texts({"../run.sh": started})
    for name in ("/etc/passwd", "a/../../b.sh", " "):
        with pytest.raises(SpecError, match="not a file name"):
            review_texts({name: started})


@pytest.mark.parametrize(
    ("name", "text", "words", "line"),
    [
        ("run.sh", "export CUDA_LAUNCH_BLOCKING=1\n", "CUDA_LAUNCH_BLOCKING", 1),
        ("run.sh", "\nexport NCCL_P2P_DISABLE=1\n", "NCCL_P2P_DISABLE", 2),
        ("run.sh", "torchrun train.py --bf16 True --fp16 True\n", "both on", 1),
        ("run.sh", "python train.py --amp-dtype bfloat16\n", "no effect without --amp", 1),
        ("run.sh", "python t.py \\\n --dataloader_num_workers 0\n", "GPU waits", 2),
        ("train.py", "x = 1\nloader = DataLoader(data, batch_size=4)\n", "no workers", 2),
        ("train.py", "torch.autograd.set_detect_anomaly(True)\n", "anomaly", 1),
        ("train.py", "m = DDP(m, find_unused_parameters=True)\n", "find_unused", 1),
    ],
)
def test_what_is_dangerous_is_named_with_its_line(
    name: str, text: str, words: str, line: int
) -> None:
    from autotune.reviews.dangers import dangers_of

    found = [each for each in dangers_of({name: text}) if words in each.text]
    assert [(each.file, each.line) for each in found] == [(name, line)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", "# export CUDA_LAUNCH_BLOCKING=1\nexport NCCL_P2P_DISABLE=0\n"),
        ("run.sh", "python train.py --amp --amp-dtype bfloat16 --bf16 True --fp16 False\n"),
        (
            "train.py",
            '"""Without InfiniBand, prepend NCCL_IB_DISABLE=1."""\nDataLoader(data, num_workers=4)\n',
        ),
    ],
)
def test_what_is_not_dangerous_is_not_named(name: str, text: str) -> None:
    from autotune.reviews.dangers import dangers_of

    assert not list(dangers_of({name: text}))


@pytest.mark.parametrize(
    ("name", "before", "change", "after"),
    [
        ("a.sh", "torchrun t.py --batch-size 4 --x 1", Change("--batch-size", "4", "8"), "torchrun t.py --batch-size 8 --x 1"),
        ("a.sh", "torchrun t.py --batch_size=4", Change("--batch-size", "4", "8"), "torchrun t.py --batch_size=8"),
        ("a.sh", "MBS=4\ntorchrun t.py --mbs $MBS", Change("--mbs", "4", "8"), "MBS=8\ntorchrun t.py --mbs $MBS"),
        ("a.sh", "MBS=${MBS:-4}\ntorchrun t.py --mbs ${MBS}", Change("--mbs", "4", "8"), "MBS=${MBS:-8}\ntorchrun t.py --mbs ${MBS}"),
        ("a.sh", "torchrun t.py --ckpt --x 1", Change("--ckpt", "", None), "torchrun t.py --x 1"),
        ("a.sh", "torchrun t.py \\\n  --x 1 | tee log", Change("--ckpt", None, ""), "torchrun t.py \\\n  --x 1 --ckpt | tee log"),
        ("a.yaml", "train:\n  micro: 4  # of a rank", Change("train.micro", "4", "8"), "train:\n  micro: 8  # of a rank"),
        ("a.yaml", "- --mbs\n- '4'", Change("--mbs", "4", "8"), "- --mbs\n- '8'"),
        ("a.json", '{"bf16": true, "mbs": 4}', Change("mbs", "4", "8"), '{"bf16": true, "mbs": 8}'),
        ("a.toml", "enable = false", Change("compile.enable", "false", "true"), "enable = true"),
        ("a.py", "p.add_argument('--mbs', type=int,\n  default=4)", Change("--mbs", "4", "8"), "p.add_argument('--mbs', type=int,\n  default=8)"),
        ("a.py", "batch_size = 12 # micro", Change("--batch_size", "12", "24"), "batch_size = 24 # micro"),
    ],
)  # fmt: skip
def test_a_change_is_made_where_the_value_stands(
    name: str, before: str, change: Change, after: str
) -> None:
    lines = before.splitlines()
    assert _apply(lines, name, change) is not None
    assert "\n".join(lines) == after


def test_an_option_at_its_default_is_added_to_the_command() -> None:
    change = Change("--gradient_checkpointing", "False", "True")
    lines = TRAINER.replace("    --gradient_checkpointing True \\\n", "").splitlines()
    assert _apply(list(lines), "train.sh", change) is None
    assert _added({"train.py": ["import torch"], "train.sh": lines}, change) == [
        ("train.sh", len(lines) - 1)
    ]
    assert lines[-1].endswith("--output_dir out --gradient_checkpointing True 2>&1 | tee log.txt")
    for mentioned in (
        "--gradient-checkpointing $CKPT",
        "p.add_argument('--gradient_checkpointing')",
    ):
        assert _added({"train.sh": [*lines[:-1], f"torchrun t.py {mentioned}"]}, change) == []


@pytest.mark.parametrize(
    ("name", "text", "change"),
    [
        ("a.sh", "torchrun t.py --batch-size 16", Change("--batch-size", "4", "8")),
        ("a.sh", "# torchrun t.py --batch-size 4", Change("--batch-size", "4", "8")),
        ("a.sh", "torchrun t.py --eval-batch-size 4", Change("--batch-size", "4", "8")),
        ("a.yaml", "other_micro: 4", Change("train.micro", "4", "8")),
    ],
)
def test_another_options_value_stays(name: str, text: str, change: Change) -> None:
    lines = text.splitlines()
    assert _apply(lines, name, change) is None
    assert "\n".join(lines) == text


def test_no_file_outside_of_its_folder_is_read_however_its_path_is_written(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out.txt"
    inside.mkdir()
    (inside / "a.txt").write_text("a")
    outside.write_text("secret")
    (inside / "link.txt").symlink_to(outside)
    with reading_only(inside):
        assert (inside / "a.txt").read_text() == "a"
        for path in (
            outside,
            inside / ".." / "out.txt",
            inside / "link.txt",
            Path("/etc/hostname"),
        ):
            with pytest.raises(PermissionError):
                path.read_text()
    assert outside.read_text() == "secret"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run(["review", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_at_most_25_lines_and_makes_no_store(
    script: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("AUTOTUNE_STORE", raising=False)
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path / "data"))
    code, out, _ = printed(capsys, str(script), "--cluster", "h200-sxm", "--tokens", "10B")
    assert code == 0
    assert len(out.splitlines()) <= 25
    for words in (
        "fits: ",
        "predicted: ",
        "10G tokens: ",
        "recompute full -> none",
        "train.sh:9: ",
    ):
        assert words in out
    assert not (tmp_path / "data").exists()
    code, out, _ = printed(capsys, str(script))
    assert code == 2
    assert "missing: the GPUs to train on" in out


def test_json_has_all_of_it_and_a_copy_has_the_edits(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "edited.sh"
    code, out, _ = printed(
        capsys, str(script), "--cluster", "h200-sxm", "--json", "--write", str(copy)
    )
    assert code == 0
    document: dict[str, Any] = json.loads(out)
    assert {
        "understood",
        "assumed",
        "missing",
        "estimate",
        "observed",
        "edits",
        "warnings",
        "together",
    } <= set(document)
    assert "--gradient_checkpointing False" in copy.read_text()
    assert script.read_text() == TRAINER
    code, _, err = printed(capsys, str(script), "--cluster", "h200-sxm", "--write", str(copy))
    assert code == 2
    assert "exists" in err


def test_a_launch_that_does_not_fit_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = printed(
        capsys, str(file_with(tmp_path / "job.yaml", TRAIN_JOB)), "--cluster", "a100-40gb"
    )
    assert code == 1
    assert "does not fit: " in out


def test_review_and_estimate_give_one_verdict(script: Path) -> None:
    found = review(script, cluster="h100-sxm")
    assert found.study is not None
    assert found.config is not None
    predicted, _ = api.estimate_of(found.study, found.config)
    assert found.estimate == predicted


SPEC = """model: llama-8b
cluster: h100-sxm-1x8
workload: {seq_len: 4096, global_batch_size: 128}
space: dense-single-node
trainer: megatron
baseline: micro_batch_size=1,zero_stage=1,recompute=full   # today
"""


def test_what_is_said_beside_a_spec_counts_and_its_edits_are_its_baseline(tmp_path: Path) -> None:
    path = file_with(tmp_path / "study.yaml", SPEC)
    found, other = review(path), review(path, cluster="a100-80gb-1x8", model="llama-3b")
    assert (found.study.workload.model.name, found.study.workload.cluster.gpu.name) == (
        "llama-8b",
        "h100-sxm",
    )
    assert (other.study.workload.model.name, other.study.workload.cluster.gpu.name) == (
        "llama-3b",
        "a100-80gb",
    )
    (line,) = found.lines
    assert (line.line, line.after) == (6, f"baseline: {found.together.config}   # today")
    path.write_text(edited(found.texts, found.lines)["study.yaml"])
    assert review(path).config == found.together.config


def test_a_step_that_no_gpu_takes_is_refused_and_one_time_is_given(script: Path) -> None:
    with pytest.raises(SpecError, match="but the limit is 100%"):
        review(script, cluster="h100-sxm", measured_s=2.0)
    with pytest.raises(SpecError, match="both set the step time"):
        review(script, cluster="h100-sxm", measured_s=10.0, log="step 1")


def test_the_memory_of_a_change_is_its_own_and_what_lowers_memory_is_looked_for_in_the_launch_alone(
    tmp_path: Path,
) -> None:
    path = file_with(
        tmp_path / "study.yaml",
        SPEC.replace(
            "micro_batch_size=1,zero_stage=1,recompute=full", "micro_batch_size=8,zero_stage=0"
        ),
    )
    found = review(path)
    assert found.fits is False
    recompute = [edit for edit in found.edits if edit.knob == "recompute"]
    assert all(edit.memory_bytes < 0 for edit in recompute)
    write(
        tmp_path,
        {
            "run_clm.py": "import argparse\nOPTIMIZERS = ['adafactor']\n",
            "train.sh": TRAINER + "# --optim paged_adamw\n",
        },
    )
    assert not review(tmp_path / "train.sh", cluster="h100-sxm").is_upper_bound


def test_a_patch_names_what_the_file_has_no_line_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "llama.toml"
    section = "[training]\nlocal_batch_size = 1\nseq_len = 8192\nsteps = 1000\n"
    path.write_text(
        "training = {local_batch_size = 1, seq_len = 8192, steps = 1000}\n"
        + TITAN.replace(section, "")
    )
    _, out, err = printed(capsys, str(path), "--cluster", "h100-sxm-1x8", "--diff")
    assert out.startswith("--- a/llama.toml")
    assert (
        "set these options too, because the files have no lines for them: training.global_batch_size=8"
        in err
    )
    found = review(path, cluster="h100-sxm-1x8")
    spec = SPEC.replace("trainer: megatron", "trainer: torchtitan").partition("baseline")[0]
    best = file_with(
        tmp_path / "best.yaml",
        f"{spec.replace('4096', '8192').replace('128', '8')}baseline: {found.together.config}\n",
    )
    again = review(best)
    assert again.together is None
    _, out, err = printed(capsys, str(best), "--diff")
    assert out == ""
    assert "no edit is proposed" in err


@pytest.mark.parametrize("model", ["/etc/passwd.json", "a/config.json", "../config.json"])
def test_texts_from_elsewhere_name_no_model_by_a_path(model: str) -> None:
    with pytest.raises(SpecError, match="catalog name or a hub id"):
        review_texts({"run.sh": TRAINER}, model=model)


def test_texts_that_cannot_lie_in_one_folder_are_refused() -> None:
    for texts in ({"a": "b", "a/b": "c"}, {"a\x00": "b"}, {"x" * 300: "y"}):
        with pytest.raises(SpecError, match="plain file names"):
            review_texts(texts)


def test_a_gpu_alone_as_the_cluster_of_unknown_ranks_is_one_of_the_things_that_are_missing(
    tmp_path: Path,
) -> None:
    path = file_with(
        tmp_path / "train.py",
        'import lightning as L\n\ntrainer = L.Trainer(devices=8, precision="bf16-mixed")\n',
    )
    found = review(path, cluster="h100-sxm")
    assert found.study is None
    said = {missing.what: missing.remedy for missing in found.missing}
    assert (
        said["the number of GPUs, because h100-sxm is only a GPU type"]
        == "set nodes and GPUs per node, e.g. --cluster h100-sxm-1x8"
    )
    assert len(said) > 3, "all that is missing is said at once"


def test_a_launch_that_was_measured_fits_whatever_was_predicted(tmp_path: Path) -> None:
    launch = tmp_path / "train.sh"
    text = (
        "torchrun --nproc-per-node 8 run_clm.py --model_name_or_path meta-llama/Llama-3.1-8B --per_device_train_batch_size {} --gradient_accumulation_steps 2 "
        '--bf16 --fsdp "full_shard auto_wrap" --block_size 4096 --output_dir out\n'
    )
    launch.write_text(text.format(4))
    assert review(launch, cluster="h100-sxm").fits is False
    found = review(launch, cluster="h100-sxm", measured_s=5.0)
    assert found.fits
    assert found.estimate.oom_probability == 0.0
    assert any(
        line.startswith("fits, because the launch ran; predicted memory: ")
        for line in lines_of(found)
    )
    for edit in (*found.edits, *found.trials):
        # nothing that takes more than the launch, which was sure not to fit
        assert edit.memory_bytes <= 0
    assert found.if_out_of_memory is None


def test_what_a_launch_that_ran_says_of_the_memory_of_others() -> None:
    workload = parse_study(
        {
            "name": "ran",
            "model": "llama-8b",
            "cluster": "h100-sxm-1x8",
            "workload": {"seq_len": 4096, "global_batch_size": 64},
            "trainer": "hf_trainer",
            "space": "dense-single-node",
        }
    ).workload
    configs = [
        ParallelConfig(
            dp=8, micro_batch_size=mb, accumulation_steps=8 // mb, zero_stage=3, recompute=recompute
        )
        for mb, recompute in ((1, "none"), (2, "full"), (4, "full"), (2, "none"))
    ]
    predicted = autotune.estimate(workload, configs)
    before = np.asarray(predicted.oom_probability)
    after = np.asarray(given_that_it_ran(predicted, predicted.row(0)).oom_probability)
    assert 0.2 < before[0] < 0.8
    assert after[0] == 0.0
    assert (after <= before).all()
    assert after == pytest.approx(np.clip((before - before[0]) / (1.0 - before[0]), 0.0, 1.0))


def test_a_refusal_names_the_manifest_and_not_the_script_that_stands_for_it(tmp_path: Path) -> None:
    path = file_with(
        tmp_path / "job.yaml",
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nspec:\n  trainer:\n    numNodes: 2\n"
        "    command: [torchrun, --no-python, python3, -c, 'import torch']\n",
    )
    with pytest.raises(SpecError, match=r"job\.yaml starts `python3`"):
        review(path, cluster="h100-sxm")


def test_a_slurm_script_of_one_task_for_each_rank_is_reviewed_over_several_nodes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.sbatch"
    text = TRAINER.replace("#SBATCH --nodes=1", "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8")
    path.write_text(text.replace("torchrun --nproc_per_node=8", "srun --cpu_bind=v python -u"))
    found = review(path, cluster="h200-sxm")
    assert found.config.world_size == 32
    assert found.lines
    assert "torchrun" not in "".join(line.after for line in found.lines)


@pytest.mark.parametrize(
    ("batch", "config"), [(64, "micro_batch_size=2,zero_stage=3"), (64, "mb2 acc4 zero3")]
)
def test_a_config_is_that_of_a_program_that_has_no_options_for_it(batch: int, config: str) -> None:
    command = ["torchrun", "--nproc-per-node", "8", "recipe.py", "--config", "8B_full.yaml"]
    said = {
        "cluster": "h200-sxm",
        "model": "llama-8b",
        "seq_len": 2048,
        "batch": batch,
        "precision": "bf16",
    }
    found = review(command, config=config, **said)  # type: ignore[arg-type]
    assert not found.missing
    assert (
        found.config.micro_batch_size,
        found.config.accumulation_steps,
        found.config.zero_stage,
    ) == (2, 4, 3)
    assert not found.edits


H100, A100 = {"cluster": "h100-sxm"}, {"cluster": "a100-80gb"}
SMALL_MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 "
    "--max-position-embeddings 1024 --micro-batch-size 8 --global-batch-size 64 --fp16\n"
)
GALORE = (
    "model_name_or_path: meta-llama/Llama-3.1-8B\nfinetuning_type: full\ncutoff_len: 2048\nper_device_train_batch_size: 1\n"
    "pure_bf16: true\nuse_galore: true\n"
)
ACCELERATE = "distributed_type: FSDP\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 8\n"
BY_ACCELERATE = "accelerate launch --config_file accelerate.yaml sft.py --model_name_or_path google/gemma-2-9b --per_device_train_batch_size 1 --max_length 2048"
LLAMA2 = "run_clm.py --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 2"
BY_DEEPSPEED = f"deepspeed --num_gpus 8 {LLAMA2} --gradient_accumulation_steps 8 --bf16 --block_size 4096 --output_dir out --deepspeed "
CHAT = (
    "deepspeed --num_gpus 8 main.py --data_path Dahoas/rm-static --data_split 2,4,4 --model_name_or_path meta-llama/Llama-2-7b-hf --per_device_train_batch_size 4 "
    "--max_seq_len 512 --num_train_epochs 4 --gradient_accumulation_steps 1 --lr_scheduler_type cosine --gradient_checkpointing --zero_stage 3 --deepspeed\n"
)
NO_RANKS = (
    "deepspeed finetune.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 512 --bf16 "
    "--tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 256\n"
)
POD = (
    "template: {{spec: {{containers: [{{name: pytorch, command: [{words}run_clm.py, --model_name_or_path=meta-llama/Llama-3.1-8B, --per_device_train_batch_size=1, "
    "--gradient_accumulation_steps=8, --gradient_checkpointing=True, --fsdp=full_shard, --block_size=4096, --bf16=True], resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]}}}}"
)
FOUR_PODS = (
    "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: ft}}\nspec:\n  {spec}\n  pytorchReplicaSpecs:\n"
    "    Master: {{replicas: 1, {pod}}}\n    Worker: {{replicas: 3, {pod}}}\n"
)
OTHER_RANKS = "the launch starts 8 ranks (1 x 8), but --cluster h200-sxm-2x8 has 16 GPUs"
REVIEWED = {
    **{
        f"a manifest is the launch that it starts: {ranks} ranks": Reviewed(
            {"job.yaml": text},
            {"cluster": "h200-sxm"},
            Said(config={"world_size": ranks, "micro_batch_size": 2, "accumulation_steps": 4}),
        )
        for text, ranks in ((TRAIN_JOB, 16), (PYTORCH_JOB, 8))
    },
    "what lowers the memory and is not counted is named, and no refusal follows from the rest": Reviewed(
        {"train.sh": TRAINER.replace('--fsdp "full_shard auto_wrap"', "--optim paged_adamw")},
        H100,
        Said(
            fits=(None,),
            predicted=True,
            assumed=("memory saved by paged_adamw",),
            lines=("may not fit: ",),
        ),
    ),
    "a loop that scales losses itself is not warned of fp16": Reviewed(
        {
            "run.sh": SMALL_MEGATRON,
            "pretrain_gpt.py": "from megatron.training import pretrain\npretrain()\n",
        },
        A100,
        Said(config={"precision": "fp16"}, unsaid=("loss scaling",)),
    ),
    "memory that is saved unseen takes no sharding": Reviewed(
        {"sft.yaml": GALORE},
        {"cluster": "h100-sxm-1x8"},
        Said(
            fits=(None,),
            assumed=("the optimizer galore; planned as AdamW",),
            unsaid=("each rank holds",),
        ),
    ),
    **{
        f"the number format of a launcher counts where no flag says another:{flags}": Reviewed(
            {"run.sh": f"{BY_ACCELERATE}{flags}\n", "accelerate.yaml": ACCELERATE},
            {"cluster": "h100-sxm-1x8"},
            Said(config={"precision": precision, "zero_stage": 3}),
        )
        for flags, precision in (("", "bf16"), (" --fp16 True", "fp16"))
    },
    "the number format of a program that is not here is asked for": Reviewed(
        {
            "run.sh": "torchrun --nproc_per_node 8 -m scripts.base_train --batch-size 4 --seq-len 2048\n"
        },
        {"cluster": "h100-sxm", "model": "llama-1b", "batch": 256},
        Said(remedies=("--precision",), predicted=False),
    ),
    **{
        f"a PyTorchJob starts the ranks that its operator sets: {spec}, {words}": Reviewed(
            {"job.yaml": FOUR_PODS.format(spec=spec, pod=POD.format(words=words))},
            H100,
            Said(config={"dp": 32}),
        )
        for spec, words in (
            ('nprocPerNode: "8"', "torchrun, "),
            ("runPolicy: {}", "torchrun, "),
            ("runPolicy: {}", "torchrun, --nproc_per_node=8, --nnodes=4, "),
        )
    },
    "a launch whose ranks hold everything is told that sharding fits": Reviewed(
        {
            "train.sh": f"torchrun --nproc-per-node 8 {LLAMA2} --gradient_accumulation_steps 8 --bf16 --block_size 4096 --output_dir out\n"
        },
        A100,
        Said(
            fits=(False,),
            lines=("no change to the launch's own settings makes it fit, but sharding does",),
            warnings=(
                "if FSDP or ZeRO 3 shards these across 8 ranks with full recomputation and a micro-batch of 1, a rank needs",
            ),
        ),
    ),
    **{
        f"a file of the launch that is not there is named: {file}": Reviewed(
            {"train.sh": f"{BY_DEEPSPEED}{file}\n"},
            A100,
            Said(assumed=(f"{file} was not found, so {says}",)),
        )
        for file, says in (
            ("conf.json", "ZeRO stage 0 is assumed"),
            ("ds_zero3.json", "ZeRO stage 3 is assumed, as the file's name says"),
        )
    },
    "a file that is not there decides whether the launch fits": Reviewed(
        {
            "train.sh": f"torchrun --nproc-per-node 8 {LLAMA2} --gradient_accumulation_steps 8 --bf16 --block_size 4096 --output_dir out --deepspeed ds.json\n"
        },
        A100,
        Said(
            fits=(None,),
            assumed=("ds.json was not found, so ZeRO stage 0 is assumed", "add the file, because"),
            lines=("may not fit", "no edit that surely fits gains 3% or more; whether"),
        ),
    ),
    "a script alone is taken to shard nothing": Reviewed(
        {"train.py": SCRIPT_ALONE},
        {"cluster": "h100-sxm-1x8", "model": "qwen2.5-7b"},
        Said(assumed=("each rank holds the whole model, as with DDP",), config={"zero_stage": 0}),
    ),
    **{
        f"a file of the launch that is there is read: {file}": Reviewed(
            {"train.sh": f"{BY_DEEPSPEED}{file}\n", file: '{"zero_optimization": {"stage": 2}}'},
            A100,
            Said(config={"zero_stage": 2}, unsaid=(file,)),
        )
        for file in ("conf.json", "ds_zero3.json")
    },
    "a number format that only the program knows is asked for": Reviewed(
        {"train.sh": CHAT}, A100, Said(missing=("the precision",), unsaid=("precision",))
    ),
    "a number format that only the program knows can be said": Reviewed(
        {"train.sh": CHAT},
        {**A100, "precision": "bf16"},
        Said(config={"precision": "bf16"}, predicted=True),
    ),
    "the ranks of a launcher that does not say them are asked for": Reviewed(
        {"run.sh": NO_RANKS},
        H100,
        Said(missing=("the number of GPUs, because h100-sxm is only a GPU type",), unsaid=("dp=",)),
    ),
    "the ranks of a launcher that does not say them are those of the cluster": Reviewed(
        {"run.sh": NO_RANKS}, {"cluster": "h100-sxm-1x8"}, Said(predicted=True)
    ),
    "ranks by a file of accelerate's are those of the launch": Reviewed(
        {
            "run.sh": "accelerate launch --config_file ranks.yaml train.py --model_name_or_path Qwen/Qwen2.5-1.5B --per_device_train_batch_size 1 --block_size 1024 --bf16\n",
            "ranks.yaml": "distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 8\n",
        },
        {"cluster": "h200-sxm-2x8"},
        Said(assumed=(OTHER_RANKS,)),
    ),
    "a cluster of other ranks than the launch starts is named": Reviewed(
        {"train.sh": TRAINER},
        {"cluster": "h200-sxm-2x8"},
        Said(assumed=(f"{OTHER_RANKS}; the review is for 8 ranks",)),
    ),
    "a cluster of other ranks is named also where something is missing": Reviewed(
        {"train.sh": TRAINER.replace("--block_size 4096", "")},
        {"cluster": "h200-sxm-2x8"},
        Said(missing=("the tokens per sequence",), assumed=(OTHER_RANKS,)),
    ),
}


@pytest.mark.parametrize("name", REVIEWED)
def test_what_is_said(name: str, tmp_path: Path) -> None:
    REVIEWED[name].check(tmp_path)


@pytest.mark.parametrize(
    ("start", "is_said"),
    [("python", True), ("CUDA_VISIBLE_DEVICES=0 python", False), ("torchrun", False)],
)
def test_one_process_of_transformers_trainer_uses_every_visible_gpu(
    tmp_path: Path, start: str, is_said: bool
) -> None:
    command = "run_clm.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --block_size 2048"
    (tmp_path / "a.sh").write_text(f"{start} {command}\n")
    found = review(tmp_path / "a.sh", cluster="h200-sxm-1x8")
    assert any("(DataParallel)" in each for each in found.assumed) == is_said


LIGHTNING = """import argparse
import lightning as L
from transformers import AutoModelForCausalLM
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--seq_len", type=int, default=2048)
arguments = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B")
L.Trainer({more}).fit(Module(model), loader)
"""


@pytest.mark.parametrize(
    ("more", "is_asked"),
    [
        ("devices=8, strategy=FSDPStrategy()", True),
        ("strategy='deepspeed_stage_3'", True),
        ("devices=4", True),
        ("precision='bf16-mixed'", False),
        ("devices=1, strategy='auto'", False),
    ],
)
def test_what_lightning_is_told_of_ranks_in_a_text_beside_options(
    tmp_path: Path, more: str, is_asked: bool
) -> None:
    (tmp_path / "train.py").write_text(LIGHTNING.replace("{more}", more))
    (tmp_path / "a.sh").write_text("python train.py\n")
    found = review(tmp_path / "a.sh", cluster="h100-sxm-1x8")
    assert (
        any("does not understand Trainer(...)" in each.what for each in found.missing) == is_asked
    )
    assert (
        any("Lightning's Trainer starts a rank on each" in each for each in found.assumed)
        != is_asked
    )


def test_options_of_recomputation_have_an_effect_where_a_program_recomputes_by_default() -> None:
    from autotune.reviews.dangers import dangers_of

    texts = {"run.sh": "swift sft --gradient_checkpointing_kwargs '{\"use_reentrant\": false}'\n"}
    assert [each for each in dangers_of(texts) if "has no effect" in each.text]
    recomputing = ParallelConfig(recompute="full")
    assert not [each for each in dangers_of(texts, None, recomputing) if "no effect" in each.text]
