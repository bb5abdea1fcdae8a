"""Find and mask secrets in the values that a spec passes to its program.

A value is secret because of its name (a variable, an option, a file key, a URL parameter, a header)
or its position: the text before the `@` in a URL. The launches of trials and of the owner's exports
are never changed. Everything else that displays a study shows `***`. The value `from-environment`
is not a secret, because the variable's value is taken from the environment of the process that runs
the trial.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"
FROM_ENVIRONMENT = "from-environment"
"""value in `env` for a variable that is taken from the environment of the process that runs the
trial and is not stored"""
MIN_LENGTH = 6
"""minimum length of a secret that is searched for in other texts, such as a log: shorter secrets
could be ordinary words or numbers"""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ALWAYS = frozenset({"secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential", "credentials", "authorization", "apikey", "jwt", "pword"})  # fmt: skip
_AT_THE_END = frozenset({"auth", "bearer", "cookie", "cookies", "pgpass", "userpass", "dbpass"})
"""words that mark a secret at the end of a name"""
_PASS_OVER_DATA = frozenset(
    {"forward", "backward", "fwd", "bwd", "single", "multi", "one", "two", "first", "second", "last", "num", "per", "max", "min", "extra", "by", "training", "data"}
)  # fmt: skip
"""words before `pass` that make it a pass over data"""
_KEY_OF_DATA = frozenset(
    {"text", "sort", "group", "label", "labels", "image", "data", "dataset", "column", "json", "input", "output", "target", "prompt", "response",
     "primary", "cache", "metric", "monitor", "num", "query", "batch", "public"}
)  # fmt: skip
"""words before `key` that make it the name of a column or a position"""
_TEXT_TOKEN = frozenset(
    {"pad", "eos", "bos", "unk", "sep", "cls", "mask", "image", "audio", "video", "special", "stop", "start", "end", "max", "min", "num", "per", "new",
     "train", "total", "begin", "begins", "target", "warmup", "added", "prompt", "decoder"}
)  # fmt: skip
"""words before `token` that make it a token of a text"""
_VALUE = r"""("[^"\n]*"|'[^'\n]*'|[^\s"',;&]+)"""
_NAMED = re.compile(rf"(?P<name>[A-Za-z_][\w.-]*)(?P<sign>['\"]?\s?[=:]\s?){_VALUE}")
_HEADER = re.compile(r"\b(?:Bearer|Basic)\s+([A-Za-z0-9._~+/=-]{6,})", re.IGNORECASE)
_USER = re.compile(r"\b[a-zA-Z][a-zA-Z0-9+.-]*://(?:[^\s/@:'\"]*:)?([^\s/@'\"]+)@")
_NOT_A_SECRET = re.compile(
    r"\{[^{}]*\}|\$\{?\w+\}?|\*+|true|false|null|none|yes|no|" + FROM_ENVIRONMENT, re.IGNORECASE
)
"""placeholders, shell variables, flags, and values that are already masked"""


def is_secret_name(name: str) -> bool:
    """Return whether a value with this name is a secret, by the words in the name."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    if any(word in _ALWAYS or word.endswith(("password", "passwd")) for word in words):
        return True
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in ("key", "keys"):
        return before not in _KEY_OF_DATA
    if last in ("token", "tokens"):
        return before not in _TEXT_TOKEN and not (last == "tokens" and not before)
    if last in ("pass", "pat"):
        return bool(before) and before not in _PASS_OVER_DATA
    return last in _AT_THE_END or (before, last) in (("connection", "string"), ("sas", "signature"))


def masked(value: Any) -> Any:
    """Return the plain value with `***` in place of each secret."""
    return _Mask().of(value)


def secrets_of(*values: Any) -> frozenset[str]:
    """Return the secrets in plain values that have at least `MIN_LENGTH` characters."""
    mask = _Mask()
    for value in values:
        mask.of(value)
    return frozenset(secret for secret in mask.secrets if len(secret) >= MIN_LENGTH)


def secret_places(value: Any) -> tuple[str, ...]:
    """Return the names of values that are secrets, in order."""
    mask = _Mask()
    mask.of(value)
    return tuple(dict.fromkeys(mask.names))


def without(secrets: Iterable[str], value: Any) -> Any:
    """Return the plain value with `***` in place of each of these texts."""
    if not secrets:
        return value
    pattern = re.compile("|".join(map(re.escape, sorted(secrets, key=len, reverse=True))))

    def clean(part: Any) -> Any:
        if isinstance(part, str):
            return pattern.sub(MASK, part)
        if isinstance(part, Mapping):
            return {clean(key): clean(item) for key, item in part.items()}
        if isinstance(part, list | tuple):
            return type(part)(map(clean, part))
        return part

    return clean(value)


class _Mask:
    """Masks secrets in values, and records them."""

    def __init__(self) -> None:
        self.secrets: list[str] = []
        """the masked values"""
        self.names: list[str] = []
        """the names of the masked values"""

    def of(self, value: Any) -> Any:
        """Return the value with its secrets masked."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {name: self._named(str(name), item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._arguments(value))
        return value

    def _arguments(self, values: Iterable[Any]) -> Iterable[Any]:
        """Yield the items of a list. The item after an option with a secret's name is masked."""
        option = ""
        for value in values:
            is_option = isinstance(value, str) and value.startswith("-")
            yield self._named(option, value) if option and not is_option else self.of(value)
            option = (
                value.lstrip("-")
                if is_option and "=" not in value and is_secret_name(value)
                else ""
            )

    def _named(self, name: str, value: Any) -> Any:
        """Return the value of a name, which is masked if the name is a secret's."""
        if not is_secret_name(name):
            return self.of(value)
        if isinstance(value, Mapping):
            return {inner: self._named(name, item) for inner, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._named(name, item) for item in value)
        return (
            self._masked(name, value)
            if isinstance(value, str | int | float) and not isinstance(value, bool)
            else value
        )

    def _masked(self, name: str, value: Any) -> Any:
        """Return the mask, and record the value; placeholders and numbers of tokens are
        unchanged."""
        text = str(value)
        is_count = text.replace(".", "", 1).isdigit() and _WORDS.findall(name)[-1:] == ["tokens"]
        if not text or is_count or _NOT_A_SECRET.fullmatch(text):
            return value
        self.secrets.append(text)
        self.names.append(name)
        return MASK

    def _text(self, text: str) -> str:
        """Return the text with masked users in URLs, headers, and values of NAME=VALUE."""
        text = _USER.sub(lambda match: self._group(match, 1, "the user of a URL"), text)
        text = _HEADER.sub(lambda match: self._group(match, 1, "a header"), text)
        return _NAMED.sub(self._pair, text)

    def _pair(self, match: re.Match[str]) -> str:
        """Return a match of `_NAMED` with its value masked. A value may be a pair itself, such as
        the first parameter of a URL."""
        name = match["name"]
        return (
            self._group(match, 3, name)
            if is_secret_name(name)
            else match[0][: match.start(3) - match.start()] + _NAMED.sub(self._pair, match[3])
        )

    def _group(self, match: re.Match[str], group: int, name: str) -> str:
        """Return the match with this group masked."""
        start, end = match.start(group) - match.start(), match.end(group) - match.start()
        value = match[group].strip("\"'")
        masked = self._masked(name, value)
        return (
            match[0][:start] + match[group].replace(value, str(masked), 1) + match[0][end:]
            if value
            else match[0]
        )
