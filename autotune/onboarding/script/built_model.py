"""The shape of a decoder that a program builds from a configuration class of transformers:

    config = LlamaConfig(hidden_size=args.width, num_hidden_layers=8, vocab_size=len(tokenizer))
    model = LlamaForCausalLM(config)

Sizes that the call leaves out are the class's defaults.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from autotune.errors import SpecError
from autotune.onboarding.script.syntax import Text, called_name, is_none, is_plain, keywords_of
from autotune.onboarding.script.written_arguments import DECODER_CLASSES, loads_a_model
from autotune.spec.hugging_face.defaults import SIZE_KEYS
from autotune.spec.hugging_face.reading import family_of_class, fields_of

_SIZES = frozenset(key for keys in SIZE_KEYS.values() for key in keys)
_OF_OPTIONS = re.compile(r"arg|opt|flag|conf|cfg|param", re.IGNORECASE)
"""names of objects that hold a program's options"""
_ANY_SIZE = 1
"""placeholder for a computed vocabulary size while the other sizes are read"""


def built_model(text: Text, options: Mapping[str, Any]) -> tuple[dict[str, Any], int] | None:
    """(fields of `ModelSpec`, line of the configuration). `options`: values of the program's
    options by name. A vocabulary that the program computes is None. None if the program loads a
    decoder, has several configurations, or computes another size."""
    builds = any(map(_builds_a_model, text.calls()))
    configurations = [call for call in text.calls() if _is_configuration(call, text)]
    if not builds or len(configurations) != 1 or any(map(loads_a_model, text.calls())):
        return None
    (call,) = configurations
    given = {key: _value(node, text, options) for key, node in keywords_of(call).items()}
    unset = {key for key, node in keywords_of(call).items() if is_none(node)}
    computed = {key for key in given.keys() & _SIZES if given[key] is None} - unset
    document = {key: value for key, value in given.items() if value is not None}
    if computed - {"vocab_size"}:
        return None
    with suppress(SpecError):
        sizes = {"architectures": [_class(call)], **document, **dict.fromkeys(computed, _ANY_SIZE)}
        return {**fields_of(sizes), **dict.fromkeys(computed)}, call.lineno
    return None


def _builds_a_model(call: ast.Call) -> bool:
    """Whether the call constructs a decoder."""
    name = called_name(call)
    return name == "from_config" or name.endswith(DECODER_CLASSES)


def _class(call: ast.Call) -> str:
    """The part of the called name before `Config`; empty if the name does not end with it."""
    before, _, after = called_name(call).rpartition("Config")
    return "" if after else before


def _is_configuration(call: ast.Call, text: Text) -> bool:
    """Whether the call creates a configuration of a transformers model, with keyword arguments
    only."""
    if not _class(call) or called_name(call) in text.classes or not is_plain(call):
        return False
    with suppress(SpecError):
        return bool(family_of_class(_class(call)))
    return False


def _value(node: ast.expr, text: Text, options: Mapping[str, Any]) -> Any:
    """The value of an expression, from an option or a literal; None if it is computed."""
    if isinstance(node, ast.Attribute) and _OF_OPTIONS.search(ast.unparse(node.value)):
        return options.get(node.attr)
    return text.value(node)
