"""Drafts of programs whose options their source does not show, by what their own parsers say in a real run."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import command_draft, first_draft
from autotune.onboarding.script.options import SAID
from tests.shortcuts import file_with
from tests.workers.probe.test_parsed_options import run_of

PLACE: dict[str, Any] = {"model": "gpt2-small", "cluster": "h100-sxm-1x1"}


def drafts(tmp_path: Path, text: str, words: str = "") -> tuple[Draft, Draft]:
    """The draft of a command by its source alone, and with what its parser says."""
    seen = run_of(tmp_path, text, *shlex.split(words))
    assert seen.code == 0, seen.text
    said = [option for report in seen.of("options") for option in report["options"]]
    command = [sys.executable, str(tmp_path / "train.py"), *shlex.split(words)]
    return (
        command_draft(command, folder=tmp_path, **PLACE),
        command_draft(command, folder=tmp_path, said=said, **PLACE),
    )


def argv_of(draft: Draft) -> list[str]:
    """The words behind the program."""
    words = draft.document["trainer"]["argv"]
    return words[2:]


LOOP = """\
    import argparse
    OPTIONS = {"micro-batch-size": 4, "grad-accum": 2, "seq-len": 512, "learning-rate": 0.1}
    parser = argparse.ArgumentParser()
    for name, default in OPTIONS.items():
        parser.add_argument("--" + name, type=type(default), default=default)
    parser.add_argument(*["--dtype"], choices=["float32", "bfloat16"], default="float32")
    parser.parse_args()
    """
DATACLASS = """\
    from dataclasses import make_dataclass
    from transformers import HfArgumentParser
    fields = {"micro_batch_size": 4, "grad_accum": 2, "seq_len": 512, "bf16": False}
    Options = make_dataclass("Options", [(name, type(value), value) for name, value in fields.items()])
    HfArgumentParser(Options).parse_args_into_dataclasses()
    """
DECORATED = """\
    import argparse
    class Command(argparse.ArgumentParser):
        def option(self, name, default):
            self.add_argument("--" + name.replace("_", "-"), type=lambda text: int(text), default=default)
    command = Command()
    command.option("micro_batch_size", 4), command.option("grad_accum", 2), command.option("seq_len", 512)
    command.parse_args()
    """


@pytest.mark.parametrize("text", [LOOP, DATACLASS, DECORATED], ids=["loop", "dataclass", "class"])
def test_options_that_no_text_shows_are_tuned(tmp_path: Path, text: str) -> None:
    read, said = drafts(tmp_path, text)
    assert {"trainer.argv", "workload.seq_len"} <= set(read.fill_in)
    assert said.fill_in == ()
    told = " ".join(argv_of(said)).replace("_", "-")
    assert "--micro-batch-size={micro-batch-size}" in told
    assert "--grad-accum={accumulation-steps}" in told
    document = said.document
    assert document["workload"]["seq_len"] == 512
    assert document["workload"]["global_batch_size"] == 8
    assert "micro_batch_size=4" in document["baseline"]
    assert SAID in said.text
    if text is not DECORATED:
        assert set(document["space"]["precision"]) == {"fp32", "bf16"}
        assert "{precision}" in told


def test_what_the_command_gives_is_todays_value(tmp_path: Path) -> None:
    _, said = drafts(tmp_path, LOOP, "--micro-batch-size 16 --learning-rate 0.3")
    assert said.document["workload"]["global_batch_size"] == 32
    assert f"{SAID}, default 4, currently 16" in said.text
    assert "--learning-rate=0.3" in argv_of(said)


def test_options_of_a_subcommand_stand_behind_its_name(tmp_path: Path) -> None:
    text = """\
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--verbose", action="store_true")
        train = parser.add_subparsers().add_parser("train")
        for name in ("batch_size", "grad_accum"):
            train.add_argument(f"--{name}", type=int, default=2)
        parser.parse_args()
        """
    _, said = drafts(tmp_path, text, "--verbose train --batch_size 8")
    words = ["--verbose", "train"]
    words += ["--batch_size={micro_batch_size}", "--grad_accum={accumulation_steps}"]
    assert argv_of(said) == words
    assert said.document["workload"]["global_batch_size"] == 16


HALF_READ = """\
    import argparse
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--seq-len", type=int, default=128)
    for name in ("grad-accum", "prefetch", "train-batch-size"):
        parser.add_argument("--" + name, type=int, default=4)
    parser.set_defaults(batch_size=6)
    parser.parse_args()
    """


def test_the_parsers_default_comes_before_that_of_the_text(tmp_path: Path) -> None:
    """Of the options that were not read only those of knobs are added for which nothing stands."""
    read, said = drafts(tmp_path, HALF_READ)
    assert "micro_batch_size=2" in read.document["baseline"]
    assert "micro_batch_size=6" in said.document["baseline"]
    assert said.document["workload"]["global_batch_size"] == 24
    assert "default 6 said by the program's parser" in said.text
    assert "line 4, default 128" in said.text.replace("\n    ", "")
    assert "--grad-accum={accumulation_steps}" in argv_of(said)
    assert not any(word in said.text for word in ("prefetch", "train-batch-size"))


def test_a_value_of_a_file_is_todays_without_a_word_of_the_command(tmp_path: Path) -> None:
    text = """\
        import argparse
        parser = argparse.ArgumentParser(fromfile_prefix_chars="@")
        for name in ("batch_size", "grad_accum"):
            parser.add_argument(f"--{name}", type=int, default=1)
        parser.parse_args()
        """
    (tmp_path / "options.txt").write_text("--grad_accum=3\n")
    _, said = drafts(tmp_path, text, "@options.txt --batch_size=5")
    assert said.document["workload"]["global_batch_size"] == 15


TRAINER = """\
    import transformers
    def classes():
        return (getattr(transformers, "TrainingArguments"),)
    transformers.HfArgumentParser(*[classes()]).parse_args_into_dataclasses()
    """


def test_a_parser_of_training_arguments_is_that_of_transformers(tmp_path: Path) -> None:
    _, said = drafts(
        tmp_path, TRAINER, "--output_dir=out --use_cpu --per_device_train_batch_size=2"
    )
    assert "--per_device_train_batch_size={micro_batch_size}" in argv_of(said)
    assert "--logging_steps=1" in argv_of(said)
    assert said.document["workload"]["loop"] == "hf_trainer"


def test_programs_whose_command_sets_a_file_keep_what_was_read(tmp_path: Path) -> None:
    """Hydra reads its own options by argparse."""
    script = """\
        import hydra
        @hydra.main(config_path=".", config_name="conf")
        def main(conf):
            pass
        """
    (tmp_path / "conf.yaml").write_text("batch_size: 4\n")
    path = file_with(tmp_path / "train.py", dedent(script))
    option = {"names": ["--batch-size"], "dest": "batch_size", "action": "_StoreAction"}
    option |= {"type": "int", "nargs": None, "required": False, "given": False, "default": 1}
    read = first_draft(path, folder=tmp_path, **PLACE)
    assert first_draft(path, folder=tmp_path, said=[option], **PLACE).text == read.text
