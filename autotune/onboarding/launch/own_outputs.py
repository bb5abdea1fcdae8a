"""The words that say where a launch writes, as it was seen to write: trials have their own folder in their place, an exported launch has the user's.

    --ckpt_dir=ckpts    as launched, in a variable or in a file      --ckpt_dir={trial_dir}; `training` has what stood there
    ckpts               the default of an option that is not given   --ckpt_dir={trial_dir}; `training` leaves it out

A value is taken that is the path of what the run wrote outside of its own folder, or of a folder around that. What a program may also read is left alone: a name that
says so (`--data_dir`), and a folder that holds more than was written, unless its name is that of an output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from autotune.onboarding.draft import Draft, Entry, Item
from autotune.onboarding.script.said_options import said_options
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
    """(the draft whose trials write into their own folder, the files that they would still write elsewhere). `folder`: of the spec."""
    trainer = next((entry for entry in draft.entries if entry.key == "trainer"), None)
    parts = {part.key: part for part in trainer.parts} if trainer else {}
    if trainer is None or "argv" not in parts:
        return draft, list(seen.files)
    cwd = (folder / str(parts["cwd"].value)).resolve() if "cwd" in parts else folder.resolve()
    found = _Outputs(cwd, list(seen.files))
    found.look_at(seen, parts)
    if not found.training:
        return draft, list(seen.files)
    own = {key: replace(part, **found.told(part)) for key, part in parts.items()}
    before = parts["training"].value if "training" in parts else {}
    comment = "what launch.sh uses instead; null omits the argument"
    own["training"] = Entry(key="training", value=merged(before, found.training), comment=comment)
    order = [*parts, *(["training"] if "training" not in parts else [])]
    changed = replace(trainer, parts=tuple(own[key] for key in order))
    entries = tuple(changed if entry is trainer else entry for entry in draft.entries)
    rest = [file for file in seen.files if file not in found.covered]
    return replace(draft, entries=entries), rest


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

    def look_at(self, seen: ProgramSeen, parts: Mapping[str, Entry]) -> None:
        """Looks for them among the words of the command, its variables and files, and the options that it is not given."""
        name = ""
        for item in parts["argv"].items:
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
            value = option.present
            if not isinstance(value, str) or not option.prefix or option.prefix in given:
                continue
            if not option.given and (own := self._own(option.name, value)) is not None:
                told = f"{option.prefix}{own}"
                self.training[told] = None
                self.items.append(Item(told, self._why(value, f"default {value}")))
        for variable, value in (parts["env"].value if "env" in parts else {}).items():
            if isinstance(value, str) and (own := self._own(variable, value)) is not None:
                self.env[variable], self.training[variable] = own, value
        for file, document in (parts["files"].value if "files" in parts else {}).items():
            texts = ((path, each) for path, each in flat(document) if isinstance(each, str))
            inside = {path: (own, each) for path, each in texts if (own := self._own(path, each))}
            if inside:
                self.documents[file] = nested({path: own for path, (own, _) in inside.items()})
                self.training[file] = nested({path: each for path, (_, each) in inside.items()})

    def told(self, part: Entry) -> dict[str, Any]:
        """What changes of a part of the trainer."""
        if part.key == "argv":
            return {"items": tuple(self.items)}
        more = {"env": self.env, "files": self.documents}.get(part.key)
        return {"value": merged(part.value, more)} if more else {}

    def _own(self, name: str, value: str) -> str | None:
        """What a trial has in place of the value; None where the run wrote nothing there, or may read there."""
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
        why = f"it wrote into {value}; each trial has its own folder"
        return ", ".join(filter(None, (said, why)))
