"""The outcome of a study: the result, its JSON documents and exports."""

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
from autotune.results.hidden import hidden_events, hidden_record, hidden_trials, secrets_note
from autotune.results.launch_changes import change_notes
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
from autotune.spec.runs.versions import asked_versions, conditions, differences, has_versions
from autotune.spec.study import SIMULATED
from autotune.spec.texts.as_text import format_count, format_duration, format_span, number_of
from autotune.spec.texts.usual_names import OF_A_RUN
from autotune.study.controller import Winner, noisy_of, training_s
from autotune.study.controller.finals.finalists import ROUNDING, total_of
from autotune.study.process_id import is_gone
from autotune.trainers import Trainer, python_line, trainer_names
from autotune.trainers import trainer as trainer_of
from autotune.trainers.documents.output_options import TRIAL_DIR

NO_CONTROLLER = "no controller is running; run `autotune tune SPEC` or `autotune serve` on this store to continue the study; if a service is already running, its /api/v1/health says why the study does not continue"
PAGE = 200
"""observed runs that are read at once where not all match"""
AGAIN_IN_PYTHON = "no controller is running; the Python call that started the study continues it"


def result_of(store: StudyReader, study_id: str) -> Result:
    """What the store knows of a study, running or finished. Raises `NotFoundError`."""
    record = store.study(study_id)
    seen = result_from(hidden_record(record), hidden_trials(record, store.trials(record.id)))
    return replace(seen, is_left=is_left(store, record))


def is_left(store: StudyReader, record: StudyRecord) -> bool:
    """Whether the study waits for another controller, because its last one died."""
    return record.status in (StudyStatus.RUNNING, StudyStatus.STOPPING) and not is_held(
        store, record.id
    )


def is_held(store: StudyReader, study_id: str) -> bool:
    """Whether a controller holds the study and has not died, as far as can be told."""
    lease = store.holder(study_id)
    return lease is not None and store.is_held(study_id) and not is_gone(lease.owner)


def result_from(record: StudyRecord, found: Iterable[Trial]) -> Result:
    """What a study and its trials come to."""
    trials = tuple(sorted(found, key=lambda trial: trial.number))
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
    """The counts of the record, and of the trials that older releases stored for such configs."""
    counts = Counter(
        {str(reason): int(n) for reason, n in record.result.get("infeasible", {}).items()}
    )
    counts.update(
        t.reason or "no reason is stored" for t in trials if t.status is TrialStatus.INFEASIBLE
    )
    return dict(counts.most_common())


def _changed_conditions(trials: Sequence[Trial]) -> list[str]:
    """The first change of each version, file of the program and environment variable while the study
    ran."""
    changes: dict[str, str] = {}
    first: dict[str, str] = {}
    measured = [(t.number, t.measurement) for t in trials if t.measurement]
    known = conditions([seen for _, seen in measured])
    for (number, _), own in zip(measured, known, strict=True):
        for name, then, now in differences(first, own):
            changes.setdefault(name, f"{name} changed from {then} to {now} before trial {number}")
        first = own | first
    said = "; ".join(changes.values())
    again = "`autotune tune SPEC --new` starts a new study under the current conditions"
    return (
        [
            f"not all trials ran under the same conditions, so their speeds may not be comparable: {said}. {again}"
        ]
        if changes
        else []
    )


def _remarks(winner: Winner) -> list[str]:
    """The remarks on the figures of the best config and the baseline; a remark on both is listed
    once."""
    found: dict[str, dict[int, None]] = {}
    for trial in filter(None, (winner.best, winner.baseline)):
        for remark in trial.measurement.remarks if trial.measurement else ():
            found.setdefault(remark, {})[trial.number] = None
    return [f"{trial_numbers(list(numbers))}: {remark}" for remark, numbers in found.items()]


def _drawn_lengths(winner: Winner) -> list[str]:
    """What trials on drawn lengths measured of a step, and what was told."""
    best = winner.best
    phases = {} if best is None or best.measurement is None else best.measurement.phases_s
    if not phases:
        return []

    def said(measured: bool) -> str:
        return ", ".join(
            f"{n} {format_duration(s)}"
            for n, s in phases.items()
            if (n in TRAINED) is measured and s > 0
        )

    lengths = "trials ran on lengths drawn from the given distribution, the same for every config"
    if not (told := said(False)):
        return [f"{lengths}; a mean step has {said(True)}"]
    return [
        f"trials ran only the trainer's phases. In a step, {said(True)} were measured, and {told} follow from the spec. No responses were generated, so memory figures cover only the trainer",
        lengths,
    ]


def _payback(record: StudyRecord, winner: Winner) -> list[str]:
    """What the training that the study is for takes with the best config, with the default one, and
    what the study took."""
    tokens, best, baseline = record.study.budget.train_tokens, winner.best, winner.baseline
    if tokens is None or best is None or baseline is None:
        return []
    ours, default = training_s(best, tokens), training_s(baseline, tokens)
    if (
        record.study.objective.metric == "goodput"
        and best.reward is not None
        and baseline.reward is not None
    ):
        # a token may be worth less
        ours = default / math.exp(best.reward.throughput - baseline.reward.throughput)
    cost = (
        f"; the study took {format_span(record.elapsed_s)}"
        if record.study.runner != SIMULATED
        else ""
    )
    length = format_count(tokens).replace("G", "B")  # as specs write token counts
    return [
        f"training on {length} tokens takes {format_duration(ours)} with the best config and {format_duration(default)} with the baseline{cost}"
    ]


def chosen_config(result: Result) -> ParallelConfig | None:
    """The config that an export launches: the best, or of a study with a target the one that ranks
    first there; None before anything was measured."""
    return result.best.config if result.best is not None else first_pick(result.record)


def exports_of(result: Result) -> list[str]:
    """The trainers that can launch the best config as it is, without further options; the study's
    own first."""
    return [name for name in _trainers(result) if _launches(result, name, {})]


def next_export(result: Result, able: Sequence[str]) -> dict[str, Any] | None:
    """{trainer, options}: how to launch the best config next: by the study's own trainer, else by
    the first of `able` (`exports_of`). None when there is none. An option that the study's trainer
    still needs, because its trials were only simulated, has its name in capitals as its value.
    Where only Python can start the study's trainer, `python` is the line that does."""

    study = result.record.study
    if chosen_config(result) is not None and (line := python_line(study.trainer)):
        return {"trainer": study.trainer, "options": {}, "python": line}
    if (
        chosen_config(result) is not None
        and study.trainer not in able
        and (missing := _missing_options(result))
    ):
        return {"trainer": study.trainer, "options": missing}
    return next(({"trainer": name, "options": {}} for name in able), None)


def _missing_options(result: Result) -> dict[str, str]:
    """What the study's own trainer must be told before it can launch the best config; empty when
    options do not help."""

    study, chosen = result.record.study, chosen_config(result)
    assert chosen is not None
    own, told = trainer_of(study.trainer), dict[str, str]()
    names = {option.name for option in own.options}
    while True:
        try:
            own.launch(study.workload, chosen, {**study.trainer_options, **told})
        except ExportError as error:
            if error.field not in names or error.field in told:
                return {}
            told[error.field] = error.field.upper()
        except (SpecError, RunnerError, MissingExtraError):
            return {}
        else:
            return told


def _trainers(result: Result) -> list[str]:
    own = result.record.study.trainer
    return sorted(trainer_names(), key=lambda name: name != own) if chosen_config(result) else []


def _launches(result: Result, name: str, options: Mapping[str, Any]) -> bool:
    """Whether the trainer can launch the best config with these options, beside those of the study
    where it is the study's own."""

    study, chosen = result.record.study, chosen_config(result)
    assert chosen is not None
    own = study.trainer_options if name == study.trainer else {}
    try:
        trainer_of(name).launch(study.workload, chosen, {**own, **options})
    except (ExportError, SpecError, RunnerError, MissingExtraError):
        return False
    return True


def study_document(record: StudyRecord, *, is_left: bool = False) -> dict[str, Any]:
    """A study as plain JSON values; `is_left`: it waits for another controller, so it is
    `interrupted`, and its message says what continues it. `cluster` is the one that the job will run on; `at_hand`: the smaller one that runs
    proxies of it, or null.

    `ray`: the Ray job that runs it, {job, url}, or null. `placed`: where the ranks are of the
    trials that run, or of the last that ran: {trial, node, ranks, gpus}; empty where the runner
    cannot tell. `waiting`: trials waiting for ranks, and why: {trial, reason}.
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


def judged_today(store: StudyReader, record: StudyRecord) -> StudyRecord:
    """The record as today's rules judge it: of an ended study whose outcome an earlier release
    wrote, which knew nothing of machines that are too noisy, the claim is what `best`, `status` and
    reports say of it."""
    if not record.status.is_terminal or record.speedup is None or "too_noisy" in record.result:
        return record
    found = result_of(store, record.id)
    noisy = to_plain(found.too_noisy)
    return replace(record, speedup=found.speedup, result={**record.result, "too_noisy": noisy})


def studies_document(
    store: StudyReader, *, limit: int = 50, offset: int = 0, **filters: Unpack[AskedStudies]
) -> dict[str, Any]:
    """Studies, newest first: {studies, next_offset}."""
    found = store.studies(limit=limit + 1, offset=offset, **filters)
    return {
        "studies": [
            study_document(judged_today(store, record), is_left=is_left(store, record))
            for record in found[:limit]
        ],
        "next_offset": offset + limit if len(found) > limit else None,
    }


def trial_documents(
    store: StudyReader, study_id: str, *, version: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The trials of a study; `version`: NAME=VERSION, only those measured with all of these. Raises
    `NotFoundError`."""
    asked, record = asked_versions(version), store.study(study_id)
    return [
        trial.to_dict()
        for trial in hidden_trials(record, store.trials(record.id))
        if not asked or (trial.measurement and has_versions(trial.measurement.versions, asked))
    ]


def event_documents(
    store: StudyReader, study_id: str, *, after: int = 0, limit: int = 1000
) -> list[dict[str, Any]]:
    """The next events of a study after that sequence number. Raises `NotFoundError`."""
    record = store.study(study_id)
    found = store.events(record.id, after=after, limit=limit)
    return [event.to_dict() for event in hidden_events(record, found)]


def submitted_document(record: StudyRecord) -> dict[str, Any]:
    """{study, notes}: a study that was submitted, and what its owner should know."""
    told = secrets_note(record.study)
    return {"study": study_document(record), "notes": [told] if told else []}


def waiting_behind(line: Sequence[tuple[str, str]], study_id: str) -> dict[str, int] | None:
    """{studies, owners} that are started before a study that waits; None when it does not. `line`:
    id and owner of those that wait, in their order."""
    ids = [study for study, _ in line]
    if study_id not in ids:
        return None
    before = line[: ids.index(study_id)]
    return {"studies": len(before), "owners": len({owner for _, owner in before})}


def waiting_words(behind: Mapping[str, int] | None) -> str:
    """The same in words; empty for a study that does not wait."""
    if behind is None:
        return ""
    if not behind["studies"]:
        return "is next in the queue"
    return f"waits behind {number_of(behind['studies'], 'study', 'studies')} of {number_of(behind['owners'], 'owner')}"


def document(result: Result, *, top: int = 0) -> dict[str, Any]:
    """Plain JSON values: study {id, name, status, trials (count by status), ...}, best, baseline,
    speedup with its interval; `configs` when `top` > 0.

    `best`, `baseline` and `configs` are trials with their configs' figures (`config_figures`);
    after the finals they hold the pooled measurement of `final_rounds` rounds, on which `speedup`
    rests.
    """
    study = study_document(result.record, is_left=result.is_left)
    noisy = to_plain(result.too_noisy)
    study["too_noisy"] = (
        noisy  # as soon as it is known, and one answer also where an earlier release wrote the record
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
    """The best measured trials across all history: {study, best}.

    Of one model: best first, one for each config. Without a model: the best of each model and
    cluster, the latest study first. What was only simulated is left out unless its `runner` is
    named. `filters`: further ones of `HistoryReader.best`: cluster, trainer, num_gpus,
    measured_after.
    """
    filters |= {"runner": runner, "without_runner": "" if runner else SIMULATED}
    found = confirmed_best(store, model=model, one_each=not model, limit=limit, **filters)
    return [{"study": study_document(record), "best": trial.to_dict()} for record, trial in found]


def observed_document(
    store: ObservedStore,
    *,
    limit: int = 50,
    offset: int = 0,
    version: Sequence[str] = (),
    **filters: Unpack[AskedRuns],
) -> dict[str, Any]:
    """Runs that people started themselves, the one that was kept last first: {runs, next_offset}.
    They are no trials. `version`: NAME=VERSION, only those that were measured with all of these."""
    if asked := asked_versions(version):
        matching = (
            run for run in _all_observed(store, filters) if has_versions(run.all_versions, asked)
        )
        found = list(islice(matching, offset, offset + limit + 1))
    else:
        found = store.observed(limit=limit + 1, offset=offset, **filters)
    return {
        "runs": [run.to_dict() for run in found[:limit]],
        "next_offset": offset + limit if len(found) > limit else None,
    }


def _all_observed(store: ObservedStore, filters: AskedRuns) -> Iterator[ObservedRun]:
    at = 0
    while runs := store.observed(limit=PAGE, offset=at, **filters):
        yield from runs
        at += len(runs)


def export_document(
    store: StudyReader,
    study_id: str,
    trainer: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    on: str = "",
    trial: int | None = None,
) -> dict[str, Any]:
    """`launch_document` of what the store knows of the study, with its secrets: for who owns the
    store."""
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
    """The best config of a study as a launch of that trainer: {trainer, config, argv, env, files,
    notes, tuned, job}. Nothing is written or started.

    `trial`: the config of this trial instead; then nothing is said of how it was measured, for it
    was not chosen. A note says if it failed or was not measured.

    `study`: the study with its secrets, for its owner; without it the launch has `***` in their
    place.

    `on`: the scheduler whose job starts it on its nodes (`autotune.trainers.schedulers`; default:
    shell); `options` may hold options of that too. For the study's own trainer the options of the
    study hold, unless `options` say otherwise. Raises `NotFoundError` when nothing has been
    measured yet, `CatalogError` for an unknown trainer or scheduler, and `SpecError` or
    `ExportError`.
    """
    from autotune.results.provenance import in_environment_of, provenance
    from autotune.trainers.schedulers import DEFAULT, job_of, scheduler, split_options

    target, starter = trainer_of(trainer), scheduler(on or DEFAULT)
    config = _exported_config(result, trial)
    study = study or result.record.study
    own = target.in_training(study.trainer_options) if target.name == study.trainer else {}
    options, job_options = split_options(starter, options)
    launch = target.launch(study.workload, config, {**own, **options})
    is_told = "steps" in options or "steps" in study.trainer_options.get("training", {})
    told = () if is_told else _length_notes(target, study.workload, config, {**own, **options})
    if own and study.baseline is not None:
        told = (
            *told,
            *change_notes(
                target.launch(study.workload, study.baseline, {**own, **options}), launch
            ),
        )
    if study.baseline is not None and (
        note := learning_rate_note(config, study.baseline, study.workload)
    ):
        told = (*told, note)
    if result.best is None and trial is None:
        told = (prediction_note(result.record), *told)
    elif trial is None or trial_of(result, trial).is_measured:
        told = (*_measured_otherwise(result.record.study, target.name), *told)
    if trial is not None and (unproven := _unproven(trial_of(result, trial))):
        told = (unproven, *told)
    if any(TRIAL_DIR in text for text in (*launch.argv, *launch.env.values())):
        told = (
            *told,
            "the program writes to the folder `outputs` next to launch.sh instead of {trial_dir}; set your own folder under `training` in the spec",
        )
    if silenced := [
        f"--{name}={off}" for name, off in OF_A_RUN.items() if f"--{name}={off}" in launch.argv
    ]:
        told = (
            *told,
            f"switched off, as in trials: {', '.join(silenced)}; to switch an option on again, append it: `sh launch.sh --save_strategy=steps`",
        )
    shown = trial_of(result, trial) if trial is not None else result.best
    seen = shown.measurement if shown is not None else None
    told = (*told, *(seen.remarks if seen else ()))
    tuned = provenance(result) if result.best is not None and config == result.best.config else {}
    launch = replace(launch, notes=(*launch.notes, *told), tuned=tuned)
    launch = in_environment_of(study, launch, (seen and seen.environment) or {})
    job = job_of(starter, launch, study.workload, config, job_options)
    return {"trainer": target.name, "config": config.to_dict(), **launch.to_dict(), "job": job}


def _exported_config(result: Result, number: int | None) -> ParallelConfig:
    """The best config, or that of the trial. Raises `NotFoundError`."""
    if number is not None:
        trial = trial_of(result, number)
        return trial.stands_for.config if trial.stands_for is not None else trial.config
    if (chosen := chosen_config(result)) is None:
        raise NotFoundError(
            f"study {result.record.id} has no measured config to export",
            remedy="run the study first",
        )
    return chosen


def _measured_otherwise(study: Study, trainer: str) -> list[str]:
    """That a launch of this trainer is not what the study measured."""
    if study.runner == SIMULATED:
        return ["the speed was simulated, and may differ in a real run"]
    if trainer != study.trainer:
        return [f"the speed was measured with {study.trainer}, and may differ with {trainer}"]
    return []


def _unproven(trial: Trial) -> str:
    """Why nothing shows that the trial's config trains; empty where it was measured."""
    if trial.failure is not None:
        return (
            f"trial {trial.number} failed ({trial.failure}), and this launch starts the same config"
        )
    if trial.measured is None:
        return f"trial {trial.number} is {trial.status.lower()} and has not been measured, so this launch starts an untried config"
    return ""


def trial_of(result: Result, number: int) -> Trial:
    """The trial of that number, with its config's figures. Raises `NotFoundError`."""
    found = next((trial for trial in result.shown if trial.number == number), None)
    if found is None:
        raise NotFoundError(
            f"study {result.record.id} has no trial {number}",
            remedy=f"use a number from 0 to {len(result.trials) - 1}"
            if result.trials
            else "the study has no trials yet",
        )
    return found


def _length_notes(
    target: Trainer, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
) -> tuple[str, ...]:
    """For how many steps a launch trains, in words, where its option `steps` reaches the
    program."""
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
    """The first of `standings_of`, each with its `rank` and a `note`: why it does not stand above
    one whose reward is lower; else empty."""
    rows, least = list[dict[str, Any]](), math.inf
    for rank, trial in enumerate(standings_of(result)[:top], 1):
        note = result.below.get(trial.number, "")
        if not note and total_of(trial) > least + ROUNDING:
            note = why_below(trial, result, than=least)
        rows.append({"rank": rank, **trial.to_dict(), "note": note})
        least = min(least, total_of(trial))
    return rows


def standings_of(result: Result) -> list[Trial]:
    """One trial for each measured config, the winner first (`winner.standings`)."""
    return standings(result.best, result.confirmed, result.shown, result.record.study)
