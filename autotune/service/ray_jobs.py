"""Studies as Ray jobs: they stand in the Ray dashboard with their logs, under the study's id, and can be stopped there.

The job's command is fixed, `python -m autotune.service.worker STUDY`; a spec cannot change it, nor its environment. The submission id is the
study's id (with -2, -3, ... when Ray lost a job and it is started again), so that two supervisors cannot start one study twice.

Ray's own job interface is asked over HTTP (https://docs.ray.io, "Ray Jobs REST API") with a deadline on each question. Its answers are a
view and not the truth: the store is. A question that fails ends nothing.

    RAY_AUTH_MODE=token         is set for a cluster started here, with a secret of its own in a file of the user's data folder;
                                for one that is joined, RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token has the secret
    AUTOTUNE_STORE              goes along as environment only when it holds no password (Ray shows job environments to everybody); else it must
                                be set on the cluster's head node
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from autotune.errors import RunnerError
from autotune.extras import require_extra
from autotune.ports import StudyRecord
from autotune.service.launcher import Ended
from autotune.service.options import ServiceOptions
from autotune.settings import data_folder

log = logging.getLogger("autotune.service")

START_S = 120.0
"""deadline for a cluster's start"""
ASK_S = 20.0
"""deadline for one question"""
SUBMIT_S = 90.0
"""deadline for a submission: one that is cut off leaves a job that is PENDING for ever (ray#62766)"""
PENDING_S = 300.0
"""a job that has not begun after so long is stopped, and started again under the next number"""
LOOK_S = 1.0
"""how often jobs are looked at"""
STUDY_KEY = "autotune_study"
"""metadata by which our jobs are told from others"""
ALIVE = ("PENDING", "RUNNING")
_SHORT_TEMP = 40
"""characters: Ray's socket paths below it must stay under the system's 107"""


class RayLauncher:
    """Jobs of one cluster. Not thread-safe."""

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
        """`environment`: of each job. `url`: of the web page, for the metadata. `head`: a cluster that ends with this launcher."""
        self._http = httpx.Client(
            base_url=f"{dashboard.rstrip('/')}/api/jobs",
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=ASK_S,
            trust_env=False,
        )
        self.dashboard = dashboard
        self._python, self._environment, self._url, self._head = python, dict(environment or {}), url, head
        self._jobs: dict[str, str] = {}
        self._stopped: set[str] = set()
        self._pending: dict[str, float] = {}
        self._looked_s = 0.0
        self._complaint = ""

    @classmethod
    def open(cls, options: ServiceOptions, *, store_url: str, url: str) -> Self:
        """Joins the cluster of the options, or starts one. Raises `RunnerError`."""
        if not options.ray_address:
            head = RayHead.start(store_url)
            log.info("Ray's dashboard is at %s, its token in %s", head.dashboard, own_token()[0])
            return cls(head.dashboard, token=head.token, python=sys.executable, url=url, head=head)
        if not options.ray_address.startswith(("http://", "https://")):
            raise RunnerError(
                f"--ray takes the address of a Ray dashboard, but got {options.ray_address!r}",
                remedy="e.g. --ray http://head:8265",
            )
        environment = {} if has_password(store_url) else {"AUTOTUNE_STORE": store_url}
        return cls(options.ray_address, token=user_token(), environment=environment, url=url)

    def start(self, record: StudyRecord) -> None:
        """Submits the job, unless it is there already."""
        number = 1
        while (found := self._info(name := _submission(record.id, number))) is not None:
            if found["status"] in ALIVE and name not in self._stopped:
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
        }
        job: dict[str, Any] = {
            "entrypoint": shlex.join([self._python, "-m", "autotune.service.worker", record.id]),
            "submission_id": name,
            "metadata": metadata,
        }
        if self._environment:
            job["runtime_env"] = {"env_vars": self._environment}
        answer = self._ask("POST", "/", json=job, timeout=SUBMIT_S)
        if answer.status_code != 200 and (self._info(name) or {}).get("status") not in ALIVE:
            raise RunnerError(
                f"Ray did not take the job of study {record.id}: HTTP {answer.status_code}, {answer.text[:300]}",
                remedy="see the Ray dashboard",
            )
        self._jobs[record.id] = name

    def adopted(self) -> frozenset[str]:
        """Studies whose jobs an earlier service started and that still run. Jobs stopped by hand meanwhile are heard of by `ended`."""
        answer = self._ask("GET", "/")
        for job in answer.json() if answer.status_code == 200 else []:
            study = (job.get("metadata") or {}).get(STUDY_KEY)
            if study and job["status"] in (*ALIVE, "STOPPED"):
                self._jobs[study] = job["submission_id"]
        return frozenset(self._jobs)

    def ended(self) -> list[Ended]:
        """Jobs that are over. One that Ray no longer knows was lost; one that was stopped, but not by us, is to be cancelled."""
        if time.monotonic() - self._looked_s < LOOK_S:
            return []
        self._looked_s = time.monotonic()
        over: list[Ended] = []
        for study, name in list(self._jobs.items()):
            try:
                found = self._info(name)
            except RunnerError as error:  # unreachable is not dead
                self._complaint = str(error)
                return over
            if found is not None and found["status"] in ALIVE and not self._is_stuck(name, found["status"]):
                continue
            del self._jobs[study]
            by_hand = found is not None and found["status"] == "STOPPED" and name not in self._stopped
            over.append(Ended(study=study, code=_code(found), by_hand=by_hand))
        self._complaint = ""
        return over

    def _is_stuck(self, name: str, status: str) -> bool:
        """Whether the job waits for ever; then it is stopped."""
        now = time.monotonic()
        since = self._pending.setdefault(name, now)
        if status != "PENDING":
            self._pending[name] = now
        if now - since < PENDING_S or status != "PENDING":
            return False
        self._stopped.add(name)
        self._ask("POST", f"/{name}/stop")
        return True

    def kill(self, study: str) -> None:
        """Stops the job."""
        if (name := self._jobs.get(study)) is not None:
            self._stopped.add(name)
            self._ask("POST", f"/{name}/stop")

    def health(self) -> str:
        """Empty when Ray answers, else what it said."""
        if self._head is not None and not self._head.lives:
            return "the Ray cluster that was started here has died; start the service again"
        return self._complaint

    def close(self, grace_s: float) -> None:
        """A cluster that was started here ends, with its jobs; in one that was joined they go on."""
        if self._head is not None:
            for study in list(self._jobs):
                with contextlib.suppress(RunnerError):
                    self.kill(study)
            self._head.close(grace_s)
            self._head = None
        self._http.close()

    def _info(self, name: str) -> dict[str, Any] | None:
        """What Ray knows of the job; None when it knows none of that name. Raises `RunnerError` when it does not say."""
        answer = self._ask("GET", f"/{name}")
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            raise RunnerError(f"Ray's dashboard at {self.dashboard} answers HTTP {answer.status_code}", remedy=_REMEDY)
        found: dict[str, Any] = answer.json()
        return found

    def _ask(self, method: str, path: str, **request: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **request)
        except httpx.HTTPError as error:
            raise RunnerError(
                f"Ray's dashboard at {self.dashboard} cannot be reached: {type(error).__name__}", remedy=_REMEDY
            ) from None


class RayHead:
    """The process that holds a cluster started here."""

    def __init__(self, process: subprocess.Popen[str], *, where: Mapping[str, str], token: str, folder: str) -> None:
        """`where`: what the process said, see `autotune.service.ray_head`. `folder`: of the cluster's files."""
        self._process, self.token, self.folder = process, token, folder
        self.dashboard, self.address = where.get("dashboard", ""), where.get("address", "")

    @classmethod
    def start(cls, store_url: str) -> Self:
        """Starts it and waits until it answers. Raises `MissingExtraError` without Ray, and `RunnerError`."""
        require_extra("ray", "the service's own Ray cluster")
        root = tempfile.gettempdir()
        folder = tempfile.mkdtemp(prefix="at-", dir=root if len(root) <= _SHORT_TEMP else "/tmp")
        path, token = own_token()
        environment = {
            **{name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_TOKEN")},
            "AUTOTUNE_STORE": store_url,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(path),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps all of Ray on loopback, here too
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune.service.ray_head", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_S)
        line = process.stdout.readline() if ready else ""
        if not line.startswith("{"):
            cls(process, where={}, token="", folder=folder).close(5.0)
            raise RunnerError(
                f"Ray cannot be started on this machine (no answer within {START_S:.0f} s, or it died)",
                remedy="`autotune doctor` checks Ray; `autotune serve --runner local` needs none",
            )
        return cls(process, where=json.loads(line), token=token, folder=folder)

    @property
    def lives(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def close(self, grace_s: float) -> None:
        """Ends the cluster and removes its files."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def own_token() -> tuple[Path, str]:
    """The secret of clusters started here, and the file that holds it, which only this user can read."""
    path = data_folder() / "ray_token"
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        contextlib.suppress(FileExistsError),
        open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file,
    ):
        file.write(secrets.token_hex(32))
    return path, path.read_text().strip()


def user_token(environment: Mapping[str, str] | None = None) -> str:
    """The secret of clusters that are joined, from where Ray itself looks for it; empty when there is none."""
    given = os.environ if environment is None else environment
    if text := given.get("RAY_AUTH_TOKEN", "").strip():
        return text
    path = given.get("RAY_AUTH_TOKEN_PATH") or str(Path.home() / ".ray" / "auth_token")
    with contextlib.suppress(OSError):
        return Path(path).read_text().strip()
    return ""


def has_password(store_url: str) -> bool:
    """Whether a store's address holds a secret."""
    if "://" not in store_url:
        return False
    from sqlalchemy import make_url

    found = make_url(store_url)
    return bool(found.password) or any("password" in key.lower() for key in found.query)


def _submission(study: str, number: int) -> str:
    return study if number == 1 else f"{study}-{number}"


def _code(found: Mapping[str, Any] | None) -> int:
    if found is None:
        return -9
    if found["status"] == "SUCCEEDED":
        return 0
    code = found.get("driver_exit_code")
    return code if isinstance(code, int) and code else 1


_REMEDY = "see that the cluster runs, and that RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH holds its secret"
