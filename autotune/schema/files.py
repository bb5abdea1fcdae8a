"""The files that a spec points to: a model's config.json, a search space, training data, a program's folder and the templates of its files.

A spec that is read from a file comes out self-contained: what the files hold stands in it, and the path of the data is absolute. So it means the same in
another folder, on resumption, and for a service on another machine. Paths are relative to the spec's own folder.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from autotune.assets import space_files, study_files
from autotune.errors import SpecError
from autotune.schema.reading import MAX_BYTES, check_size, read_document
from autotune.spec import ModelSpec, catalog
from autotune.spec.plain import canonical

MODEL_BYTES = 1 << 18
"""A `config.json` larger than this is none."""


def read_spec(source: str | Path) -> dict[str, Any]:
    """The self-contained document of a YAML or JSON file, of standard input (`-`), or of a study that ships (its name, e.g. `laptop`).

    Raises `SpecError` when it (or a file that it points to) cannot be read, is too large, is no YAML or is not a mapping.
    """
    shipped = study_files()
    if str(source) in shipped and not Path(source).exists():
        source = shipped[str(source)]
    document = read_document(source, what="study spec")
    base = Path.cwd() if str(source) == "-" else Path(source).absolute().parent
    model, space, data = (document.get(key) for key in ("model", "space", "data"))
    if isinstance(model, dict) and set(model) == {"hf"} and isinstance(model["hf"], str):
        document["model"] = asdict(read_model(model["hf"], base))
    elif isinstance(model, str) and is_model_file(model):
        document["model"] = asdict(read_model(model, base))
    if isinstance(space, str) and is_space_file(space):
        path = locate(space, base, field="space")
        document["space"] = {"name": name_of(path.stem), **read_document(path, what="search space")}
    if isinstance(data, str):
        document["data"] = find_data(data, base)
    if isinstance(document.get("trainer"), dict):
        document["trainer"] = with_program_files(document["trainer"], base)
    return document


def with_program_files(trainer: dict[str, Any], base: Path) -> dict[str, Any]:
    """The trainer with absolute paths of its program's folder (`cwd`) and environment (`python`), and with the contents of the templates that it
    names (`files`)."""
    cwd, files, python = trainer.get("cwd"), trainer.get("files"), trainer.get("python")
    changes: dict[str, Any] = {}
    if isinstance(python, str) and python:
        changes["python"] = os.path.abspath(
            base / Path(python).expanduser()
        )  # a link to an interpreter is its environment's
    if isinstance(cwd, str) and cwd not in ("", "{files}"):
        folder = locate(cwd, base, field="trainer.cwd")
        if not folder.is_dir():
            raise SpecError(
                f"the program's folder {cwd!r} does not exist",
                remedy="give a folder, relative to that of the spec",
                field="trainer.cwd",
            )
        changes["cwd"] = str(folder)
    if isinstance(files, dict):
        changes["files"] = {
            name: read_template(template, base, field=f"trainer.files.{name}")
            if isinstance(template, str)
            else template
            for name, template in files.items()
        }
    return {**trainer, **changes}


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
            f"the template {text!r} is not TOML: {error}", remedy='write placeholders in quotes: "{tp}"', field=field
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
    path = locate(text, base, field="model")
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file() or path.stat().st_size > MODEL_BYTES:
        raise SpecError(
            f"{text!r} is no config.json", remedy="give its path, or the model's fields inline", field="model"
        )
    model = ModelSpec.from_hf(path, name=name_of(path.parent.name if path.name == "config.json" else path.stem))
    return replace(model, source=canonical(json.loads(path.read_text(encoding="utf-8"))))


def find_data(text: str, base: Path) -> str:
    """The absolute path of the training data."""
    path = locate(text, base, field="data")
    if not path.is_file():
        raise SpecError(
            f"the data file {text!r} does not exist",
            remedy="give a text or .bin file, or leave `data` out for the text that ships",
            field="data",
        )
    return str(path)


def locate(text: str, base: Path | None, *, field: str) -> Path:
    """The path that `text` means in a spec of folder `base`; without a folder (over the wire) paths are refused."""
    if base is None:
        raise SpecError(
            f"a path is read only where the spec itself is a file, but {field} is {text!r}",
            remedy="give the contents inline",
            field=field,
        )
    if "\0" in text:
        raise SpecError("a path cannot hold a zero byte", field=field)
    return (base / Path(text).expanduser()).resolve()


def name_of(file: str) -> str:
    """A file's name as the name of what it holds: letters, digits and a few signs."""
    return re.sub(r"[^A-Za-z0-9_.:+-]+", "-", file).strip("-.:+")[:100] or "unnamed"


def _is_path(text: str, suffixes: tuple[str, ...]) -> bool:
    return "/" in text or "\\" in text or text.endswith(suffixes)
