"""Ray that does not start, starts late, or dies: a fake of the launcher that would run on it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import RunnerError
from autotune.service.supervise import ray_cluster, ray_retry
from autotune.service.supervise.launcher import Ended
from autotune.service.supervise.ray_retry import LOST, RetryingRayLauncher
from autotune.study.process_id import this_process
from tests.service.running import until


class PaperRay:
    """A fake of `RayLauncher` whose cluster the test lets die."""

    dashboard = "http://127.0.0.1:8265"

    def __init__(self) -> None:
        self.is_lost = self.closed = False
        self.studies = frozenset({"b", "a"})

    def adopted(self) -> frozenset[str]:
        return frozenset({"adopted"})

    def ended(self) -> list[Ended]:
        return []

    def health(self) -> str:
        return "the cluster has died" if self.is_lost else ""

    def close(self, grace_s: float) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_retry, "FIRST_WAIT_S", 0.01)


def failing_first(times: int, made: list[PaperRay]) -> Callable[[Callable[[], bool]], Any]:
    """Opens a new cluster each time, but fails the first `times`."""
    left = [times]

    def open_ray(should_give_up: Callable[[], bool]) -> PaperRay:
        if left[0]:
            left[0] -= 1
            raise RunnerError("Ray did not start on this machine")
        made.append(PaperRay())
        return made[-1]

    return open_ray


def test_starting_ray_is_retried_until_it_succeeds() -> None:
    made: list[PaperRay] = []
    launcher = RetryingRayLauncher(failing_first(3, made))
    until(lambda: made)
    until(lambda: launcher.health() == "")
    assert launcher.adopted() == {"adopted"}
    launcher.close(1.0)
    assert made[0].closed


def test_while_ray_is_unavailable_studies_wait_and_health_reports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_retry, "FIRST_WAIT_S", 3600.0)
    launcher = RetryingRayLauncher(failing_first(1, []))
    until(lambda: "Ray did not start on this machine" in launcher.health())
    with pytest.raises(RunnerError, match="did not start"):
        launcher.adopted()
    assert launcher.ended() == []
    launcher.close(1.0)  # ends the wait


def test_a_cluster_that_dies_ends_its_jobs_and_is_replaced() -> None:
    made: list[PaperRay] = []
    launcher = RetryingRayLauncher(failing_first(0, made))
    until(lambda: launcher.health() == "")
    made[0].is_lost = True
    assert launcher.ended() == [Ended(study="a", code=LOST), Ended(study="b", code=LOST)]
    until(lambda: len(made) == 2 and launcher.health() == "")
    assert (made[0].closed, launcher.ended()) == (True, [])
    launcher.close(1.0)


def test_a_hanging_start_is_cancelled_when_the_service_ends() -> None:
    def open_ray(should_give_up: Callable[[], bool]) -> Any:
        until(should_give_up)
        raise RunnerError("given up")

    RetryingRayLauncher(open_ray).close(1.0)


def test_the_folder_of_a_cluster_is_private_and_removed_after_its_process_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(tempfile.mkdtemp(dir="/tmp"))  # short, as sockets need it
    monkeypatch.setattr("tempfile.tempdir", str(root))
    try:
        first = ray_cluster._new_folder()
        assert first.stat().st_mode & 0o777 == 0o700
        host, _, start, place = this_process().split(":")
        (first / ray_cluster.OWNER).write_text(
            f"{host}:{os.getpid()}:{int(start) + 1}:{place}"
        )  # the number was reused
        second = ray_cluster._new_folder()
        (second / ray_cluster.OWNER).write_text(this_process())
        third = ray_cluster._new_folder()
        assert set(root.iterdir()) == {second, third}  # one in use, one that is being started
    finally:
        shutil.rmtree(root)
