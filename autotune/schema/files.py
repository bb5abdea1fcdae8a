"""The files that a spec points to: a model's config.json, a search space, training data, a program's folder and the templates of its files.

A spec that is read from a file comes out self-contained: what the files hold stands in it, and the path of the data is absolute. So it means the same in
another folder, on resumption, and for a service on another machine. Paths are relative to the spec's own folder.

Models that code builds: a function of the user's (`module`), or transformers' own class of a config.json (`hf`).

A user's code runs only where the spec is a file of this machine, and in a process of its own (`Inspect`). The shapes of transformers' classes follow from
the config.json; what no shape describes has to be built: a family that is not known, layers of several kinds, and a model with other towers.
"""

from __future__ import annotations

import glob
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from autotune.assets import space_files, study_files
from autotune.errors import SpecError
from autotune.schema.reading import MAX_BYTES, check_size, read_document
from autotune.schema.source_text import ReadDocument, places_in
from autotune.settings import expanded
from autotune.spec import ModelCode, ModelSpec, catalog
from autotune.spec.checks import nearest
from autotune.spec.hugging_face.families import FAMILIES
from autotune.spec.hugging_face.figures import check_source
from autotune.spec.hugging_face.reading import text_model, text_of
from autotune.spec.hugging_face.shapes import PIPELINE_SPLITS, TENSOR_PLANS
from autotune.spec.model import read_config_json
from autotune.spec.plain import canonical, fingerprint
from autotune.spec.texts.json_text import read_json
from autotune.trainers import trainer, trainer_names
from autotune.trainers.base.own_program import CWD, PROGRAM_OPTIONS
from autotune.trainers.base.trainer_option import Option
from autotune.trainers.command.overrides import check_places

MODEL_BYTES = 1 << 18
"""A `config.json` larger than this is none."""


def read_spec(source: str | Path) -> ReadDocument:
    """The self-contained document of a YAML or JSON file, of standard input (`-`), or of a study that ships (its name, e.g. `laptop`).

    Raises `SpecError` when it (or a file that it points to) cannot be read, is too large, is no YAML or is not a mapping.
    """
    shipped = study_files()
    if str(source) in shipped and not Path(source).exists():
        source = shipped[str(source)]
    document = read_document(source, what="study spec", built_in=shipped)
    with places_in(document):
        _include_files(document, folder_of(source))
    return document


def folder_of(source: str | Path) -> Path:
    """Where relative paths in the spec start: the file's folder, or the current one for standard
    input (`-`)."""
    return Path.cwd() if str(source) == "-" else Path(source).absolute().parent


def _include_files(document: ReadDocument, base: Path) -> None:
    """Puts what the files hold that the document points to in the place of their paths, and makes the other paths absolute."""
    model, space, data = (document.get(key) for key in ("model", "space", "data"))
    if isinstance(model, dict) and isinstance(model.get("hf"), str) and "source" not in model:
        path = config_json(model["hf"], base)
        config = canonical(read_config_json(path))
        document["model"] = {**model, "hf": model_name(path), "source": config}
    elif isinstance(model, dict) and isinstance(model.get("module"), str):
        document["model"] = {
            **model,
            "folder": str(locate(str(model.get("folder", ".")), base, field="model.folder")),
        }
    elif isinstance(model, str) and is_model_file(model):
        document["model"] = {
            k: v for k, v in asdict(read_model(model, base)).items() if k != "code"
        }
    if isinstance(space, str) and is_space_file(space):
        path = locate(space, base, field="space")
        knobs = read_document(path, what="search space")
        document["space"] = {"name": name_of(path.stem), **knobs}
        document.source.included["space"] = knobs.source
    if isinstance(data, str):
        document["data"] = find_data(data, base)
    if isinstance(document.get("trainer"), dict):
        document["trainer"] = with_program_files(
            document["trainer"], base, has_image=_has_image(document)
        )


def _has_image(document: Mapping[str, Any]) -> bool:
    """Whether the program runs in a container, whose files are not those of this machine."""
    slurm = document.get("slurm")
    return bool(
        document.get("kubernetes") or (isinstance(slurm, Mapping) and slurm.get("container"))
    )


def with_program_files(
    asked: dict[str, Any], base: Path, *, has_image: bool = False
) -> dict[str, Any]:
    """The trainer with absolute paths of its program's folder (`cwd`; `base`, where a program has a relative path beside it and no folder) and environment
    (`python`), and with the contents of the templates that it names (`files`). `has_image`: an absolute path may be that of a container's image."""
    cwd, files, python = asked.get("cwd"), asked.get("files"), asked.get("python")
    options = _options(asked)
    changes: dict[str, Any] = {
        option.name: path
        for option in options
        if option.is_path and (path := _beside(asked.get(option.name), base))
    }
    if (
        cwd is None
        and CWD in options
        and any(_is_relative(asked.get(name)) for name in PROGRAM_OPTIONS)
    ):
        cwd = "."
    if cwd is None and asked.get("kind") == "command" and _names_a_file(asked.get("argv"), base):
        cwd = "."
    if isinstance(python, str) and python:
        changes["python"] = os.path.abspath(
            base / expanded(python, field="trainer.python")
        )  # a link to an interpreter is its environment's
    if isinstance(cwd, str) and cwd not in ("", "{files}"):
        folder = locate(cwd, base, field="trainer.cwd")
        if not folder.is_dir() and not (has_image and Path(cwd).is_absolute()):
            raise SpecError(
                f"the program's folder {cwd!r} does not exist",
                remedy="set trainer.cwd to an existing folder; relative paths start at the spec's folder",
                field="trainer.cwd",
            )
        changes["cwd"] = str(folder)
        if isinstance(asked.get("overrides"), dict):
            check_places(asked["overrides"], folder)
    if isinstance(files, dict):
        changes["files"] = {
            name: read_template(template, base, field=f"trainer.files.{name}")
            if isinstance(template, str)
            else template
            for name, template in files.items()
        }
    return {**asked, **changes}


def _options(asked: Mapping[str, Any]) -> tuple[Option, ...]:
    """The options of the trainer that is asked for; none where there is no such trainer, which is said later."""
    kind = asked.get("kind")
    return trainer(kind).options if isinstance(kind, str) and kind in trainer_names() else ()


def _is_relative(path: Any) -> bool:
    return isinstance(path, str) and bool(path) and not os.path.isabs(path)


def _beside(path: Any, base: Path) -> str:
    """The whole path of a file or folder beside the spec, or of what such names begin with, as datasets are named; empty where there is none."""
    if not _is_relative(path) or "\0" in path:
        return ""
    whole = base.absolute() / path
    return (
        str(whole)
        if whole.exists() or any(whole.parent.glob(f"{glob.escape(whole.name)}.*"))
        else ""
    )


def _names_a_file(argv: Any, base: Path) -> bool:
    """Whether a command has a word that is a file beside the spec: its program then runs in the spec's folder, wherever the launch is started."""
    words = argv if isinstance(argv, list) else ()
    return any(
        _is_relative(word) and "\0" not in word and len(word) < 4096 and (base / word).is_file()
        for word in words
    )


def read_template(text: str, base: Path, *, field: str) -> dict[str, Any]:
    """The contents of a JSON, YAML or TOML file with placeholders."""
    path = locate(text, base, field=field)
    try:
        if path.suffix != ".toml" or not path.is_file():
            return read_document(path, what="template")
        with path.open("rb") as file:
            document = tomllib.loads(file.read(MAX_BYTES).decode())
    except SpecError as error:
        raise SpecError(error.message, remedy=error.remedy, field=field) from None
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(
            f"the template {text!r} is not TOML: {error}",
            remedy='write placeholders in quotes: "{tp}"',
            field=field,
        ) from None
    check_size(document)
    return document


def is_model_file(text: str) -> bool:
    """Whether `model: text` is a path, and neither a catalog name nor the hub id of a model of the catalog."""
    if text in catalog.model_names() or not _is_path(text, (".json",)):
        return False
    return text.lower() not in catalog.hub_models()


def is_space_file(text: str) -> bool:
    """Whether `space: text` is a path and no space that ships."""
    return text not in space_files() and _is_path(text, (".yaml", ".yml", ".json"))


def read_model(text: str, base: Path | None) -> ModelSpec:
    """The model of a Hugging Face `config.json`, or of the folder that holds one, named after the folder."""
    path = config_json(text, base)
    model = ModelSpec.from_hf(path, name=model_name(path))
    return check_source(replace(model, source=canonical(read_config_json(path))))


def config_json(text: str, base: Path | None) -> Path:
    """The `config.json` that a spec of folder `base` points to by its path or by its folder; it is a JSON document."""
    path = locate(text, base, field="model")
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file() or path.stat().st_size > MODEL_BYTES:
        what = (
            "is not a config.json"
            if path.exists()
            else "is neither a file nor the hub id of a catalog model"
        )
        remedy = (
            nearest(text.lower(), catalog.hub_models())
            or "set `model` to the path of a config.json, or to the model's fields"
        )
        raise SpecError(f"{text!r} {what}", remedy=remedy, field="model")
    read_config_json(path)
    return path


def model_name(path: Path) -> str:
    """The name of the model of a `config.json`: that of its folder, or of the file where it is called otherwise."""
    return name_of(path.parent.name if path.name == "config.json" else path.stem)


def find_data(text: str, base: Path) -> str:
    """The absolute path of the training data."""
    path = locate(text, base, field="data")
    if not path.is_file():
        raise SpecError(
            f"the data file {text!r} " + ("is not a file" if path.exists() else "does not exist"),
            remedy="set `data` to a text or .bin file, or omit it to use the bundled text",
            field="data",
        )
    return str(path)


def locate(text: str, base: Path | None, *, field: str) -> Path:
    """The path that `text` means in a spec of folder `base`; without a folder (over the wire) paths are refused."""
    if base is None:
        raise SpecError(
            f"paths are allowed only in a spec that is read from a file, but {field} is {text!r}",
            remedy="write the file's contents inline",
            field=field,
        )
    if "\0" in text:
        raise SpecError("a path cannot contain a zero byte", field=field)
    return (base / expanded(text, field=field)).resolve()


def name_of(file: str) -> str:
    """A file's name as the name of what it holds: letters, digits and a few signs."""
    return re.sub(r"[^A-Za-z0-9_.:+-]+", "-", file).strip("-.:+")[:100] or "unnamed"


def _is_path(text: str, suffixes: tuple[str, ...]) -> bool:
    return "/" in text or "\\" in text or text.endswith(suffixes)


Inspect = Callable[[ModelSpec], ModelSpec]
"""Builds the model of `ModelSpec.code`, and returns it with its shape, parameters, plans and fingerprint (`autotune.ports.DryRunner.inspect`)."""


def own_model(
    module: str,
    args: Mapping[str, Any],
    folder: str | None,
    *,
    name: str,
    base: Path | None,
    inspect: Inspect | None,
) -> ModelSpec:
    """The model that the user's function builds. Raises `SpecError` where code may not be run, and what `inspect` raises."""
    if base is None or inspect is None:
        raise SpecError(
            f"building a model runs its code, which is only allowed if the spec is a file on your "
            f"own machine, but this spec refers to {module!r}",
            remedy="run `autotune tune SPEC` (or plan, fit) on your machine; elsewhere, write the model's fields inline, or {hf: PATH} with the path of a config.json",
            field="model.module",
        )
    code = ModelCode(
        module=module,
        args=canonical(args),
        folder=str(locate(folder or ".", base, field="model.folder")),
    )
    return inspect(_unknown(name, code=code))


def transformers_model(
    text: str, source: str, *, base: Path | None, inspect: Inspect | None
) -> ModelSpec:
    """transformers' own class of a config.json: of the file at that path, or of the JSON text `source`; then `text` is its name."""
    if source:
        document, name = _parsed(source), name_of(text)
    else:
        path = config_json(text, base)
        document, name = dict(read_config_json(path)), model_name(path)
    family, _ = text_model(document)
    if family in FAMILIES and not FAMILIES[family].has_class:
        raise SpecError(
            f"transformers has no class for the family {family!r} of {name}, because the family's code comes with the checkpoint",
            remedy="use `model: PATH` for a native decoder with the same sizes, or {module: PACKAGE.MODULE:FUNCTION} with a function that builds the model",
            field="model.hf",
        )
    code = ModelCode(
        has_tensor_plan=family in TENSOR_PLANS,
        has_pipeline_split=family in PIPELINE_SPLITS,
        fingerprint=fingerprint([document, _version("transformers"), _version("torch")]),
    )
    can_build = inspect if base is not None else None
    if can_build is not None and (family not in FAMILIES or text_of(document) is not None):
        return can_build(replace(_unknown(name, code=code), source=canonical(document)))
    try:
        model = ModelSpec.from_hf(document, name=name)
    except SpecError:  # sizes that differ from layer to layer, layers of other kinds
        if can_build is None:
            raise
        return can_build(replace(_unknown(name, code=code), source=canonical(document)))
    cuts = model.num_layers - 1 if code.has_pipeline_split else 0
    return replace(model, source=canonical(document), code=replace(code, num_cuts=cuts))


def _unknown(name: str, *, code: ModelCode) -> ModelSpec:
    """A model whose shape is not known yet."""
    return ModelSpec(
        name=name, num_layers=1, hidden_size=1, num_attention_heads=1, vocab_size=1, code=code
    )


def _parsed(source: str) -> dict[str, Any]:
    try:
        document = read_json(source)
    except ValueError as error:
        raise SpecError(f"the config.json is not JSON: {error}", field="model.source") from None
    if not isinstance(document, dict):
        raise SpecError(
            f"the config.json must contain a JSON object, but contains a {type(document).__name__}",
            field="model.source",
        )
    return document


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
