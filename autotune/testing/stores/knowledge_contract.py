"""Contract of `HistoryReader`, `ObservedStore`, `CalibrationStore`, `ProfileStore` and
`ReferenceLossStore`."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Unpack

import pytest

from autotune.ports import Lease, LeasedStore, ServiceStore, Store, StudyFields
from autotune.spec import (
    Failure,
    FailureKind,
    Outcome,
    ParallelConfig,
    StandsFor,
    StudyStatus,
    TrialPurpose,
    TrialStatus,
)
from autotune.spec.study import SIMULATED
from autotune.testing.stores.sample_studies import (
    a_study,
    an_observed_run,
    failed,
    measured,
    pending,
    run_trial,
    running_study,
)
from autotune.testing.stores.store_fixture import StoreFixture


def end(store: LeasedStore, lease: Lease, **fields: Unpack[StudyFields]) -> None:
    """Set the study to COMPLETED, with these fields."""
    store.set_status(
        lease.study, StudyStatus.COMPLETED, expect=[StudyStatus.RUNNING], lease=lease, **fields
    )


class KnowledgeContract(StoreFixture):
    """The best configs across studies, and data shared by all studies."""

    def test_best_ranks_measured_trials_by_throughput_per_gpu_of_the_cluster(
        self, store: Store
    ) -> None:
        lease = running_study(store)
        small = running_study(store, a_study("small", num_gpus=4))
        other = running_study(store, a_study("other", model="other", trainer="megatron"))
        for number, step_time_s in enumerate((0.5, 0.3, 0.4)):
            run_trial(store, lease, measured(pending(number), step_time_s=step_time_s))
        run_trial(store, lease, failed(pending(3)))
        run_trial(store, lease, replace(pending(4), status=TrialStatus.CANCELLED))
        run_trial(store, small, measured(pending(0), step_time_s=0.55, status=TrialStatus.STOPPED))
        run_trial(store, other, measured(pending(0), step_time_s=0.2))

        def ranks(**wanted: Any) -> list[tuple[str, int]]:
            return [(record.id, trial.number) for record, trial in store.best(**wanted)]

        assert ranks() == [
            (other.study, 0),
            (small.study, 0),
            (lease.study, 1),
            (lease.study, 2),
            (lease.study, 0),
        ]
        assert ranks(limit=2) == ranks()[:2]
        assert ranks(model="tiny", cluster="gpu-1x8") == [
            (lease.study, 1),
            (lease.study, 2),
            (lease.study, 0),
        ]
        assert ranks(trainer="megatron") == ranks(model="other") == [(other.study, 0)]
        assert ranks(num_gpus=4, seq_len=1024, gpu="gpu") == [(small.study, 0)]
        assert ranks(cluster="none") == []
        with pytest.raises(TypeError):
            store.best(nonsense=1)  # type: ignore[call-arg]

    def test_a_config_that_was_measured_often_stands_with_its_median(self, store: Store) -> None:
        lease = running_study(store)
        config = ParallelConfig(dp=8)
        for number, step_time_s in enumerate((0.5, 0.1, 0.4, 0.45)):
            run_trial(store, lease, measured(pending(number, config), step_time_s=step_time_s))
        again = running_study(store, a_study("again"))
        run_trial(store, again, measured(pending(0, config), step_time_s=0.42))
        assert [(r.id, t.number) for r, t in store.best()] == [(again.study, 0)]

    def test_the_peak_of_a_config_is_the_highest_of_its_runs_in_the_study(
        self, store: Store
    ) -> None:
        config = ParallelConfig(dp=8)

        def run(lease: Lease, number: int, step_time_s: float, peak: float) -> None:
            trial = measured(pending(number, config), step_time_s=step_time_s)
            assert trial.measurement is not None
            seen = replace(trial.measurement, peak_memory_bytes=peak)
            run_trial(store, lease, replace(trial, measurement=seen))

        def best() -> tuple[str, int, float | None]:
            ((record, trial),) = store.best()
            return record.id, trial.number, trial.peak_memory_bytes

        first, again = running_study(store), running_study(store, a_study("again"))
        for number, (step_time_s, peak) in enumerate(((0.3, 9e9), (0.2, 7e9), (0.1, 8e9))):
            run(first, number, step_time_s, peak)
        assert best() == (first.study, 1, 9e9)
        run(again, 0, 0.15, 6e9)
        run(first, 3, 0.05, 1e10)
        run(again, 1, 0.16, 5e9)
        assert best() == (again.study, 1, 6e9)
        assert store.trials(again.study)[1].peak_memory_bytes == 5e9

    def test_no_config_stands_before_the_winner_of_its_study(self, store: Store) -> None:
        lucky, good, tied, slow = (
            ParallelConfig(dp=8, micro_batch_size=size) for size in (1, 2, 4, 8)
        )
        lease, other = running_study(store), running_study(store, a_study("other"))
        for number, (config, step_time_s) in enumerate(
            ((lucky, 0.1), (good, 0.2), (tied, 0.4), (slow, 0.5))
        ):
            run_trial(store, lease, measured(pending(number, config), step_time_s=step_time_s))
        elsewhere = ParallelConfig(pp=8)
        run_trial(store, other, measured(pending(0, elsewhere), step_time_s=0.3))

        def ranks(**wanted: Any) -> list[ParallelConfig]:
            return [trial.config for _, trial in store.best(**wanted)]

        assert ranks() == [lucky, good, elsewhere, tied, slow], (
            "before a study ends, configs rank by their own measurement"
        )
        shown = {good: 32 * 1024 / 0.35, tied: 32 * 1024 / 0.35}
        finals = [
            {"config": config.to_dict(), "tokens_per_s": speed} for config, speed in shown.items()
        ]
        end(store, lease, result={"finals": finals})
        assert ranks() == [elsewhere, good, lucky, tied, slow]
        assert ranks(limit=2) == [elsewhere, good]
        assert ranks(one_each=True) == [elsewhere]
        last = running_study(store, a_study("last"))
        for number, step_time_s in enumerate((0.6, 0.7)):
            run_trial(store, last, measured(pending(number, slow), step_time_s=step_time_s))
        run_trial(store, last, measured(pending(2, good), step_time_s=0.25))
        assert ranks() == [good, elsewhere, lucky, tied, slow], (
            "its median comes from a study that is still running"
        )

    def test_a_config_stands_where_the_study_of_its_median_puts_it(
        self, store: ServiceStore
    ) -> None:
        config, steady = ParallelConfig(dp=8), ParallelConfig(pp=8)
        first, again = running_study(store), running_study(store, a_study("again"))
        run_trial(store, first, measured(pending(0, config), step_time_s=0.3))
        run_trial(store, first, measured(pending(1, steady), step_time_s=0.4))
        run_trial(store, again, measured(pending(0, config), step_time_s=0.35))
        final = {"config": config.to_dict(), "tokens_per_s": 32 * 1024 / 0.5}
        end(store, first, result={"finals": [final]})

        def ranks() -> list[tuple[str, ParallelConfig]]:
            return [(record.id, trial.config) for record, trial in store.best()]

        assert ranks() == [(again.study, config), (first.study, steady)]
        end(store, again, result={"finals": [{**final, "tokens_per_s": 32 * 1024 / 0.6}]})
        assert ranks() == [(first.study, steady), (again.study, config)]
        store.delete(again.study)
        assert ranks() == [(first.study, config), (first.study, steady)]

    def test_the_best_since_a_moment(self, store: Store) -> None:
        lease = running_study(store)
        old, new = (measured(pending(number), step_time_s=0.5) for number in (0, 1))
        run_trial(store, lease, replace(old, ended_at=datetime(2026, 1, 1, tzinfo=UTC)))
        run_trial(store, lease, replace(new, ended_at=datetime(2026, 2, 1, tzinfo=UTC)))
        assert [
            t.number for _, t in store.best(measured_after=datetime(2026, 1, 15, tzinfo=UTC))
        ] == [1]
        assert (
            len(
                store.best(
                    measured_after=datetime(2025, 1, 1, tzinfo=UTC), num_gpus=8, one_each=True
                )
            )
            == 1
        )
        assert store.best(num_gpus=16) == []

    def test_workloads_with_measurements_are_known_and_select_the_best(self, store: Store) -> None:
        lease = running_study(store)
        run_trial(store, lease, measured(pending(0)))
        run_trial(store, lease, failed(pending(1)))
        store.submit(a_study("waits", model="other"), {})
        (known,) = store.known_workloads()
        assert (known.workload, known.configs) == (a_study().workload, 1)
        assert [trial.number for _, trial in store.best(workload=known.key)] == [0]

    def test_a_proxy_is_ranked_nowhere(self, store: Store) -> None:
        lease = running_study(store, a_study(num_gpus=64))
        stands_for = StandsFor(config=ParallelConfig(dp=64), workload=a_study().workload)
        run_trial(
            store, lease, measured(pending(0, purpose=TrialPurpose.PROXY, stands_for=stands_for))
        )
        assert store.best(limit=10) == []
        assert store.known_workloads() == []

    def test_one_of_each_model_and_cluster_the_latest_study_first(self, store: Store) -> None:
        old = running_study(store, a_study("old", model="large"))
        new = running_study(store, a_study("new", model="small"))
        for lease, step_time_s in ((old, 0.2), (new, 0.5)):
            run_trial(store, lease, measured(pending(0), step_time_s=step_time_s))
            run_trial(store, lease, measured(pending(1), step_time_s=2 * step_time_s))
        assert [(r.id, t.number) for r, t in store.best(one_each=True)] == [
            (new.study, 0),
            (old.study, 0),
        ]
        assert [(r.id, t.number) for r, t in store.best(one_each=True, limit=1)] == [(new.study, 0)]

    def test_simulated_measurements_stand_where_there_is_no_real_one(self, store: Store) -> None:
        simulated = running_study(store, replace(a_study("simulated"), runner=SIMULATED))
        for number, step_time_s in enumerate((0.1, 0.15)):
            run_trial(store, simulated, measured(pending(number), step_time_s=step_time_s))
        real = running_study(store, a_study("real"))
        run_trial(store, real, measured(pending(0), step_time_s=0.5))

        def ranks(**wanted: Any) -> list[tuple[str, int]]:
            return [(record.id, trial.number) for record, trial in store.best(**wanted)]

        assert ranks() == [(simulated.study, 1), (real.study, 0)]
        assert ranks(without_runner=SIMULATED) == [(real.study, 0)]
        assert ranks(runner=SIMULATED) == [(simulated.study, 1)]

    def test_calibrations_are_kept_by_cluster_and_trainer(self, store: Store) -> None:
        assert store.calibration("c", "native") is None
        store.save_calibration("c", "native", {"matmul": 0.5})
        store.save_calibration("c", "native", {"matmul": 0.75, "links": {"intra": 1e9}})
        store.save_calibration("c", "megatron", {"matmul": 0.1})
        assert store.calibration("c", "native") == {"matmul": 0.75, "links": {"intra": 1e9}}

    def test_profiles_are_kept_by_fingerprint(self, store: Store) -> None:
        assert store.profile("a") is None
        store.save_profile("a", {"runs": ["one"]})
        store.save_profile("a", {"runs": ["one", "two"], "weights": [[True, [2, 3]]]})
        store.save_profile("b", {})
        assert store.profile("a") == {"runs": ["one", "two"], "weights": [[True, [2, 3]]]}
        assert store.profile("b") == {}

    def test_observed_runs_are_kept_as_they_are_and_the_last_one_comes_first(
        self, store: Store
    ) -> None:
        assert store.observed() == []
        killed = Failure(
            kind=FailureKind.OUT_OF_MEMORY,
            message="ran out of memory",
            log_tail=("CUDA out of memory",),
        )
        runs = [
            an_observed_run(a_study()),
            replace(
                an_observed_run(None, program="other.py"),
                outcome=Outcome.FAILED,
                exit_code=-9,
                failure=killed,
            ),
            an_observed_run(a_study(model="other", trainer="megatron"), step_time_s=0.25),
        ]
        kept = [store.keep_observed(run) for run in runs]
        assert len({run.id for run in kept}) == 3
        assert [replace(run, id="") for run in kept] == runs
        assert store.observed() == kept[::-1]
        assert store.observed(limit=1, offset=1) == [kept[1]]
        assert store.observed(id=kept[0].id) == store.observed(model="tiny", gpu="gpu") == [kept[0]]
        assert store.observed(outcome="FAILED") == store.observed(program="other.py") == [kept[1]]
        assert (
            store.observed(trainer="megatron")
            == store.observed(model="other", measured=True)
            == [kept[2]]
        )
        assert store.observed(measured=True) == [kept[2], kept[0]]
        assert store.observed(cluster="none") == []

    def test_an_observed_run_is_no_trial_and_never_the_best(self, store: Store) -> None:
        lease = running_study(store)
        run_trial(store, lease, measured(pending(0), step_time_s=0.5))
        store.keep_observed(an_observed_run(a_study(), step_time_s=0.01))
        ((_, best),) = store.best()
        assert best.measurement is not None
        assert best.measurement.step_time_s == 0.5
        assert len(store.trials(lease.study)) == 1

    def test_the_longest_reference_is_kept(self, store: Store) -> None:
        assert store.reference_losses("m", "d", 0) is None
        store.save_reference_losses("m", "d", 0, [5.5, math.inf])
        store.save_reference_losses("m", "d", 0, [1.0])
        store.save_reference_losses("m", "d", 1, [2.0])
        assert store.reference_losses("m", "d", 0) == (5.5, math.inf)
        assert store.reference_losses("m", "d", 1) == (2.0,)
