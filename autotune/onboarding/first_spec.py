"""`autotune init`: a training script, a launch script or a trainer's configuration as the draft of a spec."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from autotune.errors import SpecError
from autotune.onboarding.configuration_files import importing_trainers, read_present, recognized
from autotune.onboarding.decided_elsewhere import ranks_asked
from autotune.onboarding.draft import Draft
from autotune.onboarding.imported_spec import import_draft
from autotune.onboarding.launch_script import Started, started_by
from autotune.onboarding.named_cluster import Place
from autotune.onboarding.script import read_script
from autotune.onboarding.script_spec import script_draft
from autotune.onboarding.settings_draft import Settings, settings_draft
from autotune.onboarding.settings_program import settings_program
from autotune.onboarding.started_program import started_draft
from autotune.trainers.nested_documents import parse_document
from autotune.trainers.present_configuration import PresentConfiguration

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
        return script_draft(script, Place(cluster), cwd=path.parent, source=path, model=model, folder=folder)
    if path.suffix in (".yaml", ".yml"):
        document = parse_document(path.name, present.files[path.name])
        if (program := settings_program(document)) is not None:
            told = Settings(program=program, document=document, source=path, cwd=path.parent, file=path.name)
            return settings_draft(told, Place(cluster), model=model, folder=folder)
    started = started_by(present.files[path.name]) if path.suffix in SHELL_SCRIPTS else None
    if started is not None and (name != "megatron" or _is_of_deepspeed(started)):
        place = Place(cluster, *ranks_asked(started, path.parent))
        return started_draft(started, path, place, model=model, folder=folder)
    if name is None:
        raise SpecError(
            f"{path.name} is neither a Python script nor a configuration of {', '.join(importing_trainers())}",
            remedy="no Python program was found that it starts: give the script or the settings file"
            if path.suffix in SHELL_SCRIPTS
            else "name the trainer with `autotune import --from TRAINER FILE`, or give the script that trains",
            field="FILE",
        )
    return _imported(present, name, path, model=model, cluster=cluster, folder=folder)


def _is_of_deepspeed(started: Started) -> bool:
    """Whether the program is told by DeepSpeed: Megatron-DeepSpeed has flags of Megatron-LM, too, but is no Megatron-LM."""
    return started.launcher == "deepspeed" or any(
        argument.name.startswith("deepspeed") for argument in started.arguments
    )


def _imported(
    present: PresentConfiguration, name: str, path: Path, *, model: str | None, cluster: str | None, folder: Path
) -> Draft:
    draft = import_draft(present, name, path, model=model, cluster=cluster, folder=folder)
    return replace(draft, notes=(f"{path.name} is a configuration of {name}, so it is imported", *draft.notes))
