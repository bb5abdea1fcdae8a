"""Parse a spec into a `Study`: look up names, read files, expand value rules, check all values.

base            folder that relative paths start at; None: reject paths, because a document that arrives over the network
                must not make this machine read its files
local_cluster   returns this machine as a cluster, for `cluster: local`
slurm_cluster   returns the nodes of the current Slurm job as a cluster, for `cluster: slurm`; called with the spec's `slurm`
inspect         builds the model of a user's code in a separate process, and returns its shape
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from autotune.assets import space_file
from autotune.errors import AutotuneError, SpecError
from autotune.schema.clusters import LOCAL, SLURM, PlannedJob, find_cluster, planned_job
from autotune.schema.document import MAX_MISTAKES
from autotune.schema.files import (
    Inspect,
    find_data,
    is_model_file,
    is_space_file,
    locate,
    name_of,
    own_model,
    read_model,
    transformers_model,
)
from autotune.schema.model_documents import (
    CountedModelDocument,
    HuggingFaceModelDocument,
    ModelDocument,
    ModelValue,
    ModuleModelDocument,
    NamedModelDocument,
)
from autotune.schema.reading import check_size, read_document
from autotune.schema.rl_documents import fine_tuning_of, post_training_of
from autotune.schema.source_text import ReadDocument, located
from autotune.schema.space_models import SpaceDocument, ValueRule
from autotune.schema.spec_models import KindDocument, SlurmDocument, StudyDocument
from autotune.schema.unknown_names import check_names, unknown_names, with_native_keys, with_others
from autotune.search import check_searcher
from autotune.space import Launchable, complete, why_not
from autotune.space.completion import filled_in as filled_words
from autotune.spec import (
    KNOBS,
    Budget,
    ClusterSpec,
    Knob,
    MeasureSpec,
    ModelSpec,
    Objective,
    ParallelConfig,
    Peft,
    SpaceSpec,
    Study,
    Workload,
    catalog,
)
from autotune.spec.checks import READ_AS_BOOLEAN
from autotune.spec.failures import Failures
from autotune.spec.hugging_face.figures import check_source
from autotune.spec.plain import identity
from autotune.spec.post_training import RL_KNOBS, PostTraining, check_rl_knob
from autotune.spec.texts.validation import violated_rule
from autotune.trainers import trainer
from autotune.trainers.base.trainer import SAME_DATA

_OF_KIND = {
    "missing": "this key is required, but is missing",
    "string_type": "must be text, or a mapping if the field has keys",
    "string_pattern_mismatch": "must begin with a letter or digit and contain only letters, digits, "
    "spaces and _.:+-, with at most 100 characters",
}
"""messages that replace pydantic's, by its type of error"""
_EXAMPLES = {
    "model": "use a name from `autotune models`, or the path of your own config.json",
    "cluster": "use a name from `autotune clusters`, such as h100-sxm-1x8, or `local` for this machine",
    "workload": "for instance {seq_len: 4096, global_batch_size: 64}",
    "space": "use a name from `autotune spaces`, such as dense-single-node, or list knob values: {tp: [1, 2, 4], micro_batch_size: [1, 2, 4]}",
}
"""remedies for missing keys"""

D = TypeVar("D", bound=BaseModel)


def parse_study(
    document: Mapping[str, Any],
    *,
    base: Path | None = None,
    local_cluster: Callable[[], ClusterSpec] | None = None,
    slurm_cluster: Callable[[SlurmDocument], ClusterSpec] | None = None,
    inspect: Inspect | None = None,
) -> Study:
    """Return the study of a spec. Raises `SpecError`, or `CatalogError` for an unknown name, with
    the field."""
    spec = _validated(document)
    job = _job(spec, local_cluster, slurm_cluster)
    trainer_name, trainer_options = _kind(spec.trainer)
    trainer(trainer_name).checked(trainer_options)
    _reject_export_options(trainer_name, trainer_options)
    check_searcher(spec.searcher)
    runner, runner_options = _kind(spec.runner)
    workload = _workload(spec, job, trainer_name, base, inspect)
    space = replace(
        parse_space(spec.space, base=base), extra=_current_first(_own_knobs(spec), workload.rl)
    )
    guesses = {} if spec.baseline is None else {"baseline": spec.baseline}
    guesses |= {f"enqueue.{i}": guess for i, guess in enumerate(spec.enqueue)}
    configs, mistakes = _configs(workload, guesses, space)
    launchable = Launchable.in_space(trainer(trainer_name), trainer_options, workload, space)
    if not mistakes:
        launchable.trainer.check_own_knobs(space.extra, launchable.options)
    invalid = dict(_invalid_configs(job, workload, launchable, configs))
    left_out: dict[str, str] = {}
    if spec.cluster in (LOCAL, SLURM) and job.at_hand is None:
        # skip configs that do not fit this machine, because the spec was written for any machine
        left_out = {field: why for field, why in invalid.items() if field != "baseline"}
    mistakes += (
        SpecError(invalid[field], field=field) for field in invalid if field not in left_out
    )
    if mistakes:
        raise with_others(mistakes[0], mistakes[1:MAX_MISTAKES])
    skipped = (
        f"{_guess_text(guesses[field], configs[field])}: {why}" for field, why in left_out.items()
    )
    baseline = configs.pop("baseline", None)
    return Study(
        name=spec.name or f"{workload.model.name}-{job.name}",
        workload=workload,
        space=space,
        objective=Objective(
            **spec.objective.model_dump(),
            failures=Failures(**spec.failures.model_dump()) if spec.failures else None,
        ),
        budget=Budget(**spec.budget.model_dump()),
        measure=MeasureSpec(**spec.measure.model_dump()),
        searcher=spec.searcher,
        trainer=trainer_name,
        trainer_options=launchable.options,
        same_data=trainer(trainer_name).same_data or bool(trainer_options.get(SAME_DATA.name)),
        runner=runner,
        runner_options=runner_options,
        check=spec.check,
        calibrate=spec.calibrate,
        keeps_outputs=spec.outputs == "keep",
        unwatched=not spec.probe,
        seed=spec.seed,
        data=spec.data if spec.data is None or base is None else find_data(spec.data, base),
        baseline=baseline,
        enqueue=tuple(dict.fromkeys(c for field, c in configs.items() if field not in left_out)),
        left_out=tuple(dict.fromkeys(skipped)),
        filled_in=_filled_in(guesses, configs, space),
        at_hand=job.at_hand,
    )


def _validated(document: Mapping[str, Any]) -> StudyDocument:
    """Return the document as a `StudyDocument`, with its names checked. Raises `SpecError` with the
    first `MAX_MISTAKES` mistakes."""
    document = with_native_keys(document)
    try:
        spec = _checked(StudyDocument, document)
    except SpecError as error:
        raise with_others(error, unknown_names(document)) from None
    check_names(document)
    return spec


def _job(
    spec: StudyDocument,
    local_cluster: Callable[[], ClusterSpec] | None,
    slurm_cluster: Callable[[SlurmDocument], ClusterSpec] | None,
) -> PlannedJob:
    """Return the job of a spec."""
    find_slurm = (
        None if slurm_cluster is None else partial(slurm_cluster, spec.slurm or SlurmDocument())
    )
    return planned_job(spec, find_cluster(spec.cluster, local_cluster, find_slurm))


def _workload(
    spec: StudyDocument,
    job: PlannedJob,
    trainer_name: str,
    base: Path | None,
    inspect: Inspect | None,
) -> Workload:
    """Return the workload of a spec."""
    model = _for_sequence(_named(_model(spec.model, base, inspect), spec), job.seq_len)
    rl = _post_training(spec, trainer_name, model, job.cluster, base)
    batch = job.global_batch_size if rl is None or spec.rl is None else rl.mini_batch
    step = spec.workload
    return located(
        "workload",
        lambda: Workload(
            model=model,
            cluster=job.cluster,
            seq_len=job.seq_len,
            rl=rl,
            global_batch_size=batch if isinstance(batch, int) else _listed(batch),
            optimizer=step.optimizer,
            trainer=trainer_name,
            document_len=step.document_len,
            peft=None if step.peft is None else Peft(**step.peft.model_dump()),
            pure_bf16=step.pure_bf16,
            shards_in_fp32=step.shards_in_fp32,
            unfused_attention=step.unfused_attention,
            attention_kernel=step.attention_kernel,
            loop=step.loop,
        ),
    )


def _configs(
    workload: Workload, guesses: Mapping[str, Any], space: SpaceSpec
) -> tuple[dict[str, ParallelConfig], list[AutotuneError]]:
    """Return (the guesses as complete configs, by field; the errors of the other guesses)."""
    configs: dict[str, ParallelConfig] = {}
    mistakes: list[AutotuneError] = []
    for field, guess in guesses.items():
        try:
            configs[field] = located(field, partial(complete, workload, guess, space.own_knobs))
        except AutotuneError as error:
            mistakes.append(error)
    return configs, mistakes


def _invalid_configs(
    job: PlannedJob,
    workload: Workload,
    launchable: Launchable,
    configs: Mapping[str, ParallelConfig],
) -> Iterator[tuple[str, str]]:
    """Yield (field, reason) of the configs that cannot run. The baseline of a target is not
    checked, because it does not run here."""
    for field, config in configs.items():
        is_of_target = field == "baseline" and job.at_hand is not None
        reason = why_not(workload, config) or launchable.why_not(workload, config)
        if reason and not is_of_target:
            yield field, reason


def _guess_text(guess: Any, config: ParallelConfig) -> str:
    """Return a guess as text: as written, or the label of its config if it is a mapping."""
    return guess if isinstance(guess, str) else str(config)


def _filled_in(
    guesses: Mapping[str, Any], configs: Mapping[str, ParallelConfig], space: SpaceSpec
) -> tuple[str, ...]:
    """Return notes about varying knobs that guesses in `enqueue` leave out, with the values
    used."""
    varying = [name for name, values in {**space.knobs, **space.extra}.items() if len(values) > 1]
    notes = {
        f"{words} in {_guess_text(guesses[field], config)}": None
        for field, config in configs.items()
        if field != "baseline" and (words := filled_words(guesses[field], config, varying))
    }
    return tuple(notes)


def parse_space(
    space: str | Mapping[str, Any] | SpaceDocument, *, name: str = "", base: Path | None = None
) -> SpaceSpec:
    """Return the search space of a built-in name, a path to a YAML file, or inline knobs. Raises
    `SpecError` or `CatalogError`."""
    if isinstance(space, str):
        path = locate(space, base, field="space") if is_space_file(space) else space_file(space)
        return parse_space(
            read_document(path, what="search space"), name=name_of(path.stem), base=base
        )
    document = (
        space if isinstance(space, SpaceDocument) else _checked(SpaceDocument, space, field="space")
    )
    written = {knob: getattr(document, knob) for knob in KNOBS}
    knobs = {knob: _listed(values) for knob, values in written.items() if values is not None}
    if mistakes := list(_wrong_values(knobs)):
        raise with_others(mistakes[0], mistakes[1:MAX_MISTAKES])
    return SpaceSpec(
        name=document.name or name or "inline",
        knobs=knobs,
        world_sizes=()
        if document.world_sizes is None
        else tuple(sorted(set(_listed(document.world_sizes)))),
    )


def _wrong_values(knobs: Mapping[str, tuple[Any, ...]]) -> Iterator[AutotuneError]:
    """Yield an error for each invalid value of a knob."""
    for knob, values in knobs.items():
        for value in values:
            try:
                located(f"space.{knob}", partial(KNOBS[knob].check, value))
            except AutotuneError as error:
                yield error


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a study spec."""
    return StudyDocument.model_json_schema()


def _checked(kind: type[D], document: Any, *, field: str = "") -> D:
    """Return the document as `kind`. Raises `SpecError` with the field of each mistake."""
    if not isinstance(document, Mapping):
        raise SpecError(
            f"must be a mapping of keys to values, but is {document!r:.80}", field=field
        )
    if not isinstance(document, ReadDocument):  # a `ReadDocument` was checked when it was read
        check_size(document)
    try:
        return kind.model_validate(dict(document))
    except ValidationError as error:
        raise _readable(error, document, field) from None


def _readable(error: ValidationError, document: Mapping[str, Any], field: str) -> SpecError:
    """Return pydantic's error as a `SpecError`: the first mistake of the document, with the next
    ones as its `others`."""
    order = _Order(document, field)
    mistakes: dict[tuple[str, str], SpecError] = {}
    for problem in sorted(
        error.errors(include_url=False), key=lambda problem: order.of(_where(problem, field))
    ):
        mistake = _mistake(problem, field)
        mistakes.setdefault((mistake.field, mistake.message), mistake)
        if len(mistakes) == MAX_MISTAKES:
            break
    first, *others = mistakes.values()
    first.others = tuple(others)
    return first


class _Order:
    """The order of fields in a document."""

    def __init__(self, document: Mapping[str, Any], prefix: str) -> None:
        self._document, self._prefix = document, prefix
        self._indices: dict[int, dict[str, int]] = {}
        """for each mapping of the document, by its `id`: the index of each key"""

    def of(self, field: str) -> list[int]:
        """Return a field's index in each mapping or list around it, from the outermost inwards. A
        missing key comes last."""
        indices: list[int] = []
        document: Any = self._document
        for part in field.removeprefix(self._prefix).strip(".").split("."):
            if isinstance(document, Mapping):
                if id(document) not in self._indices:
                    self._indices[id(document)] = {str(key): i for i, key in enumerate(document)}
                indices.append(self._indices[id(document)].get(part, len(document)))
                document = document.get(part)
            else:
                indices.append(
                    int(part)
                    if isinstance(document, list) and part.isdigit() and len(part) < 10
                    else 0
                )
                document = (
                    document[indices[-1]]
                    if isinstance(document, list) and indices[-1] < len(document)
                    else None
                )
        return indices


def _mistake(problem: Mapping[str, Any], field: str) -> SpecError:
    """Return one problem of pydantic's as a `SpecError`."""
    where, context = _where(problem, field), problem.get("ctx", {})
    message = violated_rule(problem, _OF_KIND)
    if problem["type"] == "unknown_key":
        context = {**context, "remedy": context["remedy"]()}
    elif problem["type"] not in ("missing", "quantity") and not isinstance(
        problem["input"], Mapping | BaseModel
    ):
        message += f", but is {problem['input']!r:.80}"
    return SpecError(
        message, remedy=_remedy(problem["type"], problem["input"], where, context), field=where
    )


def _remedy(kind: str, value: Any, where: str, context: Mapping[str, Any]) -> str:
    """Return the remedy for an invalid value; empty if there is none. `kind`: pydantic's type of
    error."""
    if kind == "missing":
        return _EXAMPLES.get(where, "")
    if kind in ("int_type", "float_type") and isinstance(value, str):
        if re.fullmatch(r"0[0-9]+", value):
            return "omit the leading zeros"
        if re.fullmatch(r"[0-9.]+", value):
            return "omit the quotes"
        if re.fullmatch(r"[0-9.]+ ?([eE]\+?[0-9]+|[kKmMgGbBtT]i?)", value):
            return "write all digits, without a unit or exponent"
    if kind == "string_type" and isinstance(value, bool):
        return READ_AS_BOOLEAN
    if kind == "string_type" and isinstance(value, int | float):
        return "put quotes around the value"
    return str(context.get("remedy", ""))


def _where(problem: Mapping[str, Any], field: str) -> str:
    """Return the dotted field of a problem."""
    parts = [
        str(part) for part in problem["loc"] if not str(part).startswith("<") and part != "[key]"
    ]
    unknown = [problem["ctx"]["key"]] if problem["type"] == "unknown_key" else []
    return ".".join([*filter(None, [field]), *parts, *unknown])


def _model(value: ModelValue, base: Path | None, inspect: Inspect | None) -> ModelSpec:
    """Return the model of any form of `model`."""
    if isinstance(value, HuggingFaceModelDocument):
        return transformers_model(value.hf, value.source, base=base, inspect=inspect)
    if isinstance(value, ModuleModelDocument):
        name = value.name or name_of(value.module.replace(":", "."))
        return own_model(
            value.module, value.args, value.folder, name=name, base=base, inspect=inspect
        )
    if isinstance(value, NamedModelDocument):
        return replace(_model(value.name, base, inspect), mtp_layers=value.mtp_layers)
    if isinstance(value, CountedModelDocument):
        return ModelSpec.of_parameters(value.parameters, name=value.name or "model")
    if isinstance(value, ModelDocument):
        return located("model", lambda: check_source(ModelSpec(**value.model_dump())))
    return read_model(value, base) if is_model_file(value) else catalog.model(value)


def _named(model: ModelSpec, spec: StudyDocument) -> ModelSpec:
    """Return the model, if it is inline and unnamed, with a name from the study's name and a digest
    of its shape, so that different models never share a name in the history."""
    if (
        not isinstance(spec.model, ModelDocument | CountedModelDocument)
        or "name" in spec.model.model_fields_set
    ):
        return model
    shape = {name: value for name, value in spec.model.model_dump().items() if name != "name"}
    return replace(model, name=f"{spec.name or 'model'}-{identity(shape)[:6]}")


def _for_sequence(model: ModelSpec, seq_len: int) -> ModelSpec:
    """Return the model with at least `seq_len` learned positions, because training from scratch may
    use longer sequences than the catalog's model."""
    return replace(model, max_positions=seq_len) if 0 < model.max_positions < seq_len else model


def _kind(value: str | KindDocument) -> tuple[str, dict[str, Any]]:
    """Return (name, options) of a trainer or a runner."""
    return (value, {}) if isinstance(value, str) else (value.kind, _with_text_keys(value.options))


def _with_text_keys(value: Any) -> Any:
    """Return the value with all keys of mappings as JSON text (`true`, `8`), so that options read
    from YAML are equal to the same options read from the store."""
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else json.dumps(key): _with_text_keys(inner)
            for key, inner in value.items()
        }
    return [_with_text_keys(inner) for inner in value] if isinstance(value, list) else value


def _reject_export_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise `SpecError` for options that only exports use, because trials would ignore them."""
    ignored = [
        option.name
        for option in trainer(name).options
        if option.export_only and option.name in options
    ]
    for option in ignored:
        if option in StudyDocument.model_fields:
            message, remedy = (
                f"{option} is a key of the study, not of `trainer`",
                f"put `{option}: ...` next to `trainer`",
            )
        else:
            message = f"only exports use {option}"
            remedy = f"omit {option} here, and use `autotune export --option {option}=...`"
        raise SpecError(
            f"{message}; trials would ignore it", remedy=remedy, field=f"trainer.{option}"
        )


def _post_training(
    spec: StudyDocument,
    trainer_name: str,
    model: ModelSpec,
    cluster: ClusterSpec,
    base: Path | None,
) -> PostTraining | None:
    """Return the post-training step, or the fine-tuning on sequences of unequal length; None for a
    plain optimizer step. Raises `SpecError` with the field."""
    step, batch = spec.workload, spec.workload.global_batch_size
    if spec.rl is None:
        if spec.rollout is not None:
            raise SpecError(
                "rollout gives the generation speed, but the spec has no `rl`",
                remedy="add a step, e.g. rl: {algorithm: grpo, prompts: 512, responses: 16, ...}",
                field="rollout",
            )
        if batch is None:
            raise SpecError(
                "this key is required, but is missing", field="workload.global_batch_size"
            )
        if step.lengths is None:
            return None
        if not isinstance(batch, int):
            raise SpecError(
                f"sequences of unequal length need a single batch size, but global_batch_size={batch!r}",
                remedy="specify one",
                field="workload.global_batch_size",
            )
        post_training = fine_tuning_of(step.lengths, batch, trainer=trainer_name, base=base)
    else:
        if step.lengths is not None:
            raise SpecError(
                "lengths for post-training go under `rl`",
                remedy="rl.prompt_lengths and rl.response_lengths",
                field="workload.lengths",
            )
        post_training = post_training_of(
            spec.rl, spec.rollout, trainer=trainer_name, model=model, cluster=cluster, base=base,
            critic=lambda name: _model(name, base, None), seq_len=step.seq_len, batch=batch,
        )  # fmt: skip
        if batch is not None and batch != post_training.mini_batch:
            raise SpecError(
                f"an optimizer step takes prompts x responses / mini_batches sequences, here {post_training.mini_batch}, but global_batch_size={batch!r}",
                remedy="omit global_batch_size",
                field="workload.global_batch_size",
            )
    if post_training.longest > step.seq_len:
        raise SpecError(
            f"seq_len must be at least the longest sequence, but seq_len={step.seq_len} and the longest has {post_training.longest:,} tokens",
            remedy=f"set seq_len to {post_training.longest}, or lower `max` of the lengths",
            field="workload.seq_len",
        )
    unused_knobs = [
        name for name in spec.knobs if name in RL_KNOBS and name not in post_training.knob_names
    ]
    if unused_knobs:
        raise SpecError(
            f"{unused_knobs[0]} is a knob for generating responses, which {post_training.algorithm} does not do",
            remedy="remove it from `knobs`",
            field=f"knobs.{unused_knobs[0]}",
        )
    for name in (n for n in spec.knobs if n in post_training.knob_names):
        check_rl_knob(name, _listed(spec.knobs[name]))
    return post_training


def _current_first(
    knobs: Mapping[str, tuple[Any, ...]], rl: PostTraining | None
) -> dict[str, tuple[Any, ...]]:
    """Return the knobs, each with the current value of `rl` first if its list has it, because a
    knob's first value is the baseline's."""
    return {
        name: tuple(dict.fromkeys((rl.current(name), *values)))
        if rl is not None and name in RL_KNOBS and rl.current(name) in values
        else values
        for name, values in knobs.items()
    }


def _own_knobs(spec: StudyDocument) -> dict[str, tuple[Any, ...]]:
    """Return the study's own knobs with their values. Raises `SpecError` with the field."""
    for name, values in spec.knobs.items():
        if name in KNOBS:
            raise SpecError(
                f"{name} is a built-in knob, so a study cannot declare it again",
                remedy="write its values under `space`",
                field=f"knobs.{name}",
            )
        if name in _RESERVED:
            raise SpecError(
                f"{name} is a reserved name in a space or a config",
                remedy="rename the knob",
                field=f"knobs.{name}",
            )
        Knob.own(
            name, values if isinstance(values, list) else _listed(values)
        )  # before equal values, 1 and true, are merged
    return {name: _listed(values) for name, values in spec.knobs.items()}


_RESERVED = frozenset({*SpaceDocument.model_fields, "extra"})
"""names that a study's own knob cannot have"""


def _listed(values: Any) -> tuple[Any, ...]:
    """Return the distinct values of a rule, a list or one value."""
    if isinstance(values, ValueRule):
        return values.listed()
    return tuple(dict.fromkeys(values)) if isinstance(values, list) else (values,)
