"""The files that a spec refers to: a model's config.json, a search space, training data, a
program's folder and the templates of its files.

Reading a spec from a file makes it self-contained: the contents of the files are inserted, and
other paths become absolute. So it means the same in another folder, after a restart, and on a
service's machine. Relative paths start at the spec's folder.

Models that code builds: by a user's function (`module`), or as the transformers class of a
config.json (`hf`).

A user's code runs only if the spec is a file on this machine, and in a separate process
(`Inspect`). The shape of a transformers class follows from the config.json, with three exceptions
that must be built: unknown families, models with several kinds of layers, and models with other
towers, such as vision.
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
"""maximum size of a `config.json`"""


def read_spec(source: str | Path) -> ReadDocument:
    """Return the self-contained document of a YAML or JSON file, of standard input (`-`), or of a
    built-in study (its name, e.g. `laptop`).

    Raises `SpecError` if it, or a file that it refers to, cannot be read, is too large, is not
    YAML, or is not a mapping.
    """
    built_in = study_files()
    if str(source) in built_in and not Path(source).exists():
        source = built_in[str(source)]
    document = read_document(source, what="study spec", built_in=built_in)
    with places_in(document):
        _include_files(document, folder_of(source))
    return document


def folder_of(source: str | Path) -> Path:
    """Return the folder that relative paths in the spec start at: the file's folder, or the current
    one for standard input (`-`)."""
    return Path.cwd() if str(source) == "-" else Path(source).absolute().parent


def _include_files(document: ReadDocument, base: Path) -> None:
    """Replace paths in the document by the contents of their files, and make the other paths
    absolute."""
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
    """Return whether the program runs in a container, whose files may not exist on this machine."""
    slurm = document.get("slurm")
    return bool(
        document.get("kubernetes") or (isinstance(slurm, Mapping) and slurm.get("container"))
    )


def with_program_files(
    trainer: dict[str, Any], base: Path, *, has_image: bool = False
) -> dict[str, Any]:
    """Return a spec's `trainer` with absolute paths of the program's folder (`cwd`) and interpreter
    (`python`), and with the contents of its templates (`files`).

    `cwd` defaults to `base` if the program has a relative path. `has_image`: absolute paths may
    exist only in a container image.
    """
    cwd, files, python = trainer.get("cwd"), trainer.get("files"), trainer.get("python")
    options = _options(trainer)
    changes: dict[str, Any] = {
        option.name: path
        for option in options
        if option.is_path and (path := _absolute(trainer.get(option.name), base))
    }
    if (
        cwd is None
        and CWD in options
        and any(_is_relative(trainer.get(name)) for name in PROGRAM_OPTIONS)
    ):
        cwd = "."
    if (
        cwd is None
        and trainer.get("kind") == "command"
        and _names_a_file(trainer.get("argv"), base)
    ):
        cwd = "."
    if isinstance(python, str) and python:
        changes["python"] = os.path.abspath(
            base / expanded(python, field="trainer.python")
        )  # do not follow links, because a virtual environment's python is a link
    if isinstance(cwd, str) and cwd not in ("", "{files}"):
        folder = locate(cwd, base, field="trainer.cwd")
        if not folder.is_dir() and not (has_image and Path(cwd).is_absolute()):
            raise SpecError(
                f"the program's folder {cwd!r} does not exist",
                remedy="set trainer.cwd to an existing folder; relative paths start at the spec's folder",
                field="trainer.cwd",
            )
        changes["cwd"] = str(folder)
        if isinstance(trainer.get("overrides"), dict):
            check_places(trainer["overrides"], folder)
    if isinstance(files, dict):
        changes["files"] = {
            name: read_template(template, base, field=f"trainer.files.{name}")
            if isinstance(template, str)
            else template
            for name, template in files.items()
        }
    return {**trainer, **changes}


def _options(trainer_document: Mapping[str, Any]) -> tuple[Option, ...]:
    """Return the options of a spec's trainer; empty if it is unknown, which is reported later."""
    kind = trainer_document.get("kind")
    return trainer(kind).options if isinstance(kind, str) and kind in trainer_names() else ()


def _is_relative(path: Any) -> bool:
    """Return whether the value is a relative path."""
    return isinstance(path, str) and bool(path) and not os.path.isabs(path)


def _absolute(path: Any, base: Path) -> str:
    """Return the absolute path of a file or folder in `base`, or of the common prefix of files
    there, as datasets are named; empty if there is none."""
    if not _is_relative(path) or "\0" in path:
        return ""
    whole = base.absolute() / path
    return (
        str(whole)
        if whole.exists() or any(whole.parent.glob(f"{glob.escape(whole.name)}.*"))
        else ""
    )


def _names_a_file(argv: Any, base: Path) -> bool:
    """Return whether a word of the command is the relative path of a file in `base`."""
    words = argv if isinstance(argv, list) else ()
    return any(
        _is_relative(word) and "\0" not in word and len(word) < 4096 and (base / word).is_file()
        for word in words
    )


def read_template(text: str, base: Path, *, field: str) -> dict[str, Any]:
    """Return the contents of a JSON, YAML or TOML file with placeholders. Raises `SpecError`."""
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
    """Return whether `model: text` is a path, and neither a catalog name nor the hub id of a
    catalog model."""
    if text in catalog.model_names() or not _is_path(text, (".json",)):
        return False
    return text.lower() not in catalog.hub_models()


def is_space_file(text: str) -> bool:
    """Return whether `space: text` is a path, and not a built-in space."""
    return text not in space_files() and _is_path(text, (".yaml", ".yml", ".json"))


def read_model(text: str, base: Path | None) -> ModelSpec:
    """Return the model of a Hugging Face `config.json`, given its path or folder, named after the
    folder."""
    path = config_json(text, base)
    model = ModelSpec.from_hf(path, name=model_name(path))
    return check_source(replace(model, source=canonical(read_config_json(path))))


def config_json(text: str, base: Path | None) -> Path:
    """Return the path of a `config.json`, given its path or folder in a spec in `base`. Raises
    `SpecError` if it is not a JSON document."""
    path = locate(text, base, field="model")
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file() or path.stat().st_size > MODEL_BYTES:
        problem = (
            "is not a config.json"
            if path.exists()
            else "is neither a file nor the hub id of a catalog model"
        )
        remedy = (
            nearest(text.lower(), catalog.hub_models())
            or "set `model` to the path of a config.json, or to the model's fields"
        )
        raise SpecError(f"{text!r} {problem}", remedy=remedy, field="model")
    read_config_json(path)
    return path


def model_name(path: Path) -> str:
    """Return the name for the model of a `config.json`: its folder's name, or the file's if the
    file has another name."""
    return name_of(path.parent.name if path.name == "config.json" else path.stem)


def find_data(text: str, base: Path) -> str:
    """Return the absolute path of the training data. Raises `SpecError` if it is not a file."""
    path = locate(text, base, field="data")
    if not path.is_file():
        raise SpecError(
            f"the data file {text!r} " + ("is not a file" if path.exists() else "does not exist"),
            remedy="set `data` to a text or .bin file, or omit it to use the bundled text",
            field="data",
        )
    return str(path)


def locate(text: str, base: Path | None, *, field: str) -> Path:
    """Return the absolute path of `text` in a spec in `base`. Raises `SpecError` without a folder
    (specs that arrive over the network)."""
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
    """Return a file's name as a valid name of a model or space: letters, digits and `_.:+-`."""
    return re.sub(r"[^A-Za-z0-9_.:+-]+", "-", file).strip("-.:+")[:100] or "unnamed"


def _is_path(text: str, suffixes: tuple[str, ...]) -> bool:
    """Return whether the text has a slash or one of the suffixes."""
    return "/" in text or "\\" in text or text.endswith(suffixes)


Inspect = Callable[[ModelSpec], ModelSpec]
"""builds the model of `ModelSpec.code`, and returns the spec with its shape, parameters, plans and
fingerprint (`autotune.ports.DryRunner.inspect`)"""


def own_model(
    module: str,
    args: Mapping[str, Any],
    folder: str | None,
    *,
    name: str,
    base: Path | None,
    inspect: Inspect | None,
) -> ModelSpec:
    """Return the model that the user's function builds. Raises `SpecError` if code must not run,
    and whatever `inspect` raises."""
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
    """Return the transformers class of a config.json as a model. `text`: path of the file, or with
    its JSON text in `source` the model's name."""
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
    except SpecError:  # layers of different sizes or kinds must be built
        if can_build is None:
            raise
        return can_build(replace(_unknown(name, code=code), source=canonical(document)))
    cuts = model.num_layers - 1 if code.has_pipeline_split else 0
    return replace(model, source=canonical(document), code=replace(code, num_cuts=cuts))


def _unknown(name: str, *, code: ModelCode) -> ModelSpec:
    """Return a model with placeholders for its shape, which building it determines."""
    return ModelSpec(
        name=name, num_layers=1, hidden_size=1, num_attention_heads=1, vocab_size=1, code=code
    )


def _parsed(source: str) -> dict[str, Any]:
    """Return the JSON object in the text of a config.json. Raises `SpecError`."""
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
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
