"""What a program's own text gives transformers' Trainer, trl's SFTTrainer or Lightning's Trainer,
where no option does.

    args = SFTConfig(per_device_train_batch_size=2, bf16=True, fsdp="full_shard")
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B")

    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    trainer = L.Trainer(devices=8, precision="bf16-mixed", accumulate_grad_batches=4, strategy="fsdp")

They are read as the options of the same names that a launch gives to a program with a parser. A
value that the text computes is not known, and nothing is read where the text trains in another way
than with all weights or with LoRA's adapters (`LoraConfig`, `load_in_4bit`), which these arguments
do not say.

What the text of a program without options sets by itself, read as the options of these names.

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
from autotune.spec.texts.usual_names import optimizer_named, target_of
from autotune.trainers.command.overriding import UnclearPlaceError, find
from autotune.trainers.post_training.adapters import targets_of

MODEL = "model_name_or_path"
_OTHER_TRAININGS = frozenset({
    "FastLanguageModel", "PeftModel", "AdaLoraConfig", "IA3Config", "LoHaConfig", "LoKrConfig", "PrefixTuningConfig", "PromptTuningConfig", "VeraConfig", "use_dora", "load_in_8bit",
})  # fmt: skip
"""names of what these arguments do not say and plans do not know"""
_QUANTIZED = frozenset({"BitsAndBytesConfig", "quantization_config", "load_in_4bit"})
_ADAPTERS = _QUANTIZED | {"peft", "get_peft_model", "LoraConfig", "peft_config"}
_SHARDING = frozenset({"fsdp", "deepspeed", "optim"})
"""what changes the memory too much for a value that is not known"""
_TYPES = frozenset({"bfloat16", "float16", "float32", "half", "set_default_dtype"})
"""names by which a text may say the type of its weights anywhere"""
_LIGHTNING = frozenset({"lightning", "pytorch_lightning"})
_OF_RANKS = ("accumulate_grad_batches", "strategy", "devices", "num_nodes")
_OF_LIGHTNING = ("precision", "accumulate_grad_batches", "max_steps")
_SAID = frozenset({
    "per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16", "gradient_checkpointing", "torch_compile", "fsdp", "deepspeed", "max_length",
    "batch_size", "accumulate_grad_batches", "precision",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Written:
    """The arguments of the one call of a class of arguments."""

    options: tuple[ScriptOption, ...]
    """those that the class has; one whose value is computed has no default"""
    values: dict[str, Any]
    """what the text gives them"""
    lines: dict[str, int]
    """the line of each that concerns a knob and is not computed"""
    workload: dict[str, Any]
    """what it says of the workload: `pure_bf16`, `peft`, `optimizer`"""
    computed: frozenset[str] = frozenset()
    """names whose value is computed, as `args.batch_size` is"""
    parser: str = "HfArgumentParser"
    """what would read such options"""
    beside: str = MICRO_BATCH
    """the keyword argument behind which others may be written"""
    of: str = ""
    """the call that has them as keyword arguments; empty where they are names that the text sets"""
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """places of those that other calls have"""
    also: Mapping[str, str] = field(default_factory=dict)
    """what a trial sets besides, by place"""
    ranks: tuple[int, int] | None = None
    """(nodes, ranks of a node) that it starts by itself; None where a launcher starts them, or
    nobody says how many"""

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The values as a launch would give them."""
        return tuple(
            Argument(name, (str(value),), (f"--{name}={value}",))
            for name, value in self.values.items()
        )

    def places(self, name: str) -> tuple[str, ...]:
        """Where the text sets it, as `overrides` name it."""
        return self.elsewhere.get(name) or (f"{self.of}.{name}" if self.of else name,)

    def merged(self, options: Sequence[ScriptOption]) -> tuple[ScriptOption, ...]:
        """The program's options with these; the text comes before an option of the same meaning,
        and an option before what the text computes."""
        said = {target_of(name) for name in self.values} - {None}
        return (
            *(option for option in options if target_of(option.name) not in said),
            *self._beside(options),
        )

    def adds_to(self, options: Sequence[ScriptOption]) -> bool:
        """Whether the text says something of a config or workload that the program's options do
        not."""
        own = {target_of(option.name) for option in options}
        unsaid = (
            o
            for o in self._beside(options)
            if o.name not in self.values and target_of(o.name) not in own
        )
        values = {**{o.name: o.default for o in unsaid}, **self.values}
        is_open = any(o.name in _SAID and o.name in self.computed for o in self._beside(options))
        return (
            bool(self.workload)
            or is_open
            or any(_asks(values[name]) for name in values if name in _SAID)
        )

    def _beside(self, options: Sequence[ScriptOption]) -> list[ScriptOption]:
        own = {target_of(option.name) for option in options}
        return [
            o for o in self.options if o.name not in self.computed or target_of(o.name) not in own
        ]


def written_arguments(text: Text) -> Written | None:
    """Those of a program; None where it calls no such class, or several times."""
    if text.names & _OTHER_TRAININGS:
        return None
    if text.names & _LIGHTNING:
        return None if text.names & _ADAPTERS else _of_lightning(text)
    found = [(call, known) for call in text.calls() if (known := _known(call)) is not None]
    if len(found) != 1:
        return None
    call, known = found[0]
    given, of = keywords_of(call), called_name(call)
    if len(given) < len(call.keywords):
        return None  # `**arguments`
    workload: dict[str, Any] = {}
    if text.names & _ADAPTERS:
        if (peft := written_adapters(text)) is None:
            return None
        if peft["method"] == "lora" and _is_loaded_in_fp32(text, of):
            peft["frozen_fp32"] = True
        workload |= {"peft": peft} if "rank" in peft else {}  # else its options say the rest
    elif loaded_as(text)[0] == "bfloat16":
        workload |= {"pure_bf16": True, "shards_in_fp32": True}
    values = {name: text.value(node) for name, node in given.items()}
    if isinstance(parts := values.get("fsdp"), list):  # as its own word does
        values["fsdp"] = " ".join(map(str, parts))
    values = {
        name: value for name, value in values.items() if isinstance(value, bool | int | float | str)
    }
    computed = {name for name, node in given.items() if name not in values and not is_none(node)}
    values = {name: value for name, value in values.items() if value or name not in _SHARDING}
    if computed & _SHARDING:
        return None
    if (optimizer := values.get("optim")) is not None:
        if (named := optimizer_named(str(optimizer))) is None:
            return None
        workload |= {} if named == "adamw" else {"optimizer": named}
    options = [option_of(*each) for each in known]
    options = [_computed(o, given[o.name]) if o.name in computed else o for o in options]
    if (model := _model(text)) is not None:
        values[MODEL] = model
    lines = {name: node.lineno for name, node in given.items() if name in _SAID and name in values}
    lines |= {called_name(each): each.lineno for each in text.calls("LoraConfig")}
    return Written(
        options=tuple(options),
        values=values,
        lines=lines or {of: call.lineno},
        workload=workload,
        computed=frozenset(computed),
        beside=MICRO_BATCH if MICRO_BATCH in given else next(iter(given), ""),
        of=of,
        also={f"{of}.output_dir": "{trial_dir}"},
    )


def unread_arguments(text: Text) -> str:
    """A call that gives a trainer of transformers, trl or Lightning what no option says, and its
    line; empty where there is none."""
    endings = tuple(ending for ending, _ in TRAINER_ARGUMENTS)
    for call in text.calls():
        name, given = called_name(call), keywords_of(call)
        of_ranks = (given[each] for each in _OF_RANKS if each in given)
        is_lightning = name == "Trainer" and not _LIGHTNING.isdisjoint(text.names)
        if name.endswith(endings) or (is_lightning and any(map(_is_unread, of_ranks))):
            return f"{name}(...) in line {call.lineno}"
    return ""


def _is_unread(node: ast.expr) -> bool:
    """Whether an argument of Lightning's Trainer decides ranks, sharding or accumulation in a way
    that is not read here: a strategy as an object, too."""
    value = literal_or_none(node)
    return isinstance(node, ast.Call) or (_asks(value) and value not in ("auto", "ddp"))


def _of_lightning(text: Text) -> Written | None:
    """What it gives Lightning's Trainer and its loader of training data; None where one of them is
    not plain."""
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
    said: dict[str, Any] = {name: values[name] for name in _OF_LIGHTNING if name in values}
    computed = {name: given[name] for name in _OF_LIGHTNING if name in given.keys() - values.keys()}
    told = dict(given)
    if (size := next((size for size in sizes if size is not None), None)) is not None:
        told["batch_size"] = size
    if isinstance(batch := batches.pop(), int):
        said["batch_size"] = batch
    else:
        computed["batch_size"] = told["batch_size"]
    said |= {"fsdp": "full_shard"} if strategy == "fsdp" else {}
    said |= {MODEL: model} if (model := _model(text)) is not None else {}
    devices, nodes = values.get("devices"), values.get("num_nodes", 1)
    is_counted = type(nodes) is int and type(devices) is int and devices > 0
    ranks = (int(nodes), int(devices or 0)) if is_counted else None
    known = [each for each in LIGHTNING_TRAINER if each[0] in _OF_LIGHTNING]
    options = [option_of(*each) for each in (*known, ("batch_size", "int", None))]
    lines = {
        name: told[name].lineno
        for name in ("batch_size", *_OF_LIGHTNING, "strategy")
        if name in told and name not in computed
    }
    return Written(
        options=tuple(_computed(o, computed[o.name]) if o.name in computed else o for o in options),
        values=said,
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
    """The batch of a loader, as `overrides` name it."""
    return "DataLoader.batch_size" if len(loaders) == 1 else f"DataLoader:{call.lineno}.batch_size"


def _asks(value: Any) -> bool:
    """Whether a value changes anything: no switch that is off, and no count of one."""
    return value is True or value not in (None, False, 1, "")


def _computed(option: ScriptOption, node: ast.expr) -> ScriptOption:
    """The option with a value that is not known; a condition, and any flag's, may be settled by
    where it runs."""
    text = ast.unparse(node) if option.kind == "flag" else condition_of(node)
    return replace(option, default=None, computed=text, line=node.lineno)


def _known(call: ast.Call) -> tuple[tuple[str, str, Any], ...] | None:
    name = called_name(call)
    return next((options for ending, options in TRAINER_ARGUMENTS if name.endswith(ending)), None)


def _model(text: Text) -> str | None:
    """The model that it loads, or gives to a trainer by its name; None where it loads several."""
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
    """Whether the weights are loaded in fp32: a trainer of trl that loads a model by its name does
    so unless it is told. `of`: the class of its arguments."""
    said = loaded_as(text)[0]
    is_trl = not of.endswith("TrainingArguments")
    by_name = isinstance(_model(text), str) and not any(map(loads_a_model, text.calls()))
    return said == "float32" or (not said and is_trl and by_name)


def written_adapters(text: Text) -> dict[str, Any] | None:
    """The adapters of the only LoraConfig of a text, as a workload has them, with PEFT's defaults,
    and without their rank where an option says it (`r=args.lora_r`), which may switch 4 bits on,
    too; None where it does not say them plainly."""
    configs = text.calls("LoraConfig")
    if len(configs) != 1 or not is_plain(configs[0]):
        return None
    nodes = keywords_of(configs[0])
    given = {name: text.value(node) for name, node in nodes.items()}
    rank, wanted = given.get("r", 8), given.get("target_modules", ["q_proj", "v_proj"])
    by_option = "r" in nodes and rank is None and last_name(nodes["r"]) in LORA_RANKS
    targets = targets_of([wanted] if isinstance(wanted, str) else wanted or ())
    if not (by_option or isinstance(rank, int)) or not targets:
        return None
    given_bits = (keywords_of(call).get("load_in_4bit") for call in text.calls())
    switches = [node for node in given_bits if node is not None]
    is_quantized = bool(switches) and all(literal_or_none(node) is True for node in switches)
    by_switch = any(last_name(node) in FOUR_BIT_SWITCHES for node in switches)
    if not by_switch and is_quantized == text.names.isdisjoint(_QUANTIZED):
        return None
    method = "qlora" if is_quantized else "lora"
    ranked = {} if by_option else {"rank": rank}
    return {"method": method, **ranked, "targets": targets, "library": "peft"}


def loads_a_model(call: ast.Call) -> bool:
    """Whether it is `AutoModelForCausalLM.from_pretrained(...)`, or the same of another decoder's
    class."""
    if called_name(call) != "from_pretrained" or not isinstance(call.func, ast.Attribute):
        return False
    return ast.unparse(call.func.value).endswith(("ForCausalLM", "LMHeadModel"))


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
    given = call.args[0] if call.args else keywords_of(call).get("pretrained_model_name_or_path")
    return text.value(given)


def loaded_without_dtype(text: Text) -> int:
    """The line that loads a model without saying the type of its weights, and nothing else does; 0:
    there is none."""
    says = {"dtype", "torch_dtype", "quantization_config", None}
    for call in () if _TYPES & text.names else text.calls("from_pretrained"):
        if loads_a_model(call) and says.isdisjoint(word.arg for word in call.keywords):
            return call.lineno
    return 0


def loaded_as(text: Text) -> tuple[str, int]:
    """(type of the weights, line) of the models that a text loads: `bfloat16`, `float16`,
    `float32`; `bf16` for bfloat16 where the option of that name is on; `?` where the text computes
    it. Both are empty where no call says a type, or several say different ones."""
    found = {}
    for call in text.calls():
        given = keywords_of(call)
        init = given.get("model_init_kwargs")
        if isinstance(init, ast.Dict):  # of trl's arguments, whose trainer loads the model
            given = dict(zip(map(str, map(literal_or_none, init.keys)), init.values, strict=True))
        said = given.get("dtype") or given.get("torch_dtype")
        if said is not None and (isinstance(init, ast.Dict) or loads_a_model(call)):
            found[_type_of(said)] = call.lineno
    return next(iter(found.items())) if len(found) == 1 else ("", 0)


def _type_of(said: ast.expr) -> str:
    name = ast.unparse(said).strip("'\"").rpartition(".")[2]
    if name in ("bfloat16", "float16", "float32", "auto"):
        return name
    is_switched = (
        isinstance(said, ast.IfExp)
        and "bf16" in ast.unparse(said.test)
        and _type_of(said.body) == "bfloat16"
    )
    return "bf16" if is_switched else "?"


_ACCELERATOR = "Accelerator"
_OF_ACCELERATOR = f"{_ACCELERATOR}.{ACCUMULATION}"
_KNOBS = frozenset({"micro_batch_size", "accumulation_steps", "global_batch_size"})
"""without one of them nothing can be tuned"""


def written_constants(
    text: Text, parser: str = "constants", options: Sequence[ScriptOption] = ()
) -> Written | None:
    """The values that the text sets once, to a literal, under a name for a knob or a figure of the
    workload that no option has; None without a batch. If there is an option for the micro-batch but
    none for the whole batch: the accumulation passed to accelerate's `Accelerator`. `parser`: what
    reads the options."""
    told = {meaning.target for each in options if (meaning := meaning_of(each)) is not None}
    if told & _KNOBS not in (set(), {"micro_batch_size"}):
        return None
    own_names = {option.name for option in options}
    set_by = (each for node in text.nodes for each in _set_by(node))
    found = {place: option for place, option in set_by if option.name not in own_names}
    if told & _KNOBS:
        given = (keywords_of(call).get(ACCUMULATION) for call in text.calls(_ACCELERATOR))
        own = {_OF_ACCELERATOR, *(ast.unparse(node) for node in given if node is not None)}
        found = {place: option for place, option in found.items() if place in own}
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


def _set_by(node: ast.AST) -> list[tuple[str, ScriptOption]]:
    """(place, the option that it is read as)"""
    target: ast.expr | None = None
    said = getattr(node, "value", None)
    if isinstance(node, ast.Assign):
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign):
        target = node.target
    elif isinstance(node, ast.Call) and called_name(node) == _ACCELERATOR:
        said = keywords_of(node).get(ACCUMULATION)
        target = ast.parse(_OF_ACCELERATOR, mode="eval").body
    if not isinstance(target, ast.Name | ast.Attribute):
        return []
    value = literal_or_none(said)
    if not isinstance(value, bool | int | str):
        return []
    name = target.id if isinstance(target, ast.Name) else target.attr
    option = replace(option_of(name, kind_of(value), value), line=getattr(said, "lineno", 0))
    return [(ast.unparse(target), option)] if meaning_of(option) is not None else []
