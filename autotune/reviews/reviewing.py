"""The review of one launch, from its text to the answer."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from autotune.cost import calibration_for, estimate
from autotune.errors import SpecError
from autotune.onboarding.configuration_files import MAY_SHARD, UNREAD
from autotune.onboarding.draft import named_cluster
from autotune.onboarding.imported_spec import NOT_VALID
from autotune.onboarding.present_post_training import (
    LENGTHS,
    SPEED,
    answered_by_log,
    at_the_longest,
)
from autotune.onboarding.script.adapters import (
    ALL_TRAINED,
    ASSUMED_TARGETS,
    NEEDS_LESS,
    NEEDS_MORE,
    NOT_COUNTED,
    NOT_PREDICTED,
)
from autotune.onboarding.script.draft import ASSUMED_WEIGHTS
from autotune.results.calibrations import program_of, stored_calibration
from autotune.reviews.answer import Edit, LineEdit, Missing, Observed, Review
from autotune.reviews.dangers import code_lines, dangers_of
from autotune.reviews.earlier import earlier_of
from autotune.reviews.edits import Proposal, proposal, space_around
from autotune.reviews.gains import corrected, given_that_it_ran
from autotune.reviews.lines import baseline_line, changed_lines, other_trainings
from autotune.reviews.said_where import lines_of_values, with_lines
from autotune.reviews.target import Target, folder_of, named_text, read_target
from autotune.schema import parse_study
from autotune.schema.files import is_model_file, with_program_files
from autotune.space import Launchable, complete
from autotune.space.baseline import default_of_study
from autotune.spec import (
    ClusterSpec,
    Estimate,
    ParallelConfig,
    Study,
    Workload,
    catalog,
    config_label,
)
from autotune.spec.config import knobs_of
from autotune.spec.post_training import TRAINED
from autotune.spec.texts.as_text import format_count
from autotune.trainers import trainer
from autotune.trainers.post_training.logs import read_phases
from autotune.trainers.present_configuration import ONLY_THE_SHELL

if TYPE_CHECKING:
    from autotune.onboarding.launch.launch_script import Started
    from autotune.results.best_known import BestKnownStore

_HOW = {
    "model": (
        "the model's shape",
        "add --model with a catalog name, a hub id or the path of its config.json",
    ),
    "cluster": ("the GPUs it runs on", "give --cluster, e.g. --cluster h100-sxm-1x8"),
    "workload.seq_len": ("the tokens per sequence", "give --seq-len"),
    "workload.global_batch_size": ("the sequences per optimizer step", "give --batch"),
    "space.precision": ("the precision", "add --precision bf16, fp16 or fp32"),
    "baseline": ("the config it trains with", "add --config micro_batch_size=4,tp=2,..."),
    **{
        f"rl.{key}": (
            f"the {key.replace('_', ' ')}",
            f"add --log with the log of a run, or write rl.{key} into a spec",
        )
        for key in LENGTHS
    },
    f"rollout.{SPEED}": (
        "the generation speed",
        f"add --log with the log of a run, or write rollout.{SPEED} into a spec",
    ),
}
LOCAL = "local"
VOCABULARY = "fill in: vocab_size"
"""the comment of a shape that lacks only that"""
LOWER_MEMORY = (
    "--grad-reduce-in-bf16", "--fp8-param-gather", "--use-precision-aware-optimizer", "--main-grads-dtype", "--main-params-dtype", "--exp-avg-dtype",
    "--optimizer-cpu-offload", "--fp8-recipe blockwise", "paged_adamw", "galore",
    "use_badam: true", "use_apollo: true", "fsdp_offload_params: true",
)  # fmt: skip
"""options of Megatron-LM, LLaMA-Factory and axolotl and optimizers of transformers that lower the peak memory and are not in the cost model"""
_LOOPS = {
    "accelerate": "accelerate",
    "deepspeed": "DeepSpeed",
    "hf_trainer": "Hugging Face Trainer",
    "lightning": "Lightning",
    "megatron": "Megatron-LM",
    "nanotron": "nanotron",
    "torchtitan": "torchtitan",
}
"""training loops as people call them"""
_STARTS_MORE = {
    "hf_trainer": "one visible GPU: with several, transformers' Trainer in one process copies the model to each of them in every step (DataParallel), "
    "which is slow and multiplies the batch; start one process per GPU instead: torchrun --nproc_per_node=8 ...",
    "lightning": "one visible GPU: Lightning's Trainer starts a rank on each GPU unless `devices` says otherwise; to review several, start them with torchrun",
}
"""what one process of a training loop does with several GPUs"""
_NEEDS_ROOM = "try it first: the launch needs more memory than predicted"
_OF_WORKLOAD = {"seq_len": "seq_len", "batch": "global_batch_size"}
"""what is said of the workload: its keys there"""
_ASSUMED = ("taken as", "assumed", "if it does not")


def review(
    target: str | Path | Sequence[str],
    *,
    model: str | None = None,
    cluster: str | None = None,
    seq_len: int | None = None,
    batch: int | None = None,
    precision: str | None = None,
    config: str | None = None,
    measured_s: float | None = None,
    log: str | None = None,
    store: BestKnownStore | None = None,
    local_cluster: Callable[[], ClusterSpec] | None = None,
    here: Callable[[Started | None, tuple[int, int] | None], ClusterSpec] | None = None,
) -> Review:
    """The review of a file, of a text of several lines, or of the words of a command.

    `model`, `cluster`, `seq_len`, `batch` (sequences of an optimizer step), `precision` and `config` say what the launch does not. `measured_s`: measured seconds per step; `log`: its log, from which they are read. `here`: the cluster of a launch that is about to start on this machine, by what it starts and its (nodes,
    ranks of a node). Raises `SpecError` for what is no launch.
    """
    said = {
        "model": model,
        "cluster": cluster,
        "seq_len": seq_len,
        "batch": batch,
        "precision": precision,
        "config": config,
    }
    if isinstance(target, str) and "\n" in target:
        with named_text(target) as named:
            found = _read(named, model, cluster)
            return _review(found, said, measured_s, log, store, local_cluster)
    found = _read(target, model, cluster)
    if here is not None and cluster is None and not found.is_spec:
        starts_here = here(found.started, found.asked)
        said["cluster"], found.document["cluster"] = LOCAL, LOCAL
        return _review(found, said, measured_s, log, store, lambda: starts_here)
    return _review(found, said, measured_s, log, store, local_cluster)


def _read(target: str | Path | Sequence[str], model: str | None, cluster: str | None) -> Target:
    """The launch. Raises `SpecError` for what is no launch, and for one that breaks a rule, with the lines that do."""
    try:
        return read_target(target, model=model, cluster=cluster)
    except SpecError as error:
        is_file = isinstance(target, str | Path) and Path(target).is_file()
        texts = (
            {Path(str(target)).name: Path(str(target)).read_text(errors="replace")}
            if is_file
            else {}
        )
        raise with_lines(error, texts) from None


def review_texts(
    texts: Mapping[str, str],
    *,
    store: BestKnownStore | None = None,
    measured_s: float | None = None,
    log: str | None = None,
    **said: Any,
) -> Review:
    """The review of texts that came from elsewhere; see `review`. No file of this machine is read."""
    if (model := said.get("model")) and is_model_file(model):
        raise SpecError(
            f"model must be a catalog name or a hub id, but is {model!r}",
            remedy="`autotune models` lists the names; or put the model into the launch",
            field="model",
        )
    with folder_of(texts) as path:
        read = _read(path, said.get("model"), said.get("cluster"))
        given = {**read.texts, **{name: texts[name] for name in read.texts if name in texts}}
        name = next(iter(texts))
        base = None if read.is_spec else read.base
        return _review(
            replace(read, name=name, texts=given, base=base), said, measured_s, log, store, None
        )


def _review(
    found: Target,
    said: Mapping[str, Any],
    measured_s: float | None,
    log: str | None,
    store: BestKnownStore | None,
    local_cluster: Callable[[], ClusterSpec] | None,
) -> Review:
    document, missing, bounds = _completed(
        found, said, local_cluster, log, is_measured=log is not None or measured_s is not None
    )
    assumed = (*bounds, *(each for each in _remarks(found) if ONLY_THE_SHELL not in each))
    assumed += tuple(dict.fromkeys(c for c in found.comments if _is_assumed(c)))
    assumed += tuple(
        note
        for note in found.notes
        if note.startswith((NOT_PREDICTED, NOT_COUNTED, ASSUMED_WEIGHTS, ASSUMED_TARGETS, UNREAD))
    )
    shape = document.get("model")
    if isinstance(shape, dict) and any(VOCABULARY in comment for comment in found.comments):
        assumed += (f"vocabulary size {shape['vocab_size']}; --model sets another",)
    text = next(iter(found.texts.values()), "")
    if others := other_trainings(text, found.started):
        of_others = f"line{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
        assumed += (
            f"only one training of {found.name} is reviewed, not {of_others}; to review another, give it as a command: autotune review -- ...",
        )
    launch = "\n".join(line for _, line in code_lines(text))
    unmodelled = tuple(flag for flag in LOWER_MEMORY if flag in launch)
    if unmodelled:
        assumed += (
            f"the cost model ignores the memory saved by {', '.join(unmodelled)}, so the launch may need less",
        )
    other_ranks = _other_ranks(found, document, said)
    is_upper_bound = bool(unmodelled or bounds) or any(
        (note.startswith(NOT_COUNTED) and (ALL_TRAINED in note or NEEDS_LESS in note))
        or (note.startswith(UNREAD) and note.endswith(MAY_SHARD))
        for note in found.notes
    )
    is_lower_bound = any(
        note.startswith(NOT_PREDICTED) or NEEDS_MORE in note for note in found.notes
    )
    if missing:
        return Review(
            target=found.name,
            understood=_part(document, found),
            assumed=(*assumed, *other_ranks),
            missing=tuple(missing),
            warnings=tuple(dangers_of(found.texts)),
            texts=found.texts,
            spec=_spec(found, said),
            metrics=_metrics(document),
        )
    if isinstance(document.get("trainer"), dict) and not found.is_spec and found.base:
        document["trainer"] = with_program_files(document["trainer"], found.base.absolute())
    study = parse_study(document, base=found.base, local_cluster=local_cluster, inspect=None)
    config = _config(study, said.get("config"))
    assumed += tuple(f"{words}: {config.world_size} ranks are reviewed" for words in other_ranks)
    used = config.world_size + (study.workload.rl.rollout_gpus if study.workload.rl else 0)
    if used < study.workload.cluster.num_gpus and not other_ranks:
        assumed += (
            f"the launch uses {used} of the {study.workload.cluster.num_gpus} GPUs of {study.workload.cluster.name}",
        )
        starts_one = (
            found.started is not None
            and found.started.launcher == "python"
            and "CUDA_VISIBLE_DEVICES" not in launch
        )
        if starts_one and study.workload.loop in _STARTS_MORE:
            assumed += (_STARTS_MORE[study.workload.loop],)
    constants = stored_calibration(study.workload, store, program_of(study)) or calibration_for(
        study.workload
    )
    predicted = estimate(study.workload, config, calibration=constants)
    measured_s, source = _measured(study, config, predicted, measured_s, log)
    observed = None
    if measured_s is not None:
        observed = Observed(
            step_time_s=measured_s, source=source, slower=measured_s / float(predicted.step_time_s)
        )
        _refuse_beyond_the_peak(predicted, measured_s)
        predicted = corrected(study.workload, config, predicted, constants, measured_s)
        predicted = given_that_it_ran(predicted, predicted)
    space = space_around(study, config)
    proposed = Proposal((), None, 1.0)
    if space is not None:
        proposed = proposal(space, config, constants, measured_s, Launchable.of(study))
    edits = tuple(_located(found, study, config, edit) for edit in proposed.edits)
    if is_lower_bound:
        edits = tuple(
            replace(edit, remark=_NEEDS_ROOM) if edit.memory_bytes > 0 else edit for edit in edits
        )
    lines, unplaced = (
        _lines(found, study, config, proposed.together.config) if proposed.together else ((), ())
    )
    return Review(
        target=found.name,
        understood=_whole(study, config),
        assumed=(*assumed, *study.workload.assumptions),
        study=study,
        config=config,
        estimate=predicted,
        observed=observed,
        earlier=earlier_of(study, config, store),
        edits=edits,
        together=proposed.together,
        is_upper_bound=is_upper_bound,
        is_lower_bound=is_lower_bound,
        best_gain=proposed.best_gain,
        trials=tuple(_located(found, study, config, edit) for edit in proposed.trials),
        if_out_of_memory=_located(found, study, config, proposed.if_out_of_memory)
        if proposed.if_out_of_memory
        else None,
        lines=lines,
        unplaced=unplaced,
        warnings=tuple(
            dangers_of(
                found.texts,
                study.workload,
                config,
                predicted,
                is_upper_bound=is_upper_bound,
                is_lower_bound=is_lower_bound,
            )
        ),
        texts=found.texts,
        spec=_spec(found, said),
    )


def _other_ranks(
    found: Target, document: Mapping[str, Any], said: Mapping[str, Any]
) -> tuple[str, ...]:
    """What there is to say where the launch starts another number of ranks than the named cluster has."""
    cluster = named_cluster(str(document.get("cluster"))) if said.get("cluster") else None
    if cluster is None or found.asked is None or math.prod(found.asked) == cluster.num_gpus:
        return ()
    nodes, per_node = found.asked
    return (
        f"the launch starts {nodes * per_node} ranks ({nodes} x {per_node}), but --cluster {cluster.name} has {cluster.num_gpus} GPUs",
    )


def _spec(found: Target, said: Mapping[str, Any]) -> str:
    """The text of a spec with what was said in its place."""
    if found.draft is None:
        return found.texts.get(found.name, "")
    given = {
        f"workload.{key}": said[name]
        for name, key in _OF_WORKLOAD.items()
        if said.get(name) is not None
    }
    return found.draft.with_values(given).text


def _completed(
    found: Target,
    said: Mapping[str, Any],
    local_cluster: Callable[[], ClusterSpec] | None,
    log: str | None,
    *,
    is_measured: bool,
) -> tuple[dict[str, Any], list[Missing], tuple[str, ...]]:
    """The spec with what was said in its place, what is still missing, and what is at its limit because nobody told it."""
    document = dict(found.document)
    workload = dict(document.get("workload") or {})
    open_keys = dict.fromkeys(
        key for key in found.fill_in if key not in ("trainer.argv", "trainer.cwd")
    )
    if any(VOCABULARY in comment for comment in found.comments):  # the shape is known but for that
        open_keys.pop("model", None)
    for name, key in _OF_WORKLOAD.items():
        if said.get(name) is not None:
            workload[key] = said[name]
            open_keys.pop(f"workload.{key}", None)
    document["workload"] = workload
    if log is not None and "rl" in document and not found.is_spec:
        changed, answered = answered_by_log(document, log)
        document |= changed
        for key in answered:
            open_keys.pop(key, None)
    if found.is_spec:  # a draft has them already
        document |= {key: said[key] for key in ("model", "cluster") if said.get(key)}
    if said.get("precision"):
        document["space"] = (
            {**document["space"], "precision": [said["precision"]]}
            if isinstance(document.get("space"), dict)
            else document.get("space")
        )
        if isinstance(document.get("baseline"), str):
            document["baseline"] = re.sub(
                r"precision=\w+", f"precision={said['precision']}", document["baseline"]
            )
        launcher = document.get("trainer")
        if (
            isinstance(launcher, dict)
            and launcher.get("kind") == "command"
            and "{precision}" not in str(launcher.get("argv"))
        ):
            document["trainer"] = {
                **launcher,
                "fixed": {**(launcher.get("fixed") or {}), "precision": said["precision"]},
            }
        open_keys.pop("space.precision", None)
    if said.get("config"):
        document["baseline"] = said["config"]
        document |= {} if found.is_spec else _with_config(document, said["config"])
        open_keys.pop("baseline", None)
    if one_gpu := _one_gpu(found, said):
        open_keys["cluster"] = None
    elif said.get("cluster"):
        open_keys.pop("cluster", None)
    elif document.get("cluster") == "local" and not found.is_spec:
        here = local_cluster() if local_cluster else None
        if here is None or here.gpu.is_cpu:
            open_keys["cluster"] = None
    if "baseline" not in document and not found.is_spec:
        open_keys["baseline"] = None
    bounds: tuple[str, ...] = ()
    if (
        "rl" in document
        and not found.is_spec
        and not open_keys.keys() & {"workload.seq_len", "rl.prompts"}
    ):
        seq_len = said.get("seq_len") if "workload.seq_len" in found.fill_in else None
        # a measured step has its own lengths and generation: at their limits they would pass for its error
        bounded = [
            key
            for key in open_keys
            if key.startswith("rl.prompt_lengths" if is_measured else ("rl.", "rollout."))
        ]
        changed, bounds = at_the_longest(document, bounded, seq_len)
        document |= changed
        open_keys = {key: None for key in open_keys if key not in bounded}
    missing = []
    if (nodes := _open_nodes(found.started)) and not said.get("config"):
        missing.append(
            Missing(
                what=f"the number of nodes: only the shell can compute {nodes}",
                remedy="write the number into the launch, or give the config: --config dp=...",
            )
        )
    for remark in _remarks(found):
        option, mark, _ = remark.partition(f": {ONLY_THE_SHELL}")
        if mark and not said.get("config") and not _DECIDES_NO_STEP.search(option):
            missing.append(
                Missing(
                    what=f"a number that only the shell can compute: {option}",
                    remedy="write it into the launch, or give the config: --config micro_batch_size=4,tp=2,...",
                )
            )
    for key in open_keys:
        if log is not None and key.startswith(("rl.", "rollout.")):
            missing.append(
                Missing(
                    what=_HOW.get(key, (key, ""))[0],
                    remedy=f"the log contains none; create a spec with autotune init {found.name} -o study.yaml and write {key} into it",
                )
            )
            continue
        what, remedy = _HOW.get(
            key,
            (
                key,
                f"create a spec with autotune init {found.name} -o study.yaml and write {key} into it",
            ),
        )
        if key == "cluster" and one_gpu:
            what, remedy = (
                f"the number of GPUs: {one_gpu} gives only the GPU type",
                f"give nodes and GPUs: --cluster {one_gpu}-1x8",
            )
        elif key == "cluster" and found.asked:
            remedy = f"name the GPU type, e.g. --cluster h100-sxm: the launch requests {found.asked[0]} x {found.asked[1]} GPUs"
        if key == "baseline":
            what, remedy = _no_baseline(found, what, remedy)
        missing.append(Missing(what=what, remedy=remedy))
    return document, missing, bounds


def _with_config(document: Mapping[str, Any], said: str) -> dict[str, Any]:
    """Trainer and space of a program that has no options for some of the knobs that are said: it does them all the same, and none of them changes."""
    launcher, space = document.get("trainer"), document.get("space")
    if not (
        isinstance(launcher, dict) and launcher.get("kind") == "command" and isinstance(space, dict)
    ):
        return {}
    told = str({key: value for key, value in launcher.items() if key != "fixed"})
    held = {
        name: value
        for name, value in _with_accumulation(document, knobs_of(said)).items()
        if name not in ("dp", "extra") and re.search(rf"\{{[^{{}}]*\b{name}\b", told) is None
    }
    return {
        "trainer": {**launcher, "fixed": {**(launcher.get("fixed") or {}), **held}},
        "space": {**space, **{name: [value] for name, value in held.items()}},
    }


def _with_accumulation(document: Mapping[str, Any], knobs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The knobs with the accumulation that batch and ranks leave, where these are known."""
    cluster, batch = (
        named_cluster(document.get("cluster")),
        document["workload"].get("global_batch_size"),
    )
    if cluster is None or not isinstance(batch, int):
        return knobs
    degrees = math.prod(knobs.get(name, 1) for name in ("tp", "pp", "cp"))
    per_step = knobs.get("micro_batch_size", 1) * knobs.get(
        "dp", max(1, cluster.num_gpus // degrees)
    )
    return knobs if batch % per_step else {"accumulation_steps": batch // per_step, **knobs}


def _no_baseline(found: Target, what: str, remedy: str) -> tuple[str, str]:
    """(why there is no current configuration, what to do): a rule that it breaks, with its lines, is to be mended in the launch."""
    told = next((note for note in found.notes if note.startswith(("no baseline", NOT_VALID))), "")
    if not told:
        return what, remedy
    said = re.sub(_OF_A_BASELINE, "", told.removeprefix(NOT_VALID))
    why, _, rest = said.partition("; ")
    if places := lines_of_values(why, found.texts):
        return (
            f"a valid configuration: {why} ({places})",
            rest or "change one of them in the launch",
        )
    if told.startswith(NOT_VALID):
        return (
            f"a valid configuration: {said}",
            "correct the launch, or give another: --config micro_batch_size=4,tp=2,...",
        )
    return f"the current configuration ({why})", remedy


_OF_A_BASELINE = r"^no baseline: (the current settings of .* are not valid for a study: )?"


def _remarks(found: Target) -> tuple[str, ...]:
    """What was not understood of a launch, in words."""
    return found.draft.remarks if found.draft else ()


_DECIDES_NO_STEP = re.compile(
    r"\b(?:seed|total_epochs|total_training_steps|max_steps|max_num_steps|train-iters)\b"
)
"""numbers that decide nothing about one step"""


def _open_nodes(started: Started | None) -> str:
    """The word that a launcher is told for its nodes, where that is a variable whose value nothing in the launch says."""
    told = next(
        (word for name in ("nnodes", "num_machines") if started and (word := started.option(name))),
        "",
    )
    return told if told.startswith("$") and started is not None and started.nodes == 1 else ""


def _one_gpu(found: Target, said: Mapping[str, Any]) -> str:
    """The type of GPU that was named as the cluster of a launch that does not say how many there are; empty where the cluster is known."""
    name = str(said.get("cluster") or "")
    return name if name in catalog.gpu_names() and found.asked is None and not found.is_spec else ""


def _config(study: Study, asked: str | None) -> ParallelConfig:
    """The config of the launch as it is."""
    if asked:
        return complete(study.workload, asked, study.space.own_knobs)
    if study.baseline is not None:
        return study.baseline
    return default_of_study(study)


def _measured(
    study: Study,
    config: ParallelConfig,
    predicted: Estimate,
    measured_s: float | None,
    log: str | None,
) -> tuple[float | None, str]:
    if measured_s is not None and log is not None:
        raise SpecError(
            "--measured and --log both give the step time",
            remedy="give one of them",
            field="--measured",
        )
    if measured_s is not None:
        if not (math.isfinite(measured_s) and measured_s > 0):
            raise SpecError(
                f"a step time must be above 0 s, but --measured is {measured_s}", field="--measured"
            )
        return measured_s, "as given"
    if log is None:
        return None, ""
    if predicted.phases_s is not None and (trained := _trained_s(log)) is not None:
        seconds, steps = trained
        rest_s = float(predicted.step_time_s) - sum(
            float(getattr(predicted.phases_s, name)) for name in TRAINED
        )
        return (
            rest_s + seconds,
            f"phases of {steps} steps in the log, excluding evaluation and saving",
        )
    read = trainer(study.trainer).reader(study.trainer_options)
    of_step: dict[str, int] = {
        "tokens_per_step": study.workload.seq_len * config.global_batch_size,
        "sequences_per_step": config.global_batch_size,
        "num_ranks": config.world_size,
    }
    read_lines = [m for line in log.splitlines() if (m := read(line)) is not None]
    times = [time for m in read_lines if (time := m.time_of(**of_step))]
    if len(times) < 2 and study.workload.loop == "hf_trainer":
        times = [
            float(rate) if unit == "s/it" else 1.0 / float(rate)
            for rate, unit in _BAR_RATE.findall(log)
            if float(rate) > 0
        ]
    if len(times) < 2:
        raise SpecError(
            f"the log must show at least 2 step times in the format of trainer {study.trainer}, but it shows {len(times)}",
            remedy="give the step time: --measured 2.1s",
            field="--log",
        )
    return median(times[1:]), f"median of {len(times) - 1} steps in the log"


_BAR_RATE = re.compile(r"\d+/\d+ \[[^\]]*?([\d.]+)(s/it|it/s)")
"""of a bar of tqdm, as transformers' Trainer draws one of its optimizer steps"""


def _trained_s(log: str) -> tuple[float, int] | None:
    """(seconds of a step's phases that the trainer runs, steps that say so) by a log that prints them; None where it does not."""
    phases = read_phases(log.splitlines())
    updates = phases.values("update")
    if len(updates) < 2 or not phases.values("log_prob"):
        return None
    return sum(phases.median(name) or 0.0 for name in (*TRAINED, "update_critic")), len(updates)


def _located(found: Target, study: Study, config: ParallelConfig, edit: Edit) -> Edit:
    after = config.with_values({name: new for name, (_, new) in edit.changes.items()})
    lines, unplaced = _lines(found, study, config, after)
    return replace(edit, lines=lines, unplaced=unplaced)


def _lines(
    found: Target, study: Study, before: ParallelConfig, after: ParallelConfig
) -> tuple[tuple[LineEdit, ...], tuple[str, ...]]:
    """(the lines that change, what else must be set). In a spec that is its baseline."""
    if found.is_spec:
        return baseline_line(found.name, found.texts[found.name], after)
    beside, held = (found.draft.beside, found.draft.held) if found.draft else ("", frozenset[str]())
    return changed_lines(
        found.texts, study, before, after, beside=beside, held=held, started=found.started
    )


def _refuse_beyond_the_peak(predicted: Estimate, measured_s: float) -> None:
    """Raises `SpecError` for a step that is shorter than its matmuls take at the peak of the GPUs."""
    mfu = float(predicted.mfu) * float(predicted.step_time_s) / measured_s
    if mfu > 1.0:
        share = f"{mfu:.0%} of" if mfu < 100 else f"{mfu:.3g} times"
        raise SpecError(
            f"a step of {measured_s:g} s would be {share} the GPUs' peak, but the limit is 100%",
            remedy="give the time of an optimizer step, not of a micro-batch, and correct what the review misread: --config, --batch, --seq-len, --model or --cluster",
            field="--measured",
        )


def _metrics(document: Mapping[str, Any]) -> Mapping[str, Any]:
    entry = document.get("trainer")
    return dict(entry.get("metrics") or {}) if isinstance(entry, Mapping) else {}


def _is_assumed(comment: str) -> bool:
    return any(word in comment for word in _ASSUMED) and "fill in" not in comment


def _batch_words(workload: Workload, config: ParallelConfig) -> str:
    if workload.rl is None:
        return f"{config.global_batch_size} x {workload.seq_len}"
    return f"{workload.rl.prompts} x {workload.rl.responses} sequences of {workload.rl.tokens / workload.rl.sequences:,.0f}"


def _whole(study: Study, config: ParallelConfig) -> str:
    workload = study.workload
    tokens = config.global_batch_size * workload.tokens_per_sequence
    lora = (
        f" with {workload.peft.method} r{workload.peft.rank} ({workload.peft.targets})"
        if workload.peft
        else ""
    )
    return (
        f"{'a model' if workload.model.name == 'imported' else workload.model.name} ({format_count(workload.model.num_parameters)}){lora} on {workload.cluster.num_gpus} x {workload.cluster.gpu.name}, "
        f"{_batch_words(workload, config)} = {format_count(tokens)} tokens a step, {config_label(config)}, {_trainer_words(study)}"
    )


def _trainer_words(study: Study) -> str:
    """The trainer as people call it: their own script names the library whose training loop it runs."""
    if study.trainer != "command":
        return f"trainer {study.trainer}"
    return (
        f"your own script ({_LOOPS[study.workload.loop]})"
        if study.workload.loop
        else "your own script"
    )


def _part(document: Mapping[str, Any], found: Target) -> str:
    trainer_entry = document.get("trainer")
    kind = trainer_entry.get("kind", "") if isinstance(trainer_entry, Mapping) else trainer_entry
    if found.started:
        started = f"starts {found.started.program} with {found.started.launcher}"
    else:
        started = "a Python program" if kind == "command" else f"a configuration of {kind}"
    ranks = f" on {found.asked[0]} x {found.asked[1]} ranks" if found.asked else ""
    known = str(document.get("baseline", ""))
    if "space.precision" in found.fill_in:  # it stands there for nothing that was read
        known = re.sub(r",?precision=\w+", "", known).removeprefix(",")
    if found.started and found.asked is None and kind == "command":  # ranks of a usual node
        known = re.sub(r",?\bdp=\d+", "", known).removeprefix(",")
    return f"{started}{ranks}{'; ' if known else ''}{known}"
