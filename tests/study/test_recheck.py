"""A recheck finds that configs got slower, names what changed, and cries wolf hardly ever."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.ports import AttemptEnded, TrialRequest
from autotune.spec import Failure, FailureKind, Measurement, ParallelConfig
from autotune.spec.runs.versions import differences
from autotune.study.recheck import (
    Recheck,
    Rechecked,
    junit,
    markdown,
    proposal,
    run_recheck,
)
from tests.diagnosing.made_up import run
from tests.matrix import sampled
from tests.shortcuts import present
from tests.study.controller.world import study

CONFIGS = [
    ParallelConfig(dp=2, micro_batch_size=size, accumulation_steps=8 // size) for size in (4, 2, 1)
]
SPEEDS = (1.3, 1.25, 1.0)


def measured(
    speed: float, dice: np.random.Generator, between: float = 0.02, **more: Any
) -> Measurement:
    run = math.exp(dice.normal(0, between))
    times = 0.1 / speed / run * np.exp(0.03 * dice.standard_normal(12))
    return Measurement(step_times_s=tuple(map(float, times)), tokens_per_step=1000, **more)


def rechecked(
    change: float, seed: int, *, between: float = 0.02, changes: Sequence[float] = (0, 0, 0)
) -> Recheck:
    """Winner, runner-up and default; three runs then, two now, of a machine that became faster by
    `change`."""
    dice = np.random.default_rng(seed)
    found = []
    for role, config, speed, own in zip(
        ("winner", "runner-up", "default"), CONFIGS, SPEEDS, changes, strict=True
    ):
        before = tuple(
            measured(speed, dice, between, versions={"torch": "2.11", "python": "3.11"})
            for _ in range(3)
        )
        now = tuple(
            measured(
                speed * (1 + change + own),
                dice,
                between,
                versions={"torch": "2.12", "python": "3.11"},
            )
            for _ in range(2)
        )
        found.append(Rechecked(role=role, config=config, before=before, now=now))
    return Recheck(name="old", configs=tuple(found))


@pytest.mark.parametrize(
    ("change", "least", "most"),
    sampled(
        [(-0.05, 0.95, 1.0), (0.0, 0.0, 0.05), (0.05, 0.0, 0.0), (-0.10, 1.0, 1.0)],
        [(-0.05, 0.95, 1.0), (0.0, 0.0, 0.05)],
    ),
)
def test_slowdowns_are_found_and_none_is_invented(change: float, least: float, most: float) -> None:
    found = [rechecked(change, seed).is_slower for seed in range(200)]
    assert least <= sum(found) / len(found) <= most


def test_the_interval_holds_the_change() -> None:
    held = 0
    for seed in range(200):
        change = present(rechecked(-0.04, seed).change)
        held += change[1] <= -0.04 <= change[2]
    assert held >= 184


def test_versions_and_order_are_said() -> None:
    same = rechecked(0.0, 1)
    assert same.versions == [("torch", "2.11", "2.12")]
    assert same.order_holds
    overtaken = rechecked(0.0, 1, changes=(-0.15, 0.0, 0.0))
    assert not overtaken.order_holds
    assert "the runner-up is now" in overtaken.order
    assert overtaken.to_dict()["configs"][0]["change"] == pytest.approx(-0.15, abs=0.05)


@pytest.mark.parametrize(("slower", "holds"), [(0.0, True), (-0.15, False)])
def test_a_lead_of_before_is_no_change(slower: float, holds: bool) -> None:
    """A study ranks by more than speed: its winner may be slower than its runner-up."""
    dice = np.random.default_rng(3)
    configs = []
    for role, config, speed in zip(("winner", "runner-up"), CONFIGS, (1.0, 1.2), strict=False):
        now = speed * (1 + slower) if role == "winner" else speed
        runs = [tuple(measured(s, dice, 0.005) for _ in range(3)) for s in (speed, now)]
        configs.append(Rechecked(role=role, config=config, before=runs[0], now=runs[1]))
    found = Recheck(name="old", configs=tuple(configs))
    assert found.order_holds == holds
    if holds:
        assert "the ranking is unchanged" in found.order
        assert "the runner-up was ahead before too, and is now 2" in found.order
    else:
        assert "the runner-up is now 4" in found.order
        assert " ahead before" in found.order


def test_a_config_that_fails_now_is_named() -> None:
    whole = rechecked(0.0, 2)
    failure = Failure(kind=FailureKind.OUT_OF_MEMORY, message="no memory is left")
    broken = replace(
        whole, configs=(replace(whole.configs[0], now=(), failure=failure), *whole.configs[1:])
    )
    assert broken.is_slower
    assert "the winner now fails (out of memory: no memory is left)" in broken.verdict


def test_the_files_for_a_ci() -> None:
    slow = rechecked(-0.2, 3)
    root = ET.fromstring(junit(slow))
    assert (root.get("tests"), root.get("failures")) == ("4", "1")
    text = markdown(slow)
    assert "| torch | 2.11 | 2.12 |" in text
    assert "slower than before" in text
    assert ET.fromstring(junit(rechecked(0.0, 3))).get("failures") == "0"


def test_beside_other_processes_a_change_is_inconclusive() -> None:
    busy = run(load=0.4)
    slow = rechecked(-0.3, 0)
    assert slow.is_slower
    disturbed = replace(
        slow, configs=tuple(replace(c, now=tuple(replace(m, evidence=busy.to_dict()) for m in c.now)) for c in slow.configs)
    )  # fmt: skip
    assert disturbed.busy > 0.1
    assert (disturbed.is_slower, disturbed.is_inconclusive) == (False, True)
    assert "; inconclusive: other processes took up to" in disturbed.verdict
    cases = ET.fromstring(junit(disturbed)).findall(".//testcase")
    assert [case.find("skipped") is not None for case in cases][-1]
    assert not any(case.find("failure") is not None for case in cases)
    assert "The ranking is unchanged" in markdown(disturbed)
    gone = replace(
        disturbed.configs[0], failure=Failure(kind=FailureKind.ERROR, message="no such option")
    )
    assert replace(disturbed, configs=(gone, *disturbed.configs[1:])).is_slower, (
        "a failure does not depend on load"
    )


def test_a_new_study_begins_from_the_old_one() -> None:
    spec = {"name": "old", "model": "gpt2-small", "enqueue": [CONFIGS[2].to_dict()]}
    begun = proposal(spec, rechecked(-0.2, 3))
    assert begun["name"] == "old-again"
    assert [config["micro_batch_size"] for config in begun["enqueue"]] == [4, 2, 1]


def test_only_what_both_know_differs() -> None:
    assert differences({"torch": "1", "cuda": "12"}, {"torch": "2", "driver": "5"}) == [
        ("torch", "1", "2")
    ]


class Played:
    """A runner that plays measurements."""

    trainers = ("native",)
    capacity = 2

    def __init__(self, speeds: dict[ParallelConfig, float]) -> None:
        self.speeds, self.asked, self._due = speeds, [], []  # type: ignore[var-annotated]

    def start(self, request: TrialRequest) -> None:
        self.asked.append(request.config)
        seen = measured(self.speeds[request.config], np.random.default_rng(len(self.asked)))
        self._due.append(AttemptEnded(id=request.id, measurement=seen))

    def poll(self, timeout_s: float) -> list[AttemptEnded]:
        due, self._due = self._due, []
        return due

    def cancel(self, attempt: Any) -> None: ...

    def close(self) -> None: ...


def test_configs_take_turns() -> None:
    dice = np.random.default_rng(0)
    old = [
        Rechecked(role=r, config=c, before=(measured(s, dice),))
        for r, c, s in zip(("winner", "runner-up", "default"), CONFIGS, SPEEDS, strict=True)
    ]
    runner = Played(dict(zip(CONFIGS, SPEEDS, strict=True)))
    now = run_recheck(study(), "abc", runner, old)  # type: ignore[arg-type]
    assert runner.asked == [*CONFIGS, *reversed(CONFIGS)]
    assert [len(one.now) for one in now] == [2, 2, 2]
