"""A draft with what the probe saw in place of what was read: what is overruled, what is filled in,
what is still asked for by its name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune import api
from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import command_draft, first_draft, lawful
from autotune.onboarding.launch.seen_draft import seen_draft, seen_model
from autotune.ports import FirstStep, ProgramSeen
from autotune.ports.program_facts import ProgramFacts
from autotune.spec import ModelSpec
from autotune_workers.probe.injected.model_facts import of_model
from tests.shortcuts import file_with

SCRIPT = """\
import argparse, os
import torch.distributed as dist
p = argparse.ArgumentParser()
p.add_argument("--batch_size", type=int, default=4)
p.add_argument("--grad_accum", type=int, default=4)
p.add_argument("--block_size", type=int, default=64)
p.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
p.add_argument("--n_layer", type=int, default=2)
p.add_argument("--n_embd", type=int, default=64)
p.add_argument("--n_head", type=int, default=4)
p.add_argument("--vocab_size", type=int, default=256)
p.add_argument("--max_iters", type=int, default=100)
a = p.parse_args()
dist.init_process_group()
rank = os.environ["RANK"]
"""
READ = ModelSpec(name="read", num_layers=2, hidden_size=64, num_attention_heads=4, vocab_size=256)


@pytest.fixture
def read(tmp_path: Path) -> Draft:
    return first_draft(file_with(tmp_path / "train.py", SCRIPT), cluster="cpu-1x2", folder=tmp_path)


def seen(
    *, micro: int = 4, sequences: int | None = 16, length: int | None = 64, **facts: Any
) -> ProgramSeen:
    told = {
        "world": 2,
        "optimizers": ["torch.optim.adamw.AdamW"],
        "autocast": "",
        "types": {"float32": READ.num_parameters},
        "stepped_types": {"float32": READ.num_parameters},
        "zero_stage": 0,
        "wrappers": ["DDP"],
        "recomputed": 0.0,
        "compiled": False,
        "parameters": READ.num_parameters,
        "model": "__main__.GPT",
        **facts,
    }
    tokens = sequences * length if sequences and length else None
    return ProgramSeen(
        id=("init", 0, 0),
        facts=told,
        micro_batches=micro,
        sequences=sequences,
        tokens=tokens,
        measured=True,
    )


def overlaid(read: Draft, what: ProgramSeen, folder: Path) -> Draft:
    found = lawful(
        seen_draft(read, what, launched="train.py", steps=3, folder=folder), "train.py", folder
    )
    document = found.document
    document["trainer"] = {**document["trainer"], "cwd": str(folder)}
    api.load_study(document)
    return found


def knobs(draft: Draft) -> dict[str, str]:
    return dict(part.split("=") for part in draft.document["baseline"].split(","))


def test_what_agrees_stays_and_is_said_to_be_seen(read: Draft, tmp_path: Path) -> None:
    found = overlaid(read, seen(), tmp_path)
    assert found.document["workload"] == {"seq_len": 64, "global_batch_size": 32}
    assert knobs(found)["accumulation_steps"] == "4"
    assert found.document["model"] == read.document["model"]
    assert not [note for note in found.notes if "but the run used" in note]
    assert found.fill_in == ()


def test_a_note_on_words_that_the_shell_computed_is_dropped(read: Draft, tmp_path: Path) -> None:
    note = "only the shell can compute $DATA; write the values into argv"
    open_draft = replace(read, notes=(*read.notes, note), fill_in=(*read.fill_in, "trainer.argv"))
    found = overlaid(open_draft, seen(), tmp_path)
    assert note not in found.notes
    assert found.fill_in == ()


def test_a_note_that_asks_for_a_run_is_dropped_after_one(read: Draft, tmp_path: Path) -> None:
    note = "no line with a time was recognized in train.py; run `autotune init --run`"
    assert note not in overlaid(replace(read, notes=(*read.notes, note)), seen(), tmp_path).notes


def test_what_differs_is_overruled_and_both_are_said(read: Draft, tmp_path: Path) -> None:
    found = overlaid(
        read,
        seen(
            micro=2, sequences=6, length=32, world=1, autocast="bfloat16", recomputed=0.9,
            optimizers=["torch.optim.sgd.SGD"], wrappers=[], zero_stage=None,
        ),
        tmp_path,
    )  # fmt: skip
    assert found.document["workload"] == {"seq_len": 32, "global_batch_size": 6, "optimizer": "sgd"}
    assert found.document["space"]["recompute"] == ["full"]
    assert found.document["space"]["precision"] == ["bf16", "fp32"]
    assert 3 in found.document["space"]["micro_batch_size"]
    config = {
        name: knobs(found)[name]
        for name in ("dp", "micro_batch_size", "accumulation_steps", "precision", "recompute")
    }
    assert config == {
        "dp": "1",
        "micro_batch_size": "3",
        "accumulation_steps": "2",
        "precision": "bf16",
        "recompute": "full",
    }
    for words in (
        "seq_len: the source says 64, but the run used 32",
        "global_batch_size: the source says 32, but the run used 6",
        "optimizer: the source says adamw, but the run used sgd",
        "precision: the source says fp32, but the run used bf16",
        "micro_batch_size: the source says 4, but the run used 3",
    ):
        assert any(note.startswith(words) for note in found.notes), words


def test_an_option_of_the_longest_sequence_stays_as_it_is(read: Draft, tmp_path: Path) -> None:
    assert any("{seq_len}" in word for word in read.document["trainer"]["argv"])
    found = overlaid(read, seen(length=40), tmp_path)
    assert found.document["workload"]["seq_len"] == 40
    words = found.document["trainer"]["argv"]
    assert not any("{seq_len}" in word for word in words)
    assert any(word.endswith("=64") for word in words)
    assert any(note.startswith("the length option stays 64") for note in found.notes)


@pytest.mark.parametrize(
    ("micro", "sequences", "batch_size", "grad_accum", "sizes"),
    [
        (4, 16, "{micro_batch_size}", "{accumulation_steps}", [1, 2, 4, 8, 16]),
        (4, 8, "{micro_batch_size * dp}", "{accumulation_steps}", [1, 2, 4, 8]),
        (2, 8, "{micro_batch_size}", "{accumulation_steps * dp}", [1, 2, 4, 8]),
        (4, 4, "{micro_batch_size * accumulation_steps}", "{accumulation_steps}", [1, 2, 4]),
        (4, 32, "{micro_batch_size // 2}", "{accumulation_steps}", [2, 4, 8, 16]),
        (4, 24, "4", "{accumulation_steps}", [6]),
        (1, 4, "{micro_batch_size}", "4", [4]),
    ],
)
def test_the_baseline_gives_the_options_of_the_batch_their_values_of_today(
    read: Draft,
    tmp_path: Path,
    micro: int,
    sequences: int,
    batch_size: str,
    grad_accum: str,
    sizes: list[int],
) -> None:
    """What an option means is what gives its value by what was seen; where nothing does, it is not
    tuned."""
    found = overlaid(read, seen(micro=micro, sequences=sequences), tmp_path)
    words = found.document["trainer"]["argv"]
    assert {f"--batch_size={batch_size}", f"--grad_accum={grad_accum}"} <= set(words)
    assert found.document["space"]["micro_batch_size"] == sizes
    assert found.document["workload"]["global_batch_size"] == 2 * sequences
    is_unclear = any(
        note.startswith("it is unclear what the batch options") for note in found.notes
    )
    assert is_unclear == ("4" in (batch_size, grad_accum))


def growing(*steps: tuple[int | None, int | None]) -> tuple[FirstStep, ...]:
    return tuple(FirstStep(sequences=count, tokens=tokens) for count, tokens in steps)


def test_a_batch_that_grows_is_not_that_of_the_training(read: Draft, tmp_path: Path) -> None:
    steps = growing((4, 256), (4, 256), (8, 512))
    found = seen_draft(
        read,
        replace(seen(micro=1, sequences=4), first_steps=steps),
        launched="it",
        steps=3,
        folder=tmp_path,
    )
    assert {"baseline", "workload.global_batch_size"} <= set(found.fill_in)
    assert "baseline" not in found.document
    assert found.document["workload"]["global_batch_size"] == 32
    (note,) = [note for note in found.notes if note.startswith("no baseline")]
    assert "4, 4, 8 sequences" in note


def test_sequences_that_grow_tell_no_length(read: Draft, tmp_path: Path) -> None:
    steps = growing((16, 256), (16, 256), (16, 512))
    found = overlaid(read, replace(seen(length=16), first_steps=steps), tmp_path)
    assert found.document["workload"]["seq_len"] == 64
    assert found.fill_in == ("workload.seq_len",)
    assert any("{seq_len}" in word for word in found.document["trainer"]["argv"])
    assert any("16, 16, 32 tokens" in note for note in found.notes)


@pytest.mark.parametrize(
    ("steps", "asked"),
    [
        ([(4, 256), (16, 256), (8, 256), (4, 256)], ("workload.seq_len", "baseline", "workload.global_batch_size")),
        ([(8, 512), (16, 1024), (4, 256)], ("baseline", "workload.global_batch_size")),
        ([(16, 1024), (16, 256), (16, 512)], ()),
    ],
    ids=["filled by tokens", "other batches", "other lengths"],
)  # fmt: skip
def test_batches_that_differ_from_step_to_step_are_named(
    read: Draft, tmp_path: Path, steps: list[tuple[int, int]], asked: tuple[str, ...]
) -> None:
    """One of them is not that of the training."""
    what = replace(seen(), first_steps=growing(*steps))
    found = seen_draft(read, what, launched="it", steps=3, folder=tmp_path)
    assert found.fill_in == asked
    assert ("baseline" in found.document) == (not asked)
    batches = [note for note in found.notes if "the batch differs from step to step" in note]
    assert bool(batches) == bool(asked)
    lengths = [note for note in found.notes if "sequences differ in length" in note]
    assert bool(lengths) == (len({tokens / count for count, tokens in steps}) > 1)


def test_a_number_of_sequences_that_is_unclear_is_named(read: Draft, tmp_path: Path) -> None:
    found = overlaid(read, replace(seen(), other_sequences=(64,)), tmp_path)
    assert any("on each rank: 16 or 64, because" in note for note in found.notes)


def test_adapters_that_were_read_are_not_asked_for(read: Draft, tmp_path: Path) -> None:
    (entry,) = [each for each in read.entries if each.key == "workload"]
    peft = {"method": "lora", "rank": 4, "targets": "attention"}
    known = replace(entry, value={**entry.value, "peft": peft})
    adapted = replace(
        read, entries=tuple(known if each is entry else each for each in read.entries)
    )
    for draft, asks in ((read, True), (adapted, False)):
        found = overlaid(draft, seen(trainable=1_000), tmp_path)
        assert any("write `peft:" in note for note in found.notes) == asks


def test_what_plans_leave_out_is_named(read: Draft, tmp_path: Path) -> None:
    found = overlaid(read, seen(frozen=7_000, offloads=True), tmp_path)
    assert any("does not train (7,000 weights), so the launch needs more" in n for n in found.notes)
    assert any(
        "weights on the host; planned on the GPU, so the launch needs less" in note
        for note in found.notes
    )


@pytest.mark.parametrize(
    "steps",
    [
        [(16, 1024)] * 3,
        [(16, 1024), (16, 1024), (8, 512)],
        [(16, 1024), (17, 1000), (18, 1020)],
        [(None, None)] * 3,
        [(16, 1024)],
    ],
)
def test_other_steps_are_no_first_phase(
    read: Draft, tmp_path: Path, steps: list[tuple[int | None, int | None]]
) -> None:
    found = overlaid(read, replace(seen(), first_steps=growing(*steps)), tmp_path)
    assert found.fill_in == ()
    assert "baseline" in found.document


def test_degrees_of_the_programs_own_meshes_share_the_data(read: Draft, tmp_path: Path) -> None:
    found = overlaid(read, seen(degrees={"tp": 2}, wrappers=[], zero_stage=None), tmp_path)
    assert found.document["workload"]["global_batch_size"] == 16
    assert (knobs(found)["tp"], knobs(found)["dp"]) == ("2", "1")


def test_what_is_neither_read_nor_seen_is_asked_for_by_its_name(tmp_path: Path) -> None:
    read = first_draft(
        file_with(tmp_path / "train.py", "import torch\n"), cluster="cpu-1x1", folder=tmp_path
    )
    assert {"model", "workload.seq_len"} <= set(read.fill_in)
    found = seen_draft(
        read,
        seen(world=1, micro=2, sequences=None, length=None, parameters=None),
        launched="train.py",
        steps=3,
        folder=tmp_path,
    )
    assert {"model", "workload.seq_len", "baseline", "trainer.argv"} <= set(found.fill_in)
    assert "workload.global_batch_size" in found.fill_in
    assert "baseline" not in found.document


def test_fp8_and_compiled_recomputation_stand_as_they_were_read(tmp_path: Path) -> None:
    words = [
        "torchrun",
        "--nproc-per-node=2",
        str(
            file_with(
                tmp_path / "train.py",
                SCRIPT.replace('choices=["float32", "bfloat16"]', 'choices=["bfloat16", "fp8"]'),
            )
        ),
        "--dtype",
        "fp8",
        "--recompute",
        "full",
    ]
    read = command_draft(words, cluster="h100-sxm-1x2", folder=tmp_path)
    found = seen_draft(
        read, seen(autocast="bfloat16", compiled=True), launched="it", steps=3, folder=tmp_path
    )
    assert knobs(found)["precision"] == "fp8"
    assert any("not observed" in note and "precision" in note for note in found.notes)


def facts(model: ModelSpec, **more: Any) -> ProgramFacts:
    return ProgramFacts({"parameters": model.num_parameters, "model": "m.Net", **more})


MODULES = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "vocab_size": 256,
    "ffn_hidden_size": 256,
}


def test_a_model_that_was_read_and_has_as_many_weights_stands() -> None:
    assert seen_model(facts(READ, shape=MODULES), READ, seq_len=64) is None


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gated_mlp": True, "ffn_hidden_size": 192},
        {"tied_embeddings": True},
        {"max_positions": 64},
    ],
)
def test_a_shape_is_put_together_from_modules_where_its_weights_are_those_that_were_counted(
    changes: dict[str, Any],
) -> None:
    from dataclasses import replace

    model = replace(READ, **changes)
    told = {**MODULES, "ffn_hidden_size": model.ffn_hidden_size}
    found = seen_model(facts(model, shape=told), None, seq_len=64)
    assert ModelSpec(name="x", **found[0]).num_parameters == model.num_parameters


def test_a_shape_that_is_not_the_models_gives_way_to_the_number_of_its_weights() -> None:
    other = ModelSpec.of_parameters(25_557_032, name="x")
    for told in ({}, MODULES, {**MODULES, "num_attention_heads": None}):
        found = seen_model(facts(other, shape=told), READ, seq_len=64)
        assert found[0] == {"parameters": 25_557_032}


class Stack(torch.nn.Module):
    """A decoder of two layers with learnt positions; with `encoder`, layers of the same kind beside
    them."""

    def __init__(self, vocab_size: int, positions: int, *, encoder: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = (
            torch.nn.Embedding(vocab_size, 64),
            torch.nn.Embedding(positions, 64),
        )
        self.layers = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(64, 4, 256) for _ in range(2)
        )
        if encoder:
            self.encoder = torch.nn.ModuleList(
                torch.nn.TransformerEncoderLayer(64, 4, 256) for _ in range(2)
            )
        self.head = torch.nn.Linear(64, vocab_size, bias=False)


def test_a_vocabulary_smaller_than_the_positions_is_known_by_its_projection() -> None:
    shape = of_model(Stack(97, 128))["shape"]
    assert (shape["vocab_size"], shape["positions"], shape["num_layers"]) == (97, [128], 2)


def test_layers_beside_the_decoders_are_no_decoder_of_these_sizes() -> None:
    assert of_model(Stack(97, 128, encoder=True))["shape"] == {}


def test_the_space_is_that_of_the_launch(tmp_path: Path) -> None:
    """On this machine, of which a launch may use a part, and with micro-batches that its batch can
    be dealt in."""
    script = file_with(tmp_path / "train.py", SCRIPT)
    draft = first_draft(script, folder=tmp_path)
    found = seen_draft(
        draft, seen(micro=1, sequences=12, world=1), launched="x", steps=3, folder=tmp_path
    )
    space = found.document["space"]
    assert space["world_sizes"] == [1]
    assert all(12 % size == 0 for size in space["micro_batch_size"])


def test_formats_for_which_a_cpu_has_no_units_are_not_offered_on_one(tmp_path: Path) -> None:
    choices = 'choices=["float32", "bfloat16", "float16"]'
    draft = first_draft(
        file_with(
            tmp_path / "train.py", SCRIPT.replace('choices=["float32", "bfloat16"]', choices)
        ),
        folder=tmp_path,
    )
    for device, offered in (("cpu", ["fp32", "bf16"]), ("cuda", ["fp32", "bf16"])):
        found = seen_draft(draft, seen(device=device), launched="x", steps=3, folder=tmp_path)
        assert found.document["space"]["precision"] == offered


def test_what_was_read_as_tf32_is_fp32_on_a_cpu(tmp_path: Path) -> None:
    """The launch has no word for either: the word of the misread value is that of the seen one."""
    flag = 'p.add_argument("--amp", action="store_true")\na = p.parse_args()\ntorch.backends.cuda.matmul.allow_tf32 = True\ntorch.autocast("cuda", torch.float16, enabled=a.amp)'
    script = SCRIPT.replace(
        'p.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])\n', ""
    )
    read = first_draft(
        file_with(
            tmp_path / "train.py",
            script.replace("import argparse, os", "import argparse, os, torch").replace(
                "a = p.parse_args()", flag
            ),
        ),
        cluster="h100-sxm-1x2",
        folder=tmp_path,
    )
    assert "tf32" in read.document["trainer"]["values"]["precision"], read.text
    found = overlaid(read, seen(), tmp_path).document
    assert "tf32" not in found["space"]["precision"]
    assert found["trainer"]["values"]["precision"]["fp32"] is None
    assert set(found["space"]["precision"]) == set(found["trainer"]["values"]["precision"])


def test_a_first_phase_of_other_sizes_is_named(read: Draft, tmp_path: Path) -> None:
    hint = "if these steps are only a first phase"
    found = overlaid(read, seen(micro=1, sequences=2, length=32), tmp_path)
    assert any(hint in note for note in found.notes)
    for agrees in (seen(), seen(length=32), seen(micro=1, sequences=2)):
        assert not any(hint in note for note in overlaid(read, agrees, tmp_path).notes)
