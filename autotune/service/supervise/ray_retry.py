"""A launcher for Ray that opens the cluster in the background, and again if that fails or the
cluster dies.

The service answers from its first second, because history and pages need no Ray. Until the cluster
is available, every start of a study raises `RunnerError`, which the supervisor reports as its
health, and the studies stay QUEUED.
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
"""first and longest wait before Ray is opened again, seconds; it doubles after each failure"""
LOST = -9
"""exit code of jobs that died with their cluster, as for processes killed by SIGKILL"""


class RetryingRayLauncher:
    """A launcher around `RayLauncher`. `open_ray` is called in its own thread, with a function that
    returns whether to give up."""

    def __init__(self, open_ray: Callable[[Callable[[], bool]], RayLauncher]) -> None:
        self._open_ray = open_ray
        self._closing = threading.Event()
        self._ray: RayLauncher | None = None
        self._problem = "Ray is being started or joined"
        self._thread = self._start_opening()

    def start(self, record: StudyRecord) -> None:
        """Start the study's job."""
        self._available_ray().start(record)

    def adopted(self) -> frozenset[str]:
        """Return the studies whose jobs an earlier service started. Raises `RunnerError` until Ray
        is available."""
        return self._available_ray().adopted()

    def ended(self) -> list[Ended]:
        """Return the jobs that have ended. If the cluster has died, all of its jobs have ended, and
        a new cluster is started."""
        ray = self._ray
        if ray is None:
            return []
        if not ray.is_lost:
            return ray.ended()
        lost = sorted(ray.studies)
        log.warning("%s; starting it again", ray.health())
        self._ray, self._problem = None, "the Ray cluster died and is being restarted"
        ray.close(0.0)
        self._thread = self._start_opening()
        return [Ended(study=study, code=LOST) for study in lost]

    def kill(self, study: str) -> None:
        """Stop the study's job."""
        if self._ray is not None:
            self._ray.kill(study)

    def scrape_targets(self) -> list[dict[str, Any]]:
        """Return the cluster's nodes for Prometheus. Raises `RunnerError` while Ray is
        unavailable."""
        return self._available_ray().scrape_targets()

    def health(self) -> str:
        """Return the problem with Ray; an empty text if there is none."""
        return self._problem if self._ray is None else self._ray.health()

    def close(self, grace_s: float) -> None:
        """Cancel an attempt to open Ray, and shut down a cluster that was started here."""
        self._closing.set()
        self._thread.join()
        if self._ray is not None:
            self._ray.close(grace_s)
            self._ray = None

    def _available_ray(self) -> RayLauncher:
        ray = self._ray
        if ray is None:
            raise RunnerError(
                self._problem, remedy="studies wait for Ray; history and pages are available"
            )
        return ray

    def _start_opening(self) -> threading.Thread:
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
            except (
                Exception
            ) as error:  # Ray fails in many ways, and none of them may end the service
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
