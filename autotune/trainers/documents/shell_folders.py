"""The folder in which a command of a shell script runs, by the `cd`, `pushd` and `popd` before it.

    ""                       where the script is started
    src                      from there
    $(dirname $0)/..         from where the script lies, in whichever way it says that
    $ROOT/src                nobody knows: the script does not set ROOT

A subshell leaves the folder at its end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

OF_SCRIPT = "$(dirname $0)"
"""stands for the folder of the script"""
_SELF = r"[\"']?\$(?:0|\{0\}|BASH_SOURCE\b|\{BASH_SOURCE(?:\[0\])?(?::-\$0)?\})[\"']?"
_REAL = rf"(?:{_SELF}|[\"']?\$\((?:realpath|readlink(?: -[a-z]+)+)(?: -[a-z]+)*(?: --)? {_SELF}\)[\"']?)"
_OWN = re.compile(
    rf"\$\(\s*dirname(?: --)? {_REAL}\s*\)|`\s*dirname(?: --)? {_SELF}\s*`|\$\{{(?:0|BASH_SOURCE(?:\[0\])?)%/\*\}}"
)
_ENTERED = re.compile(
    r"\$\(\s*(?:builtin )?cd (?:-P |-- )?[\"']?(\$\(dirname \$0\)[\w./-]*)[\"']?\s*(?:&?>\s*/dev/null\s*)?(?:2>&1\s*)?(?:&&|;)\s*"
    r"pwd(?: -[PL])?\s*\)|\$\((?:realpath|readlink(?: -[a-z]+)+) [\"']?(\$\(dirname \$0\)[\w./-]*)[\"']?\)"
)
_START = re.compile(
    r"`pwd`|\$\(pwd\)|\$PWD\b|\$\{PWD\}|\$\{?(?:SLURM_SUBMIT_DIR|PBS_O_WORKDIR|LS_SUBCWD)\b\}?"
)


def with_plain_folders(text: str) -> str:
    """The script with one way each to say its own folder and the one in which it is started."""
    own = _OWN.sub(lambda _: OF_SCRIPT, text)
    return _START.sub(".", _ENTERED.sub(lambda found: found[1] or found[2], own))


@final
@dataclass(slots=True)
class Folders:
    """The folder while the statements of a script are followed."""

    now: str = ""
    """the present one"""
    _last: str = ""
    _pushed: list[str] = field(default_factory=list)
    _outside: list[str] = field(default_factory=list)
    """of the subshells that are open"""

    def open(self) -> None:
        """A subshell begins."""
        self._outside.append(self.now)

    def close(self) -> None:
        """A subshell ends, or what looks like it."""
        if self._outside:
            self.now = self._outside.pop()

    def follow(self, words: Sequence[str]) -> bool:
        """Whether the command changes the folder; its words with the variables in them put in."""
        if words[:1] not in (("cd",), ("pushd",), ("popd",)):
            return False
        told = [word for word in words[1:] if word == "-" or not word.startswith("-")]
        before = self.now
        if words[0] == "popd":
            self.now = self._pushed.pop() if self._pushed else self.now
        elif told[:1] == ["-"]:
            self.now = self._last
        else:
            if words[0] == "pushd":
                self._pushed.append(self.now)
            self.now = joined(self.now, " ".join(told) or "~")
        self._last = before
        return True


def joined(folder: str, more: str) -> str:
    """Where `cd more` leads from a folder."""
    if more.startswith(("/", "~", "$", "`")) or not folder:
        return more.removeprefix("./")
    return folder if more in (".", "./") else f"{folder}/{more.removeprefix('./')}"
