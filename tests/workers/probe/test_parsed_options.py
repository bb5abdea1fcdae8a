"""What a program's own parser is told to have: real programs in processes of their own, which know
nothing of it."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from autotune.spec.texts import secrets
from autotune_workers.probe.injected.parsed_options import ASKED, MOST_OPTIONS
from autotune_workers.probe.probe_folder import MOST_READ
from tests.shortcuts import file_with
from tests.workers.probe.watching import Watched, watched

IN_A_LOOP = """\
    import argparse
    parser = argparse.ArgumentParser()
    for name, default in {"batch-size": 4, "dtype": "bf16", "accumulate": 1}.items():
        parser.add_argument("--" + name, type=type(default), default=default)
    parser.add_argument("--amp", action="store_true", help="mixed\\nprecision")
    """


def run_of(tmp_path: Path, text: str, *words: str, **env: str) -> Watched:
    program = file_with(tmp_path / "train.py", dedent(text))
    command = [sys.executable, str(program), *words]
    return watched(command, cwd=tmp_path, env={ASKED: secrets.__file__, **env})


def told(seen: Watched) -> dict[str, dict[str, Any]]:
    """The options by name."""
    found = [each for report in seen.of("options") for each in report["options"]]
    assert len({each["dest"] for each in found}) == len(found)
    return {each["dest"]: each for each in found}


def test_options_that_are_made_in_a_loop(tmp_path: Path) -> None:
    seen = run_of(tmp_path, IN_A_LOOP + "print(parser.parse_args())", "--batch-size", "8")
    assert "batch_size=8, dtype='bf16'" in seen.text
    assert {report["program"] for report in seen.of("options")} == {str(tmp_path / "train.py")}
    assert list(told(seen)) == ["batch_size", "dtype", "accumulate", "amp"]
    assert told(seen)["batch_size"] == {
        "parser": "argparse",
        "names": ["--batch-size"],
        "dest": "batch_size",
        "action": "_StoreAction",
        "type": "int",
        "nargs": None,
        "help": "",
        "required": False,
        "given": True,
        "default": 4,
        "const": None,
        "choices": None,
        "value": 8,
    }
    flag = told(seen)["amp"]
    assert (flag["action"], flag["nargs"], flag["const"]) == ("_StoreTrueAction", 0, True)
    assert flag["help"] == "mixed"


def test_a_dataclass_that_is_made_while_the_program_runs(tmp_path: Path) -> None:
    """transformers' parser; a list is told as its values."""
    text = """\
        from dataclasses import field, make_dataclass
        from transformers import HfArgumentParser
        Options = make_dataclass("Options", [
            ("micro_batch_size", int, 2), ("bf16", bool, False), ("layers", list[int], field(default_factory=lambda: [1, 2]))
        ])
        print(HfArgumentParser(Options).parse_args_into_dataclasses())
        """
    seen = run_of(tmp_path, text, "--bf16")
    assert seen.code == 0, seen.text
    found = told(seen)
    assert found["micro_batch_size"]["names"] == ["--micro_batch_size", "--micro-batch-size"]
    assert (found["bf16"]["type"], found["bf16"]["const"]) == ("string_to_bool", True)
    assert (found["bf16"]["default"], found["bf16"]["value"]) == (False, True)
    assert found["layers"]["default"] == [1, 2]


def test_options_of_a_subcommand_alone_may_stand_at_the_end_of_the_command(tmp_path: Path) -> None:
    text = """\
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--batch-size", type=int, default=1)
        commands = parser.add_subparsers()
        for name in ("train", "evaluate"):
            commands.add_parser(name).add_argument(f"--{name}-batch-size", type=int, default=3)
        print(parser.parse_args())
        """
    seen = run_of(tmp_path, text, "train")
    assert "train_batch_size=3" in seen.text
    assert list(told(seen)) == ["train_batch_size"]


def test_a_parser_of_files_comes_before_the_programs_own(tmp_path: Path) -> None:
    """Nothing is left for the second one, which still reads the command; a file has set its
    default."""
    text = """\
        import argparse
        first = argparse.ArgumentParser()
        first.add_argument("--config")
        known, rest = first.parse_known_args()
        parser = argparse.ArgumentParser()
        parser.add_argument("--batch-size", type=int, default=1)
        parser.set_defaults(batch_size=6)
        parser.parse_args(rest)
        """
    found = told(run_of(tmp_path, text, "--config=x.yaml"))
    assert list(found) == ["config", "batch_size"]
    assert (found["batch_size"]["default"], found["batch_size"]["given"]) == (6, False)


def test_parsers_that_read_something_else_are_not_told(tmp_path: Path) -> None:
    text = IN_A_LOOP + dedent(
        """
        parser.parse_args([])
        parser.parse_args(["--accumulate", "4"])
        parser.parse_args(word for word in ["--amp"])
        """
    ).replace("\n", "\n    ")
    assert not run_of(tmp_path, text, "--other").of("options")


def test_a_parser_that_fails_ends_the_program_as_it_would(tmp_path: Path) -> None:
    seen = run_of(tmp_path, IN_A_LOOP + "parser.parse_args()", "--batch-size", "many")
    assert seen.code == 2
    assert "invalid int value: 'many'" in seen.text
    assert "autotune" not in seen.text
    assert not seen.of("options")


def test_a_parser_of_another_make_is_left_alone(tmp_path: Path) -> None:
    text = """\
        import argparse
        class Parser(argparse.ArgumentParser):
            def parse_known_args(self, args=None, namespace=None):
                super().parse_known_args(args, namespace)
                return "mine"
            def parse_args(self, *args):
                return self.parse_known_args(*args)
        class Choices:
            def __contains__(self, value):
                return True
        parser = Parser()
        parser.add_argument("--lr", default=1e-3, choices=Choices(), metavar="LR", type=str.strip)
        parser.add_argument("--many", type=int, choices=range(10**12), metavar="N", default=3)
        parser.add_argument("--object", default=object())
        parser.add_argument("--nan", default=float("nan"))
        print(parser.parse_args())
        """
    seen = run_of(tmp_path, text, "--lr=3")
    assert (seen.code, seen.text) == (0, "mine\n")
    found = told(seen)
    assert (found["lr"]["default"], found["lr"]["choices"]) == (1e-3, None)
    assert "choices" not in found["many"]
    assert "default" not in found["object"]
    assert "default" not in found["nan"]


def test_values_of_secrets_are_left_out(tmp_path: Path) -> None:
    text = """\
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--wandb-api-key", default="hidden-one")
        parser.add_argument("-p", "--password")
        parser.add_argument("--tracker", default="https://me:hidden-three@host/")
        parser.parse_args()
        """
    seen = run_of(tmp_path, text, "-p", "hidden-two")
    assert list(told(seen)) == ["wandb_api_key", "password", "tracker"]
    assert not {"default", "value", "const", "choices"} & told(seen)["wandb_api_key"].keys()
    assert "hidden" not in str(seen.reports)


def test_a_huge_parser_is_told_in_part_and_no_report_is_too_long(tmp_path: Path) -> None:
    text = """\
        import argparse
        parser = argparse.ArgumentParser()
        for number in range(2000):
            word = "\\U0001f600" * 64
            parser.add_argument(f"--option-{number}", default=word, choices=[word] * 16, help=word * 100)
        parser.add_argument("--" + "long" * 100)
        parser.parse_args([])
        """
    seen = run_of(tmp_path, text)
    assert seen.code == 0, seen.text
    assert len(told(seen)) == MOST_OPTIONS
    sizes = [len(str(report).encode("ascii", "backslashreplace")) for report in seen.of("options")]
    assert max(sizes) * 1.2 < MOST_READ


@pytest.mark.parametrize("env", [{"RANK": "1"}, {ASKED: ""}], ids=["another rank", "not asked"])
def test_nothing_is_told_by_other_ranks_or_unasked(tmp_path: Path, env: dict[str, str]) -> None:
    seen = run_of(tmp_path, IN_A_LOOP + "parser.parse_args()", **env)
    assert (seen.code, seen.reports) == (0, [])


def test_a_program_without_a_parser(tmp_path: Path) -> None:
    assert run_of(tmp_path, "print('trains')").reports == []


def test_the_parser_is_left_after_many_commands(tmp_path: Path) -> None:
    text = """\
        import argparse
        before = argparse.ArgumentParser.parse_known_args
        for _ in range(20):
            argparse.ArgumentParser().parse_args()
        print(argparse.ArgumentParser.parse_known_args is before.__wrapped__)
        """
    assert run_of(tmp_path, text).text == "True\n"


OLD_TYRO = {
    "__init__": """\
        import sys
        from types import SimpleNamespace as Of
        from ._argparse import ArgumentParser

        def argument(name, default, **how):
            dest = name[2:]
            lowered = Of(instance_from_str=str, name_or_flags=(name,), dest=dest, required=False, nargs=1, choices=None, action=None)
            vars(lowered).update(how)
            field = Of(default=default, type_stripped=type(default), is_positional=lambda: False)
            return Of(lowered=lowered, field=field, is_suppressed=lambda: False)

        class BooleanOptionalAction: pass

        def cli():
            both = argument("--amp", False, name_or_flags=("--amp", "--no-amp"), action=BooleanOptionalAction)
            inside = Of(args=[argument("--opt.lr", 0.1)], child_from_prefix={}, subparsers=None)
            parser = ArgumentParser()
            parser._parser_specification = Of(args=[argument("--batch-size", 8), both], child_from_prefix={"opt": inside}, subparsers=None)
            parser.add_argument("--batch-size", dest="batch-size", nargs=1, default=None)
            return parser.parse_args(args=sys.argv[1:])
        """,
    "_argparse": """\
        import argparse

        class ArgumentParser(argparse.ArgumentParser):
            def parse_known_args(self, args=None, namespace=None):
                return super().parse_known_args(args, namespace)
        """,
}
"""what tyro 0.9 has of a parser, as far as it is looked at"""


def test_tyro_before_its_first_release_says_the_defaults_of_its_fields(tmp_path: Path) -> None:
    (tmp_path / "tyro").mkdir()
    for name, text in OLD_TYRO.items():
        file_with(tmp_path / "tyro" / f"{name}.py", dedent(text))
    options = told(run_of(tmp_path, "import tyro\ntyro.cli()", "--batch-size", "4"))
    assert list(options) == ["batch-size", "amp", "opt.lr"]
    found = [(o["type"], o["default"], o["given"], o.get("off")) for o in options.values()]
    assert found == [
        ("int", 8, True, None),
        ("bool", False, False, "--no-amp"),
        ("float", 0.1, False, None),
    ]
    assert {option["parser"] for option in options.values()} == {"tyro"}
