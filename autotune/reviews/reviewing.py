"""Reviews one launch, from its text to the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cost import Calibration, calibration_for, estimate
from autotune.errors import SpecError
from autotune.onboarding.configuration_files import MAY_SHARD, UNREAD
from autotune.onboarding.draft import named_cluster
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
from autotune.reviews.answer import Edit, LineEdit, Review
from autotune.reviews.completing import VOCABULARY, WORKLOAD_KEYS, completed, remarks_of
from autotune.reviews.dangers import code_lines, dangers_of
from autotune.reviews.earlier import earlier_of
from autotune.reviews.edits import proposal, space_around
from autotune.reviews.gains import corrected, given_that_it_ran
from autotune.reviews.lines import baseline_line, changed_lines, other_trainings
from autotune.reviews.measured_step import observed_step
from autotune.reviews.said_where import with_lines
from autotune.reviews.target import Target, folder_of, named_text, read_target
from autotune.reviews.understood import part, whole
from autotune.schema import parse_study
from autotune.schema.files import is_model_file, with_program_files
from autotune.space import Launchable, complete
from autotune.space.baseline import default_of_study
from autotune.spec import ClusterSpec, ParallelConfig, Study, number_of
from autotune.trainers.present_configuration import ONLY_THE_SHELL

if TYPE_CHECKING:
    from autotune.onboarding.launch.launch_script import Started
    from autotune.results.best_known import BestKnownStore

LOCAL = "local"
LOWER_MEMORY = (
    "--grad-reduce-in-bf16", "--fp8-param-gather", "--use-precision-aware-optimizer", "--main-grads-dtype", "--main-params-dtype", "--exp-avg-dtype",
    "--optimizer-cpu-offload", "--fp8-recipe blockwise", "paged_adamw", "galore",
    "use_badam: true", "use_apollo: true", "fsdp_offload_params: true",
)  # fmt: skip
"""options of Megatron-LM, LLaMA-Factory and axolotl, and optimizers of transformers, that lower the
peak memory and are not in the cost model"""
_STARTS_MORE = {
    "hf_trainer": "one visible GPU. With several GPUs, transformers' Trainer in one process copies the model to each GPU in every step (DataParallel), "
    "which is slow and multiplies the batch; start one process per GPU instead with torchrun --nproc_per_node=8 ...",
    "lightning": "one visible GPU. Lightning's Trainer starts a rank on each GPU unless `devices` sets fewer; to review a launch on several GPUs, start the program with torchrun",
}
"""by training loop: what a single process does with several GPUs"""
_NEEDS_ROOM = "try this edit first, because the launch needs more memory than predicted"
"""remark on edits that need more memory than a launch whose memory is a lower bound"""
_ASSUMED = ("taken as", "assumed", "if it does not")
"""parts of comments that state an assumption"""
_UNSURE = (NOT_PREDICTED, NOT_COUNTED, ASSUMED_WEIGHTS, ASSUMED_TARGETS, UNREAD)
"""beginnings of notes that state an assumption"""


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

    `model`, `cluster`, `seq_len`, `batch` (sequences per optimizer step), `precision` and `config`
    set what the launch does not. `measured_s`: measured seconds per step; `log`: the log of the
    launch, from which they are read. `here`: a function that returns the cluster of a launch that
    is about to start on this machine, from the program it starts and its (nodes, ranks per node).
    Raises `SpecError` if the target is no launch.
    """
    user_values = {
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
            return _review(found, user_values, measured_s, log, store, local_cluster)
    found = _read(target, model, cluster)
    if here is not None and cluster is None and not found.is_spec:
        starts_here = here(found.started, found.asked)
        user_values["cluster"], found.document["cluster"] = LOCAL, LOCAL
        return _review(found, user_values, measured_s, log, store, lambda: starts_here)
    return _review(found, user_values, measured_s, log, store, local_cluster)


def _read(target: str | Path | Sequence[str], model: str | None, cluster: str | None) -> Target:
    """The launch. Raises `SpecError` if the target is no launch, or violates a rule; then with the
    lines that do."""
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
    **user_values: Any,
) -> Review:
    """The review of texts that the user sent; arguments as for `review`. No file of this machine is
    read."""
    if (model := user_values.get("model")) and is_model_file(model):
        raise SpecError(
            f"model must be a catalog name or a hub id, but is {model!r}",
            remedy="run `autotune models` to list the names, or set the model in the launch",
            field="model",
        )
    with folder_of(texts) as path:
        read = _read(path, user_values.get("model"), user_values.get("cluster"))
        given = {**read.texts, **{name: texts[name] for name in read.texts if name in texts}}
        name = next(iter(texts))
        base = None if read.is_spec else read.base
        return _review(
            replace(read, name=name, texts=given, base=base),
            user_values,
            measured_s,
            log,
            store,
            None,
        )


def _review(
    found: Target,
    user_values: Mapping[str, Any],
    measured_s: float | None,
    log: str | None,
    store: BestKnownStore | None,
    local_cluster: Callable[[], ClusterSpec] | None,
) -> Review:
    is_measured = log is not None or measured_s is not None
    document, missing, bounds = completed(
        found, user_values, local_cluster, log, is_measured=is_measured
    )
    code = _code(found)
    lowering = tuple(option for option in LOWER_MEMORY if option in code)
    assumed = (*bounds, *_assumed(found, document, lowering))
    other_ranks = _other_ranks(found, document, user_values)
    if missing:
        return Review(
            target=found.name,
            understood=part(document, found),
            assumed=(*assumed, *other_ranks),
            missing=tuple(missing),
            warnings=tuple(dangers_of(found.texts)),
            texts=found.texts,
            spec=_spec(found, user_values),
            metrics=_metrics(document),
        )
    study = _study(found, document, local_cluster)
    workload, config = study.workload, _config(study, user_values.get("config"))
    constants = stored_calibration(workload, store, program_of(study)) or calibration_for(workload)
    predicted = estimate(workload, config, calibration=constants)
    if observed := observed_step(study, config, predicted, measured_s, log):
        predicted = corrected(workload, config, predicted, constants, observed.step_time_s)
        predicted = given_that_it_ran(predicted, predicted)
    is_upper_bound = bool(lowering or bounds) or any(map(_may_need_less, found.notes))
    is_lower_bound = any(map(_needs_more, found.notes))
    dangers = dangers_of(
        found.texts,
        workload,
        config,
        predicted,
        is_upper_bound=is_upper_bound,
        is_lower_bound=is_lower_bound,
    )
    reviewed = Review(
        target=found.name,
        understood=whole(study, config),
        assumed=(
            *assumed,
            *_rank_sentences(found, study, config, other_ranks),
            *_plain_start_sentences(found, study, config),
            *workload.assumptions,
        ),
        study=study,
        config=config,
        estimate=predicted,
        observed=observed,
        earlier=earlier_of(study, config, store),
        is_upper_bound=is_upper_bound,
        is_lower_bound=is_lower_bound,
        warnings=tuple(dangers),
        texts=found.texts,
        spec=_spec(found, user_values),
    )
    return _with_edits(reviewed, found, study, config, constants)


def _with_edits(
    reviewed: Review, found: Target, study: Study, config: ParallelConfig, constants: Calibration
) -> Review:
    """The review with the proposed edits, as lines of the files."""
    if (space := space_around(study, config)) is None:
        return reviewed
    measured_s = reviewed.observed.step_time_s if reviewed.observed else None
    proposed = proposal(space, config, constants, measured_s, Launchable.of(study))
    together, fitting = proposed.together, proposed.if_out_of_memory
    located = partial(_located, found, study, config)
    edits = tuple(map(located, proposed.edits))
    if reviewed.is_lower_bound:
        edits = tuple(
            replace(edit, remark=_NEEDS_ROOM) if edit.memory_bytes > 0 else edit for edit in edits
        )
    lines, unplaced = _lines(found, study, config, together.config) if together else ((), ())
    return replace(
        reviewed,
        edits=edits,
        together=together,
        best=proposed.best,
        trials=tuple(map(located, proposed.trials)),
        if_out_of_memory=located(fitting) if fitting else None,
        lines=lines,
        unplaced=unplaced,
    )


def _code(found: Target) -> str:
    """The first text without its comments."""
    return "\n".join(line for _, line in code_lines(next(iter(found.texts.values()), "")))


def _assumed(found: Target, document: Mapping[str, Any], lowering: Sequence[str]) -> Iterator[str]:
    """Sentences on what is assumed about a launch. `lowering`: its options that lower the peak
    memory and are not in the cost model."""
    yield from (each for each in remarks_of(found) if ONLY_THE_SHELL not in each)
    yield from dict.fromkeys(filter(_is_assumed, found.comments))
    yield from (note for note in found.notes if note.startswith(_UNSURE))
    model = document.get("model")
    if isinstance(model, dict) and any(VOCABULARY in comment for comment in found.comments):
        yield f"vocabulary size {model['vocab_size']}; set the model with --model if this size is wrong"
    if unreviewed := other_trainings(next(iter(found.texts.values()), ""), found.started):
        of_others = f"line{'s' if len(unreviewed) > 1 else ''} {', '.join(map(str, unreviewed))}"
        yield f"only one training of {found.name} is reviewed, not {of_others}; to review another training, run autotune review -- COMMAND"
    if lowering:
        yield f"the cost model ignores the memory saved by {', '.join(lowering)}, so the launch may need less memory and more time"


def _may_need_less(note: str) -> bool:
    """Whether a note means that the launch may need less memory than predicted."""
    if note.startswith(NOT_COUNTED):
        return ALL_TRAINED in note or NEEDS_LESS in note
    return note.startswith(UNREAD) and note.endswith(MAY_SHARD)


def _needs_more(note: str) -> bool:
    """Whether a note means that the launch needs more memory than predicted."""
    return note.startswith(NOT_PREDICTED) or NEEDS_MORE in note


def _study(
    found: Target,
    document: Mapping[str, Any],
    local_cluster: Callable[[], ClusterSpec] | None,
) -> Study:
    """The study of a spec in which nothing is missing."""
    launcher = document.get("trainer")
    if isinstance(launcher, dict) and not found.is_spec and found.base:
        launcher = with_program_files(launcher, found.base.absolute())
        document = {**document, "trainer": launcher}
    return parse_study(document, base=found.base, local_cluster=local_cluster, inspect=None)


def _rank_sentences(
    found: Target, study: Study, config: ParallelConfig, other_ranks: Sequence[str]
) -> Iterator[str]:
    """Sentences on the number of ranks that is reviewed, and on unused GPUs."""
    yield from (
        f"{words}; the review is for {number_of(config.world_size, 'rank')}"
        for words in other_ranks
    )
    rl, cluster, loop = study.workload.rl, study.workload.cluster, study.workload.loop
    used = config.world_size + (rl.rollout_gpus if rl else 0)
    if used >= cluster.num_gpus or other_ranks:
        return
    yield f"the launch uses {used} of the {cluster.num_gpus} GPUs in {cluster.name}"
    is_one_process = found.started is not None and found.started.launcher == "python"
    if is_one_process and loop in _STARTS_MORE and "CUDA_VISIBLE_DEVICES" not in _code(found):
        yield _STARTS_MORE[loop]


def _plain_start_sentences(found: Target, study: Study, config: ParallelConfig) -> Iterator[str]:
    """A sentence on how a Python script without a launch is assumed to start."""
    is_script = found.name.endswith(".py") and study.workload.trainer == "command"
    if is_script and config.dp > 1 and config.zero_stage == 0:
        yield f"each rank holds the whole model, as with DDP, because {found.name} does not shard by itself; to review a launch that shards it, run autotune review -- COMMAND"


def _other_ranks(
    found: Target, document: Mapping[str, Any], user_values: Mapping[str, Any]
) -> tuple[str, ...]:
    """A sentence, if the launch starts another number of ranks than the named cluster has."""
    cluster = named_cluster(str(document.get("cluster"))) if user_values.get("cluster") else None
    if cluster is None or found.asked is None or math.prod(found.asked) == cluster.num_gpus:
        return ()
    nodes, per_node = found.asked
    return (
        f"the launch starts {number_of(nodes * per_node, 'rank')} ({nodes} x {per_node}), but --cluster {cluster.name} has {number_of(cluster.num_gpus, 'GPU')}",
    )


def _spec(found: Target, user_values: Mapping[str, Any]) -> str:
    """The text of a spec with the user's values filled in."""
    if found.draft is None:
        return found.texts.get(found.name, "")
    given = {
        f"workload.{key}": user_values[name]
        for name, key in WORKLOAD_KEYS.items()
        if user_values.get(name) is not None
    }
    return found.draft.with_values(given).text


def _config(study: Study, asked: str | None) -> ParallelConfig:
    """The current config of the launch."""
    if asked:
        return complete(study.workload, asked, study.space.own_knobs)
    if study.baseline is not None:
        return study.baseline
    return default_of_study(study)


def _located(found: Target, study: Study, config: ParallelConfig, edit: Edit) -> Edit:
    """The edit with the lines of the files that change."""
    after = config.with_values({name: new for name, (_, new) in edit.changes.items()})
    lines, unplaced = _lines(found, study, config, after)
    return replace(edit, lines=lines, unplaced=unplaced)


def _lines(
    found: Target, study: Study, before: ParallelConfig, after: ParallelConfig
) -> tuple[tuple[LineEdit, ...], tuple[str, ...]]:
    """(the lines that change, settings without a line). In a spec, its baseline changes."""
    if found.is_spec:
        return baseline_line(found.name, found.texts[found.name], after)
    keyword, held = (
        (found.draft.beside, found.draft.held) if found.draft else ("", frozenset[str]())
    )
    return changed_lines(
        found.texts, study, before, after, beside=keyword, held=held, started=found.started
    )


def _metrics(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The log patterns of the spec's trainer."""
    entry = document.get("trainer")
    return dict(entry.get("metrics") or {}) if isinstance(entry, Mapping) else {}


def _is_assumed(comment: str) -> bool:
    return any(word in comment for word in _ASSUMED) and "fill in" not in comment
