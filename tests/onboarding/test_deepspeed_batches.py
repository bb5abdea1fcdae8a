"""Programs whose batch is in DeepSpeed's file, and models by their sizes or the path of a
config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import autotune
from autotune.onboarding.first_spec import first_draft
from autotune.reviews.lines import edited
from tests.onboarding.drafting import drafted, loaded

CLUSTER = "h200-sxm-1x8"
PROGRAM = """\
import argparse, deepspeed
parser = argparse.ArgumentParser()
parser.add_argument("--model", default="gpt2-medium")
parser.add_argument("--seq-len", type=int, default=1024)
parser = deepspeed.add_config_arguments(parser)
args = parser.parse_args()
engine, *_ = deepspeed.initialize(args=args, model=build(args.model))
"""
ZERO_2 = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}


def _launch(folder: Path, settings: dict[str, Any], *, program: str = PROGRAM) -> Path:
    (folder / "train.py").write_text(program)
    (folder / "ds.json").write_text(json.dumps(settings, indent=2))
    run = folder / "run.sh"
    run.write_text("deepspeed --num_gpus 8 train.py --deepspeed --deepspeed_config ds.json\n")
    return run


@pytest.mark.parametrize(
    ("batch", "config"),
    [
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}, "tp=1,pp=1,dp=8,micro_batch_size=2,accumulation_steps=4"),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 2}, "tp=1,pp=1,dp=8,micro_batch_size=4,accumulation_steps=2"),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}, "tp=1,pp=1,dp=8,micro_batch_size=2,accumulation_steps=4"),
        ({"train_micro_batch_size_per_gpu": 2}, "tp=1,pp=1,dp=8,micro_batch_size=2,accumulation_steps=1"),
        ({"train_batch_size": 64}, "tp=1,pp=1,dp=8,micro_batch_size=8,accumulation_steps=1"),
        ({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "tensor_parallel": {"autotp_size": 2}}, "tp=2,pp=1,dp=4,micro_batch_size=2,accumulation_steps=4"),
    ],
)  # fmt: skip
def test_the_batch_of_deepspeeds_file_is_read_as_deepspeed_reads_it(
    tmp_path: Path, batch: dict[str, Any], config: str
) -> None:
    found = autotune.review(_launch(tmp_path, {**batch, **ZERO_2}), cluster=CLUSTER)
    assert found.missing == ()
    assert str(found.config) == f"{config},precision=bf16,zero_stage=2"


@pytest.mark.parametrize("given", ["", "--deepspeed", "--deepspeed_config ds.json"])
def test_the_file_that_a_parser_has_as_a_default_is_read(tmp_path: Path, given: str) -> None:
    """Trials give the option, whether or not the launch does."""
    declared = 'parser.add_argument("--deepspeed_config", default="ds.json")'
    text = PROGRAM.replace("parser = deepspeed.add_config_arguments(parser)", declared)
    run = _launch(tmp_path, {"train_micro_batch_size_per_gpu": 2, **ZERO_2}, program=text)
    run.write_text(f"deepspeed --num_gpus 8 train.py {given}\n")
    found = autotune.review(run, cluster=CLUSTER)
    assert found.missing == ()
    assert (
        str(found.config)
        == "tp=1,pp=1,dp=8,micro_batch_size=2,accumulation_steps=1,precision=bf16,zero_stage=2"
    )
    draft = first_draft(run, model=None, cluster=CLUSTER, folder=tmp_path)
    assert "--deepspeed_config={files}/ds.json" in " ".join(draft.document["trainer"]["argv"])


@pytest.mark.parametrize("sharding", [{}, {"zero_optimization": {"stage": 0}}])
def test_a_file_that_shards_nothing_has_a_batch_all_the_same(
    tmp_path: Path, sharding: dict[str, Any]
) -> None:
    run = _launch(tmp_path, {"train_micro_batch_size_per_gpu": 2, **sharding})
    found = autotune.review(run, cluster=CLUSTER, precision="bf16").config
    assert found is not None
    assert (found.micro_batch_size, found.zero_stage) == (2, 0)


def test_a_trial_has_its_batch_in_a_file_of_its_own(tmp_path: Path) -> None:
    run = _launch(tmp_path, {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, **ZERO_2})
    draft = drafted(tmp_path, {"run.sh": run.read_text()}, cluster=CLUSTER)
    study = loaded(draft, tmp_path)
    assert study.trainer_options["files"]["ds.json"] == {
        "train_batch_size": "{global_batch_size}",
        "train_micro_batch_size_per_gpu": "{micro_batch_size}",
        "gradient_accumulation_steps": "{accumulation_steps}",
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": "{zero_stage}"},
    }
    assert study.baseline is not None
    assert study.baseline.accumulation_steps == 4


def test_an_option_that_contradicts_the_file_is_named(tmp_path: Path) -> None:
    option = 'parser.add_argument("--batch-size", type=int, default=16)\nparser = deepspeed'
    run = _launch(
        tmp_path,
        {"train_micro_batch_size_per_gpu": 2, **ZERO_2},
        program=PROGRAM.replace("parser = deepspeed", option),
    )
    (missing,) = autotune.review(run, cluster=CLUSTER).missing
    assert "--batch-size=16, where ds.json has 2" in missing.what


def test_the_path_of_a_config_json_names_the_model(tmp_path: Path) -> None:
    run = _launch(tmp_path, {"train_micro_batch_size_per_gpu": 2, **ZERO_2})
    shape = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}  # fmt: skip
    (tmp_path / "sizes.json").write_text(json.dumps(shape))
    run.write_text(run.read_text().replace("ds.json", "ds.json --model sizes.json"))
    found = autotune.review(run, cluster=CLUSTER)
    assert found.study is not None
    assert found.study.workload.model.num_layers == 2


SIZES = "--n-layer=2 --n-embd=64 --n-head=4 --vocab-size=1000 --batch-size=2 --seq-len=128"
OPTIONS = "n-layer n-embd n-head vocab-size batch-size seq-len n-kv-head intermediate-size head-dim num-experts experts-per-token"


@pytest.mark.parametrize(
    ("words", "more", "taken"),
    [
        ("", {"ffn_hidden_size": 256, "num_kv_heads": 4, "gated_mlp": False}, "four times as wide as the model, as many key-value heads"),
        ("--n-kv-head=2", {"num_kv_heads": 2, "ffn_hidden_size": 256}, "four times as wide as the model, a plain MLP"),
        ("--n-kv-head=2 --intermediate-size=160 --swiglu --tie-embeddings", {"num_kv_heads": 2, "ffn_hidden_size": 160, "gated_mlp": True, "tied_embeddings": True}, ""),
        ("--head-dim=32", {"attention_head_dim": 32}, "four times as wide"),
        ("--num-experts=8 --experts-per-token=2", {"num_experts": 8, "experts_per_token": 2}, "four times as wide"),
    ],
)  # fmt: skip
def test_all_sizes_of_a_model_count_and_the_others_are_named(
    tmp_path: Path, words: str, more: dict[str, Any], taken: str
) -> None:
    declared = "".join(f'p.add_argument("--{name}", type=int)\n' for name in OPTIONS.split())
    flags = "".join(
        f'p.add_argument("--{name}", action="store_true")\n'
        for name in ("swiglu", "tie-embeddings")
        if name in words
    )
    text = f"import argparse, torch\np = argparse.ArgumentParser()\n{declared}{flags}a = p.parse_args()\n"
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "run.sh").write_text(f"torchrun --nproc-per-node 8 train.py {SIZES} {words}\n")
    found = autotune.review(tmp_path / "run.sh", cluster=CLUSTER, precision="bf16")
    assert found.study is not None
    model = found.study.workload.model
    assert {name: getattr(model, name) for name in more} == more
    said = next((each for each in found.assumed if each.startswith("model: assumed to have")), "")
    assert taken in said
    assert bool(said) == bool(taken)


@pytest.mark.parametrize(
    ("program", "unclear"),
    [
        ("deepspeed.initialize(model=build(args.model), config='ds.json')", "deepspeed.initialize without an argument"),
        ("deepspeed.initialize(args=args, model=PipelineModule(layers=layers(), num_stages=4))", "PipelineModule(num_stages=4)"),
    ],
)  # fmt: skip
def test_what_the_code_alone_tells_deepspeed_is_named(
    tmp_path: Path, program: str, unclear: str
) -> None:
    option = 'parser.add_argument("--micro-batch-size", type=int, default=2)\n'
    text = PROGRAM.replace("parser = deepspeed", f"{option}parser = deepspeed")
    text = text.replace("deepspeed.initialize(args=args, model=build(args.model))", program)
    run = _launch(tmp_path, {"train_micro_batch_size_per_gpu": 2, **ZERO_2}, program=text)
    if "PipelineModule" not in program:
        run.write_text("deepspeed --num_gpus 8 train.py\n")
    found = autotune.review(run, cluster=CLUSTER, batch=64)
    assert any(unclear in missing.what for missing in found.missing)


def test_a_loop_whose_batch_is_not_that_of_the_file_is_named(tmp_path: Path) -> None:
    option = 'parser.add_argument("--batch-size", type=int, default=4)\nparser = deepspeed'
    text = PROGRAM.replace("parser = deepspeed", option)
    run = _launch(tmp_path, {"train_batch_size": 64, **ZERO_2}, program=text)
    (missing,) = autotune.review(run, cluster=CLUSTER).missing
    assert "a batch of 64 is not 1 x 4 sequences on 8 replicas" in missing.what


def _own(folder: Path, declared: str, words: str) -> Path:
    names = ["n-layer", "n-embd", "n-head", "vocab-size", "batch-size", "seq-len"]
    options = "".join(f'p.add_argument("--{name}", type=int)\n' for name in names)
    text = f"import argparse, torch\np = argparse.ArgumentParser()\n{options}{declared}\na = p.parse_args()\n"
    (folder / "train.py").write_text(text)
    run = folder / "run.sh"
    run.write_text(f"torchrun --nproc-per-node 8 train.py {SIZES} {words}\n")
    return run


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ('p.add_argument("--num-encoder-layers", type=int, default=2)', ""),
        ('p.add_argument("--patch-size", type=int)', "--patch-size 16"),
        ('p.add_argument("--num-experts", type=int, default=8)', ""),
    ],
)
def test_a_model_that_its_sizes_do_not_say_is_asked_for(
    tmp_path: Path, declared: str, words: str
) -> None:
    found = autotune.review(_own(tmp_path, declared, words), cluster=CLUSTER, precision="bf16")
    assert "the model's shape" in {missing.what for missing in found.missing}


@pytest.mark.parametrize(
    ("declared", "words", "more"),
    [
        ('p.add_argument("--mlp-ratio", type=float, default=4.0)', "--mlp-ratio 3", {"ffn_hidden_size": 192}),
        ('p.add_argument("--activation", default="gelu")', "--activation swiglu", {"gated_mlp": True}),
        ('p.add_argument("--activation", default="gelu")', "", {"gated_mlp": False}),
        ('p.add_argument("--num-experts", type=int, default=1)', "", {"num_experts": 0}),
    ],
)  # fmt: skip
def test_sizes_that_are_said_otherwise_count(
    tmp_path: Path, declared: str, words: str, more: dict[str, Any]
) -> None:
    found = autotune.review(_own(tmp_path, declared, words), cluster=CLUSTER, precision="bf16")
    assert found.study is not None
    model = found.study.workload.model
    assert {name: getattr(model, name) for name in more} == more


ANCHORS = """\
defaults: &defaults
  batch_size: 1  # of a rank
  seq_len: 128
model: {n_layer: 2, n_embd: 64, n_head: 4, vocab_size: 1000}
train:
  <<: *defaults
  grad_accum_steps: 16
  bf16: true
"""


def test_a_value_that_an_anchor_repeats_is_told_everywhere(tmp_path: Path) -> None:
    program = "import argparse, torch, yaml\np = argparse.ArgumentParser()\np.add_argument('--config')\na = p.parse_args()\nc = yaml.safe_load(open(a.config))\n"
    files = {"run.sh": "torchrun --nproc-per-node 8 train.py --config c.yaml\n", "train.py": program, "c.yaml": ANCHORS}  # fmt: skip
    told = drafted(tmp_path, files, cluster=CLUSTER).document["trainer"]["files"]["c.yaml"]
    of_step = {"batch_size": "{micro_batch_size}", "seq_len": "{seq_len}"}
    assert told["defaults"] == of_step
    assert of_step.items() <= told["train"].items()
    found = autotune.review(tmp_path / "run.sh", cluster=CLUSTER)
    assert found.together is not None
    assert found.unplaced == ()
    (tmp_path / "c.yaml").write_text(edited(found.texts, found.lines)["c.yaml"])
    assert autotune.review(tmp_path / "run.sh", cluster=CLUSTER).config == found.together.config


def test_sections_with_different_batches_are_named(tmp_path: Path) -> None:
    program = "import argparse, torch, yaml\np = argparse.ArgumentParser()\np.add_argument('--config')\na = p.parse_args()\nc = yaml.safe_load(open(a.config))\n"
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "c.yaml").write_text(
        ANCHORS.replace("  grad_accum", "  batch_size: 4\n  grad_accum")
    )
    run = tmp_path / "run.sh"
    run.write_text("torchrun --nproc-per-node 8 train.py --config c.yaml\n")
    (missing,) = autotune.review(run, cluster=CLUSTER).missing
    assert "defaults.batch_size=1 beside train.batch_size=4" in missing.what
