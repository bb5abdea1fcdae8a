"""NeMo-RL: `nemo_rl.yaml`, read by its examples/run_grpo.py, over one of its own configurations.

    engine fsdp        DTensor: `policy.dtensor_cfg`, tensor and context parallelism beside FSDP2
    engine megatron    `policy.megatron_cfg`, with pipeline and expert parallelism and the distributed optimizer

Names and values (`DEFAULTS`) are those of NVIDIA-NeMo/RL at commit 7ea279a (examples/configs/grpo_math_1B.yaml), which has no release that could be imported on a CPU. `micro_batch_tokens`
is `policy.sequence_packing.train_mb_tokens`, or with padding `policy.dynamic_batching.train_mb_tokens`. The option `cwd` is the checkout, in which its program runs.

A configuration starts from others, by its key `defaults` (nemo_rl/utils/config.py): those files decide what it does not say. A command `run_grpo.py --config FILE key=value` is a
configuration that starts from FILE.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, ClassVar

from autotune.errors import SpecError
from autotune.spec import ParallelConfig, Workload
from autotune.spec.post_training import PostTraining
from autotune.trainers.base.effective import word_limit
from autotune.trainers.base.limit import Limit, Rule, broken
from autotune.trainers.base.not_offered import NOT_SET
from autotune.trainers.base.own_program import CWD
from autotune.trainers.base.trainer_option import Option, Reach
from autotune.trainers.launch_files import FOLDER, Launch
from autotune.trainers.logs.step_metrics import MAX_LINE, StepMetrics
from autotune.trainers.post_training.programs import USUAL
from autotune.trainers.post_training.trainer import (
    EXPERT_TP,
    LEARNING_RATE,
    OPTIONS,
    START,
    PostTrainer,
    fitted,
    grid,
    mini_batches,
    overrides,
    read_whole_experts,
    rl_value,
)
from autotune.trainers.present_configuration import (
    KeyReader,
    PresentConfiguration,
    Reading,
    at_path,
    flat,
    merged,
    nested,
    parse_document,
)

BASE = Option(
    name="base", meaning="base configuration that the launch overrides, from the folder `cwd`; empty if its settings are complete",
    default="examples/configs/grpo_math_1B.yaml", is_path=True, reach=Reach.FILE,
)  # fmt: skip
RATE = replace(LEARNING_RATE, default=5e-6)
DTENSOR, MEGATRON, PACKING, DYNAMIC, GENERATION = (
    "policy.dtensor_cfg",
    "policy.megatron_cfg",
    "policy.sequence_packing",
    "policy.dynamic_batching",
    "policy.generation",
)
UNCOUNTED = tuple(
    f"{engine}.{name}.enabled"
    for engine in (MEGATRON, DTENSOR)
    for name in ("lora_cfg", "peft", "fp8_cfg")
)
TEACHERS, EXPERTS = "on_policy_distillation", f"{DTENSOR}.expert_parallel_size"
PENALTY = "loss_fn.reference_policy_kl_penalty"
_LENGTH = "${mul:${policy.max_total_sequence_length}, ${policy.%s}}"
DEFAULTS: Mapping[str, Any] = {
    "cluster.gpus_per_node": 1,
    "cluster.num_nodes": 1,
    "grpo.async_grpo.enabled": False,
    "grpo.async_grpo.max_trajectory_age_steps": 1,
    "grpo.max_num_steps": 1000000,
    "grpo.num_generations_per_prompt": 16,
    "grpo.num_prompts_per_step": 32,
    "grpo.seed": 42,
    PENALTY: 0.01,
    f"{DTENSOR}.activation_checkpointing": False,
    f"{DTENSOR}.context_parallel_size": 1,
    f"{DTENSOR}.enabled": True,
    f"{DTENSOR}.sequence_parallel": False,
    f"{DTENSOR}.tensor_parallel_size": 1,
    f"{DYNAMIC}.enabled": False,
    f"{DYNAMIC}.logprob_mb_tokens": _LENGTH % "logprob_batch_size",
    f"{DYNAMIC}.train_mb_tokens": _LENGTH % "train_micro_batch_size",
    f"{GENERATION}.colocated.enabled": True,
    f"{GENERATION}.colocated.resources.gpus_per_node": None,
    f"{GENERATION}.colocated.resources.num_nodes": None,
    f"{GENERATION}.vllm_cfg.gpu_memory_utilization": 0.6,
    f"{GENERATION}.vllm_cfg.tensor_parallel_size": 1,
    "policy.logprob_batch_size": "${policy.train_micro_batch_size}",
    "policy.max_total_sequence_length": 512,
    f"{MEGATRON}.activation_checkpointing": False,
    f"{MEGATRON}.context_parallel_size": 1,
    f"{MEGATRON}.enabled": False,
    f"{MEGATRON}.expert_model_parallel_size": 1,
    f"{MEGATRON}.{EXPERT_TP}": 1,
    f"{MEGATRON}.optimizer.lr": 5e-6,
    f"{MEGATRON}.pipeline_model_parallel_size": 1,
    f"{MEGATRON}.sequence_parallel": False,
    f"{MEGATRON}.tensor_model_parallel_size": 1,
    "policy.model_name": "Qwen/Qwen2.5-1.5B",
    "policy.optimizer.kwargs.lr": 5e-6,
    "policy.precision": "bfloat16",
    f"{PACKING}.enabled": True,
    f"{PACKING}.logprob_mb_tokens": _LENGTH % "logprob_batch_size",
    f"{PACKING}.train_mb_tokens": _LENGTH % "train_micro_batch_size",
    "policy.train_global_batch_size": 512,
    "policy.train_micro_batch_size": 4,
}
"""what is read, as BASE has it"""
DEGREES = {
    "fsdp": {"tp": "tensor_parallel_size", "cp": "context_parallel_size"},
    "megatron": {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size", "ep": "expert_model_parallel_size"},
}  # fmt: skip
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_PRODUCT = re.compile(r"\$\{mul:\s*(\d+),\s*(\d+)\s*\}")
_STEP_TIME = re.compile(r"Total step time: ([0-9]{1,9}(?:\.[0-9]{1,9})?)s")
WITH_ASYNC = (f"{GENERATION}.vllm_cfg.async_engine", "loss_fn.use_importance_sampling_correction")
"""without which `async_grpo_train` does not start"""
PRECISIONS = {"bf16": "bfloat16", "fp32": "float32"}


class NemoRl(PostTrainer):
    """NVIDIA's NeMo-RL."""

    name = "nemo_rl"
    summary = "NeMo-RL, nemo_rl.yaml for run_grpo.py with DTensor or Megatron and vLLM"
    checked_against = "NeMo-RL 0.6.0 at commit 7ea279a"
    engines = frozenset({"fsdp", "megatron"})
    carried = frozenset(
        {
            "rollout_tp",
            "rollout_gpus",
            "micro_batch_tokens",
            "log_prob_micro_batch_tokens",
            "staleness",
        }
    )
    reads = frozenset(
        {
            "tp",
            "pp",
            "dp",
            "cp",
            "ep",
            "micro_batch_size",
            "accumulation_steps",
            "precision",
            "recompute",
            "zero_stage",
            "sequence_parallel",
        }
    )
    cannot: ClassVar = {
        **NOT_SET,
        "compile": "a launch cannot switch compilation on for its policies",
        "virtual_stages": "its megatron_cfg has no virtual stages",
        "pp_schedule": "its pipelines run 1F1B",
    }
    recognized_by = (
        "grpo.num_prompts_per_step",
        "grpo.num_generations_per_prompt",
        "grpo.max_num_steps",
        "grpo.async_grpo",
    )
    step_marks = ("Total step time",)
    resolves = True
    settings_file = "nemo_rl.yaml"
    options = (*(option for option in OPTIONS if option is not LEARNING_RATE), RATE, CWD, BASE)
    watching = (
        "grpo.max_num_steps",
        "grpo.max_num_epochs",
        "grpo.val_*",
        "checkpointing",
        "checkpointing.*",
        "logger",
        "logger.*",
    )

    def engine_limits(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig
    ) -> Sequence[Limit]:
        """DTensor splits no layers and shards everything; Megatron shards its optimizer."""
        fsdp, stage = rl.engine == "fsdp", 3 if rl.engine == "fsdp" else 1
        none = "DTensor policies do not support this; Megatron policies do (rl.engine: megatron)"
        generating, per_node = int(rl_value(rl, c, "rollout_gpus")), workload.cluster.gpus_per_node
        stale = float(rl_value(rl, c, "staleness"))
        return (
            *word_limit(
                c,
                "precision",
                dict.fromkeys(("fp8", "fp16", "tf32"), "bf16"),
                "policies are in bf16 or fp32",
            ),
            *word_limit(
                c,
                "recompute",
                {"selective": "full"},
                "activation_checkpointing covers whole layers",
            ),
            *broken(
                workload,
                c,
                Rule(
                    rl.algorithm not in ("grpo", "dapo"),
                    "workload.rl.algorithm",
                    "run_grpo.py trains with GRPO and DAPO",
                    value=rl.algorithm,
                ),
                Rule(
                    c.dp * c.cp > 1 and c.zero_stage != stage,
                    "zero_stage",
                    "DTensor policies shard all"
                    if fsdp
                    else "its Megatron uses the distributed optimizer",
                    stage,
                ),
                Rule(
                    fsdp and c.cp > 1 and rl_value(rl, c, "micro_batch_tokens") and not rl.padded,
                    "cp",
                    "DTensor policies do not split packed sequences",
                    1,
                ),
                Rule(
                    fsdp and c.cp > 1 and c.tp > 1 and c.sequence_parallel,
                    "sequence_parallel",
                    "DTensor policies have no sequence parallelism with context parallelism",
                    False,
                ),
                Rule(fsdp and c.pp > 1, "pp", none),
                Rule(fsdp and c.ep > 1, "ep", none),
                Rule(
                    generating % per_node and workload.cluster.num_nodes > 1,
                    "rollout_gpus",
                    f"separate engines need whole nodes of {per_node} GPUs",
                    value=generating,
                ),
                Rule(
                    not stale.is_integer(),
                    "staleness",
                    "max_trajectory_age_steps counts whole steps",
                    value=stale,
                ),
            ),
        )

    def command(self, workload: Workload, rl: PostTraining, c: ParallelConfig) -> tuple[str, ...]:
        """The example's program with the file of the launch."""
        return (*USUAL[self.name], "--config", f"{FOLDER}/{self.settings_file}")

    def build(
        self, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
    ) -> Launch:
        """In the checkout."""
        launch = super().build(workload, config, options)
        if options[CWD.name]:
            return replace(launch, cwd=options[CWD.name])
        note = "start it in a NeMo-RL checkout, which contains examples/run_grpo.py and the file under `defaults`; set its folder with the option cwd"
        return replace(launch, notes=(*launch.notes, note))

    def document(
        self, workload: Workload, rl: PostTraining, c: ParallelConfig, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """By dotted paths."""
        generating = int(rl_value(rl, c, "rollout_gpus"))
        nodes, per_node = grid(workload, c.world_size + generating)
        tokens, before = (
            int(rl_value(rl, c, "micro_batch_tokens")),
            int(rl_value(rl, c, "log_prob_micro_batch_tokens")),
        )
        where = MEGATRON if rl.engine == "megatron" else DTENSOR
        stale = int(rl_value(rl, c, "staleness"))
        base = options[BASE.name]
        found: dict[str, Any] = {
            # a base is looked for beside the file itself, which lies in the folder of the launch; `PWD`: where it is started
            "defaults": os.path.join(options[CWD.name] or "${oc.env:PWD}", base) if base else None,
            "grpo.num_prompts_per_step": rl.prompts,
            "grpo.num_generations_per_prompt": rl.responses,
            "grpo.max_num_steps": options["steps"],
            "grpo.seed": options["seed"],
            PENALTY: None if rl.reference else 0.0,
            "policy.model_name": options["model"],
            "policy.train_global_batch_size": rl.mini_batch,
            "policy.train_micro_batch_size": c.micro_batch_size,
            "policy.max_total_sequence_length": workload.seq_len,
            "policy.precision": PRECISIONS[c.precision],
            f"{DTENSOR}.enabled": rl.engine == "fsdp",
            f"{MEGATRON}.enabled": rl.engine == "megatron",
            f"{where}.activation_checkpointing": c.recompute == "full",
            f"{where}.sequence_parallel": c.sequence_parallel,
            **{f"{where}.{path}": getattr(c, knob) for knob, path in DEGREES[rl.engine].items()},
            f"{PACKING}.enabled": tokens > 0 and not rl.padded,
            f"{DYNAMIC}.enabled": tokens > 0 and rl.padded,
            "grpo.async_grpo.enabled": stale > 0,
            f"{GENERATION}.vllm_cfg.tensor_parallel_size": int(rl_value(rl, c, "rollout_tp")),
            f"{GENERATION}.colocated.enabled": generating == 0,
            "cluster.num_nodes": nodes,
            "cluster.gpus_per_node": per_node,
        }
        found[
            "policy.optimizer.kwargs.lr" if rl.engine == "fsdp" else f"{MEGATRON}.optimizer.lr"
        ] = options["learning_rate"]
        if workload.model.num_experts and rl.engine == "megatron":
            found[f"{MEGATRON}.{EXPERT_TP}"] = 1 if rl.whole_experts else c.tp
        if tokens:
            way = DYNAMIC if rl.padded else PACKING
            found |= {
                f"{way}.train_mb_tokens": tokens,
                f"{way}.logprob_mb_tokens": before or tokens,
            }
        if rl.rollout is not None and rl.rollout.memory_fraction:
            found[f"{GENERATION}.vllm_cfg.gpu_memory_utilization"] = rl.rollout.memory_fraction
        if generating:
            several = workload.cluster.num_nodes > 1
            engines = workload.cluster.gpus_per_node
            found |= {
                f"{GENERATION}.colocated.resources.num_nodes": generating // engines if several else None,
                f"{GENERATION}.colocated.resources.gpus_per_node": engines if several else generating,
                "grpo.async_grpo.max_trajectory_age_steps": max(stale, 1),
                **(dict.fromkeys(WITH_ASYNC, True) if stale else {}),
            }  # fmt: skip
        return found

    def present_document(self, present: PresentConfiguration) -> tuple[str, dict[str, Any]]:
        """Its file; of a command, one that starts from the file that it names."""
        words = self.words(present)
        told = PresentConfiguration(argv=words).option("config") or ""
        if not words or told.endswith(self.settings_file):
            return super().present_document(present)
        return "the command", {"defaults": told or BASE.default, **nested(overrides(words))}

    def read_config(self, present: PresentConfiguration) -> Reading:
        """Its file, over those that it starts from."""
        name, document = self.present_document(present)
        below, missing = _inherited(document, name, present.files)
        whole = merged(below, document)
        _refuse_others(name, whole)
        values = {path: _resolved(whole, path) for path in DEFAULTS}
        written = {path: value for path, value in values.items() if path in dict(flat(document))}
        found = self.read_document(name, merged(document, nested(written)), values)
        base = next(iter(bases_of(document)), "")
        if (
            base
            and PurePosixPath(base).name == PurePosixPath(BASE.default).name
            and _beside(name, base) not in present.files
        ):
            base = BASE.default
        options = {**found.options, BASE.name: base, START.name: self.start_of(present.argv)}
        backend = _resolved(whole, f"{GENERATION}.backend") or "vllm"
        return replace(
            found,
            options=options,
            missing=missing,
            rollout=found.rollout if backend == "vllm" else {},
            remarks=(*found.remarks, *_uncounted(whole, backend)),
        )

    def read_keys(self, keys: KeyReader) -> Reading:
        """Both engines."""
        keys.drop("defaults")
        is_megatron = bool(keys.flag(f"{MEGATRON}.enabled"))
        keys.flag(f"{DTENSOR}.enabled")
        engine, where = ("megatron", MEGATRON) if is_megatron else ("fsdp", DTENSOR)
        nodes, per_node = keys.count("cluster.num_nodes") or 1, keys.count("cluster.gpus_per_node")
        apart = keys.flag(f"{GENERATION}.colocated.enabled") is False
        own_nodes, own_gpus = (
            keys.count(f"{GENERATION}.colocated.resources.{key}")
            for key in ("num_nodes", "gpus_per_node")
        )
        generating = ((own_nodes or 1) * (own_gpus or per_node or 0)) if apart else 0
        ranks = None if per_node is None else nodes * per_node - generating
        degrees = {
            knob: keys.count(f"{where}.{path}") or 1 for knob, path in DEGREES[engine].items()
        }
        recompute, sequence = (
            keys.flag(f"{where}.activation_checkpointing"),
            keys.flag(f"{where}.sequence_parallel"),
        )
        micro, length = (
            keys.count("policy.train_micro_batch_size") or 1,
            keys.count("policy.max_total_sequence_length"),
        )
        packs, groups = keys.flag(f"{PACKING}.enabled"), keys.flag(f"{DYNAMIC}.enabled")
        if packs:
            way = PACKING
        else:
            way = DYNAMIC if groups else ""
        tokens, before = (
            keys.count(f"{way}.{name}_mb_tokens") if way else None for name in ("train", "logprob")
        )
        knobs: dict[str, Any] = {
            **degrees,
            "precision": keys.word("policy.precision", {v: k for k, v in PRECISIONS.items()})
            or "bf16",
            "micro_batch_size": 1 if tokens else micro,
            "recompute": "full" if recompute else "none",
            "zero_stage": 1 if is_megatron else 3,
            "sequence_parallel": bool(sequence) and degrees["tp"] > 1,
        }
        batch = keys.count("policy.train_global_batch_size")
        knobs = fitted(knobs, ranks, batch, alone={"zero_stage": 0})  # there is nothing to shard
        prompts, responses = (
            keys.count("grpo.num_prompts_per_step"),
            keys.count("grpo.num_generations_per_prompt") or 1,
        )
        penalty = keys.number(PENALTY)
        stale, overlaps = (
            keys.count("grpo.async_grpo.max_trajectory_age_steps"),
            keys.flag("grpo.async_grpo.enabled"),
        )
        placement = None
        if overlaps:
            keys.drop(*WITH_ASYNC)
        else:
            keys.keep("grpo.async_grpo.max_trajectory_age_steps")
        if apart and ranks:
            placement = (
                {"async": [ranks, generating], "staleness": stale or 1}
                if overlaps
                else {"split": [ranks, generating]}
            )
        whole = read_whole_experts(keys, MEGATRON, degrees["tp"]) if is_megatron else None
        rl = {
            "algorithm": "grpo", "prompts": prompts, "responses": responses, "engine": engine, "placement": placement,
            "mini_batches": mini_batches(prompts, responses, batch),
            "whole_experts": whole,
            "reference": None if penalty is None else penalty > 0, "padded": None if packs else True,
            "micro_batch_tokens": tokens,
            "log_prob_micro_batch_tokens": before,
            "response_lengths": length,
        }  # fmt: skip
        rollout = {
            "tp": keys.count(f"{GENERATION}.vllm_cfg.tensor_parallel_size"),
            "memory_fraction": keys.number(f"{GENERATION}.vllm_cfg.gpu_memory_utilization"),
        }
        path = keys.text("policy.model_name")
        rate = (
            keys.number(f"{MEGATRON}.optimizer.lr")
            if is_megatron
            else keys.number("policy.optimizer.kwargs.lr")
        )
        options = {"model": path, "seed": keys.count("grpo.seed"), "learning_rate": rate}
        keys.keep(PENALTY)
        for path in ("grpo.seed", "grpo.max_num_steps"):  # what launches write otherwise
            keys.keep_unless(path, None)
        return Reading(
            knobs=knobs,
            model_file=path or "",
            seq_len=length,
            global_batch_size=batch,
            nodes=None if per_node is None else (nodes, per_node),
            options=options,
            rl=rl,
            rollout=rollout,
        )

    def parse_line(self, line: str) -> StepMetrics | None:
        """`Total step time: 40.00s`; what else it prints of a step stands on lines of its own (`post_training.logs`)."""
        found = _STEP_TIME.search(line[:MAX_LINE])
        return StepMetrics(step_time_s=float(found[1])) if found else None


def _refuse_others(name: str, whole: Mapping[str, Any]) -> None:
    """Raises `SpecError` for a configuration whose training GPUs are counted otherwise."""
    at_rewards = _mentions(whole.get("data"), "reward_model") and _resolved(
        whole, "env.reward_model.resources.gpus_per_node"
    )
    kinds = {
        "belongs to NeMo-RL's single controller (async_rl)": whole.get("async_rl"),
        "has teachers on their own GPUs (on_policy_distillation.non_colocated_teachers)": _resolved(
            whole, f"{TEACHERS}.non_colocated_teachers.enabled"
        ),
        "has a reward model on its own GPUs (env.reward_model.resources)": at_rewards,
    }
    if found := next((what for what, has in kinds.items() if has), None):
        raise SpecError(
            f"{name} {found}, which autotune does not support",
            remedy="describe the step under `rl` in your own spec",
            field="FILE",
        )


def _mentions(node: Any, word: str) -> bool:
    """Whether a value somewhere in it is that word."""
    if isinstance(node, Mapping):
        return any(_mentions(each, word) for each in node.values())
    if isinstance(node, list):
        return any(_mentions(each, word) for each in node)
    return bool(node == word)


def _uncounted(whole: Mapping[str, Any], backend: str) -> Iterator[str]:
    """What plans leave out, in words, also of the files that a configuration starts from."""
    for switch in UNCOUNTED:
        if _resolved(whole, switch) is True:
            yield f"{switch}: plans do not count what it saves; launches pass it on unchanged"
    if backend != "vllm":
        yield f"{GENERATION}.backend={backend}: autotune does not read the degree and memory of its engines; give them under `rollout`"
    if _resolved(whole, f"{TEACHERS}.enabled"):
        yield f"{TEACHERS}: the time and memory of its teachers are not counted; launches pass these settings on unchanged"
    if (
        (experts := _resolved(whole, EXPERTS))
        and experts != 1
        and _resolved(whole, f"{DTENSOR}.enabled")
    ):
        yield f"{EXPERTS}={experts}: plans shard experts like all other weights; launches pass the value on unchanged"


def bases_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The files that a configuration starts from, the last of which counts most."""
    named = document.get("defaults")
    named = named if isinstance(named, list) else [named]
    return tuple(
        each for each in named if isinstance(each, str) and each.endswith((".yaml", ".yml"))
    )


def _beside(name: str, base: str) -> str:
    """The name of a base, by the name of the file that starts from it."""
    return os.path.normpath(os.path.join(os.path.dirname(name), base))


def with_bases(
    files: Mapping[str, str], name: str, text_of: Callable[[str], str | None]
) -> dict[str, str]:
    """The files, and those that the file of that name is based on. `text_of`: the text of a file, None where it is not there."""
    found = dict(files)
    for base in bases_of(parse_document(name, found[name])):
        inner = _beside(name, base)
        if inner not in found and (text := text_of(inner)) is not None:
            found = with_bases({**found, inner: text}, inner, text_of)
    return found


def _inherited(
    document: Mapping[str, Any], name: str, files: Mapping[str, str]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """(what the files say that a configuration starts from, the names of those that are not there)"""
    whole: dict[str, Any] = {}
    missing: tuple[str, ...] = ()
    for base in bases_of(document):
        inner = _beside(name, base)
        if inner in files:
            own = parse_document(inner, files[inner])
            below, lost = _inherited(
                own, inner, {key: text for key, text in files.items() if key != inner}
            )
            whole, missing = merged(merged(whole, below), own), (*missing, *lost)
        elif PurePosixPath(base).name == PurePosixPath(BASE.default).name:
            whole = merged(whole, nested(DEFAULTS))
        else:
            missing += (base,)
    return whole, missing


def _resolved(document: Mapping[str, Any], path: str, depth: int = 8) -> Any:
    """The value, with what it refers to: `${policy.precision}`, and products such as `${mul:${policy.max_total_sequence_length}, 4}`."""
    value = at_path(document, path)
    if not isinstance(value, str) or "${" not in value or not depth:
        return value
    plain = _REFERENCE.sub(lambda found: str(_resolved(document, found[1], depth - 1)), value)
    if product := _PRODUCT.fullmatch(plain):
        return int(product[1]) * int(product[2])
    return int(plain) if plain.isdecimal() else plain


TRAINER = NemoRl()
