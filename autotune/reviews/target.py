"""Reads the launch to review, in the same way as `init`.

script, command   a shell or Slurm script, or the words of a command     program   a Python file
configuration     of a trainer                                            manifest  of Kubernetes     spec   of a study

Also provides a context in which no file outside of one folder can be read, whatever path a text
names and however it is quoted. Python reports each opening of a file before it happens (PEP 578).
Within the context, opening a file outside of the folder raises `PermissionError`. Files of Python
and of installed packages stay readable, because they are imported when needed. Anything elsewhere
on `sys.path` must be imported before.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from autotune.assets import search_spaces
from autotune.errors import SpecError
from autotune.onboarding.configuration_files import (
    document_of,
    exported_folder,
    ranks_asked,
    read_present,
)
from autotune.onboarding.draft import Draft
from autotune.onboarding.first_spec import first_draft, text_draft
from autotune.onboarding.launch.launch_script import SHELL_SCRIPTS, Started, script_of, started_by
from autotune.onboarding.launch.manifest import gpus_of, is_manifest, launch_of
from autotune.onboarding.launch.started_program import (
    SAY_IT,
    placed,
    started_through,
    where_it_runs,
)
from autotune.onboarding.settings.file import holds_settings
from autotune.spec import ParallelConfig, catalog
from autotune.temporary_folders import TemporaryFolder
from autotune.trainers import trainer, trainer_names
from autotune.trainers.launch_files import SCRIPT
from autotune.trainers.present_configuration import DOCUMENTS

_FOLDER: ContextVar[str] = ContextVar("folder", default="")
_OURS = (Path(__file__).parents[1], search_spaces())
_CODE = tuple(os.path.realpath(path) + os.sep for path in (*_OURS, sys.prefix, sys.base_prefix))
"""folders of Python, of its environment's packages, and of autotune with its search spaces"""
_installed = False


@contextmanager
def reading_only(folder: Path) -> Iterator[None]:
    """Within the context, opening a file outside of the folder raises `PermissionError`, in this
    thread."""
    global _installed
    if not _installed:
        _installed = True
        sys.addaudithook(_refuse)
    token = _FOLDER.set(os.path.realpath(folder) + os.sep)
    try:
        yield
    finally:
        _FOLDER.reset(token)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook that raises `PermissionError` for files outside of the context's folder."""
    folder = _FOLDER.get() if event == "open" else ""
    if not folder or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    path = os.path.realpath(os.fsdecode(arguments[0]))
    if not path.startswith((folder, *_CODE, "/proc/self/", "/dev/null")):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


COMMAND = "command"
"""name of a command that is not in a file"""
_OF_SPEC = ("workload", "model")
"""keys by which a spec is recognized"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A launch to review."""

    name: str
    """name of the file, or `command`"""
    texts: Mapping[str, str]
    """texts of the files that can be edited, the launch first"""
    document: dict[str, Any]
    """the spec"""
    base: Path | None
    """folder that its paths are relative to; None: it must not contain paths"""
    fill_in: tuple[str, ...] = ()
    """keys of the spec whose values are only placeholders"""
    notes: tuple[str, ...] = ()
    """sentences about what was read and what was not"""
    comments: tuple[str, ...] = ()
    """comments of the spec's values: where they were found, and what was assumed"""
    started: Started | None = None
    """the program that the script starts"""
    asked: tuple[int, int] | None = None
    """(nodes, ranks per node) that the launch requests; None if it does not say"""
    is_spec: bool = False
    """whether it is a study's spec"""
    draft: Draft | None = None
    """the spec with its comments; None if the target is a spec already"""


def read_target(
    target: str | Path | Sequence[str], *, model: str | None = None, cluster: str | None = None
) -> Target:
    """The launch in a file, or in the words of a command. `cluster`: GPU-NODESxGPUS, or only a GPU,
    whose number is then that of the launch's ranks. Raises `SpecError` if the target is no
    launch."""
    if not isinstance(target, str | Path):
        words = shlex.join(target)
        if (of_script := script_of(target)) is None:
            return _command_target(words, COMMAND, Path.cwd(), model=model, cluster=cluster)
        text, file = of_script
        base = file.absolute().parent
        found = _command_target(text, file.name, base, model=model, cluster=cluster)
        return replace(found, texts={COMMAND: words, **found.texts, file.name: _text(file)})
    path = Path(target)
    if (folder := exported_folder(path)).is_dir():
        of_model = "config.json"  # the model's shape, which has no settings to edit
        files = (n for n in read_present(folder).files if PurePosixPath(n).name != of_model)
        names = [SCRIPT, *files]
        texts = {name: _text(folder / name) for name in names if (folder / name).is_file()}
        return _drafted(folder, path.name, texts, None, model=model, cluster=cluster)
    text = _text(path)
    document = document_of(path.name, text)
    if all(key in document for key in _OF_SPEC):
        return Target(
            name=path.name,
            texts={path.name: text},
            document=dict(document),
            base=path.absolute().parent,
            is_spec=True,
        )
    if is_manifest(text):
        script = launch_of(text)
        if not script:
            raise SpecError(
                f"no container in {path.name} starts a recognizable training program",
                remedy="review the command that the image runs: autotune review -- torchrun ... train.py ...",
                field="TARGET",
            )
        found = _command_target(
            script,
            path.name,
            path.absolute().parent,
            model=model,
            cluster=cluster,
            asked=gpus_of(text),
        )
        return replace(found, texts={**found.texts, path.name: text})
    is_script = path.suffix in SHELL_SCRIPTS or (text.startswith("#!") and path.suffix != ".py")
    started = started_through(text, path) if is_script else None
    return _drafted(path, path.name, {path.name: text}, started, model=model, cluster=cluster)


@contextmanager
def named_text(text: str) -> Iterator[Path]:
    """A temporary file with this text, with a name that matches its kind."""
    with TemporaryFolder("review") as folder:
        path = folder / name_for(text)
        path.write_text(text, encoding="utf-8")
        yield path


def name_for(text: str) -> str:
    """A file name for a text: `launch` with the suffix of a script, a document or a Python
    program."""
    ending = ".sh"
    if started_by(text) is None:
        endings = (
            each for each in (".toml", ".json", ".yaml") if document_of(f"launch{each}", text)
        )
        ending = next(
            endings, ".py" if re.search(r"^\s*(import|from) \w", text, re.MULTILINE) else ".sh"
        )
    return f"launch{ending}"


@contextmanager
def folder_of(texts: Mapping[str, str]) -> Iterator[Path]:
    """A temporary folder with texts that the user sent; yields the path of the first one. No other
    file is readable within the context. Raises `SpecError` for names that are no plain file
    names."""
    if not texts:
        raise SpecError("there is no text to review", field="files")
    with TemporaryFolder("review") as folder:
        inner = folder / "a" / "b" / "c" / "d"  # a program is looked for above its script
        inner.mkdir(parents=True)
        for name, text in texts.items():
            path = Path(name)
            is_outside = path.is_absolute() or ".." in path.parts
            if is_outside or not 1 <= len(path.parts) <= 8 or not name.strip():
                raise SpecError(
                    f"{name!r} is not a file name",
                    remedy="use plain file names, e.g. train.sh",
                    field="files",
                )
            try:
                (inner / path).parent.mkdir(parents=True, exist_ok=True)
                (inner / path).write_text(_confined(text), encoding="utf-8")
            except (OSError, ValueError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                raise SpecError(
                    f"{name!r} cannot be written next to the other files: {why}",
                    remedy="use plain file names, e.g. train.sh",
                    field="files",
                ) from None
        for (
            trainer_name
        ) in trainer_names():  # imported now, because third-party trainers may be anywhere
            trainer(trainer_name)
        with reading_only(folder):
            yield inner / next(iter(texts))


def _confined(text: str) -> str:
    """The text without plain paths that leave its folder, so that it does not reveal which files
    exist: absolute paths get a prefix that does not exist, and `../` is replaced. A first line that
    names the shell is kept."""
    first, newline, rest = text.partition("\n")
    if first.startswith("#!"):
        return first + newline + _confined(rest) if rest else text
    return re.sub(r"(?<![\w.$}/-])[/~](?=[\w.$])", "/_/", text).replace("../", "_/")


def _command_target(
    text: str,
    name: str,
    base: Path,
    *,
    model: str | None,
    cluster: str | None,
    asked: tuple[int, int] | None = None,
) -> Target:
    """The launch of a script that is not in a file, as if it were in the folder `base`."""
    path = base / f"{name.rpartition('.')[0] or name}.sh"
    started = started_through(text, path)
    if started is None:
        raise SpecError(
            f"`{text.strip().splitlines()[-1][:120]}` does not start a Python program that autotune recognizes",
            remedy=f"review the command that starts the training (autotune review -- torchrun --nproc-per-node 8 train.py ...), or {SAY_IT}",
            field="TARGET",
        )
    ranks = asked or _ranks_asked(started, path)
    try:
        draft = text_draft(text, path, model=model, cluster=sized(cluster, ranks), folder=base)
    except SpecError as error:  # the message names the temporary script of the manifest or command
        message = error.message.replace(path.name, name)
        raise SpecError(message, remedy=error.remedy, field=error.field) from None
    assert draft is not None  # not None, because `started` is not
    return _read(draft, name, {name: text}, started, ranks, base)


NODE = 8
"""GPUs per node, assumed if nothing gives their number"""


def _drafted(
    path: Path,
    name: str,
    texts: Mapping[str, str],
    started: Started | None,
    *,
    model: str | None,
    cluster: str | None,
) -> Target:
    asked = _ranks_asked(started, path) if started else None
    folder = path.absolute().parent
    draft = first_draft(path, model=model, cluster=sized(cluster, asked), folder=folder)
    if (
        asked is None
        and cluster in catalog.gpu_names()
        and (asked := _ranks_of(draft, started)) is not None
    ):
        draft = first_draft(path, model=model, cluster=sized(cluster, asked), folder=folder)
    return _read(draft, name, texts, started, asked, folder)


def _ranks_asked(started: Started, script: Path) -> tuple[int, int] | None:
    """(nodes, ranks per node) that the launch requests; None if it does not say."""
    nodes, per_node = ranks_asked(started, where_it_runs(script, started).cwd)
    return (nodes, per_node) if per_node else None


def _settings_of(started: Started, script: Path) -> Iterator[tuple[str, str]]:
    """(path, text) of the settings files that the command names."""
    cwd = where_it_runs(script, started).cwd
    for word in placed(started, script, cwd).words:
        path = word.partition("=")[2] if word.startswith("-") else word
        if not path.endswith(DOCUMENTS):
            continue
        path = os.path.normpath(path)
        with suppress(SpecError):
            text = read_present(cwd / path).files[Path(path).name]
            if holds_settings(document_of(path, text), least=1):
                yield path, text


def _ranks_of(draft: Draft, started: Started | None) -> tuple[int, int] | None:
    """(nodes, GPUs per node) of a configuration, or by its baseline; None if the ranks depend on
    the cluster, or do not fill whole nodes of `NODE` GPUs. None also for a program whose launcher
    does not give the number of ranks, because its baseline assumes a usual node."""
    if draft.nodes is not None:
        return draft.nodes
    baseline = str(draft.document.get("baseline", ""))
    if not re.search(r"\bdp=", baseline):
        return None
    ranks = ParallelConfig.parse(baseline).world_size
    trainer_entry = draft.document.get("trainer")
    if (
        started is not None
        and isinstance(trainer_entry, dict)
        and trainer_entry.get("kind") == COMMAND
        and ranks > 1
    ):
        return None
    per_node = min(ranks, NODE)
    return (ranks // per_node, per_node) if ranks % per_node == 0 else None


def _read(
    draft: Draft,
    name: str,
    texts: Mapping[str, str],
    started: Started | None,
    asked: tuple[int, int] | None,
    base: Path,
) -> Target:
    program = started.file if started else ""
    more = {program: _text(base / program)} if program and (base / program).is_file() else {}
    more |= dict(_settings_of(started, base / name)) if started else {}
    spec_draft = draft.as_options or draft
    return Target(
        name=name,
        texts={**texts, **more},
        document=spec_draft.document,
        base=base,
        fill_in=spec_draft.fill_in,
        notes=spec_draft.notes,
        comments=tuple(_comments(spec_draft, draft.held)),
        started=started,
        asked=asked,
        draft=draft,
    )


def sized(cluster: str | None, asked: tuple[int, int] | None) -> str | None:
    """The name of the cluster. A name of only a GPU gets the nodes and ranks of the launch, or is
    None if these are unknown. Raises `CatalogError`."""
    if cluster is None or cluster not in catalog.gpu_names():
        return cluster
    return f"{cluster}-{asked[0]}x{asked[1]}" if asked is not None else None


def _comments(draft: Draft, held: frozenset[str]) -> Iterator[str]:
    """`key: comment` for each value of the spec with a comment, or `option: comment` for elements
    of argv. `held`: options that are names in the program's code."""
    for entry in draft.entries:
        for part in (entry, *entry.parts):
            if part.comment:
                yield f"{part.key}: {part.comment}"
            for item in part.items:
                if item.comment:
                    option = re.split(r"[={ ]", item.value, maxsplit=1)[0]
                    name = option.lstrip("-")
                    yield f"{name if name in held else option}: {item.comment}"


def _text(path: Path) -> str:
    try:
        return read_present(path).files[path.name]
    except SpecError as error:
        remedy = (
            error.remedy
            or "pass a script, a configuration, a manifest or a spec, or a command after `--`"
        )
        raise SpecError(error.message, remedy=remedy, field="TARGET") from None
