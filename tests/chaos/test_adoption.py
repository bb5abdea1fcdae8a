"""On a persistent Ray cluster, the next controller of a study continues the trial that the killed
controller was measuring."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from autotune import api
from autotune.spec import StudyStatus, TrialStatus
from autotune.study.progress import LoopEvent, Notice, TrialEnded, TrialStarted, TrialStepped
from tests.chaos.replay.faults import faults_of
from tests.chaos.test_leaks import controller_of, real
from tests.ray_roles import played_head
from tests.shortcuts import present
from tests.workers.requests import DOUBLE

pytestmark = [
    pytest.mark.alone,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_a_trial_outlives_its_controller_and_counts_once(tmp_path: Path) -> None:
    with played_head() as (_, address):
        runner = {"kind": "ray", "address": address, "trial": DOUBLE, "abandoned_s": 60}
        spec, url = real(runner) | {"trainer": {"kind": "native"}}, str(tmp_path / "store.db")
        with controller_of(spec, url) as controller:
            seen = 0
            for line in present(controller.stdout):
                seen += line.strip() == TrialStarted.__name__
                if seen == 2 and line.strip() == TrialStepped.__name__:
                    break
            os.kill(controller.pid, signal.SIGKILL)
        killed_s, told = time.monotonic(), list[tuple[float, LoopEvent]]()
        result = api.tune(
            spec,
            store=url,
            on_event=lambda event: told.append((time.monotonic() - killed_s, event)),
        )
        said = [event.message for _, event in told if isinstance(event, Notice)]
        assert (
            "trial 1 continues, because its ranks kept running after their controller ended" in said
        )
        assert result.record.status is StudyStatus.COMPLETED
        assert [t.attempts for t in result.trials] == [1] * len(result.trials)
        adopted = next(t for t in result.trials if t.number == 1)
        assert adopted.status is TrialStatus.COMPLETED
        ends = [event.trial.number for _, event in told if isinstance(event, TrialEnded)]
        assert ends == [t.number for t in result.trials if t.number > 0], (
            "each once, and none but the first before the kill"
        )
        with closing(api.open_store(url)) as store:
            steps = store.steps(result.record.id, 1)["step"]
            assert steps == list(range(251)), "none twice, none missing"
            assert [
                e.data["number"]
                for e in store.events(result.record.id)
                if e.kind == "trial.adopted"
            ] == [1]
            assert faults_of(store) == []
        adopted_s = next(
            at_s
            for at_s, event in told
            if isinstance(event, Notice) and "continues" in event.message
        )
        print(
            f"the trial was adopted {adopted_s:.1f} s after the controller was killed, in a process that was there already"
        )
