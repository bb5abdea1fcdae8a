"""Ray as far as it is there: a launcher that opens the cluster in the background, and again when
that fails or the cluster dies.

The service answers from its first second: history and pages need no Ray. Until the cluster is
there, every start of a study raises `RunnerError`, which the supervisor reports as its health; the
studies stay QUEUED.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from autotune.errors import AutotuneError, RunnerError
from autotune.ports import StudyRecord
from autotune.service.supervise.launcher import Ended
from autotune.service.supervise.ray_jobs import RayLauncher

log = logging.getLogger("autotune.service")

FIRST_WAIT_S, LONGEST_WAIT_S = 5.0, 300.0
"""wait before Ray is tried again; doubles after each failure"""
LOST = -9
"""exit code of jobs that died with their cluster, as of a killed process"""


class RetriedRay:
    """A launcher around `RayLauncher`. `open_ray` is called in a thread of its own and gets a
    function that says when to give up."""

    def __init__(self, open_ray: Callable[[Callable[[], bool]], RayLauncher]) -> None:
        self._open_ray = open_ray
        self._closing = threading.Event()
        self._ray: RayLauncher | None = None
        self._problem = "Ray is being started or joined"
        self._thread = self._begin()

    def start(self, record: StudyRecord) -> None:
        """Starts the study's job."""
        self._there().start(record)

    def adopted(self) -> frozenset[str]:
        """Studies whose jobs an earlier service started. Raises `RunnerError` until Ray is
        there."""
        return self._there().adopted()

    def ended(self) -> list[Ended]:
        """Jobs that have ended. When the cluster has died, all of its jobs have, and a new cluster
        is started."""
        ray = self._ray
        if ray is None:
            return []
        if not ray.is_lost:
            return ray.ended()
        lost = sorted(ray.studies)
        log.warning("%s; starting it again", ray.health())
        self._ray, self._problem = None, "the Ray cluster died and is being restarted"
        ray.close(0.0)
        self._thread = self._begin()
        return [Ended(study=study, code=LOST) for study in lost]

    def kill(self, study: str) -> None:
        """Stops the study's job."""
        if self._ray is not None:
            self._ray.kill(study)

    def scrape_targets(self) -> list[dict[str, Any]]:
        """The nodes of the cluster for Prometheus. Raises `RunnerError` while Ray is away."""
        return self._there().scrape_targets()

    def health(self) -> str:
        """What is wrong with Ray; empty when it answers."""
        return self._problem if self._ray is None else self._ray.health()

    def close(self, grace_s: float) -> None:
        """Gives up a start that is under way, and ends a cluster that was started here."""
        self._closing.set()
        self._thread.join()
        if self._ray is not None:
            self._ray.close(grace_s)
            self._ray = None

    def _there(self) -> RayLauncher:
        ray = self._ray
        if ray is None:
            raise RunnerError(
                self._problem, remedy="studies wait for Ray; history and pages are available"
            )
        return ray

    def _begin(self) -> threading.Thread:
        thread = threading.Thread(target=self._open, name="ray-opener", daemon=True)
        thread.start()
        return thread

    def _open(self) -> None:
        wait_s = FIRST_WAIT_S
        while not self._closing.is_set():
            try:
                self._ray = self._open_ray(self._closing.is_set)
                log.info("Ray is available: studies run at %s", self._ray.dashboard)
                return
            except AutotuneError as error:
                problem = str(error)
            except Exception as error:  # Ray fails in many ways; none of them may end the service
                log.exception("unexpected error while starting Ray")
                problem = f"{type(error).__name__}: {error}"
            if not self._closing.is_set():
                log.warning(
                    "%s; history and pages are available, next attempt to start Ray in %.0f s",
                    problem,
                    wait_s,
                )
            self._problem = f"{problem}; retrying"
            self._closing.wait(wait_s)
            wait_s = min(LONGEST_WAIT_S, 2 * wait_s)
