"""The settings file that configures a script: its values as options, and the copy of a trial, in
which some of them are placeholders.

@hydra.main(config_path="conf", config_name="train")   the command overrides values: trainer.batch=8
OmegaConf.from_cli()                                   likewise, of the file that the script loads
train.py --config=train.yaml, train.py train.json      each trial has a copy, and its command names the copy
train.py config=train.yaml train.batch=8               likewise, with OmegaConf.from_cli()
train.py --config=train.yaml train.batch=8             the copy has the overridden values, and the command no longer overrides them

DeepSpeed's file of a launch script becomes a template: ZeRO stage and batch are placeholders in a
trial's copy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, final

from autotune.onboarding.configuration_files import document_in, read_present
from autotune.onboarding.launch.launch_script import Started, value_of
from autotune.onboarding.script.options import ScriptOption, kind_of
from autotune.onboarding.script.reading import Script
from autotune.spec.texts.usual_names import setting_of
from autotune.trainers.documents.placeholders import braced
from autotune.trainers.present_configuration import (
    DOCUMENTS,
    flat,
    merged,
    nested,
    parse_document,
)

MAX_SETTINGS = 2000
"""maximum number of values; a file with more holds data"""
_SETTINGS = re.compile(
    r"((\w+_)?(config|cfg|conf|settings?|hparams|hyper_?param(eter)?s|params|recipe|experiment|exp|yaml|args|options|opts?)"
    r"(_?(file|path|name|yaml|json|yml))?|c|f)"
)
"""options that name a settings file"""
_OTHER_SETTINGS = re.compile(
    r"model|token|vocab|merge|deepspeed|(^|_)ds_|fsdp|accelerate|quant|bnb|peft|lora|data|generation|schedul|log|wandb|eval|prompt|template|class|label|"
    r"processor|feature|kernel|autotune"
)
"""such options whose settings are not those of the training"""
_OF_TRAINING = re.compile(
    r"lr|learning_rate|(max_|num_(train_)?)?epochs?|weight_decay|warmup(_\w+)?|optim(izer)?(_\w+)?|grad_clip|clip_grad_norm|max_grad_norm|dropout"
)
"""further settings that indicate a training"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """A settings file that the command names; each trial gets a copy."""

    given: str
    """the path as the command has it"""
    option: str
    """the option whose value it is, without dashes; empty for a positional argument"""
    document: Mapping[str, Any]
    """contents, with the values that the command overrides"""
    words: frozenset[str] = frozenset()
    """arguments that override values"""
    unclear: tuple[str, ...] = ()
    """arguments that seem to override values, but were not understood"""

    @property
    def name(self) -> str:
        """Its name among the files of a trial."""
        return PurePosixPath(self.given).name

    def told(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """The contents of a trial's copy. `written`: placeholders by the path of the value that
        they replace."""
        held = dict(flat(self.document))
        more = {path: value for path, value in written.items() if path not in held}
        return merged(_replaced(self.document, written, ""), nested(more))


def settings_file(script: Script, cwd: Path) -> SettingsFile | None:
    """The settings file that the launch passes, or else an option's default; None if there is
    none."""
    if script.overridden:
        return None
    candidates = [(word, a.name) for a in script.arguments for word in a.values]
    if script.code.own.calls("from_cli"):  # config=train.yaml
        assignments = (word.partition("=") for word, name in candidates if not name)
        candidates += [(value, key) for key, _, value in assignments]
    candidates += [
        (o.default, o.name)
        for o in script.options
        if isinstance(o.default, str) and o.given is None
    ]
    for path, option in candidates:
        takes_one_file = script.parser == "HfArgumentParser" and script.told_in is None
        if option in OPTIONS or (takes_one_file and not option):
            continue  # DeepSpeed's file becomes a template; HfArgumentParser takes a file only as its single argument
        names_settings = not option or (
            _SETTINGS.fullmatch(option) is not None and not _OTHER_SETTINGS.search(option)
        )
        if not names_settings or not path.endswith(DOCUMENTS) or path.startswith("-"):
            continue
        document = document_in(cwd / path)
        if document and holds_settings(document, least=1 if option else 2):
            return _with_words(SettingsFile(given=path, option=option, document=document), script)
    return None


def _with_words(file: SettingsFile, script: Script) -> SettingsFile:
    """The file with values that arguments such as `train.batch=8` override. `train.batch 8` is not
    understood."""
    values, declared = dict(_values(file.document)), {option.name for option in script.options}
    overrides: dict[str, Any] = {}
    words, unclear = set[str](), list[str]()
    for word in (word for argument in script.arguments for word in argument.words):
        key, sign, value = word.lstrip("-+").partition("=")
        if key not in values or key.replace("-", "_") in declared:
            continue
        if sign:
            overrides[key] = typed(value)
            words.add(word)
        elif "." in key:
            unclear.append(word)
    document = _replaced(file.document, overrides, "", braces=False) if overrides else file.document
    return replace(file, document=document, words=frozenset(words), unclear=tuple(unclear))


def holds_settings(document: Mapping[str, Any], *, least: int) -> bool:
    """Whether a file holds settings of a training: at most `MAX_SETTINGS` values, at least `least`
    of them recognized. A file whose numbers count from 0 is a vocabulary."""
    values = list(_values(document))
    if len(values) > MAX_SETTINGS:
        return False
    numbers = [value for _, value in values if type(value) is int]
    if (
        len(numbers) > 3
        and len(numbers) >= 0.8 * len(values)
        and sorted(numbers) == list(range(len(numbers)))
    ):
        return False
    named = {path.rpartition(".")[2].lower() for path, _ in values}
    known = sum(
        setting_of(name) is not None or _OF_TRAINING.fullmatch(name) is not None for name in named
    )
    return known >= least


def told_by_file(file: SettingsFile) -> Iterator[ScriptOption]:
    """The file's values as options that no argument sets. The outermost seed comes first, because
    inner ones, such as a data set's, are not the seed of the training."""
    values = sorted(_values(file.document), key=lambda v: v[0].count(".") * v[0].endswith("seed"))
    for path, value in values:
        yield ScriptOption(
            name=path, kind=kind_of(value), on=True, off=False, given=value, file=file.given
        )


def overridden(script: Script, cwd: Path) -> Iterator[ScriptOption]:
    """Values of the file that the command may override, as options with the values that the command
    passes."""
    if not script.overridden:
        return
    words = [word for argument in script.arguments for word in argument.words]
    given = dict(word.lstrip("+").split("=", 1) for word in words if "=" in word)
    program_folder = cwd / Path(script.started.file).parent if script.started else cwd
    for name, value in _values(
        _composed(program_folder / script.overridden) or document_in(cwd / script.overridden)
    ):
        present = typed(given[name]) if name in given else None
        option = ScriptOption(
            name=name, prefix=f"{name}=", kind=kind_of(value), default=value, file=script.overridden
        )
        yield replace(option, on="true", off="false", given=present)


def typed(text: str) -> Any:
    """The text as YAML parses it, if that is a number or a flag; or else the text."""
    import yaml  # imported here because it is slow to import

    with suppress(yaml.YAMLError):
        value = yaml.safe_load(text)
        return value if isinstance(value, int | float | bool) else text
    return text


def _composed(path: Path) -> dict[str, Any]:
    """A file of Hydra merged with the files that its `defaults` name, as far as they are found."""
    document = document_in(path)
    composed: dict[str, Any] = {}
    for entry in document.pop("defaults", None) or ():
        for group, name in entry.items() if isinstance(entry, dict) else [("", entry)]:
            if (
                isinstance(name, str)
                and name != "_self_"
                and not str(group).startswith(("override ", "/"))
            ):
                part = _composed(path.parent / group / f"{name.removesuffix('.yaml')}.yaml")
                composed |= {group: part} if group else part
    return merged(composed, document)


def _values(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """(path, value) of all values except mappings and lists."""
    return ((path, value) for path, value in flat(document) if not isinstance(value, dict | list))


def _replaced(node: Any, written: Mapping[str, Any], path: str, *, braces: bool = True) -> Any:
    """The document with values replaced. `written`: replacements by path; `braces`: whether to
    double the braces of all other texts."""
    if isinstance(node, dict):
        inside = (
            (key, value, f"{path}.{key}" if path else str(key)) for key, value in node.items()
        )
        return {key: _replaced(value, written, own, braces=braces) for key, value, own in inside}
    if isinstance(node, list):
        return [_replaced(value, {}, "", braces=braces) for value in node]
    if path in written:
        return written[path]
    return braced(node) if braces and isinstance(node, str) else node


OPTIONS = ("deepspeed", "deepspeed_config", "ds_config")
"""options that name DeepSpeed's file"""
_BATCH = {
    "train_batch_size": "global_batch_size",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "accumulation_steps",
}
"""keys of the file for the batch; DeepSpeed computes missing ones"""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """DeepSpeed's file with placeholders."""

    name: str
    """its name among the files of a trial"""
    given: str
    """the path as the launch script has it"""
    document: Mapping[str, Any]
    """contents"""
    stages: tuple[int, ...]
    """ZeRO stages that trials may use, the current one first"""
    precision: str = ""
    """the number format that the file sets; empty if it leaves that to the program (`auto`)"""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """current batch and tensor-parallel degree, by knob; without values that the program fills in
    (`auto`)"""

    @property
    def options(self) -> Iterator[ScriptOption]:
        """These numbers as options that no argument sets. With only the batch given, DeepSpeed does
        not accumulate."""
        numbers = dict(self.numbers)
        if not {"micro_batch_size", "accumulation_steps"} & numbers.keys() and numbers:
            numbers["accumulation_steps"] = 1
        for name, number in numbers.items():
            yield ScriptOption(name=name, kind="int", given=number, file=self.given)


def deepspeed_template(started: Started, base: Path) -> Template | None:
    """The template of the file that the script passes; None without a file, or if it sets neither
    batch nor sharding."""
    given = value_of(started.arguments, *OPTIONS)
    path = base / given
    if not given or path.suffix != ".json" or not path.is_file():
        return None
    document = _replaced(parse_document(path.name, read_present(path).files[path.name]), {}, "")
    template: dict[str, Any] = dict(document)
    numbers: dict[str, int] = {}
    for key, target in _BATCH.items():
        if type(number := document.get(key)) is int:
            numbers[target] = number
    if numbers:  # a trial's file has every batch key that DeepSpeed cannot compute from the others
        used_keys = {key for key in _BATCH if key in document} | {*_BATCH} - {"train_batch_size"}
        template |= {
            key: f"{{{name}}}"
            for key, name in _BATCH.items()
            if key in used_keys and not isinstance(document.get(key), str)
        }
    tensor_parallel = document.get("tensor_parallel")
    if (
        isinstance(tensor_parallel, dict)
        and type(degree := tensor_parallel.get("autotp_size")) is int
        and degree > 0
    ):
        numbers["tp"], template["tensor_parallel"] = (
            degree,
            {**tensor_parallel, "autotp_size": "{tp}"},
        )
    sharding = document.get("zero_optimization")
    stage = sharding.get("stage", 0) if isinstance(sharding, dict) else 0
    if stage not in (0, 1, 2, 3) or not (numbers or stage):
        return None
    is_fixed = stage == 0 or "offload_param" in sharding  # offloaded parameters need stage 3
    stages = (stage,) if is_fixed else (stage, *(each for each in (1, 2, 3) if each != stage))
    if stage:
        template["zero_optimization"] = {**sharding, "stage": "{zero_stage}"}
    return Template(
        name=path.name,
        given=given,
        document=template,
        stages=stages,
        precision=_fixed_format(document),
        numbers=numbers,
    )


def _fixed_format(document: Mapping[str, Any]) -> str:
    """The number format that the file enables; empty if it enables none."""
    for key, value in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
        section = document.get(key)
        if isinstance(section, Mapping) and section.get("enabled") is True:
            return value
    return ""
