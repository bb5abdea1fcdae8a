"""A Ray cluster that runs as long as the service: its process, its folder and its secret.

Only this user can enter the cluster's folder:
    at-XXXXXXXX/          mode 0700
        owner             id of the process that runs the cluster; if that process is gone, the next start removes the folder
        r/                Ray's folder of sessions, which Ray opens to every user of the machine

The secret is in a file in the user's data folder. The cluster's process removes the folder when it
ends, even if the service was killed (`autotune.service.supervise.ray_head`).
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
"""deadline for the start of a cluster, seconds"""
TEMP_DIR, OWNER = "r", "owner"
PREFIX = "at-"
_MAX_TEMP_PATH = 40
"""longest path of the temporary folder, characters; Ray's socket paths in it must stay within the
system's limit of 107"""


class RayHead:
    """The process that runs the cluster (`autotune.service.supervise.ray_head`)."""

    def __init__(
        self,
        process: subprocess.Popen[str],
        *,
        addresses: Mapping[str, str],
        token: str,
        folder: Path,
    ) -> None:
        """`addresses`: addresses that the process printed. `folder`: the cluster's folder (see the
        module's docstring)."""
        self._process, self.token, self._folder = process, token, folder
        self.folder = str(folder / TEMP_DIR)
        self.dashboard, self.address = addresses.get("dashboard", ""), addresses.get("address", "")

    @classmethod
    def start(
        cls,
        store_url: str,
        *,
        environment: Mapping[str, str] | None = None,
        should_give_up: Callable[[], bool] = lambda: False,
    ) -> Self:
        """Start the process and wait for its addresses. `environment`: additional environment
        variables of everything in the cluster.

        Raises `MissingExtraError` without Ray, and `RunnerError` if Ray does not start or
        `should_give_up` returns True.
        """
        require_extra("ray", "the service's own Ray cluster")
        folder = _new_folder()
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
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # also keeps Ray on loopback on those systems
            **(environment or {}),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "autotune.service.supervise.ray_head", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=variables,
            text=True,
            start_new_session=True,
        )
        line = _first_line(process, should_give_up)
        if not line.startswith("{"):
            cls(process, addresses={}, token="", folder=folder).close(5.0)
            raise RunnerError(
                f"Ray did not start on this machine; it ended, or gave no address within {format_duration(START_S)}",
                remedy="run `autotune doctor` to check Ray, or run `autotune serve --runner local`, which needs no Ray",
            )
        return cls(process, addresses=json.loads(line), token=token, folder=folder)

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    def close(self, grace_s: float) -> None:
        """End the cluster and delete its files."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def own_token() -> tuple[Path, str]:
    """Return the file with the secret of clusters started here, which only this user can read, and
    the secret; creates them if needed."""
    path = data_folder() / "ray_token"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (
        contextlib.suppress(FileExistsError),
        open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file,
    ):
        file.write(secrets.token_hex(32))
    return path, path.read_text().strip()


def _new_folder() -> Path:
    """Return a new folder for a cluster, after deleting the folders of clusters that are gone."""
    temporary = tempfile.gettempdir()
    root = Path(temporary if len(temporary) <= _MAX_TEMP_PATH else "/tmp")
    for folder in root.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.geteuid() and is_gone((folder / OWNER).read_text()):
                shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))


def _first_line(process: subprocess.Popen[str], should_give_up: Callable[[], bool]) -> str:
    """Return the first line that the process prints; an empty text if it ended, printed none in
    time, or `should_give_up` returned True."""
    assert process.stdout is not None
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and not should_give_up():
        ready, _, _ = select.select([process.stdout], [], [], 0.2)
        if ready:
            return process.stdout.readline()
    return ""
