"""The options of the program's own command line, as its parser has them: told once, when it has
read the command.

Only where ASKED names a file: the rules by which a name is that of a secret. Which parsers there
are, and what they say, is in `parsers`. One that hands the command to a subcommand is not told: its
own options stand before the subcommand's name.

    parser                                    its library
    names, dest, action, type, nargs, help    as `parsers` has them; `action`: the class of argparse that it is, derives from or does the same as
    required, given, off                      whether it must be given; whether a word of the command is one of its names; what makes a flag false
    default, const, choices, value            plain and short values alone; none of them where the name is that of a secret. `value`: what came of the command
"""

from __future__ import annotations

import os
import sys

from .model_facts import launched_rank, program
from .parsers import PARSERS

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes milliseconds that a program may not spend
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from .parsers import Options, Words

ASKED = "AUTOTUNE_PROBE_OPTIONS"
MOST_PARSES, MOST_OPTIONS = 16, 800
MOST_NAMES, MOST_VALUES, MOST_CHARACTERS = 4, 16, 64
AT_ONCE = 8
"""options of a report: a line must be shorter than what a keeper reads at once"""
_VALUES = ("default", "const", "choices", "value")


def watched(reports: Any) -> dict[str, Callable[[Any], None]]:
    """What is done with each library that has a parser, by the module to wait for; nothing in other
    ranks."""
    try:
        from importlib.util import module_from_spec, spec_from_file_location

        spec: Any = spec_from_file_location("autotune_probe.secret_names", os.environ[ASKED])
        secrets = module_from_spec(spec)
        spec.loader.exec_module(secrets)
        return {} if launched_rank() else dict.fromkeys(PARSERS, _Parsers(reports, secrets).listen)
    except Exception:  # what is read of the source stays
        return {}


class _Parsers:
    """What the parsers of this process were told by its command."""

    def __init__(self, reports: Any, secrets: Any) -> None:
        self._reports, self._secrets = reports, secrets
        self._within: list[Any] = []
        """libraries whose parsers read the command now: a parser within another of its library is a
        subparser, and within one of another library its tool"""
        self._rest: Any = None
        """the words that the last one left over: the next one may be given these, even if there are
        none"""
        self._told: set[str] = set()
        self._parses = 0

    def listen(self, module: Any) -> None:
        """Begins to listen to a library's parsers."""
        for what, words, options in PARSERS[module.__name__]:
            try:
                owner, _, name = what.rpartition(".")
                self._wrap(
                    module, getattr(module, owner) if owner else module, name, words, options
                )
            except Exception:  # a release that has it elsewhere: what is read of the source stays
                continue

    def _wrap(self, module: Any, holder: Any, name: str, words: Words, options: Options) -> None:
        from functools import wraps

        whole = vars(holder)[name]
        is_static = isinstance(whole, staticmethod)
        read = whole.__func__ if is_static else whole

        @wraps(read)
        def reading(*given: Any, **named: Any) -> Any:
            is_own = bool(self._within) or self._is_command(words, given, named)
            self._within += [module] * is_own
            try:
                found = read(*given, **named)
            finally:
                del self._within[len(self._within) - is_own :]
            is_tool = any(each is not module for each in self._within)
            if is_own and not is_tool and self._parses < MOST_PARSES:
                self._parses += 1
                self._tell(module, options, (*given, *named.values()), found)
            elif self._parses >= MOST_PARSES and getattr(holder, name) is reading:
                setattr(holder, name, whole)
            return found

        setattr(holder, name, staticmethod(reading) if is_static else reading)

    def _is_command(self, words: Words, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Whether it reads words of the program's own command, all or a part, or the whole command
        and more (of a file). Libraries parse others, to get defaults."""
        try:
            read, own = words(*given, **named), sys.argv[1:]
            if read is None or read is self._rest or read == own:
                return True
            if not isinstance(read, (list, tuple)) or not read or not own:
                return False
            some, whole = _alike(read), _alike(own)
            return some <= whole or whole <= some
        except Exception:  # words that are no words: the parser says so itself
            return False

    def _tell(self, module: Any, options: Options, given: tuple[Any, ...], found: Any) -> None:
        try:
            if type(found) is tuple:
                self._rest = found[-1]
            told = [*self._seen(module, options(module, given, found))]
            for start in range(0, len(told), AT_ONCE):
                self._reports.send(
                    "options", program=program(), options=told[start : start + AT_ONCE]
                )
        except Exception:  # a parser of another make: what is read of the source stays
            return

    def _seen(self, module: Any, options: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The options that are not known yet, as they are told; not more than may be."""
        for option in options:
            names, dest = option["names"][:MOST_NAMES], option["dest"]
            key = names[0] if names else dest
            is_known = key in self._told or len(self._told) >= MOST_OPTIONS
            if not is_known and max(map(len, (dest, *names))) <= MOST_CHARACTERS:
                self._told.add(key)
                parser = module.__name__.partition(".")[0]
                yield self._secrets.masked({"parser": parser, **self._shown(names, option)})

    def _shown(self, names: list[str], option: dict[str, Any]) -> dict[str, Any]:
        words = _alike(word.partition("=")[0] for word in sys.argv[1:])
        spelled = _alike(filter(None, (*option["names"], option.get("off"))))
        told = {
            "names": names,
            "dest": option["dest"],
            "action": option["action"],
            "type": str(option["type"])[:MOST_CHARACTERS],
            "nargs": option["nargs"] if isinstance(option["nargs"], (int, str)) else None,
            "help": str(option["help"] or "").strip().partition("\n")[0][:MOST_CHARACTERS],
            "required": bool(option["required"]),
            "given": not words.isdisjoint(spelled),
        }
        if option.get("off"):
            told["off"] = str(option["off"])[:MOST_CHARACTERS]
        if not any(map(self._secrets.is_secret_name, (option["dest"], *names))):
            values = {name: option[name] for name in _VALUES if name in option}
            values["choices"] = _few(values.get("choices"))
            values = {name: _plain(value) for name, value in values.items()}
            told.update({name: value for name, value in values.items() if _is_short(value)})
        return told


def _alike(words: Iterable[str]) -> set[str]:
    """Words in which `_` and `-` are the same, as they are to click, tyro and fire, and Hydra's
    signs are left out."""
    return {word.lstrip("+~").replace("_", "-") for word in words}


def _few(values: Any) -> list[Any] | None:
    """The choices, if there are few; one more than that stands for many."""
    from itertools import islice

    try:
        # one that can be read once alone is left to the parser
        is_told = values is not None and iter(values) is not values
        return list(map(_plain, islice(values, MOST_VALUES + 1))) if is_told else None
    except TypeError:  # a container that can only be asked whether it has a value
        return None


def _plain(value: Any) -> Any:
    """A path as its text, the value of an enumeration of words or numbers; any other as it is."""
    if type(value) is tuple:
        return list(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    of_enumeration = isinstance(value, (str, int, float)) and type(value) is not bool
    return getattr(value, "value", value) if of_enumeration else value


def _is_short(value: Any) -> bool:
    """Whether a value is short, and means the same in JSON."""
    if type(value) is list:
        is_flat = not any(type(each) is list for each in value)
        return is_flat and len(value) <= MOST_VALUES and all(map(_is_short, value))
    if type(value) is str:
        return len(value) <= MOST_CHARACTERS
    is_number = type(value) is int or (type(value) is float and value - value == 0)
    return value is None or type(value) is bool or (is_number and abs(value) < 1 << 63)
