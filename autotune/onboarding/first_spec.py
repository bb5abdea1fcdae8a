"""`autotune init`: a script or a trainer's configuration as the draft of a spec."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from autotune.errors import SpecError
from autotune.onboarding.configuration_files import importing_trainers, read_present, recognized
from autotune.onboarding.draft import Draft
from autotune.onboarding.imported_spec import import_draft
from autotune.onboarding.script import read_script
from autotune.onboarding.script_spec import script_draft
from autotune.onboarding.settings_program import settings_draft, settings_program
from autotune.trainers.nested_documents import parse_document
from autotune.trainers.present_configuration import PresentConfiguration
from autotune.trainers.readers.shell_words import command_of

SHELL_SCRIPTS = frozenset({".sh", ".bash", ".slurm", ".sbatch", ".job", ".pbs"})
"""endings of scripts that start programs"""


def first_draft(path: Path, *, model: str | None = None, cluster: str | None = None, folder: Path) -> Draft:
    """The draft for the file; `folder`: of the spec. Raises `SpecError` for a file that is neither."""
    present = read_present(path)
    name = recognized(present)
    if path.suffix == ".py":
        script = read_script(path.name, present.files[path.name])
        if name is not None and not script.options:  # torchtitan's configuration is Python, too
            with suppress(SpecError):
                return _imported(present, name, path, model=model, cluster=cluster, folder=folder)
        return script_draft(script, path, model=model, cluster=cluster, folder=folder)
    if path.suffix in (".yaml", ".yml"):
        document = parse_document(path.name, present.files[path.name])
        if (program := settings_program(document)) is not None:
            return settings_draft(program, document, path, model=model, cluster=cluster, folder=folder)
    if path.suffix in SHELL_SCRIPTS and name != "megatron" and (started := _started_by(present.files[path.name])):
        raise SpecError(
            f"{path.name} starts {started}, whose settings it does not hold",
            remedy=f"give {started if started.endswith('.py') else 'the configuration that it reads'} to `autotune init`, its nodes as --cluster, "
            "and add to argv what the script adds; of shell scripts only those of Megatron-LM hold the settings",
            field="FILE",
        )
    if name is None:
        raise SpecError(
            f"{path.name} is neither a Python script nor a configuration of {', '.join(importing_trainers())}",
            remedy="give the script or the settings file that it starts"
            if path.suffix in SHELL_SCRIPTS
            else "name the trainer with `autotune import --from TRAINER FILE`, or give the script that trains",
            field="FILE",
        )
    return _imported(present, name, path, model=model, cluster=cluster, folder=folder)


def _started_by(text: str) -> str:
    """The program that a shell script starts: a Python file, or a module with `-m`; empty where none is found."""
    try:
        words, _ = command_of(text)
    except SpecError:
        return ""
    module = f"-m {words[words.index('-m') + 1]}" if "-m" in words[:-1] else ""
    return next((word for word in words if word.endswith(".py")), module)


def _imported(
    present: PresentConfiguration, name: str, path: Path, *, model: str | None, cluster: str | None, folder: Path
) -> Draft:
    draft = import_draft(present, name, path, model=model, cluster=cluster, folder=folder)
    return replace(draft, notes=(f"{path.name} is a configuration of {name}, so it is imported", *draft.notes))
