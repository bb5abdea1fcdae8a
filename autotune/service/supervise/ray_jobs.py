"""Studies as Ray jobs: the Ray dashboard shows each study with its logs under the study's id, and
can stop it.

A job's command is always `python -m autotune.service.supervise.worker STUDY`; specs can change
neither the command nor its environment. The submission id is the study's id (followed by -2, -3,
... if Ray lost a job and it is started again), so that two supervisors cannot start one study
twice.

Jobs are managed over HTTP (https://docs.ray.io, "Ray Jobs REST API"), with a deadline on each
request. Ray's view of a job is only a hint and the store is authoritative: a failed request never
ends a study.

    RAY_AUTH_MODE=token         is set for a cluster started here (`autotune.service.supervise.ray_cluster`);
                                the secret of a joined cluster comes from RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token
    AUTOTUNE_STORE              is passed to jobs only if it has no password, because Ray shows jobs' environments to everybody;
                                otherwise it must be set on the cluster's head node
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from autotune.errors import RunnerError
from autotune.ports import StudyRecord
from autotune.service.options import ServiceOptions
from autotune.service.supervise.launcher import Ended
from autotune.service.supervise.ray_cluster import RayHead, own_token

log = logging.getLogger("autotune.service")

REQUEST_S = 20.0
"""deadline for one request, seconds"""
SUBMIT_S = 90.0
"""deadline for a submission, seconds; longer, because an interrupted submission leaves a job that
stays PENDING forever (ray#62766)"""
PENDING_S = 300.0
"""time after which a job that is still PENDING is stopped and submitted again under the next
number, seconds"""
POLL_S = 1.0
"""time between two polls of the jobs, seconds"""
STUDY_KEY = "autotune_study"
"""metadata key that marks autotune's jobs"""
DASHBOARD_KEY = "dashboard"
"""metadata key with the address of Ray's dashboard, which the study's page links to"""
ALIVE = ("PENDING", "RUNNING")


class RayLauncher:
    """A launcher that runs studies as jobs of one Ray cluster. Not thread-safe."""

    def __init__(
        self,
        dashboard: str,
        *,
        token: str = "",
        python: str = "python",
        environment: Mapping[str, str] | None = None,
        url: str = "",
        head: RayHead | None = None,
    ) -> None:
        """`environment`: environment of each job. `url`: URL of the web page, for the metadata.
        `head`: a cluster that this launcher shuts down when it is closed."""
        self._http = httpx.Client(
            base_url=f"{dashboard.rstrip('/')}/api/jobs",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=REQUEST_S,
            trust_env=False,
        )
        self.dashboard = dashboard.rstrip("/")
        self._python, self._environment, self._url, self._head = (
            python,
            dict(environment or {}),
            url,
            head,
        )
        self._jobs: dict[str, str] = {}
        self._stopped: set[str] = set()
        self._pending: dict[str, float] = {}
        self._polled_s = 0.0
        self._problem = ""

    @classmethod
    def open(
        cls,
        options: ServiceOptions,
        *,
        store_url: str,
        url: str,
        should_give_up: Callable[[], bool] = lambda: False,
    ) -> Self:
        """Join the cluster in the options, or start one, unless `should_give_up` returns True
        first. Raises `RunnerError`."""
        if not options.ray_address:
            head = RayHead.start(
                store_url, environment=options.study_environment, should_give_up=should_give_up
            )
            log.info(
                "Ray's dashboard is at %s, and its token is in %s", head.dashboard, own_token()[0]
            )
            return cls(head.dashboard, token=head.token, python=sys.executable, url=url, head=head)
        check_address(options.ray_address)
        store = {} if has_password(store_url) else {"AUTOTUNE_STORE": store_url}
        environment = {**store, **options.study_environment}
        return cls(options.ray_address, token=user_token(), environment=environment, url=url)

    def start(self, record: StudyRecord) -> None:
        """Submit the job, unless it already exists."""
        number = 1
        while (info := self._info(name := _submission_id(record.id, number))) is not None:
            if info["status"] in ALIVE and name not in self._stopped:
                self._jobs[record.id] = name
                return
            number += 1
        workload = record.study.workload
        metadata = {
            "job_name": record.study.name,
            STUDY_KEY: record.id,
            "model": workload.model.name,
            "cluster": workload.cluster.name,
            "url": f"{self._url}/studies/{record.id}",
            **(
                {DASHBOARD_KEY: self.dashboard} if urlsplit(self.dashboard).username is None else {}
            ),
        }
        job: dict[str, Any] = {
            "entrypoint": shlex.join(
                [self._python, "-m", "autotune.service.supervise.worker", record.id]
            ),
            "submission_id": name,
            "metadata": metadata,
        }
        if self._environment:
            job["runtime_env"] = {"env_vars": self._environment}
        answer = self._request("POST", "/", json=job, timeout=SUBMIT_S)
        if answer.status_code != 200 and (self._info(name) or {}).get("status") not in ALIVE:
            raise RunnerError(
                f"Ray rejected the job for study {record.id}: HTTP {answer.status_code}, {answer.text[:300]}",
                remedy=f"check the cluster in the Ray dashboard, {self.dashboard}",
            )
        self._jobs[record.id] = name

    def adopted(self) -> frozenset[str]:
        """Return the studies whose jobs an earlier service started. Jobs that a user has stopped
        since are included, because `ended` reports them."""
        answer = self._request("GET", "/")
        for job in answer.json() if answer.status_code == 200 else []:
            study = (job.get("metadata") or {}).get(STUDY_KEY)
            if study and job["status"] in (*ALIVE, "STOPPED"):
                self._jobs[study] = job["submission_id"]
        return frozenset(self._jobs)

    def ended(self) -> list[Ended]:
        """Return the jobs that have ended. A job that Ray no longer knows was lost; the study of a
        job that a user stopped must be cancelled."""
        if time.monotonic() - self._polled_s < POLL_S:
            return []
        self._polled_s = time.monotonic()
        over: list[Ended] = []
        for study, name in list(self._jobs.items()):
            try:
                info = self._info(name)
                is_alive = (
                    info is not None
                    and info["status"] in ALIVE
                    and not self._is_stuck(name, info["status"])
                )
            except RunnerError as error:
                # an unreachable job is not dead; report the ends found so far
                self._problem = str(error)
                return over
            if is_alive:
                continue
            self._pending.pop(name, None)
            del self._jobs[study]
            stopped_by_user = (
                info is not None and info["status"] == "STOPPED" and name not in self._stopped
            )
            over.append(Ended(study=study, code=_exit_code(info), stopped_by_user=stopped_by_user))
        self._problem = ""
        return over

    def _is_stuck(self, name: str, status: str) -> bool:
        """Return whether the job has been PENDING for too long; if so, stop it."""
        if status != "PENDING":
            self._pending.pop(name, None)
            return False
        now = time.monotonic()
        if now - self._pending.setdefault(name, now) < PENDING_S:
            return False
        self._stopped.add(name)
        self._request("POST", f"/{name}/stop")
        return True

    def kill(self, study: str) -> None:
        """Stop the study's job."""
        if (name := self._jobs.get(study)) is not None:
            self._stopped.add(name)
            self._request("POST", f"/{name}/stop")

    def health(self) -> str:
        """Return the problem with Ray; an empty text if there is none."""
        return (
            "the Ray cluster that this service started has died" if self.is_lost else self._problem
        )

    def scrape_targets(self) -> list[dict[str, Any]]:
        """Return the cluster's nodes for Prometheus. May be called from any thread. Raises
        `RunnerError` if Ray's answer has no nodes."""
        try:
            answer = self._http.get(f"{self.dashboard.rstrip('/')}/api/prometheus/sd")
            targets = answer.json() if answer.status_code == 200 else None
        except (
            httpx.HTTPError,
            ValueError,
            RuntimeError,
        ):
            # RuntimeError: another thread closed the client
            targets = None
        if not isinstance(targets, list):
            raise RunnerError(
                f"Ray's dashboard at {self.dashboard} lists no nodes to scrape", remedy=_REMEDY
            )
        return targets

    @property
    def is_lost(self) -> bool:
        """Whether the cluster was started here and has died with all its jobs."""
        return self._head is not None and not self._head.is_running

    @property
    def studies(self) -> frozenset[str]:
        """Studies with jobs that were started or adopted and have not ended."""
        return frozenset(self._jobs)

    def close(self, grace_s: float) -> None:
        """Shut down a cluster that was started here, with its jobs. Jobs in a joined cluster
        continue."""
        if self._head is not None:
            for study in list(self._jobs):
                with contextlib.suppress(RunnerError):
                    self.kill(study)
            self._head.close(grace_s)
            self._head = None
        self._http.close()

    def _info(self, name: str) -> dict[str, Any] | None:
        """Return Ray's information on the job; None if there is no such job. Raises `RunnerError`
        if Ray does not answer."""
        answer = self._request("GET", f"/{name}")
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            raise RunnerError(
                f"Ray's dashboard at {self.dashboard} answers HTTP {answer.status_code}",
                remedy=_REMEDY,
            )
        info: dict[str, Any] = answer.json()
        return info

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise RunnerError(
                f"Ray's dashboard at {self.dashboard} cannot be reached: {type(error).__name__}",
                remedy=_REMEDY,
            ) from None


def check_address(address: str) -> None:
    """Raise `RunnerError` unless the address is a URL."""
    if not address.startswith(("http://", "https://")):
        raise RunnerError(
            f"--ray must be the URL of a Ray dashboard, but is {address!r}",
            remedy="use an address such as http://HOST:8265",
        )


def user_token(environment: Mapping[str, str] | None = None) -> str:
    """Return the secret of a joined cluster from the places where Ray looks for it; an empty text
    if there is none."""
    variables = os.environ if environment is None else environment
    if text := variables.get("RAY_AUTH_TOKEN", "").strip():
        return text
    path = variables.get("RAY_AUTH_TOKEN_PATH") or str(Path.home() / ".ray" / "auth_token")
    with contextlib.suppress(OSError):
        return Path(path).read_text().strip()
    return ""


def has_password(store_url: str) -> bool:
    """Return whether a store's address contains a password."""
    if "://" not in store_url:
        return False
    from sqlalchemy import make_url

    url = make_url(store_url)
    return bool(url.password) or any("password" in key.lower() for key in url.query)


def _submission_id(study: str, number: int) -> str:
    return study if number == 1 else f"{study}-{number}"


def _exit_code(info: Mapping[str, Any] | None) -> int:
    if info is None:
        return -9
    if info["status"] == "SUCCEEDED":
        return 0
    code = info.get("driver_exit_code")
    return code if isinstance(code, int) and code else 1


_REMEDY = "check that the cluster is running and that RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH has the cluster's token"
