"""From a document to a `Study`: names looked up, files read, rules written out, every number checked.

base            folder against which paths in the document are read; None: paths are refused (a document that came over the wire
                must not make this machine read its files)
local_cluster   finds out what is here, when the cluster is `local`
slurm_cluster   finds out what the nodes of this job have, when the cluster is `slurm`; told what the spec says of the job
inspect         builds the model of a user's code, in a process of its own, and says what only the code can tell
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
from autotune.schema.clusters import LOCAL, SLURM, AskedJob, asked_cluster, asked_job
from autotune.schema.document import MOST_MISTAKES
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
    AskedModel,
    CountedModelDocument,
    HuggingFaceModelDocument,
    ModelDocument,
    ModuleModelDocument,
    NamedModelDocument,
)
from autotune.schema.reading import check_size, read_document
from autotune.schema.rl_documents import fine_tuning_of, post_training_of
from autotune.schema.source_text import ReadDocument, located
from autotune.schema.space_models import SpaceDocument, ValueRule
from autotune.schema.spec_models import KindDocument, SlurmDocument, StudyDocument
from autotune.schema.unknown_names import checked_names, in_own_keys, unknown_names, with_others
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
from autotune.spec.texts.validation import broken_rule
from autotune.trainers import trainer
from autotune.trainers.base.trainer import SAME_DATA

_OF_KIND = {
    "missing": "this key is required, but is missing",
    "string_type": "must be text, or a mapping if the field has keys",
    "string_pattern_mismatch": "must begin with a letter or digit and contain only letters, digits, "
    "spaces and _.:+-, with at most 100 characters",
}
"""A spec's own words for what is wrong, by pydantic's type."""
_TO_WRITE = {
    "model": "use a name from `autotune models`, or the path of your own config.json",
    "cluster": "use a name from `autotune clusters`, such as h100-sxm-1x8, or `local` for this machine",
    "workload": "for instance {seq_len: 4096, global_batch_size: 64}",
    "space": "use a name from `autotune spaces`, such as dense-single-node, or list knob values: {tp: [1, 2, 4], micro_batch_size: [1, 2, 4]}",
}
"""What to write for a key that a spec must have."""

D = TypeVar("D", bound=BaseModel)


def parse_study(
    document: Mapping[str, Any],
    *,
    base: Path | None = None,
    local_cluster: Callable[[], ClusterSpec] | None = None,
    slurm_cluster: Callable[[SlurmDocument], ClusterSpec] | None = None,
    inspect: Inspect | None = None,
) -> Study:
    """The study that the document asks for. Raises `SpecError` (or `CatalogError` for an unknown name), with the field."""
    asked = _asked(document)
    job = _job(asked, local_cluster, slurm_cluster)
    trainer_name, trainer_options = _kind(asked.trainer)
    trainer(trainer_name).checked(trainer_options)
    _refuse_export_options(trainer_name, trainer_options)
    check_searcher(asked.searcher)
    runner, runner_options = _kind(asked.runner)
    workload = _workload(asked, job, trainer_name, base, inspect)
    space = replace(
        parse_space(asked.space, base=base), extra=_today_first(_own_knobs(asked), workload.rl)
    )
    guesses = {} if asked.baseline is None else {"baseline": asked.baseline}
    guesses |= {f"enqueue.{i}": guess for i, guess in enumerate(asked.enqueue)}
    configs, mistakes = _configs(workload, guesses, space)
    launchable = Launchable.in_space(trainer(trainer_name), trainer_options, workload, space)
    if not mistakes:
        launchable.trainer.check_own_knobs(space.extra, launchable.options)
    broken = dict(_broken(job, workload, launchable, configs))
    left_out: dict[str, str] = {}
    if asked.cluster in (LOCAL, SLURM) and job.at_hand is None:
        # the spec was written before anybody knew this machine
        left_out = {field: why for field, why in broken.items() if field != "baseline"}
    mistakes += (SpecError(broken[field], field=field) for field in broken if field not in left_out)
    if mistakes:
        raise with_others(mistakes[0], mistakes[1:MOST_MISTAKES])
    skipped = (f"{_said(guesses[field], configs[field])}: {why}" for field, why in left_out.items())
    baseline = configs.pop("baseline", None)
    return Study(
        name=asked.name or f"{workload.model.name}-{job.name}",
        workload=workload,
        space=space,
        objective=Objective(
            **asked.objective.model_dump(),
            failures=Failures(**asked.failures.model_dump()) if asked.failures else None,
        ),
        budget=Budget(**asked.budget.model_dump()),
        measure=MeasureSpec(**asked.measure.model_dump()),
        searcher=asked.searcher,
        trainer=trainer_name,
        trainer_options=launchable.options,
        same_data=trainer(trainer_name).same_data or bool(trainer_options.get(SAME_DATA.name)),
        runner=runner,
        runner_options=runner_options,
        check=asked.check,
        calibrate=asked.calibrate,
        keeps_outputs=asked.outputs == "keep",
        unwatched=not asked.probe,
        seed=asked.seed,
        data=asked.data if asked.data is None or base is None else find_data(asked.data, base),
        baseline=baseline,
        enqueue=tuple(dict.fromkeys(c for field, c in configs.items() if field not in left_out)),
        left_out=tuple(dict.fromkeys(skipped)),
        filled_in=_filled_in(guesses, configs, space),
        at_hand=job.at_hand,
    )


def _asked(document: Mapping[str, Any]) -> StudyDocument:
    """The document with its names checked. Raises `SpecError` with the first mistakes."""
    document = in_own_keys(document)
    try:
        asked = _checked(StudyDocument, document)
    except SpecError as error:
        raise with_others(error, unknown_names(document)) from None
    checked_names(document)
    return asked


def _job(
    asked: StudyDocument,
    local_cluster: Callable[[], ClusterSpec] | None,
    slurm_cluster: Callable[[SlurmDocument], ClusterSpec] | None,
) -> AskedJob:
    """The job of a spec, on the cluster that it names or that is here."""
    in_job = (
        None if slurm_cluster is None else partial(slurm_cluster, asked.slurm or SlurmDocument())
    )
    return asked_job(asked, asked_cluster(asked.cluster, local_cluster, in_job))


def _workload(
    asked: StudyDocument,
    job: AskedJob,
    trainer_name: str,
    base: Path | None,
    inspect: Inspect | None,
) -> Workload:
    """What is trained, on the cluster of the job."""
    model = _for_sequence(_named(_model(asked.model, base, inspect), asked), job.seq_len)
    rl = _post_training(asked, trainer_name, model, job.cluster, base)
    batch = job.global_batch_size if rl is None or asked.rl is None else rl.mini_batch
    step = asked.workload
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
    """(the baseline and the guesses as configs, what is wrong with the others), by field."""
    configs: dict[str, ParallelConfig] = {}
    mistakes: list[AutotuneError] = []
    for field, guess in guesses.items():
        try:
            configs[field] = located(field, partial(complete, workload, guess, space.own_knobs))
        except AutotuneError as error:
            mistakes.append(error)
    return configs, mistakes


def _broken(
    job: AskedJob,
    workload: Workload,
    launchable: Launchable,
    configs: Mapping[str, ParallelConfig],
) -> Iterator[tuple[str, str]]:
    """(field, reason) of the configs that cannot run; the baseline of a target may."""
    for field, config in configs.items():
        is_of_target = field == "baseline" and job.at_hand is not None
        reason = why_not(workload, config) or launchable.why_not(workload, config)
        if reason and not is_of_target:
            yield field, reason


def _said(guess: Any, config: ParallelConfig) -> str:
    """A guess as it is written, or its config."""
    return guess if isinstance(guess, str) else str(config)


def _filled_in(
    guesses: Mapping[str, Any], configs: Mapping[str, ParallelConfig], space: SpaceSpec
) -> tuple[str, ...]:
    """What guesses do not say of the knobs that vary, in words."""
    varying = [name for name, values in {**space.knobs, **space.extra}.items() if len(values) > 1]
    found = {
        f"{words} in {_said(guesses[field], config)}": None
        for field, config in configs.items()
        if field != "baseline" and (words := filled_words(guesses[field], config, varying))
    }
    return tuple(found)


def parse_space(
    space: str | Mapping[str, Any] | SpaceDocument, *, name: str = "", base: Path | None = None
) -> SpaceSpec:
    """The space of a name that ships, of a path to a YAML file, or of inline knobs. Raises `SpecError` or `CatalogError`."""
    if isinstance(space, str):
        path = locate(space, base, field="space") if is_space_file(space) else space_file(space)
        return parse_space(
            read_document(path, what="search space"), name=name_of(path.stem), base=base
        )
    asked = (
        space if isinstance(space, SpaceDocument) else _checked(SpaceDocument, space, field="space")
    )
    given = {knob: getattr(asked, knob) for knob in KNOBS}
    knobs = {knob: _listed(values) for knob, values in given.items() if values is not None}
    if mistakes := list(_wrong_values(knobs)):
        raise with_others(mistakes[0], mistakes[1:MOST_MISTAKES])
    return SpaceSpec(
        name=asked.name or name or "inline",
        knobs=knobs,
        world_sizes=()
        if asked.world_sizes is None
        else tuple(sorted(set(_listed(asked.world_sizes)))),
    )


def _wrong_values(knobs: Mapping[str, tuple[Any, ...]]) -> Iterator[AutotuneError]:
    """What is wrong with the values of each knob of a space."""
    for knob, values in knobs.items():
        for value in values:
            try:
                located(f"space.{knob}", partial(KNOBS[knob].check, value))
            except AutotuneError as error:
                yield error


def json_schema() -> dict[str, Any]:
    """The JSON schema of a study spec."""
    return StudyDocument.model_json_schema()


def _checked(kind: type[D], document: Any, *, field: str = "") -> D:
    """The document as `kind`, or a `SpecError` that says where and why not."""
    if not isinstance(document, Mapping):
        raise SpecError(
            f"must be a mapping of keys to values, but is {document!r:.80}", field=field
        )
    if not isinstance(document, ReadDocument):  # which was looked at when it was read
        check_size(document)
    try:
        return kind.model_validate(dict(document))
    except ValidationError as error:
        raise _readable(error, document, field) from None


def _readable(error: ValidationError, document: Mapping[str, Any], field: str) -> SpecError:
    """The first problems in words, in the order of the document: the first as the error, with the others."""
    order = _Order(document, field)
    found: dict[tuple[str, str], SpecError] = {}
    for problem in sorted(
        error.errors(include_url=False), key=lambda problem: order.of(_where(problem, field))
    ):
        mistake = _mistake(problem, field)
        found.setdefault((mistake.field, mistake.message), mistake)
        if len(found) == MOST_MISTAKES:
            break
    first, *others = found.values()
    first.others = tuple(others)
    return first


class _Order:
    """Where fields stand in a document."""

    def __init__(self, document: Mapping[str, Any], prefix: str) -> None:
        self._document, self._prefix = document, prefix
        self._places: dict[int, dict[str, int]] = {}
        """of each mapping of the document, by identity: the places of its keys"""

    def of(self, field: str) -> list[int]:
        """Where a field stands among its neighbors, from the outermost mapping inwards; a missing key comes last."""
        found: list[int] = []
        document: Any = self._document
        for part in field.removeprefix(self._prefix).strip(".").split("."):
            if isinstance(document, Mapping):
                if id(document) not in self._places:
                    self._places[id(document)] = {str(key): i for i, key in enumerate(document)}
                found.append(self._places[id(document)].get(part, len(document)))
                document = document.get(part)
            else:
                found.append(
                    int(part)
                    if isinstance(document, list) and part.isdigit() and len(part) < 10
                    else 0
                )
                document = (
                    document[found[-1]]
                    if isinstance(document, list) and found[-1] < len(document)
                    else None
                )
        return found


def _mistake(problem: Mapping[str, Any], field: str) -> SpecError:
    """One problem of pydantic's."""
    where, context = _where(problem, field), problem.get("ctx", {})
    message = broken_rule(problem, _OF_KIND)
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
    """What to write instead of a wrong value."""
    if kind == "missing":
        return _TO_WRITE.get(where, "")
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
    """The field of a problem."""
    parts = [
        str(part) for part in problem["loc"] if not str(part).startswith("<") and part != "[key]"
    ]
    named = [problem["ctx"]["key"]] if problem["type"] == "unknown_key" else []
    return ".".join([*filter(None, [field]), *parts, *named])


def _model(asked: AskedModel, base: Path | None, inspect: Inspect | None) -> ModelSpec:
    if isinstance(asked, HuggingFaceModelDocument):
        return transformers_model(asked.hf, asked.source, base=base, inspect=inspect)
    if isinstance(asked, ModuleModelDocument):
        name = asked.name or name_of(asked.module.replace(":", "."))
        return own_model(
            asked.module, asked.args, asked.folder, name=name, base=base, inspect=inspect
        )
    if isinstance(asked, NamedModelDocument):
        return replace(_model(asked.name, base, inspect), mtp_layers=asked.mtp_layers)
    if isinstance(asked, CountedModelDocument):
        return ModelSpec.of_parameters(asked.parameters, name=asked.name or "model")
    if isinstance(asked, ModelDocument):
        return located("model", lambda: check_source(ModelSpec(**asked.model_dump())))
    return read_model(asked, base) if is_model_file(asked) else catalog.model(asked)


def _named(model: ModelSpec, asked: StudyDocument) -> ModelSpec:
    """A model that is written out without a name is called after its study, with a digest of its shape: in history two models never share a name."""
    if (
        not isinstance(asked.model, ModelDocument | CountedModelDocument)
        or "name" in asked.model.model_fields_set
    ):
        return model
    shape = {name: value for name, value in asked.model.model_dump().items() if name != "name"}
    return replace(model, name=f"{asked.name or 'model'}-{identity(shape)[:6]}")


def _for_sequence(model: ModelSpec, seq_len: int) -> ModelSpec:
    """Learned positions reach as far as the sequence: a model that is trained from scratch may have more of them than its namesake."""
    return replace(model, max_positions=seq_len) if 0 < model.max_positions < seq_len else model


def _kind(asked: str | KindDocument) -> tuple[str, dict[str, Any]]:
    return (asked, {}) if isinstance(asked, str) else (asked.kind, _with_text_keys(asked.options))


def _with_text_keys(value: Any) -> Any:
    """Keys as JSON writes them (`true`, `8`), so that an option read from YAML is the one that a store gives back."""
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, str) else json.dumps(key): _with_text_keys(inner)
            for key, inner in value.items()
        }
    return [_with_text_keys(inner) for inner in value] if isinstance(value, list) else value


def _refuse_export_options(name: str, options: Mapping[str, Any]) -> None:
    """Raises `SpecError` for options that only an export reads: trials would run as if they had not been given."""
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
    asked: StudyDocument,
    trainer_name: str,
    model: ModelSpec,
    cluster: ClusterSpec,
    base: Path | None,
) -> PostTraining | None:
    """What a step is beside a plain optimizer step; None for a plain one. Raises `SpecError` with the field."""
    step, batch = asked.workload, asked.workload.global_batch_size
    if asked.rl is None:
        if asked.rollout is not None:
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
        found = fine_tuning_of(step.lengths, batch, trainer=trainer_name, base=base)
    else:
        if step.lengths is not None:
            raise SpecError(
                "lengths for post-training go under `rl`",
                remedy="rl.prompt_lengths and rl.response_lengths",
                field="workload.lengths",
            )
        found = post_training_of(
            asked.rl, asked.rollout, trainer=trainer_name, model=model, cluster=cluster, base=base,
            critic=lambda name: _model(name, base, None), seq_len=step.seq_len, batch=batch,
        )  # fmt: skip
        if batch is not None and batch != found.mini_batch:
            raise SpecError(
                f"an optimizer step takes prompts x responses / mini_batches sequences, here {found.mini_batch}, but global_batch_size={batch!r}",
                remedy="omit global_batch_size",
                field="workload.global_batch_size",
            )
    if found.longest > step.seq_len:
        raise SpecError(
            f"seq_len must be at least the longest sequence, but seq_len={step.seq_len} and the longest has {found.longest:,} tokens",
            remedy=f"set seq_len to {found.longest}, or lower `max` of the lengths",
            field="workload.seq_len",
        )
    listed = [name for name in asked.knobs if name in RL_KNOBS and name not in found.knob_names]
    if listed:
        raise SpecError(
            f"{listed[0]} is a knob for generating responses, which {found.algorithm} does not do",
            remedy="remove it from `knobs`",
            field=f"knobs.{listed[0]}",
        )
    for name in (n for n in asked.knobs if n in found.knob_names):
        check_rl_knob(name, _listed(asked.knobs[name]))
    return found


def _today_first(
    knobs: Mapping[str, tuple[Any, ...]], rl: PostTraining | None
) -> dict[str, tuple[Any, ...]]:
    """A knob's first value is that of the baseline: of post-training, what `rl` says of the present step, where the list has it."""
    return {
        name: tuple(dict.fromkeys((rl.today(name), *values)))
        if rl is not None and name in RL_KNOBS and rl.today(name) in values
        else values
        for name, values in knobs.items()
    }


def _own_knobs(asked: StudyDocument) -> dict[str, tuple[Any, ...]]:
    """The study's own knobs with their values, each checked."""
    for name, values in asked.knobs.items():
        if name in KNOBS:
            raise SpecError(
                f"{name} is a built-in knob, so a study cannot declare it again",
                remedy="write its values under `space`",
                field=f"knobs.{name}",
            )
        if name in _NO_KNOBS:
            raise SpecError(
                f"{name} is a reserved name in a space or a config",
                remedy="rename the knob",
                field=f"knobs.{name}",
            )
        Knob.own(
            name, values if isinstance(values, list) else _listed(values)
        )  # before equal values, 1 and true, are merged
    return {name: _listed(values) for name, values in asked.knobs.items()}


_NO_KNOBS = frozenset({*SpaceDocument.model_fields, "extra"})
"""names that a study's own knob cannot have"""


def _listed(values: Any) -> tuple[Any, ...]:
    """A knob's values written out: a rule, a list or one value."""
    if isinstance(values, ValueRule):
        return values.listed()
    return tuple(dict.fromkeys(values)) if isinstance(values, list) else (values,)
