"""Reports the options of the program's command line as its parser has them, once it has parsed the
command.

Only if the variable ASKED has the path of a file with the rules for names of secrets. `parsers` has
the supported parsers. The options of a parser that passes the command to a subcommand are not
reported, because they precede the subcommand's name.

    parser                                    name of the library
    names, dest, action, type, nargs, help    as in `parsers`; `action`: the class of argparse that it is, derives from or corresponds to
    required, given, off                      whether it is mandatory; whether the command has one of its names; the word that makes a flag false
    default, const, choices, value            short values of plain types only; left out if the name is that of a secret. `value`: the parsed value
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
"""number of options per report: a line must be shorter than what a keeper reads at once"""
_VALUES = ("default", "const", "choices", "value")


def watched(reports: Any) -> dict[str, Callable[[Any], None]]:
    """Callbacks by name of the module to wait for, one per library with a parser; empty on ranks
    other than 0, and on errors."""
    try:
        from importlib.util import module_from_spec, spec_from_file_location

        spec: Any = spec_from_file_location("autotune_probe.secret_names", os.environ[ASKED])
        secrets = module_from_spec(spec)
        spec.loader.exec_module(secrets)
        return {} if launched_rank() else dict.fromkeys(PARSERS, _Parsers(reports, secrets).listen)
    except Exception:  # options are then read from the source only
        return {}


class _Parsers:
    """Wraps the parsers of this process and reports the options of its command."""

    def __init__(self, reports: Any, secrets: Any) -> None:
        self._reports, self._secrets = reports, secrets
        self._parsing_modules: list[Any] = []
        """modules whose parsers are parsing the command now: a nested parser of the same library is
        a subparser, one of another library a tool of it"""
        self._left_over: Any = None
        """the words that the last parser left over, which may be passed to the next one, even if
        empty"""
        self._reported: set[str] = set()
        self._parses = 0

    def listen(self, module: Any) -> None:
        """Wraps a library's parsing functions."""
        for what, words, options in PARSERS[module.__name__]:
            try:
                owner, _, name = what.rpartition(".")
                self._wrap(
                    module, getattr(module, owner) if owner else module, name, words, options
                )
            except Exception:  # another release: options are then read from the source only
                continue

    def _wrap(self, module: Any, holder: Any, name: str, words: Words, options: Options) -> None:
        from functools import wraps

        original = vars(holder)[name]
        is_static = isinstance(original, staticmethod)
        parse = original.__func__ if is_static else original

        @wraps(parse)
        def parsing(*given: Any, **named: Any) -> Any:
            is_own = bool(self._parsing_modules) or self._is_command(words, given, named)
            self._parsing_modules += [module] * is_own
            try:
                result = parse(*given, **named)
            finally:
                del self._parsing_modules[len(self._parsing_modules) - is_own :]
            is_tool = any(each is not module for each in self._parsing_modules)
            if is_own and not is_tool and self._parses < MOST_PARSES:
                self._parses += 1
                self._report(module, options, (*given, *named.values()), result)
            elif self._parses >= MOST_PARSES and getattr(holder, name) is parsing:
                setattr(holder, name, original)
            return result

        setattr(holder, name, staticmethod(parsing) if is_static else parsing)

    def _is_command(self, words: Words, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
        """Whether the call parses words of the program's command: all, a part, or the command with
        additions (from a file). Libraries also parse other words, to get defaults."""
        try:
            read, own = words(*given, **named), sys.argv[1:]
            if read is None or read is self._left_over or read == own:
                return True
            if not isinstance(read, (list, tuple)) or not read or not own:
                return False
            words_read, own_words = _normalized(read), _normalized(own)
            return words_read <= own_words or own_words <= words_read
        except Exception:  # not words: the parser reports that itself
            return False

    def _report(self, module: Any, options: Options, given: tuple[Any, ...], result: Any) -> None:
        try:
            if type(result) is tuple:
                self._left_over = result[-1]
            reports = [*self._new_options(module, options(module, given, result))]
            for start in range(0, len(reports), AT_ONCE):
                self._reports.send(
                    "options", program=program(), options=reports[start : start + AT_ONCE]
                )
        except Exception:  # an unknown kind of parser: options are then read from the source only
            return

    def _new_options(
        self, module: Any, options: Iterable[dict[str, Any]]
    ) -> Iterator[dict[str, Any]]:
        """Yields reports of options not reported before, up to `MOST_OPTIONS`."""
        for option in options:
            names, dest = option["names"][:MOST_NAMES], option["dest"]
            key = names[0] if names else dest
            is_known = key in self._reported or len(self._reported) >= MOST_OPTIONS
            if not is_known and max(map(len, (dest, *names))) <= MOST_CHARACTERS:
                self._reported.add(key)
                parser = module.__name__.partition(".")[0]
                yield self._secrets.masked({"parser": parser, **self._report_of(names, option)})

    def _report_of(self, names: list[str], option: dict[str, Any]) -> dict[str, Any]:
        words = _normalized(word.partition("=")[0] for word in sys.argv[1:])
        spelled = _normalized(filter(None, (*option["names"], option.get("off"))))
        report = {
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
            report["off"] = str(option["off"])[:MOST_CHARACTERS]
        if not any(map(self._secrets.is_secret_name, (option["dest"], *names))):
            values = {name: option[name] for name in _VALUES if name in option}
            values["choices"] = _few(values.get("choices"))
            values = {name: _plain(value) for name, value in values.items()}
            report.update({name: value for name, value in values.items() if _is_short(value)})
        return report


def _normalized(words: Iterable[str]) -> set[str]:
    """The words with `_` replaced by `-`, which click, tyro and fire do not distinguish, and
    without Hydra's signs."""
    return {word.lstrip("+~").replace("_", "-") for word in words}


def _few(values: Any) -> list[Any] | None:
    """At most `MOST_VALUES` + 1 choices; the additional one shows that there are more. None if they
    cannot be listed."""
    from itertools import islice

    try:
        # an iterator is not consumed
        can_list = values is not None and iter(values) is not values
        return list(map(_plain, islice(values, MOST_VALUES + 1))) if can_list else None
    except TypeError:  # a container that cannot be iterated
        return None


def _plain(value: Any) -> Any:
    """A path as a string, an enumeration's member as its word or number, a tuple as a list; other
    values unchanged."""
    if type(value) is tuple:
        return list(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    of_enumeration = isinstance(value, (str, int, float)) and type(value) is not bool
    return getattr(value, "value", value) if of_enumeration else value


def _is_short(value: Any) -> bool:
    """Whether a value is short and unchanged by JSON."""
    if type(value) is list:
        is_flat = not any(type(each) is list for each in value)
        return is_flat and len(value) <= MOST_VALUES and all(map(_is_short, value))
    if type(value) is str:
        return len(value) <= MOST_CHARACTERS
    is_number = type(value) is int or (type(value) is float and value - value == 0)
    return value is None or type(value) is bool or (is_number and abs(value) < 1 << 63)
