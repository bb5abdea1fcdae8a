"""The folder in which a command of a shell script runs, by the `cd`, `pushd` and `popd` before it.

    ""                       where the script is started
    src                      relative to that
    $(dirname $0)/..         relative to the script's own folder, however the script refers to it
    $ROOT/src                unknown: the script does not set ROOT

At the end of a subshell, the folder before it is current again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

OF_SCRIPT = "$(dirname $0)"
"""notation for the folder of the script"""
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
    """The script with one notation each for its own folder and for the folder in which it is
    started."""
    own = _OWN.sub(lambda _: OF_SCRIPT, text)
    return _START.sub(".", _ENTERED.sub(lambda found: found[1] or found[2], own))


@final
@dataclass(slots=True)
class Folders:
    """The current folder while a script's statements are processed."""

    now: str = ""
    """the current folder"""
    _last: str = ""
    _pushed: list[str] = field(default_factory=list)
    _outside: list[str] = field(default_factory=list)
    """folders before the open subshells"""

    def open(self) -> None:
        """Begins a subshell."""
        self._outside.append(self.now)

    def close(self) -> None:
        """Ends a subshell; ignored if none is open."""
        if self._outside:
            self.now = self._outside.pop()

    def follow(self, words: Sequence[str]) -> bool:
        """Processes a command that changes the folder; False for any other command. `words`: with
        variables expanded."""
        if words[:1] not in (("cd",), ("pushd",), ("popd",)):
            return False
        arguments = [word for word in words[1:] if word == "-" or not word.startswith("-")]
        before = self.now
        if words[0] == "popd":
            self.now = self._pushed.pop() if self._pushed else self.now
        elif arguments[:1] == ["-"]:
            self.now = self._last
        else:
            if words[0] == "pushd":
                self._pushed.append(self.now)
            self.now = joined(self.now, " ".join(arguments) or "~")
        self._last = before
        return True


def joined(folder: str, more: str) -> str:
    """The folder to which `cd more` leads from `folder`."""
    if more.startswith(("/", "~", "$", "`")) or not folder:
        return more.removeprefix("./")
    return folder if more in (".", "./") else f"{folder}/{more.removeprefix('./')}"
