"""Imports and calls the function that builds a user's model. Errors name the line of user code that
failed.

The module is imported from `ModelCode.folder` if that exists, otherwise from the working directory:
on another machine of a Ray cluster, the program's files are where Ray unpacked them.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autotune.errors import AutotuneError, ConfigError
from autotune.spec import ModelCode, ModelSpec
from autotune_workers.own_model.built_model import BuiltModel, build_class, built_model
from autotune_workers.own_model.users_line import error_with_line


def build(model: ModelSpec) -> BuiltModel:
    """Builds the model of `ModelSpec.code` on the default device. Raises `ConfigError` that names
    the line of user code that failed."""
    code = model.code
    assert code is not None, "catalog shapes use the built-in decoder"
    if not code.module:
        return build_class(model)
    function = find_builder(code)
    args = json.loads(code.args)
    try:
        returned = function(**args)
    except Exception as error:  # the user's code may raise anything
        given = ", ".join(f"{name}={value!r}" for name, value in args.items())
        called = f"with ({given})" if given else "without arguments"
        raise ConfigError(
            f"the builder {code.module} raised {error_with_line(error)} when called {called}",
            remedy="fix the builder, or `model.args` in the spec",
            field="model.module",
        ) from error
    return built_model(returned, code.module)


def build_without_memory(model: ModelSpec) -> BuiltModel:
    """Builds the model on the meta device, or with real weights if the builder fails there."""
    assert model.code is not None
    if model.code.module:
        find_builder(model.code)  # a failed import need not be tried twice
    try:
        with torch.device("meta"):
            return build(model)
    except AutotuneError:
        if not model.code.module:
            raise
    return build(model)


def find_builder(code: ModelCode) -> Callable[..., Any]:
    """Imports the function that `code.module` names. Raises `ConfigError` if it cannot be imported
    or is no function."""
    module_name, _, path = code.module.partition(":")
    folder = code.folder if code.folder and Path(code.folder).is_dir() else str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if not isinstance(error, ModuleNotFoundError):
            remedy = "fix this line; a module that needs a GPU, files or the network should access them inside the function"
        elif error.name and module_name.startswith(error.name):
            remedy = f"move the module into {folder}, install the module, or set its folder as `model.folder`"
        else:
            remedy = f"install {error.name} where the ranks run"
        raise ConfigError(
            f"the builder's module {module_name} cannot be imported: {error_with_line(error)}",
            remedy=remedy,
            field="model.module",
        ) from error
    try:
        function = functools.reduce(getattr, path.split("."), module)
    except AttributeError:
        where = getattr(module, "__file__", module_name)
        raise ConfigError(
            f"{where} has no {path!r}",
            remedy="specify the function that builds the model",
            field="model.module",
        ) from None
    if isinstance(function, nn.Module) or not callable(function):
        raise ConfigError(
            f"{code.module} must be a function that builds the model, but is a {type(function).__name__}",
            remedy="specify a function without required arguments, or set the arguments under `model.args`",
            field="model.module",
        )
    return function
