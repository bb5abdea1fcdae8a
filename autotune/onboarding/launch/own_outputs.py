"""Replaces the paths that the observed run wrote to by the trial's own folder. An exported launch
keeps the user's paths.

    --ckpt_dir=ckpts    as launched, in a variable or in a file      --ckpt_dir={trial_dir}; `training` has the user's value
    ckpts               the default of an option that is not passed  --ckpt_dir={trial_dir}; `training` omits the argument

A value is replaced if it is the path of something that the run wrote outside of its own folder, or
of a folder around that. Paths that the program may also read are kept: if the name says so
(`--data_dir`), or if a folder contains more than the run wrote, unless its name is that of an
output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from autotune.onboarding.draft import Draft, Entry, Item
from autotune.onboarding.launch.given_options import said_options
from autotune.ports import ProgramSeen
from autotune.trainers.documents.placeholders import braced
from autotune.trainers.present_configuration import flat, merged, nested

TRIAL_DIR = "{trial_dir}"
_READ = re.compile("data|corpus|cache|token|vocab|config|resume|load|pretrain|init")
_WRITTEN = re.compile(
    r"(^|_)(out|outputs?|outdir|save|saved|ckpts?|checkpoints?|logs?|logging|logdir|results?|runs?|exp|experiments?|work|workdir|dump|"
    r"artifacts?|tb|tensorboard|wandb|snapshots?|dest|dirpath|summary|default_root)(_|$)"
)
_WORD = re.compile(r"(--?[\w.-]+|\+{0,2}[\w.]+)=(.*)", re.DOTALL)
MOST_LOOKED_AT = 1000
"""maximum number of files of a folder that are checked"""


def with_own_outputs(draft: Draft, seen: ProgramSeen, folder: Path) -> tuple[Draft, list[str]]:
    """(the draft whose trials write into their own folder, the files that they would still write
    elsewhere). `folder`: the folder of the spec."""
    if (argv := draft.at("trainer.argv")) is None:
        return draft, list(seen.files)
    cwd = (folder / str(draft.value("trainer.cwd") or ".")).resolve()
    found = _Outputs(cwd, list(seen.files))
    found.look_at(seen, draft, argv.items)
    if not found.training:
        return draft, list(seen.files)
    draft = draft.edited("trainer.argv", items=tuple(found.items))
    for path, replacements in (("trainer.env", found.env), ("trainer.files", found.documents)):
        draft = draft.edited(path, value=merged(draft.value(path), replacements))
    training = merged(draft.value("trainer.training"), found.training)
    comment = "values that launch.sh uses instead; null omits the argument"
    draft = draft.put("trainer.training", Entry(key="training", value=training, comment=comment))
    return draft, [file for file in seen.files if file not in found.covered]


@final
@dataclass(slots=True)
class _Outputs:
    """Replacements for paths that the run wrote to."""

    cwd: Path
    files: list[str]
    """files that the run wrote, as absolute paths"""
    covered: set[str] = field(default_factory=set)
    """those of them that trials write into their own folder"""
    items: list[Item] = field(default_factory=list)
    env: dict[str, Any] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    def look_at(self, seen: ProgramSeen, draft: Draft, words: Sequence[Item]) -> None:
        """Collects replacements for arguments of the command, its variables and files, and defaults
        of options that it does not pass."""
        name = ""
        for item in words:
            word = _WORD.fullmatch(item.value)
            key, value = (word[1], word[2]) if word else (name, item.value)
            own = self._own(key, value) if key else None
            if own is not None:
                replacement = f"{key}={own}" if word else own
                self.training[replacement] = item.value
                item = Item(replacement, self._why(value, item.comment))
            self.items.append(item)
            name = item.value if re.fullmatch(r"--?[A-Za-z][\w.-]*", item.value) else ""
        given = " ".join(item.value for item in self.items)
        for option in said_options(seen.options):
            value, is_passed = option.present, not option.prefix or option.prefix in given
            if is_passed or option.given or not isinstance(value, str):
                continue
            if (own := self._own(option.name, value)) is not None:
                replacement = f"{option.prefix}{own}"
                self.training[replacement] = None
                self.items.append(Item(replacement, self._why(value, f"default {value}")))
        self.env = self._owned(draft.value("trainer.env"), self.training)
        for file, document in draft.value("trainer.files").items():
            users_values: dict[str, Any] = {}
            if own_values := self._owned(dict(flat(document)), users_values):
                self.documents[file], self.training[file] = nested(own_values), nested(users_values)

    def _owned(self, values: Mapping[str, Any], originals: dict[str, Any]) -> dict[str, str]:
        """Replacements by name. Adds the original values to `theirs`."""
        texts = ((name, value) for name, value in values.items() if isinstance(value, str))
        found = {
            name: replacement
            for name, value in texts
            if (replacement := self._own(name, value)) is not None
        }
        originals |= {name: values[name] for name in found}
        return found

    def _own(self, name: str, value: str) -> str | None:
        """The replacement for a value; None if the run wrote nothing there, or may read there."""
        name = name.lstrip("-+").replace("-", "_").rpartition(".")[2].lower()
        path = os.path.normpath(self.cwd / value) if value else ""
        is_around = f"{self.cwd}{os.sep}".startswith(path + os.sep)
        if "{" in value or not path or is_around or _READ.search(name):
            return None
        inside = [file for file in self.files if file.startswith(path + os.sep)]
        written = [file for file in self.files if file.startswith(path)]
        if not written or not (_WRITTEN.search(name) or self._holds_only(path, written)):
            return None
        is_first = not self.covered
        self.covered.update(written)
        if not inside:
            return f"{TRIAL_DIR}/{braced(os.path.basename(path))}"
        # two folders may contain files of the same name
        return TRIAL_DIR if is_first else f"{TRIAL_DIR}/{name}"

    def _holds_only(self, path: str, written: list[str]) -> bool:
        """Whether a folder contains nothing but what the run wrote."""
        known = set(written)
        looked = 0
        for top, _, names in os.walk(path):
            looked += len(names)
            if looked > MOST_LOOKED_AT or not known.issuperset(
                os.path.join(top, name) for name in names
            ):
                return False
        return True

    def _why(self, value: str, comment: str) -> str:
        """The comment of a replaced value."""
        source = comment.partition("; each trial")[0]
        reason = f"the program wrote into {value}; each trial has its own folder"
        return ", ".join(filter(None, (source, reason)))
