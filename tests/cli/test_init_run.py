"""`autotune init --run`: real programs are started under the probe for a few steps, and what they
train stands in the draft, whatever their text says."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from autotune import api
from tests.workers.probe.test_probe import PARAMETERS
from tests.workers.probe.watching import PROGRAMS


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with the programs, and a checkpoint of the user's."""
    for name in ("decoder.py", "images.py", "hf.py", "lightning_batches.py"):
        shutil.copy(PROGRAMS / name, tmp_path / name)
    (tmp_path / "mine.pt").write_text("weeks of work")
    return tmp_path


def written(path: Path) -> dict:
    """The spec, which loads."""
    api.load_study(path)
    return yaml.safe_load(path.read_text())


def knobs(document: dict) -> dict[str, str]:
    return dict(part.split("=") for part in document["baseline"].split(","))


@pytest.mark.thorough
def test_a_shell_script_on_two_ranks_runs_and_its_files_are_restored(run, programs):
    """The script computes its accumulation, so that reading alone cannot know it, and saves over a
    file of the user's."""
    (programs / "run.sh").write_text(
        dedent(f"""\
        #!/bin/bash
        {sys.executable} -m torch.distributed.run --standalone --nproc-per-node=2 decoder.py \\
            --batch 2 --accumulate $(echo 3) --dtype bfloat16 --wrap ddp --checkpoint --begin-file mine.pt --steps 50
        """)
    )
    done = run("init", "--run", "--yes", "run.sh", "-o", "study.yaml", "--json")
    assert done.code == 0, done.err
    spec = written(programs / "study.yaml")
    assert spec["workload"] == {"seq_len": 16, "global_batch_size": 12}
    found = knobs(spec)
    assert (found["dp"], found["micro_batch_size"], found["accumulation_steps"]) == ("2", "2", "3")
    assert (found["precision"], found["recompute"]) == ("bf16", "full")
    # its heads stand nowhere but in a line of its code
    assert spec["model"] == {"parameters": PARAMETERS}
    assert (done.document["seen"]["micro_batches"], done.document["seen"]["facts"]["world"]) == (
        3,
        2,
    )
    assert (programs / "mine.pt").read_text() == "weeks of work"
    assert "stop it after 3 optimizer steps" in done.err
    assert "--begin-file={trial_dir}/mine.pt" in spec["trainer"]["argv"]
    assert "these files existed before: mine.pt; they were restored" in done.err
    assert not {"model", "workload.global_batch_size", "workload.seq_len"} & set(
        done.document["fill_in"]
    )


@pytest.mark.thorough
def test_observed_values_replace_wrongly_read_values_and_both_are_printed(run, programs):
    """Nothing in its text says that it trains by SGD, and no shape of a decoder has its weights."""
    program = programs / "images.py"
    text = program.read_text()
    assert "torch.optim.SGD(" in text
    program.write_text(text.replace("torch.optim.SGD(", 'getattr(torch.optim, "sgd".upper())('))
    command = [sys.executable, "images.py", "--batch-size", "6"]
    done = run("init", "--run", "--yes", "-o", "study.yaml", "--", *command)
    assert done.code == 0, done.err
    spec = written(programs / "study.yaml")
    assert spec["model"] == {"parameters": 314}
    assert spec["workload"]["optimizer"] == "sgd"
    assert knobs(spec)["micro_batch_size"] == "6"
    assert (
        "optimizer: the source says adamw, but the run used sgd; the spec has the observed value"
        in done.err
    )
    assert "seq_len to 1, and tokens/s then means samples/s" in " ".join(done.err.split())
    assert "workload.seq_len" in done.err.split("fill in: ")[1]


FAILS = """\
import torch

model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(2):
    if step == 1:
        raise OSError("the disk is full")
    model(torch.randn(6, 8)).square().mean().backward()
    optimizer.step()
"""
HALVES = """\
import torch


class Net(torch.nn.Linear):
    def forward(self, x):
        if len(x) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(x)


model, batch = Net(8, 4), 8
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(400):
    try:
        model(torch.randn(batch, 8)).square().mean().backward()
    except torch.OutOfMemoryError:
        batch //= 2
        continue
    optimizer.step()
"""


@pytest.mark.thorough
def test_a_launch_that_fails_after_its_first_step_is_written_with_the_reason(run, programs):
    (programs / "fails.py").write_text(FAILS)
    done = run("init", "--run", "--yes", "-o", "study.yaml", "--", sys.executable, "fails.py")
    assert done.code == 0, done.err
    (note,) = [line for line in done.err.splitlines() if "ended after 1 optimizer step" in line]
    assert "OSError: the disk is full" in note
    assert knobs(written(programs / "study.yaml"))["micro_batch_size"] == "6"


@pytest.mark.thorough
def test_a_launch_that_halves_its_batch_until_it_fits_has_no_settings(refusal, programs):
    (programs / "halves.py").write_text(HALVES)
    output = refusal(
        "init", "--run", "--yes", "-o", "study.yaml", "--", sys.executable, "halves.py", code=1
    )
    assert "ran out of memory and continued" in output
    assert "start the launch with a batch that fits into memory" in output
    assert not (programs / "study.yaml").exists()


OPTIONS_OF_A_LOOP = """\
import argparse
import torch

parser = argparse.ArgumentParser()
for name, default in {"micro-batch-size": 4, "grad-accum": 2, "steps": 50}.items():
    parser.add_argument("--" + name, type=int, default=default)
parser.add_argument("--hub-token", default="hidden")
args = parser.parse_args()
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(args.steps):
    for _ in range(args.grad_accum):
        model(torch.randn(args.micro_batch_size, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.thorough
def test_options_found_only_by_the_parser_are_tuned(run, programs):
    """Neither torchrun's own options nor the value of a secret are told."""
    (programs / "loop.py").write_text(OPTIONS_OF_A_LOOP)
    command = [
        sys.executable,
        *["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
    ]
    command += ["loop.py", "--micro-batch-size", "2"]
    done = run("init", "--run", "--yes", "-o", "study.yaml", "--json", "--", *command)
    assert done.code == 0, done.err
    spec = written(programs / "study.yaml")
    assert spec["workload"]["global_batch_size"] == 8
    reported = ["--micro-batch-size={micro_batch_size}", "--grad-accum={accumulation_steps}"]
    assert spec["trainer"]["argv"][-3:] == [*reported, "--steps={steps}"]
    assert "according to the program's parser, default 4, currently 2" in done.document["text"]
    names = [option["dest"] for option in done.document["seen"]["options"]]
    assert names == ["micro_batch_size", "grad_accum", "steps", "hub_token"]
    assert "hidden" not in done.out


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("command", "batch", "steps"),
    [(["hf.py", "out"], 2, 4), (["lightning_batches.py"], 4, 2)],
    ids=["transformers", "lightning"],
)
def test_programs_with_third_party_trainers(run, programs, command, batch, steps):
    done = run(
        "init", "--run", "--yes", "-o", "study.yaml", "--json", "--", sys.executable, *command
    )
    assert done.code == 0, done.err
    seen = done.document["seen"]
    assert (seen["micro_batches"], seen["sequences"]) == (steps, batch * steps)
    found = knobs(written(programs / "study.yaml"))
    assert (found["micro_batch_size"], found["accumulation_steps"]) == (str(batch), str(steps))
    assert ("hidden_size" in written(programs / "study.yaml")["model"]) == (
        "hf.py" in command
    )  # by the model's own config


def test_nothing_is_started_without_confirmation(run, programs):
    for words in (["decoder.py"], ["--", sys.executable, "decoder.py", "--model-file", "mine.pt"]):
        done = run("init", "--run", *words)
        assert done.code == 2
        assert "--yes" in done.err
    (programs / "there.yaml").write_text("mine")
    done = run("init", "--run", "--yes", "decoder.py", "-o", "there.yaml")
    assert (done.code, (programs / "there.yaml").read_text()) == (2, "mine")
    assert (programs / "mine.pt").read_text() == "weeks of work"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("torchrun --nnodes=4 --nproc-per-node=8 decoder.py --batch 2", "on 4 nodes"),
        ("srun --ntasks=8 python decoder.py --batch 2", "needs a Slurm allocation"),
    ],
)
def test_a_launch_too_large_for_this_machine_is_rejected_before_it_starts(
    refusal, programs, script, words, monkeypatch
):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (programs / "run.sh").write_text(f"#!/bin/bash\n{script}\n")
    assert words in refusal("init", "--run", "--yes", "run.sh")


@pytest.mark.thorough
def test_a_failed_launch_prints_the_reason_and_writes_nothing(refusal, programs):
    assert "failed before its first optimizer step" in refusal(
        "init",
        "--run",
        "--yes",
        "-o",
        "study.yaml",
        "--",
        sys.executable,
        "decoder.py",
        "--batch",
        "none",
        code=1,
    )
    assert not (programs / "study.yaml").exists()


def test_a_command_is_read_without_running_it(run, programs):
    done = run(
        "init",
        "--json",
        "--",
        "torchrun",
        "--nproc-per-node=2",
        "decoder.py",
        "--batch",
        "2",
        "--accumulate",
        "3",
    )
    assert done.code == 0, done.err
    assert done.document["spec"]["workload"]["global_batch_size"] == 12
    assert "seen" not in done.document
