"""Arguments that a program's code, and no option, passes to transformers' Trainer, trl's SFTTrainer
or Lightning's Trainer.

    args = SFTConfig(per_device_train_batch_size=2, bf16=True, fsdp="full_shard")
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")

    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    trainer = L.Trainer(devices=8, precision="bf16-mixed", accumulate_grad_batches=4, strategy="fsdp")

They are treated as the options of the same names that a launch passes to a program with a parser. A
computed value is unknown. Nothing is read from code that trains other than all weights or LoRA
adapters (`LoraConfig`, `load_in_4bit`), because these arguments do not describe such a training.

Likewise the values that a program without options assigns:

BATCH_SIZE = 16
config.accumulate = 4
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.onboarding.launch.launch_script import Argument
from autotune.onboarding.script.library_options import (
    ACCUMULATION,
    FOUR_BIT_SWITCHES,
    LIGHTNING_TRAINER,
    LORA_RANKS,
    MICRO_BATCH,
    TRAINER_ARGUMENTS,
)
from autotune.onboarding.script.option_names import meaning_of
from autotune.onboarding.script.options import ScriptOption, kind_of, option_of
from autotune.onboarding.script.syntax import (
    Text,
    called_name,
    condition_of,
    is_none,
    is_plain,
    keywords_of,
    last_name,
    literal_or_none,
)
from autotune.spec.texts.usual_names import optimizer_named, setting_of
from autotune.trainers.command.overriding import UnclearPlaceError, find
from autotune.trainers.post_training.adapters import targets_of

MODEL = "model_name_or_path"
DECODER_CLASSES = ("ForCausalLM", "LMHeadModel")
"""endings of the names of transformers' decoder classes"""
_OTHER_TRAININGS = frozenset({
    "FastLanguageModel", "PeftModel", "AdaLoraConfig", "IA3Config", "LoHaConfig", "LoKrConfig", "PrefixTuningConfig", "PromptTuningConfig", "VeraConfig", "use_dora", "load_in_8bit",
})  # fmt: skip
"""names in code that indicate a training that these arguments do not describe and plans do not
cover"""
_QUANTIZED = frozenset({"BitsAndBytesConfig", "quantization_config", "load_in_4bit"})
_ADAPTERS = _QUANTIZED | {"peft", "get_peft_model", "LoraConfig", "peft_config"}
_SHARDING = frozenset({"fsdp", "deepspeed", "optim"})
"""arguments that change the memory too much to go on if their value is unknown"""
_TYPES = frozenset({"bfloat16", "float16", "float32", "half", "set_default_dtype"})
"""names in code that may set the dtype of weights anywhere"""
_LIGHTNING = frozenset({"lightning", "pytorch_lightning"})
_OF_RANKS = ("accumulate_grad_batches", "strategy", "devices", "num_nodes")
"""arguments of Lightning's Trainer for ranks, sharding and accumulation"""
_OF_LIGHTNING = ("precision", "accumulate_grad_batches", "max_steps")
"""arguments of Lightning's Trainer that are treated as options"""
_SAID = frozenset({
    "per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16", "gradient_checkpointing", "torch_compile", "fsdp", "deepspeed", "max_length",
    "batch_size", "accumulate_grad_batches", "precision",
})  # fmt: skip
"""arguments that set a knob or the sequence length"""


@dataclass(frozen=True, slots=True)
class Written:
    """The arguments of a trainer in the code, treated as options."""

    options: tuple[ScriptOption, ...]
    """options of the trainer's class; without a default if the value is computed"""
    values: dict[str, Any]
    """values that the code passes, by option"""
    lines: dict[str, int]
    """line of each value that sets a knob and is not computed"""
    workload: dict[str, Any]
    """workload fields that follow: `pure_bf16`, `peft`, `optimizer`"""
    computed: frozenset[str] = frozenset()
    """names of options whose value is computed, such as `args.batch_size`"""
    parser: str = "HfArgumentParser"
    """the parser that would read such options"""
    beside: str = MICRO_BATCH
    """the keyword argument after which others may be added"""
    of: str = ""
    """the call with these keyword arguments; empty if the code assigns them to names"""
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """places of the options that other calls have, as `overrides` write them"""
    also: Mapping[str, str] = field(default_factory=dict)
    """values that trials set in addition, by place"""
    ranks: tuple[int, int] | None = None
    """(nodes, ranks per node) that the program starts itself; None if a launcher starts them, or
    the number is unknown"""

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The values as a launch would pass them."""
        return tuple(
            Argument(name, (str(value),), (f"--{name}={value}",))
            for name, value in self.values.items()
        )

    def places(self, name: str) -> tuple[str, ...]:
        """Where the code sets an option, as `overrides` write it."""
        return self.elsewhere.get(name) or (f"{self.of}.{name}" if self.of else name,)

    def merged(self, options: Sequence[ScriptOption]) -> tuple[ScriptOption, ...]:
        """The program's options with these. A value in the code replaces an option of the same
        meaning, but an option replaces a computed value."""
        targets = {setting_of(name) for name in self.values} - {None}
        return (
            *(option for option in options if setting_of(option.name) not in targets),
            *self._beside(options),
        )

    def adds_to(self, options: Sequence[ScriptOption]) -> bool:
        """Whether the code sets a knob or workload field for which the program has no option."""
        targets = {setting_of(option.name) for option in options}
        unset = (
            o
            for o in self._beside(options)
            if o.name not in self.values and setting_of(o.name) not in targets
        )
        values = {**{o.name: o.default for o in unset}, **self.values}
        is_computed = any(
            o.name in _SAID and o.name in self.computed for o in self._beside(options)
        )
        return (
            bool(self.workload)
            or is_computed
            or any(_is_set(values[name]) for name in values if name in _SAID)
        )

    def _beside(self, options: Sequence[ScriptOption]) -> list[ScriptOption]:
        """These options without computed ones for which the program has an option of the same
        meaning."""
        targets = {setting_of(option.name) for option in options}
        return [
            o
            for o in self.options
            if o.name not in self.computed or setting_of(o.name) not in targets
        ]


def written_arguments(text: Text) -> Written | None:
    """The arguments that the program's code passes to a trainer; None if it constructs no such
    class, or several."""
    if text.names & _OTHER_TRAININGS:
        return None
    if text.names & _LIGHTNING:
        return None if text.names & _ADAPTERS else _lightning_arguments(text)
    calls = [
        (call, declared) for call in text.calls() if (declared := _class_options(call)) is not None
    ]
    if len(calls) != 1:
        return None
    call, declared = calls[0]
    keywords, class_name = keywords_of(call), called_name(call)
    if len(keywords) < len(call.keywords):
        return None  # `**arguments`
    workload: dict[str, Any] = {}
    if text.names & _ADAPTERS:
        if (peft := written_adapters(text)) is None:
            return None
        if peft["method"] == "lora" and _is_loaded_in_fp32(text, class_name):
            peft["frozen_fp32"] = True
        workload |= {"peft": peft} if "rank" in peft else {}  # or else options set the adapters
    elif loaded_as(text)[0] == "bfloat16":
        workload |= {"pure_bf16": True, "shards_in_fp32": True}
    values = {name: text.value(node) for name, node in keywords.items()}
    if isinstance(fsdp_words := values.get("fsdp"), list):  # a list means the same as its words
        values["fsdp"] = " ".join(map(str, fsdp_words))
    values = {
        name: value for name, value in values.items() if isinstance(value, bool | int | float | str)
    }
    computed = {name for name, node in keywords.items() if name not in values and not is_none(node)}
    values = {name: value for name, value in values.items() if value or name not in _SHARDING}
    if computed & _SHARDING:
        return None
    if (optimizer := values.get("optim")) is not None:
        if (optimizer_name := optimizer_named(str(optimizer))) is None:
            return None
        workload |= {} if optimizer_name == "adamw" else {"optimizer": optimizer_name}
    options = [option_of(*each) for each in declared]
    options = [_with_computed(o, keywords[o.name]) if o.name in computed else o for o in options]
    if (model := _model(text)) is not None:
        values[MODEL] = model
    lines = {
        name: node.lineno for name, node in keywords.items() if name in _SAID and name in values
    }
    lines |= {called_name(each): each.lineno for each in text.calls("LoraConfig")}
    return Written(
        options=tuple(options),
        values=values,
        lines=lines or {class_name: call.lineno},
        workload=workload,
        computed=frozenset(computed),
        beside=MICRO_BATCH if MICRO_BATCH in keywords else next(iter(keywords), ""),
        of=class_name,
        also={f"{class_name}.output_dir": "{trial_dir}"},
    )


def unread_arguments(text: Text) -> str:
    """A call that passes arguments to a trainer of transformers, trl or Lightning and was not
    understood, with its line; empty if there is none."""
    endings = tuple(ending for ending, _ in TRAINER_ARGUMENTS)
    for call in text.calls():
        name, given = called_name(call), keywords_of(call)
        of_ranks = (given[each] for each in _OF_RANKS if each in given)
        is_lightning = name == "Trainer" and not _LIGHTNING.isdisjoint(text.names)
        if name.endswith(endings) or (is_lightning and any(map(_is_unread, of_ranks))):
            return f"{name}(...) in line {call.lineno}"
    return ""


def _is_unread(node: ast.expr) -> bool:
    """Whether an argument of Lightning's Trainer sets ranks, sharding or accumulation to a value
    that is not understood, such as a strategy object."""
    value = literal_or_none(node)
    return isinstance(node, ast.Call) or (_is_set(value) and value not in ("auto", "ddp"))


def _lightning_arguments(text: Text) -> Written | None:
    """Arguments of Lightning's Trainer and the batch size of its training DataLoader; None if a
    call has `**` arguments, or several are ambiguous."""
    trainers, loaders = text.calls("Trainer"), text.calls("DataLoader")
    if len(trainers) != 1 or not is_plain(trainers[0]):
        return None
    given = keywords_of(trainers[0])
    found = {name: text.value(node) for name, node in given.items()}
    values = {name: value for name, value in found.items() if value is not None}
    strategy = found.get("strategy", "auto")
    if strategy not in ("auto", "fsdp") and not str(strategy).startswith("ddp"):
        return None
    shuffled = (
        call for call in loaders if literal_or_none(keywords_of(call).get("shuffle")) is True
    )
    training = list(shuffled) or loaders
    lines_of = Counter(call.lineno for call in loaders)
    if any(lines_of[call.lineno] > 1 for call in training):
        return None  # no place that `overrides` can name
    sizes = [keywords_of(call).get("batch_size") for call in training]
    batches = {1 if size is None else text.value(size) for size in sizes}
    if len(batches) != 1:
        return None
    result: dict[str, Any] = {name: values[name] for name in _OF_LIGHTNING if name in values}
    computed = {name: given[name] for name in _OF_LIGHTNING if name in given.keys() - values.keys()}
    nodes_by_name = dict(given)
    if (size := next((size for size in sizes if size is not None), None)) is not None:
        nodes_by_name["batch_size"] = size
    if isinstance(batch := batches.pop(), int):
        result["batch_size"] = batch
    else:
        computed["batch_size"] = nodes_by_name["batch_size"]
    result |= {"fsdp": "full_shard"} if strategy == "fsdp" else {}
    result |= {MODEL: model} if (model := _model(text)) is not None else {}
    devices, nodes = values.get("devices"), values.get("num_nodes", 1)
    has_rank_counts = type(nodes) is int and type(devices) is int and devices > 0
    ranks = (int(nodes), int(devices or 0)) if has_rank_counts else None
    declared = [each for each in LIGHTNING_TRAINER if each[0] in _OF_LIGHTNING]
    options = [option_of(*each) for each in (*declared, ("batch_size", "int", None))]
    lines = {
        name: nodes_by_name[name].lineno
        for name in ("batch_size", *_OF_LIGHTNING, "strategy")
        if name in nodes_by_name and name not in computed
    }
    return Written(
        options=tuple(
            _with_computed(o, computed[o.name]) if o.name in computed else o for o in options
        ),
        values=result,
        lines=lines or {"Trainer": trainers[0].lineno},
        workload={},
        computed=frozenset(computed),
        parser="Lightning",
        beside=next(iter(given), ""),
        of="Trainer",
        elsewhere={"batch_size": tuple(_loader(call, loaders) for call in training)},
        also={
            "Trainer.devices": "{nproc_per_node}",
            "Trainer.num_nodes": "{nnodes}",
            "Trainer.default_root_dir": "{trial_dir}",
        },
        ranks=ranks,
    )


def _loader(call: ast.Call, loaders: list[ast.Call]) -> str:
    """The place of a DataLoader's batch size, as `overrides` write it."""
    return "DataLoader.batch_size" if len(loaders) == 1 else f"DataLoader:{call.lineno}.batch_size"


def _is_set(value: Any) -> bool:
    """Whether a value differs from the neutral one: not False, None or 1."""
    return value is True or value not in (None, False, 1, "")


def _with_computed(option: ScriptOption, node: ast.expr) -> ScriptOption:
    """The option with an unknown default. The expression is kept for flags and conditions, which
    the place where it runs may decide."""
    text = ast.unparse(node) if option.kind == "flag" else condition_of(node)
    return replace(option, default=None, computed=text, line=node.lineno)


def _class_options(call: ast.Call) -> tuple[tuple[str, str, Any], ...] | None:
    """The options of the class that a call constructs; None if it is no class of arguments."""
    name = called_name(call)
    return next((options for ending, options in TRAINER_ARGUMENTS if name.endswith(ending)), None)


def _model(text: Text) -> str | None:
    """The model that the code loads, or passes to a trainer by name; None if it loads several."""
    named: set[Any] = set()
    for call in text.calls():
        model = keywords_of(call).get("model", next(iter(call.args), None))
        if called_name(call).endswith("Trainer") and model is not None:
            named.add(text.value(model))
        elif loads_a_model(call):
            named.add(_named_model(call, text))
    texts = {each for each in named if isinstance(each, str)}
    return texts.pop() if len(texts) == 1 else None


def _is_loaded_in_fp32(text: Text, of: str) -> bool:
    """Whether the weights are loaded in fp32. trl's trainers do so by default if the model is
    passed by name. `of`: the class of arguments."""
    dtype = loaded_as(text)[0]
    is_trl = not of.endswith("TrainingArguments")
    by_name = isinstance(_model(text), str) and not any(map(loads_a_model, text.calls()))
    return dtype == "float32" or (not dtype and is_trl and by_name)


def written_adapters(text: Text) -> dict[str, Any] | None:
    """The adapters of the code's only LoraConfig, as `peft` of a workload, with PEFT's defaults.
    Without `rank` if an option sets it (`r=args.lora_r`); an option may also switch 4 bits on. None
    if they cannot be read."""
    configs = text.calls("LoraConfig")
    if len(configs) != 1 or not is_plain(configs[0]):
        return None
    nodes = keywords_of(configs[0])
    given = {name: text.value(node) for name, node in nodes.items()}
    rank, modules = given.get("r", 8), given.get("target_modules", ["q_proj", "v_proj"])
    has_rank_option = "r" in nodes and rank is None and last_name(nodes["r"]) in LORA_RANKS
    targets = targets_of([modules] if isinstance(modules, str) else modules or ())
    if not (has_rank_option or isinstance(rank, int)) or not targets:
        return None
    given_bits = (keywords_of(call).get("load_in_4bit") for call in text.calls())
    switches = [node for node in given_bits if node is not None]
    is_quantized = bool(switches) and all(literal_or_none(node) is True for node in switches)
    has_switch = any(last_name(node) in FOUR_BIT_SWITCHES for node in switches)
    if not has_switch and is_quantized == text.names.isdisjoint(_QUANTIZED):
        return None
    method = "qlora" if is_quantized else "lora"
    rank_field = {} if has_rank_option else {"rank": rank}
    return {"method": method, **rank_field, "targets": targets, "library": "peft"}


def loads_a_model(call: ast.Call) -> bool:
    """Whether the call is `AutoModelForCausalLM.from_pretrained(...)`, or the same of another
    decoder class."""
    if called_name(call) != "from_pretrained" or not isinstance(call.func, ast.Attribute):
        return False
    return ast.unparse(call.func.value).endswith(DECODER_CLASSES)


def loaded_model(text: Text) -> tuple[str, int] | None:
    """(name, line) of the model that a program loads; None if it loads others too, computes the
    name, or trains adapters."""
    calls = [call for call in text.calls("from_pretrained") if loads_a_model(call)]
    if not calls or text.names & (_ADAPTERS | _OTHER_TRAININGS):
        return None
    named = {_named_model(call, text) for call in calls}
    name = named.pop() if len(named) == 1 else None
    return (name, calls[0].lineno) if isinstance(name, str) else None


def _named_model(call: ast.Call, text: Text) -> Any:
    """The model's name in a call that loads it; None if it is computed."""
    given = call.args[0] if call.args else keywords_of(call).get("pretrained_model_name_or_path")
    return text.value(given)


def loaded_without_dtype(text: Text) -> int:
    """Line of a call that loads a model without a dtype, if nothing else in the code sets one; 0:
    there is none."""
    dtype_arguments = {"dtype", "torch_dtype", "quantization_config", None}
    for call in () if _TYPES & text.names else text.calls("from_pretrained"):
        if loads_a_model(call) and dtype_arguments.isdisjoint(word.arg for word in call.keywords):
            return call.lineno
    return 0


def loaded_as(text: Text) -> tuple[str, int]:
    """(dtype, line) of the models that the code loads: `bfloat16`, `float16`, `float32`, `auto`;
    `bf16` for bfloat16 that the option bf16 switches on; `?` for a computed dtype. ("", 0) if no
    call sets a dtype, or several set different ones."""
    found = {}
    for call in text.calls():
        given = keywords_of(call)
        init = given.get("model_init_kwargs")
        if isinstance(
            init, ast.Dict
        ):  # an argument of trl's classes, whose trainers load the model
            given = dict(zip(map(str, map(literal_or_none, init.keys)), init.values, strict=True))
        dtype = given.get("dtype") or given.get("torch_dtype")
        if dtype is not None and (isinstance(init, ast.Dict) or loads_a_model(call)):
            found[_type_of(dtype)] = call.lineno
    return next(iter(found.items())) if len(found) == 1 else ("", 0)


def _type_of(dtype: ast.expr) -> str:
    """The dtype of an expression, as `loaded_as` returns it."""
    name = ast.unparse(dtype).strip("'\"").rpartition(".")[2]
    if name in ("bfloat16", "float16", "float32", "auto"):
        return name
    is_switched = (
        isinstance(dtype, ast.IfExp)
        and "bf16" in ast.unparse(dtype.test)
        and _type_of(dtype.body) == "bfloat16"
    )
    return "bf16" if is_switched else "?"


_ACCELERATOR = "Accelerator"
_OF_ACCELERATOR = f"{_ACCELERATOR}.{ACCUMULATION}"
_KNOBS = frozenset({"micro_batch_size", "accumulation_steps", "global_batch_size"})
"""at least one of these is needed to tune anything"""


def written_constants(
    text: Text, parser: str = "constants", options: Sequence[ScriptOption] = ()
) -> Written | None:
    """Literals that the code assigns once, to names of knobs or workload fields for which there is
    no option; None without a batch. If there is an option for the micro-batch, but none for the
    global batch: only the accumulation passed to accelerate's `Accelerator`. `parser`: the parser
    of `options`."""
    option_targets = {
        meaning.target for each in options if (meaning := meaning_of(each)) is not None
    }
    if option_targets & _KNOBS not in (set(), {"micro_batch_size"}):
        return None
    own_names = {option.name for option in options}
    set_by = (each for node in text.nodes for each in _assigned(node))
    found = {place: option for place, option in set_by if option.name not in own_names}
    if option_targets & _KNOBS:
        given = (keywords_of(call).get(ACCUMULATION) for call in text.calls(_ACCELERATOR))
        accelerator_places = {
            _OF_ACCELERATOR,
            *(ast.unparse(node) for node in given if node is not None),
        }
        found = {place: option for place, option in found.items() if place in accelerator_places}
    names = Counter(option.name for option in found.values())
    places = {}
    for place, option in found.items():
        with suppress(UnclearPlaceError):
            if names[option.name] == 1 and find(text.tree, place):
                places[option.name] = (place, option)
    meanings = {name: meaning_of(option) for name, (_, option) in places.items()}
    if not _KNOBS & {meaning.target for meaning in meanings.values() if meaning}:
        return None
    found_options = [option for _, option in places.values()]
    return Written(
        options=tuple(replace(option, default=None) for option in found_options),
        values={option.name: option.default for option in found_options},
        lines={option.name: option.line for option in found_options},
        workload={},
        parser=parser,
        elsewhere={name: (place,) for name, (place, _) in places.items()},
    )


def _assigned(node: ast.AST) -> list[tuple[str, ScriptOption]]:
    """(place, the value as an option) if the node assigns a literal to a name of a knob; or else
    empty."""
    target: ast.expr | None = None
    expression = getattr(node, "value", None)
    if isinstance(node, ast.Assign):
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign):
        target = node.target
    elif isinstance(node, ast.Call) and called_name(node) == _ACCELERATOR:
        expression = keywords_of(node).get(ACCUMULATION)
        target = ast.parse(_OF_ACCELERATOR, mode="eval").body
    if not isinstance(target, ast.Name | ast.Attribute):
        return []
    value = literal_or_none(expression)
    if not isinstance(value, bool | int | str):
        return []
    name = target.id if isinstance(target, ast.Name) else target.attr
    option = replace(option_of(name, kind_of(value), value), line=getattr(expression, "lineno", 0))
    return [(ast.unparse(target), option)] if meaning_of(option) is not None else []
