"""A script that is told by a file of settings: Hydra's and OmegaConf's by its command, any other by
a copy of the file for each trial."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from autotune import api
from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import first_draft
from autotune.spec import ParallelConfig, Study
from autotune.trainers import Launch, trainer
from tests.shortcuts import file_with, write

HYDRA = """
import hydra, torch.distributed as dist
@hydra.main(version_base=None, config_path="conf", config_name="train")
def main(cfg):
    dist.init_process_group()
    log.info(f"step {step}: loss={loss.item():.3f} step_time={dt:.3f}s")
"""
CONF = """
defaults:
  - model: tiny
  - _self_
trainer: {batch: 4, grad_accum: 2, seq_len: 128, steps: 500, precision: fp32, compile: false, log_every: 10}
model: {dropout: 0.1}
data: {num_workers: 0}
name: run-${trainer.batch}
"""
SHAPE = "{n_layer: 2, n_embd: 64, n_head: 2, vocab_size: 256, dropout: 0.0}\n"
YAML = """
import argparse, yaml
from accelerate import Accelerator
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="config.yaml")
parser.add_argument("--output-dir", default="out")
"""
SETTINGS = """
model: {n_layer: 2, n_embd: 64}
train: {per_device_batch_size: 4, gradient_accumulation_steps: 4, seq_len: 128, num_steps: 500, mixed_precision: "no", logging_steps: 10}
run: "{name}"
"""
FSDP2 = """
import json, sys
from torch.distributed.fsdp import fully_shard
cfg = json.load(open(sys.argv[1]))
"""
JSON = {
    "seq_len": 128,
    "micro_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "steps": 500,
    "bf16": True,
    "reshard_after_forward": True,
    "activation_checkpointing": False,
    "n_layer": 2,
}
CONFIG = ParallelConfig(dp=2, micro_batch_size=8, accumulation_steps=1, precision="fp32")


def drafted(folder: Path, text: str, start: str = "") -> Draft:
    write(folder, {"train.py": text, "run.sh": start})
    return first_draft(
        folder / ("run.sh" if start else "train.py"), cluster="cpu-1x2", folder=folder
    )


def launched(draft: Draft, folder: Path, config: ParallelConfig = CONFIG) -> tuple[Study, Launch]:
    study = api.load_study(file_with(folder / "spec.yaml", draft.text))
    assert api.plan_of(study, top=1).rows
    options = {**study.trainer_options, "steps": 7, "seed": 3}
    return study, trainer("command").launch(study.workload, config, options)


@pytest.fixture
def hydra(tmp_path: Path) -> Path:
    (tmp_path / "conf/model").mkdir(parents=True)
    write(tmp_path, {"conf/train.yaml": CONF, "conf/model/tiny.yaml": SHAPE})
    return tmp_path


def test_the_command_overrides_values_of_hydras_file(hydra: Path) -> None:
    study, launch = launched(drafted(hydra, HYDRA), hydra)
    assert launch.argv[3:] == (
        *(
            "train.py",
            "trainer.batch=8",
            "trainer.grad_accum=1",
            "trainer.seq_len=128",
            "trainer.steps=7",
        ),
        *("trainer.precision=fp32", "trainer.compile=false", "trainer.log_every=1"),
    )
    assert study.workload.model.num_layers == 2, "of the group that `defaults` names"
    assert study.workload.global_batch_sizes == (4 * 2 * 2,)
    assert (study.baseline.micro_batch_size, study.baseline.accumulation_steps) == (4, 2)
    assert (
        'could be tuned (conf/train.yaml) with knobs: {num_workers: [0, 2, 4]}, here "data.num_workers={num_workers}"'
        in (hydra / "spec.yaml").read_text()
    )


def test_what_a_script_overrides_today_is_the_baseline(hydra: Path) -> None:
    draft = drafted(
        hydra,
        HYDRA,
        "torchrun --nproc_per_node=2 train.py trainer.batch=16 +seed=3 trainer.lr=1e-3\n",
    )
    study, launch = launched(draft, hydra)
    assert study.baseline.micro_batch_size == 16
    assert launch.argv[3:6] == ("train.py", "+seed=3", "trainer.lr=1e-3")
    assert [word for word in launch.argv if word.startswith("trainer.batch=")] == [
        "trainer.batch=8"
    ]


def test_omegaconf_is_overridden_like_hydra(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("train: {batch_size: 4, use_bf16: false}\n")
    text = "from omegaconf import OmegaConf\ncfg = OmegaConf.merge(OmegaConf.load('base.yaml'), OmegaConf.from_cli())\n"
    argv = drafted(tmp_path, text).document["trainer"]["argv"]
    assert argv[1:] == ["train.py", "train.batch_size={micro_batch_size}", "{precision}"]


def test_each_trial_has_a_copy_of_the_file_that_an_option_names(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(SETTINGS)
    draft = drafted(tmp_path, YAML)
    _, launch = launched(draft, tmp_path)
    assert [
        word.endswith("/config.yaml") for word in launch.argv if word.startswith("--config=")
    ] == [True]
    assert yaml.safe_load(launch.files["config.yaml"]) == {
        "model": {"n_layer": 2, "n_embd": 64},
        "train": {
            "per_device_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "seq_len": 128,
            "num_steps": 7,
            "mixed_precision": "no",
            "logging_steps": 1,
        },
        "run": "{name}",
    }
    assert "megatron" not in draft.text


def test_a_file_that_stands_alone_in_the_command(tmp_path: Path) -> None:
    (tmp_path / "cfg.json").write_text(json.dumps(JSON))
    study, launch = launched(
        drafted(tmp_path, FSDP2, "torchrun --nproc_per_node=2 train.py cfg.json\n"), tmp_path
    )
    assert launch.argv[-1].endswith("/cfg.json")
    assert json.loads(launch.files["cfg.json"]) == {
        **JSON,
        "micro_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "steps": 7,
        "bf16": False,
        "reshard_after_forward": False,
    }
    assert (study.baseline.precision, study.baseline.zero_stage, study.baseline.recompute) == (
        "bf16",
        3,
        "none",
    )


OPTS = """
import argparse, yaml
p = argparse.ArgumentParser()
p.add_argument("--config", required=True)
p.add_argument("--name")
p.add_argument("--opts", nargs="+")
"""


def opts(tmp_path: Path, words: str) -> Draft:
    (tmp_path / "c.yaml").write_text(
        "train: {batch_size: 8, grad_accum: 2, run: 'a{b}'}\nseq_len: 32\n"
    )
    return drafted(tmp_path, OPTS, f"python train.py --config c.yaml {words}\n")


@pytest.mark.parametrize(
    "words",
    ["--name x --opts train.batch_size=4 train.run=z", "train.batch_size=4 train.run=z --name x"],
)
def test_words_that_override_values_of_the_file_are_in_each_trials_copy(
    tmp_path: Path, words: str
) -> None:
    draft = opts(tmp_path, words)
    assert draft.document["baseline"].startswith("dp=1,micro_batch_size=4,")
    assert draft.document["workload"]["global_batch_size"] == 8
    assert draft.document["trainer"]["argv"] == [
        "python",
        "train.py",
        "--config={files}/c.yaml",
        "--name=x",
    ]
    in_copy = {"batch_size": "{micro_batch_size}", "grad_accum": "{accumulation_steps}", "run": "z"}
    assert draft.document["trainer"]["files"]["c.yaml"]["train"] == in_copy


def test_words_that_override_the_file_in_another_form_leave_no_baseline(tmp_path: Path) -> None:
    draft = opts(tmp_path, "--opts train.batch_size 4")
    assert "baseline" not in draft.document
    assert any("does not understand train.batch_size" in note for note in draft.notes)


def test_a_script_whose_file_is_not_known_is_told_how_to_name_it(tmp_path: Path) -> None:
    draft = drafted(tmp_path, FSDP2)
    assert any(
        "pass the shell script that starts it to `autotune init`" in note for note in draft.notes
    )
