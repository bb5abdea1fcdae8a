"""The options of the program's own command line, as its parser has them: told once, when argparse has read the command.

Only where ASKED names a file: the rules by which a name is that of a secret. HfArgumentParser, configargparse and simple_parsing read by argparse's public method; tyro and
jsonargparse do not, so nothing is told of them. A parser that hands the command to one of its subparsers is not told either: its own options stand before the subparser's name.

    names, dest, action, type, nargs, help    of the action; `action`: the class of argparse that it is or derives from
    required, given                           whether it must be given; whether a word of the command is one of its names
    default, const, choices, value            plain and short values alone; none of them where the name is that of a secret. `value`: what came of the command
"""

from __future__ import annotations

import os
import sys

from .model_facts import launched_rank, program

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` takes milliseconds that a program may not spend
    from collections.abc import Iterator
    from typing import Any

ASKED = "AUTOTUNE_PROBE_OPTIONS"
MOST_PARSES, MOST_OPTIONS = 16, 800
MOST_NAMES, MOST_VALUES, MOST_CHARACTERS = 4, 16, 64
AT_ONCE = 8
"""options of a report: a line must be shorter than what a keeper reads at once"""
_UNTOLD = ("_HelpAction", "_VersionAction")


def watch(argparse: Any, reports: Any) -> None:
    """Begins to listen to its parsers."""
    try:
        from importlib.util import module_from_spec, spec_from_file_location

        spec: Any = spec_from_file_location("autotune_probe.secret_names", os.environ[ASKED])
        secrets = module_from_spec(spec)
        spec.loader.exec_module(secrets)
        if not launched_rank():
            _Parsers(argparse, reports, secrets).listen()
    except Exception:  # what is read of the source stays
        return


class _Parsers:
    """What the parsers of this process were told by its command."""

    def __init__(self, argparse: Any, reports: Any, secrets: Any) -> None:
        self._argparse, self._reports, self._secrets = argparse, reports, secrets
        self._depth = 0
        """parsers that read the command now: one within another is a subparser"""
        self._rest: Any = None
        """the words that the last one left over: the next one may be given these, even if there are none"""
        self._told: set[str] = set()
        self._parses = 0

    def listen(self) -> None:
        from functools import wraps

        kind = self._argparse.ArgumentParser
        read = kind.parse_known_args

        @wraps(read)
        def parse_known_args(parser: Any, *given: Any, **named: Any) -> Any:
            is_own = bool(self._depth) or self._is_command(given[0] if given else named.get("args"))
            self._depth += is_own
            try:
                found = read(parser, *given, **named)
            finally:
                self._depth -= is_own
            if is_own and self._parses < MOST_PARSES:
                self._parses += 1
                self._tell(parser, found)
            elif self._parses >= MOST_PARSES and kind.parse_known_args is parse_known_args:
                kind.parse_known_args = read
            return found

        kind.parse_known_args = parse_known_args

    def _is_command(self, words: Any) -> bool:
        """Whether these are words of the program's own command, all or a part, or the whole command and more (of a file). Libraries parse others, to get defaults."""
        try:
            own = sys.argv[1:]
            if words is None or words is self._rest or words == own:
                return True
            if not isinstance(words, (list, tuple)) or not words or not own:
                return False
            return set(words) <= set(own) or set(own) <= set(words)
        except Exception:  # words that are no words: the parser says so itself
            return False

    def _tell(self, parser: Any, found: Any) -> None:
        try:
            namespace, self._rest = found
            actions = list(parser._actions)
            if any(isinstance(each, self._argparse._SubParsersAction) for each in actions):
                return
            options = [
                option for action in actions for option in self._described(action, namespace)
            ]
            for start in range(0, len(options), AT_ONCE):
                told = options[start : start + AT_ONCE]
                self._reports.send("options", program=program(), options=told)
        except Exception:  # a parser of another make: what is read of the source stays
            return

    def _described(self, action: Any, namespace: Any) -> Iterator[dict[str, Any]]:
        """The one option of the action; nothing where it is known, or one too many."""
        kinds = type(action).__mro__
        of = next(each.__name__ for each in kinds if each.__module__ == self._argparse.__name__)
        names = list(map(str, action.option_strings))[:MOST_NAMES]
        dest = str(action.dest)
        key = names[0] if names else dest
        shown = (dest, *names)
        is_known = key in self._told or of in _UNTOLD or len(self._told) >= MOST_OPTIONS
        if is_known or max(map(len, shown)) > MOST_CHARACTERS:
            return
        self._told.add(key)
        words = {word.partition("=")[0] for word in sys.argv[1:]}
        told = {
            "names": names,
            "dest": dest,
            "action": of,
            "type": str(getattr(action.type, "__name__", ""))[:MOST_CHARACTERS],
            "nargs": action.nargs if isinstance(action.nargs, (int, str)) else None,
            "help": str(action.help or "").strip().partition("\n")[0][:MOST_CHARACTERS],
            "required": bool(action.required),
            "given": not words.isdisjoint(action.option_strings),
        }
        if not any(map(self._secrets.is_secret_name, shown)):
            values = {
                "default": action.default,
                "const": action.const,
                "choices": _few(action.choices),
                "value": getattr(namespace, dest, None),
            }
            values = {name: _plain(value) for name, value in values.items()}
            told.update({name: value for name, value in values.items() if _is_short(value)})
        yield self._secrets.masked(told)


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
    """The value of an enumeration of words or numbers; any other as it is."""
    if type(value) is tuple:
        return list(value)
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
