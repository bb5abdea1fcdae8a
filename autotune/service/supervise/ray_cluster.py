"""A Ray cluster that lives as long as the service: its process, its place on disk and its secret.

The cluster's place is a folder that only this user can enter:

    at-XXXXXXXX/          mode 0700
        owner             id of the process that runs the cluster; a place whose owner is gone is removed at the next start
        r/                Ray's folder of sessions, which Ray itself opens to every user of the machine

The secret lies in a file of the user's data folder. The cluster's process removes the place when it
ends, which it also does when the service is killed (`autotune.service.supervise.ray_head`).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from autotune.errors import RunnerError
from autotune.extras import require_extra
from autotune.settings import data_folder
from autotune.spec.texts.as_text import format_duration
from autotune.study.process_id import is_gone

START_S = 120.0
"""deadline for the start of a cluster"""
TEMP_DIR, OWNER = "r", "owner"
PREFIX = "at-"
_SHORT_TEMP = 40
"""characters; Ray's socket paths in the folder must stay within the system's limit of 107"""


class RayHead:
    """The process that runs the cluster (`autotune.service.supervise.ray_head`)."""

    def __init__(
        self, process: subprocess.Popen[str], *, where: Mapping[str, str], token: str, place: Path
    ) -> None:
        """`where`: the addresses that the process printed. `place`: the cluster's place (see
        above)."""
        self._process, self.token, self._place = process, token, place
        self.folder = str(place / TEMP_DIR)
        self.dashboard, self.address = where.get("dashboard", ""), where.get("address", "")

    @classmethod
    def start(
        cls,
        store_url: str,
        *,
        environment: Mapping[str, str] | None = None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> Self:
        """Starts the process and waits for its addresses. `environment`: further variables of
        everything in the cluster.

        Raises `MissingExtraError` without Ray, and `RunnerError`, also when `given_up` says True.
        """
        require_extra("ray", "the service's own Ray cluster")
        place = _new_place()
        path, token = own_token()
        variables = {
            **{
                name: value
                for name, value in os.environ.items()
                if name not in ("RAY_ADDRESS", "RAY_AUTH_TOKEN")
            },
            "AUTOTUNE_STORE": store_url,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(path),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps all of Ray on loopback on those systems too
            **(environment or {}),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune.service.supervise.ray_head", str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables,
            text=True,
            start_new_session=True,
        )
        line = _first_line(process, given_up)
        if not line.startswith("{"):
            cls(process, where={}, token="", place=place).close(5.0)
            raise RunnerError(
                f"Ray did not start on this machine; it ended, or gave no address within {format_duration(START_S)}",
                remedy="run `autotune doctor` to check Ray, or run `autotune serve --runner local`, which needs no Ray",
            )
        return cls(process, where=json.loads(line), token=token, place=place)

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
        shutil.rmtree(self._place, ignore_errors=True)


def own_token() -> tuple[Path, str]:
    """The file with the secret of clusters started here, which only this user can read, and the
    secret itself."""
    path = data_folder() / "ray_token"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        contextlib.suppress(FileExistsError),
        open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file,
    ):
        file.write(secrets.token_hex(32))
    return path, path.read_text().strip()


def _new_place() -> Path:
    """A new folder for a cluster; those of clusters that are gone are removed first."""
    found = tempfile.gettempdir()
    root = Path(found if len(found) <= _SHORT_TEMP else "/tmp")
    for place in root.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if place.stat().st_uid == os.geteuid() and is_gone((place / OWNER).read_text()):
                shutil.rmtree(place, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))


def _first_line(process: subprocess.Popen[str], given_up: Callable[[], bool]) -> str:
    """The first line that the process prints; empty when it ended, printed none in time, or was
    given up."""
    assert process.stdout is not None
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and not given_up():
        ready, _, _ = select.select([process.stdout], [], [], 0.2)
        if ready:
            return process.stdout.readline()
    return ""
