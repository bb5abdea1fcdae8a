"""A study's metrics: exactly those of the written list, with its labels, and nothing where nobody
listens."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from autotune import api
from autotune.service.metrics import study_metrics
from autotune.service.metrics.study_metrics import StudyMetrics
from autotune.study.progress import TrialEnded
from tests.service.running import spec, until

LISTED = yaml.safe_load(
    (Path(__file__).resolve().parents[3] / "dashboards" / "prometheus" / "metrics.yaml").read_text()
)


class Board:
    """Counter, Gauge and Histogram that write down what they are told."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.told: list[tuple[str, float, dict[str, str]]] = []

    def kind(self, kind: str) -> Any:
        def make(
            name: str, *, description: str, tag_keys: tuple[str, ...], boundaries: Any = None
        ) -> Any:
            self.made[name] = (kind, tag_keys)
            assert description == LISTED[name]["help"]

            def tell(value: float, *, tags: dict[str, str]) -> None:
                assert set(tags) == set(tag_keys)
                self.told.append((name, value, tags))

            return SimpleNamespace(inc=tell, set=tell, observe=tell)

        return make

    @property
    def kinds(self) -> Any:
        return SimpleNamespace(
            Counter=self.kind("counter"), Gauge=self.kind("gauge"), Histogram=self.kind("histogram")
        )


def test_a_study_exports_exactly_the_listed_metrics(tmp_path: Path) -> None:
    board = Board()
    metrics = StudyMetrics("some-study", connected=lambda: True, kinds=board.kinds)
    events: list[Any] = []

    def hear(event: Any) -> None:
        events.append(event)
        metrics.on_event(event)

    result = api.tune(spec(), store=tmp_path / "results.db", on_event=hear)
    assert board.made == {name: (m["kind"], tuple(m["labels"])) for name, m in LISTED.items()}
    assert {tags["study"] for _, _, tags in board.told} == {"some-study"}
    ended = [e for e in events if isinstance(e, TrialEnded)]
    assert (
        len([t for t in board.told if t[0] == "autotune_trials"])
        == len(ended)
        == len(result.trials)
    )
    best = [
        value for name, value, _ in board.told if name == "autotune_best_tokens_per_second_per_gpu"
    ]
    assert best[-1] == result.best.measurement.tokens_per_s_per_gpu
    steps = [t for t in board.told if t[0] == "autotune_step_time_seconds"]
    assert len(steps) == sum(
        len(t.measurement.step_times_s) for t in result.trials if t.measurement
    )


def test_gauges_are_set_again_because_ray_drops_them(tmp_path: Path) -> None:
    board = Board()
    metrics = StudyMetrics("some-study", connected=lambda: True, kinds=board.kinds)
    api.tune(spec(), store=tmp_path / "results.db", on_event=metrics.on_event)
    gauges = {name for name, metric in LISTED.items() if metric["kind"] == "gauge"}
    last = {name: value for name, value, _ in board.told if name in gauges}
    board.told.clear()
    metrics.repeat()
    assert {name: value for name, value, _ in board.told} == last
    assert set(last) == gauges


def test_a_thread_sets_them_while_the_study_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study_metrics, "REPEAT_S", 0.01)
    board = Board()
    with StudyMetrics("some-study", connected=lambda: True, kinds=board.kinds) as metrics:
        api.tune(spec(), store=tmp_path / "results.db", on_event=metrics.on_event)
        reported = len(board.told)
        until(lambda: len(board.told) > reported + 8)


def test_without_ray_nothing_is_exported(tmp_path: Path) -> None:
    board = Board()
    metrics = StudyMetrics("some-study", connected=lambda: False, kinds=board.kinds)
    api.tune(spec(), store=tmp_path / "results.db", on_event=metrics.on_event)
    assert board.made == {}
