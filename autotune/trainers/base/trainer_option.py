"""Options of trainers: settings in addition to the config, and what their values can access on the
machine that runs the trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.errors import SpecError
from autotune.spec.checks import MAX_PORT, nearest
from autotune.spec.texts.json_text import RepeatedKeyError, read_json

MAX_OPTION = 4096
"""maximum characters of an option's value"""


class Reach(StrEnum):
    """What an option's value gives access to on the machine that runs the trials. A service uses
    the reach to decide which options its callers may set."""

    NOTHING = "nothing"
    """a number, a flag or a plain word"""
    FILE = "file"
    """a file, a folder, or the common beginning of several file names"""
    FILES = "files"
    """several of these in one text, with numbers between them"""
    PROGRAM = "program"
    """a program, an interpreter, or the folder in which one runs"""
    ARGUMENT = "argument"
    """text that is passed on unchanged to a program or to the trainer's settings file, and so may
    name anything"""
    ADDRESS = "address"
    """an address or a name on the network"""
    ENVIRONMENT = "environment"
    """environment variables"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An argument of a trainer that is not part of the config."""

    name: str
    """key in the spec"""
    meaning: str
    """one line of documentation"""
    default: Any = None
    """value if the option is omitted; also determines the type (None: text)"""
    export_only: bool = False
    """whether only exports use it; trials take the value from the study, so a study must not set
    it"""
    is_path: bool = False
    """whether it may be the path, or the beginning of the path, of a file or folder; a relative
    path that exists next to the spec is resolved"""
    reach: Reach | None = None
    """what its value gives access to; None if undeclared, in which case a service rejects it"""
    choices: tuple[str, ...] = ()
    """allowed words; empty if any word is allowed. A number is converted to text, because YAML
    parses `version: 0.3` as a number"""
    least: int = 0
    """minimum of a number"""
    most: int | None = None
    """maximum of a number; None: none"""

    def check(self, value: Any) -> Any:
        """`value` in the option's type. Text from a command line is converted to numbers, flags,
        and JSON lists and mappings. Raises `SpecError` for a value of another type, and for a
        number that is not finite or out of bounds."""
        if self.choices:
            return self._chosen(value)
        typed = self._typed(value)
        if isinstance(typed, int | float) and not isinstance(typed, bool):
            self._check_number(typed)
        return typed

    def _typed(self, value: Any) -> Any:
        kind = str if self.default is None else type(self.default)
        if kind is bool and isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if kind in (int, float) and isinstance(value, str):
            try:
                return kind(value)
            except ValueError:
                raise self._wrong(value, kind) from None
        if kind in (tuple, dict) and isinstance(value, str):
            try:
                value = read_json(value[:MAX_OPTION])
            except RepeatedKeyError as error:
                raise SpecError(str(error), field=f"trainer.{self.name}") from None
            except (ValueError, RecursionError):
                raise self._wrong(value, kind) from None
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if kind is tuple and isinstance(value, list | tuple):
            return tuple(value)
        if kind is dict and isinstance(value, Mapping):
            return dict(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._wrong(value, kind)
        if isinstance(value, str) and (len(value) > MAX_OPTION or not value.isprintable()):
            raise SpecError(
                f"{self.name} must be printable text of at most {MAX_OPTION} characters",
                field=f"trainer.{self.name}",
            )
        return value

    def _check_number(self, number: float) -> None:
        most = math.inf if self.most is None else self.most
        if not (math.isfinite(number) and self.least <= number <= most):
            bounds = (
                f"{self.least} to {self.most}"
                if self.most is not None
                else f"at least {self.least}"
            )
            raise SpecError(
                f"{self.name} must be {bounds}, but is {number}", field=f"trainer.{self.name}"
            )

    def _chosen(self, value: Any) -> str:
        word = (
            str(value)
            if isinstance(value, str | int | float) and not isinstance(value, bool)
            else ""
        )
        if word not in self.choices:
            raise SpecError(
                f"{self.name} must be one of {', '.join(self.choices)}, but is {value!r:.80}",
                remedy=nearest(word, self.choices),
                field=f"trainer.{self.name}",
            )
        return word

    def _wrong(self, value: Any, kind: type) -> SpecError:
        words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        return SpecError(
            f"{self.name} must be {words.get(kind, 'a list' if kind is tuple else 'a mapping')}, but is {value!r}",
            field=f"trainer.{self.name}",
        )


SAME_DATA = Option(
    name="same_data",
    meaning="whether every config sees the same batches in the same order, so that losses can be compared step by step",
    default=False,
    reach=Reach.NOTHING,
)
PYTHON = Option(
    name="python",
    meaning="environment or interpreter with the programs to start (python, torchrun, ...); default: PATH",
    default="",
    reach=Reach.PROGRAM,
)
WORKING_DIR = Option(
    name="working_dir",
    meaning="how nodes get the folder with the program or model code: shared (all see it at the same path) or upload (Ray sends it)",
    default="shared",
    reach=Reach.ARGUMENT,
    choices=("shared", "upload"),
)
MASTER_ADDR = Option(
    name="master_addr",
    meaning="address of node 0; default: set when each node starts",
    default="",
    reach=Reach.ADDRESS,
)
MASTER_PORT = Option(
    name="master_port",
    meaning="rendezvous port for several nodes; default: chosen when the nodes start, or 29500",
    default=0,
    reach=Reach.ADDRESS,
    most=MAX_PORT,
)
SHARED_OPTIONS = (
    Option(
        name="nearest",
        meaning="use the nearest values that the trainer can express",
        default=False,
        reach=Reach.NOTHING,
    ),
    Option(
        name="steps", meaning="optimizer steps to run", default=50, reach=Reach.NOTHING, least=1
    ),
    MASTER_ADDR,
    MASTER_PORT,
    Option(name="learning_rate", meaning="peak learning rate", default=3e-4, reach=Reach.NOTHING),
    Option(name="seed", meaning="seed of weights and data", default=1234, reach=Reach.NOTHING),
    PYTHON,
    SAME_DATA,
    WORKING_DIR,
)
"""options of every trainer that torchrun starts"""
