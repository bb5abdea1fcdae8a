"""Assembles what a study needs to run from its spec: space, predictions, baseline, references,
searcher, runner.

The whole space is predicted before anything starts. If no config is valid, or none is expected to
fit into memory, `InfeasibleError` names the nearest miss and no rank is started. Because predictions
may be wrong, a study with an enqueued config that may just fit is run nevertheless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from autotune.cost import Calibration, estimate
from autotune.errors import ClusterTooSmallError, InfeasibleError, RunnerError
from autotune.plan.plan import baseline_of, fits, nearest_miss
from autotune.ports import KnowledgeStore, StudyReader, StudyRecord, TrialRunner
from autotune.registry import make_runner
from autotune.results.calibrations import program_of, stored_calibration
from autotune.space import Launchable, SearchSpace, why_not
from autotune.spec import Estimate, ParallelConfig, Study, Trial, Workload
from autotune.spec.study import SIMULATED
from autotune.spec.texts.as_text import format_bytes, number_of
from autotune.study.controller import HOPELESS
from autotune.study.preflight import check_here, check_passed
from autotune.trainers import trainer

if TYPE_CHECKING:
    from autotune.search import Searcher, SearcherFactory
    from autotune.search.target_searcher import TargetSearcher

REMEDIES = 3
"""maximum number of changes in a message that would make the nearest miss fit"""
REFERENCES_TRIED = 20
"""maximum number of configs per global batch that are tested for fitting in fp32"""
PAST_STUDIES = 10
"""maximum number of earlier studies that a searcher learns from"""
LOOKED_AT = 50
"""number of newest studies each of the same model, cluster and trainer from which those are
chosen"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A study with its space, predictions and baseline."""

    study: Study
    space: SearchSpace
    calibration: Calibration | None
    """measured constants of the cluster; None: the constants shipped with the cost model"""
    estimate: Estimate
    """predictions for every config in the space, in its order"""
    baseline: ParallelConfig
    here: Assembly | None = None
    """for a study with a target: a study with the proxy of one of its configs, used to check and
    calibrate the machine that runs the proxies. None: the study's configs themselves run here"""

    @property
    def runs_here(self) -> Assembly:
        """The assembly of what this machine runs: the proxy's for a study with a target."""
        return self.here or self

    def predict(self, config: ParallelConfig) -> Estimate:
        """The prediction for one config, which need not be in the space."""
        index = self.space.index_of(config)
        if index is not None:
            return self.estimate.row(index)

        return estimate(self.study.workload, config, calibration=self.calibration)

    def searcher(
        self,
        history: Sequence[tuple[Workload, Trial]] = (),
        *,
        factory: SearcherFactory | None = None,
    ) -> Searcher:
        """Make the study's searcher, without trials: by the name in the study, or with `factory`. For
        a study with a target, the searcher that proposes proxies."""
        from autotune.search import make_searcher, make_target_searcher

        study = self.study
        if study.at_hand is not None:
            return make_target_searcher(
                study,
                self.space,
                estimate=self.estimate,
                calibration=self.calibration,
                history=history,
            )
        return make_searcher(
            factory or study.searcher,
            self.space,
            seed=study.seed,
            estimate=self.estimate,
            calibration=self.calibration,
            objective=study.objective,
            history=history,
            enqueue=study.enqueue,
        )

    def refuse(self, config: ParallelConfig) -> str:
        """Why the trainer cannot run this config; empty if it can."""
        return Launchable.of(self.study).refusal(self.study.workload, config)

    @property
    def references(self) -> dict[int, ParallelConfig]:
        """By global batch, the fp32 config with whose losses other precisions are compared: the
        baseline in fp32 with accumulation adapted to the batch, or if that does not fit, the config
        of the space with the lowest predicted memory, in fp32. Batches are left out if no reference
        is needed (the stability weight is 0, all configs are fp32, configs see different data, the
        reference is the baseline itself) or none can be run."""
        has_low_precision = bool((~self.space.table.is_word("precision", "fp32")).any())
        batches = self.study.reference_batches if has_low_precision else ()
        references = {batch: self._reference(batch) for batch in batches}
        return {
            batch: config
            for batch, config in references.items()
            if config is not None and config != self.baseline
        }

    def _reference(self, batch: int) -> ParallelConfig | None:
        """The fp32 reference for one global batch, see `references`; None if none can be run."""
        exact = replace(self.baseline, precision="fp32")
        steps, remainder = divmod(batch, exact.micro_batch_size * exact.dp)
        if not remainder and self._can_refer(exact := replace(exact, accumulation_steps=steps)):
            return exact
        of_batch = np.flatnonzero(self.space.table.global_batch_size == batch)
        peaks = np.asarray(self.estimate.peak_memory_bytes, dtype=float)[of_batch]
        smallest = (
            replace(self.space[int(i)], precision="fp32")
            for i in of_batch[np.argsort(peaks)[:REFERENCES_TRIED]]
        )
        return next((config for config in smallest if self._can_refer(config)), None)

    def _can_refer(self, config: ParallelConfig) -> bool:
        reason = why_not(self.study.workload, config) or self.refuse(config)
        return not reason and bool(fits(self.predict(config)))

    def check_fit(self) -> None:
        """Raise `InfeasibleError` if no config is expected to fit, and no enqueued one is likely
        to."""
        may_fit = any(
            float(self.predict(guess).oom_probability) <= HOPELESS for guess in self.study.enqueue
        )
        if may_fit or bool(fits(self.estimate).any()):
            return
        miss = nearest_miss(self.space, self.estimate, self.calibration)
        gpu = self.study.workload.cluster.gpu
        raise InfeasibleError(
            f"a config must fit into GPU memory, but none of the {len(self.space):,} valid configs is expected to fit; the nearest miss, "
            f"{miss.config}, has {format_bytes(gpu.memory_bytes)} on a {gpu.name} and needs {miss.need}",
            remedy=f"add values to the space with which this config would fit ({'; '.join(miss.remedies[:REMEDIES])}), use more or larger GPUs, or enqueue a config that may barely fit",
            field="space",
        )


def assemble(study: Study, store: KnowledgeStore | None = None) -> Assembly:
    """Assemble the study with the constants that the store has now. If the cluster of a target has
    none, those of the cluster that runs the proxies are used.

    Raises `SpecError` if the trainer does not support a knob of the study, and `InfeasibleError` if
    no config of its space is valid.
    """
    calibration = stored_calibration(study.workload, store, program_of(study))
    if calibration is None and study.at_hand is not None:
        calibration = stored_calibration(
            replace(study.workload, cluster=study.at_hand), store, program_of(study)
        )
    return assemble_with(study, calibration)


def assemble_with(study: Study, calibration: Calibration | None) -> Assembly:
    """Like `assemble`, with these constants; None: those of the release."""

    trainer(study.trainer).check_own_knobs(study.space.extra, study.trainer_options)
    space = SearchSpace.of_study(study)
    predicted = estimate(study.workload, space.table, calibration=calibration)
    assembly = Assembly(
        study=study,
        space=space,
        calibration=calibration,
        estimate=predicted,
        baseline=study.baseline or baseline_of(space, calibration=calibration, predicted=predicted),
    )
    return assembly if study.at_hand is None else replace(assembly, here=_here(assembly))


def _here(assembly: Assembly) -> Assembly:
    """Assemble the first proxy as a separate study. Raises `InfeasibleError` if none of the target's
    best configs has a proxy on the available cluster."""

    searcher = cast("TargetSearcher", assembly.searcher())
    first = searcher.propose()
    if first is None:
        raise InfeasibleError(
            f"a study with a target runs proxies of its configs, but {searcher.nothing_left()}",
            remedy="use a cluster with more GPUs, or rank the target by predictions only with `autotune plan --cluster`",
            field="cluster",
        )
    proxy = searcher.proxy_for(assembly.space[first[0]])
    space = SearchSpace.of(proxy.workload, [proxy.config])
    alone = replace(
        assembly.study,
        workload=proxy.workload,
        at_hand=None,
        baseline=proxy.config,
        enqueue=(),
        left_out=(),
        filled_in=(),
    )
    return Assembly(
        study=alone,
        space=space,
        calibration=assembly.calibration,
        estimate=estimate(proxy.workload, space.table, calibration=assembly.calibration),
        baseline=proxy.config,
    )


def history_of(
    study: Study, store: StudyReader, *, before: datetime
) -> list[tuple[Workload, Trial]]:
    """Workload and trial of all ended trials of the studies that the searcher learns from, in the
    order of `teachers_of`. `before`: when the study was submitted."""
    teachers = teachers_of(study, store, before=before)
    trials = ((teacher, trial) for teacher in teachers for trial in store.trials(teacher.id))
    return [
        (trial.stands_for.workload if trial.stands_for else teacher.study.workload, trial)
        for teacher, trial in trials
        if trial.status.is_terminal
    ]


def teachers_of(study: Study, store: StudyReader, *, before: datetime) -> list[StudyRecord]:
    """The earlier studies that the searcher learns from: on the same cluster, model or trainer, by
    decreasing transfer weight, then newest first. Simulated studies learn from simulated ones only,
    and real ones from real ones.

    Only studies that had ended when this one was submitted (`before`) count, so that a restarted
    study gets the same history.
    """
    from autotune.search import transfer_weight

    alike = studies_alike(study, store, limit=LOOKED_AT, ended_before=before)
    weight = {record.id: transfer_weight(study.workload, record.study.workload) for record in alike}
    teachers = [record for record in alike if weight[record.id]]
    teachers.sort(
        key=lambda record: (weight[record.id], record.created_at, record.id), reverse=True
    )
    return teachers[:PAST_STUDIES]


def studies_alike(
    study: Study, store: StudyReader, *, limit: int, ended_before: datetime | None = None
) -> list[StudyRecord]:
    """The newest studies of the same model, of the same cluster and of the same trainer, up to
    `limit` of each, without duplicates. Simulated studies for a simulated study, else real ones."""
    workload = study.workload
    only, without = (SIMULATED, "") if study.runner == SIMULATED else ("", SIMULATED)
    newest = partial(
        store.studies, ended_before=ended_before, runner=only, without_runner=without, limit=limit
    )
    alike = (
        newest(model=workload.model.name),
        newest(cluster=workload.cluster.name),
        newest(trainer=workload.trainer),
    )
    return list({record.id: record for records in alike for record in records}.values())


def make_runner_of(assembly: Assembly, passed: TrialRunner | None = None) -> TrialRunner:
    """The study's runner: `passed` if it was passed as an object, else a new one. Raises
    `RunnerError` if it cannot run this trainer, and `ClusterTooSmallError` if it has too few ranks
    for any config; a runner class with a preflight is checked before the runner is made."""

    assembly = assembly.runs_here
    study = assembly.study
    check_passed(study, passed)
    if passed is None:
        check_here(study, assembly.space)
    runner = passed or make_runner(study.runner, **dict(study.runner_options))
    try:
        _check_runs(runner, assembly)
    except BaseException:
        runner.close()
        raise
    return runner


def _check_runs(runner: TrialRunner, assembly: Assembly) -> None:
    """Raise `RunnerError` if this runner cannot run the study's trainer, `ClusterTooSmallError` if it
    has too few ranks for any config."""
    study, fewest_ranks = assembly.study, int(assembly.space.table.world_size.min())
    if (check := getattr(runner, "check_study", None)) is not None:
        check(study)
    if study.trainer not in runner.trainers:
        raise RunnerError(
            f"the {study.runner!r} runner cannot run the {study.trainer!r} trainer, only {', '.join(runner.trainers)}",
            remedy="choose another runner or trainer, or use `autotune plan` and `autotune export`, which run nothing",
        )
    if runner.capacity < fewest_ranks:
        raise ClusterTooSmallError(
            f"the smallest config in the space needs {number_of(fewest_ranks, 'rank')}, but the {study.runner!r} runner has {runner.capacity} here",
            remedy="check whether a node is down, set `cluster: local`, or allow smaller world_sizes in the space",
        )
