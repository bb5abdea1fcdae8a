"""What a study needs to run, worked out from its spec: space, predictions, baseline, references,
searcher, runner.

Before anything starts the whole space is predicted. When no config is legal, or none is expected to
fit into memory, `InfeasibleError` names the nearest miss and no rank is started. Predictions may be
wrong, so a study whose user enqueued a config that may just fit is run.
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
"""changes that would make the nearest miss fit, at most"""
REFERENCES_TRIED = 20
"""configs of a global batch that are asked whether they fit in fp32"""
PAST_STUDIES = 10
"""earlier studies that a searcher learns from"""
LOOKED_AT = 50
"""newest studies of the same model, cluster or trainer among which those are chosen"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """What a study means, worked out."""

    study: Study
    space: SearchSpace
    calibration: Calibration | None
    """of this cluster, where it was measured; None: the cost model's own"""
    estimate: Estimate
    """of every config in the space"""
    baseline: ParallelConfig
    here: Assembly | None = None
    """of a study with a target: the proxy of one of its configs as a study of its own, for what
    must be known of the machine at hand. None: the study runs here as it is"""

    @property
    def runs_here(self) -> Assembly:
        """What this machine is asked to run."""
        return self.here or self

    def predict(self, config: ParallelConfig) -> Estimate:
        """What one config is predicted to cost."""
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
        """A fresh searcher, which has been told nothing yet: of the study's name, or made by
        `factory`; of a study with a target the one that asks for proxies."""
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
        """Why the trainer cannot run this config, in words; empty when it can."""
        return Launchable.of(self.study).refusal(self.study.workload, config)

    @property
    def references(self) -> dict[int, ParallelConfig]:
        """By global batch, the config whose losses other precisions are held against: the baseline
        in fp32, with more or fewer micro-batches to a step, or where that does not fit the config
        in the space that needs the least memory, in fp32. Without those that are not needed
        (stability counts for nothing, all configs are fp32, configs do not see the same data, the
        baseline is its own) or cannot be run."""
        lower = bool((~self.space.table.is_word("precision", "fp32")).any())
        batches = self.study.reference_batches if lower else ()
        found = {batch: self._reference(batch) for batch in batches}
        return {
            batch: config
            for batch, config in found.items()
            if config is not None and config != self.baseline
        }

    def _reference(self, batch: int) -> ParallelConfig | None:
        plain = replace(self.baseline, precision="fp32")
        steps, rest = divmod(batch, plain.micro_batch_size * plain.dp)
        if not rest and self._can_refer(plain := replace(plain, accumulation_steps=steps)):
            return plain
        of_batch = np.flatnonzero(self.space.table.global_batch_size == batch)
        peaks = np.asarray(self.estimate.peak_memory_bytes, dtype=float)[of_batch]
        smallest = (
            replace(self.space[int(i)], precision="fp32")
            for i in of_batch[np.argsort(peaks)[:REFERENCES_TRIED]]
        )
        return next((config for config in smallest if self._can_refer(config)), None)

    def _can_refer(self, config: ParallelConfig) -> bool:
        cannot = why_not(self.study.workload, config) or self.refuse(config)
        return not cannot and bool(fits(self.predict(config)))

    def check_fit(self) -> None:
        """Raises `InfeasibleError` when nothing is expected to fit and no guess of the user stands
        a chance."""
        hopeful = any(
            float(self.predict(guess).oom_probability) <= HOPELESS for guess in self.study.enqueue
        )
        if hopeful or bool(fits(self.estimate).any()):
            return
        miss = nearest_miss(self.space, self.estimate, self.calibration)
        gpu = self.study.workload.cluster.gpu
        raise InfeasibleError(
            f"a config must fit into GPU memory, but none of the {len(self.space):,} valid configs is expected to fit; the nearest miss, "
            f"{miss.config}, has {format_bytes(gpu.memory_bytes)} on a {gpu.name} and needs {miss.need}",
            remedy=f"add values to the space with which it would fit ({'; '.join(miss.remedies[:REMEDIES])}), use more or larger GPUs, or enqueue a config that may barely fit",
            field="space",
        )


def assemble(study: Study, store: KnowledgeStore | None = None) -> Assembly:
    """Works the study out, with the constants that the store has now.

    Raises `SpecError` when the trainer cannot carry a knob of the study, and `InfeasibleError` when
    no config of its space is legal.
    """
    calibration = stored_calibration(study.workload, store, program_of(study))
    if calibration is None and study.at_hand is not None:
        calibration = stored_calibration(
            replace(study.workload, cluster=study.at_hand), store, program_of(study)
        )
    return assemble_with(study, calibration)


def assemble_with(study: Study, calibration: Calibration | None) -> Assembly:
    """The same with these constants; None: those of the release."""

    trainer(study.trainer).check_own_knobs(study.space.extra, study.trainer_options)
    space = SearchSpace.of_study(study)
    predicted = estimate(study.workload, space.table, calibration=calibration)
    found = Assembly(
        study=study,
        space=space,
        calibration=calibration,
        estimate=predicted,
        baseline=study.baseline or baseline_of(space, calibration=calibration, predicted=predicted),
    )
    return found if study.at_hand is None else replace(found, here=_here(found))


def _here(assembly: Assembly) -> Assembly:
    """The first proxy as a study of its own. Raises `InfeasibleError` when none of the target's
    best configs has a proxy on the cluster at hand."""

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
    """Ended trials of the studies that it learns from (`teachers_of`), in their order."""
    teachers = teachers_of(study, store, before=before)
    trials = ((teacher, trial) for teacher in teachers for trial in store.trials(teacher.id))
    return [
        (trial.stands_for.workload if trial.stands_for else teacher.study.workload, trial)
        for teacher, trial in trials
        if trial.status.is_terminal
    ]


def teachers_of(study: Study, store: StudyReader, *, before: datetime) -> list[StudyRecord]:
    """Earlier studies that it learns from: on the same cluster, model or trainer, those that tell
    most about this one first, the newer of equals first; simulated ones only for simulated ones.

    Only studies that had ended when this one was submitted (`before`): a restart must find the same
    history.
    """
    from autotune.search import transfer_weight

    found = studies_alike(study, store, limit=LOOKED_AT, ended_before=before)
    near = {record.id: transfer_weight(study.workload, record.study.workload) for record in found}
    kin = [record for record in found if near[record.id]]
    kin.sort(key=lambda record: (near[record.id], record.created_at, record.id), reverse=True)
    return kin[:PAST_STUDIES]


def studies_alike(
    study: Study, store: StudyReader, *, limit: int, ended_before: datetime | None = None
) -> list[StudyRecord]:
    """The newest studies on the same model, the same cluster and the same trainer, up to `limit` of
    each; simulated ones only for simulated ones."""
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
    """The study's runner: `passed`, where it was passed as an object. Raises `RunnerError` when it
    cannot run this trainer, or has too few ranks for any config (`ClusterTooSmallError`); where the
    runner can say so beforehand, before it is made."""

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
    """Raises `RunnerError` when this runner cannot run the study's trainer, `ClusterTooSmallError`
    when it has too few ranks for any config."""
    study, least = assembly.study, int(assembly.space.table.world_size.min())
    if (check := getattr(runner, "check_study", None)) is not None:
        check(study)
    if study.trainer not in runner.trainers:
        raise RunnerError(
            f"the {study.runner!r} runner cannot run the {study.trainer!r} trainer, only {', '.join(runner.trainers)}",
            remedy="choose another runner or trainer, or use `autotune plan` and `autotune export`, which run nothing",
        )
    if runner.capacity < least:
        raise ClusterTooSmallError(
            f"the smallest config in the space needs {number_of(least, 'rank')}, but the {study.runner!r} runner has {runner.capacity} here",
            remedy="check whether a node is down, set `cluster: local`, or allow smaller world_sizes in the space",
        )
