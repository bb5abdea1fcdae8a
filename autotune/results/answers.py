"""The result of a study, its JSON documents and exports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, Unpack

from autotune.errors import ExportError, MissingExtraError, NotFoundError, RunnerError, SpecError
from autotune.ports import (
    AskedRuns,
    AskedStudies,
    HistoryReader,
    ObservedStore,
    StudyReader,
    StudyRecord,
)
from autotune.registry import PASSED
from autotune.results.config_figures import with_figures
from autotune.results.launch_changes import change_notes
from autotune.results.masking import masked_events, masked_record, masked_trials, secrets_note
from autotune.results.result import Result
from autotune.results.standing_notes import why_below, with_standing
from autotune.results.target import first_pick, prediction_note, target_of
from autotune.results.winner import confirmed_best, standings, winner_of
from autotune.results.without_baseline import unmeasured_baseline, why_unmeasured
from autotune.reward import at_first_level
from autotune.reward.explanation import learning_rate_note
from autotune.spec import (
    ObservedRun,
    ParallelConfig,
    Study,
    StudyStatus,
    Trial,
    TrialStatus,
    Workload,
)
from autotune.spec.plain import to_plain
from autotune.spec.post_training import TRAINED
from autotune.spec.runs.trial import trial_numbers
from autotune.spec.runs.versions import conditions, differences, has_versions, parse_versions
from autotune.spec.study import SIMULATED
from autotune.spec.texts.as_text import format_count, format_duration, format_span, number_of
from autotune.spec.texts.usual_names import DISABLED_OPTIONS
from autotune.study.controller import Winner, noisy_of, training_s
from autotune.study.controller.finals.finalists import ROUNDING, total_of
from autotune.study.process_id import is_gone
from autotune.trainers import Trainer, python_line, trainer_names
from autotune.trainers import trainer as trainer_of
from autotune.trainers.documents.output_options import TRIAL_DIR

NO_CONTROLLER = "no controller is running; run `autotune tune SPEC` or `autotune serve` on this store to continue the study; if a service is already running, its /api/v1/health says why the study does not continue"
PAGE = 200
"""number of observed runs read at once if they are filtered by version"""
AGAIN_IN_PYTHON = "no controller is running; the Python call that started the study continues it"


def result_of(store: StudyReader, study_id: str) -> Result:
    """Return the result of a running or ended study, with secrets hidden. Raises
    `NotFoundError`."""
    record = store.study(study_id)
    result = result_from(masked_record(record), masked_trials(record, store.trials(record.id)))
    return replace(result, is_left=is_left(store, record))


def is_left(store: StudyReader, record: StudyRecord) -> bool:
    """Return whether the study is to run but has no live controller, because the last one died."""
    return record.status in (StudyStatus.RUNNING, StudyStatus.STOPPING) and not is_held(
        store, record.id
    )


def is_held(store: StudyReader, study_id: str) -> bool:
    """Return whether a controller holds the study and is not known to have died."""
    lease = store.holder(study_id)
    return lease is not None and store.is_held(study_id) and not is_gone(lease.owner)


def result_from(record: StudyRecord, trials: Iterable[Trial]) -> Result:
    """Return the result of a study with these trials, in any order."""
    trials = tuple(sorted(trials, key=lambda trial: trial.number))
    weight = record.study.objective.stability_weight
    winner, shown = with_figures(winner_of(record, trials), at_first_level(trials, weight), weight)
    is_settled = record.status.is_terminal or winner.rounds >= max(
        1, record.study.measure.final_rounds
    )
    missing = unmeasured_baseline(record, trials)
    result = Result(
        record=record,
        trials=trials,
        shown=tuple(t for t in shown if t.status is not TrialStatus.INFEASIBLE),
        infeasible=_infeasible(record, trials),
        best=winner.best,
        baseline=winner.baseline,
        unmeasured_baseline=missing,
        speedup=winner.speedup,
        speedup_low=winner.speedup_low if is_settled else None,
        speedup_high=winner.speedup_high if is_settled else None,
        tied_with=winner.tied_with,
        final_rounds=winner.rounds,
        confirmed=winner.confirmed,
        notes=(
            *_changed_conditions(trials),
            *winner.notes,
            *(
                [f"no speedup is reported, because {why_unmeasured(missing)}"]
                if missing and winner.best
                else ()
            ),
            *_remarks(winner),
            *_drawn_lengths(winner),
            *(() if winner.too_noisy else _payback(record, winner)),
        ),
        too_noisy=winner.too_noisy,
    )
    return with_standing(result)


def _infeasible(record: StudyRecord, trials: Sequence[Trial]) -> dict[str, int]:
    """Return the number of infeasible configs by reason, the most frequent first: the record's
    counts, and the trials that older releases stored for such configs."""
    counts = Counter(
        {str(reason): int(n) for reason, n in record.result.get("infeasible", {}).items()}
    )
    counts.update(
        t.reason or "no reason is stored" for t in trials if t.status is TrialStatus.INFEASIBLE
    )
    return dict(counts.most_common())


def _changed_conditions(trials: Sequence[Trial]) -> list[str]:
    """Return a note about the first change of each version, program file and environment variable
    during the study; empty without changes."""
    changes: dict[str, str] = {}
    first: dict[str, str] = {}
    measured = [(t.number, t.measurement) for t in trials if t.measurement]
    known = conditions([measurement for _, measurement in measured])
    for (number, _), current in zip(measured, known, strict=True):
        for name, then, now in differences(first, current):
            changes.setdefault(name, f"{name} changed from {then} to {now} before trial {number}")
        first = current | first
    changed = "; ".join(changes.values())
    advice = "`autotune tune SPEC --new` starts a new study under the current conditions"
    return (
        [
            f"not all trials ran under the same conditions, so their speeds may not be comparable: {changed}. {advice}"
        ]
        if changes
        else []
    )


def _remarks(winner: Winner) -> list[str]:
    """Return the remarks on the measurements of the best config and the baseline; a remark on both
    is listed once, with both trial numbers."""
    numbers_of: dict[str, dict[int, None]] = {}
    for trial in filter(None, (winner.best, winner.baseline)):
        for remark in trial.measurement.remarks if trial.measurement else ():
            numbers_of.setdefault(remark, {})[trial.number] = None
    return [f"{trial_numbers(list(numbers))}: {remark}" for remark, numbers in numbers_of.items()]


def _drawn_lengths(winner: Winner) -> list[str]:
    """Return notes about trials on drawn sequence lengths: which phases were measured, and which
    times are from the spec; empty if lengths were not drawn."""
    best = winner.best
    phases = {} if best is None or best.measurement is None else best.measurement.phases_s
    if not phases:
        return []

    def phase_times(measured: bool) -> str:
        return ", ".join(
            f"{n} {format_duration(s)}"
            for n, s in phases.items()
            if (n in TRAINED) is measured and s > 0
        )

    lengths = "all trials used the same sequence lengths, drawn from the given distribution"
    if not (stated := phase_times(False)):
        return [f"{lengths}; the phases of a step took on average {phase_times(True)}"]
    return [
        f"trials ran only the trainer's phases. Measured times in a step: {phase_times(True)}. Times that follow from the spec: {stated}. No responses were generated, so memory figures cover only the trainer",
        lengths,
    ]


def _payback(record: StudyRecord, winner: Winner) -> list[str]:
    """Return a note with the duration of the training run with the best config and with the
    baseline, and of the study; empty without `train_tokens`, or before both were measured."""
    tokens, best, baseline = record.study.budget.train_tokens, winner.best, winner.baseline
    if tokens is None or best is None or baseline is None:
        return []
    best_s, baseline_s = training_s(best, tokens), training_s(baseline, tokens)
    if (
        record.study.objective.metric == "goodput"
        and best.reward is not None
        and baseline.reward is not None
    ):
        # with another batch size, a token may contribute less to training
        best_s = baseline_s / math.exp(best.reward.throughput - baseline.reward.throughput)
    cost = (
        f"; the study took {format_span(record.elapsed_s)}"
        if record.study.runner != SIMULATED
        else ""
    )
    length = format_count(tokens).replace("G", "B")  # as specs write token counts
    return [
        f"training on {length} tokens takes {format_duration(best_s)} with the best config and {format_duration(baseline_s)} with the baseline{cost}"
    ]


def chosen_config(result: Result) -> ParallelConfig | None:
    """Return the config that an export launches: the best, or for a study with a target the first
    in its ranking; None before anything was measured."""
    return result.best.config if result.best is not None else first_pick(result.record)


def exports_of(result: Result) -> list[str]:
    """Return the trainers that can launch the best config without further options; the study's
    trainer first."""
    return [name for name in _trainers(result) if _launches(result, name, {})]


def next_export(result: Result, trainers: Sequence[str]) -> dict[str, Any] | None:
    """Return the suggested export of the best config, {trainer, options}: with the study's trainer,
    else with the first of `trainers` (`exports_of`); None if there is none. An option that the
    study's trainer still needs, because its trials were only simulated, has its name in capitals as
    its value. If only Python can start the study's trainer, `python` is the line of code that
    does."""

    study = result.record.study
    if chosen_config(result) is not None and (line := python_line(study.trainer)):
        return {"trainer": study.trainer, "options": {}, "python": line}
    if (
        chosen_config(result) is not None
        and study.trainer not in trainers
        and (missing := _missing_options(result))
    ):
        return {"trainer": study.trainer, "options": missing}
    return next(({"trainer": name, "options": {}} for name in trainers), None)


def _missing_options(result: Result) -> dict[str, str]:
    """Return placeholders for the options that the study's trainer needs to launch the best config;
    empty if options do not help."""

    study, chosen = result.record.study, chosen_config(result)
    assert chosen is not None
    trainer, missing = trainer_of(study.trainer), dict[str, str]()
    names = {option.name for option in trainer.options}
    while True:
        try:
            trainer.launch(study.workload, chosen, {**study.trainer_options, **missing})
        except ExportError as error:
            if error.field not in names or error.field in missing:
                return {}
            missing[error.field] = error.field.upper()
        except (SpecError, RunnerError, MissingExtraError):
            return {}
        else:
            return missing


def _trainers(result: Result) -> list[str]:
    """Return all trainers, the study's first; empty without a config to launch."""
    own = result.record.study.trainer
    return sorted(trainer_names(), key=lambda name: name != own) if chosen_config(result) else []


def _launches(result: Result, name: str, options: Mapping[str, Any]) -> bool:
    """Return whether the trainer can launch the best config with these options, in addition to the
    study's options if it is the study's trainer."""

    study, chosen = result.record.study, chosen_config(result)
    assert chosen is not None
    study_options = study.trainer_options if name == study.trainer else {}
    try:
        trainer_of(name).launch(study.workload, chosen, {**study_options, **options})
    except (ExportError, SpecError, RunnerError, MissingExtraError):
        return False
    return True


def study_document(record: StudyRecord, *, is_left: bool = False) -> dict[str, Any]:
    """Return a study as plain JSON values. `is_left`: it has no live controller, so it is
    `interrupted`, and its message says what continues it.

    `cluster`: the cluster of the training job; `at_hand`: the smaller cluster that runs proxies, or
    null. `ray`: the Ray job that runs the study, {job, url}, or null. `placed`: nodes of the ranks
    of running trials, or of the last ones: {trial, node, ranks, gpus}; empty if the runner does not
    know them. `waiting`: trials waiting for ranks, and why: {trial, reason}.
    """
    study, times = (
        record.study,
        (record.created_at, record.started_at, record.ended_at, record.updated_at),
    )
    created, started, ended, updated = (t.isoformat() if t else None for t in times)
    left = AGAIN_IN_PYTHON if study.runner.startswith(PASSED) else NO_CONTROLLER
    return {
        "id": record.id,
        "name": study.name,
        "status": str(record.status),
        "wanted": str(record.wanted),
        "interrupted": is_left,
        "message": left if is_left else record.message,
        "model": study.workload.model.name,
        "cluster": study.workload.cluster.name,
        "at_hand": study.at_hand.name if study.at_hand is not None else None,
        "trainer": study.trainer,
        "runner": study.runner,
        "searcher": study.searcher,
        "objective": {
            "metric": study.objective.metric,
            "stability_weight": study.objective.stability_weight,
        },
        "budget": asdict(study.budget),
        "owner": record.owner,
        "created_at": created,
        "started_at": started,
        "ended_at": ended,
        "updated_at": updated,
        "elapsed_s": record.elapsed_s,
        "trials": dict(record.trial_counts),
        "speedup": record.speedup,
        "too_noisy": noisy_of(record.result),
        "tags": list(record.tags),
        "ray": record.result.get("ray"),
        "placed": list(record.result.get("placed") or ()),
        "waiting": list(record.result.get("waiting") or ()),
        "result": dict(record.result),
    }


def with_current_verdict(store: StudyReader, record: StudyRecord) -> StudyRecord:
    """Return the record with speedup and noise by the rules of this release. They are recomputed
    for an ended study that an earlier release stored without a check for noisy machines, so that
    they agree with `best`, `status` and reports."""
    if not record.status.is_terminal or record.speedup is None or "too_noisy" in record.result:
        return record
    result = result_of(store, record.id)
    noisy = to_plain(result.too_noisy)
    return replace(record, speedup=result.speedup, result={**record.result, "too_noisy": noisy})


def studies_document(
    store: StudyReader, *, limit: int = 50, offset: int = 0, **filters: Unpack[AskedStudies]
) -> dict[str, Any]:
    """Return the studies, newest first: {studies, next_offset}. `next_offset` is None on the last
    page."""
    records = store.studies(limit=limit + 1, offset=offset, **filters)
    return {
        "studies": [
            study_document(with_current_verdict(store, record), is_left=is_left(store, record))
            for record in records[:limit]
        ],
        "next_offset": offset + limit if len(records) > limit else None,
    }


def trial_documents(
    store: StudyReader, study_id: str, *, version: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the trials of a study, with secrets hidden. `version`: NAME=VERSION, only trials
    measured with all of these. Raises `NotFoundError`."""
    versions, record = parse_versions(version), store.study(study_id)
    return [
        trial.to_dict()
        for trial in masked_trials(record, store.trials(record.id))
        if not versions
        or (trial.measurement and has_versions(trial.measurement.versions, versions))
    ]


def event_documents(
    store: StudyReader, study_id: str, *, after: int = 0, limit: int = 1000
) -> list[dict[str, Any]]:
    """Return the next events of a study after this sequence number, with secrets hidden. Raises
    `NotFoundError`."""
    record = store.study(study_id)
    events = store.events(record.id, after=after, limit=limit)
    return [event.to_dict() for event in masked_events(record, events)]


def submitted_document(record: StudyRecord) -> dict[str, Any]:
    """Return {study, notes}: a submitted study, with notes for its owner."""
    note = secrets_note(record.study)
    return {"study": study_document(record), "notes": [note] if note else []}


def queue_position(line: Sequence[tuple[str, str]], study_id: str) -> dict[str, int] | None:
    """Return {studies, owners}: the number of studies and of their owners before this one in the
    queue; None if it is not queued. `line`: (id, owner) of the queued studies, in order."""
    ids = [study for study, _ in line]
    if study_id not in ids:
        return None
    before = line[: ids.index(study_id)]
    return {"studies": len(before), "owners": len({owner for _, owner in before})}


def queue_position_text(behind: Mapping[str, int] | None) -> str:
    """Return the position in the queue as text; empty for a study that is not queued."""
    if behind is None:
        return ""
    if not behind["studies"]:
        return "is next in the queue"
    return f"waits behind {number_of(behind['studies'], 'study', 'studies')} of {number_of(behind['owners'], 'owner')}"


def document(result: Result, *, top: int = 0) -> dict[str, Any]:
    """Return the result as plain JSON values: study {id, name, status, trials (count by status),
    ...}, best, baseline, speedup with its interval; `configs` if `top` > 0.

    `best`, `baseline` and `configs` are trials with the figures of their configs
    (`config_figures`); after the finals they have the pooled measurement of `final_rounds` rounds,
    from which `speedup` is computed.
    """
    study = study_document(result.record, is_left=result.is_left)
    noisy = to_plain(result.too_noisy)
    study["too_noisy"] = (
        noisy  # known before the study ends, and missing in records of earlier releases
    )
    if result.record.status.is_terminal:
        study["speedup"] = result.speedup
    if not study["trials"]:
        study["trials"] = dict(Counter(str(t.status) for t in result.trials))
    exports = exports_of(result)
    answer: dict[str, Any] = {
        "study": study,
        "best": to_plain(result.best),
        "baseline": to_plain(result.baseline),
        "unmeasured_baseline": to_plain(result.unmeasured_baseline),
        "speedup": result.speedup,
        "speedup_low": result.speedup_low,
        "speedup_high": result.speedup_high,
        "too_noisy": noisy,
        "tied_with": list(result.tied_with),
        "final_rounds": result.final_rounds,
        "infeasible": dict(result.infeasible),
        "notes": list(result.notes),
        "target": target_of(result.record),
        "exports": exports,
        "next_export": next_export(result, exports),
    }
    if top > 0:
        answer["configs"] = ranked_documents(result, top)
    return answer


def past_studies(
    store: HistoryReader, *, model: str = "", runner: str = "", limit: int = 10, **filters: Any
) -> list[dict[str, Any]]:
    """Return the best measured trials across all studies: {study, best}.

    For one model: best first, one per config. Without a model: the best one per model and cluster,
    the latest study first. Simulated trials are left out unless their `runner` is given. `filters`:
    other filters of `HistoryReader.best`: cluster, trainer, num_gpus, measured_after.
    """
    filters |= {"runner": runner, "without_runner": "" if runner else SIMULATED}
    pairs = confirmed_best(store, model=model, one_each=not model, limit=limit, **filters)
    return [{"study": study_document(record), "best": trial.to_dict()} for record, trial in pairs]


def observed_document(
    store: ObservedStore,
    *,
    limit: int = 50,
    offset: int = 0,
    version: Sequence[str] = (),
    **filters: Unpack[AskedRuns],
) -> dict[str, Any]:
    """Return observed runs, which users started themselves, the last stored one first: {runs,
    next_offset}. `version`: NAME=VERSION, only runs measured with all of these."""
    if versions := parse_versions(version):
        matching = (
            run for run in _all_observed(store, filters) if has_versions(run.all_versions, versions)
        )
        runs = list(islice(matching, offset, offset + limit + 1))
    else:
        runs = store.observed(limit=limit + 1, offset=offset, **filters)
    return {
        "runs": [run.to_dict() for run in runs[:limit]],
        "next_offset": offset + limit if len(runs) > limit else None,
    }


def _all_observed(store: ObservedStore, filters: AskedRuns) -> Iterator[ObservedRun]:
    """Yield the observed runs that match the filters, `PAGE` at a time."""
    offset = 0
    while runs := store.observed(limit=PAGE, offset=offset, **filters):
        yield from runs
        offset += len(runs)


def export_document(
    store: StudyReader,
    study_id: str,
    trainer: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    on: str = "",
    trial: int | None = None,
) -> dict[str, Any]:
    """Return `launch_document` of a stored study, including its secrets: only for the store's
    owner."""
    return launch_document(
        result_of(store, study_id),
        trainer,
        options,
        on=on,
        trial=trial,
        study=store.study(study_id).study,
    )


def launch_document(
    result: Result,
    trainer: str,
    options: Mapping[str, Any],
    *,
    on: str = "",
    trial: int | None = None,
    study: Study | None = None,
) -> dict[str, Any]:
    """Return the best config of a study as a launch of the trainer: {trainer, config, argv, env,
    files, notes, tuned, job}. Nothing is written or started.

    `trial`: use the config of this trial instead, without its provenance; a note says if it failed
    or was not measured.

    `study`: the study including its secrets, for its owner; without it, the launch has `***`
    instead of secrets.

    `on`: the scheduler whose job starts the launch on its nodes (`autotune.trainers.schedulers`;
    default: shell); `options` may include its options. With the study's trainer, the options of the
    study are used unless `options` override them. Raises `NotFoundError` if nothing has been
    measured yet, `CatalogError` for an unknown trainer or scheduler, and `SpecError` or
    `ExportError`.
    """
    from autotune.results.provenance import in_environment_of, provenance
    from autotune.trainers.schedulers import DEFAULT, job_of, scheduler, split_options

    target, starter = trainer_of(trainer), scheduler(on or DEFAULT)
    config = _exported_config(result, trial)
    study = study or result.record.study
    trainer_options = (
        target.in_training(study.trainer_options) if target.name == study.trainer else {}
    )
    options, job_options = split_options(starter, options)
    launch = target.launch(study.workload, config, {**trainer_options, **options})
    is_length_set = "steps" in options or "steps" in study.trainer_options.get("training", {})
    notes = (
        ()
        if is_length_set
        else _length_notes(target, study.workload, config, {**trainer_options, **options})
    )
    if trainer_options and study.baseline is not None:
        notes = (
            *notes,
            *change_notes(
                target.launch(study.workload, study.baseline, {**trainer_options, **options}),
                launch,
            ),
        )
    if study.baseline is not None and (
        note := learning_rate_note(config, study.baseline, study.workload)
    ):
        notes = (*notes, note)
    if result.best is None and trial is None:
        notes = (prediction_note(result.record), *notes)
    elif trial is None or trial_of(result, trial).is_measured:
        notes = (*_measured_differently(result.record.study, target.name), *notes)
    if trial is not None and (note := _unmeasured_note(trial_of(result, trial))):
        notes = (note, *notes)
    if any(TRIAL_DIR in text for text in (*launch.argv, *launch.env.values())):
        notes = (
            *notes,
            "the program writes to the folder `outputs` next to launch.sh instead of {trial_dir}; set your own folder under `training` in the spec",
        )
    if silenced := [
        f"--{name}={off}"
        for name, off in DISABLED_OPTIONS.items()
        if f"--{name}={off}" in launch.argv
    ]:
        notes = (
            *notes,
            f"switched off, as in trials: {', '.join(silenced)}; to switch an option on again, append it: `sh launch.sh --save_strategy=steps`",
        )
    shown = trial_of(result, trial) if trial is not None else result.best
    measurement = shown.measurement if shown is not None else None
    notes = (*notes, *(measurement.remarks if measurement else ()))
    tuned = provenance(result) if result.best is not None and config == result.best.config else {}
    launch = replace(launch, notes=(*launch.notes, *notes), tuned=tuned)
    launch = in_environment_of(study, launch, (measurement and measurement.environment) or {})
    job = job_of(starter, launch, study.workload, config, job_options)
    return {"trainer": target.name, "config": config.to_dict(), **launch.to_dict(), "job": job}


def _exported_config(result: Result, number: int | None) -> ParallelConfig:
    """Return the config of the trial `number`, or the best config. Raises `NotFoundError`."""
    if number is not None:
        trial = trial_of(result, number)
        return trial.stands_for.config if trial.stands_for is not None else trial.config
    if (chosen := chosen_config(result)) is None:
        raise NotFoundError(
            f"study {result.record.id} has no measured config to export",
            remedy="run the study first",
        )
    return chosen


def _measured_differently(study: Study, trainer: str) -> list[str]:
    """Return a note if the trials were simulated or ran with another trainer than this one."""
    if study.runner == SIMULATED:
        return ["the speed was simulated, and may differ in a real run"]
    if trainer != study.trainer:
        return [f"the speed was measured with {study.trainer}, and may differ with {trainer}"]
    return []


def _unmeasured_note(trial: Trial) -> str:
    """Return a note if the trial failed or was not measured; empty if it was measured."""
    if trial.failure is not None:
        return (
            f"trial {trial.number} failed ({trial.failure}), and this launch starts the same config"
        )
    if trial.measured is None:
        return f"trial {trial.number} is {trial.status.lower()} and has not been measured, so this launch starts an untried config"
    return ""


def trial_of(result: Result, number: int) -> Trial:
    """Return the trial with this number and the figures of its config. Raises `NotFoundError`."""
    trial_shown = next((trial for trial in result.shown if trial.number == number), None)
    if trial_shown is None:
        raise NotFoundError(
            f"study {result.record.id} has no trial {number}",
            remedy=f"use a number from 0 to {len(result.trials) - 1}"
            if result.trials
            else "the study has no trials yet",
        )
    return trial_shown


def _length_notes(
    target: Trainer, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return a note with the number of steps that a launch runs; empty if its option `steps` has no
    effect on the launch."""
    steps = target.checked(options).get("steps")
    if steps is None:
        return ()
    launch, longer = (
        target.launch(workload, config, {**options, "steps": n}) for n in (steps, steps + 1)
    )
    if launch == longer:
        return ()
    return (
        f"the launch runs only {number_of(steps, 'step')}, like a trial; for the full run, export again with `--option steps=N`",
    )


def ranked_documents(result: Result, top: int) -> list[dict[str, Any]]:
    """Return the first `top` trials of `standings_of`, each with its `rank` and a `note`: why it
    ranks below a trial with a lower reward, or an empty text."""
    rows, lowest = list[dict[str, Any]](), math.inf
    for rank, trial in enumerate(standings_of(result)[:top], 1):
        note = result.below.get(trial.number, "")
        if not note and total_of(trial) > lowest + ROUNDING:
            note = why_below(trial, result, than=lowest)
        rows.append({"rank": rank, **trial.to_dict(), "note": note})
        lowest = min(lowest, total_of(trial))
    return rows


def standings_of(result: Result) -> list[Trial]:
    """Return one trial per measured config, the winner first (`winner.standings`)."""
    return standings(result.best, result.confirmed, result.shown, result.record.study)
