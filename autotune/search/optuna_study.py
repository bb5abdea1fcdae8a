"""Optuna interoperability: autotune's searchers as samplers of an Optuna study, and export of
autotune studies to an Optuna storage.

    sampler = SearcherSampler(space, "bayesian")
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.optimize(lambda trial: tokens_per_s(suggest_config(trial, space)))

The study maximizes tokens per second. An objective may set user attributes of the trial before it
raises: `peak_memory_bytes`, and `failure` (a `FailureKind`, e.g. OUT_OF_MEMORY). The suggested
knobs are stored in the trial's system attributes, because Optuna stores parameters one by one:
other threads then see the trial as pending.

This module imports Optuna when it is imported; nothing else in the package imports this module.

Exported trials have their evidence as Optuna artifacts, files that optuna-dashboard shows next to
the trial:

    trial.json    the whole trial: config, estimate, every step time and loss, reward, failure
    failure.log   for a failed trial: kind, message, exception, last log lines

Exported trials have ended, but `optuna.artifacts.upload_artifact` accepts only running trials. So
the files are written first, and the trial is created with their descriptions in its system
attributes, in the format of `upload_artifact`.

`MemoryConstraint` provides predicted memory as a constraint for any Optuna sampler, so that it
learns to avoid configs that would run out of memory:

    constraint(config) = Q(P(OOM))          zero or less: the config is expected to fit

    P(OOM)   predicted probability that the config runs out of memory
    Q        quantile of the standard normal distribution: predicted memory is log-normal, so this is ln(predicted need / usable memory) in standard deviations

The constraint increases with the memory that a config needs, which suits both samplers that model
it (`GPSampler`) and samplers that compare violations (`TPESampler`, `NSGAIISampler`). It is clipped
to -5 to 5, where the probability is practically 0 or 1.

    limit = MemoryConstraint(workload)
    limit.set(trial, config)                        in the objective, before the config is run
    TPESampler(constraints_func=constraints)        only needed with Optuna 4: from 5 on, samplers find the constraint themselves
"""

from __future__ import annotations

import io
import json
import math
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import optuna
from optuna.artifacts._protocol import ArtifactStore
from optuna.artifacts._upload import ARTIFACTS_ATTR_PREFIX, ArtifactMeta
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from scipy.special import ndtri

from autotune.cost import Calibration, calibration_for, estimate
from autotune.errors import InfeasibleError, SpecError
from autotune.search import Searcher, make_searcher
from autotune.space import SearchSpace
from autotune.spec import (
    Failure,
    FailureKind,
    Measurement,
    ParallelConfig,
    Trial,
    TrialStatus,
    Workload,
)
from autotune.spec.checks import one_of

if TYPE_CHECKING:
    import optuna
    from optuna.artifacts._protocol import ArtifactStore


ASKED = "autotune:asked"
"""system attribute of a trial: its suggested knobs"""
_asking = threading.Lock()
"""held while a config is chosen, so that the config is pending for the next thread"""
STATES = {
    TrialStatus.PENDING: TrialState.WAITING,
    TrialStatus.RUNNING: TrialState.RUNNING,
    TrialStatus.COMPLETED: TrialState.COMPLETE,
    TrialStatus.STOPPED: TrialState.COMPLETE,
}
"""Optuna's states by trial status; all other statuses count as failed"""


class SearcherSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]  # Optuna is not typed for us
    """An autotune searcher as an Optuna sampler. It keeps no state: each call replays the study's
    trials."""

    def __init__(
        self, space: SearchSpace, searcher: str = "bayesian", *, seed: int = 0, **options: Any
    ) -> None:
        """`options`: further arguments of `make_searcher`."""
        self._space = space
        self._searcher = searcher
        self._seed = seed
        self._options = options

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The knobs that vary."""
        return distributions(self._space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The knobs of the next config. Raises `InfeasibleError` if no eligible config is left,
        `SpecError` if the study does not maximize one value."""
        if study.directions != [optuna.study.StudyDirection.MAXIMIZE]:
            raise SpecError(
                f"the study must maximize tokens per second, but its direction is {', '.join(d.name for d in study.directions)}",
                remedy='use create_study(direction="maximize"), and return tokens per second',
            )
        if (
            search_space
            and search_space.keys() <= trial.system_attrs.get("fixed_params", {}).keys()
        ):
            return {}  # enqueued by the user
        with _asking:
            asked = self._replayed(study, excluding=trial.number).ask(1)
            if not asked:
                raise InfeasibleError(
                    f"all {len(self._space)} configs have been tried",
                    remedy="end the study, or widen the space",
                )
            knobs = {name: asked[0].value(name) for name in search_space}
            study._storage.set_trial_system_attr(trial._trial_id, ASKED, knobs)
        return knobs

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Stop `study.optimize` if no eligible config is left and nothing is enqueued."""
        if study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            return
        ended = copy(trial)
        ended.state, ended.values = state, values
        after = partial(self._replayed, study, excluding=trial.number, also=ended)
        if not after(searcher="grid").eligible().size and not after().ask(1):
            # study.stop raises when the trials are asked and told without study.optimize
            with suppress(RuntimeError):
                study.stop()

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Sample parameters that are not knobs of the space at random."""
        sampler = optuna.samplers.RandomSampler(seed=self._seed + trial.number)
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    def expected_gain(self, study: optuna.Study) -> float | None:
        """Expected relative gain of further trials of this study; None if the searcher cannot
        estimate it."""
        return self._replayed(study).expected_gain()

    def _replayed(
        self,
        study: optuna.Study,
        *,
        excluding: int = -1,
        also: FrozenTrial | None = None,
        searcher: str = "",
    ) -> Searcher:
        """The searcher after all trials of the study except number `excluding`, followed by
        `also`."""
        replayed = make_searcher(
            searcher or self._searcher, self._space, seed=self._seed, **self._options
        )
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != excluding]
        replay = map(self._as_trial, trials if also is None else [*trials, also])
        replayed.tell(t for t in replay if t is not None)
        return replayed

    def _as_trial(self, frozen: FrozenTrial) -> Trial | None:
        names = distributions(self._space)
        knobs = {
            **frozen.system_attrs.get(ASKED, {}),
            **frozen.system_attrs.get("fixed_params", {}),
            **frozen.params,
        }
        if not set(names) <= set(knobs):
            return None
        fixed = {name: values[0] for name, values in self._space.knobs.items()}
        config = ParallelConfig.of_values({**fixed, **{name: knobs[name] for name in names}})
        if frozen.state is TrialState.COMPLETE and frozen.value and frozen.value > 0:
            tokens = round(config.global_batch_size * self._space.workload.tokens_per_sequence)
            measurement = Measurement(
                step_times_s=(tokens / frozen.value,),
                peak_memory_bytes=frozen.user_attrs.get("peak_memory_bytes"),
                tokens_per_step=tokens,
                num_ranks=config.world_size,
            )
            return Trial(
                config=config,
                number=frozen.number,
                status=TrialStatus.COMPLETED,
                measurement=measurement,
            )
        if not frozen.state.is_finished():
            return Trial(config=config, number=frozen.number, status=TrialStatus.RUNNING)
        if frozen.state is TrialState.PRUNED:
            return Trial(config=config, number=frozen.number, status=TrialStatus.INFEASIBLE)
        kind = one_of("failure", frozen.user_attrs.get("failure", FailureKind.ERROR), FailureKind)
        failure = Failure(kind=FailureKind(kind), message="the objective failed")
        return Trial(
            config=config, number=frozen.number, status=TrialStatus.FAILED, failure=failure
        )


def distributions(space: SearchSpace) -> dict[str, BaseDistribution]:
    """The knobs of a space that vary, as Optuna distributions: categorical, values in ascending
    order."""
    return {
        name: CategoricalDistribution(values)
        for name, values in space.knobs.items()
        if len(values) > 1
    }


def suggest_config(trial: optuna.Trial, space: SearchSpace) -> ParallelConfig:
    """The config of an Optuna trial."""
    knobs: Mapping[str, tuple[Any, ...]] = space.knobs
    return ParallelConfig.of_values(
        {
            name: trial.suggest_categorical(name, values) if len(values) > 1 else values[0]
            for name, values in knobs.items()
        }
    )


def export_study(
    name: str,
    trials: Sequence[Trial],
    storage: str,
    *,
    artifact_store: ArtifactStore | None = None,
) -> optuna.Study:
    """Write trials to a storage (e.g. `sqlite:///study.db`) as an Optuna study of that name, for
    optuna-dashboard.

    The value is tokens per second; reward, peak memory, failure and the reason are user attributes.
    With an `artifact_store` (e.g. an `optuna.artifacts.FileSystemArtifactStore`), each trial's
    evidence is stored as artifacts (`autotune.search.optuna_study`). Raises Optuna's
    `DuplicatedStudyError` if the storage has a study of that name.
    """
    study = optuna.create_study(study_name=name, storage=storage, direction="maximize")
    study.set_user_attr("made_by", "autotune")
    study.set_user_attr("value", "tokens_per_s")
    names = dict.fromkeys(name for trial in trials for name in trial.config.values())
    knobs = {
        n: tuple(sorted({t.config.value(n) for t in trials if t.config.value(n) is not None}))
        for n in names
    }
    choices = {n: CategoricalDistribution(values) for n, values in knobs.items() if values}
    files = [
        {} if artifact_store is None else keep_files(trial, artifact_store) for trial in trials
    ]
    study.add_trials(
        [_exported(trial, choices, kept) for trial, kept in zip(trials, files, strict=True)]
    )
    return study


def _exported(
    trial: Trial, choices: dict[str, CategoricalDistribution], files: Mapping[str, str]
) -> FrozenTrial:
    """Convert a trial to Optuna's. `files`: system attributes that describe its artifacts."""
    state = STATES.get(trial.status, TrialState.FAIL)
    params = {n: getattr(trial.config, n) for n in choices}
    is_waiting = state is TrialState.WAITING
    attributes = {
        "status": str(trial.status),
        "reason": trial.reason,
        "reward": trial.reward.total if trial.reward else None,
        "stability": trial.reward.stability if trial.reward else None,
        "peak_memory_bytes": trial.peak_memory_bytes,
        "failure": str(trial.failure.kind) if trial.failure else None,
        "message": trial.failure.message if trial.failure else None,
    }
    frozen = create_trial(
        state=state,
        params={} if is_waiting else params,
        distributions={} if is_waiting else choices,
        value=trial.measured.tokens_per_s if trial.measured else None,
        user_attrs={k: v for k, v in attributes.items() if v not in (None, "")},
        system_attrs={**files, **({"fixed_params": params} if is_waiting else {})},
    )
    started, ended = trial.started_at or trial.created_at, trial.ended_at
    if started is not None:
        frozen.datetime_start = started.astimezone().replace(tzinfo=None)
    if ended is not None and state.is_finished():
        frozen.datetime_complete = ended.astimezone().replace(tzinfo=None)
    return frozen


def keep_files(trial: Trial, store: ArtifactStore) -> dict[str, str]:
    """Write the trial's files to the store. Returns the system attributes that describe them."""
    attributes: dict[str, str] = {}
    for name, text in _files(trial).items():
        key = str(uuid.uuid4())
        kind = "application/json" if name.endswith(".json") else "text/plain"
        store.write(key, io.BytesIO(text.encode()))
        artifact = ArtifactMeta(artifact_id=key, filename=name, mimetype=kind, encoding=None)
        attributes[ARTIFACTS_ATTR_PREFIX + key] = json.dumps(asdict(artifact))
    return attributes


def _files(trial: Trial) -> dict[str, str]:
    files = {"trial.json": json.dumps(trial.to_dict(), indent=1)}
    if trial.failure is not None:
        files["failure.log"] = trial.failure.evidence + "\n"
    return files


NAME: Final = "predicted_memory"
"""Optuna's name of the constraint"""
FARTHEST: Final = 5.0
"""the constraint is clipped to this absolute value, in standard deviations"""


class MemoryConstraint:
    """The predicted memory of a workload's configs compared with the GPU's."""

    def __init__(self, workload: Workload, *, calibration: Calibration | None = None) -> None:
        """`calibration`: constants measured on the cluster (None: the bundled ones for its GPU and
        trainer)."""
        self._workload = workload
        self._constants = calibration_for(workload) if calibration is None else calibration

    def excess(self, config: ParallelConfig) -> float:
        """Predicted need above the usable memory, in standard deviations of the prediction; zero or
        less if the config is expected to fit."""
        predicted = estimate(self._workload, config, calibration=self._constants)
        return float(np.clip(ndtri(float(predicted.oom_probability)), -FARTHEST, FARTHEST))

    def set(self, trial: optuna.Trial, config: ParallelConfig) -> float:
        """Set the constraint of a running trial, before its config runs, and return the excess. It
        is also stored as a user attribute of the trial."""
        excess = self.excess(config)
        trial.set_user_attr(NAME, excess)
        if hasattr(trial, "set_constraint"):
            trial.set_constraint(NAME, excess)
        return excess


def constraints(trial: optuna.trial.FrozenTrial) -> tuple[float, ...]:
    """The `constraints_func` of an Optuna 4 sampler: the constraint that was set; infinite for a
    trial pruned before that."""
    return (float(trial.user_attrs.get(NAME, math.inf)),)
