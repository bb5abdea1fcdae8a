"""Drafts of programs whose options their source does not show, by what their own parsers say in a
real run."""

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
from tests.matrix import sampled
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


def test_positionals_that_no_text_shows_are_told_in_their_places(tmp_path: Path) -> None:
    text = """\
        import click
        def main(**given): pass
        main = click.option("--seq-len", type=int, default=64)(main)
        for name in ("batch_size", "out"):
            main = click.argument(name, type=int if name == "batch_size" else str)(main)
        click.command()(main)()
        """
    _, said = drafts(tmp_path, text, "my 16")
    assert argv_of(said)[:2] == ["my", "{micro_batch_size}"]
    assert "micro_batch_size=16" in said.document["baseline"]


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
    assert "default 6 according to the program's parser" in said.text
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
    option = {
        "parser": "argparse",
        "names": ["--batch-size"],
        "dest": "batch_size",
        "action": "_StoreAction",
    }
    option |= {"type": "int", "nargs": None, "required": False, "given": False, "default": 1}
    read = first_draft(path, folder=tmp_path, **PLACE)
    assert first_draft(path, folder=tmp_path, said=[option], **PLACE).text == read.text


PARSERS = {
    "click": """\
        import click
        def main(**given): print(given)
        for name, default in NUMBERS.items():
            main = click.option("--" + name.replace("_", "-"), type=int, default=default)(main)
        main = click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32")(main)
        click.command()(main)()
        """,
    "typer": """\
        import typer
        def make():
            def main(micro_batch_size: int = 4, grad_accum: int = 2, seq_len: int = 512, bf16: bool = False): pass
            return main
        app = typer.Typer()
        app.command()(make())
        app()
        """,
    "tyro": """\
        import tyro
        from dataclasses import make_dataclass
        tyro.cli(make_dataclass("Options", [(name, type(value), value) for name, value in FIELDS.items()]))
        """,
    "jsonargparse": """\
        from jsonargparse import ArgumentParser
        parser = ArgumentParser()
        for name, default in FIELDS.items():
            parser.add_argument("--train." + name, type=type(default), default=default)
        parser.parse_args()
        """,
    "absl": """\
        from absl import app, flags
        for name, default in NUMBERS.items():
            flags.DEFINE_integer(name, default, "a number")
        flags.DEFINE_bool("bf16", False, "the format")
        app.run(lambda words: None)
        """,
    "fire": """\
        import fire
        def make():
            def main(micro_batch_size=4, grad_accum=2, seq_len=512, *, bf16=False): pass
            return main
        fire.Fire(make())
        """,
    "draccus": """\
        import draccus
        from dataclasses import field, make_dataclass
        fields = [(name, type(value), value) for name, value in FIELDS.items()]
        Model = make_dataclass("Model", [("size", int, 64)])
        draccus.parse(make_dataclass("Options", [*fields, ("model", Model, field(default_factory=Model))]))
        """,
    "simple_parsing": """\
        import simple_parsing
        from dataclasses import make_dataclass
        simple_parsing.parse(make_dataclass("Options", [(name, type(value), value) for name, value in FIELDS.items()]))
        """,
    "ml_collections": """\
        import sys
        from absl import app, flags
        from ml_collections import ConfigDict, config_flags
        config_flags.DEFINE_config_dict("train", ConfigDict(FIELDS))
        app.run(lambda words: None)
        """,
    "omegaconf": """\
        from omegaconf import OmegaConf
        OmegaConf.merge(OmegaConf.create({"elsewhere": 1}), OmegaConf.create({"train": FIELDS}))
        OmegaConf.merge(OmegaConf.create({"train": FIELDS}), OmegaConf.from_cli())
        """,
    "hydra": """\
        import hydra
        from hydra.core.config_store import ConfigStore
        from dataclasses import make_dataclass
        Options = make_dataclass("Options", [(name, type(value), value) for name, value in FIELDS.items()])
        ConfigStore.instance().store(name="options", node=Options)
        hydra.main(version_base=None, config_name="options")(lambda settings: None)()
        """,
}
"""Programs whose text does not show their options, by parser."""
OF = {"simple_parsing": "argparse", "ml_collections": "absl"}
"""the parser of those that are built on one"""
BEGIN = """\
    NUMBERS = {"micro_batch_size": 4, "grad_accum": 2, "seq_len": 512}
    FIELDS = {**NUMBERS, "bf16": False}
    """
SUBCOMMANDS = {
    "click": """\
        import click
        group = click.Group()
        options = [click.Option(["--" + name], type=int, default=value) for name, value in NUMBERS.items()]
        group.add_command(click.Command("train", params=options))
        group.params.append(click.Option(["--seq_length"], type=int))
        group()
        """,
    "tyro": """\
        import tyro
        from dataclasses import make_dataclass
        Train = make_dataclass("Train", [(name, int, value) for name, value in NUMBERS.items()])
        Other = make_dataclass("Other", [("batch_size", int, 1)])
        tyro.cli(Train | Other)
        """,
    "jsonargparse": """\
        from jsonargparse import ArgumentParser
        parser, train = ArgumentParser(), ArgumentParser()
        parser.add_argument(*["--seq_length"], type=int, default=1)
        for name, value in NUMBERS.items():
            train.add_argument("--" + name, type=int, default=value)
        parser.add_subcommands().add_subcommand("train", train)
        parser.parse_args()
        """,
    "fire": """\
        import fire
        class Program:
            def train(self, micro_batch_size=4, grad_accum=2, seq_len=512): pass
        fire.Fire(Program)
        """,
}


@pytest.mark.parametrize("parser", sampled(PARSERS, ["click", "tyro", "absl", "fire"]))
def test_each_parser_says_its_options(tmp_path: Path, parser: str) -> None:
    text, is_setting = dedent(BEGIN) + dedent(PARSERS[parser]), parser in ("omegaconf", "hydra")
    before = "train." if parser in ("jsonargparse", "omegaconf", "ml_collections") else ""
    word = f"{before}grad_accum=3" if is_setting else f"--{before}grad_accum=3"
    word = word.replace("_", "-") if parser in ("click", "typer") else word
    seen = run_of(tmp_path, text, word)
    assert seen.code == 0, seen.text
    told = [each for report in seen.of("options") for each in report["options"]]
    given = {each["dest"].rpartition(".")[2].replace("-", "_"): each["given"] for each in told}
    assert (given["grad_accum"], given["micro_batch_size"]) == (True, False)
    _, said = drafts(tmp_path, text, word)
    words = [each.lstrip("-").removeprefix(before).replace("-", "_") for each in argv_of(said)]
    assert {"micro_batch_size={micro_batch_size}", "grad_accum={accumulation_steps}"} <= {*words}
    assert "seq_len={seq_len}" in words
    document = said.document
    assert document["workload"]["global_batch_size"] == 12
    assert document["workload"]["seq_len"] == 512
    assert document["baseline"].startswith("dp=1,micro_batch_size=4,precision=fp32")
    assert set(document["space"]["precision"]) == {"fp32", "bf16"}
    assert f"options with {OF.get(parser, parser)};" in " ".join(said.notes)
    again = run_of(
        tmp_path,
        text,
        *_as_tuned(argv_of(said), document["trainer"]["values"]["precision"]["bf16"]),
    )
    assert again.code == 0, again.text


def _as_tuned(words: list[str], bf16: str) -> list[str]:
    """The words of a trial in bf16."""
    number = {"micro_batch_size": 4, "accumulation_steps": 3, "seq_len": 512, "precision": bf16}
    return [word.format(**number) for word in words]


@pytest.mark.parametrize("parser", sampled(SUBCOMMANDS, ["click"]))
def test_options_of_the_subcommand_that_runs(tmp_path: Path, parser: str) -> None:
    text = dedent(BEGIN) + dedent(SUBCOMMANDS[parser])
    _, said = drafts(tmp_path, text, "train --micro_batch_size=8")
    words = [word.replace("-", "_") for word in argv_of(said)]
    assert words[0] == "train"
    assert "__micro_batch_size={micro_batch_size}" in words
    assert "__grad_accum={accumulation_steps}" in words
    assert not any("seq_length" in word for word in words)
    assert said.document["workload"]["global_batch_size"] == 16


def test_a_switch_is_turned_off_as_its_parser_says(tmp_path: Path) -> None:
    text = """\
        import click
        main = click.option("--compile/--eager", default=True)(lambda **given: print(given))
        main = click.option("--micro-batch-size", type=int, default=4)(main)
        click.command()(main)()
        """
    _, said = drafts(tmp_path, text.replace('"--compile/--eager"', '*["--compile/--eager"]'))
    assert said.document["trainer"]["values"]["compile"] == {True: "--compile", False: "--eager"}


@pytest.mark.thorough
def test_lightnings_own_defaults_are_those_that_it_takes_for_none(tmp_path: Path) -> None:
    text = """\
        from lightning.pytorch.cli import LightningCLI
        from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel
        class Data(BoringDataModule):
            def __init__(self, **sizes: int) -> None:
                super().__init__()
        class Sized(Data):
            def __init__(self, batch_size: int = 4, workers: int = 0) -> None:
                super().__init__()
        LightningCLI(BoringModel, Sized, run=False)
        """
    _, said = drafts(tmp_path, text, "--data.batch_size 8")
    words = argv_of(said)
    assert "--data.batch_size={micro_batch_size}" in words
    assert "--trainer.precision={precision}" in words
    assert said.document["workload"]["global_batch_size"] == 8
