"""The words that say where a launch writes, as it was seen to write: trials have their own folder
in their place, an exported launch has the user's.

    --ckpt_dir=ckpts    as launched, in a variable or in a file      --ckpt_dir={trial_dir}; `training` has what stood there
    ckpts               the default of an option that is not given   --ckpt_dir={trial_dir}; `training` leaves it out

A value is taken that is the path of what the run wrote outside of its own folder, or of a folder
around that. What a program may also read is left alone: a name that says so (`--data_dir`), and a
folder that holds more than was written, unless its name is that of an output.
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
"""files of a folder that are looked at"""


def with_own_outputs(draft: Draft, seen: ProgramSeen, folder: Path) -> tuple[Draft, list[str]]:
    """(the draft whose trials write into their own folder, the files that they would still write
    elsewhere). `folder`: of the spec."""
    if (argv := draft.at("trainer.argv")) is None:
        return draft, list(seen.files)
    cwd = (folder / str(draft.value("trainer.cwd") or ".")).resolve()
    found = _Outputs(cwd, list(seen.files))
    found.look_at(seen, draft, argv.items)
    if not found.training:
        return draft, list(seen.files)
    draft = draft.edited("trainer.argv", items=tuple(found.items))
    for path, more in (("trainer.env", found.env), ("trainer.files", found.documents)):
        draft = draft.edited(path, value=merged(draft.value(path), more))
    training = merged(draft.value("trainer.training"), found.training)
    comment = "values that launch.sh uses instead; null omits the argument"
    draft = draft.put("trainer.training", Entry(key="training", value=training, comment=comment))
    return draft, [file for file in seen.files if file not in found.covered]


@final
@dataclass(slots=True)
class _Outputs:
    """What is told in place of paths that the run wrote to."""

    cwd: Path
    files: list[str]
    """what it wrote, as absolute paths"""
    covered: set[str] = field(default_factory=set)
    """those of them that a trial has in its own folder"""
    items: list[Item] = field(default_factory=list)
    env: dict[str, Any] = field(default_factory=dict)
    documents: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)

    def look_at(self, seen: ProgramSeen, draft: Draft, words: Sequence[Item]) -> None:
        """Looks for them among the words of the command, its variables and files, and the options
        that it is not given."""
        name = ""
        for item in words:
            word = _WORD.fullmatch(item.value)
            key, value = (word[1], word[2]) if word else (name, item.value)
            own = self._own(key, value) if key else None
            if own is not None:
                told = f"{key}={own}" if word else own
                self.training[told] = item.value
                item = Item(told, self._why(value, item.comment))
            self.items.append(item)
            name = item.value if re.fullmatch(r"--?[A-Za-z][\w.-]*", item.value) else ""
        given = " ".join(item.value for item in self.items)
        for option in said_options(seen.options):
            value, is_told = option.present, not option.prefix or option.prefix in given
            if is_told or option.given or not isinstance(value, str):
                continue
            if (own := self._own(option.name, value)) is not None:
                told = f"{option.prefix}{own}"
                self.training[told] = None
                self.items.append(Item(told, self._why(value, f"default {value}")))
        self.env = self._owned(draft.value("trainer.env"), self.training)
        for file, document in draft.value("trainer.files").items():
            theirs: dict[str, Any] = {}
            if own_values := self._owned(dict(flat(document)), theirs):
                self.documents[file], self.training[file] = nested(own_values), nested(theirs)

    def _owned(self, values: Mapping[str, Any], theirs: dict[str, Any]) -> dict[str, str]:
        """What a trial has in place of such values, by name; `theirs` gets the values
        themselves."""
        texts = ((name, value) for name, value in values.items() if isinstance(value, str))
        found = {name: own for name, value in texts if (own := self._own(name, value)) is not None}
        theirs |= {name: values[name] for name in found}
        return found

    def _own(self, name: str, value: str) -> str | None:
        """What a trial has in place of the value; None where the run wrote nothing there, or may
        read there."""
        name = name.lstrip("-+").replace("-", "_").rpartition(".")[2].lower()
        path = os.path.normpath(self.cwd / value) if value else ""
        is_around = f"{self.cwd}{os.sep}".startswith(path + os.sep)
        if "{" in value or not path or is_around or _READ.search(name):
            return None
        inside = [file for file in self.files if file.startswith(path + os.sep)]
        beside = [file for file in self.files if file.startswith(path)]
        if not beside or not (_WRITTEN.search(name) or self._holds_only(path, beside)):
            return None
        first = not self.covered
        self.covered.update(beside)
        if not inside:
            return f"{TRIAL_DIR}/{braced(os.path.basename(path))}"
        # two folders may have files of one name
        return TRIAL_DIR if first else f"{TRIAL_DIR}/{name}"

    def _holds_only(self, path: str, written: list[str]) -> bool:
        """Whether nothing lies there but what the run wrote."""
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
        said = comment.partition("; each trial")[0]
        why = f"the program wrote into {value}; each trial has its own folder"
        return ", ".join(filter(None, (said, why)))
