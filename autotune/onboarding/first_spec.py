"""`autotune init`: drafts a spec from a training script, a launch script or a trainer's
configuration.

Also builds the launch of what `autotune init --run` starts:

a shell script     its shell, started in the folder where its program is found
a command          as written, in the current folder
a Python script    with the launcher that its imports need, on the ranks of the cluster, without options
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from autotune.cost.traits import POST_TRAINERS
from autotune.errors import AutotuneError, SpecError
from autotune.onboarding.configuration_files import (
    document_of,
    exported_folder,
    foreign_program,
    importing_trainers,
    ranks_asked,
    read_present,
    recognized,
)
from autotune.onboarding.draft import Draft, Place
from autotune.onboarding.imported_spec import import_draft
from autotune.onboarding.launch.given_options import Said, with_said
from autotune.onboarding.launch.launch_script import (
    SHELL_SCRIPTS,
    Started,
    script_of,
    started_by,
    value_of,
)
from autotune.onboarding.launch.manifest import is_manifest, launch_of, of_makefile
from autotune.onboarding.launch.started_program import (
    SAY_IT,
    placed,
    started_draft,
    started_through,
    where_it_runs,
)
from autotune.onboarding.post_training_launch import (
    inheriting_trainer,
    post_training_launch,
    with_its_bases,
)
from autotune.onboarding.script.draft import script_draft
from autotune.onboarding.script.reading import read_script
from autotune.onboarding.settings.draft import Settings, settings_draft, started_in
from autotune.onboarding.settings.program import settings_program
from autotune.schema import parse_study
from autotune.schema.files import with_program_files
from autotune.spec import ClusterSpec
from autotune.trainers.documents.placeholders import braced
from autotune.trainers.present_configuration import DOCUMENTS, PresentConfiguration

_SHELL = re.compile(r"#!\S*?(?:/|env )((?:ba|z|da|k)?sh)\b")
_ALLOCATED = "SLURM_JOB_ID"
"""variable that Slurm sets for processes inside an allocation"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PresentLaunch:
    """A command with its folder and environment, which can be started."""

    argv: tuple[str, ...]
    cwd: Path
    env: dict[str, str] = field(default_factory=dict)
    """variables to add to the environment in which it is started"""

    @property
    def options(self) -> dict[str, Any]:
        """Options of the `command` trainer that start this launch."""
        return {
            "argv": [braced(word) for word in self.argv],
            "cwd": str(self.cwd.resolve()),
            "env": {name: braced(text) for name, text in self.env.items()},
        }


def launch_of_script(path: Path) -> PresentLaunch:
    """The launch of a shell script as from a terminal. Raises `SpecError` if it needs more than
    this machine."""
    text = path.read_text(encoding="utf-8-sig")
    started = started_by(text)
    if started is not None:
        _refuse_elsewhere(started, path.name)
    shell = _SHELL.match(text)
    start = where_it_runs(path, started).start
    return PresentLaunch(argv=(shell[1] if shell else "bash", str(path.resolve())), cwd=start)


def launch_of_command(words: Sequence[str]) -> PresentLaunch:
    """The launch of a command as written. Raises `SpecError` if it needs more than this machine."""
    if (started := started_by(shlex.join(words))) is not None:
        _refuse_elsewhere(started, "the command")
    return PresentLaunch(argv=tuple(words), cwd=Path.cwd())


def launch_of_python(path: Path, draft: Draft, ranks: int) -> PresentLaunch:
    """The launch of a Python script with the launcher of its draft, on `ranks` ranks and without
    options. Raises `SpecError` if the draft does not start it."""
    trainer = draft.document["trainer"]
    words = trainer.get("argv", []) if isinstance(trainer, dict) else []
    if path.name not in words:
        raise SpecError(
            f"it is unclear how {path.name} is started",
            remedy="pass the whole command: autotune init --run -- torchrun --nproc-per-node=2 train.py ...",
            field="FILE",
        )
    end = words.index(path.name) + 1
    argv = [
        re.sub(r"\{(nproc_per_node|world_size)\}", str(ranks), word)
        for word in words[: end + (words[end : end + 1] == ["fit"])]
    ]
    return PresentLaunch(
        argv=tuple(word for word in argv if not re.search(r"(?<!\{)\{\w", word)),
        cwd=path.parent,
        env=dict(trainer.get("env", {})),
    )


def _refuse_elsewhere(started: Started, what: str) -> None:
    """Raises `SpecError` if the launch needs several nodes or a Slurm allocation. `what`: the
    launch, as the message names it."""
    if started.nodes > 1:
        raise SpecError(
            f"{what} starts {started.program} on {started.nodes} nodes, but --run uses only this machine",
            remedy="pass a command for one node after `--`: autotune init --run -- torchrun --nproc-per-node=8 train.py ...; or omit --run",
            field="--run",
        )
    if started.launcher == "srun" and _ALLOCATED not in os.environ:
        raise SpecError(
            f"{what} starts {started.program} with srun, which needs a Slurm allocation",
            remedy="start autotune within an allocation: salloc --nodes=1 --gpus=8 autotune init --run ...; or omit --run",
            field="--run",
        )


def first_draft(
    path: Path,
    *,
    model: str | None = None,
    cluster: str | None = None,
    folder: Path,
    said: Said = (),
) -> Draft:
    """The draft for a training script, a launch script or a trainer's configuration. `folder`: the
    folder of the spec; `said`: option defaults reported by the program's own parser. Raises
    `SpecError` if the file is none of these."""
    place = exported_folder(path)
    draft = _first_draft(place, model=model, cluster=cluster, folder=folder, said=said)
    return lawful(draft, path.name, folder)


def command_draft(
    words: Sequence[str],
    *,
    model: str | None = None,
    cluster: str | None = None,
    folder: Path,
    said: Said = (),
) -> Draft:
    """The draft for a command that is started in the current folder. `said`: as for `first_draft`.
    Raises `SpecError` if it starts no training that autotune recognizes."""
    text = shlex.join(words)
    if (script := script_of(words)) is not None:
        text, path = script
    else:
        started = started_by(text)
        path = Path.cwd() / (Path(started.file).name if started else words[0].rpartition("/")[2])
    draft = text_draft(text, path, model=model, cluster=cluster, folder=folder, said=said)
    if draft is None:
        raise SpecError(
            f"`{words[0]}` does not start a recognizable Python program",
            remedy=_command_remedy(words),
            field="FILE",
        )
    return draft


def _command_remedy(words: Sequence[str]) -> str:
    """The remedy for a command that does not start a training itself."""
    for word in words:
        if Path(word).suffix in SHELL_SCRIPTS:
            return f"pass the script itself: autotune init {word}"
        if word.endswith(".ipynb"):
            return f"convert the notebook to a script (jupyter nbconvert --to script {word}), and pass that script"
    return "pass the command that starts the training itself: autotune init -- torchrun --nproc-per-node=8 train.py ..."


def text_draft(
    text: str,
    path: Path,
    *,
    model: str | None,
    cluster: str | None,
    folder: Path,
    said: Said = (),
) -> Draft | None:
    """The draft for the program that a shell text starts; None if it starts no training that
    autotune recognizes. `path`: the file of the text, which need not exist; `said`: as for
    `first_draft`."""
    present = PresentConfiguration(files={path.name: text})
    draft = _launch_draft(present, path, model=model, cluster=cluster, folder=folder, said=said)
    return None if draft is None else lawful(draft, path.name, folder)


def lawful(draft: Draft, what: str, folder: Path, here: ClusterSpec | None = None) -> Draft:
    """The draft without its baseline if that is not valid. `here`: this machine, if it is known."""
    if "model" in draft.fill_in:
        return draft  # rules checked on a placeholder model tell nothing about the program
    base = folder.resolve()
    try:
        trainer = draft.document["trainer"]
        if isinstance(trainer, dict):  # parsing a document rejects relative folders
            trainer = with_program_files(trainer, base)
        document = {**draft.document, "trainer": trainer}
        parse_study(
            document, base=base, local_cluster=None if here is None else lambda: here, inspect=None
        )
    except AutotuneError as error:
        if error.field.partition(".")[0] == "baseline" and draft.at("baseline"):
            why = f"no baseline: the current settings of {what} are not valid for a study: {error.message}"
            return draft.put("baseline", None).noting(why).asking("baseline")
    return draft


def _first_draft(
    path: Path, *, model: str | None, cluster: str | None, folder: Path, said: Said
) -> Draft:
    present = with_its_bases(read_present(path), path)
    text = present.files.get(path.name, "")
    commands = of_makefile(text) if path.name.lower() == "makefile" else ""
    if path.suffix in (".yaml", ".yml") and is_manifest(text):
        commands = launch_of(text)
    if commands:
        found = text_draft(commands, path, model=model, cluster=cluster, folder=folder, said=said)
        if found is not None:
            return found
    name = recognized(present) or inheriting_trainer(present, path)
    if path.suffix == ".py":
        script = read_script(path.name, present.files[path.name], file=path, base=path.parent)
        script = with_said(script, said)
        if (
            name is not None and not script.options
        ):  # torchtitan's configuration may be a Python file
            with suppress(SpecError):
                return _imported(present, name, path, model=model, cluster=cluster, folder=folder)
        if script.written is not None:  # launched as its library usually is, on the cluster's ranks
            place = Place(cluster)
            ranks = "" if cluster is None or place.is_spread else f" --nproc-per-node {place.ranks}"
            starts = {"torchrun": f"torchrun{ranks}", "accelerate": "accelerate launch"}
            launcher = "torchrun" if script.written.of else script.launcher
            started = started_by(f"{starts.get(launcher, launcher)} {shlex.quote(path.name)}")
            assert started is not None
            return started_draft(started, path, place, model=model, folder=folder, said=said)
        return script_draft(
            script, Place(cluster), cwd=path.parent, source=path, model=model, folder=folder
        )
    if path.suffix in SHELL_SCRIPTS or _SHELL.match(present.files.get(path.name, "")):
        found = _launch_draft(present, path, model=model, cluster=cluster, folder=folder, said=said)
        if found is not None:
            return found
        if name is None:
            raise SpecError(
                f"{path.name} does not start a recognizable Python program",
                remedy="pass the script that starts the training itself, or the Python file that does the training",
                field="FILE",
            )
    elif name in POST_TRAINERS:
        pass
    elif document := document_of(path.name, present.files.get(path.name, "")):
        program = settings_program(document)
        if program is not None:
            cwd = started_in(path, document)
            file = os.path.relpath(path.resolve(), cwd.resolve())
            settings = Settings(program=program, document=document, source=path, cwd=cwd, file=file)
            return settings_draft(settings, Place(cluster), model=model, folder=folder)
        if foreign := foreign_program(document, is_json=path.suffix == ".json"):
            raise SpecError(
                f"{path.name} is a {foreign} configuration, which autotune does not support",
                remedy=f"pass a script that starts a Python program with options, or {SAY_IT}",
                field="FILE",
            )
    if name is None:
        if not present.files.get(path.name, "").strip():
            raise SpecError(
                f"{path.name} is empty", remedy="pass the training script", field="FILE"
            )
        raise SpecError(
            f"{path.name} is neither a Python script nor a configuration of {', '.join(importing_trainers())}",
            remedy="pass the training script, pass the command that reads the file (`autotune review -- COMMAND`), or specify the trainer (`autotune import --from TRAINER FILE`)",
            field="FILE",
        )
    return _imported(present, name, path, model=model, cluster=cluster, folder=folder)


def _launch_draft(
    present: PresentConfiguration,
    path: Path,
    *,
    model: str | None,
    cluster: str | None,
    folder: Path,
    said: Said,
) -> Draft | None:
    """The draft for the program that a shell text starts; None if it starts nothing that is
    recognized."""
    imported = partial(_imported, model=model, cluster=cluster, folder=folder)
    text = present.files[path.name]
    name, started = recognized(present), started_through(text, path)
    if (found := post_training_launch(text, path, started)) is not None:
        owner, configuration = found
        return imported(configuration, owner, path)
    cwd = where_it_runs(path, started).cwd
    if started is not None and (by_file := _configured_by_file(started, path, cwd)) is not None:
        owner, file = by_file
        files = {file.name: read_present(file).files[file.name]}
        words = (started.program, *started.words)
        return imported(PresentConfiguration(files=files, argv=words), owner, file)
    if started is not None and not (name == "megatron" and _is_of_megatron(started)):
        place = Place(cluster, *ranks_asked(started, cwd))
        return started_draft(started, path, place, model=model, folder=folder, said=said)
    return None if name is None else imported(present, name, path)


def _configured_by_file(started: Started, path: Path, cwd: Path) -> tuple[str, Path] | None:
    """(trainer, its file) for a program that takes all settings from one file: torchtitan's job
    file, nanotron's YAML. None for other programs. `cwd`: where the program runs. Raises
    `SpecError` if the file is not found."""
    config_file = value_of(placed(started, path, cwd).arguments, "job.config_file", "config_file")
    is_program = (
        started.program in ("torchtitan.train", "torchtitan/train.py")
        or Path(started.file).name == "run_train.py"
    )
    if not is_program or not config_file.endswith(DOCUMENTS):
        return None
    file = next(
        (
            base / config_file
            for base in (cwd, path.resolve().parent)
            if (base / config_file).is_file()
        ),
        None,
    )
    if file is None:
        raise SpecError(
            f"{path.name} starts {started.program} with {config_file}, which sets the model, batch and degrees but was not found in {cwd}",
            remedy=f"pass the path of {config_file} itself, or put {config_file} into that folder",
            field="FILE",
        )
    name = recognized(read_present(file))
    return (name, file) if name in ("torchtitan", "nanotron") else None


def _is_of_megatron(started: Started) -> bool:
    """Whether the program is Megatron-LM's own, by its name and flags. Megatron-DeepSpeed has the
    same flags, but is configured by DeepSpeed."""
    names = {argument.name for argument in started.arguments}
    uses_deepspeed = started.launcher == "deepspeed" or any(
        name.startswith("deepspeed") for name in names
    )
    has_shape = {"num_layers", "hidden_size"} <= names or names & {
        "use_checkpoint_args",
        "yaml_cfg",
    }
    file = started.program.rpartition("/")[2]
    return bool(
        re.match(r"pretrain_(gpt|mamba|moe|hybrid)", file) and has_shape and not uses_deepspeed
    )


def _imported(
    present: PresentConfiguration,
    name: str,
    path: Path,
    *,
    model: str | None,
    cluster: str | None,
    folder: Path,
) -> Draft:
    try:
        draft = import_draft(present, name, path, model=model, cluster=cluster, folder=folder)
    except SpecError as error:
        if "autotune init" not in error.remedy:
            raise
        remedy = f"pass a file in the format that {name}'s documentation describes, or the script that starts the training"
        raise SpecError(error.message, remedy=remedy, field="FILE") from None
    return replace(
        draft, notes=(f"{path.name} is a {name} configuration, so it is imported", *draft.notes)
    )
