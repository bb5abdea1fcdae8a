"""The outcome of a study: the result, its JSON documents, explanations and exports."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from autotune import reward
from autotune.errors import ExportError, MissingExtraError, NotFoundError, RunnerError, SpecError
from autotune.ports import HistoryReader, StudyReader, StudyRecord
from autotune.results.winner import standings, winner_of
from autotune.spec import ParallelConfig, StudyStatus, Trial, Workload
from autotune.spec.duration import format_duration
from autotune.spec.study import SIMULATED
from autotune.study.controller import Winner, training_s
from autotune.study.passed_runner import PASSED
from autotune.study.process_id import is_gone

if TYPE_CHECKING:
    from autotune.trainers import Trainer

NO_CONTROLLER = (
    "No controller is running this study. Run `autotune serve` on this store, or repeat `autotune tune SPEC`."
)
AGAIN_IN_PYTHON = (
    "No controller is running this study. Repeat the call in Python that started it: it holds the study's runner."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a study came to, as far as it came."""

    record: StudyRecord
    """the study with its status, message, and `record.result`: phase, finals, stop reason, notes"""
    trials: tuple[Trial, ...]
    """all of them, by number"""
    best: Trial | None
    """the named winner, or the best so far; after the finals with the measurement and the reward that they gave"""
    baseline: Trial | None
    """the default config's trial, where it could be measured; after the finals with their measurement"""
    speedup: float | None
    """best against baseline in tokens per second"""
    final_rounds: int = 0
    """rounds in which best and baseline were measured again; 0: they were measured once"""
    confirmed: tuple[Trial, ...] = ()
    """all configs that were measured again, best first"""
    notes: tuple[str, ...] = ()
    """what must be said beside the speedup, in words"""
    is_left: bool = False
    """whether it waits for another controller, because the last one died"""

    @property
    def measured(self) -> tuple[Trial, ...]:
        """Trials with a step time that can be trusted."""
        return tuple(t for t in self.trials if t.is_measured)

    @property
    def failed(self) -> tuple[Trial, ...]:
        """Trials with a failure."""
        return tuple(t for t in self.trials if t.failure is not None)


def result_of(store: StudyReader, study_id: str) -> Result:
    """What the store knows of a study, running or finished. Raises `NotFoundError`."""
    record = store.study(study_id)
    is_left = record.status in (StudyStatus.RUNNING, StudyStatus.STOPPING) and not is_held(store, record.id)
    return replace(result_from(record, store.trials(record.id)), is_left=is_left)


def is_held(store: StudyReader, study_id: str) -> bool:
    """Whether a controller holds the study and has not died, as far as can be told."""
    lease = store.holder(study_id)
    return lease is not None and lease.expires_at > datetime.now(UTC) and not is_gone(lease.owner)


def result_from(record: StudyRecord, found: Sequence[Trial]) -> Result:
    """What a study and its trials come to."""
    trials = tuple(sorted(found, key=lambda trial: trial.number))
    winner = winner_of(record, trials)
    return Result(
        record=record,
        trials=trials,
        best=winner.best,
        baseline=winner.baseline,
        speedup=winner.speedup,
        final_rounds=winner.rounds,
        confirmed=winner.confirmed,
        notes=(*winner.notes, *_payback(record, winner)),
    )


def _payback(record: StudyRecord, winner: Winner) -> list[str]:
    """What the training that the study is for takes with the best config, with the default one, and what the study took."""
    tokens, best, baseline = record.study.budget.train_tokens, winner.best, winner.baseline
    if tokens is None or best is None or baseline is None:
        return []
    ours, default = training_s(best, tokens), training_s(baseline, tokens)
    if record.study.objective.metric == "goodput" and best.reward is not None and baseline.reward is not None:
        ours = default / math.exp(best.reward.throughput - baseline.reward.throughput)  # a token may be worth less
    cost = f"; the study took {format_duration(record.elapsed_s)}" if record.study.runner != SIMULATED else ""
    return [
        f"a training on {tokens:.3g} tokens takes {format_duration(ours)} with the best config, {format_duration(default)} with the default one{cost}"
    ]


def exports_of(result: Result) -> list[str]:
    """The trainers that can launch the best config as it is, without further options; the study's own first."""
    return [name for name in _trainers(result) if _launches(result, name, {})]


def next_export(result: Result, able: Sequence[str]) -> dict[str, Any] | None:
    """{trainer, options}: how to launch the best config next: by the study's own trainer, else by the first of `able` (`exports_of`). None when there is
    none. An option that the study's trainer still needs, because its trials were only simulated, has its name in capitals as its value. Where only
    Python can start the study's trainer, `python` is the line that does."""
    from autotune.trainers import python_line

    study = result.record.study
    if result.best is not None and (line := python_line(study.trainer)):
        return {"trainer": study.trainer, "options": {}, "python": line}
    if result.best is not None and study.trainer not in able and (missing := _missing_options(result)):
        return {"trainer": study.trainer, "options": missing}
    return next(({"trainer": name, "options": {}} for name in able), None)


def _missing_options(result: Result) -> dict[str, str]:
    """What the study's own trainer must be told before it can launch the best config; empty when options do not help."""
    from autotune.trainers import trainer

    study, best = result.record.study, result.best
    assert best is not None
    own, told = trainer(study.trainer), dict[str, str]()
    names = {option.name for option in own.options}
    while True:
        try:
            own.launch(study.workload, best.config, {**study.trainer_options, **told})
        except ExportError as error:
            if error.field not in names or error.field in told:
                return {}
            told[error.field] = error.field.upper()
        except (SpecError, RunnerError, MissingExtraError):
            return {}
        else:
            return told


def _trainers(result: Result) -> list[str]:
    from autotune.trainers import trainer_names

    own = result.record.study.trainer
    return sorted(trainer_names(), key=lambda name: name != own) if result.best else []


def _launches(result: Result, name: str, options: Mapping[str, Any]) -> bool:
    """Whether the trainer can launch the best config with these options, beside those of the study where it is the study's own."""
    from autotune.trainers import trainer

    study, best = result.record.study, result.best
    assert best is not None
    own = study.trainer_options if name == study.trainer else {}
    try:
        trainer(name).launch(study.workload, best.config, {**own, **options})
    except (ExportError, SpecError, RunnerError, MissingExtraError):
        return False
    return True


def study_document(record: StudyRecord) -> dict[str, Any]:
    """A study as plain JSON values."""
    study, times = record.study, (record.created_at, record.started_at, record.ended_at, record.updated_at)
    created, started, ended, updated = (t.isoformat() if t else None for t in times)
    return {
        "id": record.id,
        "name": study.name,
        "status": str(record.status),
        "message": record.message,
        "model": study.workload.model.name,
        "cluster": study.workload.cluster.name,
        "trainer": study.trainer,
        "runner": study.runner,
        "searcher": study.searcher,
        "objective": {"metric": study.objective.metric, "stability_weight": study.objective.stability_weight},
        "budget": asdict(study.budget),
        "owner": record.owner,
        "created_at": created,
        "started_at": started,
        "ended_at": ended,
        "updated_at": updated,
        "elapsed_s": record.elapsed_s,
        "trials": dict(record.trial_counts),
        "speedup": record.speedup,
        "result": dict(record.result),
    }


def trial_document(trial: Trial) -> dict[str, Any]:
    """A trial as plain JSON values."""
    return trial.to_dict()


def document(result: Result, *, top: int = 0) -> dict[str, Any]:
    """Plain JSON values: study {id, name, status, trials (count by status), ...}, best, baseline, speedup; `configs` when `top` > 0.

    `best` and `baseline` are trials; after the finals they hold the pooled measurement of `final_rounds` rounds, on which `speedup` rests.
    """
    study = study_document(result.record)
    if result.is_left:
        study["message"] = AGAIN_IN_PYTHON if result.record.study.runner.startswith(PASSED) else NO_CONTROLLER
    if not study["trials"]:
        study["trials"] = dict(Counter(str(t.status) for t in result.trials))
    exports = exports_of(result)
    answer: dict[str, Any] = {
        "study": study,
        "best": trial_document(result.best) if result.best else None,
        "baseline": trial_document(result.baseline) if result.baseline else None,
        "speedup": result.speedup,
        "final_rounds": result.final_rounds,
        "notes": list(result.notes),
        "exports": exports,
        "next_export": next_export(result, exports),
    }
    if top > 0:
        answer["configs"] = [{"rank": i, **trial_document(t)} for i, t in enumerate(_standings(result)[:top], 1)]
    return answer


def past_studies(
    store: HistoryReader, *, model: str = "", cluster: str = "", trainer: str = "", runner: str = "", limit: int = 10
) -> list[dict[str, Any]]:
    """The best measured trials across all history: {study, best}.

    Of one model: best first, one for each config. Without a model: the best of each model and cluster, the latest study first. What was only
    simulated is left out unless its `runner` is named.
    """
    without = "" if runner else SIMULATED
    found = store.best(
        model=model,
        cluster=cluster,
        trainer=trainer,
        limit=limit,
        runner=runner,
        without_runner=without,
        one_each=not model,
    )
    return [{"study": study_document(record), "best": trial_document(trial)} for record, trial in found]


def export_document(
    store: StudyReader, study_id: str, trainer: str, options: Mapping[str, Any], *, on: str = ""
) -> dict[str, Any]:
    """The best config of a study as a launch of that trainer: {trainer, config, argv, env, files, notes, tuned, job}. Nothing is written or started.

    `on`: the scheduler whose job starts it on its nodes (`autotune.trainers.schedulers`; default: shell); `options` may hold options of that
    too. For the study's own trainer the options of the study hold, unless `options` say otherwise. Raises `NotFoundError` when nothing has been
    measured yet, `CatalogError` for an unknown trainer or scheduler, and `SpecError` or `ExportError`.
    """
    from autotune.results.provenance import provenance
    from autotune.trainers import trainer as trainer_of
    from autotune.trainers.schedulers import DEFAULT, job_of, scheduler, split_options

    target, starter = trainer_of(trainer), scheduler(on or DEFAULT)
    result = result_of(store, study_id)
    if result.best is None:
        raise NotFoundError(f"study {result.record.id} has no measured config to export", remedy="let it run first")
    study = result.record.study
    own = study.trainer_options if target.name == study.trainer else {}
    options, job_options = split_options(starter, options)
    launch = target.launch(study.workload, result.best.config, {**own, **options})
    told = () if "steps" in options else _length_notes(target, study.workload, result.best.config, {**own, **options})
    launch = replace(launch, notes=(*launch.notes, *told), tuned=provenance(result))
    job = job_of(starter, launch, study.workload, result.best.config, job_options)
    return {"trainer": target.name, "config": result.best.config.to_dict(), **launch.to_dict(), "job": job}


def _length_notes(
    target: Trainer, workload: Workload, config: ParallelConfig, options: Mapping[str, Any]
) -> tuple[str, ...]:
    """For how many steps a launch trains, in words, where its option `steps` reaches the program."""
    steps = target.checked(options).get("steps")
    if steps is None:
        return ()
    launch, longer = (target.launch(workload, config, {**options, "steps": n}) for n in (steps, steps + 1))
    if launch == longer:
        return ()
    return (f"it trains {steps} steps, as a trial may; give --option steps=N for your whole training",)


def explain(store: StudyReader, study_id: str, number: int | None = None) -> dict[str, Any]:
    """Why a trial (None: the winner) won or lost, as `autotune.reward.Explanation`'s plain values. Raises `NotFoundError`."""
    return explained(result_of(store, study_id), number)


def explained(result: Result, number: int | None = None) -> dict[str, Any]:
    """`explain` of a result that is at hand."""
    if number is None and result.best is None:
        raise NotFoundError(
            f"no trial of study {result.record.id} has been measured yet", remedy="name one: autotune explain ID TRIAL"
        )
    trial = result.best if number is None else next((t for t in result.trials if t.number == number), None)
    if trial is None:
        raise NotFoundError(
            f"study {result.record.id} has no trial {number}",
            remedy=f"its {len(result.trials)} trials are numbered from 0",
        )
    again = {t.number: t for t in result.confirmed}
    trial = again.get(trial.number, trial)
    won = result.best is not None and trial.config == result.best.config
    others = [
        t
        for t in _standings(result)
        if t.config != trial.config and (not result.baseline or t.number != result.baseline.number)
    ]
    runner_up = next(iter(others), None) if won else result.best
    baseline = result.baseline
    if (
        result.confirmed and trial.number not in again
    ):  # compare like with like: what was measured once with what was measured once
        first = {t.number: t for t in result.trials}
        baseline = first[baseline.number] if baseline else None
        runner_up = first[runner_up.number] if runner_up else None
    study = result.record.study
    return reward.explain(
        trial,
        baseline=baseline,
        other=runner_up,
        other_is="runner-up" if won else "winner",
        objective=study.objective,
        workload=study.workload,
        profiles=_profiles(result.trials),
        trials=result.trials,
        can_win=reward.competes(trial, study),
    ).to_dict()


def _profiles(trials: tuple[Trial, ...]) -> dict[int, Mapping[str, float]]:
    """Breakdowns taken in the final rounds, under the number of the config's first trial."""
    taken = {
        t.config: t.measurement.breakdown_s for t in trials if t.measurement is not None and t.measurement.breakdown_s
    }
    return {t.number: taken[t.config] for t in trials if t.config in taken}


def _standings(result: Result) -> list[Trial]:
    return standings(result.best, result.confirmed, result.trials, result.record.study)
